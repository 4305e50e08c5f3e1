"""Which checkpoint a directory leads to, and when a run may start without one (cases 30 and 35)."""

from __future__ import annotations

import pytest

from slime.config import checkpoint_dir, disk, load
from slime.config.checkpoint_dir import MARKER, NoCheckpoint, find
from slime.config.critic import critic_config
from tests.config.checkpoints import write_checkpoint


def filled(directory, *rollouts, marker=None):
    for rollout_id in rollouts:
        write_checkpoint(directory / checkpoint_dir.name_of(rollout_id), rollout_id)
    if marker is not None:
        (directory / MARKER).write_text(marker)
    return directory


def test_the_marker_names_the_latest(tmp_path):
    assert find(filled(tmp_path, 3, 10, 200, marker="10\n")) == tmp_path / "iter_0000010"
    assert find(tmp_path, 3) == tmp_path / "iter_0000003"
    assert checkpoint_dir.rollouts(tmp_path) == [3, 10, 200]


@pytest.mark.parametrize("marker", [None, "7", "", "release"])
def test_without_what_the_marker_names_the_newest_is(tmp_path, marker):
    assert find(filled(tmp_path, 3, 5, marker=marker)) == tmp_path / "iter_0000005"


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        (b"99", "names iter_0000099, which is not there"),
        (b"release", "names release, which is not there"),
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"newest", "says 'newest', which is no number of a rollout"),
        ("\u00b2".encode(), "says '\u00b2', which is no number of a rollout"),
        (b"\xff", "can't be read ("),
        (b"3", ""),
        (None, ""),
    ],
)
def test_a_marker_that_leads_nowhere_is_told(tmp_path, marker, said):
    filled(tmp_path, 3, 5)
    if marker is not None:
        (tmp_path / MARKER).write_bytes(marker)
    assert find(tmp_path).name == ("iter_0000003" if marker == b"3" else "iter_0000005")
    assert bool(checkpoint_dir.wrong_marker(tmp_path)) == bool(said)
    assert f"{MARKER} {said}".strip() in f"{checkpoint_dir.wrong_marker(tmp_path)} {MARKER}"


def test_weights_alone_are_a_release(tmp_path):
    (filled(tmp_path, marker="release") / "release").mkdir()
    assert find(tmp_path) == tmp_path / "release"


def test_halves_are_no_checkpoints(tmp_path):
    (tmp_path / ".iter_0000003.partial").mkdir()
    (tmp_path / ".iter_0000002.replaced").mkdir()
    assert find(tmp_path) is None and find(tmp_path / "absent") is None
    with pytest.raises(NoCheckpoint, match="has no checkpoint iter_0000003; it has none"):
        find(tmp_path, 3)


def problems(model, *options):
    found = disk.look(load(["--hf-checkpoint", str(model), "--rollout-batch-size", "4", *options]), set())
    return list(map(str, found.problems))


def test_a_directory_without_checkpoint_is_refused(tiny, tmp_path):
    (said,) = problems(tiny, "--load", str(tmp_path / "absent"))
    assert "--load" in said and "there is no such directory" in said and "--allow-fresh-start" in said
    (tmp_path / "empty").mkdir()
    assert "it is empty" in problems(tiny, "--load", str(tmp_path / "empty"))[0]
    assert "it holds tiny" not in problems(tiny, "--load", str(tiny))[0]
    assert "which --hf-checkpoint is for" in problems(tiny, "--load", str(tiny))[0]
    assert "it has iter_0000001" in problems(tiny, "--load", str(filled(tmp_path / "one", 1)), "--ckpt-step", "2")[0]


def test_unless_a_fresh_start_is_meant(tiny, tmp_path):
    absent = str(tmp_path / "absent")
    assert problems(tiny, "--load", absent, "--allow-fresh-start") == []
    assert problems(tiny, "--load", absent, "--ref-load", str(tiny)) == []


def test_a_reference_or_teacher_may_be_a_checkpoint(tiny, tmp_path):
    saved = str(filled(tmp_path / "saved", 1, 2))
    teacher = ["--use-opd", "--opd-type", "megatron", "--opd-teacher-load"]
    for options, step in ((["--ref-load"], "--ref-ckpt-step"), (teacher, "--opd-teacher-ckpt-step")):
        assert problems(tiny, *options, saved) == problems(tiny, *options, saved, step, "1") == []
        (said,) = problems(tiny, *options, saved, step, "3")
        assert f"{step}: " in said and "has no checkpoint iter_0000003; it has iter_0000001, iter_0000002" in said
        (said,) = problems(tiny, *options, str(tiny), step, "3")
        assert "has no checkpoint iter_0000003; it has none" in said


