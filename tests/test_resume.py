"""train.py in parts: rollouts alone, training alone on what was recorded, and a run that goes on from a checkpoint.

Real engines in three runs of a model that knows nothing, so rewards are random: whatever is equal is so to the last
bit.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from slime.data.ledger_file import open_for_reading
from slime.data.recording import read_rollout
from slime.data.sample import Sample
from slime.observe import read_metrics
from tests.runs import column, of_no_knowledge, train

ROLLOUTS, PROMPTS, SAMPLES = 4, 4, 2
STEP = ("train/loss", "train/grad_norm", "train/lr-pg_0", "train/step")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [
        *of_no_knowledge(tmp_path_factory.mktemp("sort")),
        *("--rollout-batch-size", str(PROMPTS), "--rollout-max-response-len", "6"),
        *("--n-samples-per-prompt", str(SAMPLES), "--num-steps-per-rollout", "2", "--lr-warmup-iters", "3"),
    ]


@pytest.fixture(scope="module")
def resumed(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ends after two rollouts and another that makes it four."""
    path = tmp_path_factory.mktemp("resumed")
    checkpoints = str(path / "checkpoints")
    recorded = ["--save-debug-rollout-data", str(path / "{rollout_id}.jsonl")]
    train(path, *options, *recorded, "--num-rollout", "2", "--save", checkpoints)
    train(path, *options, *recorded, "--num-rollout", str(ROLLOUTS), "--load", checkpoints)
    return path


@pytest.fixture(scope="module")
def generated(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four rollouts that nobody trains on."""
    path = tmp_path_factory.mktemp("generated")
    recorded = ["--save-debug-rollout-data", str(path / "{rollout_id}.jsonl"), "--save", str(path / "checkpoints")]
    train(path, *options, *recorded, "--debug-rollout-only", "--num-rollout", str(ROLLOUTS))
    return path


def samples(path: Path, rollout_id: int) -> list[Sample]:
    return [sample for group in read_rollout(path / f"{rollout_id}.jsonl") for sample in group]


def test_training_alone_repeats_what_was_trained_before_and_after_the_interruption(options, resumed, tmp_path):
    """So the resumed run did, with real engines between, what one without interruption does."""
    recorded = ["--load-debug-rollout-data", str(resumed / "{rollout_id}.jsonl")]
    train(tmp_path, *options, *recorded, "--debug-train-only", "--num-rollout", str(ROLLOUTS))
    for name in STEP:
        expected = column(resumed / "run", name)
        assert len(expected) == 2 * ROLLOUTS and column(tmp_path / "run", name) == expected, name
    assert any(loss for loss in column(resumed / "run", "train/loss"))
    for name in ("rollout/raw_reward", "rollout/advantages", "rollout/response_lengths"):
        assert column(tmp_path / "run", name) == column(resumed / "run", name) != [], name
    of_engines = ("perf/update_weights_time", "perf/wake_up_time", "perf/longest_sample_tokens_per_sec")
    assert [name for name in of_engines if column(tmp_path / "run", name)] == []


def test_a_resumed_run_counts_on(resumed):
    assert column(resumed / "run", "train/step") == list(range(2 * ROLLOUTS))
    for rollout_id in range(ROLLOUTS):
        made = samples(resumed, rollout_id)
        assert {version for sample in made for version in sample.weight_versions} == {str(rollout_id)}
    indices = [sample.index for rollout_id in range(ROLLOUTS) for sample in samples(resumed, rollout_id)]
    assert sorted(indices) == list(range(ROLLOUTS * PROMPTS * SAMPLES))


def test_a_resumed_run_takes_the_prompts_that_one_without_interruption_takes(resumed, generated):
    for rollout_id in range(ROLLOUTS):
        prompts = [[(s.index, s.prompt) for s in samples(path, rollout_id)] for path in (resumed, generated)]
        assert prompts[0] == prompts[1]


def test_rollouts_alone_are_generated_and_graded_and_trained_on_by_nobody(generated):
    rows = read_metrics(generated / "run")
    assert len(rows) == ROLLOUTS and all("rollout/raw_reward" in row for row in rows)
    assert not [name for row in rows for name in row if name.startswith(("train/", "perf/train_time"))]
    assert not (generated / "checkpoints").exists()
    with closing(open_for_reading(generated / "run" / "ledger.db")) as ledger:
        states = set(ledger.execute("SELECT state, reason FROM samples"))
    assert states == {("dropped", "the run ended before it was trained on")}
