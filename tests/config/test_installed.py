"""What is read off the source of the installed libraries is what those libraries themselves say when they are imported.

About ten seconds, nearly all of it the import of SGLang and of Megatron, each in a process of its own.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slime.config import ConfigError, catalogue, load
from slime.config.installed import megatron, router, sglang, source

ROOT = Path(__file__).parents[2]
BASE = ["--hf-checkpoint", "model", "--rollout-batch-size", "4"]

# name, default (as repr) and choices of each option of an argparse parser
ARGPARSE = """
import argparse, json
parser = argparse.ArgumentParser()
{register}
print(json.dumps([
    [flag, action.dest, repr(action.default), sorted(map(str, action.choices or ()))]
    for action in parser._actions for flag in action.option_strings
]))
"""
SGLANG = """
from slime.platform import sglang_cpu
sglang_cpu.patch()
from sglang.srt.server_args import ServerArgs
ServerArgs.add_cli_args(parser)
"""
ROUTER = """
from sglang_router.router_args import RouterArgs
RouterArgs.add_cli_args(parser, use_router_prefix=True)
"""
MEGATRON = """
import dataclasses, json
from slime.platform import megatron_cpu
megatron_cpu.enable()
from megatron.core.transformer.transformer_config import MLATransformerConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.distributed import DistributedDataParallelConfig
print(json.dumps({
    cls.__name__: {field.name: repr(field.default) for field in dataclasses.fields(cls)}
    for cls in (MLATransformerConfig, OptimizerConfig, DistributedDataParallelConfig)
}))
"""


def printed(code: str) -> Any:
    """The JSON in the last line that a Python process prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_sglangs_options_are_those_of_its_own_parser():
    flags = printed(ARGPARSE.format(register=SGLANG))
    real = {flag.removeprefix("--").replace("-", "_"): rest for flag, *rest in flags if flag.startswith("--")}
    read = sglang.read()
    assert set(real) - {"help"} - {name for name in real if name.startswith("no_")} == set(read)
    for name, option in read.items():
        _, default, choices = real[name]
        if option.shown_default is None and option.default is not catalogue.OWN["hf_checkpoint"].default:
            assert default in (repr(option.default), "None"), name
        if option.choices:
            assert set(option.choices) <= {*choices, "None"}, name


def test_the_routers_options_are_those_of_its_own_parser():
    flags = printed(ARGPARSE.format(register=ROUTER))
    prefix = "--router-"
    real = {flag.removeprefix(prefix).replace("-", "_"): rest for flag, *rest in flags if flag.startswith(prefix)}
    read = router.read()
    assert set(real) == set(read)
    for name, option in read.items():
        _, default, choices = real[name]
        assert default in (repr(option.default), "None"), name
        assert not option.choices or sorted(option.choices) == choices, name


def test_megatrons_options_are_the_fields_of_its_dataclasses():
    classes = printed(MEGATRON)
    fields = {name for cls in classes.values() for name in cls}
    read = {option.name: option for option in megatron.read().values()}
    assert set(read) <= fields
    left_out = {name for name in fields - set(read) if not name.startswith("_")}
    assert {name for name in left_out if not name.endswith(("_func", "_method", "timers", "_recipe"))} == set()
    transformer = classes["MLATransformerConfig"]
    for name in ("moe_router_topk", "attention_dropout", "recompute_granularity", "moe_token_dispatcher_type"):
        assert repr(read[name].default) == transformer[name]


# -- what users write


@pytest.mark.parametrize(
    ("words", "family", "options"),
    [
        ("--sglang-mem-fraction-static .7", "sglang", {"mem_fraction_static": 0.7}),
        ("--sglang-ep 4", "sglang", {"ep_size": 4}),
        ("--sglang-context-length 32Ki", "sglang", {"context_length": 32768}),
        ("--sglang-cuda-graph-bs-decode 1 2 4", "sglang", {"cuda_graph_bs_decode": [1, 2, 4]}),
        ("--sglang-enable-dp-attention", "sglang", {"enable_dp_attention": True}),
        ("--sglang-default-chat-template-kwargs {}", "sglang", {"default_chat_template_kwargs": {}}),
        ("--router-policy random --router-dp-aware", "router", {"policy": "random", "dp_aware": True}),
        ("--recompute-granularity selective", "megatron", {"recompute_granularity": "selective"}),
        ("--no-gradient-accumulation-fusion", "megatron", {"gradient_accumulation_fusion": False}),
        ("--disable-mamba-mem-eff-path", "megatron", {"use_mamba_mem_eff_path": False}),
        ("--fp8-format hybrid", "megatron", {"fp8": "hybrid"}),
        ("--attention-backend flash", "megatron", {"attention_backend": "flash"}),
        ("--main-grads-dtype bf16", "megatron", {"main_grads_dtype": "bf16"}),
        ("--moe-router-load-balancing-type aux_loss", "megatron", {"moe_router_load_balancing_type": "aux_loss"}),
        ("--sglang-mem-fraction .5", "sglang", {"mem_fraction_static": 0.5}),
        ("--sglang-enable-ep-moe --rollout-num-gpus-per-engine 8", "sglang", {"ep_size": 8}),
        ("--sglang-enable-deepep-moe", "sglang", {"moe_a2a_backend": "deepep"}),
        ("--no-rope-fusion", "megatron", {"apply_rope_fusion": False}),
        ("--recompute-activations", "megatron", {"recompute_granularity": "selective"}),
    ],
)  # fmt: skip
def test_an_option_of_a_library_is_passed_on_typed(words, family, options):
    assert getattr(load([*BASE, *words.split()]), family) == options


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--sglang-mem-fraction-static much", "'much' is not a number"),
        ("--sglang-dtype fp64", "'fp64' is none of auto, half"),
        ("--sglang-mem-fracton-static .7", "did you mean --sglang-mem-fraction-static?"),
        ("--sglang-tp-size 2", "it follows from --rollout-num-gpus-per-engine"),
        ("--router-policy best", "'best' is none of random, round_robin"),
        ("--recompute-granularity half", "'half' is none of full, selective"),
        ("--recompute-granularty full", "did you mean --recompute-granularity?"),
        ("--gated-linear-unit", "it follows from config.json (--swiglu)"),
        ("--fp8 hybrid --moe-token-dispatcher-type best", "'best' is none of allgather, alltoall, flex"),
    ],
)
def test_what_the_installed_library_does_not_take_is_an_error(words, message):
    with pytest.raises(ConfigError) as caught:
        load([*BASE, *words.split()])
    (problem,) = caught.value.problems
    assert message in str(problem)


def test_without_the_library_its_options_are_refused_with_the_reason(monkeypatch):
    def gone(name: str, probe: str) -> Path:
        raise source.NotInstalled(f"{name} is not installed")

    monkeypatch.setattr(source, "package", gone)
    catalogue.passed_through.cache_clear()
    try:
        with pytest.raises(ConfigError) as caught:
            load([*BASE, "--sglang-dtype", "half", "--recompute-granularity", "selective"])
        sglang_text, megatron_text = map(str, caught.value.problems)
        assert "sglang is not installed" in sglang_text
        assert "megatron is not installed" in megatron_text
    finally:
        catalogue.passed_through.cache_clear()


# -- reading source


def test_only_what_has_a_value_without_running_code_is_read():
    def value(text: str) -> Any:
        return source.read_value(ast.parse(text, mode="eval").body)

    assert value("2 ** 10 * 3") == 3072
    assert value("['a', (1, -2.5)]") == ["a", (1, -2.5)]
    assert value("field(default=3, metadata={})") == 3
    with pytest.raises(source.Unreadable):
        value("print('run')")