# A policy and its critic.


def starts(policy, critic, *options):
    """The names of the checkpoints that the two start from."""
    argv = ["--hf-checkpoint", "model", "--rollout-batch-size", "4", "--load", str(policy), *options]
    config = load([*argv, "--advantage-estimator", "ppo", "--critic-load", str(critic)])
    return tuple(found and found.name for found in map(checkpoint_dir.to_load, (config, critic_config(config))))


@pytest.fixture
def both(tmp_path):
    """A run that was killed when the critic had been saved, and before the policy was."""
    policy, critic = tmp_path / "policy", tmp_path / "policy" / "critic"
    return filled(policy, 3, 6, marker="6"), filled(critic, 3, 6, 9, marker="9")


def test_policy_and_critic_go_on_from_the_newest_rollout_of_both(both):
    assert starts(*both) == ("iter_0000006", "iter_0000006")
    assert starts(*both, "--ckpt-step", "3") == ("iter_0000003", "iter_0000003")


def test_a_run_that_went_back_goes_on_from_where_it_got_to(tmp_path):
    policy, critic = (filled(tmp_path / name, 3, 6, 9, marker="6") for name in ("policy", "critic"))
    assert starts(policy, critic) == ("iter_0000006", "iter_0000006")


def test_neither_starts_without_the_other(tmp_path):
    policy, critic = tmp_path / "policy", filled(tmp_path / "critic", 3, marker="3")
    with pytest.raises(
        NoCheckpoint, match="have no checkpoint of the same rollout: there is no such directory, it holds"
    ):
        starts(policy, critic)
    assert starts(policy, critic, "--allow-fresh-start") == (None, None)
    filled(policy, 9, marker="9")
    with pytest.raises(NoCheckpoint, match="no checkpoint of the same rollout"):
        starts(policy, critic)


def test_a_critic_may_start_from_a_model_and_weights_alone_need_no_partner(both, tmp_path):
    policy, critic = both
    model = tmp_path / "reward-model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    elsewhere = filled(tmp_path / "alone", 3, 6, marker="6")
    assert starts(elsewhere, model) == ("iter_0000006", None)
    assert starts(policy, critic, "--finetune") == ("iter_0000006", "iter_0000009")
    assert starts(policy, model, "--finetune") == ("iter_0000006", None)


def test_a_critic_that_started_from_a_model_goes_on_from_its_own_checkpoints(both, tmp_path):
    """By the words that started the run."""
    policy, _ = both
    model = tmp_path / "reward-model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    assert starts(policy, model) == ("iter_0000006", "iter_0000006")
    assert starts(policy, model, "--save", str(policy)) == ("iter_0000006", "iter_0000006")
    other = filled(tmp_path / "other", 3, marker="3")
    assert starts(policy, model, "--save", str(policy), "--critic-save", str(other)) == ("iter_0000003",) * 2
    words = ["--hf-checkpoint", "model", "--rollout-batch-size", "4", "--advantage-estimator", "ppo"]
    config = load([*words, "--load", str(policy), "--critic-load", str(model)])
    assert critic_config(config).hf_checkpoint == str(model)


def test_the_critics_trainer_has_its_own_weights_learning_rate_and_checkpoints(tmp_path):
    argv = "--hf-checkpoint model --rollout-batch-size 4 --advantage-estimator ppo --save out --load in".split()
    argv += ["--critic-lr", "0.1"]
    kl = ["--use-kl-loss", "--kl-loss-coef", "0.1", "--ref-load", "model", "--freeze-params-name-list", "embedding"]
    config = critic_config(load([*argv, *kl]))
    assert (config.hf_checkpoint, config.lr, config.save, config.load) == ("model", 0.1, "out/critic", "in/critic")
    assert not config.use_kl_loss and config.freeze_params_name_list == ()
    (tmp_path / "config.json").write_text("{}")
    config = critic_config(load([*argv, "--critic-load", str(tmp_path)]))
    assert (config.hf_checkpoint, config.load) == (str(tmp_path), None)
