"""The weights of a checkpoint by their headers: whether the files are whole, and of the model that config.json
describes.

A safetensors file is the length of its header (8 bytes, little-endian), the header (JSON: name -> dtype, shape,
offsets) and the data. Invariant: of each file only its size and its header are read, and of one tensor its few bytes
(the bias of a reward model's head), so that 700 GB are looked through in seconds. What is not known of a family (names
it has beyond the usual ones) is left to the loading of the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from slime.config.architecture import Architecture

INDEX = "model.safetensors.index.json"
SCORE, BIAS = "score.weight", "score.bias"
LAYER = re.compile(r"layers\.(\d+)\.(.+)")
EXPERT = re.compile(r"mlp\.experts\.(\d+)\.")
PREFIXES = ("model.language_model.", "model.")  # a model with further modalities keeps its decoder in the first

Shape = tuple[int, ...]


def lacking(directory: Path) -> Iterator[str]:
    """The files of weights that are not there."""
    index = directory / INDEX
    if not index.exists():
        if not any(directory.glob("*.safetensors")):
            yield f"{directory} has no weights (*.safetensors)"
        return
    try:
        shards = set(_weight_map(index).values())
    except ValueError as error:
        yield str(error)
        return
    if gone := sorted(shard for shard in shards if not (directory / shard).exists()):
        yield f"{directory} has {len(shards) - len(gone)} of {len(shards)} files of weights; {gone[0]} is missing"


def unsound(directory: Path, model: Architecture, *, to_value: bool = False) -> Iterator[str]:
    """What is wrong with files of weights that are all there: those that are damaged, else tensors that don't fit.

    `to_value`: the model gives a number a token instead of logits, by the head of a reward model or one that is new.
    """
    index = directory / INDEX
    where = _weight_map(index) if index.exists() else {}
    files = sorted(set(where.values())) or sorted(path.name for path in directory.glob("*.safetensors"))
    headers: dict[str, dict[str, Shape]] = {}
    for file in files:
        try:
            headers[file] = _header(directory / file)
        except ValueError as error:
            yield str(error)
    if len(headers) < len(files):
        return
    for name, file in where.items():
        if name not in headers[file]:
            yield f"{name} is not in {file}, though {INDEX} says so"
    tensors = {name: shape for header in headers.values() for name, shape in header.items()}
    yield from _unlike(model, tensors, to_value=to_value)


def _weight_map(index: Path) -> dict[str, str]:
    try:
        return dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{index} is not an index of weights: {error!r}") from None


def _header(file: Path) -> dict[str, Shape]:
    """Name -> shape of the tensors in a file. Raises ValueError when the file is not whole."""
    if not file.is_file():
        raise ValueError(f"{file} is no file")
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= size - 8:
            raise ValueError(f"{file} is no safetensors file, or cut off in its header: it has {size} bytes")
        try:
            entries = json.loads(stream.read(length))
            tensors = {name: entry for name, entry in entries.items() if name != "__metadata__"}
            end = 8 + length + max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
            shapes = {name: tuple(entry["shape"]) for name, entry in tensors.items()}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            raise ValueError(f"{file} is no safetensors file: its header is not readable") from None
    if size != end:
        raise ValueError(f"{file} is {'cut off' if size < end else 'too long'}: {size:,} bytes of {end:,}")
    return shapes


def biased_head(directory: Path) -> str:
    """The file with the bias of a reward model's head, if that is not zero. Expects files that are whole."""
    for file in sorted(directory.glob("*.safetensors")):
        if BIAS in _header(file) and any(_data(file, BIAS)):
            return file.name
    return ""


def _data(file: Path, name: str) -> bytes:
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        first, end = json.loads(stream.read(length))[name]["data_offsets"]
        stream.seek(8 + length + first)
        return stream.read(end - first)


