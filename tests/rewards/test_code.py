"""--rm-type code: programs that pass, that don't, and that try to get away."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from slime.data.sample import Sample
from slime.rewards import RewardError, sandbox
from slime.rewards.code import code, last_program

ADD = [{"input": "2 3", "output": "5"}, {"input": "-1 1\n", "output": "0\n"}]
isolated = pytest.mark.skipif("NOT CUT OFF" in sandbox.isolation(), reason="this machine allows no namespaces")


def verdict(program: str, tests: object):
    sample = Sample(index=3, response=f"Here:\n```python\n{program}\n```\n", metadata={"tests": tests})
    return asyncio.run(code(None, sample))


def test_a_program_that_is_right() -> None:
    given = verdict("a, b = map(int, input().split())\nprint(a + b)", ADD)
    assert given.score == 1 and "passes 2 tests" in given.reason and "limited" in given.reason


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print(5)", "test 2 of 2: printed '5'"),
        ("print(5", "test 1 of 2: status 1: SyntaxError: '[(]' was never closed"),
        ("1/0", "test 1 of 2: status 1: ZeroDivisionError"),
        ("bytearray(1 << 40)", "test 1 of 2: status 1: MemoryError"),
        ("open('big', 'wb').write(bytes(1 << 26))", "test 1 of 2: status 1: OSError.*File too large"),
    ],
)
def test_a_program_that_is_wrong(program: str, reason: str) -> None:
    given = verdict(program, ADD)
    assert given.score == 0
    assert re.match(reason, given.reason), given.reason


def test_a_program_that_does_not_end() -> None:
    given = verdict("import time\ntime.sleep(600)", ADD)
    assert (given.score, given.reason) == (0, "test 1 of 2: took longer than 5 s")


@pytest.mark.parametrize(
    ("program", "score"),
    [
        ("def f(x):\n    return x + 1", 1),
        ("def f(x):\n    return x", 0),
        ("import os; os._exit(0)", 0),
        ("import sys; sys.exit(0)", 0),
        ("raise SystemExit", 0),
        ("print('x')", 0),
        ("def f(x):\n    import sys; sys.exit(0)", 0),
    ],
)
def test_tests_as_text_must_come_to_their_end(program: str, score: float) -> None:
    assert verdict(program, "assert f(1) == 2\nassert f(2) == 3").score == score


DECEIVERS = {
    "an object that equals everything": "class A:\n    __eq__ = lambda s, o: True\ndef f(x): return A()",
    "a number that does": "class A(int):\n    def __eq__(s, o): return True\ndef f(x): return A(0)",
    "a difference of nothing": "class A:\n    __sub__ = __rsub__ = lambda s, o: 0.0\ndef f(x): return A()",
    "compile": "import builtins\nc = compile\nbuiltins.compile = lambda s, *a: c('1', *a)\ndef f(x): return 0",
    "exec": "import builtins\nbuiltins.exec = lambda *a: None\ndef f(x): return 0",
    "no AssertionError": "import builtins\nbuiltins.AssertionError = SystemExit\ndef f(x): return 0",
    "builtins of its own": "def abs(x): return 0\ndef all(x): return True\ndef f(x): return 0",
    "the word of whoever calls": "import sys, os\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
    "        print(frame.f_locals.get('word', frame.f_globals.get('word')), flush=True)\n        frame = frame.f_back\n"
    "    os._exit(0)",
    "the word of standard input": "import sys, os\nos.write(1, sys.stdin.readline().encode()); os._exit(0)",
    "an object of NumPy's by its own account": "class A:\n    __module__ = 'numpy'; ndim = 0\n"
    "    def item(s): return s\n    def __eq__(s, o): return True\ndef f(x): return A()",
    "a Fraction that equals everything": "from fractions import Fraction\nclass A(Fraction):\n"
    "    __eq__ = lambda s, o: True\n    __sub__ = __rsub__ = lambda s, o: 0\ndef f(x): return A(7)",
    "a range that does": "import builtins\nclass range:\n    start = stop = step = 1\n    __eq__ = lambda s, o: True\n"
    "builtins.range = range\ndef f(x): return range()",
    "lies on the socket": "import os\nos.write(3, b'[]\\n[\"done\", true, []]\\n' * 9)\ndef f(x): return 0",
}


@pytest.mark.parametrize("program", DECEIVERS.values(), ids=DECEIVERS.keys())
def test_a_program_cannot_deceive_tests_in_python(program: str) -> None:
    assert verdict(program, "assert f(1) == 2\nassert abs(f(1) - 2) < 1\nassert all([f(2) == 3])").score == 0


STOPS = {
    "StopIteration": "def f(x): raise StopIteration",
    "StopAsyncIteration": "def f(x): raise StopAsyncIteration",
    "one of its own": "class Stop(StopIteration): pass\ndef f(x): raise Stop",
    "one that is called so": "class A(Exception): pass\nA.__name__ = 'StopIteration'\ndef f(x): raise A",
}
LOOPS = (
    "assert all(map(lambda x: f(x) == x + 1, [1, 2]))",
    "for got, want in zip(map(f, [1, 2]), [2, 3]): assert got == want",
    "for got in map(f, [1, 2]): assert got == 5",
    "async def loop():\n    async def ask():\n        for x in (1, 2): yield f(x)\n"
    "    async for got in ask(): assert got == 5\nimport asyncio\nasyncio.run(loop())",
)


@pytest.mark.parametrize("program", STOPS.values(), ids=STOPS.keys())
def test_a_program_cannot_end_a_loop_of_the_tests(program: str) -> None:
    assert [verdict(program, tests).score for tests in LOOPS] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("def f(x): return (x, [x], {'a': x}, {1})", "assert f(1) == (1, [1], {'a': 1}, {1})"),
        ("def f(xs): xs.append([1])", "xs = [[0]]\nf(xs)\nassert xs == [[0], [1]]"),
        ("def f(g, x): return g(x)", "assert f(lambda v: v * 2, 3) == 6"),
        ("def f(n):\n    for i in range(n): yield i", "assert list(f(3)) == [0, 1, 2] and 2 in f(3) and 3 not in f(3)"),
        (
            "class E(ValueError): pass\ndef f(x): raise E('no')",
            "try: f(1)\nexcept E as e: assert str(e) == 'no'\nelse: assert 0",
        ),
        ("from math import pi\nimport math\ndef f(x): return x", "assert math.floor(pi) == f(3)"),
        (
            "class P:\n    def __init__(s, x): s.x = x\n    def __eq__(s, o): return s.x == o.x\n"
            "    def __str__(s): return 'P'",
            "p = P(1)\np.x += 1\nassert p.x == 2 and p == P(2) and p != P(1) and str(p) == 'P' and isinstance(p, P)",
        ),
        (
            "class Twice:\n    def __init__(s): s.left = 2\n    def __iter__(s): return s\n    def __next__(s):\n"
            "        if not s.left: raise StopIteration\n        s.left -= 1; return s.left",
            "assert list(Twice()) == [1, 0]\none = Twice()\nnext(one), next(one)\n"
            "try: next(one)\nexcept StopIteration: pass\nelse: assert 0",
        ),
        ("import numpy as np\ndef f(xs): return np.sum(xs)", "assert f([1, 2]) == 3"),
        ("import numpy as np\ndef f(xs): return {'any': np.any(xs)}", "assert f([0, 2]) == {'any': True}"),
        ("def f(n): return range(n)", "assert f(3) == range(3) and list(f(3)) == [0, 1, 2]"),
        ("def f(d): return d.keys(), d.items()", "assert f({'a': 1}) == ({'a'}, {('a', 1)})"),
        (
            "from fractions import Fraction\ndef f(n): return Fraction(1, n)",
            "from fractions import Fraction\nassert f(3) == Fraction(1, 3)",
        ),
        (
            "from decimal import Decimal\ndef f(t): return Decimal(t) * 2",
            "from decimal import Decimal\nassert f('0.1') == Decimal('0.2')",
        ),
        (
            "import datetime\ndef f(d): return d + datetime.timedelta(1), datetime.datetime(2024, 3, 1, 1, 2, 3, 4)",
            "from datetime import *\n"
            "assert f(date(2024, 2, 29)) == (date(2024, 3, 1), datetime(2024, 3, 1, 1, 2, 3, 4))",
        ),
        (
            "from collections import deque\ndef f(q): q.append(3)",
            "from collections import deque\nq = deque([1])\nf(q)\nassert q == deque([1, 3])",
        ),
        (
            "async def f(x):\n    if x: return x + 1\n    raise ValueError('no')",
            "import asyncio\n\nasync def both(): return await asyncio.gather(f(1), f(2))\n\n"
            "assert asyncio.run(f(1)) == 2 and asyncio.run(both()) == [2, 3]\n"
            "try: asyncio.run(f(0))\nexcept ValueError as e: assert str(e) == 'no'\nelse: assert 0",
        ),
        ("def f(x): return x + 1", "def check(candidate):\n    assert candidate(1) == 2\ncheck(f)"),
    ],
)  # fmt: skip
def test_tests_in_python_see_what_the_program_makes(program: str, tests: str) -> None:
    given = verdict(program, tests)
    assert given.score == 1, given.reason


def test_what_counts_is_the_last_block_after_the_thinking() -> None:
    tests = {"metadata": {"tests": [{"input": "", "output": "1"}]}}
    for response, score in {
        "```python\nprint(2)\n```\nno:\n```py\nprint(1)\n```": 1,
        "```python\nprint(1)\n```\nno:\n```python\nprint(2)\n```": 0,
        "<think>```python\nprint(1)\n```": 0,
        "print(1)": 0,
    }.items():
        assert asyncio.run(code(None, Sample(response=response, **tests))).score == score, response


def test_a_program_that_hangs_leaves_nothing_behind() -> None:
    """A child that has left the session would hold the pipe, and the namespace, open."""
    program = "import os, time\nif os.fork() == 0:\n    os.setsid()\ntime.sleep(600)"
    start = time.monotonic()
    ran = sandbox.run(program, "", 1.0)
    assert ran.status is None and 1.0 <= ran.seconds <= time.monotonic() - start


@isolated
@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import socket; socket.create_connection(('127.0.0.1', 22), 2)", "Network is unreachable"),
        ("open('{outside}', 'w')", "Read-only file system"),
        ("import os; os.mkdir('{outside}')", "Read-only file system"),
        ("import os; print(os.listdir('/proc'), os.getpid())", "[] 1"),
        (
            "import ctypes; print(ctypes.CDLL(None).mount(b'', b'/', b'', 32 | 4096, None)); open('{outside}', 'w')",
            "Read-only file system",
        ),
        ("import os; print(sorted(os.listdir('/dev')))", "['null', 'random', 'urandom', 'zero']"),
        ("import socket; socket.socket(socket.AF_VSOCK)", "Permission denied"),
        (
            "import ctypes, os; c = ctypes.CDLL(None, use_errno=True); print(c.syscall(425, 8, 0), ctypes.get_errno())",
            "-1 13",
        ),
        ("import os; print(sorted(set(os.environ) - {{'LC_CTYPE'}}))", "['HOME', 'LANG', 'PATH', 'TMPDIR']"),
    ],
)
def test_what_a_program_is_cut_off_from(program: str, says: str, tmp_path) -> None:
    ran = sandbox.run(program.format(outside=tmp_path / "new"), "", 20)
    assert says in ran.output + ran.errors
    assert list(tmp_path.iterdir()) == []


def living(folder: Path) -> list[str]:
    """Processes whose environment has a directory below `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"HOME={folder}".encode() in (process / "environ").read_bytes():
                found.append(process.name)
    return found


@pytest.fixture
def not_isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """As on a machine that allows no namespaces; what programs have is below the path."""
    monkeypatch.setattr(sandbox, "_unshare", lambda: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    subprocess.run(["rm", "-rf", tmp_path], check=True)  # pytest itself would fail at what is too deep


@pytest.mark.parametrize("own", ["", "os.environ.clear(); ", "os.chdir('/'); "])
def test_without_namespaces_a_process_that_left_the_session_is_ended_too(not_isolated: Path, own: str) -> None:
    program = f"import os, time\nfor _ in range(3):\n    if os.fork() == 0:\n        {own}os.setsid(); time.sleep(600)"
    for end in ("", "\ntime.sleep(600)"):
        sandbox.run(program + end, "", 1.0)
        assert living(not_isolated) == []
    assert list(not_isolated.iterdir()) == []


@pytest.mark.parametrize(
    "program",
    ["for _ in range(3000): os.mkdir('d'); os.chdir('d')", "os.mkdir('d'); os.mkdir('d/e'); os.chmod('d', 0)"],
)
def test_no_directory_is_too_deep_or_closed_to_be_removed(not_isolated: Path, program: str) -> None:
    ran = sandbox.run(f"import os\n{program}", "", 20)
    assert ran.status == 0, ran.errors
    assert list(not_isolated.iterdir()) == []


def test_a_machine_too_busy_to_tell_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program is not run without what it would be cut off by: its reward is not had."""
    ran = [sandbox.Ran(None, "", "", 30.0), sandbox.Ran(0, "in\n", "", 0.1)]
    monkeypatch.setattr(sandbox, "_run", lambda *_: ran.pop(0))
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: name)
    sandbox._may_unshare.cache_clear()
    try:
        with pytest.raises(TimeoutError, match="too busy to tell within 30 s whether programs can be cut off"):
            sandbox.run("print()", "", 1)
        assert [sandbox._unshare(), sandbox._unshare()] == ["unshare", "unshare"]
    finally:
        sandbox._may_unshare.cache_clear()


def test_nobody_waits_for_more_than_one_probe_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "PROBE_S", 0.1)
    with sandbox._asking, pytest.raises(TimeoutError, match="too busy"):
        sandbox._unshare()


def test_a_machine_that_lets_nobody_unshare_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setattr(sandbox, "_run", lambda *_: sandbox.Ran(1, "", "unshare: no", 0.1))
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: name)
    sandbox._may_unshare.cache_clear()
    try:
        assert [sandbox._unshare(), sandbox._unshare()] == [None, None]
    finally:
        sandbox._may_unshare.cache_clear()
    assert len(caplog.records) == 1 and "NOT CUT OFF" in caplog.text


@isolated
@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("s.socket(s.AF_UNIX).connect('{path}')", "Permission denied"),
        ("s.socketpair(s.AF_UNIX, s.SOCK_DGRAM)[0].sendto(b'x', '{path}')", "Permission denied"),
        ("s.socketpair()[0].connect('{path}')", "already connected"),
    ],
)
def test_sockets_in_the_file_system_are_out_of_reach(program: str, says: str, tmp_path) -> None:
    """As of Ray, of an agent of ssh, of Docker: a namespace of networks leaves them open."""
    path = tmp_path / "somebody"
    with socket.socket(socket.AF_UNIX) as somebody:
        somebody.bind(str(path))
        somebody.listen()
        somebody.setblocking(False)
        ran = sandbox.run("import socket as s\n" + program.format(path=path), "", 20)
        assert says in ran.errors
        with pytest.raises(BlockingIOError):
            somebody.accept()


@isolated
def test_what_programs_commonly_use_is_left_to_them() -> None:
    program = """
import asyncio, multiprocessing, socket, subprocess, threading
asyncio.run(asyncio.sleep(0))
one, other = socket.socketpair()
one.send(b"pair"); print(other.recv(4).decode(), flush=True)
listener = socket.create_server(("127.0.0.1", 0))
child = multiprocessing.Process(target=print, args=("child",), kwargs={"flush": True}); child.start(); child.join()
print(subprocess.run(["echo", "echo"], capture_output=True, text=True).stdout, end="")
open("/dev/null", "w").write("x"); print(len(open("/dev/urandom", "rb").read(4)))
"""
    ran = sandbox.run(program, "", 20)
    assert (ran.output, ran.errors, ran.status) == ("pair\nchild\necho\n4\n", "", 0)


@pytest.mark.parametrize("tests", [json.dumps(ADD), {"inputs": ["2 3", "-1 1"], "outputs": ["5", "0"]}])
def test_cases_in_other_forms(tests: object) -> None:
    assert verdict("a, b = map(int, input().split())\nprint(a + b)", tests).score == 1
    assert verdict("print(5)", tests).score == 0


@pytest.mark.parametrize("tests", [[{"in": 1}], "f(1)", "[]", 7, {"inputs": ["1"], "outputs": []}])
def test_tests_that_any_program_would_pass_name_the_sample(tests: object) -> None:
    with pytest.raises(RewardError, match=r"sample 3 .*tests are a list of"):
        verdict("print(1)", tests)


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("```python\nright\n```\nIt prints:\n```\n4\n```", "right\n"),
        ("```\nfirst\n```\n```\nlast\n```", "last\n"),
        ("```python\nfirst\n```\n```py\nlast\n```\n```text\n4\n```", "last\n"),
        ("```js\nother\n```", None),
        ("Mind the ``` here.\n```python\nright\n```", "right\n"),
        ("```python\nprint('a ``` b')\n```", "print('a ``` b')\n"),
        ("```python title=a.py\nright\n```", "right\n"),
        ("1. so:\n   ```python\nright\n   ```\nand ``` more", "right\n"),
        ("Here: ```python\nright\n```", "right\n"),
        ("```python\nright```", "right"),
        ("```python\nfirst\n```\n```python\nlast, not closed", "first\n"),
        ("```c++\nother\n```", None),
        ("```python-repl\nother\n```", None),
        ("Run it with ```\npython a.py\n```\n\n```python\nright\n```\n", "right\n"),
        ("Sketch: ```\nx = 1\n```\nFinal:\n```python\nright\n```", "right\n"),
        ("The idea: ```text\nadd\n```\n```python\nright\n```", "right\n"),
        ("<answer>```\nright\n```</answer>", "right\n"),
        ("Mind the ```.\n```\nright\n```", "right\n"),
        ("Fences begin with ```\nand end.\n```python\nright\n```", "right\n"),
        ("```python\nbroken off\n```python\nright\n```", "right\n"),
    ],
)
def test_which_block_is_the_program(response: str, program: str | None) -> None:
    assert last_program(response) == program


@pytest.mark.parametrize("piece", ["```python\nx", "```", "``` ", "```\n", " ", "\n", "a"])
def test_the_program_is_found_in_linear_time(piece: str) -> None:
    began = time.process_time()
    for before, after in ("```python\n", ""), ("```", "`"):
        last_program(before + piece * (100_000 // len(piece)) + after)
    assert time.process_time() - began < 2
