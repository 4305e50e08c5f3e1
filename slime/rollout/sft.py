"""The rollout function of --loss-type sft_loss: demonstrations from the prompt files, no engine and no reward."""

from __future__ import annotations

from slime.config import Config
from slime.data.sample import SampleError
from slime.data.source import DataSource
from slime.rollout.types import RolloutError, RolloutFnTrainOutput, flatten


def generate_rollout(
    args: Config, rollout_id: int, data_source: DataSource, evaluation: bool = False
) -> RolloutFnTrainOutput:
    """--rollout-batch-size conversations, whose loss masks choose what the assistant says in them."""
    if evaluation:
        raise RolloutError("--loss-type sft_loss has no engines, so nothing can be generated for an evaluation")
    groups = data_source.get_samples(args.rollout_batch_size)
    for sample in flatten(groups):
        if sample.loss_mask is None:
            raise SampleError(f"{sample.name} has no loss mask: with --loss-type sft_loss the data source must set it")
        sample.rollout_id = rollout_id
        sample.reward = 0.0
    return RolloutFnTrainOutput(groups)
