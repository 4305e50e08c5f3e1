"""A recorded rollout becomes the same batches again, without engines or prompts."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from slime.config import ConfigError, load
from slime.data.recording import write_rollout
from slime.rollout.producer import Producer, open_source
from slime.rollout.types import RolloutError
from tests.rollout.samples import finished

RECORDED = [[finished(i, [3 + i, 4], group=g, reward=float(i % 3)) for i in (2 * g, 2 * g + 1)] for g in range(4)]


def record(args, rollout_id, data_source, evaluation=False):
    """A rollout function of a user's, so that nothing has to be generated here."""
    return RECORDED


def config(*options: str, model: object = "model"):
    return load(
        [
            *("--hf-checkpoint", str(model), "--rollout-batch-size", "4", "--n-samples-per-prompt", "2"),
            *("--num-rollout", "1", "--micro-batch-size", "3", "--actor-num-gpus-per-node", "1", *options),
        ]
    )


def same(a, b):
    return all(
        np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y
        for x, y in ((getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    )


def test_a_replay_makes_the_same_batches(tmp_path, tiny_model):
    path = str(tmp_path / "{rollout_id}.jsonl")
    options = ["--rollout-function-path", f"{__name__}.record", "--save-debug-rollout-data", path, "--debug-train-only"]
    recording = config(*options, model=tiny_model)
    with Producer(recording, None) as producer:
        made, _ = producer.rollout(7, dp_size=2)
    replaying = config("--load-debug-rollout-data", path, model=tiny_model)
    assert replaying.debug_train_only and replaying.rollout_num_gpus == 0
    with Producer(replaying, open_source(replaying)) as producer:
        again, metrics = producer.rollout(7, dp_size=2)
        with pytest.raises(RolloutError, match="no engines"):
            producer._evaluate(replaying, 0, None, evaluation=True)
    assert len(made) == len(again) == 2 and all(map(same, made, again))
    assert not [name for name in metrics if "tokens" in name]  # no speed: nothing was sampled
    assert metrics["perf/buffer_samples_per_sec"] > 0
    assert metrics["rollout/raw_reward"] == np.mean([s.reward for group in RECORDED for s in group])


def test_a_share_of_it(tmp_path, tiny_model):
    write_rollout(tmp_path / "0.jsonl", RECORDED)
    options = ["--load-debug-rollout-data", str(tmp_path / "{rollout_id}.jsonl")]
    options += ["--load-debug-rollout-data-subsample", "0.5"]
    with Producer(config(*options, model=tiny_model), None) as producer:
        (batch,), _ = producer.rollout(0, dp_size=1)
    assert sorted(batch.sample_ids_N) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--debug-train-only"], "generates no rollouts to train on"),
        (["--debug-train-only", "--debug-rollout-only", "--loss-type", "sft_loss"], "leave nothing to do"),
        (["--debug-rollout-only", "--loss-type", "sft_loss"], "generates nothing with --loss-type sft_loss"),
        (["--debug-rollout-only", "--load", "out"], "the engines of --debug-rollout-only have the weights of"),
        (["--save-debug-rollout-data", "a.jsonl"], "is the same file for every rollout_id"),
        (["--save-debug-train-data", "{rollout_id}.npz"], "is the same file for every rank"),
        (["--load-debug-rollout-data-subsample", ".5"], "is a share of a recording"),
    ],
)
def test_options_that_lead_nowhere(options, message):
    with pytest.raises(ConfigError, match=message):
        config(*options)