def _unlike(model: Architecture, tensors: dict[str, Shape], *, to_value: bool) -> Iterator[str]:
    """How the tensors of a checkpoint differ from what its config.json says."""
    prefix = next((prefix for prefix in PREFIXES if f"{prefix}embed_tokens.weight" in tensors), "model.")
    layers: dict[int, dict[str, Shape]] = {}
    for name, shape in tensors.items():
        if match := LAYER.fullmatch(name.removeprefix(prefix)):
            layers.setdefault(int(match[1]), {})[match[2]] = shape
    num_layers = model["num_layers"]
    if beyond := [layer for layer in layers if layer >= num_layers + model.get("mtp_num_layers", 0)]:
        yield f"there are weights of layer {max(beyond)}, but config.json says {num_layers} layers"
    shapes = _shapes(model)
    needed = [prefix + "embed_tokens.weight", prefix + "norm.weight"]
    if to_value:
        yield from _misshapen(SCORE, tensors, (1, model["hidden_size"]), by="a critic wants")
    elif model.get("untie_embeddings_and_output_weights"):
        needed.append("lm_head.weight")
    yield from (f"{name} is missing" for name in needed if name not in tensors)
    for name in needed:
        yield from _misshapen(name, tensors, shapes[name.removeprefix(prefix)])

    # What layers of a kind hold together is what each of them needs; but for scales, which some layers go without.
    common: dict[object, set[str]] = {}
    for layer in range(num_layers):
        if not _unlike_mlp(model, layer, layers.get(layer, {})):
            names = {name for name in layers.get(layer, ()) if name.endswith(".weight")}
            common.setdefault(_kind(model, layer, layers), set()).update(names)
    for layer in range(num_layers):
        held, path = layers.get(layer, {}), f"{prefix}layers.{layer}."
        if not held:
            yield f"{path}* are missing"
            continue
        if unlike := _unlike_mlp(model, layer, held):
            yield f"{path}mlp {unlike}"
            continue
        yield from (f"{path}{name} is missing" for name in sorted(common[_kind(model, layer, layers)] - held.keys()))
        for name in held:
            if (wanted := shapes.get(re.sub(r"\.experts\.\d+\.", ".experts.*.", name))) and (
                name != "self_attn.o_proj.weight"
                or "self_attn.k_proj.weight" in held  # latent attention has other heads
            ):
                yield from _misshapen(path + name, tensors, wanted)


def _unlike_mlp(model: Architecture, layer: int, held: dict[str, Shape]) -> str | None:
    """How the MLP of a layer is of another sort than config.json says, or of other experts; None where it is not."""
    is_mixture, wanted = model["layers"][layer], model.get("num_experts", 0)
    experts = {int(match[1]) for name in held if (match := EXPERT.match(name))}
    if experts and not is_mixture:
        return f"has {len(experts)} experts, but config.json makes it dense"
    if is_mixture and not experts and "mlp.down_proj.weight" in held:
        return f"is dense, but config.json says {wanted} experts"
    if experts and not len(experts) == max(experts) + 1 == wanted:
        return f"has {len(experts)} experts, config.json says {wanted}"
    return None


def _kind(model: Architecture, layer: int, layers: dict[int, dict[str, Shape]]) -> tuple[bool, frozenset[str]]:
    """Layers are alike that have the same sort of MLP and of attention."""
    modules = {name.partition(".")[0] for name in layers.get(layer, ())}
    return model["layers"][layer], frozenset(module for module in modules if "attn" in module)


def _shapes(a: Architecture) -> dict[str, Shape]:
    """Name without its layer -> shape, of tensors that are called and shaped alike in all families."""
    hidden, head = a["hidden_size"], a["kv_channels"]
    shapes: dict[str, Shape] = {
        "embed_tokens.weight": (a["vocab_size"], hidden),
        "lm_head.weight": (a["vocab_size"], hidden),
        "norm.weight": (hidden,),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.k_proj.weight": (a["num_query_groups"] * head, hidden),
        "self_attn.v_proj.weight": (a["num_query_groups"] * head, hidden),
        "self_attn.o_proj.weight": (hidden, a["num_attention_heads"] * head),
    }
    if "num_experts" in a:
        shapes["mlp.gate.weight"] = (a["num_experts"], hidden)
    inner = {
        "mlp": a.get("ffn_hidden_size"),
        "mlp.experts.*": a.get("moe_ffn_hidden_size"),
        "mlp.shared_experts": a.get("moe_shared_expert_intermediate_size"),
    }
    for mlp, size in inner.items():
        if size is not None:
            shapes |= {f"{mlp}.{part}_proj.weight": (size, hidden) for part in ("gate", "up")}
            shapes |= {f"{mlp}.down_proj.weight": (hidden, size)}
    return shapes


def _misshapen(name: str, tensors: dict[str, Shape], wanted: Shape, *, by: str = "config.json says") -> Iterator[str]:
    if name in tensors and tensors[name] != wanted:
        yield f"{name} has shape {list(tensors[name])}, {by} {list(wanted)}"
