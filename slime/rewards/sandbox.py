"""Runs a Python program that nobody trusts: bounded in time, memory, file size and processes, and cut off.

Held: a program's time and output are bounded. Where the kernel allows namespaces, no process of it is left when `run`
returns, and there is no network, no socket of anybody else's, no device, no other process and no file that can be
written but its own; `isolation` says whether it does. Elsewhere a process that hides will get away. The program may
read whatever files this user may.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import IO

log = logging.getLogger(__name__)

MEMORY = 1 << 30  # bytes of address space
FILE_SIZE = 16 << 20  # bytes, of any file and of the output
PROCESSES = 256  # of this user, which root is not held to
LOOKS = 100  # for what a program goes on starting
PROBE_S = 30
BUSY = f"this machine is too busy to tell within {PROBE_S} s whether programs can be cut off"
NOT_CUT_OFF = "NOT CUT OFF from network, files and processes, as this machine does not let us unshare"
_NAMESPACES = ("--user", "--map-root-user", "--mount", "--net", "--ipc", "--pid", "--fork", "--kill-child")
# What becomes of the process before it becomes the program. It ends in a second namespace of users, in which nothing
# that was done to the mounts can be undone.
_ENTER = """\
import ctypes, errno, os, resource, struct, sys
folder, given, link, unshare = sys.argv[1:5]
program = sys.stdin.buffer.read()
os.dup2(int(given), 0)
os.close(int(given))
if link:
    os.dup2(int(link), 3)
if unshare:
    libc = ctypes.CDLL(None, use_errno=True)
    read_only = (ctypes.c_uint64 * 4)(1)
    mounted = libc.syscall(442, -100, b"/", 0x8000, read_only, ctypes.sizeof(read_only)) == 0
    def fresh(place):
        return libc.mount(b"tmpfs", place, b"tmpfs", 0, b"size=64m") == 0
    here = folder.encode()
    mounted = mounted and fresh(here)
    for device in (b"/null", b"/zero", b"/random", b"/urandom"):
        open(here + device, "x").close()
        mounted = mounted and libc.mount(b"/dev" + device, here + device, None, 0x1000, None) == 0
    mounted = mounted and libc.mount(here, b"/dev", None, 0x2000, None) == 0 and fresh(here) and fresh(b"/proc")
    if not mounted:
        sys.exit("mount: " + os.strerror(ctypes.get_errno()))
os.chdir(folder)
with open("program.py", "wb") as file:
    file.write(program)
for name, limit in zip(("CPU", "AS", "FSIZE", "NPROC", "CORE", "NOFILE"), map(int, sys.argv[5:11])):
    number = getattr(resource, "RLIMIT_" + name)
    hard = resource.getrlimit(number)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(number, (limit, limit))
if unshare:
    if libc.unshare(0x10000000) != 0:
        sys.exit("unshare: " + os.strerror(ctypes.get_errno()))
    # Of sockets, a namespace of networks cuts off those of the Internet only: programs may make none but these, and
    # pairs of streams. A seccomp filter of (operation, by how much to jump if so, and if not, operand), see
    # linux/filter.h: io_uring, which knows sockets of its own, and calls by another architecture's numbers are refused.
    architecture, makes_socket, makes_pair = {
        "x86_64": (0xC000003E, 41, 53), "aarch64": (0xC00000B7, 198, 199)
    }[os.uname().machine]
    load, equal, at_least, mask, answer = 0x20, 0x15, 0x35, 0x54, 0x06
    code = [
        (load, 0, 0, 4), (equal, 0, 13, architecture),
        (load, 0, 0, 0), (at_least, 11, 0, 0x40000000), (equal, 10, 0, 425),
        (equal, 2, 0, makes_socket), (equal, 4, 0, makes_pair), (answer, 0, 0, 0x7FFF0000),
        (load, 0, 0, 16), (equal, 4, 0, 2), (equal, 3, 4, 10),  # AF_INET, AF_INET6
        (load, 0, 0, 24), (mask, 0, 0, 0xF), (equal, 0, 1, 1),  # SOCK_STREAM
        (answer, 0, 0, 0x7FFF0000), (answer, 0, 0, 0x50000 | errno.EACCES),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in code))
    program = struct.pack("HP", ctypes.sizeof(code) // 8, ctypes.addressof(code))
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, program, 0, 0) != 0:
        sys.exit("seccomp: " + os.strerror(ctypes.get_errno()))
