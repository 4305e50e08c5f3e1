"""Tests of a program that are Python text, in the forms that data sets have them, made into text that runs them.

- Assertions at the top level, or calls there of what asserts: as they are.
- `check(candidate)`, as HumanEval's: called with the function of the program that metadata["entry_point"] names.
- Classes of unittest's, as BigCodeBench's, and functions `test_...()`: run one after the other.

Held: what is returned comes to something that can fail. Text that plainly passes with any program is refused: a `check`
that nobody calls, say, an assertion in a comment, of a pair, or in a case that is skipped.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

_ASSERTING = re.compile(r"assert\w*|fail", re.IGNORECASE)
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

RUN_CASES = """
import unittest
_ran = unittest.TextTestRunner().run(unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, [{}])))
assert _ran.testsRun and _ran.wasSuccessful(), "a test case failed"
assert _ran.testsRun > len(_ran.skipped), "every test case was skipped"
"""


def runnable(tests: str, entry_point: object = None) -> str:
    """Raises ValueError, with the reason, for tests that are none."""
    try:
        parsed = ast.parse(tests)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"they are not Python: {error}") from None
    of_operators = any(name in tests for name in _Operators.METHODS)
    if of_operators or any(map(_is_main, parsed.body)):
        parsed.body = [one for one in parsed.body if not _is_main(one)]
        parsed = _Operators().visit(parsed) if of_operators else parsed
        tests = ast.unparse(parsed)
    if not any(map(_can_fail, _inside(parsed.body))):
        raise ValueError("they assert nothing")
    defined = [one for one in parsed.body if isinstance(one, _DEFINES)]
    top = [one for one in parsed.body if not isinstance(one, _DEFINES)]
    if any(_comes_to_fail(one, _failing(defined)) for one in top):
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


class _Operators(ast.NodeTransformer):
    """`a.__eq__(b)` made `a == b`: of what it is not for, the method says NotImplemented, which counts as true."""

    METHODS: ClassVar = {
        "__eq__": ast.Eq,
        "__lt__": ast.Lt,
        "__gt__": ast.Gt,
        "__ne__": ast.NotEq,
        "__le__": ast.LtE,
        "__ge__": ast.GtE,
    }

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        method = self.METHODS.get(_name(node.func)) if isinstance(node.func, ast.Attribute) else None
        if method is None or len(node.args) != 1 or node.keywords or ast.unparse(node.func.value) == "super()":
            return node
        return ast.Compare(node.func.value, [method()], node.args)


def _failing(defined: list[ast.stmt]) -> set[str]:
    """Which of the functions and classes can fail: they assert, or call one that does."""
    failing: set[str] = set()
    while more := {one.name for one in defined if one.name not in failing and _comes_to_fail(one, failing)}:
        failing |= more
    return failing


def _comes_to_fail(one: ast.stmt, failing: set[str]) -> bool:
    """Whether a statement asserts, or calls what can fail: by its name, or as what a loop goes through."""
    nodes = list(_walk(one))
    calls = {_name(node.func) for node in nodes if isinstance(node, ast.Call)}
    looped = {node.target.id for node in nodes if isinstance(node, ast.For) and isinstance(node.target, ast.Name)}
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return any(map(_can_fail, nodes)) or bool(calls & failing) or bool(calls & looped and names & failing)


def _is_main(one: ast.stmt) -> bool:
    """unittest.main(), which would end the process, or what is done in the module __main__, which this is not."""
    if isinstance(one, ast.If):
        return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(one.test))
    return (
        isinstance(one, ast.Expr) and isinstance(one.value, ast.Call) and ast.unparse(one.value.func) == "unittest.main"
    )


def _inside(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    return (node for one in body for node in _walk(one))


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """What is in a statement, but for what unittest skips."""
    nodes = [node]
    while nodes:
        node = nodes.pop()
        calls = (one for one in getattr(node, "decorator_list", ()) if isinstance(one, ast.Call))
        if not any(_name(one.func) == "skip" for one in calls):
            yield node
            nodes += ast.iter_child_nodes(node)


def _can_fail(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and _name(node.func) == "raises":  # pytest's; there is always some Exception
        return bool(node.args) and _name(node.args[0]) not in ("Exception", "BaseException", "NameError")
    if isinstance(node, ast.Call):
        return _ASSERTING.fullmatch(_name(node.func)) is not None
    return isinstance(node, ast.Raise) or (isinstance(node, ast.Assert) and _truth(node.test) is not True)


def _truth(test: ast.expr) -> bool | None:
    """What a condition comes to whatever the program does; None where that is not plain."""
    match test:
        case ast.Constant():
            return bool(test.value)
        case ast.Tuple() | ast.List() | ast.Set() if not any(isinstance(one, ast.Starred) for one in test.elts):
            return bool(test.elts)
        case ast.Lambda():
            return True
        case ast.UnaryOp(op=ast.Not()):
            truth = _truth(test.operand)
            return None if truth is None else not truth
        case ast.BoolOp():
            truths, decides = [_truth(one) for one in test.values], isinstance(test.op, ast.Or)
            return decides if decides in truths else None if None in truths else not decides
    return None


def _is_test_case(base: ast.expr) -> bool:
    return _name(base).endswith("TestCase")


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
