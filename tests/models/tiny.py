"""Small random checkpoints made by transformers, and Megatron models of them under any parallel layout.

Megatron is imported inside the functions, which run in processes of their own (tests.distributed): it needs torch
patched first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from slime.models import Family

COMMON = {
    "model_type": "qwen3", "vocab_size": 91, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8, "max_position_embeddings": 64,
    "rope_theta": 1e4, "rms_norm_eps": 1e-5, "dtype": "float32", "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
MOE = COMMON | {
    "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}  # fmt: skip
SIGMOID_MOE = COMMON | {
    "n_routed_experts": 4, "n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "norm_topk_prob": True, "n_group": 1, "topk_group": 1,
}  # fmt: skip
LATENT = SIGMOID_MOE | {
    "model_type": "deepseek_v3", "num_key_value_heads": 8, "head_dim": None, "kv_lora_rank": 16, "q_lora_rank": 24,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6, "n_routed_experts": 8, "num_experts_per_tok": 4,
    "n_group": 4, "topk_group": 2, "rms_norm_eps": 1e-6, "num_nextn_predict_layers": 1,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "beta_fast": 32, "beta_slow": 1,
    "mscale": 1.0, "mscale_all_dim": 0.7, "rope_theta": 1e4,
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_theta": 5e5,
}  # fmt: skip
KIMI_ROPE = YARN | {"rope_theta": 5e4, "beta_fast": 1.0, "mscale_all_dim": 1.0}
KINDS: dict[str, dict[str, Any]] = {
    "dense": COMMON,
    "tied": COMMON | {"tie_word_embeddings": True},
    "one group": COMMON | {"num_key_value_heads": 1},
    "moe": MOE,
    "moe, some layers dense": MOE | {"mlp_only_layers": [0], "norm_topk_prob": False},
    "llama": COMMON | {"model_type": "llama", "rope_theta": 5e5},
    "llama 3.1": COMMON | {"model_type": "llama", "rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True},
    "qwen2": COMMON | {"model_type": "qwen2", "head_dim": None},
    "glm4": COMMON | {
        "model_type": "glm4", "attention_bias": True, "partial_rotary_factor": 0.5, "num_key_value_heads": 2,
    },
    "glm4 without biases": COMMON | {"model_type": "glm4", "attention_bias": False, "partial_rotary_factor": 0.5},
    "glm4_moe": SIGMOID_MOE | {
        "model_type": "glm4_moe", "attention_bias": True, "partial_rotary_factor": 0.5, "use_qk_norm": True,
    },
    "glm4_moe without qk-norm": SIGMOID_MOE | {
        "model_type": "glm4_moe", "attention_bias": False, "partial_rotary_factor": 0.5, "use_qk_norm": False,
    },
    "deepseek_v3": LATENT | {"rope_parameters": YARN},
    "moonlight": LATENT | {"q_lora_rank": None, "n_group": 1, "topk_group": 1},
    "kimi_k2": LATENT | {"n_group": 1, "topk_group": 1, "rope_parameters": KIMI_ROPE, "num_nextn_predict_layers": 0},
    "qwen2 tied": COMMON | {"model_type": "qwen2", "head_dim": None, "tie_word_embeddings": True},
}  # fmt: skip
TOKENS = torch.randint(0, COMMON["vocab_size"], (21,), generator=torch.Generator().manual_seed(1))
LENGTHS = [8, 1, 12]  # of the sequences in TOKENS


def make_checkpoint(
    directory: Path, kind: str, dtype: torch.dtype = torch.float32, *, layers: int | None = None, **save: Any
) -> Path:
    """A random checkpoint of that kind, written by transformers; `save` goes to save_pretrained."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = {key: value for key, value in KINDS[kind].items() if value is not None or key == "q_lora_rank"}
    if layers is not None:
        config["num_hidden_layers"] = layers
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    with torch.no_grad():
        for name, tensor in model.state_dict().items():  # with the biases of routers, which are buffers
            tensor.normal_(1.0 if "norm" in name else 0.0, 0.2)
    model.to(dtype).save_pretrained(directory, **save)
    if kind == "kimi_k2":
        _name_as_published(directory / "config.json")
    return directory


