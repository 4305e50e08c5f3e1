"""A run ends whole, however it ends, and nothing else does. Every test runs a real driver with a real Ray. Takes about
95 s.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from slime.cluster import reaper, session

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60
GROUP_S = 20  # of Slurm's patience, which is 30 s


class Driver:
    """A driver in a process of its own, up when this returns; what it says on standard error is in a file."""

    def __init__(self, run_dir: Path, mode: str, **environment: str):
        run_dir.mkdir()
        self._errors = run_dir / "stderr"
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.driver", str(run_dir), mode],
                cwd=ROOT, env={**os.environ, **environment}, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # also where nohup runs the tests
            )  # fmt: skip
        line = self.process.stdout.readline()
        assert line, self.errors
        self.up: dict[str, Any] = json.loads(line)
        self.actor_pids = [pid for actor in self.up["actors"] for pid in actor["pids"]]
        self.shm = [Path(actor["shm"]) for actor in self.up["actors"]]
        self.pids = {pid for pid in _living() if _has_run_id(pid, self.up["run_id"])}
        assert self.pids >= set(self.actor_pids)
        assert all(path.exists() for path in self.shm)

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    @property
    def record(self) -> Path:
        return reaper.home() / f"{self.up['run_id']}-{self.process.pid}"

    @property
    def remains(self) -> list[str]:
        pids = [f"process {pid}" for pid in self.pids & _living()]
        return pids + [str(path) for path in [*self.shm, self.record] if path.exists()]

    @property
    def reaper(self) -> int:
        mark = f"SLIME_REAPER={self.up['run_id']}".encode()
        [pid] = [pid for pid in _living() if mark in _environ(pid)]
        return pid

    def ask(self) -> str:
        self.process.stdin.write("call\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


def _living() -> set[int]:
    pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    return {pid for pid in pids if _state(pid) not in ("", "Z")}


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _has_run_id(pid: int, run_id: str) -> bool:
    return f"SLIME_RUN_ID={run_id}".encode() in _environ(pid)


def _until(done: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while not done() and time.monotonic() < deadline:
        time.sleep(0.1)
    return done()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    started: list[Driver] = []

    def start(mode: str, **environment: str) -> Driver:
        started.append(Driver(tmp_path / str(len(started)), mode, **environment))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
        _until(lambda each=each: not each.remains)
        for pid in each.pids & _living():
            if _has_run_id(pid, each.up["run_id"]):
                os.kill(pid, signal.SIGKILL)


def test_the_kill_of_one_driver_ends_its_run_and_leaves_another_alone(driver):
    killed, other = driver("serve"), driver("serve")

    killed.process.kill()
    _until(lambda: not killed.remains)
    assert killed.remains == []
    assert other.ask() == "pong"
    assert all(path.exists() for path in [*other.shm, other.record])

    other.process.stdin.close()  # a normal end
    assert other.process.wait(DEADLINE_S) == 0, other.errors
    assert other.remains == []


def test_remains_of_a_run_whose_reaper_was_killed_are_cleared_later_and_a_living_run_is_not_touched(driver):
    dead, living = driver("serve"), driver("serve")
    os.kill(dead.reaper, signal.SIGKILL)
    dead.process.kill()
    dead.process.wait()
    assert dead.remains, "this test needs something to clear"

    said = subprocess.run(
        [sys.executable, "-m", "slime.cluster.reaper"], cwd=ROOT, capture_output=True, text=True
    ).stdout

    assert f"an earlier run that had not ended in order ({dead.up['run_id']}): cleared its remains" in said
    assert dead.remains == []
    assert living.up["run_id"] not in said
    assert living.ask() == "pong"


def test_a_driver_whose_reaper_was_killed_ends_its_run_itself(driver):
    run = driver("serve")
    os.kill(run.reaper, signal.SIGKILL)
    run.process.stdin.close()
    assert run.process.wait(DEADLINE_S) == 0, run.errors
    assert run.remains == []


def test_ctrl_c_twice_ends_everything(driver):
    run = driver("wait")
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(DEADLINE_S) == -signal.SIGINT, run.errors
    assert run.remains == []
    assert "KeyboardInterrupt" in run.errors


def test_sigterm_ends_everything(driver):
    run = driver("wait")
    run.process.terminate()
    assert run.process.wait(DEADLINE_S) == 128 + signal.SIGTERM, run.errors
    assert run.remains == []
    assert run.errors.endswith("slime: ended by SIGTERM; whatever this run had started has ended\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_whole_process_group_ends_everything_in_order(driver, number):
    """As `timeout`, systemd, Slurm and a terminal send it: Ray's own processes are not to die of it before us."""
    run = driver("ask")
    os.killpg(run.process.pid, number)
    status = -number if number == signal.SIGINT else 128 + number  # an interpreter that ends by KeyboardInterrupt
    assert run.process.wait(GROUP_S) == status, run.errors
    assert run.remains == []
    assert run.process.stdout.read() == "pong\n", run.errors
    if number != signal.SIGINT:
        assert run.errors.endswith(f"slime: ended by {number.name}; whatever this run had started has ended\n")