os.execv(sys.executable, [sys.executable, "-I", folder + "/program.py"])
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """`status` as of subprocess, None when the time was up. Output is decoded, at most FILE_SIZE bytes of it."""

    status: int | None
    output: str
    errors: str
    seconds: float


def run(program: str, stdin: str, seconds: float) -> Ran:
    """Runs the text of a program in an empty directory of its own, for at most `seconds` of the clock."""
    return _run(program, stdin, seconds, _unshare())


def run_joined(program: str, other: str, seconds: float) -> tuple[Ran, Ran]:
    """Runs two programs, each as `run` does, whose descriptors 3 are the ends of one socket; it ends with either."""
    ours, theirs = socket.socketpair()
    with ThreadPoolExecutor(1) as beside, ours, theirs:
        unshare = _unshare()
        first = beside.submit(_run, program, "", seconds, unshare, ours)
        second = _run(other, "", seconds, unshare, theirs)
        return first.result(), second


def isolation() -> str:
    """What programs are cut off from here, for people."""
    limits = "time, memory and file size limited"
    if _unshare():
        return f"{limits}; no network, no others' sockets, devices or processes, no files to write but its own"
    return f"{limits}; {NOT_CUT_OFF}"


def _run(program: str, stdin: str, seconds: float, unshare: str | None, link: socket.socket | None = None) -> Ran:
    with (
        _folder() as folder,
        _file(program) as text,
        _file(stdin) as given,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        further = ["" if link is None else str(link.fileno()), unshare or ""]
        limits = (int(seconds) + 1, MEMORY, FILE_SIZE, PROCESSES, 0, 64)
        command = [sys.executable, "-I", "-S", "-c", _ENTER, folder, str(given.fileno()), *further]
        start = time.monotonic()
        process = subprocess.Popen(
            [*((unshare, *_NAMESPACES) if unshare else ()), *command, *map(str, limits)],
            env={"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"},
            stdin=text,
            stdout=output,
            stderr=errors,
            pass_fds=[given.fileno(), *([] if link is None else [link.fileno()])],
            start_new_session=True,
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if link is not None:
                link.shutdown(socket.SHUT_RDWR)  # so that nobody waits for it
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not unshare:
                _end(folder)
        return Ran(status, _text(output), _text(errors), time.monotonic() - start)


def _end(folder: str) -> None:
    """Ends the processes that have left the session of a program: each began with its environment, or is in its
    directory."""
    for _ in range(LOOKS):
        found = False
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):  # of others, or it has ended since
                handle = os.pidfd_open(int(pid))
                try:
                    if int(pid) != os.getpid() and _is_of(folder, pid):
                        found = True
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                finally:
                    os.close(handle)
        if not found:
            return


def _is_of(folder: str, pid: str) -> bool:
    with open(f"/proc/{pid}/environ", "rb") as file:
        if f"HOME={folder}".encode() in file.read().split(b"\0"):
            return True
    return (os.readlink(f"/proc/{pid}/cwd") + "/").startswith(folder + "/")


@contextmanager
def _folder() -> Iterator[str]:
    """A directory that is removed whatever a program has made in it, however deep or closed."""
    folder = tempfile.mkdtemp(prefix="slime-code-")
    try:
        yield folder
    finally:
        try:
            os.rmdir(folder)  # as it is where the program had one in its own namespace
        except OSError:
            subprocess.run(["sh", "-c", 'chmod -R u+rwX "$0"; rm -rf "$0"', folder], stderr=subprocess.DEVNULL)


def _unshare() -> str | None:
    """The command that enters namespaces, if this machine lets us do all that is asked of it. Raises TimeoutError where
    it is too busy to tell, and is asked again then: no program goes without for want of time."""
    if not _asking.acquire(timeout=PROBE_S):
        raise TimeoutError(BUSY)
    try:
        return _may_unshare()
    finally:
        _asking.release()


_asking = threading.Lock()


@cache
def _may_unshare() -> str | None:
    unshare = shutil.which("unshare")
    for _ in range(2 if unshare else 0):
        ran = _run("print('in')", "", PROBE_S, unshare)
        if ran.status is None:
            raise TimeoutError(BUSY)
        if ran.output == "in\n":
            return unshare
    log.warning("programs in answers are %s", NOT_CUT_OFF)
    return None


def _file(text: str) -> IO[bytes]:
    file = tempfile.TemporaryFile()
    file.write(text.encode(errors="replace"))
    file.seek(0)
    return file


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(FILE_SIZE).decode(errors="replace")
