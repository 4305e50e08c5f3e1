"""Devices that a run asks for against those of this machine."""

from __future__ import annotations

import importlib.util
import socket

import pytest

from slime.config import ConfigError, load, machine


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
    has(monkeypatch, gpus=0)


def has(monkeypatch, *, gpus: int) -> None:
    monkeypatch.setattr(machine.glob, "glob", lambda pattern: [f"/dev/nvidia{n}" for n in range(gpus)])
    there = {"transformer_engine"} if gpus else set()  # comes with the image of such machines
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: real("json") if name in there else real(name))
    for name in ("CUDA_VISIBLE_DEVICES", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


def said(words: str, unsound: set[str] = frozenset()) -> list[str]:
    config = load(["--hf-checkpoint", "model", "--rollout-batch-size", "4", *words.split()])
    return [str(lack) for lack in machine.lacking(config, unsound)]


def test_cuda_without_a_gpu_is_said():
    (text,) = said("--device cuda --actor-num-gpus-per-node 1 --colocate")
    assert text.startswith("--device: cuda, but this machine shows no GPU") and "--device cpu" in text


@pytest.mark.parametrize(
    ("words", "need"),
    [
        ("--actor-num-gpus-per-node 2 --colocate", 0),
        ("--actor-num-gpus-per-node 1 --rollout-num-gpus 1", 0),
        ("--actor-num-gpus-per-node 2 --loss-type sft_loss", 0),
        ("--actor-num-gpus-per-node 2 --rollout-num-gpus 1", 3),
        ("--actor-num-gpus-per-node 1 --colocate --rollout-num-gpus 3", 3),
        ("--actor-num-gpus-per-node 8 --actor-num-nodes 8 --colocate", 64),
        ("--actor-num-gpus-per-node 8 --debug-rollout-only --rollout-num-gpus 2", 0),
    ],
)
def test_more_devices_than_there_are_cores_is_said_with_both_numbers(words, need):
    texts = said(words)
    assert len(texts) == bool(need)
    assert all(f"{need} devices are asked for in all, this machine has 2 CPU slots" in text for text in texts)
    assert said(f"{words} --cpu-slots 64") == []


@pytest.mark.parametrize(("visible", "count"), [(None, 4), ("0,1", 2), ("GPU-a", 1), ("0,1,-1,2", 2), ("2,,3", 1)])
def test_gpus_are_counted_as_far_as_they_are_visible(monkeypatch, visible, count):
    has(monkeypatch, gpus=4)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert said(f"--actor-num-gpus-per-node {count} --colocate") == []
    (text,) = said(f"--actor-num-gpus-per-node {count + 1} --colocate")
    assert f"this machine has {count} GPU" in text and "--cpu-slots" not in text


@pytest.mark.parametrize("visible", ["-1", "", "-1,0", "NoDevFiles"])
def test_gpus_that_are_hidden_do_not_count(monkeypatch, visible):
    has(monkeypatch, gpus=4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.num_gpus() == 0
    assert said("--device cuda --actor-num-gpus-per-node 1 --colocate")[0].startswith("--device: cuda, but this")


def test_of_a_cluster_nothing_is_known_before_it_is_joined(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert said("--device cuda --actor-num-nodes 8 --colocate") == []


def test_numbers_that_are_wrong_themselves_have_no_consequence():
    assert said("--actor-num-gpus-per-node 8 --colocate", {"actor_num_gpus_per_node"}) == []


def test_packages_of_trackers_are_missed_before_the_start(monkeypatch):
    real = machine.importlib.util.find_spec
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None if name == "wandb" else real(name))
    (text,) = said("--actor-num-gpus-per-node 1 --colocate --use-wandb --use-tensorboard")
    assert text.startswith("--use-wandb: the package wandb is not installed") and "slime[trackers]" in text


def test_what_records_memory_is_missed_before_the_start(monkeypatch):
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None)
    one = "--actor-num-gpus-per-node 1 --colocate --device cpu --record-memory-history"
    (text,) = said(f"{one} --memory-recorder memray")
    assert text.startswith("--memory-recorder: the package memray is not installed")
    (text,) = said(one)
    assert text.startswith("--memory-recorder: torch records the memory of GPUs")


BY_KERNELS = {
    "--transformer-impl transformer_engine": "--transformer-impl: transformer_engine: transformer-engine computes",
    "--fp8-format hybrid": "--fp8-format: only the layers of Transformer Engine compute in fp8",
    "--attention-backend flash": "--attention-backend: flash is attention of Transformer Engine's, and",
    "--gradient-accumulation-fusion": "--gradient-accumulation-fusion: its kernel computes on GPUs alone",
    "--use-precision-aware-optimizer": "--use-precision-aware-optimizer: its Adam is Transformer Engine's: transf",
    "--moe-token-dispatcher-type flex --moe-enable-deepep": "--moe-token-dispatcher-type: flex: deep-ep computes on",
    "--nccl-communicator-config-path nccl.yaml": "--nccl-communicator-config-path: the ranks talk by gloo",
}


@pytest.mark.parametrize("words", BY_KERNELS)
def test_what_only_kernels_of_gpu_machines_can_do_is_missed_before_the_start(words, monkeypatch):
    one = f"--actor-num-gpus-per-node 1 --colocate {words}"
    (text,) = said(one)
    assert text.startswith(BY_KERNELS[words])
    assert said(f"{one} --debug-rollout-only --rollout-num-gpus 1") == []
    with pytest.raises(ConfigError) as error:  # whatever the machine has
        said(f"{one} --device cpu")
    assert [str(problem).startswith(BY_KERNELS[words]) for problem in error.value.problems] == [True]
    has(monkeypatch, gpus=1)
    without = [text for text in said(one) if "the package deep-ep is not installed" in text]
    assert said(one) == without and len(without) == ("flex" in words)


def test_attention_belongs_to_the_layers(monkeypatch):
    one = "--actor-num-gpus-per-node 1 --colocate --attention-backend"
    assert said(f"{one} auto --device cpu") == said(f"{one} local --device cpu") == []
    has(monkeypatch, gpus=1)
    assert said(f"{one} fused") == []
    (text,) = said(f"{one} fused --transformer-impl local")
    assert text.startswith("--attention-backend: fused is attention of Transformer Engine's")
    (text,) = said(f"{one} local")
    assert text.startswith("--attention-backend: local leaves the layers of Transformer Engine without attention")
    assert said(f"{one} local --transformer-impl local") == []


def test_attention_that_computes_on_gpus_alone_is_missed_before_the_start(monkeypatch):
    words = "--actor-num-gpus-per-node 1 --colocate --sglang-attention-backend fa3"
    (text,) = said(words)
    assert text.startswith("--sglang-attention-backend: fa3 computes on GPUs alone")
    assert said(words.replace("fa3", "torch_native")) == []
    has(monkeypatch, gpus=1)
    assert said(f"{words} --transformer-impl local") == []


def test_gpus_without_transformer_engine_need_the_other_layers(monkeypatch):
    monkeypatch.setattr(machine, "num_gpus", lambda: 1)
    (text,) = said("--actor-num-gpus-per-node 1 --colocate")
    assert text.startswith("--transformer-impl: transformer_engine: the package transformer-engine is not installed")
    assert said("--actor-num-gpus-per-node 1 --colocate --transformer-impl local") == []


def test_a_critic_may_need_what_the_policy_does_not(tmp_path):
    (tmp_path / "roles.yaml").write_text("critic: {use_precision_aware_optimizer: true}\n")
    words = f"--actor-num-gpus-per-node 1 --colocate --megatron-config-path {tmp_path}/roles.yaml"
    (text,) = said(f"{words} --advantage-estimator ppo --critic-load critic")
    assert text.startswith("--use-precision-aware-optimizer")
    assert said(words) == []


def test_a_port_of_the_router_that_is_taken_is_said():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        words = f"--actor-num-gpus-per-node 2 --colocate --sglang-router-port {port}"
        (text,) = said(words)
        assert text.startswith(f"--sglang-router-port: cannot listen on port {port} (Address already in use)")
        assert said(f"{words} --sglang-router-ip router") == []
    assert said(words) == []
