"""The tiny checkpoint in HF's files: Qwen3, dense or of experts, with random weights and a tokenizer of characters.

Invariants: token ids 0..63 all decode to some text, so that no generated token disappears from a response; each of the
chat markers, role names and thinking tags is one token; the weights are a function of the seed alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models

CHAT_MARKERS = ["<pad>", "<|im_start|>", "<|im_end|>"]
CHARACTERS = list(" 0123456789abcdefghijklmnopqrstuvwxyz+-*/%()=?:,.><|")
VOCABULARY = [
    *CHAT_MARKERS,
    *["user", "assistant", "tool", "<tool_call>", "</tool_call>", "\n"],
    *CHARACTERS,
    *["<think>", "</think>", "<unk>"],
]
ID = {token: i for i, token in enumerate(VOCABULARY)}
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN = 64, 4, 2, 16, 192
EXPERTS, EXPERTS_PER_TOKEN, EXPERT_FFN = 8, 2, 96

CHAT_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""


def write_checkpoint(
    directory: str | Path,
    *,
    moe: bool = False,
    num_layers: int = 2,
    width: int = 1,
    seed: int = 0,
    scores: bool = False,
) -> Path:
    """Writes configuration, weights and tokenizer into the directory, and returns it.

    The dense model has 103 k parameters. `num_layers` is for tests that cut the model into more than two stages;
    `width` multiplies all sizes but the number of heads: 8 gives the heads of 128 that kernels for GPUs are made for.
    With `scores` it is a reward model: in place of the output layer a head gives a text one number.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    config = model_config(moe=moe, num_layers=num_layers, width=width)
    if scores:
        config |= {"architectures": ["Qwen3ForSequenceClassification"], "num_labels": 1}
        config |= {"id2label": {"0": "reward"}, "label2id": {"reward": 0}}  # else SGLang would normalise it, to 1
    rng = np.random.default_rng(seed)
    tensors = {name: initial_weight(name, shape, config["hidden_size"], rng) for name, shape in weight_shapes(config)}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)  # safetensors makes it 0o600
    write_json(directory / "config.json", config)
    special_ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(directory / "generation_config.json", {**special_ids, "do_sample": True, "temperature": 1.0})
    build_tokenizer().save(str(directory / "tokenizer.json"))
    write_json(directory / "tokenizer_config.json", tokenizer_config())
    return directory


def model_config(*, moe: bool, num_layers: int, width: int) -> dict[str, Any]:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": len(VOCABULARY),
        "hidden_size": HIDDEN * width,
        "intermediate_size": FFN * width,
        "num_hidden_layers": num_layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM * width,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "bos_token_id": ID["<|im_start|>"],
        "eos_token_id": ID["<|im_end|>"],
        "pad_token_id": ID["<pad>"],
    }
    if moe:
        config |= {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "num_experts": EXPERTS,
            "num_experts_per_tok": EXPERTS_PER_TOKEN,
            "moe_intermediate_size": EXPERT_FFN * width,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "router_aux_loss_coef": 0.001,
            "tie_word_embeddings": False,  # SGLang never ties those of this architecture
        }
    return config


def weight_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """HF names and shapes of all weights; an output layer that is tied to the embedding has none of its own."""
    hidden, head, vocab = config["hidden_size"], config["head_dim"], config["vocab_size"]
    yield "model.embed_tokens.weight", (vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.self_attn.q_proj.weight", (HEADS * head, hidden)
        yield f"{layer}.self_attn.k_proj.weight", (KV_HEADS * head, hidden)
        yield f"{layer}.self_attn.v_proj.weight", (KV_HEADS * head, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, HEADS * head)
        yield f"{layer}.self_attn.q_norm.weight", (head,)
        yield f"{layer}.self_attn.k_norm.weight", (head,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        if "num_experts" in config:
            yield f"{layer}.mlp.gate.weight", (EXPERTS, hidden)
            for expert in range(EXPERTS):
                prefix = f"{layer}.mlp.experts.{expert}"
                yield from feed_forward_shapes(prefix, hidden, config["moe_intermediate_size"])
        else:
            yield from feed_forward_shapes(f"{layer}.mlp", hidden, config["intermediate_size"])
    yield "model.norm.weight", (hidden,)
    if "num_labels" in config:
        yield "score.weight", (config["num_labels"], hidden)
        yield "score.bias", (config["num_labels"],)  # SGLang's head has one, and leaves it as memory was; 0: as without
    elif not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocab, hidden)


def feed_forward_shapes(prefix: str, hidden: int, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{prefix}.gate_proj.weight", (inner, hidden)
    yield f"{prefix}.up_proj.weight", (inner, hidden)
    yield f"{prefix}.down_proj.weight", (hidden, inner)


def initial_weight(name: str, shape: tuple[int, ...], hidden: int, rng: np.random.Generator) -> np.ndarray:
    if name == "score.bias":
        return np.zeros(shape, np.float32)
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    scale = 0.05 if "embed_tokens" in name or "lm_head" in name else 0.7 / math.sqrt(hidden)
    return rng.standard_normal(shape, np.float32) * np.float32(scale)


def build_tokenizer() -> Tokenizer:
    """BPE without merges cuts text into characters; every longer token is matched whole before that."""
    tokenizer = Tokenizer(models.BPE(vocab=ID, merges=[], unk_token="<unk>"))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CHAT_MARKERS])
    longer = [token for token in VOCABULARY if len(token) > 1 and token not in CHAT_MARKERS]
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in longer])
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<pad>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
        "chat_template": CHAT_TEMPLATE,
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
