"""Options on their way to the command lines of engine and router."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slime.config import load
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
    config = load(["--hf-checkpoint", "some/model", "--rollout-batch-size", "4", *more])
    return EngineServer.from_config(config, index=1, device=device, log_path=tmp_path / "log", **arguments)


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
    assert given["--enable-memory-saver"] is True
    assert "--enable-memory-saver" not in words(engine(tmp_path, *colocated))


def test_stop_strings_need_the_engines_tokenizer(tmp_path: Path) -> None:
    assert "--skip-tokenizer-init" in words(engine(tmp_path))
    assert "--skip-tokenizer-init" not in words(engine(tmp_path, "--rollout-stop", "###"))


def test_each_rank_on_a_cpu_has_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    monkeypatch.delenv("SGLANG_CPU_OMP_THREADS_BIND", raising=False)
    four = EngineServer("model", log_path=tmp_path / "log", tp_size=4)
    assert four.environment()["SGLANG_CPU_OMP_THREADS_BIND"] == "3|5|3|5"
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1|2|3")
    assert four.environment()["SGLANG_CPU_OMP_THREADS_BIND"] == "0|1|2|3"


def router(tmp_path: Path, *more: str) -> Router | ExternalRouter:
    config = load(["--hf-checkpoint", "some/model", "--rollout-batch-size", "4", *more])
    return router_from_config(config, log_path=tmp_path / "log")


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
