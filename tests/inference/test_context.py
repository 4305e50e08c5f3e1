"""The context of the engines: no request of rollouts or evaluations is longer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slime.config import Config, load
from slime.inference import context
from slime.inference.context import Context
from tests.config.checkpoints import TINY

ROLLOUT = ["--rollout-max-context-len", "64", "--rollout-max-response-len", "22"]


@pytest.fixture
def config_of(tmp_path: Path):
    """With rollouts of up to 64 tokens, an eval set `a`, and those of a file where there is one."""

    def make(*more: str, sets: str = "", rollout: list[str] = ROLLOUT) -> Config:
        given = ["--hf-checkpoint", "model", "--rollout-batch-size", "4", "--rollout-num-gpus", "1", *rollout]
        if sets:
            (tmp_path / "eval.yaml").write_text(f"datasets:\n{sets}")
            given += ["--eval-config", str(tmp_path / "eval.yaml")]
        return load([*given, "--eval-prompt-data", "a", "a.jsonl", *more])

    return make


EVAL = ["--eval-interval", "1"]
LONG = "  - {name: long, path: b, max_context_len: 300}\n"


def test_it_is_the_longest_that_rollouts_and_eval_sets_ask_for(config_of) -> None:
    longer, shorter = ["--eval-max-context-len", "512"], ["--eval-max-context-len", "32"]
    assert context.needed(config_of()) == Context(64, "--rollout-max-context-len")
    assert context.needed(config_of(*EVAL, *shorter)) == Context(64, "--rollout-max-context-len")
    assert context.needed(config_of(*EVAL, *longer)) == Context(512, "--eval-max-context-len")
    assert context.needed(config_of(*longer)) == Context(64, "--rollout-max-context-len"), "there is no evaluation"
    assert context.needed(config_of(*EVAL, sets=LONG)) == Context(300, "eval set long")
    assert context.needed(config_of(*EVAL, *longer, sets=LONG)).length == 512


def test_an_eval_set_without_a_limit_of_both_has_those_of_its_parts_or_none(config_of) -> None:
    parts = "  - {name: parts, path: b, max_context_len: null, max_prompt_len: 100, max_response_len: 50}\n"
    assert context.needed(config_of(*EVAL, sets=parts)) == Context(150, "eval set parts")
    free = "  - {name: free, path: b, max_context_len: null, max_prompt_len: null}\n"
    assert context.needed(config_of(*EVAL, sets=parts + free)) == Context(None, "eval set free")
    assert context.needed(config_of(*EVAL, sets=LONG, rollout=["--rollout-max-response-len", "22"])).length is None


def test_what_is_longer_than_for_rollouts_is_said(config_of) -> None:
    assert list(context.described(config_of(*EVAL))) == []
    (said,) = context.described(config_of(*EVAL, "--eval-max-context-len", "5120"))
    assert said == (
        "the engines take 5,120 tokens, prompt and response together: rollouts ask for less than --eval-max-context-len"
    )
    free = "  - {name: free, path: b, max_context_len: null, max_prompt_len: null}\n"
    (said,) = context.described(config_of(*EVAL, sets=free))
    assert said == "the engines take as many tokens as the model does: eval set free has no limit"
    told = ["--sglang-context-length", "600"]
    assert list(context.described(config_of(*EVAL, "--eval-max-context-len", "512", *told))) == []
    elsewhere = ["--rollout-external-engine-addrs", "127.0.0.1:1"]
    assert list(context.described(config_of(*EVAL, "--eval-max-context-len", "512", *elsewhere))) == []


def test_evaluations_do_not_make_it_longer_than_the_model(config_of, tmp_path: Path) -> None:
    """SGLang would refuse to start. What rollouts ask for is asked of it, whatever the model says."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))  # of 128 positions
    model = ["--hf-checkpoint", str(tmp_path)]
    assert context.needed(config_of(*model, *EVAL, "--eval-max-context-len", "128")).length == 128
    longer = config_of(*model, *EVAL, "--eval-max-context-len", "129")
    assert context.needed(longer) == Context(None, "--eval-max-context-len")
    assert list(context.described(longer)) == [
        "the engines take as many tokens as the model does, 128: --eval-max-context-len asks for 129"
    ]
    assert context.needed(config_of(*model, *EVAL, sets=LONG)) == Context(None, "eval set long")
    stretched = ["--rollout-max-context-len", "256", "--rollout-max-response-len", "22"]
    assert context.needed(config_of(*model, *EVAL, sets=LONG, rollout=stretched)) == Context(300, "eval set long")


def test_a_context_that_is_too_short_for_an_eval_set_is_told(config_of) -> None:
    sets = LONG + "  - {name: parts, path: b, max_context_len: null, max_prompt_len: 60, max_response_len: 50}\n"
    short, enough = (config_of("--sglang-context-length", length, *EVAL, sets=sets) for length in ("109", "300"))
    # Of `long` a prompt of 63 tokens, for which rollouts leave room, and a response of 22.
    assert context.too_short(short) == [
        (
            "--sglang-context-length",
            "the engine refuses what is longer than 109 tokens, and eval set parts may ask for 110",
        )
    ]
    assert context.too_short(enough) == [] and context.too_short(config_of(*EVAL, sets=sets)) == []
    Path(short.eval_config).write_text("datasets: 5")
    assert context.too_short(short) == [], "who looks into the data says it"
