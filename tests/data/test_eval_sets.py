"""Evaluation sets, from pairs on the command line and from YAML."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from slime.data.errors import DataError
from slime.data.eval_sets import EvalPrompts, EvalSet, eval_sets, read_eval_config
from slime.data.template import ChatTemplate
from slime.data.tokenizer import Tokenizer
from slime.tiny import write_checkpoint


def config(*pairs, **options):
    defaults = {
        "eval_prompt_data": pairs,
        "eval_config": None,
        "n_samples_per_eval_prompt": 2,
        "eval_temperature": 0.5,
        "eval_top_p": 1.0,
        "eval_top_k": -1,
        "eval_max_prompt_len": None,
        "eval_max_response_len": 22,
        "eval_max_context_len": None,
        "eval_min_new_tokens": None,
        "eval_input_key": "prompt",
        "eval_label_key": "label",
        "eval_tool_key": "tools",
        "metadata_key": "metadata",
        "eval_reward_key": None,
    }
    return SimpleNamespace(**defaults | options)


def yaml_config(tmp_path, text, *pairs):
    (tmp_path / "eval.yaml").write_text(text)
    return config(*pairs, eval_config=str(tmp_path / "eval.yaml"))


def test_pairs_have_the_options_of_eval():
    a, b = eval_sets(config("a", "a.jsonl", "b", "b.parquet@[:9]"))
    assert (a.name, a.path, b.name, b.path) == ("a", "a.jsonl", "b", "b.parquet@[:9]")
    assert a.temperature == 0.5 and a.max_response_len == 22 and a.label_key == "label" and a.rm_type is None
    assert a.n_samples_per_eval_prompt == 2


@pytest.mark.parametrize("indent", [False, True], ids=["at the top", "below eval"])
def test_yaml_has_defaults_and_options_of_each_set(tmp_path, indent):
    """Case 20: two sets with n = 1 and n = 16."""
    text = """
defaults: {temperature: 1, rm_type: random}
datasets:
  - {name: a, path: a.jsonl, n_samples_per_eval_prompt: 1}
  - {name: b, path: b.jsonl, n_samples_per_eval_prompt: 16, temperature: 0, rm_type: exact_match, reward_key: x}
"""
    if indent:
        text = "eval:" + text.replace("\n", "\n  ")
    c, a, b = eval_sets(yaml_config(tmp_path, text, "c", "c.jsonl"))
    assert (a.n_samples_per_eval_prompt, a.temperature, a.rm_type, a.reward_key) == (1, 1.0, "random", None)
    assert (b.n_samples_per_eval_prompt, b.temperature, b.rm_type, b.reward_key) == (16, 0.0, "exact_match", "x")
    assert c.name == "c" and c.temperature == 0.5 and a.max_response_len == b.max_response_len == 22


def test_all_that_is_wrong_in_yaml_is_said_at_once(tmp_path):
    text = """
defaults: {temprature: 1}
datasets:
  - {name: a, path: a.jsonl, top_p: 2, n_samples_per_eval_prompt: many}
  - {name: b, pth: b.jsonl}
  - c
more: 1
"""
    with pytest.raises(DataError) as error:
        eval_sets(yaml_config(tmp_path, text))
    for part in (
        "eval.yaml: there is no 'more'",
        "defaults: there is no 'temprature', did you mean 'temperature'?",
        "datasets[0]: top_p: Input should be less than or equal to 1 (got 2)",
        "datasets[0]: n_samples_per_eval_prompt: Input should be a valid integer",
        "datasets[1]: there is no 'pth', did you mean 'path'?",
        "datasets[1]: path: Field required",
        "datasets[2]: must be a mapping, not 'c'",
    ):
        assert part in str(error.value)


@pytest.mark.parametrize("text", ["", "[1]", "datasets: []", "datasets: 3", "eval: {defaults: {}}"])
def test_yaml_without_sets(tmp_path, text):
    with pytest.raises(DataError, match="needs a list `datasets`"):
        eval_sets(yaml_config(tmp_path, text))


def test_yaml_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match=r"eval.yaml: not valid YAML"):
        eval_sets(yaml_config(tmp_path, "{"))
    with pytest.raises(DataError, match=r"missing.yaml: No such file"):
        eval_sets(config(eval_config=str(tmp_path / "missing.yaml")))


def test_yaml_that_is_no_text(tmp_path):
    (tmp_path / "e.yaml").write_bytes(b"ab\xff")
    with pytest.raises(DataError, match=r"e\.yaml: not text in UTF-8 \(byte 3\)"):
        read_eval_config(tmp_path / "e.yaml", {})


def test_names_are_told_apart():
    with pytest.raises(DataError, match="more than one a"):
        eval_sets(config("a", "a.jsonl", "a", "b.jsonl"))
    with pytest.raises(DataError, match="'b' has no partner"):
        eval_sets(config("a", "a.jsonl", "b"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.load(write_checkpoint(tmp_path_factory.mktemp("tiny")))


def one_set(tmp_path, **options) -> EvalSet:
    rows = [{"prompt": "1" * n, "label": n, "metadata": {"n": n}} for n in (1, 2, 30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (eval_set,) = eval_sets(config("a", str(tmp_path / "a.jsonl"), **options))
    return eval_set


def test_prompts_are_new_samples_for_each_evaluation(tmp_path, tokenizer):
    prompts = EvalPrompts(one_set(tmp_path), tokenizer, ChatTemplate(tokenizer))
    first, second = prompts.groups(), prompts.groups()
    assert first == second and len(prompts) == 3
    assert [[sample.index for sample in group] for group in first] == [[0, 1], [2, 3], [4, 5]]
    assert [group[0].label for group in first] == [1, 2, 30] and first[0][0].tokens[-3:] == [1, 4, 8]
    first[0][0].metadata["x"] = first[0][0].tokens.append(9)
    assert prompts.groups() == second


def test_a_reward_type_of_the_set_is_in_the_metadata(tmp_path, tokenizer):
    prompts = EvalPrompts(replace(one_set(tmp_path), rm_type="random"), tokenizer, None)
    assert prompts.groups()[0][0].metadata == {"n": 1, "rm_type": "random"}


def test_too_long_prompts_are_left_out_and_counted(tmp_path, tokenizer):
    prompts = EvalPrompts(one_set(tmp_path, eval_max_prompt_len=2), tokenizer, None)
    assert len(prompts) == 2 and prompts.num_too_long == 1
    with pytest.raises(DataError, match="eval set a: all 3 prompts are longer than max_prompt_len 0"):
        EvalPrompts(one_set(tmp_path, eval_max_prompt_len=0), tokenizer, None)
