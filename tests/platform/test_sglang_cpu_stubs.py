"""In a process of its own: the stand-ins are for a process that serves, and this one trains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import importlib.util, sys
from slime.platform import sglang_cpu_stubs
sglang_cpu_stubs.install()
sglang_cpu_stubs.install()
assert sum(isinstance(f, sglang_cpu_stubs.StandInFinder) for f in sys.meta_path) == 1

import soundfile  # a real one is on the path
assert soundfile.real

import triton, triton.language as tl
from triton.runtime.jit import KernelInterface
assert not triton and triton.cdiv(7, 4) == 2 and triton.next_power_of_2(5) == 8
assert tl.constexpr(3).value == 3
assert triton.language is tl

@triton.autotune(configs=[], key=["n"])
@triton.jit
def kernel(n: tl.constexpr): return n
assert kernel(4) == 4
class Kernel(KernelInterface, extra=1): pass
Kernel(1, two=2)

from transformers.utils import is_torchvision_available
from torch.utils._triton import has_triton_package
assert not is_torchvision_available() and not has_triton_package()
assert not hasattr(triton, "__path_of_something__")
assert importlib.util.find_spec("no_such_package") is None
"""


def test_stand_ins(tmp_path: Path) -> None:
    (tmp_path / "soundfile.py").write_text("real = True\n")
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({str(tmp_path)!r})\n{SCRIPT}"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
