"""What a run would stumble over in its data, found before it starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slime.config import Config, load
from slime.data import inspect
from slime.data.inspect import unusable_data
from slime.tiny import write_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model")


def config_of(checkpoint: Path, *argv: str) -> Config:
    return load(["--hf-checkpoint", str(checkpoint), "--rollout-batch-size", "4", *argv])


def change_template(checkpoint: Path, template: str | None) -> None:
    file = checkpoint / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))


def test_a_sound_checkpoint_and_sound_prompts_are_fine(checkpoint, tmp_path):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"input": "1+1="}\n')
    assert unusable_data(config_of(checkpoint, "--apply-chat-template", "--prompt-data", str(prompts))) == []


@pytest.mark.parametrize("needs", [["--apply-chat-template"], ["--loss-type", "sft_loss"]])
def test_a_template_that_is_missing_is_said_where_it_is_needed(checkpoint, needs):
    change_template(checkpoint, None)
    assert unusable_data(config_of(checkpoint)) == []
    (problem,) = unusable_data(config_of(checkpoint, *needs))
    assert problem[0] == " ".join(needs) and f"{checkpoint}: the checkpoint has no chat template" in problem[1]


def test_a_template_that_is_not_valid_is_said(checkpoint):
    change_template(checkpoint, "{% if %}")
    (problem,) = unusable_data(config_of(checkpoint, "--apply-chat-template"))
    assert "the checkpoint's chat template is not valid" in problem[1]


def test_a_template_that_makes_nothing_of_a_prompt_is_said(checkpoint, tmp_path):
    (tmp_path / "p.jsonl").write_text('{"input": "1+1="}\n')
    change_template(checkpoint, "")
    (problem,) = unusable_data(config_of(checkpoint, "--apply-chat-template", "--prompt-data", f"{tmp_path}/p.jsonl"))
    assert problem == ("--prompt-data", f"{tmp_path}/p.jsonl:1: the chat template makes no token of the prompt")


def test_a_checkpoint_without_a_tokenizer_is_not_asked_for_its_template(tmp_path):
    assert unusable_data(config_of(tmp_path, "--apply-chat-template")) == []


def test_every_set_of_prompts_is_looked_into(checkpoint, tmp_path):
    for name in ("train", "eval"):
        (tmp_path / f"{name}.jsonl").write_text("[]\n")
    problems = unusable_data(
        config_of(
            checkpoint,
            *("--prompt-data", str(tmp_path / "train.jsonl"), "--eval-interval", "1"),
            *("--eval-prompt-data", "held-out", str(tmp_path / "eval.jsonl")),
        )
    )
    assert [where for where, _ in problems] == ["--prompt-data", "eval set held-out"]


def test_a_limit_that_leaves_every_prompt_out_is_said(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(inspect, "PIECE", 2)
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"input": "1+1="}\n{"input": "12+1="}\n{"input": "1+2="}\n{"input": "1+="}\n')
    options = ["--prompt-data", str(prompts), "--eval-interval", "1", "--eval-prompt-data", "col", str(prompts)]

    def said(limit: int, *more: str) -> list[tuple[str, str]]:
        return unusable_data(config_of(checkpoint, *options, "--rollout-max-prompt-len", str(limit), *more))

    assert said(2) == [
        ("--prompt-data", "all 4 prompts are longer than --rollout-max-prompt-len 2; the shortest has 3 tokens"),
        ("eval set col", "all 4 prompts are longer than max_prompt_len 2; the shortest has 3 tokens"),
    ]
    assert said(3) == [] and len(said(3, "--apply-chat-template")) == 2
    assert len(said(2, "--eval-max-prompt-len", "3")) == 1


def test_a_row_that_asks_for_a_grader_that_there_is_not_is_said(checkpoint, tmp_path):
    prompts = tmp_path / "p.jsonl"
    rows = ({"input": "1", "label": "2", "metadata": {"rm_type": name}} for name in ("math", "mth"))
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    eval_config = tmp_path / "eval.yaml"
    eval_config.write_text(f"datasets: [{{name: col, path: {prompts}, rm_type: mth}}]")
    options = ["--prompt-data", str(prompts), "--eval-interval", "1", "--eval-config", str(eval_config)]
    by_row, by_set = unusable_data(config_of(checkpoint, *options, "--rm-type", "math", "--label-key", "label"))
    assert by_row == ("--prompt-data", f"{prompts}:2: its metadata asks for the rm_type 'mth'; did you mean 'math'?")
    assert "datasets[0]: rm_type: Input should be 'exact_match', 'math'" in by_set[1]
    assert len(unusable_data(config_of(checkpoint, *options, "--custom-rm-path", "my.reward"))) == 1, (
        "it may mean its own"
    )


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("generation_config.json", "{", "not valid JSON"),
        ("tokenizer_config.json", '{"chat_template": 3}', "its chat_template is neither a text"),
    ],
)
@pytest.mark.parametrize("needs", [["--apply-chat-template"], ["--loss-type", "sft_loss"], []])
def test_files_beside_the_tokenizer_that_are_broken_are_said_by_name(checkpoint, file, content, said, needs):
    (checkpoint / file).write_text(content)
    ((option, what),) = unusable_data(config_of(checkpoint, *needs))
    assert option == "--hf-checkpoint" and f"{checkpoint / file}: {said}" in what


def test_a_tokenizer_that_is_cut_off_is_said(checkpoint):
    file = checkpoint / "tokenizer.json"
    file.write_bytes(file.read_bytes()[:300])
    ((option, what),) = unusable_data(config_of(checkpoint, "--apply-chat-template"))
    assert option == "--hf-checkpoint" and "tokenizer.json: not a tokenizer" in what
