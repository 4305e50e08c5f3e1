"""--rm-type code: the program in the response passes all tests, run in a sandbox.

Tests are metadata["tests"], else the label: a list of {"input": ..., "output": ...}, each one run of the program from
standard input to standard output, or the same as {"inputs": [...], "outputs": [...]}, or either as JSON text; or Python
text, or a list of such, run after the program, that raises where it is wrong (see code_tests.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from slime.rewards import apart, sandbox
from slime.rewards.code_tests import runnable
from slime.rewards.errors import RewardError
from slime.rewards.final_answer import after_thinking
from slime.rewards.label import label_of
from slime.rewards.verdict import Verdict, right, wrong

SECONDS = 5.0  # a test
MOST_SECONDS = 60.0  # all tests of an answer
_PYTHON = ("python", "python3", "py")  # what may stand after the fence, if anything
_OPENS = re.compile(r"^\s*+```\s*+([^\s`]*+)[^`]*+$|```([a-z][\w+#-]*)?\s*$", re.IGNORECASE)
_APART = Path(apart.__file__).read_text(encoding="utf-8")


async def code(args: Any, sample: Any) -> Verdict:
    """1 when every test passes, else 0 and the first that does not. `last_program` is the program."""
    tests = tests_of(sample)
    said = after_thinking(sample.response, sample.prompt)
    if said is None:
        return wrong("the thinking does not end")
    program = last_program(said)
    if program is None:
        return wrong("there is no fenced block of Python")
    run = _against_text if isinstance(tests, str) else _against_cases
    return await asyncio.get_running_loop().run_in_executor(_threads(), run, program, tests)


def tests_of(sample: Any) -> str | list[dict[str, Any]]:
    """Raises RewardError for tests that are none: a program would pass them whatever it does."""
    tests = (sample.metadata or {}).get("tests") or label_of(sample)
    if isinstance(tests, str):
        with suppress(ValueError):
            tests = json.loads(tests)
    if isinstance(tests, dict) and len(tests.get("inputs", ())) == len(tests.get("outputs", ())):
        pairs = zip(tests.get("inputs", ()), tests.get("outputs", ()), strict=True)
        tests = [{"input": given, "output": expected} for given, expected in pairs]
    if isinstance(tests, list) and tests and all(isinstance(t, str) for t in tests):
        tests = "\n".join(tests)
    why = ""
    if isinstance(tests, str):
        try:
            return runnable(tests, (sample.metadata or {}).get("entry_point"))
        except ValueError as error:
            why = f" ({error})"
    if isinstance(tests, list) and tests and all(isinstance(t, dict) and {"input", "output"} <= {*t} for t in tests):
        return tests
    raise RewardError(
        f'{sample.name}: tests are a list of {{"input": ..., "output": ...}}, or Python text that asserts; these'
        f" are{why}: {tests!r:.200}"
    )


def last_program(text: str) -> str | None:
    """The last block between fences that says it is Python; where none does, the last that says nothing."""
    said = [(language, body) for language, body in _blocks(text) if body][::-1]
    return next((body for named in (_PYTHON, ("",)) for language, body in said if language in named), None)


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """(language, content) of what is fenced. A fence is at the start of a line or, with nothing but its language after
    it, at the end of one. What is not closed is none; where a line begins a block of Python, what was open is not."""
    language, body = None, []
    for line in text.split("\n"):
        opens = _OPENS.search(line) if line.count("```") % 2 else None
        named = (opens[1] or opens[2] or "").lower() if opens else ""
        if opens and (language is None or (opens[1] and named in _PYTHON)):
            language, body = named, []
        elif language is None:
            continue
        elif line.lstrip().startswith("```"):
            yield language, "".join(body)
            language = None
        elif line.rstrip().endswith("```"):
            yield language, "".join(body) + line.rstrip()[:-3]
            language = None
        else:
            body.append(line + "\n")


def _against_text(program: str, tests: str) -> Verdict:
    word = secrets.token_hex(16)
    ours, theirs = f"{_APART}\n\njudge({tests!r}, {word!r})\n", f"{_APART}\n\nserve({program!r})\n"
    of_program, ran = sandbox.run_joined(theirs, ours, SECONDS)
    if ran.status == 0 and ran.output.endswith("\n" + word):
        return right(f"passes the tests ({sandbox.isolation()})")
    if "EOFError" in ran.errors:
        ran = of_program
    return wrong(_why(ran, "the tests"))


def _against_cases(program: str, tests: list[dict[str, Any]]) -> Verdict:
    left = MOST_SECONDS
    for number, test in enumerate(tests, 1):
        ran = sandbox.run(program, str(test["input"]), min(SECONDS, left))
        left -= ran.seconds
        if ran.status != 0:
            return wrong(_why(ran, f"test {number} of {len(tests)}"))
        if _lines(ran.output) != _lines(str(test["output"])):
            return wrong(f"test {number} of {len(tests)}: printed {ran.output.strip()[:200]!r}")
        if left <= 0 and number < len(tests):
            return wrong(f"{number} of {len(tests)} tests took {MOST_SECONDS:g} s")
    return right(f"passes {len(tests)} tests ({sandbox.isolation()})")


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _why(ran: sandbox.Ran, what: str) -> str:
    if ran.status is None:
        return f"{what}: took longer than {ran.seconds:.0f} s"
    last = ran.errors.strip().rsplit("\n", 1)[-1][:200] if ran.errors.strip() else "it left before the tests"
    return f"{what}: status {ran.status}: {last}"


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0))), "code")
