"""Runs with engines beside the policy's: a reward model in the same job, and engines that somebody else started."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest

from slime.data.recording import read_rollout
from slime.rollout.types import flatten
from slime.tiny import Tiny, make_tiny
from tests.documented import documented_hooks
from tests.runs import (
    DECOUPLED,
    RUN_S,
    assert_nothing_left,
    column,
    driver,
    is_engine,
    marked,
    train,
    wait_for,
)

REWARD_MODEL = """\
sglang:
  - name: policy
    server_groups: [{{num_gpus: 1}}]
  - name: pleased
    model_path: {}
    server_groups: [{{num_gpus: 1, overrides: {{is_embedding: true}}}}]
"""


HOOKS = {
    "--custom-advantage-function-path": "only_what_is_better",
    "--custom-tis-function-path": "near_ones_only",
    "--custom-pg-loss-reducer-function-path": "by_a_constant",
    "--rollout-data-postprocess-path": "without_the_first_token",
    "--custom-megatron-init-path": "limit_threads",
    "--custom-megatron-before-log-prob-hook-path": "say_whose",
    "--custom-megatron-before-train-step-hook-path": "halve_the_first_step",
    "--custom-model-provider-path": "with_a_fixed_embedding",
    "--custom-update-weight-post-write-path": "say_where",
}
"""Options of training -> the examples of docs/hooks.md."""


@pytest.fixture
def calls(tmp_path, monkeypatch) -> Callable[[], set[str]]:
    """Puts the examples of docs/hooks.md where a run finds them; tells which of them it called."""
    noted = tmp_path / "calls"
    (tmp_path / "my_hooks.py").write_text(documented_hooks(noted))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return lambda: set(noted.read_text().split())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Tiny:
    return make_tiny(tmp_path_factory.mktemp("groups") / "tiny", "sort", num_train=16, num_heldout=8, num_demos=8)


def options(tiny: Tiny) -> list[str]:
    return [
        *("--config", "configs/tiny-reward-model.yaml", "--hf-checkpoint", str(tiny.model)),
        *("--prompt-data", str(tiny.train), "--rollout-batch-size", "8", "--n-samples-per-prompt", "4"),
        *("--num-rollout", "2", "--num-steps-per-rollout", "1", "--lr-warmup-iters", "0"),
    ]


def test_a_reward_model_in_the_same_job(tiny, calls, tmp_path):
    """Takes no turns with training, keeps its weights, and says the same of the same text from first to last, though
    its engine is killed between: another takes its place."""
    groups = tmp_path / "groups.yaml"
    groups.write_text(REWARD_MODEL.format(tiny.reward_model))
    served = ["--sglang-config", str(groups), "--rm-model", "pleased", "--check-weight-update-equal"]
    dumped = ["--save-debug-rollout-data", str(tmp_path / "rollout-{rollout_id}")]
    loss = ["--loss-type", "custom_loss", "--custom-loss-function-path", "my_hooks.reinforce"]
    more = [*loss, "--use-fault-tolerance", "--num-rollout", "4"]
    with driver(tmp_path, *options(tiny), *served, *dumped, *more) as process:
        wait_for(tmp_path / "run" / "metrics.jsonl", '"rollout/step": 0', process)
        (judge,) = [p for p in marked(tmp_path) if is_engine(p) and str(tiny.reward_model) in p.cmdline()]
        judge.kill()
        assert process.wait(RUN_S) == 0, (tmp_path / "output").read_text()
        assert_nothing_left(tmp_path)
    said = (tmp_path / "output").read_text()
    assert re.search("warning: .* has ended, killed by SIGKILL; it is started again", said)
    assert "serves again, with the weights of its own model" in said
    assert calls() == {"reinforce"} and len(column(tmp_path / "run", "train/pg_loss")) == 4
    assert len(column(tmp_path / "run", "rollout/raw_reward")) == 4
    assert max(column(tmp_path / "run", "train/train_rollout_logprob_abs_diff_max")) < 1e-4
    rewards: dict[str, set[float]] = {}
    for rollout_id in range(4):
        for sample in flatten(read_rollout(tmp_path / f"rollout-{rollout_id}")):
            rewards.setdefault(sample.prompt + sample.response, set()).add(round(sample.reward, 4))
    assert len(set.union(*rewards.values())) > 8, "not rewards of a model"
    assert max(map(len, rewards.values())) == 1, "not always the same of the same text"


def test_engines_that_somebody_else_started(engine, tiny, tiny_model, calls, tmp_path):
    """They are given weights as our own are, here by files, and are left running. Every hook of training is called."""
    external = ["--hf-checkpoint", str(tiny_model), "--rollout-external-engine-addrs", f"{engine.host}:{engine.port}"]
    ours = [*DECOUPLED[:3], "--rm-type", "random", "--check-weight-update-equal"]
    config = ["--config", "configs/tiny-grpo.yaml", "--eval-prompt-data", "sort", str(tiny.heldout)]
    config += ["--skip-eval-before-train", "--log-correct-samples", "--use-tis", "--no-use-rollout-logprobs"]
    external += ["--update-weight-transport", "disk"]
    hooks = [word for option, name in HOOKS.items() for word in (option, f"my_hooks.{name}")]
    run = tmp_path / "run"
    try:
        train(tmp_path, *config, *options(tiny)[4:], *external, *ours, *hooks)
        assert max(column(run, "train/train_rollout_logprob_abs_diff_max")) < 1e-4
        assert engine.is_healthy()
        assert len(column(run, "eval/sort")) == 1
        assert column(run, "rollout/correct_ratio") == column(run, "rollout/raw_reward")
        assert calls() == set(HOOKS.values())
        assert min(column(run, "rollout/advantages")) > 0
        assert all(0.5 < share < 1 for share in column(run, "train/tis")), "masked: the first token of each sample"
        assert not list((run / "weights").iterdir()), "weights that were loaded were left behind"
    finally:
        engine.control.update_weights_from_disk(model_path=str(tiny_model), weight_version="default")
        engine.control.flush_cache()
