"""Engine groups: what a file of --sglang-config makes of a run, and what it is told when it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.config import Config, load, machine
from slime.config.engine_groups import planned_engines, policy_of, served_models
from slime.config.group_rules import look
from slime.config.plan import describe
from slime.tiny import write_checkpoint

THREE_MODELS = """\
sglang:
  - name: judge
    model_path: {other}
    server_groups:
      - {{num_gpus: 2, num_gpus_per_engine: 2, overrides: {{mem-fraction-static: 0.5, sglang_enable_metrics: true}}}}
  - name: trained
    num_gpus_per_engine: 2
    server_groups:
      - {{worker_type: prefill, num_gpus: 2}}
      - {{worker_type: placeholder, num_gpus: 1}}
      - {{worker_type: decode, num_gpus: 8, num_gpus_per_engine: 4}}
  - name: frozen
    update_weights: false
    server_groups: [{{num_gpus: 1}}]
"""


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("other") / "model")


@pytest.fixture
def configured(tmp_path, other):
    """The configuration with a file of engine groups, 14 devices, and more options."""

    def make(text: str, *more: str) -> Config:
        file = tmp_path / "groups.yaml"
        file.write_text(text)
        paths = ["--hf-checkpoint", str(other.parent / "model"), "--sglang-config", str(file)]
        return load([*paths, "--rollout-batch-size", "4", "--rollout-num-gpus", "14", "--num-rollout", "1", *more])

    return make


def problems(config: Config) -> list[str]:
    return [f"{Path(problem.where).name}: {problem.what} -> {problem.fix}" for problem in look(config, set())]


NUMBERS = {
    "--sglang-max-running-requests 0": "--sglang-max-running-requests: 0 is out of range: must be >= 1",
    "--sglang-page-size 0": "--sglang-page-size: 0 is out of range: must be >= 1",
    "--sglang-context-length -1": "--sglang-context-length: -1 is out of range: must be >= 1",
    "--sglang-random-seed 4294967296": "--sglang-random-seed: 4294967296 is out of range: must be 0 to 4294967295",
    "--sglang-context-length 5 --rollout-max-response-len 16": "the engine refuses what is longer than 5 tokens, and"
    " 17 may be asked of it (--rollout-max-response-len 16) -> raise it, or give --rollout-max-context-len 5",
    "--sglang-context-length 40 --rollout-max-response-len 16 --rollout-max-prompt-len 30": "and 46 may be asked of it",
    "--sglang-context-length 40 --rollout-max-context-len 41": "and 41 may be asked of it",
    "--sglang-context-length 40 --rollout-max-response-len 9 --eval-max-response-len 50 --eval-interval 1"
    " --eval-prompt-data a a": "and 51 may be asked of it (--eval-max-response-len 50)",
    "--device cpu --sglang-decode-attention-backend triton": "triton computes on GPUs alone",
}


@pytest.mark.parametrize("words", NUMBERS)
def test_what_engines_could_not_start_with_or_would_refuse_is_said(words):
    options = ["--hf-checkpoint", "model", "--rollout-batch-size", "4", "--colocate"]
    (text,) = problems(load([*options, *words.split()]))
    assert NUMBERS[words] in text
    assert problems(load([*options, *words.split(), "--loss-type", "sft_loss"])) == [], "there are no engines"


@pytest.mark.parametrize(
    "words",
    [
        "--rollout-max-response-len 16 --sglang-context-length 17",
        "--rollout-max-response-len 16 --rollout-max-prompt-len 30 --rollout-max-context-len 40",
        "--rollout-max-response-len 16 --rollout-max-prompt-len 24",
        "--rollout-max-context-len 40 --sglang-attention-backend torch_native --device cpu",
        "--rollout-max-response-len 160 --rollout-external-engine-addrs 127.0.0.1:30000",
    ],
)
def test_what_engines_can_take_is_left_alone(words):
    given = f"--hf-checkpoint model --rollout-batch-size 4 --rollout-num-gpus 1 --sglang-context-length 40 {words}"
    assert problems(load(given.split())) == []


def test_what_a_group_is_told_itself_counts_and_is_named(configured, other):
    text = (
        "sglang:\n  - {name: policy, server_groups: [{num_gpus: 14, overrides: {context_length: 9}}]}\n"
        f"  - {{name: judge, model_path: {other}, server_groups: [{{num_gpus: 1, overrides: {{page_size: 0}}}}]}}\n"
    )
    config = configured(
        text, "--rollout-num-gpus", "15", "--rollout-max-response-len", "16", "--sglang-context-length", "5"
    )
    context, page = problems(config)
    assert context.startswith("groups.yaml: model policy: context_length: the engine refuses what is longer than 9")
    assert page.startswith("groups.yaml: model judge: page_size: 0 is out of range")


def test_models_groups_and_engines(configured, tmp_path, other):
    (tmp_path / "link").symlink_to(other)
    config = configured(THREE_MODELS.format(other=tmp_path / "link"))
    assert problems(config) == []
    judge, trained, frozen = models = served_models(config)
    assert [model.update_weights for model in models] == [False, True, False]
    assert policy_of(models) is trained
    assert dict(judge.groups[0].overrides) == {"mem_fraction_static": 0.5, "enable_metrics": True}
    assert trained.is_disaggregated and not frozen.is_disaggregated
    assert (judge.num_gpus, trained.num_gpus, frozen.num_gpus) == (2, 10, 1)
    engines = planned_engines(models)
    assert [(engine.index, engine.first_device, engine.num_devices) for engine in engines] == [
        (0, 0, 2), (1, 2, 2), (2, 5, 4), (3, 9, 4), (4, 13, 1),
    ]  # fmt: skip
    text = " ".join(describe(config, None).split())
    assert "trained: 1 prefill engine of 2 devices (TP 2) and 1 device kept free and 2 decode engines of 4" in text
    assert f"judge keeps the weights of {tmp_path / 'link'}" in text and "22 devices in all" in text


def test_without_a_file_the_policy_is_all_there_is(other):
    base = ["--hf-checkpoint", str(other), "--rollout-batch-size", "4", "--rollout-num-gpus", "6"]
    (policy,) = served_models(load([*base, "--rollout-num-gpus-per-engine", "2"]))
    assert policy.update_weights and policy.path == str(other) and [g.num_engines for g in policy.groups] == [3]
    (policy,) = served_models(load([*base, "--rollout-num-gpus-per-engine", "2", "--prefill-num-servers", "1"]))
    assert [(g.worker_type, g.num_engines) for g in policy.groups] == [("prefill", 1), ("decode", 2)]
    external = load([*base, "--rollout-external-engine-addrs", "a:1", "b:2"])
    assert external.rollout_num_gpus == 0
    assert [e.address for e in planned_engines(served_models(external))] == ["a:1", "b:2"]
    assert served_models(load([*base, "--loss-type", "sft_loss"])) == ()


def test_all_mistakes_are_told_at_once_with_their_lines(configured):
    config = configured(
        """\
