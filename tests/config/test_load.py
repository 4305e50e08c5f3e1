"""From words and files to values: grammar, types, precedence, defaults that depend on others."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.config import Config, ConfigError, load
from slime.config.known_names import NOT_BUILT

BASE = ["--hf-checkpoint", "model", "--rollout-batch-size", "4"]


def problems(*argv: str) -> list[str]:
    """What `load` says of BASE and `argv`, one text a problem."""
    with pytest.raises(ConfigError) as caught:
        load([*BASE, *argv])
    return [str(problem) for problem in caught.value.problems]


def loaded(*argv: str) -> Config:
    return load([*BASE, *argv])


# -- grammar


def test_an_option_takes_the_next_word_or_what_follows_the_equals_sign():
    config = loaded("--lr", "1e-5", "--seed=7")
    assert (config.lr, config.seed) == (1e-5, 7)


@pytest.mark.parametrize("word", ["-1", "-1e-2"])
def test_a_negative_number_is_a_value(word):
    assert loaded("--entropy-coef", word).entropy_coef == float(word)


def test_a_switch_is_set_by_its_name_and_unset_by_no():
    config = loaded("--colocate", "--no-bf16", "--no-offload-rollout")
    assert (config.colocate, config.bf16, config.offload_rollout) == (True, False, False)


def test_a_list_takes_all_words_up_to_the_next_option():
    config = loaded("--prompt-data", "a.jsonl", "b.jsonl@[:5]", "--rollout-stop-token-ids", "1", "2", "--seed", "3")
    assert config.prompt_data == ("a.jsonl", "b.jsonl@[:5]")
    assert config.rollout_stop_token_ids == (1, 2)


def test_a_dict_is_json():
    assert loaded("--train-env-vars", '{"A": "1"}').train_env_vars == {"A": "1"}


def test_the_last_of_several_wins():
    assert loaded("--seed", "1", "--seed", "2").seed == 2


def test_names_are_not_abbreviated():
    assert "--rollout-temp: unknown option" in problems("--rollout-temp", "1")[0]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--lr"], "--lr: needs a value"),
        (["--lr", "--seed", "1"], "--lr: needs a value"),
        (["--lr", "1", "2"], "--lr: takes one value, but 2 words follow"),
        (["stray"], "--rollout-batch-size: takes one value, but 2 words follow"),
        (["--seed=1", "stray"], "stray: is no option and belongs to none"),
        (["--colocate", "maybe"], "--colocate: 'maybe' is not true or false"),
        (["--no-colocate", "x"], "--no-colocate: takes no value"),
        (["--config"], "--config: needs a file"),
    ],
)
def test_what_cannot_be_split_is_said(argv, message):
    assert any(message in text for text in problems(*argv))


def test_a_word_too_many_is_one_problem():
    assert len(problems("stray")) == 1


def test_a_file_without_its_option_is_answered_with_it():
    with pytest.raises(ConfigError) as caught:
        load(["configs/tiny-grpo.yaml"])
    (problem,) = caught.value.problems
    assert problem.fix == "--config configs/tiny-grpo.yaml"


# -- types


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--lr", "fast"], "--lr: 'fast' is not a number"),
        (["--seed", "1.5"], "--seed: '1.5' is not a whole number"),
        (["--seed", "-1"], "--seed: '-1' is out of range: must be >= 0"),
        (["--rollout-temperature", "0"], "--rollout-temperature: '0' is out of range: must be > 0"),
        (["--rm-timeout", "0"], "--rm-timeout: '0' is out of range: must be > 0"),
        (["--sglang-router-request-timeout-secs", "0"], "-timeout-secs: '0' is out of range: must be > 0"),
        (["--seed", "99999999999999999999"], "--seed: '99999999999999999999' is out of range: must be <= 4294967295"),
        (["--rollout-seed", "4294967296"], "--rollout-seed: '4294967296' is out of range: must be <= 4294967295"),
        (["--rollout-top-k", "0"], "--rollout-top-k: '0' is neither a number of tokens, nor -1 for all of them"),
        (["--eval-top-k", "0"], "--eval-top-k: '0' is neither a number of tokens"),
        (["--eval-top-k", "-2"], "--eval-top-k: '-2' is out of range: must be >= -1"),
        (["--rollout-top-p", "1.5"], "--rollout-top-p: '1.5' is out of range: must be <= 1"),
        (["--lr", "nan"], "--lr: 'nan' is not a finite number"),
        (["--lr", "inf"], "--lr: 'inf' is not a finite number"),
        (["--device", "tpu"], "--device: 'tpu' is none of auto, cpu, cuda"),
        (["--rollout-stop-token-ids", "1", "x"], "--rollout-stop-token-ids: 'x' is not a whole number"),
        (["--run-name", "../../x"], "--run-name: '../../x' is not the name of one directory; --run-dir is for a path"),
        (["--run-name", "a/b"], "--run-name: 'a/b' is not the name of one directory"),
        (["--run-name", "."], "--run-name: '.' is not the name of one directory"),
        (["--run-name", ".."], "--run-name: '..' is not the name of one directory"),
        (["--run-name="], "--run-name: is empty"),
        (["--custom-rm-path", "reward"], "--custom-rm-path: 'reward' is not of the form module.attribute"),
        (["--custom-rm-path", "a-b.c"], "not of the form module.attribute"),
        (["--train-env-vars", "{A: 1"], "--train-env-vars: is not JSON"),
        (["--train-env-vars", "[1]"], "--train-env-vars: is not a JSON object"),
        (["--update-weight-buffer-size", "many"], "--update-weight-buffer-size: 'many' is not a whole number"),
    ],
)
def test_a_wrong_value_is_said_with_option_value_and_what_is_expected(argv, message):
    (text,) = problems(*argv)
    assert message in text


@pytest.mark.parametrize(("size", "number"), [("512MiB", 2**29), ("2 GB", 2 * 10**9), ("1.5K", 1500), ("77", 77)])
def test_sizes_have_units(size, number):
    assert loaded("--update-weight-buffer-size", size).update_weight_buffer_size == number


# -- unknown names


def test_a_name_that_is_known_but_not_built_is_answered_with_a_reason_and_what_to_do_instead():
    (text,) = problems("--offload-train")
    assert text.startswith("--offload-train: would move weights, gradients and optimizer state off the devices")
    assert "leave it out, and let the engines make room: --offload-rollout" in text


@pytest.mark.parametrize("argv", [["--no-offload-train"], ["--offload-train", "false"], ["--no-release-train"]])
def test_what_is_not_built_may_be_switched_off(argv, caplog):
    loaded(*argv)
    assert [record.message for record in caplog.records] == [f"{argv[0]} asks for what is the case anyway."]


def test_switching_it_off_by_a_double_negation_asks_for_it():
    assert "--no-offload-train: unknown option" in problems("--no-offload-train", "false")[0]


def test_a_choice_that_is_not_built_is_told_from_a_wrong_one():
    (text,) = problems("--update-weight-mode", "delta")
    assert text.startswith("--update-weight-mode: delta is about sending only the weights that an update has changed")
    assert "is none of" in problems("--update-weight-mode", "fast")[0]


def test_what_must_be_given_is_asked_for():
    with pytest.raises(ConfigError) as caught:
        load([])
    assert [problem.where for problem in caught.value.problems] == ["--hf-checkpoint", "--rollout-batch-size"]


def test_all_problems_come_at_once(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("seed: x\nsede: 1\n")
    texts = problems(
        "--config", str(file), "--lr", "fast", "--bogus", "1", "--save-interval", "2", f"--{min(NOT_BUILT)}", "1"
    )
    assert len(texts) == 6


def test_an_older_name_is_taken_and_said_once(caplog):
    config = loaded("--accumulate-allreduce-grads-in-fp32", "--use-mcore-models", "--use-mcore-models")
    assert config.megatron == {"grad_reduce_in_fp32": True}
    assert [record.message for record in caplog.records] == [
        "--accumulate-allreduce-grads-in-fp32 is now --grad-reduce-in-fp32; taken as such.",
        "--use-mcore-models has no effect: models are always Megatron-core's.",
    ]


# -- files


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_yaml_may_be_flat_or_nested_with_dashes_or_underscores(tmp_path):
    file = write(
        tmp_path / "a.yaml",
        "n-samples-per-prompt: 2\ntraining:\n  lr: 1e-5\n  adam_beta2: 0.95\nsglang:\n  dtype: half\n",
    )
    config = loaded("--config", file)
    assert (config.n_samples_per_prompt, config.lr, config.adam_beta2, config.sglang) == (
        2,
        1e-5,
        0.95,
        {"dtype": "half"},
    )


def test_later_files_win_and_the_command_line_wins_over_files(tmp_path):
    a = write(tmp_path / "a.yaml", "seed: 1\nlr: 1\nmin_lr: 0.1\n")
    b = write(tmp_path / "b.yaml", "training:\n  lr: 2\n  min_lr: 0.2\n")
    for argv in (["--config", a, b], ["--config", a, "--config", b]):
        config = loaded(*argv, "--min-lr", "0.3")
        assert (config.seed, config.lr, config.min_lr) == (1, 2, 0.3)
    b = write(tmp_path / "b.yaml", "save_hf: null\n")
    assert loaded("--config", write(tmp_path / "a.yaml", "save_hf: out\n"), b).save_hf is None


@pytest.mark.parametrize(
    ("in_file", "words", "length"),
    [
        ("num_rollout: 40", "--num-epoch 2", (None, 2)),
        ("num_epoch: 2", "--num-rollout 5", (5, None)),
        ("num_rollout: 40\nnum_epoch: null", "--num-epoch 2", (None, 2)),
        ("num_epoch: 2", "--lr 1", (None, 2)),
    ],
)
def test_of_the_two_that_say_how_long_a_run_is_the_later_one_wins(tmp_path, caplog, in_file, words, length):
    config = loaded("--config", write(tmp_path / "a.yaml", in_file), *words.split())
    assert (config.num_rollout, config.num_epoch) == length and not caplog.records


def test_of_two_lengths_in_one_place_the_rollouts_decide_and_it_is_said(caplog):
    assert loaded("--num-epoch", "2", "--num-rollout", "5").num_rollout == 5
    assert [record.message for record in caplog.records] == ["--num-rollout 5 decides; --num-epoch 2 is not used."]


def test_yaml_values_and_words_mean_the_same(tmp_path):
    file = write(
        tmp_path / "a.yaml",
        "lr: 1.0e-5\ncolocate: true\nprompt_data: a.jsonl\ntrain_env_vars: {A: '1'}\nupdate_weight_buffer_size: 1MiB\n"
        "offload_rollout: false\nrun_name: 7\n",
    )
    words = ["--lr", "1e-5", "--colocate", "--prompt-data", "a.jsonl", "--train-env-vars", '{"A": "1"}']
    words += ["--update-weight-buffer-size", "1MiB", "--no-offload-rollout", "--run-name", "7"]
    assert loaded("--config", file) == loaded(*words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nlr: fast\n", "a.yaml:2: lr: 'fast' is not a number"),
        ("training:\n  lr: 1\n  sead: 2\n", "a.yaml:3: sead: unknown option"),
        ("training:\n  rollout_seed: 1\n", "a.yaml:2: rollout_seed: is an option of data, not of training"),
        ("seed: 1\nlr: 1\nseed: 2\n", "a.yaml:3: seed: is also in line 1"),
        ("training: 3\n", "a.yaml:1: training: is a section"),
        ("lr: true\n", "a.yaml:1: lr: needs a value"),
        ("lr:\n", "a.yaml:1: lr: None is not a number"),
        ("no-colocate: true\n", "a.yaml:1: no-colocate: is a negation"),
        ("a: [1\n", "is not YAML"),
        ("- 1\n", "a.yaml:1: is not a map"),
        ("", "is empty"),
        ("lr: !!python/object:os.system x\n", "a.yaml:1: lr: its value is not readable"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_line(tmp_path, text, message):
    file = write(tmp_path / "a.yaml", text)
    assert any(message in problem for problem in problems("--config", file))


def test_a_file_that_is_missing_or_no_text_is_said(tmp_path):
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    texts = problems("--config", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml"))
    assert "No such file" in texts[0] and "not a text file" in texts[1]


@pytest.mark.parametrize("text", [None, "", "a: [1\n", "- 1\n", "\0"])
def test_of_a_file_that_cannot_be_used_no_consequence_is_told(tmp_path, text):
    file = tmp_path / "a.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(["--config", str(file), "--lr", "fast"])
    places = [problem.where for problem in caught.value.problems]
    assert len(places) == 2 and "a.yaml" in places[0] and places[1] == "--lr"


# -- defaults that depend on other options


def test_batches_follow_from_one_another():
    assert loaded("--n-samples-per-prompt", "8", "--num-steps-per-rollout", "4").global_batch_size == 8
    assert loaded("--n-samples-per-prompt", "8", "--global-batch-size", "16").num_steps_per_rollout == 2
    config = loaded("--n-samples-per-prompt", "8")
    assert (config.global_batch_size, config.num_steps_per_rollout) == (32, 1)


def test_colocated_engines_take_the_training_devices_and_release_their_memory():
    config = loaded("--colocate", "--actor-num-nodes", "2", "--actor-num-gpus-per-node", "4")
    assert (config.rollout_num_gpus, config.offload_rollout) == (8, True)


def test_supervised_fine_tuning_needs_no_engines():
    config = loaded("--loss-type", "sft_loss")
    assert (config.rollout_num_gpus, config.rollout_function_path) == (0, "slime.rollout.sft.generate_rollout")


def test_eval_samples_as_the_rollout_does_unless_told_otherwise():
    config = loaded("--rollout-temperature", "0.7", "--label-key", "answer", "--eval-top-k", "5")
    assert (config.eval_temperature, config.eval_label_key, config.eval_top_k) == (0.7, "answer", 5)


def test_a_prompt_leaves_room_for_a_token_of_a_response():
    assert loaded("--rollout-max-context-len", "64").rollout_max_prompt_len == 63
    assert loaded("--rollout-max-context-len", "64", "--rollout-max-prompt-len", "9").eval_max_prompt_len == 9
    assert loaded("--rollout-max-context-len", "64", "--loss-type", "sft_loss").rollout_max_prompt_len is None


def test_a_new_name_for_a_saved_run_means_a_new_directory(tmp_path):
    file = write(tmp_path / "a.yaml", "run_name: a\nrun_dir: runs/a\n")
    assert loaded("--config", file, "--run-name", "b").run_dir == "runs/b"
    assert loaded("--config", file).run_dir == "runs/a"


# -- further files


def test_policy_and_critic_may_have_options_of_their_own(tmp_path):
    text = "actor:\n  recompute_granularity: selective\ncritic:\n  weight-decay: 0.5\n  lr: 1e-4\n"
    file = write(tmp_path / "roles.yaml", text)
    config = loaded("--megatron-config-path", file, "--lr", "1e-5", "--weight-decay", "0.1")
    actor, critic = config.of_role("actor"), config.of_role("critic")
    assert (actor.recompute_granularity, actor.lr, actor.weight_decay) == ("selective", 1e-5, 0.1)
    assert (critic.lr, critic.weight_decay, dict(critic.megatron)) == (1e-4, 0.5, {})


def test_what_roles_can_not_have_is_told_with_its_line(tmp_path):
    file = write(tmp_path / "roles.yaml", "judge: {}\nactor:\n  lr: fast\n  num_rollout: 3\ncritic: 1\n")
    said = problems("--megatron-config-path", file)
    assert len(said) == 4
    for place, words in (
        ("roles.yaml:1: judge", "is no role"),
        ("roles.yaml:3: lr", "'fast'"),
        ("actor: num_rollout", "is the same for policy and critic"),
        ("roles.yaml:5: critic", "is a section"),
    ):
        assert any(place in one and words in one for one in said), (place, said)


def test_keys_of_a_custom_file_are_attributes(tmp_path):
    config = loaded("--custom-config-path", write(tmp_path / "mine.yaml", "my_threshold: 0.5\nmy_tools: [a, b]\n"))
    assert (config.my_threshold, config.my_tools) == (0.5, ["a", "b"])
    (said,) = problems("--custom-config-path", write(tmp_path / "wrong.yaml", "lr: 3\n"))
    assert "lr: is an option" in said


def test_details_are_dumped_into_one_directory():
    config = loaded("--dump-details", "out", "--save-debug-train-data", "mine/{rollout_id}-{rank}.npz")
    assert config.save_debug_rollout_data == "out/rollout_data/{rollout_id}.jsonl"
    assert config.save_debug_train_data == "mine/{rollout_id}-{rank}.npz"