def _name_as_published(path: Path) -> None:
    """With the model_type and the keys of Kimi-K2's own config.json, neither of which transformers writes."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config |= {
        "model_type": "kimi_k2",
        "architectures": ["DeepseekV3ForCausalLM"],
        "rope_theta": rope.pop("rope_theta"),
    }
    config |= {"rope_scaling": {"type": rope.pop("rope_type"), **rope}, "torch_dtype": config.pop("dtype")}
    config |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1, "aux_loss_alpha": 0.001}
    path.write_text(json.dumps(config))


def make_multi_token_checkpoint(directory: Path, kind: str) -> Path:
    """One of two layers, and a third, as transformers made it, that predicts further tokens."""
    make_checkpoint(directory, kind, layers=3)
    config = json.loads((directory / "config.json").read_text())
    last = config["num_hidden_layers"] - 1
    config |= {"num_hidden_layers": last, "num_nextn_predict_layers": 1}
    (directory / "config.json").write_text(json.dumps(config))
    tensors = load_file(directory / "model.safetensors")
    hidden, layer = config["hidden_size"], f"model.layers.{last}"
    random = torch.Generator().manual_seed(2)
    tensors |= {
        f"{layer}.{norm}.weight": 1 + 0.2 * torch.randn(hidden, generator=random)
        for norm in ("enorm", "hnorm", "shared_head.norm")
    }
    tensors[f"{layer}.eh_proj.weight"] = 0.2 * torch.randn(hidden, 2 * hidden, generator=random)
    tensors[f"{layer}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors[f"{layer}.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def reference_logits(directory: Path) -> Tensor:
    """transformers' logits [T, vocabulary] of the packed TOKENS."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = json.loads((directory / "config.json").read_text())
    # Kimi-K2's own code, which transformers would have to download, is DeepSeek-V3's.
    config["model_type"] = config["model_type"].replace("kimi_k2", "deepseek_v3")
    model = AutoModelForCausalLM.from_pretrained(
        directory, config=AutoConfig.for_model(**config), dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        return torch.cat([model(sequence[None]).logits[0] for sequence in TOKENS.split(LENGTHS)])


@contextmanager
def megatron_model(
    family: Family,
    dtype: torch.dtype = torch.float32,
    tp: int = 1,
    pp: int = 1,
    vpp: int | None = None,
    ep: int = 1,
    etp: int = 1,
) -> Iterator[list[nn.Module]]:
    """This rank's chunks of a randomly initialised model, and the process groups as long as it lives."""
    from slime.platform.megatron_cpu import enable

    enable()
    from megatron.core import parallel_state as mpu
    from megatron.core.models.gpt import GPTModel
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    from slime.training.layers import block_spec

    sizes = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "virtual_pipeline_model_parallel_size": vpp,
        "expert_model_parallel_size": ep,
        "expert_tensor_parallel_size": etp,
    }
    mpu.initialize_model_parallel(**sizes)
    try:
        model_parallel_cuda_manual_seed(1)
        fields = family.transformer_fields()
        config = (MLATransformerConfig if "kv_lora_rank" in fields else TransformerConfig)(
            **fields,
            **sizes,
            transformer_impl="local",
            use_cpu_initialization=True,
            params_dtype=dtype,
            pipeline_dtype=dtype,
            variable_seq_lengths=True,
            moe_token_dispatcher_type="alltoall",
            deallocate_pipeline_outputs=False,
            overlap_p2p_comm=vpp is not None,
            batch_p2p_comm=vpp is None,
        )
        chunks = []
        for stage in [None] if vpp is None else range(vpp):
            model = GPTModel(
                config=config,
                transformer_layer_spec=block_spec(config, post_norms=family.post_norms, vp_stage=stage),
                pre_process=mpu.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
                post_process=mpu.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
                parallel_output=False,
                vp_stage=stage,
                **family.gpt_arguments(tp),
            )
            chunks.append(model.eval())  # experts refuse to train under TP without sequence parallelism
        yield chunks
    finally:
        mpu.destroy_model_parallel()
        # Megatron only forgets its groups; their threads would slow down all that follows in this process.
        for group in list(dist.distributed_c10d._world.pg_map):
            if group is not dist.group.WORLD:
                dist.destroy_process_group(group)


def megatron_logits(chunks: list[nn.Module]) -> Tensor | None:
    """Logits [T, padded vocabulary] of the packed TOKENS; None on ranks without the last pipeline stage. Collective."""
    from megatron.core import parallel_state as mpu
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.pipeline_parallel import get_forward_backward_func

    cu_seqlens = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    packed = PackedSeqParams(
        "thd", cu_seqlens_q=cu_seqlens, cu_seqlens_kv=cu_seqlens, max_seqlen_q=12, max_seqlen_kv=12
    )
    positions = torch.cat([torch.arange(n) for n in LENGTHS])

    def forward(_: Any, model: nn.Module) -> tuple[Tensor, Any]:
        return model(
            TOKENS[None], positions[None], None, packed_seq_params=packed
        ), lambda logits, non_loss_data: logits

    micro_batches = mpu.get_pipeline_model_parallel_world_size()
    with torch.no_grad():
        logits = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=[None] * len(chunks),
            model=chunks,
            num_microbatches=micro_batches,
            seq_length=len(TOKENS),
            micro_batch_size=1,
            forward_only=True,
            collect_non_loss_data=True,
        )
    return logits[0][0] if logits else None
