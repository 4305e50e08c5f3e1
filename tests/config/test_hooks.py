from __future__ import annotations

import asyncio
import sys

import pytest

from slime.config.hooks import HookError, load_hook
from slime.data.errors import DataError
from tests.rollout import hooks


def test_found_by_path() -> None:
    assert load_hook("--option", "tests.rollout.hooks.double").function is hooks.double
    assert load_hook("--option", None) is None


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("tests.rollout.hooks.missing", "tests.rollout.hooks has no 'missing'"),
        ("tests.rollout.missing.f", "there is no module 'tests.rollout.missing'"),
        ("no_such_package.module.f", "there is no module 'no_such_package'"),
        ("os.path", "it is of type module, which nobody can call"),
    ],
)
def test_not_found(path: str, message: str) -> None:
    with pytest.raises(HookError, match=f"--option {path}: {message}"):
        load_hook("--option", path)


def test_a_module_that_misses_something_itself(tmp_path, monkeypatch) -> None:
    (tmp_path / "users_module.py").write_text("import a_package_they_forgot\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_package_they_forgot"):
        load_hook("--option", "users_module.f")


def adds(a: int, b: int = 0) -> int:
    return a + b


async def adds_later(a: int, b: int = 0) -> int:
    await asyncio.sleep(0)
    return a + b


def leaves() -> None:
    sys.exit("usage: ...")


def finds_a_mistake() -> None:
    raise DataError("prompts.jsonl:3: no label")


@pytest.mark.parametrize("name", ["adds", "adds_later"])
def test_called_whether_or_not_it_is_asynchronous(name: str) -> None:
    assert load_hook("--option", f"{__name__}.{name}")(2, b=3) == 5


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("adds", "adds raised TypeError: can only concatenate str"),
        ("adds_later", "adds_later raised TypeError: can only concatenate str"),
        ("leaves", "leaves raised SystemExit: usage"),
    ],
)
def test_whatever_it_raises_names_it(name: str, message: str) -> None:
    hook = load_hook("--option", f"{__name__}.{name}")
    with pytest.raises(HookError, match=rf"^--option {__name__}.{message}"):
        hook(*([] if name == "leaves" else ["a", 1]))


def test_errors_of_ours_say_themselves_what_is_wrong() -> None:
    with pytest.raises(DataError, match=r"^prompts\.jsonl:3: no label$"):
        load_hook("--option", f"{__name__}.finds_a_mistake")()
