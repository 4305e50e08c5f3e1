"""Names that are no options: which ones are suggested instead."""

from __future__ import annotations

import pytest

from slime.config import catalogue, unknown
from slime.config.known_names import ELSEWHERE


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("rollout_temprature", ["--rollout-temperature"]),
        ("temprature", ["--rollout-temperature", "--eval-temperature"]),
        ("rollout_temp", ["--rollout-temperature"]),
        ("rolout_batch_size", ["--rollout-batch-size"]),
        ("learning_rate", ["--lr"]),
        ("reward", ["--reward-key"]),
        ("num_epochs", ["--num-epoch"]),
        ("warmup_iters", ["--lr-warmup-iters"]),
        ("no_bf61", ["--no-bf16"]),
        ("sglang_mem_fraction_statc", ["--sglang-mem-fraction-static"]),
        ("router_polcy", ["--router-policy"]),
        ("chek", ["--check"]),
        ("sglang_foo", []),
        ("bogus", []),
    ],
)
def test_the_nearest_names_are_suggested(name, suggested):
    assert unknown.nearest(name) == suggested


def test_what_is_like_several_is_answered_with_several():
    assert "--sglang-mem-fraction-static" == unknown.nearest("sglang_mem")[0]
    assert {"--rollout-num-gpus", "--num-gpus-per-node"} <= set(unknown.nearest("gpus"))


def test_without_a_near_name_it_is_said_where_to_look():
    assert unknown.explain("sglang_foo") == ("unknown option", "--help sglang lists those that there are")
    assert unknown.explain("router_foo") == ("unknown option", "--help router lists those that there are")
    assert "--help lists the options" in unknown.explain("bogus")[1]


@pytest.mark.parametrize("name", ["config", "check", "help_all"])
def test_what_only_the_command_line_has_is_told_to_go_there(name):
    assert unknown.explain(name)[1] == f"give --{name.replace('_', '-')} on the command line"


def test_an_option_with_a_value_cannot_be_negated():
    what, fix = unknown.explain("no_lr")
    assert what == "negates an option that is no switch" and fix.startswith("--lr X: Learning rate")
    assert "null" not in fix
    assert unknown.explain("no_save_hf")[1].endswith(" (unset again by save_hf: null in a later --config)")


def test_names_of_other_trainers_lead_to_options_and_are_none_themselves():
    for name, suggestions in ELSEWHERE.items():
        assert catalogue.find(name.replace("-", "_")) is None, f"{name} is an option"
        for suggestion in suggestions.split():
            assert catalogue.find(suggestion.replace("-", "_")), f"{suggestion} is no option"
