"""Config: immutable, picklable, the same after being saved and read, and silent about secrets."""

from __future__ import annotations

import json
import pickle

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from slime.config import Config, load
from slime.config.catalogue import OWN, SECTION_OF
from slime.config.known_names import NOT_BUILT

BASE = ["--hf-checkpoint", "model", "--rollout-batch-size", "4"]


@pytest.fixture
def config() -> Config:
    return load(
        [*BASE, "--sglang-dtype", "half", "--recompute-granularity", "selective", "--train-env-vars", '{"A": "1"}']
    )


def test_an_option_is_read_with_and_without_its_section(config):
    assert config.rollout_batch_size == config.batches.rollout_batch_size == 4


def test_an_option_of_a_library_is_read_by_the_name_it_was_set_by(config):
    assert config.sglang == {"dtype": "half"} and config.sglang_dtype == "half"
    assert config.megatron == {"recompute_granularity": "selective"} and config.recompute_granularity == "selective"


def test_what_is_no_option_is_an_attribute_error_with_the_nearest_name(config):
    with pytest.raises(AttributeError, match="did you mean --rollout-batch-size"):
        _ = config.rollout_batch_sise
    assert not hasattr(config, "dump_detail") and not hasattr(config, "__len__")


def test_nothing_can_be_changed(config):
    with pytest.raises(Exception, match="frozen"):
        config.batches.rollout_batch_size = 5
    with pytest.raises(Exception, match="frozen"):
        config.batches = None
    for options in (config.sglang, config.train_env_vars):
        with pytest.raises(TypeError, match="immutable"):
            options["x"] = 1


def test_replace_makes_another_configuration(config):
    other = config.replace(run_dir="runs/x", lr="2e-6")
    assert (other.run_dir, other.lr, config.run_dir) == ("runs/x", 2e-6, None)
    with pytest.raises(ValueError, match="not a number"):
        config.replace(lr="fast")


def test_it_survives_pickling(config):
    assert pickle.loads(pickle.dumps(config)) == config


def test_no_option_of_this_or_a_later_version_has_the_name_of_something_else_that_config_has():
    names = [*OWN, *(name.replace("-", "_") for name in NOT_BUILT)]
    taken = [name for name in names if name in {*dir(Config), *Config.model_fields, *SECTION_OF.values()}]
    assert taken == [], "`config.<option>` would not be the option: rename the section or the method"


def test_secrets_are_neither_printed_nor_saved(tmp_path):
    config = load(
        [
            *BASE,
            "--wandb-key",
            "hush",
            "--sglang-ssl-keyfile-password",
            "hush",
            "--router-redis-url",
            "hush",
            "--train-env-vars",
            '{"HF_TOKEN": "hush", "B": "2"}',
            "--sglang-max-total-tokens",
            "9",
        ]
    )
    config.write_yaml(tmp_path / "c.yaml")
    assert (config.wandb_key, config.sglang["ssl_keyfile_password"], config.train_env_vars["HF_TOKEN"]) == (
        "hush",
        "hush",
        "hush",
    )
    for text in (repr(config), str(config), (tmp_path / "c.yaml").read_text()):
        assert "hush" not in text
    saved = load(["--config", str(tmp_path / "c.yaml")])
    assert saved.train_env_vars == {"B": "2"} and saved.sglang == {"max_total_tokens": 9}


def test_saving_replaces_the_file_whole(tmp_path, config):
    (tmp_path / "c.yaml").write_text("old")
    config.write_yaml(tmp_path / "c.yaml")
    assert yaml.safe_load((tmp_path / "c.yaml").read_text())["batches"]["rollout_batch_size"] == 4
    assert [file.name for file in tmp_path.iterdir()] == ["c.yaml"]


