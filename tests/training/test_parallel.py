"""The same rollout gives the same losses, gradients and log-probs under any layout of ranks and any packing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from slime.tiny import write_checkpoint
from tests.distributed import run_ranks
from tests.models.tiny import make_checkpoint, make_multi_token_checkpoint
from tests.training.critic_ranks import write_score
from tests.training.ranks import train_all
from tests.training.rollouts import varied

PP2 = ("--pipeline-model-parallel-size", "2")
VPP2 = (*PP2, "--virtual-pipeline-model-parallel-size", "2")
TP2 = ("--tensor-model-parallel-size", "2")
SP = ("--sequence-parallel",)
CP2 = ("--context-parallel-size", "2")
CP4 = ("--context-parallel-size", "4")
EP2 = ("--expert-model-parallel-size", "2")
ETP1 = ("--expert-tensor-parallel-size", "1")
ETP2 = ("--expert-tensor-parallel-size", "2")
OVERLAP = ("--overlap-grad-reduce", "--overlap-param-gather")
PLAIN = ("--no-use-distributed-optimizer",)
PER_TOKEN = ("--calculate-per-token-loss",)
EVERYTHING = (
    *("--use-kl-loss", "--kl-loss-coef", "0.1", "--kl-loss-type", "k3", "--use-unbiased-kl"),
    *("--entropy-coef", "0.01", "--normalize-advantages", "--eps-clip-high", "0.28", "--eps-clip-c", "3"),
)
HOOKS = "tests.training.hooks"
OF_WHOLE_SAMPLES = (
    *("--advantage-estimator", "gspo", "--use-opsm", "--opsm-delta", "0.001"),
    *("--use-mis", "--mis-level", "sequence", "--mis-clip-low", "0.01"),
    *("--custom-pg-loss-reducer-function-path", f"{HOOKS}.by_a_constant_length"),
    *("--custom-advantage-function-path", f"{HOOKS}.rising"),
)
RETURNS = (
    *("--advantage-estimator", "reinforce_plus_plus", "--gamma", "0.9", "--normalize-advantages"),
    *("--kl-coef", "0.1", "--use-tis", "--custom-tis-function-path", f"{HOOKS}.half_without_the_first_token"),
)
LIKELIHOOD = ("--loss-type", "custom_loss", "--custom-loss-function-path", f"{HOOKS}.likelihood")
CRITIC = (
    *("--advantage-estimator", "ppo", "--gamma", "0.9", "--lambd", "0.8", "--value-clip", "0.05"),
    "--normalize-advantages",
)
WITH_KL = (*CRITIC, "--kl-coef", "0.1")
BALANCED = ("--moe-router-load-balancing-type", "aux_loss", "--moe-aux-loss-coeff", "0.1", "--moe-z-loss-coeff", "0.01")
REPLAY = ("--use-routing-replay", "--lr", "0.01")
R3 = ("--use-rollout-routing-replay",)
RECOMPUTE = ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1")
RECOMPUTE_ATTENTION = ("--recompute-granularity", "selective", "--recompute-modules", "core_attn")
RECOMPUTE_MOE = ("--recompute-granularity", "selective", "--recompute-modules", "moe")
MTP = ("--enable-mtp-training",)
ATTACHED = (*MTP, "--no-mtp-detach-heads")
FAMILIES = ("glm4 without biases", "glm4_moe without qk-norm", "deepseek_v3", "moonlight", "llama", "qwen2")
FROZEN_BIASES = ("--freeze-params-name-list", "linear_qkv.bias")  # a key's has a gradient of noise, which Adam blows up
STEPS = 2
ADAM_EPS = ("--adam-eps", "1e-4")  # else Adam makes whole steps of gradients that are nothing but rounding
LOG_PROBS = 1e-5  # of tokens, before training and after each rollout of it
DEADLINE = 400.0


@dataclass(frozen=True)
class Layout:
    ranks: int
    own: tuple[str, ...] = ()  # options of this layout
    packing: dict[str, int] = field(default_factory=lambda: {"micro_batch_size": 2})
    model: str = "dense"
    shared: tuple[str, ...] = ()  # options also of the one process that it is compared with
    samples: int = 10
    multiple: int = 1  # of which each sample's length is one
    alone: int = 10  # micro-batch size of that one process

    @property
    def compared_with(self) -> tuple[Any, ...]:
        return self.model, self.shared, (self.samples, self.multiple), self.alone


def one_by_one(ranks, own=(), shared=BALANCED):
    """A balancing loss is one of its micro-batch, so micro-batches have to be the same. It is exact only without
    padding, since Megatron weighs each rank's part by its own tokens, and without empty micro-batches, whose one token
    counts in it.
    """
    return Layout(ranks, own, {"micro_batch_size": 1}, model="moe", shared=shared, samples=8, multiple=4, alone=1)


def routed(ranks, own, samples=10):
    """The engine's choices are not the router's, so that a token that goes to another's experts is seen."""
    return Layout(ranks, own, model="moe", shared=R3, samples=samples)


