"""Weights by their headers: files that are not whole, and tensors that are not those of config.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from slime.config import architecture, weights
from slime.tiny.checkpoint import write_checkpoint
from tests.config.checkpoints import TINY, weight_shapes, write_weights

Shapes = dict[str, list[int]]


def said(directory: Path) -> list[str]:
    return list(weights.unsound(directory, architecture.read(directory)))


def said_of(directory: Path, change: Callable[[Shapes], object], **config: object) -> list[str]:
    shapes = weight_shapes(TINY)
    change(shapes)
    write_weights(directory / "model.safetensors", shapes)
    (directory / "config.json").write_text(json.dumps(TINY | config))
    return said(directory)


@pytest.mark.parametrize("moe", [False, True])
def test_a_checkpoint_as_it_should_be_is_sound(tmp_path, moe):
    assert said(write_checkpoint(tmp_path, moe=moe)) == []


def test_a_file_that_is_cut_off_is_said_with_its_sizes(tiny):
    file = tiny / "model.safetensors"
    size = file.stat().st_size
    with file.open("r+b") as stream:
        stream.truncate(size - 1)
    assert said(tiny) == [f"{file} is cut off: {size - 1:,} bytes of {size:,}"]


@pytest.mark.parametrize("content", [b"", b"{}", b"\x10" + bytes(7) + b"{}", b"\x02" + bytes(7) + b"[]", b"<html>" * 9])
def test_what_is_no_safetensors_file_is_said(tiny, content):
    (tiny / "model.safetensors").write_bytes(content)
    (text,) = said(tiny)
    assert "is no safetensors file" in text


def test_an_index_that_names_the_wrong_file_is_said(tiny):
    shapes = weight_shapes(TINY)
    write_weights(tiny / "a.safetensors", shapes)
    write_weights(tiny / "b.safetensors", {"extra": [1]})
    where = dict.fromkeys(shapes, "a.safetensors") | {"model.norm.weight": "b.safetensors"}
    (tiny / weights.INDEX).write_text(json.dumps({"weight_map": where}))
    assert said(tiny) == ["model.norm.weight is not in b.safetensors, though model.safetensors.index.json says so"]


@pytest.mark.parametrize(
    "name", ["model.norm.weight", "model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"]
)
def test_a_tensor_that_is_missing_is_named(tiny, name):
    assert said_of(tiny, lambda shapes: shapes.pop(name)) == [f"{name} is missing"]


def test_an_output_layer_that_is_not_the_embedding_must_be_there(tiny):
    assert said_of(tiny, lambda shapes: None, tie_word_embeddings=False) == ["lm_head.weight is missing"]


@pytest.mark.parametrize(("layers", "text"), [(3, "model.layers.2.* are missing"), (1, "weights of layer 1, but")])
def test_another_number_of_layers_is_said(tiny, layers, text):
    (said,) = said_of(tiny, lambda shapes: None, num_hidden_layers=layers)
    assert text in said


@pytest.mark.parametrize(
    ("figure", "value", "text"),
    [
        ("vocab_size", 65, "model.embed_tokens.weight has shape [64, 64], config.json says [65, 64]"),
        ("intermediate_size", 96, "model.layers.0.mlp.down_proj.weight has shape [64, 192], config.json says [64, 96]"),
        ("num_attention_heads", 8, "self_attn.o_proj.weight has shape [64, 64], config.json says [64, 128]"),
        ("num_key_value_heads", 4, "self_attn.k_proj.weight has shape [32, 64], config.json says [64, 64]"),
    ],
)
def test_a_figure_of_config_json_that_the_weights_contradict_is_said(tiny, figure, value, text):
    assert any(text in line for line in said_of(tiny, lambda shapes: None, **{figure: value}))


def test_scales_that_only_some_layers_have_are_fine(tiny):
    assert said_of(tiny, lambda shapes: shapes.update({"model.layers.0.mlp.up_proj.weight_scale_inv": [2, 1]})) == []


def said_of_mixture(directory: Path, **config: object) -> list[str]:
    """Of 2 layers with 8 experts each, where config.json says otherwise."""
    write_checkpoint(directory, moe=True)
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return said(directory)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"num_experts": 4}, "model.layers.0.mlp has 8 experts, config.json says 4"),
        ({"num_experts": 9}, "model.layers.0.mlp has 8 experts, config.json says 9"),
        ({"mlp_only_layers": [0]}, "model.layers.0.mlp has 8 experts, but config.json makes it dense"),
    ],
)
def test_a_mixture_that_config_json_describes_otherwise_is_said_once_a_layer(tmp_path, config, text):
    lines = said_of_mixture(tmp_path, **config)
    assert lines[0] == text and len(lines) == len({line.partition(".mlp")[0] for line in lines})


def test_a_dense_layer_that_config_json_takes_for_a_mixture_is_said(tiny):
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    lines = said_of(tiny, lambda shapes: None, **experts)
    assert lines == [f"model.layers.{i}.mlp is dense, but config.json says 8 experts" for i in range(2)]


def test_a_router_of_another_number_of_experts_is_said(tmp_path):
    directory = write_checkpoint(tmp_path, moe=True)
    model = architecture.read(directory)
    tensors = weights._header(directory / "model.safetensors")
    router = "model.layers.1.mlp.gate.weight"
    write_weights(directory / "model.safetensors", tensors | {router: [7, model["hidden_size"]]})
    (line,) = said(directory)
    assert line.startswith(f"{router} has shape [7, ")


def test_a_directory_in_place_of_a_file_is_said(tiny):
    (tiny / "model.safetensors").unlink()
    (tiny / "model.safetensors").mkdir()
    assert said(tiny) == [f"{tiny / 'model.safetensors'} is no file"]


def test_experts_have_their_own_width(tmp_path):
    directory = write_checkpoint(tmp_path, moe=True)
    config = json.loads((directory / "config.json").read_text())
    config["moe_intermediate_size"] += 8
    (directory / "config.json").write_text(json.dumps(config))
    said_lines = said(directory)
    assert said_lines and all(".mlp.experts." in line for line in said_lines)
