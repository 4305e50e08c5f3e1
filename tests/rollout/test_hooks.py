from __future__ import annotations

import asyncio

import pytest

from slime.rollout.hooks import accepts, call, load_hook
from slime.rollout.types import RolloutError
from tests.rollout import hooks


def test_found_by_path() -> None:
    assert load_hook("--option", "tests.rollout.hooks.double") is hooks.double
    assert load_hook("--option", None) is None


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("tests.rollout.hooks.missing", "tests.rollout.hooks has no 'missing'"),
        ("tests.rollout.missing.f", "there is no module 'tests.rollout.missing'"),
        ("no_such_package.module.f", "there is no module 'no_such_package'"),
    ],
)
def test_not_found(path: str, message: str) -> None:
    with pytest.raises(RolloutError, match=f"--option {path}: {message}"):
        load_hook("--option", path)


def test_a_module_that_misses_something_itself(tmp_path, monkeypatch) -> None:
    (tmp_path / "users_module.py").write_text("import a_package_they_forgot\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_package_they_forgot"):
        load_hook("--option", "users_module.f")


def test_plain_and_asynchronous_functions() -> None:
    async def later(value: int) -> int:
        return value

    assert asyncio.run(call(later, 1)) == asyncio.run(call(lambda value: value, 1)) == 1


def test_accepts() -> None:
    assert accepts(lambda sample, evaluation=False: None, "evaluation")
    assert accepts(lambda sample, **kwargs: None, "evaluation")
    assert not accepts(lambda sample: None, "evaluation")