LAYOUTS = {
    "two samples a row": Layout(1),
    "rows of at most 30 tokens": Layout(1, packing={"max_tokens": 30}),
    "per token, one sample a row": Layout(1, packing={"micro_batch_size": 1}, shared=PER_TOKEN),
    "recomputed": Layout(1, RECOMPUTE),
    "loss recomputed, logits in chunks": Layout(1, ("--recompute-loss-function", "--log-probs-chunk-size", "5")),
    "without distributed optimizer": Layout(1, PLAIN),
    "DP2": Layout(2),
    "DP2 without distributed optimizer": Layout(2, PLAIN, {"micro_batch_size": 3}),
    "DP2 with overlap": Layout(2, OVERLAP),
    "DP2, rows of at most 30 tokens": Layout(2, packing={"max_tokens": 30}),
    "DP2 per token": Layout(2, shared=PER_TOKEN),
    "DP2, everything in the loss": Layout(2, shared=EVERYTHING),
    "DP2, a rank without any sample": Layout(2, samples=1),
    "DP2, a rank without a sample in the second step": Layout(2, samples=3),
    "TP2": Layout(2, TP2),
    "TP2 with SP": Layout(2, TP2 + SP, {"micro_batch_size": 3}),
    "PP2": Layout(2, PP2),
    "PP2, everything in the loss": Layout(2, PP2, {"micro_batch_size": 5}, shared=EVERYTHING),
    "PP2 with two virtual stages": Layout(2, VPP2, {"micro_batch_size": 2, "micro_batch_multiple": 2}, model="deep"),
    "CP2": Layout(2, CP2),
    "CP2, gathered": Layout(2, (*CP2, "--allgather-cp")),
    "CP2, everything in the loss": Layout(2, CP2, {"micro_batch_size": 5}, shared=EVERYTHING),
    "CP2, what is of whole samples": Layout(2, CP2, {"micro_batch_size": 5}, shared=OF_WHOLE_SAMPLES),
    "CP2, returns": Layout(2, CP2, shared=RETURNS),
    "DP2, returns": Layout(2, shared=RETURNS),
    "DP2, returns, a rank without any sample": Layout(2, shared=RETURNS, samples=1),
    "DP2, what is of whole samples, a rank without any": Layout(2, shared=OF_WHOLE_SAMPLES, samples=1),
    "PP2, returns": Layout(2, PP2, shared=RETURNS),
    "CP2, a custom loss": Layout(2, CP2, shared=LIKELIHOOD),
    "DP2, a custom loss, a rank without any sample": Layout(2, shared=LIKELIHOOD, samples=1),
    "critic, rows of at most 30 tokens": Layout(1, packing={"max_tokens": 30}, shared=WITH_KL),
    "DP2, critic": Layout(2, shared=WITH_KL),
    "DP2, critic, a rank without any sample": Layout(2, shared=CRITIC, samples=1),
    "TP2 with SP, critic": Layout(2, TP2 + SP, {"micro_batch_size": 3}, shared=WITH_KL + PER_TOKEN),
    "PP2 with two virtual stages, critic": Layout(
        2, VPP2, {"micro_batch_size": 2, "micro_batch_multiple": 2}, model="deep", shared=CRITIC
    ),
    "CP2, critic": Layout(2, CP2, shared=WITH_KL),
    "TP2 with SP, recomputed": Layout(2, TP2 + SP + RECOMPUTE),
    "PP2, attention recomputed": Layout(2, PP2 + RECOMPUTE_ATTENTION),
    "MoE DP2": Layout(2, model="moe"),
    "MoE ETP2": Layout(2, ETP2, model="moe"),
    "MoE EP2": Layout(2, EP2, model="moe"),
    "MoE EP2, a rank without any sample": Layout(2, EP2, model="moe", samples=1),
    "MoE TP2 with SP, EP2": Layout(2, TP2 + SP + EP2 + ETP1, model="moe"),
    "MoE DP2, one sample a row": one_by_one(2, shared=()),
    "MoE DP2 with balancing losses": one_by_one(2),
    "MoE TP2 with SP and balancing losses": one_by_one(2, TP2 + SP),
    "MoE CP2 with balancing losses": one_by_one(2, CP2),
    "MoE, routing replay, recomputed": Layout(1, RECOMPUTE, model="moe", shared=REPLAY),
    "MoE EP2, routing replay": Layout(2, EP2, model="moe", shared=REPLAY),
    "MoE PP2, routing replay, recomputed": Layout(2, PP2 + RECOMPUTE, model="moe", shared=REPLAY),
    "MoE PP2, the engine's routing, experts recomputed": routed(2, PP2 + RECOMPUTE_MOE),
    "MoE CP2, the engine's routing": routed(2, CP2),
    "MoE TP2 with SP, EP2, the engine's routing": routed(2, TP2 + SP + EP2 + ETP1),
    "MoE EP2, the engine's routing, a rank without any sample": routed(2, EP2, samples=1),
    "GLM-4 TP2 with SP": Layout(2, TP2 + SP, model="glm4 without biases"),
    "GLM-4.5 EP2": Layout(2, EP2, model="glm4_moe without qk-norm"),
    "Llama TP2 with SP": Layout(2, TP2 + SP, model="llama"),
    "Qwen2 PP2": Layout(2, PP2, model="qwen2", shared=FROZEN_BIASES),
    "latent attention CP2": Layout(2, CP2, model="deepseek_v3"),
    "latent attention PP2": Layout(2, PP2, {"micro_batch_size": 3}, model="moonlight"),
    "multi-token prediction, two samples a row": Layout(1, model="multi-token", shared=MTP),
    "multi-token prediction DP2": Layout(2, model="multi-token", shared=MTP),
    "multi-token prediction PP2": Layout(2, PP2, model="multi-token", shared=MTP),
    "multi-token prediction CP2": Layout(2, CP2, model="multi-token", shared=MTP),
    "multi-token prediction TP2 with SP": Layout(2, TP2 + SP, model="multi-token", shared=MTP),
    "multi-token prediction PP2, through the model": Layout(2, PP2, model="multi-token", shared=ATTACHED),
    "latent attention TP2 with SP, EP2": Layout(2, TP2 + SP + EP2 + ETP1, model="deepseek_v3"),
    "TP2 with SP, DP2": Layout(4, TP2 + SP),
    "PP2 CP2": Layout(4, PP2 + CP2),
    "CP4, returns": Layout(4, CP4, {"micro_batch_size": 5}, shared=RETURNS),
    "PP2 CP2, critic": Layout(4, PP2 + CP2, {"micro_batch_size": 5}, shared=WITH_KL),
    "TP2 with SP, PP2": Layout(4, TP2 + SP + PP2, {"micro_batch_size": 3}),
    "TP2 with SP, CP2": Layout(4, TP2 + SP + CP2),
    "PP2 DP2 with overlap": Layout(4, PP2 + OVERLAP),
    "TP2 with SP, two virtual stages": Layout(
        4, TP2 + SP + VPP2, {"micro_batch_size": 2, "micro_batch_multiple": 2}, model="deep"
    ),
    "MoE EP2 PP2, routing replay, recomputed": Layout(4, EP2 + PP2 + RECOMPUTE, model="moe", shared=REPLAY),
    "MoE EP2 CP2": Layout(4, EP2 + CP2, model="moe"),
    "PP2 CP2, what is of whole samples": Layout(4, PP2 + CP2, shared=OF_WHOLE_SAMPLES),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoints")
    return {
        "dense": str(write_checkpoint(directory / "dense")),
        "deep": str(write_checkpoint(directory / "deep", num_layers=4)),
        "moe": str(write_checkpoint(directory / "moe", moe=True)),
        "reference": str(write_checkpoint(directory / "reference", seed=1)),
        "critic": str(write_score(write_checkpoint(directory / "body", num_layers=4, seed=2), directory / "critic")),
        "multi-token": str(make_multi_token_checkpoint(directory / "multi-token", "deepseek_v3")),
        **{kind: str(make_checkpoint(directory / kind, kind)) for kind in FAMILIES},
    }


def case(checkpoints, model, options, samples, packing):
    if {"--use-kl-loss", "--kl-coef"} & set(options):
        options = (*options, "--ref-load", checkpoints["reference"])
    if "ppo" in options:
        options = (*options, "--critic-load", checkpoints["critic"])
    options = (*options, *ADAM_EPS)
    count, multiple = samples
    sharing = {"num_steps": STEPS, "experts": "--use-rollout-routing-replay" in options, **packing}
    return checkpoints[model], options, varied(count, multiple=multiple), sharing


@pytest.fixture(scope="module")
def trained(checkpoints):
    """What became of all layouts, and of what they are compared with: by number of ranks, of each rank, by case."""
    cases = {ranks: {} for ranks in (1, 2, 4)}
    for name, layout in LAYOUTS.items():
        model, options, samples, size = layout.compared_with
        cases[1][layout.compared_with] = case(checkpoints, model, options, samples, {"micro_batch_size": size})
        cases[layout.ranks][name] = case(checkpoints, model, options + layout.own, samples, layout.packing)
    return {ranks: run_ranks(train_all, ranks, of_ranks, deadline=DEADLINE) for ranks, of_ranks in cases.items()}


@pytest.fixture(scope="module")
def alone(trained):
    """Of one process that packs as many samples as it can into a row, by what it is told."""
    return trained[1][0]


@pytest.fixture(scope="module")
def together(trained):
    """Of all ranks, by layout."""
    return {name: [of_rank[name] for of_rank in trained[layout.ranks]] for name, layout in LAYOUTS.items()}


def comparable(metrics):
    """Without times, and without learning rates: how many groups of parameters there are depends on the layout."""
    return {
        name: value
        for name, value in metrics.items()
        if not name.startswith(("perf/", "train/lr-pg_", "critic-train/lr-pg_"))
    }


def furthest(ones, others):
    """By how much the log-probs of a token differ at most."""
    return max((abs(one - other) for (_, one), (_, other) in zip(ones, others, strict=True)), default=0.0)


@pytest.mark.parametrize("name", LAYOUTS)
def test_equals_one_process(name, alone, together):
    for rollout, (want, got) in enumerate(zip(alone[LAYOUTS[name].compared_with], together[name][0], strict=True)):
        assert comparable(got.rollout) == pytest.approx(comparable(want.rollout), abs=1e-5), f"rollout {rollout}"
        assert [token for token, _ in got.log_probs] == [token for token, _ in want.log_probs], f"rollout {rollout}"
        assert furthest(got.log_probs, want.log_probs) < LOG_PROBS, f"rollout {rollout}"
        for step, (want_step, got_step) in enumerate(zip(want.steps, got.steps, strict=True)):
            assert comparable(got_step) == pytest.approx(comparable(want_step), abs=1e-5, rel=1e-5), (
                f"rollout {rollout}, step {step}"
            )
        assert got.weights == pytest.approx(want.weights, abs=1e-3), f"after rollout {rollout}"


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.ranks > 1])
def test_every_rank_reports_the_same(name, together):
    first, *others = together[name]
    for other in others:
        assert other == first


def test_training_has_an_effect(alone):
    first, second = alone[LAYOUTS["DP2"].compared_with]
    assert abs(first.rollout["rollout/log_probs"] - second.rollout["rollout/log_probs"]) > 1e-3


def test_balancing_losses_have_an_effect(alone):
    plain, balanced = (
        alone[LAYOUTS[name].compared_with][0].steps[0]
        for name in ("MoE DP2, one sample a row", "MoE DP2 with balancing losses")
    )
    assert balanced["train/loss"] == pytest.approx(plain["train/loss"], abs=1e-5)
    assert abs(balanced["train/grad_norm"] - plain["train/grad_norm"]) > 1e-4
