from __future__ import annotations

import pytest

from slime.config.hooks import HookError, load_hook
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
    with pytest.raises(HookError, match=f"--option {path}: {message}"):
        load_hook("--option", path)


def test_a_module_that_misses_something_itself(tmp_path, monkeypatch) -> None:
    (tmp_path / "users_module.py").write_text("import a_package_they_forgot\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_package_they_forgot"):
        load_hook("--option", "users_module.f")
