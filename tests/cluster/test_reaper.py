"""What a dead run has left on a machine does not keep the next one from it. Whole runs are in test_session.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.cluster import reaper


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(reaper, "home", lambda: tmp_path)
    return tmp_path


def dead_run(home: Path, run_id: str) -> Path:
    directory = home / f"{run_id}-1"
    directory.mkdir()
    (directory / "run.json").touch()
    reaper.Record(directory).write()
    return directory


def test_a_process_that_nobody_can_kill_is_said_and_the_next_record_cleared(home, monkeypatch):
    stuck, other = dead_run(home, "aaaaaaaaaaaa"), dead_run(home, "bbbbbbbbbbbb")
    monkeypatch.setattr(reaper, "members", lambda run_id: [4711] if run_id in stuck.name else [])
    monkeypatch.setattr(reaper, "_signal", lambda *_, **__: [])
    for name in ("_TERM_S", "_KILL_S"):
        monkeypatch.setattr(reaper, name, 0.1)
    assert sorted(line.partition("in order ")[2] for line in reaper.clear_dead_runs()) == [
        "(aaaaaaaaaaaa): processes [4711] survive SIGKILL; what it has stays",
        "(bbbbbbbbbbbb): cleared its remains",
    ]
    assert stuck.exists() and not other.exists()


def test_a_file_where_records_are_is_left_alone(home):
    (home / "notes.txt").write_text("mine")
    dead_run(home, "aaaaaaaaaaaa")
    assert len(reaper.clear_dead_runs()) == 1
    assert [file.name for file in home.iterdir()] == ["notes.txt"]
