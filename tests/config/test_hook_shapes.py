"""What is surely wrong with a user's function, found without running it; what only might be is left to the run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from slime.config import load, missing_hooks
from slime.config.hook_shapes import CALLS, wrong_shape
from tests.documented import documented_hooks


def said(source: str, option: str, name: str = "f") -> str | None:
    wrong = wrong_shape(ast.parse(source), name, option)
    return wrong and wrong[0]


@pytest.mark.parametrize(
    ("source", "option"),
    [
        ("async def f(args, sample): ...", "custom_rm_path"),
        ("def f(args, sample, **kwargs): ...", "custom_rm_path"),
        ("def f(*given): ...", "custom_rm_path"),
        ("def f(a, /, b, c=1, *, d=2): ...", "custom_rm_path"),
        ("f = lambda args, sample: 1.0", "custom_rm_path"),
        ("def f(args, sample, sampling_params): ...", "custom_generate_function_path"),
        ("def f(args, sample, sampling_params, evaluation): ...", "custom_generate_function_path"),
        ("def f(args, sample, sampling_params, *, evaluation): ...", "custom_generate_function_path"),
        ("def f(args, sample, *, rollout_id, evaluation): ...", "rollout_sample_hook_path"),
        ("def f(args, sample, evaluation, rollout_id): ...", "rollout_sample_hook_path"),
        ("def f(args, rollout_id, data_source): ...", "rollout_function_path"),
        ("def f(args): ...", "data_source_path"),
        ("class f:\n  def get_samples(self, n): ...\n  add_samples = save = load = __len__ = None", "data_source_path"),
        ("class f:\n  def __getattr__(self, name): ...", "data_source_path"),
        ("class f(Other): ...", "data_source_path"),
        ("class f(list, metaclass=M): ...", "data_source_path"),
        ("@other\nclass f: ...", "data_source_path"),
        ("class f:\n  def __init__(self, args):\n    self.get_samples = self.add_samples = args.x\n"
         "    self.save = self.load = None\n  def __len__(self): ...", "data_source_path"),
        # Running the module may make something else of it.
        ("@other\ndef f(): ...", "custom_rm_path"),
        ("def f(): ...\nf = other(f)", "custom_rm_path"),
        ("if True:\n  def f(): ...", "custom_rm_path"),
        ("f = None\ndef begin():\n  global f\n  f = print", "custom_rm_path"),
        ("f, g = print, 1", "custom_rm_path"),
        ("def f(args, sample, label): ...\nf.__defaults__ = (None,)", "custom_rm_path"),
        ("class f: ...\nf.save = f.load = f.get_samples = f.add_samples = f.__len__ = print", "data_source_path"),
        ("class f:\n  def __new__(cls, args): ...", "data_source_path"),
        ("f = make(5)", "custom_rm_path"),
        ("class f: ...", "custom_rm_path"),
        ("def f(): ...", "custom_model_provider_path"),
    ],
)  # fmt: skip
def test_what_may_be_right_is_left_to_the_run(source: str, option: str) -> None:
    assert said(source, option) is None


@pytest.mark.parametrize(
    ("source", "option", "message"),
    [
        ("f = 5", "custom_rm_path", "it is of type int, which nobody can call"),
        ("f = ['a']", "custom_rm_path", "it is of type list, which nobody can call"),
        ("async def f(args): ...", "custom_rm_path", "it is f(args), and is called as f(args, sample)"),
        ("def f(args, sample, label): ...", "custom_rm_path", "it is f(args, sample, label), and is called as"),
        ("def f(args, sample, *, label): ...", "custom_rm_path", "it is f(args, sample, *, label), and is called as"),
        ("f = lambda args: 1.0", "custom_rm_path", "it is f(args), and is called as f(args, sample)"),
        ("def f(args, sample): ...", "custom_generate_function_path", "called as f(args, sample, sampling_params, *,"),
        (
            "def f(args, sample): ...",
            "rollout_sample_hook_path",
            "f(args, sample, *, rollout_id, evaluation)",
        ),
        ("def f(args, rollout_id, data_source): ...", "eval_function_path", "data_source, *, evaluation)"),
        ("def f(): ...", "data_source_path", "it is f(), and is called as f(args)"),
        ("class f:\n  def save(self, id): ...", "data_source_path", "f has no get_samples, add_samples, load, __len__"),
        (
            "class b:\n  def get_samples(self, n): ...\nclass f(b): ...",
            "data_source_path",
            "f has no add_samples, s",
        ),
    ],
)
def test_what_is_surely_wrong(source: str, option: str, message: str) -> None:
    assert message in (said(source, option) or "nothing")


def test_the_documented_functions_are_right() -> None:
    text = documented_hooks()
    for option, name in {
        "custom_generate_function_path": "say_the_label", "rollout_sample_hook_path": "remember",
        "eval_function_path": "generate_rollout", "dynamic_sampling_filter_path": "not_all_right",
        "buffer_filter_path": "newest_first", "rollout_sample_filter_path": "without_long_ones",
        "rollout_all_samples_process_path": "count", "data_source_path": "Countdown",
        "custom_rm_path": "short_is_good", "custom_reward_post_process_path": "as_they_are",
        "custom_convert_samples_to_train_data_path": "convert", "custom_rollout_log_function_path": "log_rollout",
        "custom_eval_rollout_log_function_path": "log_eval", "custom_loss_function_path": "reinforce",
        "custom_advantage_function_path": "only_what_is_better", "custom_tis_function_path": "near_ones_only",
        "custom_pg_loss_reducer_function_path": "by_a_constant",
        "rollout_data_postprocess_path": "without_the_first_token", "custom_megatron_init_path": "limit_threads",
        "custom_megatron_before_log_prob_hook_path": "say_whose",
        "custom_megatron_before_train_step_hook_path": "halve_the_first_step",
        "custom_update_weight_post_write_path": "say_where",
    }.items():  # fmt: skip
        assert f" {name}" in text and said(text, option, name) is None, name


def test_every_option_for_a_function_has_its_call() -> None:
    assert set(missing_hooks.HOOKS) - set(CALLS) == {"custom_model_provider_path"}  # given what its parameters ask for


def test_it_is_said_of_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("five = 5\ndef roll(args, rollout_id, data_source): ...\n")
    monkeypatch.chdir(tmp_path)
    words = ["--hf-checkpoint", "model", "--rollout-batch-size", "4", "--rollout-function-path", "mine.roll"]

    def problems(*more: str) -> list[str]:
        return [str(problem).splitlines()[0] for problem in missing_hooks.look(load([*words, *more]), set())]

    assert problems("--custom-rm-path", "mine.five") == [
        "--custom-rm-path: mine.five: it is of type int, which nobody can call"
    ]
    (text,) = problems("--eval-interval", "1", "--eval-prompt-data", "a", "a.jsonl")
    assert text.startswith(
        "--rollout-function-path: mine.roll: it is roll(args, rollout_id, data_source), and is called"
    )
