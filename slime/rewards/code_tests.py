"""Tests of a program that are Python text, in the forms that data sets have them, made into text that runs them.

- Assertions at the top level, or calls there of what asserts: as they are.
- `check(candidate)`, as HumanEval's: called with the function of the program that metadata["entry_point"] names.
- Classes of unittest's, as BigCodeBench's, and functions `test_...()`: run one after the other.

Held: what is returned comes to something that can fail. Text that would pass with any program is refused: a `check`
that nobody calls, say, or an assertion in a comment.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

_ASSERTING = re.compile(r"assert\w*|fail", re.IGNORECASE)
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOOPS = (ast.For, ast.While, ast.With, ast.Try)

RUN_CASES = """
import unittest
_ran = unittest.TextTestRunner().run(unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, [{}])))
assert _ran.testsRun and _ran.wasSuccessful(), "a test case failed"
"""


def runnable(tests: str, entry_point: object = None) -> str:
    """Raises ValueError, with the reason, for tests that are none."""
    try:
        parsed = ast.parse(tests)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"they are not Python: {error}") from None
    if any(map(_is_main, parsed.body)):
        parsed.body = [one for one in parsed.body if not _is_main(one)]
        tests = ast.unparse(parsed)
    if not any(map(_can_fail, _inside(parsed.body))):
        raise ValueError("they assert nothing")
    defined = [one for one in parsed.body if isinstance(one, _DEFINES)]
    if _runs_itself([one for one in parsed.body if not isinstance(one, _DEFINES)], {one.name for one in defined}):
        return tests
    classes = [one.name for one in defined if isinstance(one, ast.ClassDef) and any(map(_is_test_case, one.bases))]
    functions = {one.name: one.args.args for one in defined if isinstance(one, ast.FunctionDef)}
    if "check" in functions:
        if not (isinstance(entry_point, str) and entry_point.isidentifier()):
            raise ValueError('nothing calls check: metadata["entry_point"] is to name the function that it checks')
        return f"{tests}\n\ncheck({entry_point})\n"
    calls = "".join(f"\n{name}()" for name, needs in functions.items() if name.startswith("test") and not needs)
    if not classes and not calls:
        raise ValueError("they only define what would assert, and nothing calls it")
    return tests + "\n" + (RUN_CASES.format(", ".join(classes)) if classes else "") + calls


def _runs_itself(top: list[ast.stmt], defined: set[str]) -> bool:
    """Whether what is done at the top level can fail; a loop there may call anything."""
    for one in top:
        calls = {_name(node.func) for node in ast.walk(one) if isinstance(node, ast.Call)}
        if any(map(_can_fail, ast.walk(one))) or calls & defined or (calls and isinstance(one, _LOOPS)):
            return True
    return False


def _is_main(one: ast.stmt) -> bool:
    """unittest.main(), which would end the process, or what is done in the module __main__, which this is not."""
    if isinstance(one, ast.If):
        return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(one.test))
    return (
        isinstance(one, ast.Expr) and isinstance(one.value, ast.Call) and ast.unparse(one.value.func) == "unittest.main"
    )


def _inside(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    return (node for one in body for node in ast.walk(one))


def _can_fail(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return _ASSERTING.fullmatch(_name(node.func)) is not None
    return isinstance(node, ast.Assert | ast.Raise)


def _is_test_case(base: ast.expr) -> bool:
    return _name(base).endswith("TestCase")


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
