"""The same rollout gives the same losses, gradients and log-probs under any layout of ranks and any packing."""

from __future__ import annotations

import pytest

from slime.tiny import write_checkpoint
from tests.distributed import run_ranks
from tests.training.ranks import train_all
from tests.training.rollouts import varied

PP2 = ["--pipeline-model-parallel-size", "2"]
TP2 = ["--tensor-model-parallel-size", "2"]
SP = ["--sequence-parallel"]
CP2 = ["--context-parallel-size", "2"]
EP2 = ["--expert-model-parallel-size", "2"]
ETP1 = ["--expert-tensor-parallel-size", "1"]
PER_TOKEN = ["--calculate-per-token-loss"]
KL = ["--use-kl-loss", "--kl-loss-coef", "0.1", "--kl-loss-type", "k3", "--entropy-coef", "0.01", "--normalize-advantages"]

# name: (ranks, model, what one process is told too, what only these ranks are told, how samples are packed)
LAYOUTS = {
    "two samples a row": (1, "dense", [], [], {"micro_batch_size": 2}),
    "rows of at most 30 tokens": (1, "dense", [], [], {"max_tokens": 30}),
    "per token, one sample a row": (1, "dense", PER_TOKEN, [], {"micro_batch_size": 1}),
    "without distributed optimizer": (1, "dense", [], ["--no-use-distributed-optimizer"], {"micro_batch_size": 10}),
    "DP2": (2, "dense", [], [], {"micro_batch_size": 2}),
    "DP2 without distributed optimizer": (2, "dense", [], ["--no-use-distributed-optimizer"], {"micro_batch_size": 3}),
    "DP2, rows of at most 30 tokens": (2, "dense", [], [], {"max_tokens": 30}),
    "DP2 per token": (2, "dense", PER_TOKEN, [], {"micro_batch_size": 2}),
    "DP2, everything in the loss": (2, "dense", KL, [], {"micro_batch_size": 2}),
    "TP2": (2, "dense", [], TP2, {"micro_batch_size": 2}),
    "TP2 with SP": (2, "dense", [], TP2 + SP, {"micro_batch_size": 3}),
    "PP2": (2, "dense", [], PP2, {"micro_batch_size": 2}),
    "PP2, everything in the loss": (2, "dense", KL, PP2, {"micro_batch_size": 5}),
    "CP2": (2, "dense", [], CP2, {"micro_batch_size": 2}),
    "CP2, everything in the loss": (2, "dense", KL, CP2, {"micro_batch_size": 5}),
    "MoE DP2": (2, "moe", [], [], {"micro_batch_size": 2}),
    "MoE EP2": (2, "moe", [], EP2, {"micro_batch_size": 2}),
    "MoE TP2 with SP, EP2": (2, "moe", [], TP2 + SP + EP2 + ETP1, {"micro_batch_size": 2}),
    "TP2 with SP, DP2": (4, "dense", [], TP2 + SP, {"micro_batch_size": 2}),
    "PP2 CP2": (4, "dense", [], PP2 + CP2, {"micro_batch_size": 2}),
}
STEPS = 2
DEADLINE = 280.0


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoints")
    return {
        "dense": str(write_checkpoint(directory / "dense")),
        "moe": str(write_checkpoint(directory / "moe", moe=True)),
        "reference": str(write_checkpoint(directory / "reference", seed=1)),
    }


def case(checkpoints, model, options, packing):
    if "--use-kl-loss" in options:
        options = [*options, "--ref-load", checkpoints["reference"]]
    return (checkpoints[model], options, varied(), {"num_steps": STEPS, **packing})


@pytest.fixture(scope="module")
def alone(checkpoints):
    """Of one process that packs all samples of a step into one row, by model and options."""
    cases = {}
    for _, model, options, _, _ in LAYOUTS.values():
        cases[model, tuple(options)] = case(checkpoints, model, options, {"micro_batch_size": 10})
    return run_ranks(train_all, 1, cases, deadline=DEADLINE)[0]


@pytest.fixture(scope="module")
def together(checkpoints):
    """Of all ranks, by layout."""
    results = {}
    for ranks in (1, 2, 4):
        cases = {
            name: case(checkpoints, model, options + own, packing)
            for name, (size, model, options, own, packing) in LAYOUTS.items()
            if size == ranks
        }
        by_rank = run_ranks(train_all, ranks, cases, deadline=DEADLINE)
        results |= {name: [of_rank[name] for of_rank in by_rank] for name in cases}
    return results


def without_times(metrics):
    return {name: value for name, value in metrics.items() if not name.startswith("perf/")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_equals_one_process(layout, alone, together):
    _, model, options, _, _ = LAYOUTS[layout]
    for rollout, (want, got) in enumerate(zip(alone[model, tuple(options)], together[layout][0], strict=True)):
        assert without_times(got.rollout) == pytest.approx(without_times(want.rollout), abs=1e-5), f"rollout {rollout}"
        for step, (want_step, got_step) in enumerate(zip(want.steps, got.steps, strict=True)):
            assert got_step == pytest.approx(want_step, abs=1e-5, rel=1e-5), f"rollout {rollout}, step {step}"


@pytest.mark.parametrize("layout", [name for name, (ranks, *_) in LAYOUTS.items() if ranks > 1])
def test_every_rank_reports_the_same(layout, together):
    first, *others = together[layout]
    for other in others:
        assert other == first


def test_training_has_an_effect(alone):
    first, second = alone["dense", ()]
    assert abs(first.rollout["rollout/log_probs"] - second.rollout["rollout/log_probs"]) > 1e-3
