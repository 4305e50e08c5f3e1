"""Names that scripts of this field carry and that are not simply options here. Data only; it shrinks as slime grows.

A test holds that no name is both here and an option, so that whoever adds an option also takes it off this list.
"""

from __future__ import annotations

NOT_YET = frozenset(
    """
    offload offload-train update-weight-mode release-train update-weight-disk-dir update-weight-disk-keep-files
    update-weight-delta-encoding
    update-weight-delta-checksum update-weight-local-checkpoint-dir custom-update-weight-post-write-path
    model-name
    disable-rollout-global-dataset multimodal-keys
    http-proxy use-distributed-post
    """.split()
)

NOT_YET_VALUES: dict[str, frozenset[str]] = {
    "update_weight_transport": frozenset({"disk"}),
}

NO_EFFECT = {
    "use-mcore-models": "models are always Megatron-core's",
    "use-flash-attn": "the attention kernel is --attention-backend",
    "make-vocab-size-divisible-by": "the vocabulary is that of config.json",
    "tokenizer-type": "the tokenizer is that of --hf-checkpoint",
    "tokenizer-model": "the tokenizer is that of --hf-checkpoint",
    "seq-length": "samples have their own lengths; see --rollout-max-context-len and --max-tokens-per-gpu",
    "train-iters": "the run has --num-rollout rollouts",
    "loss-mask-type": "loss masks are read off the checkpoint's chat template, whatever it is",
    "ckpt-format": "checkpoints are torch_dist, exports Hugging Face safetensors",
}
"""Accepted, with or without values, and said once: name -> why there is nothing to do."""

RENAMED: dict[str, tuple[str, str | bool | None]] = {
    "sglang-mem-fraction": ("sglang-mem-fraction-static", None),
    "sglang-enable-deepep-moe": ("sglang-moe-a2a-backend", "deepep"),
    "sglang-enable-ep-moe": ("sglang-ep-size", "engine-size"),
    "sglang-cuda-graph-bs": ("sglang-cuda-graph-bs-decode", None),
    "sglang-cuda-graph-max-bs": ("sglang-cuda-graph-max-bs-decode", None),
    "accumulate-allreduce-grads-in-fp32": ("grad-reduce-in-fp32", None),
    "no-rope-fusion": ("apply-rope-fusion", False),
    "recompute-activations": ("recompute-granularity", "selective"),
    "decoder-first-pipeline-num-layers": ("num-layers-in-first-pipeline-stage", None),
    "decoder-last-pipeline-num-layers": ("num-layers-in-last-pipeline-stage", None),
}
"""Older name -> (today's name, the value it stands for). None: the value given; engine-size: an engine's devices."""

ELSEWHERE = {
    "batch-size": "rollout-batch-size global-batch-size",
    "beta": "kl-loss-coef",
    "clip": "eps-clip",
    "context-length": "rollout-max-context-len",
    "data": "prompt-data",
    "dataset": "prompt-data",
    "epochs": "num-epoch",
    "kl-beta": "kl-loss-coef",
    "learning-rate": "lr",
    "max-completion-length": "rollout-max-response-len",
    "max-new-tokens": "rollout-max-response-len",
    "max-prompt-length": "rollout-max-prompt-len",
    "max-steps": "num-rollout",
    "model": "hf-checkpoint",
    "model-name-or-path": "hf-checkpoint",
    "model-path": "hf-checkpoint",
    "num-generations": "n-samples-per-prompt",
    "num-train-epochs": "num-epoch",
    "output-dir": "run-dir save-hf",
    "reward-funcs": "custom-rm-path rm-type",
    "sglang-tp": "rollout-num-gpus-per-engine",
    "temperature": "rollout-temperature",
    "tokenizer": "hf-checkpoint",
    "tp": "tensor-model-parallel-size rollout-num-gpus-per-engine",
    "warmup-steps": "lr-warmup-iters",
}
"""What other trainers call it -> the options to suggest to who writes that."""