sglang:
  - name: policy
    modelpath: x
    server_groups:
      - {worker_type: regulr, num_gpus: 2}
      - {num_gpus: none}
      - {num_gpus: 1, overrides: {mem_fracton_static: 0.5, tp_size: 2, dtype: float99, port: 1}}
      - num_gpu: 2
  - name: policy
    update_weights: maybe
"""
    )
    assert problems(config) == [
        "groups.yaml:3: modelpath: unknown key -> did you mean model_path?",
        "groups.yaml:5: worker_type 'regulr' is none of regular, prefill, decode, placeholder -> did you mean regular?",
        "groups.yaml:6: 'none' is no number of devices, 1 or more -> ",
        "groups.yaml:7: overrides: mem_fracton_static: is no option of the installed SGLang"
        " -> did you mean mem_fraction_static?",
        "groups.yaml:7: overrides: tp_size: is not set here -> it follows from the file's own `num_gpus_per_engine`",
        "groups.yaml:7: overrides: dtype: 'float99' is none of auto, half, float16, bfloat16, float, float32 -> ",
        "groups.yaml:7: overrides: port: is not set here -> it follows from the placement of the engines",
        "groups.yaml:8: num_gpu: unknown key -> did you mean num_gpus?",
        "groups.yaml:8: lacks `num_gpus` -> ",
        "groups.yaml:10: 'maybe' is not true or false -> ",
        "groups.yaml:9: lacks `server_groups` -> ",
        "groups.yaml: sglang: two models have the name 'policy' -> choose another",
    ]


ONE = "sglang: [{{name: policy, server_groups: [{}]}}]"


@pytest.mark.parametrize(
    ("groups", "options", "said"),
    [
        ("{num_gpus: 4}", "", "the groups have 4 devices, --rollout-num-gpus is 14"),
        ("{num_gpus: 14, num_gpus_per_engine: 4}", "", "engines of 4 devices do not divide a group of 14"),
        ("{num_gpus: 6, num_gpus_per_engine: 6}, {num_gpus: 8}", "", "engines of 6 devices do not fit nodes of 8"),
        ("{num_gpus: 14, worker_type: prefill}", "", "has no decode engines"),
        ("{num_gpus: 14, worker_type: placeholder}", "", "has no engines, only placeholders"),
        (
            "{num_gpus: 4, worker_type: prefill}, {num_gpus: 4, worker_type: decode}, {num_gpus: 6}",
            "",
            "sends regular ones nothing",
        ),
        (
            "{num_gpus: 2}, {num_gpus: 12, num_gpus_per_engine: 4}",
            "--colocate",
            "the devices 6 to 9 of the groups, of which training has 8, 8 a node: it would straddle them",
        ),
        ("{num_gpus: 14}", "--rm-model judge", "'judge' is none of the models that are served: policy"),
        ("{num_gpus: 14}", "--prefill-num-servers 1", "each says which engines there are"),
        ("{num_gpus: 14}], update_weights: false, model_path: [nowhere", "", "'nowhere'] is no text"),
    ],
)
def test_groups_that_do_not_fit(configured, groups, options, said):
    assert said in "\n".join(problems(configured(ONE.format(groups), *options.split())))


def test_somebody_has_to_be_trained(configured, tmp_path):
    text = ONE.format("{num_gpus: 14}").replace("name:", f"model_path: {tmp_path}, name:")
    first, second = problems(configured(text))
    assert "no model gets the weights of training" in first and "no directory with a config.json" in second
    assert [p for p in problems(configured(text, "--debug-rollout-only")) if "weights of training" in p] == []


def test_the_short_forms_are_checked_too(other):
    base = ["--hf-checkpoint", str(other), "--rollout-batch-size", "4"]
    assert "2 of 2 engines leave none to decode" in problems(
        load([*base, "--rollout-num-gpus", "2", "--prefill-num-servers", "2"])
    )[0]  # fmt: skip
    (address, turns) = problems(load([*base, "--colocate", "--rollout-external-engine-addrs", "http://a:1"]))
    assert "'http://a:1' is no address" in address and "cannot take turns" in turns


def test_prefill_and_decode_engines_need_gpus_to_start(other):
    base = ["--hf-checkpoint", str(other), "--rollout-batch-size", "4", "--rollout-num-gpus", "2", "--device", "cpu"]
    config = load([*base, "--prefill-num-servers", "1", "--actor-num-gpus-per-node", "1", "--cpu-slots", "3"])
    assert ["prefill and decode engines need GPUs" in lack.what for lack in machine.lacking(config, set())] == [True]
