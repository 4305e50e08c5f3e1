"""What tests, pytest and hypothesis parse is parsed though finalizers parse meanwhile (see conftest)."""

from __future__ import annotations

import ast
import gc


class Garbage:
    """For the collector alone, which a parser calls when it makes many objects; its end parses, deeper in the stack."""

    def __init__(self) -> None:
        self.myself = self

    def __del__(self) -> None:
        parsed(depth=15)


def parsed(depth: int) -> ast.AST:
    return parsed(depth - 1) if depth else ast.parse("1 + 1")


def test_parsing_is_not_disturbed_by_finalizers_that_parse():
    source = "\n".join(f"x{i} = [{i}, {i} + 1]" for i in range(2000))
    for _ in range(5):
        for _ in range(20):
            Garbage()
        assert len(ast.parse(source).body) == 2000
    assert gc.isenabled()