def test_a_failure_ends_everything_and_shows_its_cause(driver):
    run = driver("fail")
    assert run.process.wait(DEADLINE_S) == 1
    assert run.remains == []
    assert f"rank 1 (pid {run.up['actors'][1]['pids'][0]} on 127.0.0.1) failed" in run.errors
    assert "ValueError: rank 1 is out of paper" in run.errors
    assert "driver.py" in run.errors.split("waiting for both ranks")[1], "the remote traceback is missing"


def test_the_kill_of_rays_head_ends_everything_and_is_said(driver):
    run = driver("wait")
    [head] = [pid for pid in run.pids if psutil.Process(pid).name() == "gcs_server"]
    os.kill(head, signal.SIGKILL)
    assert run.process.wait(10) == 1, run.errors
    assert f"slime: Ray's gcs_server (pid {head}) has ended, killed by SIGKILL: the run cannot go on" in run.errors
    _until(lambda: not run.remains)
    assert run.remains == []


def test_everything_listens_on_loopback_only(driver):
    run = driver("serve")
    assert _listening(run.pids | {run.process.pid}) == {"127.0.0.1"}
    run.process.stdin.close()
    run.process.wait(DEADLINE_S)


def _listening(pids: set[int]) -> set[str]:
    """Addresses on which these processes listen."""
    inodes = set()
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
            except OSError:
                continue
    addresses = set()
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                words = bytes.fromhex(fields[1].split(":")[0])[-4:]  # an IPv4 address, or the tail of a mapped one
                addresses.add(".".join(map(str, reversed(words))))
    return addresses


def test_a_cluster_that_does_not_answer_is_said_at_once_and_leaves_nothing(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    command = [sys.executable, "-m", "tests.cluster.driver", str(tmp_path), "serve"]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "RAY_ADDRESS": address},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert f"cannot join the Ray cluster at RAY_ADDRESS={address}: " in ended.stderr
    assert "Connection refused" in ended.stderr.splitlines()[-1]


