"""python -m slime.convert: there and back is the same to the last bit, and another model's config.json is refused."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from slime.convert import progress, recast
from slime.tiny import write_checkpoint
from tests.distributed import run_ranks
from tests.models.tiny import make_checkpoint, make_multi_token_checkpoint
from tests.training.ranks import trainer

ROOT = Path(__file__).parents[1]


def convert(direction: str, source: Path, output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slime.convert", direction, "--input", str(source), "--output", str(output), *options],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("convert") / "model")


@pytest.fixture(scope="module")
def converted(model):
    output = model.with_name("torch_dist")
    done = convert("hf-to-torch-dist", model, output, "--workers", "2")
    assert done.returncode == 0, done.stderr
    return output


def weights(directory: str, options: list[str]) -> dict[str, float]:
    """What a run starts with, each tensor's sum of squares."""
    with trainer(directory, *options) as made:
        assert made.loaded.rollout_id == -1
        return {name: float(t.double().square().sum()) for bucket in made.weights(50_000) for name, t in bucket}


def test_there_and_back_is_the_same_to_the_last_bit(model, converted):
    assert len(list((converted / "release").glob("*.distcp"))) == 2  # each process wrote its layers
    back = model.with_name("back")
    done = convert("torch-dist-to-hf", converted, back, "--hf-config", str(model), "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert (back / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert {path.name for path in back.iterdir()} == {path.name for path in model.iterdir()}


def there_and_back(models: dict[str, str], work: str) -> None:
    from slime.training.conversion import hf_to_torch_dist, torch_dist_to_hf

    rank, ranks = dist.get_rank(), dist.get_world_size()
    for name, directory in models.items():
        hf_to_torch_dist(rank, ranks, 0, directory, f"{work}/{name}")
        torch_dist_to_hf(rank, ranks, 0, f"{work}/{name}/release", directory, f"{work}/{name} back")


def tied_without_its_further_layers(directory: Path) -> Path:
    """As transformers saves a GLM-4.5 with tied embeddings."""
    make_checkpoint(directory, "glm4_moe without qk-norm")
    tensors = load_file(directory / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    stated = {"tie_word_embeddings": True, "num_nextn_predict_layers": 1}
    (directory / "config.json").write_text(json.dumps(config | stated))
    return directory


def test_experts_and_layers_for_multi_token_prediction_come_back_the_same(tmp_path):
    models = {
        "experts": write_checkpoint(tmp_path / "moe", moe=True),
        "tied": tied_without_its_further_layers(tmp_path / "glm"),
        "further layers": make_multi_token_checkpoint(tmp_path / "mtp", "glm4_moe"),
    }
    run_ranks(there_and_back, 2, {name: str(path) for name, path in models.items()}, str(tmp_path))
    for name, directory in models.items():
        before, back = (load_file(path / "model.safetensors") for path in (directory, tmp_path / f"{name} back"))
        assert before.keys() == back.keys()
        for tensor in before:
            assert torch.equal(before[tensor], back[tensor]), tensor
    state = json.loads((tmp_path / "further layers" / "release" / "state.json").read_text())
    assert state["mtp_layers"] == 1  # in the checkpoint itself, not only passed on from the model


def test_a_run_starts_from_it_as_from_the_model(model, converted):
    other = str(write_checkpoint(model.with_name("other"), seed=1))
    loaded = run_ranks(weights, 1, other, ["--load", str(converted)])
    assert loaded == run_ranks(weights, 1, str(model), [])


def test_what_can_not_be_is_refused_before_it_begins(model, converted, tmp_path):
    wrong = tmp_path / "wrong"
    shutil.copytree(model, wrong)
    config = json.loads((wrong / "config.json").read_text())
    (wrong / "config.json").write_text(json.dumps(config | {"rope_theta": 5.0, "num_attention_heads": 2}))
    done = convert("torch-dist-to-hf", converted, tmp_path / "out", "--hf-config", str(wrong))
    assert done.returncode == 1
    assert "num_attention_heads in its config.json is 4, this model's is 2" in done.stderr
    assert "rope_theta in its config.json" in done.stderr
    assert not (tmp_path / "out").exists()
    done = convert("hf-to-torch-dist", model, converted)
    assert done.returncode == 1 and "is not empty: name a new directory" in done.stderr


def test_how_far_it_is(tmp_path):
    output, partial = tmp_path / "out", tmp_path / ".out.partial" / "release"
    assert progress(output, None) == progress(output, tmp_path) == "reading"
    partial.mkdir(parents=True)
    assert progress(output, tmp_path) == "reading"
    for file, size in {
        tmp_path / "model.safetensors": 12,
        partial / "__0_0.distcp": 3,
        partial / "b.distcp": 4,
    }.items():
        with file.open("wb") as sparse:
            sparse.truncate(size * 10**8)
    assert progress(output, tmp_path) == "0.7 of 1.2 GB written"
    assert progress(output, None) == "0.7 GB written"


def test_weights_in_another_dtype_than_config_json_names_are_said(model, tmp_path):
    changed = tmp_path / "changed"
    shutil.copytree(model, changed)
    config = json.loads((changed / "config.json").read_text())
    tensors = load_file(changed / "model.safetensors")
    names = sorted(tensors)
    assert list(recast(str(changed))) == []
    save_file(tensors | {name: tensors[name].bfloat16() for name in names[:2]}, changed / "model.safetensors")
    said = f"{names[0]} and 1 more are in bfloat16 and became float32, as {changed}/config.json "
    assert list(recast(str(changed))) == [said + "says"]
    (changed / "config.json").write_text(json.dumps(config | {"dtype": None, "torch_dtype": None}))
    assert list(recast(str(changed))) == [said + "names no dtype"]
    save_file(tensors | {names[3]: tensors[names[3]].half()}, changed / "model.safetensors")
    (changed / "config.json").write_text(json.dumps(config | {"dtype": "float16"}))
    assert list(recast(str(changed))) == [
        f"{names[0]} and {len(names) - 2} more are in float32 and became float16, as {changed}/config.json says"
    ]


def test_what_all_processes_fail_by_is_said_once(model, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    weights = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    done = convert("hf-to-torch-dist", broken, tmp_path / "out", "--workers", "2")
    assert done.returncode == 1 and not (tmp_path / "out").exists()
    assert done.stderr.count("CheckpointError") == 1 and "of 2 failed: CheckpointError: " in done.stderr


def test_ctrl_c_is_one_line_and_leaves_nothing(model, tmp_path):
    """It reaches the processes that convert, too, as from a terminal."""
    words = ["hf-to-torch-dist", "--input", str(model), "--output", str(tmp_path / "out"), "--workers", "2"]
    with subprocess.Popen(
        [sys.executable, "-m", "slime.convert", *words],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            wait_until(lambda: len(spawned_by(process)) == 2, process)
            ranks = hearing, waited_for = spawned_by(process)
            waited_for.send_signal(signal.SIGSTOP)  # so that they can't be done before the signal comes
            wait_until(lambda: has_torch(hearing), process)
            process.send_signal(signal.SIGSTOP)  # so that it can't end the others before they have heard of it
            os.killpg(process.pid, signal.SIGINT)
            psutil.wait_procs([hearing], timeout=1)
            process.send_signal(signal.SIGCONT)
            said, _ = process.communicate(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert (
        process.returncode == 130 and said.splitlines()[-1] == "slime: interrupted; whatever it had started has ended"
    )
    assert "KeyboardInterrupt" not in said and not (tmp_path / "out").exists()
    assert not any(rank.is_running() for rank in ranks)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)


def spawned_by(process: subprocess.Popen) -> list[psutil.Process]:
    try:
        children = psutil.Process(process.pid).children()
        return [child for child in children if any("spawn_main" in word for word in child.cmdline())]
    except psutil.Error:
        return []


def has_torch(process: psutil.Process) -> bool:
    try:
        return any("libtorch" in region.path for region in process.memory_maps())
    except psutil.Error:
        return False
