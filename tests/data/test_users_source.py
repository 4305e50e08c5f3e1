"""A data source of the user's: what it does wrong is said by its option and name."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from slime.config.hooks import load_hook
from slime.data.errors import DataError
from slime.data.sample import Sample
from slime.data.source import NO_PROMPT, DataSource, PromptSource
from slime.data.users_source import open_users_source

HERE = __name__


class Sound:
    def __init__(self, args: Any) -> None:
        self.kept: list[Any] = []

    def get_samples(self, n: int) -> Any:
        return [[Sample(label="a"), Sample(label="b")] for _ in range(n)]

    def add_samples(self, groups: Any) -> None:
        self.kept += groups

    def save(self, id: int) -> None: ...
    def load(self, id: int) -> None: ...
    def __len__(self) -> int:
        return 7


class Failing(Sound):
    def get_samples(self, n: int) -> Any:
        raise ConnectionError("db gone")

    def add_samples(self, groups: Any) -> None:
        raise KeyError("group")

    def save(self, id: int) -> None:
        raise SystemExit(3)

    def load(self, id: int) -> None:
        raise DataError("of ours")

    def __len__(self) -> int:
        return -1


class Odd(Sound):
    def __init__(self, args: Any) -> None:
        self.returned = args.returned

    def get_samples(self, n: int) -> Any:
        return self.returned


class Half:
    def __init__(self, args: Any) -> None: ...
    def get_samples(self, n: int) -> Any: ...
    def save(self, id: int) -> None: ...


class Ours(PromptSource):
    def __init__(self, args: Any) -> None:
        super().__init__(NO_PROMPT, None)


def source(name: str, returned: Any = None) -> DataSource:
    hook = load_hook("--data-source-path", f"{HERE}.{name}")
    return open_users_source(hook, SimpleNamespace(n_samples_per_prompt=2, returned=returned))


def test_a_sound_one_does_as_it_did(caplog: pytest.LogCaptureFixture) -> None:
    mine = source("Sound")
    groups = mine.get_samples(2)
    assert [[sample.label for sample in group] for group in groups] == [["a", "b"]] * 2
    mine.add_samples(groups)
    assert mine._source.kept == groups
    assert (mine.save(1), mine.load(1), len(mine)) == (None, None, 7)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda mine: mine.get_samples(1), "get_samples raised ConnectionError: db gone"),
        (lambda mine: mine.add_samples([]), "add_samples raised KeyError: 'group'"),
        (lambda mine: mine.save(1), "save raised SystemExit: 3"),
        (len, r"__len__ raised ValueError: __len__\(\) should return >= 0"),
    ],
)
def test_what_raises_is_named(ask: Any, said: str) -> None:
    with pytest.raises(DataError, match=rf"^--data-source-path {HERE}\.Failing: {said}$"):
        ask(source("Failing"))


def test_what_raises_an_error_of_ours_says_itself_what_is_wrong() -> None:
    with pytest.raises(DataError, match=r"^of ours$"):
        source("Failing").load(1)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "a NoneType, not a list of groups"),
        (["abc"], "'abc' among its groups, not a list of samples"),
        ([[]], r"\[\] among its groups, not a list of samples"),
        ([[Sample()], ["abc"]], "a group that holds a str, not a Sample"),
        ([[[Sample(), 3]]], "a group that holds a int, not a Sample"),
    ],
)
def test_what_nobody_can_use_is_refused(returned: Any, said: str) -> None:
    with pytest.raises(DataError, match=rf"^--data-source-path {HERE}\.Odd: get_samples returned {said}$"):
        source("Odd", returned).get_samples(1)


def test_groups_of_another_size_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    short = [[Sample()], [Sample()]]
    with caplog.at_level(logging.WARNING):
        mine = source("Odd", short)
        assert mine.get_samples(2) == mine.get_samples(2) == short
    (record,) = caplog.records
    assert f"{HERE}.Odd: get_samples returned a group of 1 samples, where --n-samples-per" in record.getMessage()


def test_a_class_that_lacks_methods_is_refused() -> None:
    with pytest.raises(DataError, match=rf"{HERE}\.Half made a Half, which has no add_samples, load, __len__$"):
        source("Half")


def test_one_that_is_ours_with_a_change_stays_one() -> None:
    assert isinstance(source("Ours"), PromptSource)
