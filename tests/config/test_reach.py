"""Paths that the system keeps a user from are a problem of the option that names them, and no traceback."""

from __future__ import annotations

import errno
import os

import pytest

from slime.config import from_command_line

TOO_LONG = "x" * 300  # of at most 255 bytes


@pytest.fixture
def keeper(monkeypatch):
    """A directory that may be seen and not be entered; nothing keeps the user of these tests from any, as a rule."""
    real = os.stat

    def stat(path, *arguments, **options):
        if isinstance(path, (str, os.PathLike)) and str(path).startswith("/keep/"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real("/" if str(path) == "/keep" else path, *arguments, **options)

    monkeypatch.setattr(os, "stat", stat)


def said(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        from_command_line(argv)
    assert caught.value.code == 2
    return capsys.readouterr().err


OPTIONS = {
    "--hf-checkpoint": [],
    "--ref-load": ["--use-kl-loss"],
    "--opd-teacher-load": ["--use-opd", "--opd-type", "megatron"],
    "--load": [],
    "--prompt-data": [],
    "--rm-judge-prompt": [],
    "--eval-config": ["--eval-interval", "2"],
    "--load-debug-rollout-data": [],
}


@pytest.mark.parametrize("check", [[], ["--check"]], ids=["start", "check"])
@pytest.mark.parametrize("option", OPTIONS)
def test_what_is_read(option, check, complete, capsys, keeper):
    text = said([*complete, *OPTIONS[option], option, f"/{TOO_LONG}", *check], capsys)
    assert f"{option}: /{TOO_LONG} cannot be looked at: File name too long" in text
    text = said([*complete, *OPTIONS[option], option, "/keep/it", *check], capsys)
    assert f"{option}: /keep/it cannot be looked at: Permission denied" in text


@pytest.mark.parametrize("option", ["--hf-checkpoint", "--load"])
def test_a_directory_that_may_be_seen_and_not_be_entered(option, complete, capsys, keeper):
    assert f"{option}: /keep cannot be looked at: Permission denied" in said([*complete, option, "/keep"], capsys)


def test_what_follows_from_another_option_is_said_with_it(complete, capsys):
    argv = [*complete, "--advantage-estimator", "ppo", "--load", f"/{TOO_LONG}"]
    assert f"--load, --critic-load: /{TOO_LONG} and /{TOO_LONG}/critic cannot be" in said(argv, capsys)


@pytest.mark.parametrize("option", ["--save", "--save-hf", "--run-dir", "--save-debug-rollout-data"])
def test_what_is_written(option, complete, capsys, keeper):
    end = "/{rollout_id}" if option in ("--save-hf", "--save-debug-rollout-data") else ""
    for path, reason in ((f"/{TOO_LONG}", "File name too long"), ("/keep/it", "Permission denied")):
        text = said([*complete, option, path + end], capsys)
        assert f"{option}: {path}{end} cannot be written: {path}: {reason}" in text


def test_a_critic_of_another(complete, capsys, keeper):
    argv = [*complete, "--advantage-estimator", "ppo", "--critic-load", "/keep/it"]
    assert "--critic-load: /keep/it cannot be looked at: Permission denied" in said(argv, capsys)


def test_a_path_with_a_file_above_it_is_not_there(complete, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert f"there is no file {tmp_path}/file/x" in said([*complete, "--prompt-data", str(tmp_path / "file/x")], capsys)
