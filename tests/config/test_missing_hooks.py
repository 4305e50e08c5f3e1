"""Functions that options name: found without running anything of the user's, or said to be missing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from slime import config
from slime.config import load, missing_hooks


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's package in the directory where the command runs. Whoever imports it is stopped."""
    directory = tmp_path / "my_rewards"
    (directory / "inner").mkdir(parents=True)
    (directory / "__init__.py").write_text("raise SystemExit('imported')\n")
    (directory / "inner" / "__init__.py").touch()
    (directory / "data").mkdir()
    (directory / "data" / "of.py").write_text("def reward(args, sample): ...\n")
    (directory / "grade.py").write_text(
        "raise SystemExit('imported')\n"
        "import torch, json\n"
        "def json(text): ...\n"
        "from math import sqrt as root, floor\n"
        "async def reward(args, sample): return 1.0\n"
        "if torch.cuda.is_available():\n    def fast(): ...\nelse:\n    fast, other = reward, None\n"
        "try:\n    class Grader: ...\nexcept ImportError:\n    Grader: type = object\n"
    )
    (directory / "open.py").write_text("from math import *\n")
    (directory / "lazy.py").write_text("def __getattr__(name): ...\n")
    (directory / "needs.py").write_text("import os.path\nfrom nowhere.deep import thing\nreward = thing\n")
    (directory / "copes.py").write_text(
        "import sys\nsys.path.append('elsewhere')\nfrom nowhere import thing\ndef reward(args, sample): ...\n"
    )
    (directory / "tries.py").write_text(
        "from . import grade\nfrom .grade import reward as other\n"
        "try:\n    import nowhere\nexcept ImportError:\n    nowhere = None\n"
        "def reward(args, sample):\n    import nowhere.deep\n"
    )
    (directory / "broken.py").write_text("x = 1\ndef reward(:\n")
    monkeypatch.chdir(tmp_path)
    return directory


USED_WITH = {
    "custom_loss_function_path": ("--loss-type", "custom_loss"),
    "custom_tis_function_path": ("--use-tis",),
    "custom_update_weight_post_write_path": ("--update-weight-transport", "disk"),
}


def said(path: str, *options: str) -> list[str]:
    options = options or ("--custom-rm-path",)
    config = load(["--hf-checkpoint", "model", "--rollout-batch-size", "4", *options, path])
    return [str(problem) for problem in missing_hooks.look(config, set())]


@pytest.mark.parametrize("name", ["reward", "root", "floor", "fast", "other", "Grader", "json"])
def test_a_name_that_a_module_defines_in_any_way_is_found(package, name):
    assert said(f"my_rewards.grade.{name}") == []


def test_a_module_in_a_directory_without_an_init_is_found(package):
    assert said("my_rewards.data.of.reward") == []


@pytest.mark.parametrize("path", ["my_rewards.copes.reward", "my_rewards.tries.reward"])
def test_an_import_that_may_succeed_or_be_missed_is_left_to_the_run(package, path):
    assert said(path) == []


@pytest.mark.parametrize("path", ["my_rewards.open.sqrt", "my_rewards.lazy.anything", "math.sqrt", "sys.exit"])
def test_what_only_running_a_module_could_tell_is_left_to_the_run(package, path):
    assert said(path) == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("foo.bar", "foo.bar: there is no module 'foo' on the Python path"),
        ("my_reward.grade.reward", "there is no module 'my_reward' on the Python path"),
        ("my_rewards.gade.reward", "there is no module 'my_rewards.gade': "),
        ("my_rewards.inner.deep.reward", "there is no module 'my_rewards.inner.deep'"),
        ("my_rewards.grade.inner.reward", "there is no module 'my_rewards.grade.inner': 'my_rewards.grade' is a file"),
        ("my_rewards.grade.rewrad", "grade.py has no 'rewrad'\n      -> did you mean reward?"),
        ("my_rewards.grade.torch", "'torch' is a module that "),
        ("os.path", "os.path: it is of type module, which nobody can call"),
        ("my_rewards.needs.reward", "needs.py:2 imports 'nowhere', which is not there"),
        ("my_rewards.data.reward", "'my_rewards.data' is a directory without an __init__.py, "),
        ("my_rewards.data.on.reward", "there is no module 'my_rewards.data.on': "),
        ("my_rewards.broken.reward", "broken.py:2: invalid syntax"),
    ],
)
def test_what_is_not_there_is_said(package, path, message):
    (text,) = said(path)
    assert text.startswith("--custom-rm-path: ") and message in text


def test_a_package_that_says_itself_where_its_modules_are_is_left_to_the_run(package):
    (package / "__init__.py").write_text("__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n")
    assert said("my_rewards.elsewhere.reward") == []
    (package / "__init__.py").write_text("import sys\nsys.modules[\n    'my_rewards.elsewhere'] = sys\n")
    assert said("my_rewards.elsewhere.reward") == []


def test_a_package_that_only_asks_which_modules_there_are_arranges_nothing(package):
    (package / "__init__.py").write_text("import sys\nassert sys.modules['os'] == sys.modules.get('os')\n")
    (text,) = said("my_rewards.elsewhere.reward")
    assert "there is no module 'my_rewards.elsewhere'" in text


def test_the_path_that_training_processes_are_given_counts(package, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    assert said("my_rewards.grade.reward") != []
    config = load(
        [
            *("--hf-checkpoint", "model", "--rollout-batch-size", "4", "--custom-rm-path", "my_rewards.grade.reward"),
            *("--train-env-vars", json.dumps({"PYTHONPATH": str(tmp_path)})),
        ]
    )
    assert list(missing_hooks.look(config, set())) == []


def test_a_path_that_is_no_text_is_taken_for_one():
    options = ["--hf-checkpoint", "model", "--rollout-batch-size", "4", "--train-env-vars", '{"PYTHONPATH": 1}']
    assert list(missing_hooks.look(load(options), set())) == []


def test_every_option_for_a_function_is_looked_at(package):
    texts = [path.read_text() for path in (Path(config.__file__).parent / "sections").glob("*.py")]
    assert sorted(missing_hooks.HOOKS) == sorted(re.findall(r"(\w+): Hook\b", "".join(texts)))
    for name in missing_hooks.HOOKS:
        (text,) = said("foo.bar", *USED_WITH.get(name, ()), "--" + name.replace("_", "-"))
        assert "there is no module 'foo'" in text


def test_our_own_functions_are_there():
    config = load(["--hf-checkpoint", "model", "--rollout-batch-size", "4"])
    assert config.rollout_function_path is not None
    assert list(missing_hooks.look(config, set())) == []
