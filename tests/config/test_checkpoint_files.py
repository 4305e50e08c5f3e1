"""What is missing or broken in a checkpoint is told before anything starts, and what it would have been taken for."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest

from slime.config import checkpoint_files, from_command_line
from slime.config.checkpoint_dir import MARKER
from slime.config.checkpoint_files import DamagedCheckpoint, damaged_files, read_state, trained
from tests.config.checkpoints import TINY, state_after, write_checkpoint

NOTHING_LEFT = {"token": 1, "next_own": -1, "handed_out": []}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Checkpoints after rollouts 3 and 6, as a run leaves them."""
    directory = tmp_path / "run"
    for rollout_id in (3, 6):
        write_checkpoint(directory / f"iter_{rollout_id:07d}", rollout_id)
        (directory / "rollout").mkdir(exist_ok=True)
        (directory / "rollout" / f"{rollout_id}.json").write_text("{}")
        (directory / "rollout" / f"{rollout_id}.buffer.json").write_text(json.dumps(NOTHING_LEFT))
    (directory / MARKER).write_text("6")
    return directory


@pytest.fixture
def checked(complete: list[str], capsys: pytest.CaptureFixture[str]):
    def check(*options: str) -> tuple[int, str]:
        """The status of --check with these options, and all that it says, in one line."""
        with pytest.raises(SystemExit) as ended:
            from_command_line([*complete, "--num-rollout", "20", *options, "--check"])
        return ended.value.code, " ".join("".join(capsys.readouterr()).split())

    return check


# A checkpoint that lost its state.json.


@pytest.mark.parametrize("witness", ["config.json", "../rollout/6.json"])
def test_one_of_ours_without_its_state_is_refused(checked, run, witness):
    checkpoint = run / "iter_0000006"
    (checkpoint / "state.json").unlink()
    for other in {"config.json", "../rollout/6.json"} - {witness}:
        (checkpoint / other).unlink()
    code, said = checked("--load", str(run))
    assert code == 2 and f"--load: {checkpoint} has lost its state.json" in said
    assert "--ckpt-step" in said and "--finetune" in said
    assert checked("--load", str(run), "--ckpt-step", "3")[0] == 0


def test_its_weights_alone_can_be_taken(checked, run):
    (run / "iter_0000006" / "state.json").unlink()
    code, said = checked("--load", str(run), "--finetune")
    assert code == 0 and f"starts from the weights of {run}/iter_0000006, and with nothing else of it" in said
    assert checked("--ref-load", str(run))[0] == 0


def test_weights_that_others_wrote_are_taken_as_weights(checked, run):
    shutil.rmtree(run / "rollout")
    for name in ("state.json", "config.json"):
        (run / "iter_0000006" / name).unlink()
    code, said = checked("--load", str(run))
    assert code == 0 and f"starts from the weights of {run}/iter_0000006" in said and "20 rollouts = " in said


def test_a_critics_is_looked_at_too(checked, run):
    for rollout_id in (3, 6):
        write_checkpoint(run / "critic" / f"iter_{rollout_id:07d}", rollout_id)
    ppo = ["--advantage-estimator", "ppo", "--load", str(run)]
    assert checked(*ppo)[0] == 0
    (run / "critic" / "iter_0000006" / "state.json").unlink()
    code, said = checked(*ppo)
    assert code == 2 and f"--critic-load: {run}/critic/iter_0000006 has lost its state.json" in said
    assert "1 problem " in said


# Broken files.

