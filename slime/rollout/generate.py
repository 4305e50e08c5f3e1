"""The default rollout function, --rollout-function-path."""

from __future__ import annotations

from slime.config import Config
from slime.config.hooks import load_hook
from slime.data.buffer import Journal
from slime.data.source import DataSource
from slime.rollout.evaluate import evaluate
from slime.rollout.generator import Generator, Job
from slime.rollout.metrics import request_metrics
from slime.rollout.sampling import Sampling
from slime.rollout.types import RolloutFnEvalOutput, RolloutFnTrainOutput, flatten


def generate_rollout(
    args: Config, rollout_id: int, data_source: DataSource, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """Samples --rollout-batch-size prompts, or with `evaluation` all held-out sets, by the Generator of this process.

    The sample filter gets all samples in one list, the function for all samples gets them by groups.
    """
    generator = Generator.current()
    if evaluation:
        return evaluate(generator, args, rollout_id)
    groups = data_source.get_samples(args.rollout_batch_size)
    journal = data_source if isinstance(data_source, Journal) else None
    job = Job(args, Sampling.for_rollout(args), rollout_id, journal=journal)
    groups = generator.run(generator.generate(groups, job))
    sample_filter = load_hook("--rollout-sample-filter-path", args.rollout_sample_filter_path)
    if sample_filter is not None:
        sample_filter(args, flatten(groups))
    process = load_hook("--rollout-all-samples-process-path", args.rollout_all_samples_process_path)
    if process is not None:
        process(args, groups, data_source)
    return RolloutFnTrainOutput(groups, request_metrics(job.generations))
