"""Training on a GPU: Transformer Engine's layers, bf16, fp8, the optimizer on the host, NCCL."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from slime.tiny import Tiny
from tests.distributed import run_ranks
from tests.training.expected import score
from tests.training.ranks import response_log_probs, train
from tests.training.rollouts import varied

SAMPLES = varied()
TOGETHER = {"micro_batch_size": 10}
SFT = ["--loss-type", "sft_loss"]
needs_te = pytest.mark.skipif(
    importlib.util.find_spec("transformer_engine") is None,
    reason="needs transformer-engine, which comes with the image",
)
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def log_probs(directory, options):
    return response_log_probs(directory, options, SAMPLES, **TOGETHER)


def training(directory, options, rollouts=2):
    return train(directory, options, SAMPLES, rollouts=rollouts, **TOGETHER)


def one_gpu(function, *arguments):
    return run_ranks(function, 1, *arguments, deadline=200, backend="nccl")[0]


def largest_difference(tiny: Tiny, *options: str) -> float:
    """From transformers' log-probs, in float32 on the CPU."""
    ours = one_gpu(log_probs, str(tiny.model), list(options))
    theirs = torch.cat([scored.log_probs for scored in score(str(tiny.model), SAMPLES)])
    return (torch.tensor(ours) - theirs).abs().max().item()


def test_local_layers_give_transformers_log_probs(tiny):
    assert largest_difference(tiny, "--transformer-impl", "local") < 1e-3


@needs_te
def test_layers_of_transformer_engine_give_transformers_log_probs_in_bf16(tiny):
    assert largest_difference(tiny, "--transformer-impl", "transformer_engine", "--bf16") < 0.2


@needs_te
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--bf16"], id="bf16"),
        pytest.param(["--bf16", "--optimizer-cpu-offload"], id="optimizer on the host"),
        pytest.param(["--bf16", "--use-precision-aware-optimizer"], id="precision-aware optimizer"),
        pytest.param(
            ["--bf16", "--fp8-format", "hybrid", "--fp8-recipe", "delayed"],
            id="fp8",
            marks=pytest.mark.skipif(
                torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9), reason="needs a GPU with fp8"
            ),
        ),
    ],
)
def test_learns_by_heart(tiny, options):
    """Ten steps on the same samples; in whatever precision, the likelihood of the responses rises."""
    trained = one_gpu(training, str(tiny.model), [*SFT, "--lr", "1e-3", *options], 10)
    losses = [result.steps[0]["train/loss"] for result in trained]
    assert losses[-1] < 0.8 * losses[0]


@needs_two
@pytest.mark.parametrize(
    "options",
    [["--tensor-model-parallel-size", "2", "--sequence-parallel"], ["--pipeline-model-parallel-size", "2"], []],
)
def test_two_gpus_equal_one(tiny, options):
    """The third case is data-parallel. In float32 with local layers, so that only the order of sums differs."""
    local = [*SFT, "--transformer-impl", "local"]
    alone = one_gpu(training, str(tiny.model), local)[0].steps[0]
    both = run_ranks(training, 2, str(tiny.model), [*local, *options], deadline=200, backend="nccl")[0][0].steps[0]
    assert both["train/loss"] == pytest.approx(alone["train/loss"], rel=1e-4)
    assert both["train/grad_norm"] == pytest.approx(alone["train/grad_norm"], rel=1e-3)


def test_deepep_is_there_or_said_to_be_missing():
    """Its kernels need several GPUs with NVLink; here only whether the package fits torch and CUDA."""
    if importlib.util.find_spec("deep_ep") is None:
        pytest.skip("deep-ep is not installed: --moe-token-dispatcher-type flex has no kernels")
    import deep_ep

    assert deep_ep.Buffer
