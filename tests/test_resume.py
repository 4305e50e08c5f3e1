"""train.py in parts: rollouts alone, training alone on what was recorded, and a run that goes on from a checkpoint.

Real engines in four runs of a model that knows nothing, so rewards are random. The likeliest token is sampled, since
SGLang has seeds on GPUs only, and the trainer's own log-probs are the old ones: the engine's last bits depend on what
it computes side by side. Whatever is equal is so to the last bit.
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

ROLLOUTS, PROMPTS, SAMPLES = 6, 4, 2
STEP = ("train/loss", "train/grad_norm", "train/lr-pg_0", "train/step")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [
        *of_no_knowledge(tmp_path_factory.mktemp("sort")),
        *("--rollout-batch-size", str(PROMPTS), "--rollout-max-response-len", "6"),
        *("--n-samples-per-prompt", str(SAMPLES), "--num-steps-per-rollout", "2", "--lr-warmup-iters", "3"),
        *("--rollout-top-k", "1", "--no-use-rollout-logprobs", "--lr", "3e-3"),
        *("--advantage-estimator", "reinforce_plus_plus", "--normalize-advantages"),  # alike samples do not cancel out
    ]


def run(path: Path, options: list[str], *further: str, rollouts: int) -> None:
    recorded = ["--save-debug-rollout-data", str(path / "{rollout_id}.jsonl"), "--save", str(path / "checkpoints")]
    train(path, *options, *recorded, *further, "--num-rollout", str(rollouts))


@pytest.fixture(scope="module")
def resumed(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ends after half of the rollouts and another that does the rest."""
    path = tmp_path_factory.mktemp("resumed")
    run(path, options, rollouts=ROLLOUTS // 2)
    run(path, options, "--load", str(path / "checkpoints"), rollouts=ROLLOUTS)
    return path


@pytest.fixture(scope="module")
def whole(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without an interruption."""
    path = tmp_path_factory.mktemp("whole")
    run(path, options, rollouts=ROLLOUTS)
    return path


@pytest.fixture(scope="module")
def generated(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rollout that nobody trains on."""
    path = tmp_path_factory.mktemp("generated")
    run(path, options, "--debug-rollout-only", rollouts=1)
    return path


def samples(path: Path, rollout_id: int) -> list[Sample]:
    return [sample for group in read_rollout(path / f"{rollout_id}.jsonl") for sample in group]


def ledger(path: Path) -> set[tuple[object, ...]]:
    with closing(open_for_reading(path / "run" / "ledger.db")) as db:
        return set(db.execute("SELECT id, state, rollout, reason FROM samples"))


def checkpoint(path: Path) -> dict[str, bytes]:
    """The files of the last one by name: weights, optimizer, schedule, random state and progress; and where the data
    goes on. Without torch's index, which is pickled: the same can be so in several ways."""
    last = path / "checkpoints" / f"iter_{ROLLOUTS - 1:07d}"
    files = [*last.iterdir(), path / "checkpoints" / "rollout" / f"{ROLLOUTS - 1}.json"]
    return {file.name: file.read_bytes() for file in files if file.name != ".metadata"}


def test_a_resumed_run_is_the_one_without_interruption(resumed, whole):
    for rollout_id in range(ROLLOUTS):
        made = [
            [(s.index, s.prompt, s.tokens, s.reward) for s in samples(path, rollout_id)] for path in (resumed, whole)
        ]
        assert made[0] == made[1], f"rollout {rollout_id}"
    for name in (*STEP, "rollout/raw_reward", "rollout/log_probs", "rollout/advantages"):
        assert column(resumed / "run", name) == column(whole / "run", name) != [], name
    assert ledger(resumed) == ledger(whole)
    ours, theirs = checkpoint(resumed), checkpoint(whole)
    assert ours.keys() == theirs.keys() > {"__0_0.distcp", "state.json", f"{ROLLOUTS - 1}.json"}
    assert [name for name in ours if ours[name] != theirs[name]] == []


def test_what_was_learnt_changed_what_was_said(whole):
    """Else the engines would not have to have the weights."""
    said = [
        {tuple(s.tokens[-s.response_length :]) for s in samples(whole, rollout_id)} for rollout_id in range(ROLLOUTS)
    ]
    assert len(set().union(*said)) > 1 and said[0] != said[-1]


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


def test_rollouts_alone_are_those_of_training_and_are_trained_on_by_nobody(generated, whole):
    assert [s.tokens for s in samples(generated, 0)] == [s.tokens for s in samples(whole, 0)]
    (row,) = read_metrics(generated / "run")
    assert "rollout/raw_reward" in row and not [name for name in row if name.startswith(("train/", "perf/train_time"))]
    assert not (generated / "checkpoints").exists()
    assert {(state, reason) for _, state, _, reason in ledger(generated)} == {
        ("dropped", "the run ended before it was trained on")
    }
