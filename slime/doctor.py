"""`python -m slime.doctor`: what this machine has, what is missing, and what each lack costs.

Invariants: nothing heavy is imported and nothing is changed, so that it answers within two seconds and also where the
install is broken (`--imports` is the exception: it starts processes that import what a run imports). The exit code is 1
if something is missing without which a run on this machine cannot work, else 0. `--json` prints the same findings, one
object.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import resource
import shutil
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import slime
from slime.observe.terminal import Terminal

ROOT = Path(__file__).resolve().parents[1]
GIB = 2**30


class Verdict(StrEnum):
    OK = "ok"
    LACK = "lack"  # works without; `note` says what that costs
    BROKEN = "broken"  # no run on this machine works like this; `note` says what to do


@dataclass(frozen=True)
class Finding:
    group: str
    name: str
    value: str
    verdict: Verdict = Verdict.OK
    note: str = ""


def examine(imports: bool = False) -> list[Finding]:
    """Everything that can be found out about this machine, in the order in which to read it."""
    gpus = visible_gpus()
    findings = [
        *machine(gpus),
        *packages(bool(gpus)),
        *optional_packages(bool(gpus)),
        *limits(),
        *network(),
        *ray_tokens(),
    ]
    return [*findings, *imported(bool(gpus))] if imports else findings


# -- the machine -----------------------------------------------------------------------------------


def visible_gpus() -> list[str]:
    """Name and memory of each GPU that CUDA_VISIBLE_DEVICES leaves; none where there is no nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
    except subprocess.TimeoutExpired:
        return []
    rows = [[field.strip() for field in line.split(",")] for line in output.splitlines() if line.count(",") == 3]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        wanted = visible.split(",")
        rows = [row for row in rows if row[0] in wanted or row[1] in wanted]
    return [f"{name} ({memory})" for _, _, name, memory in rows]


def machine(gpus: list[str]) -> Iterator[Finding]:
    group = "machine"
    version = platform.python_version()
    supported = (3, 11) <= sys.version_info[:2] <= (3, 13)
    yield Finding(
        group, "Python", f"{version} ({sys.executable})",
        Verdict.OK if supported else Verdict.BROKEN, "" if supported else "needs 3.11, 3.12 or 3.13",
    )  # fmt: skip
    linux = sys.platform == "linux"
    yield Finding(
        group, "system", platform.platform(terse=True),
        Verdict.OK if linux else Verdict.BROKEN, "" if linux else "runs on Linux only",
    )  # fmt: skip
    cores = len(os.sched_getaffinity(0))
    yield Finding(
        group,
        "cores",
        str(cores),
        *_least(cores, 2, "training and generation take turns on one core: about half the speed"),
    )
    total, free = _memory()
    yield Finding(
        group, "memory", f"{free / GIB:.1f} of {total / GIB:.1f} GiB free",
        *_least(free, 4 * GIB, "the tiny job takes 3.1 GiB, each further engine 1.7 GiB: close something first"),
    )  # fmt: skip
    disk = shutil.disk_usage(ROOT)
    yield Finding(
        group, "disk", f"{disk.free / GIB:.0f} GiB free at {ROOT}",
        *_least(disk.free, 2 * GIB, "checkpoints and logs may not fit"),
    )  # fmt: skip
    if gpus:
        for index, gpu in enumerate(gpus):
            yield Finding(group, f"GPU {index}", gpu)
    else:
        yield Finding(group, "GPUs", "none: everything runs on the CPU")


