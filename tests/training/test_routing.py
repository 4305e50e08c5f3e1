"""Routing replay: which experts tokens go to. That it is the same under any layout is for test_parallel.py."""

from __future__ import annotations

import numpy as np
import pytest

from slime.config import load
from slime.config.engine_groups import planned_engines, served_models
from slime.data.sample import Sample
from slime.inference.server import EngineServer
from slime.rollout.convert import assemble, columns
from slime.rollout.generator import Generator, Job
from slime.rollout.sampling import Sampling
from slime.tiny import write_checkpoint
from tests.conftest import START_TIMEOUT_S
from tests.distributed import run_ranks
from tests.training.ranks import COMMON, refusals, routes, trainer
from tests.training.rollouts import engine_experts, varied

LARGE = ("--lr", "0.1")
REPLAY, R3 = ("--use-routing-replay",), ("--use-rollout-routing-replay",)


@pytest.fixture(scope="module")
def moe(tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("moe"), moe=True))


def all_routes(moe, dense, samples):
    cases = {
        "free, small steps": (),
        "replayed, small steps": REPLAY,
        "free": LARGE,
        "replayed": REPLAY + LARGE,
        "by the engine": R3 + LARGE,
    }
    refused = refusals({"dense": (dense, REPLAY, samples, True), "no experts": (moe, R3, samples, True)})
    return {name: routes(moe, options, samples) for name, options in cases.items()}, refused


@pytest.fixture(scope="module")
def traced(moe, tiny_model):
    return run_ranks(all_routes, 1, moe, str(tiny_model), varied())[0]


def test_replay_with_the_same_weights_changes_nothing(traced):
    """Of two steps the first is with the weights by which the log-probs were made."""
    free, replayed = (traced[0][f"{how}, small steps"].steps[0] for how in ("free", "replayed"))
    assert replayed == free


def test_without_replay_other_experts_are_chosen(traced):
    free = traced[0]["free"]
    assert any((a != b).any() for a, b in zip(free.scored, free.trained, strict=True))


def test_the_experts_stay_when_the_weights_change(traced):
    replayed = traced[0]["replayed"]
    assert len(replayed.trained) == len(replayed.scored) > 0
    for scored, trained in zip(replayed.scored, replayed.trained, strict=True):
        np.testing.assert_array_equal(scored, trained)


def test_the_experts_are_the_engine_s(traced):
    routed = traced[0]["by the engine"]
    experts_TLK = np.concatenate([engine_experts(sample) for sample in varied()])
    for of_pass in (routed.scored, routed.trained):
        chosen = np.stack([np.concatenate(of_pass[layer::2]) for layer in range(2)], axis=1)
        np.testing.assert_array_equal(chosen, np.sort(experts_TLK, axis=-1))


def test_what_can_not_be_replayed_is_refused(traced):
    assert traced[1]["dense"] == "ValueError: --use-routing-replay: the model has no experts"
    assert "the rollout has no routed experts of the engine" in traced[1]["no experts"]


def chosen_by_trainer(directory, options, batch):
    """Ids [tokens, layers, experts of a token] that the router itself chooses for the tokens of a Batch."""
    from slime.training.report import Report

    with trainer(directory, *options) as made:
        (micro_batches,) = made.pack(batch)
        made.fixed_scores.fill(micro_batches, Report(made.parallel))
        return np.stack([micro_batches[0].experts[layer].numpy() for layer in range(2)], axis=1)


def test_a_real_engine_chooses_what_the_trainer_does(moe, tmp_path):
    rollout = ["--n-samples-per-prompt", "2", "--rollout-max-response-len", "12", "--rollout-num-gpus", "1"]
    reward = ["--rm-type", "exact_match", "--label-key", "label"]
    config = load(["--hf-checkpoint", moe, *COMMON, *rollout, *reward, "--micro-batch-size", "10", *R3])
    (planned,) = planned_engines(served_models(config))
    with EngineServer.from_config(config, planned, device="cpu", log_path=tmp_path / "engine.log") as engine:
        engine.wait_ready(START_TIMEOUT_S)
        config = config.replace(sglang_router_ip="127.0.0.1", sglang_router_port=engine.port)
        with Generator(config) as generator:
            groups = [
                [Sample(group_index=i, index=2 * i + k, prompt=f"{i}+{i}=", label="") for k in range(2)]
                for i in range(5)
            ]
            groups = generator.run(generator.generate(groups, Job(config, Sampling.for_rollout(config), 0)))
    samples = [sample for group in groups for sample in group]
    (batch,) = assemble(config, columns(config, samples, [0.0] * 10, [0.0] * 10), dp_size=1)
    trained = ["--use-routing-replay", "--micro-batch-size", "10"]
    (ids_TLK,) = run_ranks(chosen_by_trainer, 1, moe, trained, batch)
    ends = np.cumsum([len(sample.tokens) for sample in samples]) - 1
    np.testing.assert_array_equal(
        np.sort(np.delete(ids_TLK, ends, axis=0)), np.sort(np.delete(batch.routed_experts_TLK, ends, axis=0))
    )