WITHOUT = {key: value for key, value in state_after(6).items() if key != "layout"}


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("{", "can't be read ("),
        ("", "can't be read ("),
        ("[" * 5000, "can't be read (maximum recursion depth exceeded"),
        ("[]", "holds a JSON list, not an object"),
        ("{}", "lacks 'progress'"),
        ('{"progress": 6}', "says 6 of 'progress', which is no object"),
        (json.dumps(state_after(6) | {"progress": {"rollout_id": 6}}), "lacks 'progress.num_steps' and"),
        (json.dumps(WITHOUT), "lacks 'layout', or has no sound value there"),
        (json.dumps(state_after(6) | {"tempo": 1}), "says something of tempo, which this version of slime does not"),
    ],
)
def test_a_broken_state_is_refused_by_its_name(checked, run, state, said):
    (run / "iter_0000006" / "state.json").write_text(state)
    for option in ("--load", "--ref-load"):
        code, told = checked(option, str(run))
        assert code == 2 and f"{option}: {run}/iter_0000006/state.json {said}" in told
        assert "put it back from a copy" in told
    with pytest.raises(DamagedCheckpoint, match=r"iter_0000006/state\.json"):
        read_state(run / "iter_0000006")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", None, "iter_0000006 has lost its config.json, which says what model it is of"),
        ("config.json", "{", "iter_0000006/config.json can't be read ("),
        ("config.json", "[" * 5000, "iter_0000006/config.json can't be read ("),
        ("config.json", "[]", "iter_0000006/config.json can't be read (it is no JSON object)"),
        ("metadata.json", None, "iter_0000006/metadata.json is not there, so Megatron does not know how"),
        ("metadata.json", "{", "iter_0000006/metadata.json can't be read ("),
        ("metadata.json", "[" * 5000, "iter_0000006/metadata.json can't be read ("),
        ("metadata.json", "{}", "iter_0000006/metadata.json does not say how tensors are stored ('sharded_backend')"),
        (".metadata", None, "iter_0000006 is damaged: there is no file .metadata"),
        (".metadata", "", "iter_0000006 is damaged: its file .metadata can't be read ("),
        (".metadata", "{", "iter_0000006 is damaged: its file .metadata can't be read ("),
        ("__0_0.distcp", None, "iter_0000006 is damaged: there is no file __0_0.distcp"),
        ("__0_0.distcp", "short", "iter_0000006 is damaged: __0_0.distcp has 5 bytes of 100"),
    ],
)
def test_other_files_that_are_missing_or_broken_are_found_before_a_start(checked, run, name, content, said):
    file = run / "iter_0000006" / name
    file.unlink() if content is None else file.write_text(content)
    for options in (["--load", str(run)], ["--load", str(run), "--finetune"], ["--ref-load", str(run)]):
        code, told = checked(*options)
        assert code == 2 and said in told, told


def test_a_checkpoint_of_another_model_is_refused(checked, run):
    file = run / "iter_0000006" / "config.json"
    file.write_text(json.dumps(TINY | {"hidden_size": 32, "use_cache": False}))
    code, said = checked("--load", str(run))
    assert code == 2 and f"--load: {file.parent} is of another model than " in said and "1 problem " in said
    assert ": hidden_size in its config.json is 32, this model's is 64 -> name" in said
    assert checked("--load", str(run), "--ckpt-step", "3")[0] == 0


# The position in the prompts.


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is not there (a run on recordings saves none)"),
        ("{", "can't be read ("),
        ("[" * 5000, "can't be read ("),
        ("[]", "holds no JSON object"),
    ],
)
def test_a_lost_position_in_the_prompts_is_told_before_a_start(checked, run, content, said):
    file = run / "rollout" / "6.json"
    file.unlink() if content is None else file.write_text(content)
    code, told = checked("--load", str(run))
    assert code == 2 and f"--load: {file} {said}" in told and "so the position in the prompts is not known" in told
    for further in (["--ckpt-step", "3"], ["--finetune"], ["--data-source-path", "json.loads"]):
        assert "position in the prompts" not in checked("--load", str(run), *further)[1]
    (run / "rollout" / "3.json").unlink()
    assert f"{run}/rollout/3.json is not there" in checked("--load", str(run), "--ckpt-step", "3")[1]


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "can't be read ("), ("[]", "holds no JSON object"), ('{"token": 1}', "lacks 'next_own' and 'handed_out'")],
)
def test_broken_leftovers_are_told_before_a_start(checked, run, content, said):
    file = run / "rollout" / "6.buffer.json"
    file.write_text(content)
    code, told = checked("--load", str(run))
    assert code == 2 and f"--load: {file} {said}" in told and "1 problem " in told
    assert "which says what had been handed out and was not trained on" in told
    for further in (["--ckpt-step", "3"], ["--finetune"]):
        assert "handed out" not in checked("--load", str(run), *further)[1]