def _memory() -> tuple[int, int]:
    """Total and available memory in bytes, as limited by the control group if there is one."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        total = min(total, int(text))
        free = min(free, total - int(used.read_text()))
    return total, free


def _least(have: float, need: float, cost: str) -> tuple[Verdict, str]:
    return (Verdict.OK, "") if have >= need else (Verdict.LACK, cost)


# -- packages --------------------------------------------------------------------------------------

REQUIRED = {
    "torch": "trains and generates",
    "megatron-core": "the training engine",
    "sglang": "the inference engine",
    "sglang-router": "spreads requests over the engines",
    "ray": "places and connects the processes",
    "transformers": "model configurations and chat templates",
    "tokenizers": "tokenizers",
    "safetensors": "checkpoints",
    "xgrammar": "SGLang does not start without",
    "compressed-tensors": "SGLang does not start without",
    "gguf": "SGLang does not start without",
    "pydantic": "the configuration",
    "PyYAML": "the configuration",
    "aiohttp": "requests to the engines",
    "pyarrow": "prompts in Parquet files",
    "psutil": "Megatron saves no checkpoint without",
    "numpy": "data",
    "latex2sympy2_extended": "--rm-type math, deepscaler and dapo",
}
OPTIONAL = {
    "tensorboard": "no --use-tensorboard",
    "wandb": "no --use-wandb",
    "pytest": "the tests cannot run (scripts/test.sh installs it)",
    "hypothesis": "the tests cannot run (scripts/test.sh installs it)",
}
OPTIONAL_ON_GPUS = {
    "transformer-engine": "no fp8, no fused attention, no precision-aware optimizer",
    "flash-attn": "slower attention where transformer-engine is missing too",
    "deep-ep": "mixtures of experts exchange tokens by all-to-all, slower across nodes (--moe-token-dispatcher-type)",
    "ray[default]": "no `ray job submit` and no dashboard",
}


def pins(gpus: bool) -> dict[str, str]:
    """The versions that were run together, by package; empty outside a checkout."""
    found = {}
    for file in ["gpu.txt"] if gpus else ["cpu.txt", "cpu-nodeps.txt"]:
        path = ROOT / "requirements" / file
        if path.exists():
            found.update(re.findall(r"^([\w.-]+)(?:\[\w+\])?==(\S+)", path.read_text(), re.MULTILINE))
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def packages(gpus: bool) -> Iterator[Finding]:
    pinned = pins(gpus)
    version = f"{slime.__version__} at {ROOT}"
    if (ROOT / "train.py").is_file():
        yield Finding("packages", "slime", version)
    else:
        note = "train.py, configs/ and scripts/ are in a checkout alone: bash scripts/install.sh in one installs it"
        yield Finding("packages", "slime", version, Verdict.BROKEN, note)
    for package, purpose in REQUIRED.items():
        version, wanted = _version(package), pinned.get(package)
        if version is None:
            note = f"{purpose}: run scripts/install.sh"
            yield Finding("packages", package, "missing", Verdict.BROKEN, note)
        elif wanted is not None and version.partition("+")[0] != wanted:
            note = f"{wanted} is what was run together with the rest: scripts/install.sh puts it back"
            yield Finding("packages", package, version, Verdict.LACK, note)
        else:
            yield Finding("packages", package, version)


def optional_packages(gpus: bool) -> Iterator[Finding]:
    for package, cost in OPTIONAL.items():
        version = _version(package)
        yield Finding(
            "optional", package, version or "missing", Verdict.OK if version else Verdict.LACK, "" if version else cost
        )
    for package, cost in OPTIONAL_ON_GPUS.items():
        # What the extra adds to ray has its own packages, of which this is one.
        is_there = package != "ray[default]" or _version("py-spy")
        version = _version(package.partition("[")[0]) if is_there else None
        if version or gpus:
            lack = (Verdict.OK, "") if version else (Verdict.LACK, cost)
            yield Finding("optional", package, version or "missing", *lack)
        else:
            yield Finding("optional", package, "not needed on a CPU")


# -- limits, network, Ray --------------------------------------------------------------------------


def limits() -> Iterator[Finding]:
    shm = Path("/dev/shm")
    if shm.is_dir():
        space = shutil.disk_usage(shm)
        yield Finding(
            "limits", "/dev/shm", f"{space.free / GIB:.1f} of {space.total / GIB:.1f} GiB free",
            *_least(
                space.free, GIB / 4,
                "Ray's objects go to disk, colocated weight sync may fail; start a container with --shm-size=2g",
            ),
        )  # fmt: skip
    else:
        yield Finding("limits", "/dev/shm", "missing", Verdict.BROKEN, "weights cannot be shared: mount a tmpfs on it")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = f"ulimit -n {min(hard, 65536)} raises it"
    if hard < 4096:
        raised = "root raises the hard limit, in /etc/security/limits.conf or by docker run --ulimit nofile=65536"
    cost = f"many requests at once fail with 'too many open files'; {raised}"
    yield Finding("limits", "open files", f"{soft} (at most {hard})", *_least(soft, 4096, cost))
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    unlimited = soft == resource.RLIM_INFINITY
    cost = "Ray and torch start some hundred threads and fail without; ulimit -u raises it"
    yield Finding(
        "limits",
        "processes",
        "unlimited" if unlimited else str(soft),
        *_least(1 if unlimited else soft / 1024, 1, cost),
    )


def network() -> Iterator[Finding]:
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=2),
        ):
            yield Finding("network", "loopback", "127.0.0.1 answers")
    except OSError as error:
        yield Finding("network", "loopback", str(error), Verdict.BROKEN, "every process here talks over 127.0.0.1")
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    yield Finding(
        "network", "ports", f"{first}-{last}", *_least(last - first, 1000, "runs side by side may find no free port")
    )
    proxies = [name for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY") if os.environ.get(name)]
    if proxies:
        covered = {"127.0.0.1", "*"} & set(
            re.split(r"[, ]+", os.environ.get("no_proxy", os.environ.get("NO_PROXY", "")))
        )
        note = "" if covered else "requests to the engines may go through it: add 127.0.0.1 to no_proxy"
        yield Finding("network", "proxy", ", ".join(proxies), Verdict.OK if covered else Verdict.LACK, note)


def ray_tokens() -> Iterator[Finding]:
    address = os.environ.get("RAY_ADDRESS")
    yield Finding(
        "Ray",
        "cluster",
        f"joins {address} (RAY_ADDRESS)" if address else "each run starts its own on loopback, with its own token",
    )
    mode = os.environ.get("RAY_AUTH_MODE")
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    if "RAY_AUTH_TOKEN" in os.environ:
        state, verdict, note = "from RAY_AUTH_TOKEN", Verdict.OK, ""
    elif not token.is_file():
        state = f"none at {token}"
        verdict, note = Verdict.OK, "only needed to join a cluster: ray get-auth-token --generate makes one"
        if address and mode != "disabled":
            verdict, note = (
                Verdict.BROKEN,
                f"{address} cannot be joined without: copy the token of its head node to {token}",
            )
    elif _others_can_read(token):
        state, verdict = f"{token}, readable by others", Verdict.LACK
        note = f"any user of this machine can run code in your Ray clusters: chmod 600 {token}"
    else:
        state, verdict, note = str(token), Verdict.OK, ""
    yield Finding("Ray", "token for clusters", state, verdict, note)
    if mode == "disabled":
        note = "clusters that `ray start` makes here let anybody in; unset it. Runs on their own Ray do not heed it"
        yield Finding("Ray", "RAY_AUTH_MODE", mode, Verdict.LACK, note)


def _others_can_read(file: Path) -> bool:
    reachable = all(parent.stat().st_mode & stat.S_IXOTH for parent in file.resolve().parents)
    return reachable and bool(file.stat().st_mode & stat.S_IROTH)


# -- imports ---------------------------------------------------------------------------------------

_TRAINING = "import megatron.core.models.gpt.gpt_model, megatron.core.optimizer, megatron.core.dist_checkpointing"
IMPORTS = {
    "driver": "import ray, transformers, pyarrow.parquet, aiohttp, slime.config",
    "training": f"import torch, slime.platform.megatron_cpu as m; torch.cuda.is_available() or m.enable(); {_TRAINING}",
    "engine": "import slime.inference.launch, sglang.srt.entrypoints.http_server",
    "router": "import slime.inference.launch_router",
    "graders": "import slime.rewards.math_compare",
}


def imported(gpus: bool) -> Iterator[Finding]:
    """Whether what each kind of process imports can be imported; takes the half minute that the slowest needs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for name, code in IMPORTS.items()
    }  # fmt: skip
    for name, process in processes.items():
        try:
            _, errors = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            process.kill()
            yield Finding(
                "imports",
                name,
                "no end after 300 s",
                Verdict.BROKEN,
                "the disk or the machine is overloaded: try again",
            )
            continue
        lines = errors.strip().splitlines()
        if process.returncode == 0:
            yield Finding("imports", name, "works")
        else:
            last = lines[-1] if lines else f"exit code {process.returncode}"
            note = f"{last}: run scripts/install.sh into a new directory"
            yield Finding("imports", name, "fails", Verdict.BROKEN, note)


