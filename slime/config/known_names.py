"""Names that scripts of this field carry and that are not simply options here. Data only.

A test holds that no name is both here and an option, so that whoever adds an option also takes it off this list.
"""

from __future__ import annotations

_HALF = (
    "would move weights, gradients and optimizer state off the devices while the engines generate; a library for that"
    " is still to come, and they stay where they are",
    "leave it out, and let the engines make room: --offload-rollout, with --sglang-mem-fraction-static below what"
    " training leaves free; --optimizer-cpu-offload keeps the optimizer in host memory for good",
)
_DELTA = (
    "is about sending only the weights that an update has changed, which needs an encoder here and a decoder in the"
    " engines; every tensor is sent instead",
    "leave it out: --update-weight-transport disk or nccl, and --update-weights-interval N to send less often",
)

NOT_BUILT: dict[str, tuple[str, str]] = {
    "offload": _HALF,
    "offload-train": _HALF,
    "release-train": (
        "would end the training processes while the engines generate, and start them again from host memory; they stay",
        "leave it out; on devices of their own, without --colocate, training and generation need no such turns",
    ),
    "update-weight-delta-encoding": _DELTA,
    "update-weight-delta-checksum": _DELTA,
    "update-weight-local-checkpoint-dir": _DELTA,
    "multimodal-keys": (
        "would hand images, audio or video of a prompt to the model; the families that can be trained here read text"
        " alone",
        "leave it out; what else a line holds reaches hooks and rewards under --metadata-key",
    ),
    "use-distributed-post": (
        "would send requests to the engines from a process on each node; here one process sends all of them, as"
        " `python -m slime.bench rollout` measures",
        "leave it out; --sglang-server-concurrency says how many requests an engine is given at a time",
    ),
}
"""Names that we know and have nothing for: name -> (what it would do and why it does not, what to do instead). Switched
off (--no-offload-train) they ask for nothing and are accepted."""

NOT_BUILT_VALUES: dict[str, dict[str, tuple[str, str]]] = {"update_weight_mode": {"delta": _DELTA}}
"""The same of choices of an option."""

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
    "num-layers-per-virtual-pipeline-stage": "virtual-pipeline-model-parallel-size",
    "output-dir": "run-dir save-hf",
    "reward-funcs": "custom-rm-path rm-type",
    "sglang-tp": "rollout-num-gpus-per-engine",
    "temperature": "rollout-temperature",
    "tokenizer": "hf-checkpoint",
    "tp": "tensor-model-parallel-size rollout-num-gpus-per-engine",
    "warmup-steps": "lr-warmup-iters",
}
"""What other trainers call it -> the options to suggest to who writes that."""