def test_leftovers_that_are_not_there_are_remarked(checked, run):
    """A data source may have been saved without a buffer."""
    assert "6.buffer.json" not in checked("--load", str(run))[1]
    (run / "rollout" / "6.buffer.json").unlink()
    code, told = checked("--load", str(run))
    assert code == 0 and f"note: --load: {run}/rollout/6.buffer.json is not there: what had been handed out" in told


def test_to_begin_later_takes_a_place_where_the_position_is(checked, run):
    code, told = checked("--start-rollout-id", "5")
    assert code == 2 and "--start-rollout-id: where the prompts go on after 5 rollouts is in no directory" in told
    assert (
        f"--start-rollout-id: {run}/rollout/4.json is not" in checked("--start-rollout-id", "5", "--load", str(run))[1]
    )


def test_without_a_model_what_is_wrong_is_told(complete, capsys, run):
    with pytest.raises(SystemExit, match="2"):
        from_command_line([*complete[2:], "--load", str(run), "--check"])
    assert "--hf-checkpoint: is required" in capsys.readouterr().err


def test_nothing_that_a_file_names_is_called(run, tmp_path):
    class Malice:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    (run / "iter_0000006" / ".metadata").write_bytes(pickle.dumps(Malice()))
    assert "can't be read" in damaged_files(run / "iter_0000006")[0]
    assert not (tmp_path / "harm").exists()


def test_how_far_a_checkpoint_is(run, tmp_path):
    assert trained(run / "iter_0000006") == 7
    (run / "iter_0000006" / "state.json").write_text('{"progress": null}')
    assert trained(run / "iter_0000006") is None
    assert trained(tmp_path) is None
    assert checkpoint_files.lost_state(tmp_path / "release") is None


# A marker that leads nowhere.


@pytest.mark.parametrize(("marker", "said"), [("99", "names iter_0000099, which is not there"), ("", "is empty")])
def test_a_marker_that_leads_nowhere_is_told_with_what_is_taken_instead(checked, complete, capsys, run, marker, said):
    (run / MARKER).write_text(marker)
    note = f"note: --load: {run}/{MARKER} {said}: {run}/iter_0000006 is taken instead."
    code, told = checked("--load", str(run))
    assert code == 0 and note in told
    from_command_line([*complete, "--num-rollout", "20", "--load", str(run)])
    assert note in capsys.readouterr().err
    assert "note: --ref-load: " in checked("--ref-load", str(run))[1]
    assert "note" not in checked("--load", str(run), "--ckpt-step", "3")[1]


@pytest.mark.parametrize(("behind", "option", "ahead"), [("critic", "--load", ""), ("", "--critic-load", "critic")])
def test_one_that_goes_back_to_where_the_other_is_is_told(checked, run, behind, option, ahead):
    for rollout_id in (3, 6):
        write_checkpoint(run / "critic" / f"iter_{rollout_id:07d}", rollout_id)
    ppo = ["--advantage-estimator", "ppo", "--load", str(run)]
    assert "note: " not in checked(*ppo)[1]
    (run / MARKER).unlink()
    shutil.rmtree(run / behind / "iter_0000006")
    taken = f"{run / ahead}/iter_0000003 is taken, not iter_0000006"
    note = f"note: {option}: {taken}: the {behind or 'policy'} has none of that rollout."
    code, told = checked(*ppo)
    assert code == 0 and note in told and told.count("note: ") == 1