# -- showing ---------------------------------------------------------------------------------------

_MARKS = {Verdict.OK: ("✓", "green"), Verdict.LACK: ("·", "yellow"), Verdict.BROKEN: ("✗", "red")}


def show(findings: list[Finding], terminal: Terminal) -> Iterator[str]:
    """Lines of an aligned report: a mark, a name, a value; notes under the value."""
    width = max(len(finding.name) for finding in findings)
    group = ""
    for finding in findings:
        if finding.group != group:
            group = finding.group
            yield ""
            yield terminal.paint(group, "bold")
        mark, color = _MARKS[finding.verdict]
        yield f"  {terminal.paint(terminal.plain(mark), color)} {finding.name:<{width}}  {finding.value}"
        indent = " " * (width + 6)
        for line in textwrap.wrap(finding.note, max(40, terminal.width - len(indent) - 1)):
            yield indent + terminal.paint(terminal.plain(line), "dim" if finding.verdict is Verdict.OK else color)
    broken = [finding.name for finding in findings if finding.verdict is Verdict.BROKEN]
    lacking = sum(finding.verdict is Verdict.LACK for finding in findings)
    yield ""
    if broken:
        yield terminal.paint(f"cannot run here: {', '.join(broken)}", "red", "bold")
    else:
        more = f"; {lacking} thing{'s' * (lacking != 1)} could be better" if lacking else ""
        yield terminal.paint(f"ready{more}", "green", "bold")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m slime.doctor", description="What this machine has and what it lacks."
    )
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    parser.add_argument("--imports", action="store_true", help="also import what a run imports (half a minute)")
    options = parser.parse_args()
    findings = examine(options.imports)
    broken = any(finding.verdict is Verdict.BROKEN for finding in findings)
    if options.json:
        print(json.dumps({"ready": not broken, "findings": [asdict(finding) for finding in findings]}, indent=1))
    else:
        print("\n".join(show(findings, Terminal(sys.stdout))))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
