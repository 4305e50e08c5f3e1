"""Options on their way to the command lines of engine and router."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest

from slime.config import load
from slime.config.engine_groups import planned_engines, served_models
from slime.inference.commands import command_lines
from slime.inference.errors import InferenceError
from slime.inference.flags import flags
from slime.inference.router import ExternalRouter, Router, router_from_config
from slime.inference.server import EngineServer


def test_values_become_words() -> None:
    options = {"mem_fraction_static": 0.5, "enable_metrics": True, "model_path": "a b", "max_total_tokens": None}
    assert flags("sglang", options) == ["--mem-fraction-static", "0.5", "--enable-metrics", "--model-path", "a b"]


def test_lists_are_spread_unless_sglang_wants_json() -> None:
    assert flags("sglang", {"cuda_graph_bs": (1, 2)}) == ["--cuda-graph-bs", "1", "2"]
    assert flags("sglang", {"forward_hooks": [{"a": 1}]}) == ["--forward-hooks", '[{"a": 1}]']
    assert flags("sglang", {"preferred_sampling_params": {"n": 2}}) == ["--preferred-sampling-params", '{"n": 2}']


def test_false_negates_only_what_can_be_on_by_default() -> None:
    assert flags("sglang", {"enable_metrics": False}) == []
    assert flags("sglang", {"enable_fused_qk_norm_rope": False}) == ["--no-enable-fused-qk-norm-rope"]
    assert flags("router", {"disable_retries": False}) == []


def words(server: EngineServer | Router) -> dict[str, str | bool]:
    """Flag -> value, or True for a switch."""
    command = server.command()[3:]
    pairs = zip(command, [*command[1:], "--"], strict=True)
    return {a: True if b.startswith("--") else b for a, b in pairs if a.startswith("--")}


def engine(tmp_path: Path, *more: str, device: str = "cpu", **arguments: object) -> EngineServer:
    config = load(["--hf-checkpoint", "some/model", "--rollout-batch-size", "4", "--rollout-num-gpus", "4", *more])
    second = planned_engines(served_models(config))[1]
    return EngineServer.from_config(config, second, device=device, log_path=tmp_path / "log", **arguments)


def test_what_the_user_set_wins(tmp_path: Path) -> None:
    given = words(
        engine(tmp_path, "--sglang-dtype", "bfloat16", "--sglang-max-running-requests", "7", "--rollout-seed", "5")
    )
    assert given["--dtype"] == "bfloat16"
    assert given["--max-running-requests"] == "7"
    assert given["--attention-backend"] == "torch_native"
    assert given["--random-seed"] == "6"  # each engine of a run has its own
    assert given["--model-path"] == "some/model"


def test_defaults_for_a_cpu_are_for_a_cpu_only(tmp_path: Path) -> None:
    on_cpu, on_gpu = engine(tmp_path), engine(tmp_path, device="cuda")
    assert {"--device": "cpu", "--dtype": "float32", "--sleep-on-idle": True}.items() <= words(on_cpu).items()
    assert words(on_gpu).keys().isdisjoint({"--dtype", "--attention-backend", "--mem-fraction-static"})
    assert words(on_gpu)["--device"] == "cuda"
    assert on_cpu.environment()["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in on_gpu.environment()


def test_options_of_the_run_reach_the_engine(tmp_path: Path) -> None:
    colocated = ["--colocate", "--actor-num-gpus-per-node", "2", "--rollout-num-gpus-per-engine", "2"]
    given = words(engine(tmp_path, *colocated, "--rollout-max-context-len", "128", device="cuda"))
    assert given["--tp-size"] == "2"
    assert given["--context-length"] == "128"
    evaluation = ["--rollout-max-context-len", "64", "--eval-interval", "1", "--eval-prompt-data", "a", "a.jsonl"]
    assert words(engine(tmp_path, *evaluation, "--eval-max-context-len", "512"))["--context-length"] == "512"
    assert given["--enable-memory-saver"] is True
    assert "--enable-memory-saver" not in words(engine(tmp_path, *colocated))


def test_stop_strings_need_the_engines_tokenizer(tmp_path: Path) -> None:
    assert "--skip-tokenizer-init" in words(engine(tmp_path))
    assert "--skip-tokenizer-init" not in words(engine(tmp_path, "--rollout-stop", "###"))
    evaluation = ["--eval-interval", "1", "--eval-prompt-data", "a", "a.jsonl", "--eval-min-new-tokens", "2"]
    assert "--skip-tokenizer-init" not in words(engine(tmp_path, *evaluation))


def test_each_rank_on_a_cpu_has_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    monkeypatch.delenv("SGLANG_CPU_OMP_THREADS_BIND", raising=False)
    four = EngineServer("model", log_path=tmp_path / "log", tp_size=4)
    assert four.environment()["SGLANG_CPU_OMP_THREADS_BIND"] == "3|5|3|5"
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1|2|3")
    assert four.environment()["SGLANG_CPU_OMP_THREADS_BIND"] == "0|1|2|3"


def router(tmp_path: Path, *more: str) -> Router | ExternalRouter:
    config = load(["--hf-checkpoint", "some/model", "--rollout-batch-size", "4", "--rollout-num-gpus", "4", *more])
    (model,) = served_models(config)
    return router_from_config(config, model, log_path=tmp_path / "log")


def test_the_routers_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy")
    ours = router(tmp_path, "--router-policy", "random", "--sglang-router-request-timeout-secs", "60")
    given = words(ours)
    assert {
        "--policy": "random",
        "--request-timeout-secs": "60",
        "--prometheus-host": "127.0.0.1",
    }.items() <= given.items()
    assert ours.environment()["HTTP_PROXY"] is None
    assert words(router(tmp_path))["--policy"] == "round_robin"


def test_a_router_that_runs_already_is_only_used(tmp_path: Path) -> None:
    external = router(tmp_path, "--sglang-router-ip", "192.0.2.7", "--sglang-router-port", "3000")
    assert isinstance(external, ExternalRouter)
    assert external.url == "http://192.0.2.7:3000"
    with pytest.raises(InferenceError, match="--sglang-router-port"):
        router(tmp_path, "--sglang-router-ip", "192.0.2.7")


# -- groups of engines


def commands(*more: str) -> dict[str, str]:
    base = ["--hf-checkpoint", "some/model", "--rollout-batch-size", "4", "--rollout-num-gpus", "4"]
    return dict(command_lines(load([*base, *more])))


def test_the_command_lines_of_prefill_and_decode_engines() -> None:
    """As on GPUs: that is where they can run."""
    shown = commands("--prefill-num-servers", "1", "--sglang-disaggregation-transfer-backend", "nixl")
    prefill, decode, router = shown.values()
    assert list(shown) == ["policy, each prefill engine", "policy, each decode engine", "policy, the router"]
    assert "--disaggregation-mode prefill" in prefill and "--disaggregation-bootstrap-port" in prefill
    assert "--disaggregation-mode decode" in decode and "--disaggregation-bootstrap-port" not in decode
    assert "--device cuda" in prefill and "--disaggregation-transfer-backend nixl" in decode
    assert "--pd-disaggregation" in router


def test_the_command_lines_of_speculative_decoding() -> None:
    """SGLang has it on GPUs alone."""
    options = {"algorithm": "EAGLE", "draft_model_path": "a/draft", "num_steps": "3", "eagle_topk": "1"}
    options |= {"num_draft_tokens": "4"}
    given = [word for name, value in options.items() for word in (f"--sglang-speculative-{name}", value)]
    engine, router = commands(*[word.replace("_", "-") for word in given], "--device", "cuda").values()
    for name, value in options.items():
        assert f"--speculative-{name.replace('_', '-')} {value}" in engine
    assert "--device cuda" in engine and "speculative" not in router


def test_a_model_of_its_own_has_its_own_options(tmp_path: Path) -> None:
    groups = tmp_path / "groups.yaml"
    of_judge = [{"num_gpus": 2, "num_gpus_per_engine": 2, "overrides": {"dtype": "half"}}]
    judge = {"name": "judge", "model_path": "other", "server_groups": of_judge}
    groups.write_text(json.dumps({"sglang": [{"name": "policy", "server_groups": [{"num_gpus": 2}]}, judge]}))
    shared = ["--colocate", "--actor-num-gpus-per-node", "4", "--rollout-max-context-len", "99", "--device", "cuda"]
    policy, judge, *routers = commands("--sglang-config", str(groups), "--sglang-dtype", "bfloat16", *shared).values()
    assert {"--model-path some/model", "--tp-size 1", "--dtype bfloat16", "--context-length 99"} <= pairs(policy)
    assert {"--model-path other", "--tp-size 2", "--dtype half", "--random-seed 44"} <= pairs(judge)
    assert "--skip-tokenizer-init" in policy and "--skip-tokenizer-init" not in judge, "a judge is sent text"
    assert "--enable-weights-cpu-backup" in judge, "nobody brings its weights again after a sleep"
    assert "--enable-weights-cpu-backup" not in policy and "--context-length" not in judge
    assert len(routers) == 2


def pairs(command: str) -> set[str]:
    return {" ".join(pair) for pair in itertools.pairwise(command.split())}