# What a user may write, option by option: values that break no rule, whatever the others are.
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(
    lambda text: not text.startswith("--")
)
NUMBER = st.floats(1e-9, 1e3).map(repr)
WRITTEN = {
    "--run-name": TEXT.filter(lambda text: "/" not in text and text not in (".", "..")),
    "--input-key": TEXT,
    "--custom-rm-path": st.sampled_from(["a.b", "my_package.rewards.grade"]),
    "--rollout-stop": st.lists(TEXT, max_size=3),
    "--prompt-data": st.lists(TEXT, max_size=3),
    "--rollout-stop-token-ids": st.lists(st.integers(0, 9).map(str), max_size=3),
    "--lr": NUMBER,
    "--rollout-temperature": NUMBER,
    "--rollout-top-k": st.integers(-1, 100).filter(bool).map(str),
    "--entropy-coef": st.floats(-1, 1).map(repr),
    "--seed": st.integers(0, 2**31).map(str),
    "--n-samples-per-prompt": st.integers(1, 9).map(str),
    "--num-steps-per-rollout": st.sampled_from(["1", "2", "4"]),
    "--eps-clip-high": NUMBER,
    "--update-weight-buffer-size": st.sampled_from(["1MiB", "7", "2GB"]),
    "--moe-layer-freq": st.sampled_from(["1", "[0]*2+[1]*3"]),
    "--train-env-vars": st.dictionaries(st.sampled_from("AB"), TEXT).map(json.dumps),
    "--device": st.sampled_from(["auto", "cpu", "cuda"]),
    "--colocate": st.just([]),
    "--no-bf16": st.just([]),
    "--sequence-parallel": st.just([]),
    "--no-offload-rollout": st.just([]),
    "--loss-type": st.sampled_from(["policy_loss", "sft_loss"]),
    "--sglang-cuda-graph-bs-decode": st.lists(st.integers(1, 9).map(str), min_size=1, max_size=3),
    "--sglang-mem-fraction-static": st.floats(0.1, 0.9).map(repr),
    "--sglang-json-model-override-args": st.just('{"a": 1}'),
    "--sglang-forward-hooks": st.just('[{"name": "x"}]'),
    "--router-policy": st.sampled_from(["random", "round_robin"]),
    "--recompute-granularity": st.just("selective"),
    "--moe-aux-loss-coeff": NUMBER,
    "--attention-backend": st.sampled_from(["auto", "local"]),
    "--initial-loss-scale": st.sampled_from(["1", "65536"]),
    "--grad-norm-skip-threshold": st.sampled_from(["1", "inf"]),
}


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    words = list(BASE)
    for option in draw(st.sets(st.sampled_from(sorted(WRITTEN)))):
        value = draw(WRITTEN[option])
        words += [option, *value] if isinstance(value, list) else [f"{option}={value}"]
    return words


@settings(max_examples=50, deadline=None)
@given(command_lines())
def test_a_saved_configuration_reads_as_itself(tmp_path_factory, words):
    config = load(words)
    file = tmp_path_factory.mktemp("saved") / "config.yaml"
    config.write_yaml(file)
    assert load(["--config", str(file)]) == config


def test_every_default_reads_as_itself(tmp_path):
    config = load(BASE)
    config.write_yaml(tmp_path / "c.yaml")
    again = load(["--config", str(tmp_path / "c.yaml")])
    assert again == config
    again.write_yaml(tmp_path / "d.yaml")
    assert (tmp_path / "d.yaml").read_text() == (tmp_path / "c.yaml").read_text()


def test_when_held_out_prompts_and_new_weights_are_due():
    config = load([*BASE, "--num-rollout", "7", "--eval-interval", "2", "--eval-prompt-data", "a", "a.jsonl"])
    assert [done for done in range(8) if config.evaluates_at(done)] == [0, 2, 4, 6, 7]
    assert not config.replace(skip_eval_before_train=True).evaluates_at(0)
    assert not config.replace(debug_train_only=True).evaluates_at(2)
    assert all(map(config.updates_weights_after, range(7)))
    seldom = config.replace(update_weights_interval=3)
    assert [rollout_id for rollout_id in range(7) if seldom.updates_weights_after(rollout_id)] == [2, 5, 6]


@pytest.mark.parametrize(
    ("options", "beside"),
    [
        ("", False),
        ("--async-depth 1", True),
        ("--async-depth 1 --over-sampling-batch-size 33", False),
        ("--async-depth 1 --dynamic-sampling-filter-path a.b", False),
        ("--async-depth 1 --rollout-function-path a.b", False),
        ("--max-weight-staleness 2 --over-sampling-batch-size 33", True),
    ],
)
def test_training_goes_on_beside_an_evaluation_where_nothing_is_aborted(options, beside):
    assert load([*BASE, *options.split()]).evaluates_beside_training is beside
