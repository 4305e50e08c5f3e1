"""`python -m slime.doctor`: what it finds is true, and what is broken is said with what to do. Takes 3 s."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from slime import doctor
from slime.doctor import Finding, Verdict

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slime.doctor", *arguments],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
    )  # fmt: skip


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def pretend_installed(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], but: str = "") -> None:
    def version(package: str) -> str:
        if package == but or package not in versions:
            raise importlib.metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_this_machine_is_ready_and_json_says_what_the_page_says():
    page, machine = run(), json.loads(run("--json").stdout)
    assert page.returncode == 0, page.stdout
    assert machine["ready"] is True
    for finding in machine["findings"]:
        (line,) = [line for line in page.stdout.splitlines() if f" {finding['name']} " in line][:1]
        said, value = line, finding["value"].split(" ")[0]
        if " free" in finding["value"]:  # others may take or free some between the two
            whole = finding["value"].partition(" free")[0] + " free"
            said, value = (re.sub(r"[\d.]+ (?=of|GiB free)", "some ", text) for text in (line, whole))
        assert value in said
    assert max(map(len, page.stdout.splitlines())) <= 120


def test_nothing_heavy_is_imported():
    heavy = {"torch", "ray", "sglang", "transformers"}
    code = f"import sys, slime.doctor; slime.doctor.examine(); print({heavy} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout.strip() == "set()"
    )


def test_a_missing_package_is_broken_and_a_version_other_than_the_pinned_one_is_not(monkeypatch):
    pretend_installed(
        monkeypatch, {**doctor.pins(gpus=False), "transformers": "5.18.0", "torch": "2.13.0+cpu"}, but="sglang-router"
    )
    found = by_name(list(doctor.packages(gpus=False)))
    assert found["sglang-router"].verdict is Verdict.BROKEN
    assert "scripts/install.sh" in found["sglang-router"].note
    assert found["transformers"].verdict is Verdict.LACK
    assert "5.19.0" in found["transformers"].note
    assert found["torch"].verdict is Verdict.OK


def test_what_graders_compare_answers_with_is_required(monkeypatch):
    pretend_installed(monkeypatch, doctor.pins(gpus=False), but="latex2sympy2_extended")
    found = by_name(list(doctor.packages(gpus=False)))["latex2sympy2_extended"]
    assert found.verdict is Verdict.BROKEN and "--rm-type math" in found.note
    assert "slime.rewards.math_compare" in doctor.IMPORTS["graders"]


def test_what_a_gpu_machine_lacks_costs_something_there_only(monkeypatch):
    pretend_installed(monkeypatch, {})
    engine = {gpus: by_name(list(doctor.optional_packages(gpus)))["transformer-engine"] for gpus in (True, False)}
    assert engine[True].verdict is Verdict.LACK
    assert engine[False].verdict is Verdict.OK and "not needed on a CPU" in engine[False].value


def test_the_extra_of_ray_has_rays_version(monkeypatch):
    pretend_installed(monkeypatch, {"ray": "2.60.0", "py-spy": "0.4.3"})
    assert by_name(list(doctor.optional_packages(True)))["ray[default]"].value == "2.60.0"
    pretend_installed(monkeypatch, {"ray": "2.60.0"})
    assert by_name(list(doctor.optional_packages(True)))["ray[default]"].value == "missing"


def test_an_installation_that_is_no_checkout_trains_nothing(monkeypatch, tmp_path):
    assert by_name(list(doctor.packages(False)))["slime"].verdict is Verdict.OK
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    found = by_name(list(doctor.packages(False)))["slime"]
    assert found.verdict is Verdict.BROKEN and "bash scripts/install.sh" in found.note


def test_what_is_missing_is_never_ticked_off(monkeypatch):
    pretend_installed(monkeypatch, {})
    for gpus in (True, False):
        found = [*doctor.packages(gpus), *doctor.optional_packages(gpus)]
        assert [one.name for one in found if one.value == "missing" and one.verdict is Verdict.OK] == []


def test_every_pin_is_exact():
    for kind in (True, False):
        assert {"torch", "megatron-core", "sglang", "ray"} - set(doctor.pins(kind)) <= ({"torch"} if kind else set())


def test_a_token_that_others_can_read_is_said(monkeypatch):
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:  # that of the tests is closed to others
        token = Path(directory) / "token"
        token.write_text("secret")
        token.chmod(0o644)
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        for mode, verdict in ((0o700, Verdict.OK), (0o755, Verdict.LACK)):
            Path(directory).chmod(mode)
            assert by_name(list(doctor.ray_tokens()))["token for clusters"].verdict is verdict


def test_a_cluster_to_join_without_its_token_is_broken(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.1.2.3:6379")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    finding = by_name(list(doctor.ray_tokens()))["token for clusters"]
    assert finding.verdict is Verdict.BROKEN and "10.1.2.3:6379" in finding.note


@pytest.mark.parametrize(("hard", "what"), [(64, "root raises the hard limit"), (20000, "; ulimit -n 20000 raises it")])
def test_few_open_files_come_with_what_raises_the_limit(hard, what, monkeypatch):
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda kind: (64, hard))
    finding = by_name(list(doctor.limits()))["open files"]
    assert finding.value == f"64 (at most {hard})" and what in finding.note
    assert ("ulimit" in finding.note.replace("--ulimit", "")) == (hard > 64)


def test_gpus_are_read_from_nvidia_smi_and_cuda_visible_devices(tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        textwrap.dedent(
            """\
            #!/bin/sh
            echo "0, GPU-a, NVIDIA H200, 143771 MiB"
            echo "1, GPU-b, NVIDIA H200, 143771 MiB"
            """
        )
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert doctor.visible_gpus() == ["NVIDIA H200 (143771 MiB)"] * 2
    for visible, count in (("1", 1), ("GPU-a", 1), ("", 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert len(doctor.visible_gpus()) == count


def test_the_exit_code_is_1_if_something_required_is_missing(tmp_path):
    page = run(RAY_ADDRESS="10.1.2.3:6379", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(tmp_path / "none"))
    assert page.returncode == 1
    assert "cannot run here: token for clusters" in page.stdout
