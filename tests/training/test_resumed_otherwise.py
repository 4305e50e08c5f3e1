"""Learning rates and Adam's figures that are others than before take effect when a run is resumed."""

from __future__ import annotations

import pytest

from tests.distributed import run_ranks
from tests.training.checkpoint_ranks import resumed_otherwise, several

# Linear, from .03 to .01 within 4 steps: half of it after the two of the checkpoint.
OPTIONS = [
    *("--lr", "0.03", "--min-lr", "0.01", "--lr-decay-style", "linear", "--lr-decay-iters", "4"),
    *("--adam-beta1", "0.5", "--adam-beta2", "0.75", "--adam-eps", "1e-3", "--weight-decay", "0.125"),
]
KINDS = {
    "float32": [],
    "bfloat16": ["--bf16"],
    "not distributed": ["--no-use-distributed-optimizer"],
    "not distributed in bfloat16": ["--bf16", "--no-use-distributed-optimizer"],
    "CPU Adam": ["--bf16", "--optimizer-cpu-offload"],
    "half of Adam on the CPU": ["--bf16", "--optimizer-cpu-offload", "--optimizer-offload-fraction", "0.5"],
}
EXPERTS = {"experts": ["--bf16"]}


@pytest.fixture(scope="module")
def found(model, moe, directory):
    calls = {
        "dense": (resumed_otherwise, model, str(directory / "dense"), KINDS, OPTIONS),
        "experts": (resumed_otherwise, moe, str(directory / "experts"), EXPERTS, OPTIONS),
    }
    of_rank = run_ranks(several, 1, calls, deadline=200.0)[0]
    return of_rank["dense"] | of_rank["experts"]


@pytest.mark.parametrize("kind", [*KINDS, *EXPERTS])
def test_other_rates_and_figures_of_adam_take_effect(kind, found):
    groups, far = found[kind]
    for group in groups:
        assert group.pop("wd_mult") in (0.0, 1.0)
        assert group == {
            "lr": pytest.approx(0.02),
            "max_lr": 0.03,
            "min_lr": 0.01,
            "betas": (0.5, 0.75),
            "eps": 1e-3,
        }
    assert far == {"main": pytest.approx(0, abs=1e-5), "exp_avg_sq": pytest.approx(0, abs=1e-5)}
