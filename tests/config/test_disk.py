"""The files that options name, and the model's figures against what scripts and parallel sizes say."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from slime.config import architecture, checkout, disk, load
from slime.tiny.checkpoint import write_checkpoint
from tests.models import published

# What scripts for this model state (MODEL_ARGS).
STATED = (
    "--num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 --group-query-attention"
    " --num-query-groups 4 --kv-channels 128 --qk-layernorm --normalization RMSNorm --norm-epsilon 1e-6 --swiglu"
    " --disable-bias-linear --use-rotary-position-embeddings --position-embedding-type rope --rotary-percent 1.0"
    " --rotary-base 1000000 --vocab-size 151936 --untie-embeddings-and-output-weights --num-experts 128"
    " --moe-layer-freq [1]*48 --moe-ffn-hidden-size 768 --moe-router-topk 8"
).split()

STATED_OF_DEEPSEEK_V3 = (
    "--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --kv-channels 128"
    " --normalization RMSNorm --norm-epsilon 1e-6 --position-embedding-type rope --swiglu --disable-bias-linear"
    " --untie-embeddings-and-output-weights --vocab-size 129280 --multi-latent-attention --q-lora-rank 1536"
    " --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --qk-layernorm"
    " --rotary-scaling-factor 40 --rotary-base 10000 --mscale 1.0 --mscale-all-dim 1.0 --num-experts 256"
    " --moe-layer-freq [0]*3+[1]*58 --moe-ffn-hidden-size 2048 --moe-router-topk 8"
    " --moe-shared-expert-intermediate-size 2048 --moe-router-score-function sigmoid --moe-router-group-topk 4"
    " --moe-router-num-groups 8 --moe-router-topk-scaling-factor 2.5 --moe-router-enable-expert-bias"
).split()
STATED_OF_GLM_4_5_AIR = (
    "--num-layers 46 --hidden-size 4096 --ffn-hidden-size 10944 --num-attention-heads 96 --group-query-attention"
    " --num-query-groups 8 --kv-channels 128 --add-qkv-bias --normalization RMSNorm --norm-epsilon 1e-5 --swiglu"
    " --disable-bias-linear --rotary-percent 0.5 --rotary-base 1000000 --vocab-size 151552"
    " --untie-embeddings-and-output-weights --num-experts 128 --moe-layer-freq [0]*1+[1]*45"
    " --moe-ffn-hidden-size 1408 --moe-router-topk 8 --moe-shared-expert-intermediate-size 1408"
    " --moe-router-score-function sigmoid --moe-router-topk-scaling-factor 1.0"
).split()


def found(model: Path, *argv: str) -> tuple[list[str], list[str]]:
    """(problems, what is lacking) as texts."""
    findings = disk.look(load(["--hf-checkpoint", str(model), "--rollout-batch-size", "4", *argv]), set())
    return list(map(str, findings.problems)), list(map(str, findings.lacking))


# -- the model


def test_a_whole_model_lacks_nothing(tiny):
    assert found(tiny) == ([], [])


def test_a_directory_with_config_json_alone_lacks_weights_and_tokenizer(moe):
    problems, lacking = found(moe)
    assert problems == []
    assert "no weights" in lacking[0] and "no tokenizer" in lacking[1]


def test_a_missing_shard_is_named(tiny):
    shards = {f"layer.{n}": f"model-0000{n}.safetensors" for n in range(3)}
    (tiny / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (tiny / "model-00000.safetensors").touch()
    _, (lack,) = found(tiny)
    assert "1 of 3 files of weights; model-00001.safetensors is missing" in lack


@pytest.mark.parametrize("content", ["{", "[" * 5000])
def test_a_broken_index_is_said(tiny, content):
    (tiny / "model.safetensors.index.json").write_text(content)
    _, (lack,) = found(tiny)
    assert "is not an index of weights" in lack


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no config.json in it"),
        ("{", "its config.json cannot be read"),
        ("[" * 5000, "its config.json cannot be read: maximum recursion depth exceeded"),
        ("[]", "does not name a model_type"),
        ('{"model_type": "qwen3", "head_dim": -1}', "/config.json: head_dim is -1, not a whole number of at least 1"),
        ('{"model_type": "qwen3"}', "(model_type qwen3) does not state 'num_attention_heads'"),
    ],
)
def test_what_is_no_model_is_said_with_the_reason(tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    (problem,), _ = found(tmp_path)
    assert message in problem


def test_a_kind_of_model_that_cannot_be_trained_is_said_before_anything_starts(tiny):
    config = json.loads((tiny / "config.json").read_text())
    (tiny / "config.json").write_text(json.dumps(config | {"model_type": "gpt_neox"}))
    (problem,), _ = found(tiny)
    assert "has the model_type 'gpt_neox', which cannot be trained here" in problem and "qwen3" in problem
    assert found(tiny, "--debug-rollout-only") == ([], [])


def test_the_kinds_that_can_be_trained_are_those_that_there_are_families_for():
    from slime.models.registry import FAMILIES  # here, because torch takes seconds to import

    assert architecture.trainable() == tuple(FAMILIES)


def test_weights_that_cannot_be_used_are_one_problem(tiny):
    config = json.loads((tiny / "config.json").read_text())
    (tiny / "config.json").write_text(json.dumps(config | {"hidden_size": 32}))
    (problem,), _ = found(tiny)
    assert "--hf-checkpoint: the weights in" in problem and "more" in problem and len(problem) < 1000


def test_a_name_instead_of_a_directory_is_answered_with_how_to_download_it():
    (problem,), _ = found(Path("Qwen/Qwen3-30B-A3B"))
    assert "there is no directory" in problem
    assert "hf download Qwen/Qwen3-30B-A3B --local-dir Qwen/Qwen3-30B-A3B" in problem
    (problem,), _ = found(Path("models/Qwen3-30B-A3B"))
    assert "hf download ORGANISATION/Qwen3-30B-A3B --local-dir models/Qwen3-30B-A3B" in problem


def test_what_the_quickstart_makes_is_answered_with_how_to_make_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(disk, "CHECKOUT", tmp_path)
    problems, _ = found(
        Path("build/tiny/col/cold-start"), "--prompt-data", "build/tiny/tool/train.jsonl", "data/other.jsonl"
    )
    makes = ["bash scripts/quickstart.sh", "python -m slime.tiny --task tool --output build/tiny/tool"]
    assert [problem.partition("-> ")[2] for problem in problems[:2]] == [f"`{command}` makes it" for command in makes]
    assert problems[2].endswith("relative paths start where the command runs")


def test_from_another_directory_it_is_said_where_relative_paths_lead(monkeypatch, tmp_path):
    checkout = tmp_path / "checkout"
    write_checkpoint(checkout / "build" / "tiny" / "col" / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(disk, "CHECKOUT", checkout)
    (there,), _ = found(Path("build/tiny/col/model"))
    assert f"it is in {checkout}, and relative paths start where the command runs" in there
    (made,), _ = found(Path("build/tiny/col/cold-start"))
    assert f"`bash scripts/quickstart.sh` makes it in {checkout}" in made


def test_outside_of_a_checkout_nothing_is_said_to_be_made_here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checkout, "CHECKOUT", tmp_path / "site-packages")
    monkeypatch.setattr(disk, "CHECKOUT", tmp_path / "site-packages")
    (problem,), _ = found(Path("build/tiny/col/cold-start"))
    assert problem.endswith("makes it, in a checkout of slime's repository; this installation is none")


def test_the_reference_model_is_looked_at_too(tiny, tmp_path):
    (problem,), _ = found(tiny, "--ref-load", str(tmp_path / "nowhere"))
    assert problem.startswith("--ref-load: there is no directory")


def test_the_teacher_is_looked_at_too(tiny, tmp_path):
    teacher = ["--use-opd", "--opd-type", "megatron", "--opd-teacher-load", str(tmp_path / "nowhere")]
    (problem,), _ = found(tiny, *teacher)
    assert problem.startswith("--opd-teacher-load: there is no directory")


# -- the model that a critic starts from


@pytest.fixture
def reward_model(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "reward-model", scores=True)


def critic(directory: Path) -> list[str]:
    return ["--advantage-estimator", "ppo", "--critic-load", str(directory)]


def changed(directory: Path, tensors: dict[str, np.ndarray | None]) -> Path:
    """With these in place of its own, or without those that are None."""
    file = directory / "model.safetensors"
    held = {name: tensor for name, tensor in (load_file(file) | tensors).items() if tensor is not None}
    save_file(held, file, metadata={"format": "pt"})
    return directory


def test_a_critic_starts_from_a_reward_model_whose_head_has_no_bias_or_one_of_zero(tiny, reward_model):
    assert found(tiny, *critic(reward_model)) == ([], [])
    assert found(tiny, *critic(changed(reward_model, {"score.bias": None}))) == ([], [])


def test_a_reward_model_has_no_output_layer_even_if_it_is_not_tied(tiny, reward_model):
    config = json.loads((reward_model / "config.json").read_text())
    (reward_model / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    assert found(tiny, *critic(reward_model)) == ([], [])


def test_a_bias_that_a_critic_would_lose_is_told_before_a_start(tiny, reward_model):
    (problem,), _ = found(tiny, *critic(changed(reward_model, {"score.bias": np.full(1, 0.5, np.float32)})))
    assert f"--critic-load: score.bias in {reward_model}/model.safetensors is not zero" in problem
    assert "set it to 0" in problem


def test_a_head_of_several_labels_is_told_before_a_start(tiny, reward_model):
    (problem,), _ = found(tiny, *critic(changed(reward_model, {"score.weight": np.zeros((2, 64), np.float32)})))
    assert "score.weight has shape [2, 64], a critic wants [1, 64]" in problem


# -- what scripts state


def test_what_equals_config_json_is_fine(moe):
    assert found(moe, *STATED)[0] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--num-layers 47", "--num-layers: states 47, but config.json says 48"),
        ("--model-name qwen3", "states qwen3, but config.json says qwen3_moe and Qwen3MoeForCausalLM"),
        ("--num-query-groups 8", "--num-query-groups: states 8, but config.json says 4"),
        ("--norm-epsilon 1e-5", "states 1e-05, but config.json says 1e-06"),
        ("--rotary-base 10000", "states 10000.0, but config.json says 1000000.0"),
        ("--normalization LayerNorm", "states LayerNorm, but config.json says RMSNorm"),
        ("--no-swiglu", "--swiglu: states False, but config.json says True"),
        ("--add-qkv-bias", "--add-qkv-bias: states True, but config.json says False"),
        ("--moe-layer-freq [0]*1+[1]*47", "--moe-layer-freq: states (0, 1"),
        ("--moe-layer-freq 2", "--moe-layer-freq: states 2, but config.json says [1"),
        ("--moe-router-topk 4", "states 4, but config.json says 8"),
    ],
)
def test_what_differs_is_an_error_that_shows_both(moe, words, message):
    (problem,), _ = found(moe, *words.split())
    assert message in problem


def test_layers_for_multi_token_prediction_of_a_model_without_them_are_an_error(tiny):
    stated, trained = (found(tiny, *words)[0] for words in (("--mtp-num-layers", "1"), ("--enable-mtp-training",)))
    assert len(stated) == len(trained) == 1
    assert "--mtp-num-layers: states 1, but config.json says nothing of the sort" in stated[0]
    assert "has no such layers (num_nextn_predict_layers)" in trained[0]
    assert found(tiny, "--mtp-num-layers", "0")[0] == []


def test_experts_stated_of_a_dense_model_are_an_error(tiny):
    (problem,), _ = found(tiny, "--num-experts", "8")
    assert "states 8, but config.json says nothing of the sort" in problem


def test_the_figures_of_30b_a3b_add_up_to_its_name(moe):
    total, used = architecture.read(moe).parameters
    assert (round(total / 1e9, 1), round(used / 1e9, 1)) == (30.5, 3.4)


@pytest.fixture
def published_model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(request.param))
    return tmp_path


@pytest.mark.parametrize(
    ("published_model", "stated"),
    [(published.DEEPSEEK_V3, STATED_OF_DEEPSEEK_V3), (published.GLM_4_5_AIR, STATED_OF_GLM_4_5_AIR)],
    ids=["DeepSeek-V3", "GLM-4.5-Air"],
    indirect=["published_model"],
)
def test_scripts_of_published_models_agree_with_their_config_json(published_model, stated):
    assert found(published_model, *stated)[0] == []


@pytest.mark.parametrize("published_model", [published.DEEPSEEK_V3], ids=["DeepSeek-V3"], indirect=True)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--q-lora-rank 512", "--q-lora-rank: states 512, but config.json says 1536"),
        ("--moe-router-topk-scaling-factor 1.0", "states 1.0, but config.json says 2.5"),
        ("--kv-channels 56", "--kv-channels: states 56, but config.json says 128"),
    ],
)
def test_what_megatrons_options_state_otherwise_is_an_error(published_model, words, message):
    (problem,), _ = found(published_model, *words.split())
    assert message in problem


@pytest.mark.parametrize(
    ("published_model", "billions"),
    [
        (published.LLAMA_3_1_8B, (8.0, 8.0)),
        (published.QWEN2_5_7B, (7.6, 7.6)),
        (published.GLM_4_5_AIR, (106.9, 13.4)),
        (published.DEEPSEEK_V3, (671.0, 37.6)),
        (published.KIMI_K2, (1026.4, 32.9)),
        (published.MOONLIGHT_16B_A3B, (16.0, 2.9)),
    ],
    ids=["Llama-3.1-8B", "Qwen2.5-7B", "GLM-4.5-Air", "DeepSeek-V3", "Kimi-K2", "Moonlight-16B-A3B"],
    indirect=["published_model"],
)
def test_the_figures_of_published_models_add_up(published_model, billions):
    total, used = architecture.read(published_model).parameters
    assert (round(total / 1e9, 1), round(used / 1e9, 1)) == billions


# -- division


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--pipeline-model-parallel-size 5 --actor-num-gpus-per-node 5", "5 does not divide the model's 48 layers"),
        (
            "--tensor-model-parallel-size 3 --actor-num-gpus-per-node 3 --sequence-parallel",
            "3 does not divide the model's 32 attention heads",
        ),
        ("--expert-model-parallel-size 3 --actor-num-gpus-per-node 3", "3 does not divide the model's 128 experts"),
        (
            "--rollout-num-gpus-per-engine 12 --num-gpus-per-node 12",
            "--rollout-num-gpus-per-engine: 12 does not divide the model's 32 attention heads",
        ),
    ],
)
def test_sizes_that_the_model_cannot_be_divided_by_are_said(moe, words, message):
    (problem,), _ = found(moe, *words.split())
    assert message in problem


def test_virtual_stages_divide_the_layers_of_a_stage(tiny):
    words = "--pipeline-model-parallel-size 2 --virtual-pipeline-model-parallel-size 2"
    (problem,), _ = found(tiny, *words.split())
    assert "2 does not divide the number of layers in a pipeline stage, 1" in problem


def test_experts_of_a_dense_model_are_not_replayed(tiny):
    (problem,), _ = found(tiny, "--use-rollout-routing-replay")
    assert problem.startswith("--use-rollout-routing-replay: the model has no experts")


def test_uneven_pipeline_stages_are_megatrons_business(moe):
    words = "--pipeline-model-parallel-size 5 --actor-num-gpus-per-node 5 --num-layers-in-first-pipeline-stage 8"
    assert found(moe, *words.split())[0] == []


def test_expert_parallelism_of_a_dense_model_is_said(tiny):
    (problem,), _ = found(tiny, "--expert-model-parallel-size", "2")
    assert "is 2, but the model has no experts" in problem


@pytest.mark.parametrize(
    "model", [published.GLM_4_5_AIR, published.MOONLIGHT_16B_A3B], ids=["GLM-4.5-Air", "Moonlight"]
)
def test_tensor_parallel_experts_need_sequence_parallelism(tmp_path, model):
    (tmp_path / "config.json").write_text(json.dumps(model))
    two = ("--tensor-model-parallel-size", "2")
    (problem,), _ = found(tmp_path, *two)
    assert problem.startswith(
        "--tensor-model-parallel-size: 2 needs sequence parallelism to train a mixture of experts\n"
    )
    assert "add --sequence-parallel" in problem
    assert found(tmp_path, *two, "--sequence-parallel")[0] == []
    assert found(tmp_path, *two, "--debug-rollout-only")[0] == []


def test_tensor_parallel_latent_attention_of_a_dense_model_needs_it_too(tmp_path):
    dense = published.MOONLIGHT_16B_A3B | {"n_routed_experts": None, "n_shared_experts": 0}
    (tmp_path / "config.json").write_text(json.dumps(dense))
    (problem,), _ = found(tmp_path, "--tensor-model-parallel-size", "2")
    assert "2 needs sequence parallelism to train latent attention" in problem


def test_tensor_parallel_dense_models_need_no_sequence_parallelism(tiny):
    assert found(tiny, "--tensor-model-parallel-size", "2")[0] == []


# -- prompts


def test_a_file_in_place_of_a_directory_is_said(tiny, monkeypatch):
    (problem,), _ = found(tiny / "config.json")
    assert "config.json is a file" in problem and f"name the directory: {tiny}" in problem
    monkeypatch.chdir(Path(__file__).parents[2])
    assert "is a file" in found(Path("README.md"))[0][0]


def test_a_pattern_or_a_pipe_in_place_of_a_prompt_file_is_said(tiny, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    problems, _ = found(tiny, "--prompt-data", "build/tiny/col/*.jsonl", str(tmp_path / "pipe"))
    assert "wildcards are not resolved" in problems[0] and "no file that can be read twice" in problems[1]


def test_stops_that_no_response_can_have_are_said(tiny):
    (problem,), _ = found(tiny, "--rollout-stop-token-ids", "3", "64", "-1")
    assert "--rollout-stop-token-ids: 64, -1: the vocabulary has the ids 0 to 63" in problem


def test_slices_of_a_prompt_file_are_fine(tiny, prompts):
    assert found(tiny, "--prompt-data", f"{prompts}@[:5]", f"{prompts}@[2:]", str(prompts))[0] == []


def test_prompt_and_eval_files_that_cannot_be_used_are_said(tiny, prompts, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "p.csv").write_text("a")
    problems, _ = found(
        tiny,
        *(
            "--prompt-data",
            str(tmp_path),
            str(tmp_path / "gone.jsonl"),
            str(tmp_path / "empty.jsonl"),
            f"{prompts}@[a:b]",
        ),
        *("--eval-prompt-data", "held-out", str(tmp_path / "p.csv"), "--eval-config", str(tmp_path / "sets.yaml")),
    )
    messages = [
        "is a directory",
        "there is no file",
        "is empty",
        "does not end in a slice",
        "is neither .jsonl nor",
        "there is no file",
    ]
    assert [message in problem for message, problem in zip(messages, problems, strict=True)] == [True] * 6
    assert [problem.partition(":")[0] for problem in problems[-2:]] == ["--eval-prompt-data", "--eval-config"]


def test_tied_output_layer_that_the_engine_would_leave_at_zero(tmp_path):
    model = write_checkpoint(tmp_path / "model", moe=True)
    file = model / "config.json"
    assert found(model)[0] == []
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tie_word_embeddings": True}))
    assert [text for text in found(model)[0] if "lm_head.weight of its own" in text]
    assert not [text for text in found(model, "--loss-type", "sft_loss")[0] if "lm_head.weight of its own" in text]