def test_who_takes_connections_and_does_not_answer_as_ray_does_is_said(monkeypatch):
    monkeypatch.setattr(session, "_ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(TimeoutError, match=f"{address} takes connections, but has not answered as Ray does"):
            session._knock(address)


def test_a_cluster_that_is_to_be_found_and_does_not_answer_is_said(monkeypatch):
    """As a run of ours that goes on beside, whose cluster is for nobody else."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    monkeypatch.setattr(session.services, "canonicalize_bootstrap_address", lambda asked: address)
    with pytest.raises(ConnectionError, match=f"{address}: .*Connection refused"):
        session._knock("auto")
    monkeypatch.setattr(session.services, "canonicalize_bootstrap_address", lambda asked: None)
    with pytest.raises(ConnectionError, match="no cluster runs on this machine"):
        session._knock("auto")


@pytest.mark.parametrize("kind", ["a file", "a link"])
def test_records_that_cannot_be_kept_are_one_line(tmp_path, kind):
    base = Path(tempfile.mkdtemp())  # short enough for sockets, or another is taken
    place = base / f"slime-{os.getuid()}"
    place.touch() if kind == "a file" else place.symlink_to(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.cluster.driver", str(tmp_path / "run"), "serve"],
        cwd=ROOT, env={**os.environ, "TMPDIR": str(base)}, capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    said = f"cannot keep the records of runs: {place} should be a directory of slime's, and is none: move it away"
    assert said in ended.stderr.splitlines()[-1]


def test_what_is_no_record_of_a_run_is_left_alone(monkeypatch):
    monkeypatch.setattr(reaper.tempfile, "tempdir", tempfile.mkdtemp())  # short enough, or another is taken
    (reaper.home() / "note").touch()
    assert reaper.clear_dead_runs() == []
    assert (reaper.home() / "note").exists()


def test_a_cluster_without_the_gpus_that_are_asked_for_is_said(tmp_path):
    config = f"SimpleNamespace(run_dir={str(tmp_path)!r}, device='cuda', cpu_slots=2)"
    code = (
        f"from types import SimpleNamespace\nfrom slime.cluster.session import Session\nSession({config}).__enter__()"
    )
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert "--device cuda, but the cluster has no GPU" in ended.stderr.splitlines()[-1]


FOREIGN_NODE = """
import sys
from ray._private import ray_constants
from ray._private.node import Node
from ray._private.parameter import RayParams
from ray._private.resource_isolation_config import ResourceIsolationConfig
directory, ip, *gcs = sys.argv[1:]
node = Node(RayParams(node_ip_address=ip, num_cpus=2, num_gpus=4, include_dashboard=False, include_log_monitor=False,
                      no_monitor=True, temp_dir=directory, object_store_memory=100 << 20,
                      gcs_address=gcs[0] if gcs else None, resource_isolation_config=ResourceIsolationConfig()),
            head=not gcs)
print(node.gcs_address, flush=True)
sys.stdin.read()
"""


def test_a_cluster_that_was_joined_lives_on_and_only_the_run_ends(driver, tmp_path):
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    ours = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    sockets = reaper.home() / f".test-{os.getpid()}"  # their paths must be short

    def node(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", FOREIGN_NODE, str(sockets), *words], env={**os.environ, **ours}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    cluster = node("127.0.0.1")
    started = [cluster]
    try:
        address = cluster.stdout.readline().strip()
        first = driver("gpus", RAY_ADDRESS=address, **ours)
        assert first.up["resource"] == "GPU"
        seen = [actor["gpus"] for actor in first.up["actors"]]
        assert [len(gpus.split(",")) for gpus in seen] == [2, 1]
        assert len(set(",".join(seen).split(","))) == 3, f"ranks and an engine share a GPU: {seen}"
        first.process.kill()
        _until(lambda: not first.remains)
        assert first.remains == []

        second = driver("serve", RAY_ADDRESS=address, **ours)
        assert second.ask() == "pong"
        second.process.stdin.close()
        assert second.process.wait(DEADLINE_S) == 0, second.errors
        assert second.remains == []
        assert cluster.poll() is None
        ids = (first.up["run_id"], second.up["run_id"])
        assert _until(lambda: not [file.name for file in reaper.home().iterdir() if file.name.startswith(ids)])

        started.append(node("127.0.0.2", address))
        assert started[1].stdout.readline().strip() == address
        third = driver("nodes", RAY_ADDRESS=address, **ours)
        for process in [psutil.Process(started[1].pid), *psutil.Process(started[1].pid).children(recursive=True)]:
            process.kill()
        assert third.process.wait(DEADLINE_S) == 1, third.errors
        pid = third.up["actors"][1]["pids"][0]
        said = rf"rank 1 \(pid {pid} on 127.0.0.2\) failed while .* an hour to pass: its node died: .* at 127.0.0.2"
        assert re.search(said, third.errors), third.errors
        assert cluster.poll() is None
    finally:
        for process in started:
            process.kill()
            process.wait()
        subprocess.run(["rm", "-rf", str(sockets)], check=True)
