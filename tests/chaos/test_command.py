"""python -m slime.chaos where nothing comes to be killed. What it does to a run is in test_faults.py."""

from __future__ import annotations

import pytest

from slime.chaos.__main__ import main
from slime.tiny import Tiny, make_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny(tmp_path_factory.mktemp("chaos") / "tiny", "sort", num_train=8, num_heldout=8, num_demos=8)


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kill", "engin@3"], "'engin' is none of engine, router, trainer, critic, rollout, buffer, driver: did you"),
        (["--kill", "engine"], "'engine' names no rollout: write engine@3"),
        (["--kill", "engine@-1"], "'engine@-1' names no rollout: write engine@3"),
        ([], "nothing is to be killed: add --kill engine@1"),
    ],
)
def test_what_is_no_kill_is_said(capsys, words, said):
    assert said in refusal(capsys, *words)


def test_what_this_run_does_not_have_is_said_all_at_once(capsys, tiny):
    options = ["--config", "configs/tiny-grpo.yaml", "--hf-checkpoint", str(tiny.model), "--device", "cpu"]
    options += ["--prompt-data", str(tiny.train), "--eval-prompt-data", "sort", str(tiny.heldout), "--cpu-slots", "4"]
    said = refusal(capsys, "--kill", "engine@40", "--kill", "critic@1", "--kill", "driver@39", *options)
    assert "--kill engine@40: the last of --num-rollout 40 rollouts is 39" in said
    assert "--kill critic@1: this run starts no critic" in said
    assert "driver" not in said


def test_options_of_the_run_are_checked_as_train_does(capsys):
    assert "--rolout-batch-size" in refusal(capsys, "--kill", "engine@1", "--rolout-batch-size", "3")
