"""Megatron: build, forward, train step, export. No Ray in it, so that it also runs under torchrun.

Where PyTorch sees no GPU, importing this package first makes Megatron run on the CPU. To train on the CPU of a machine
with GPUs, hide them: CUDA_VISIBLE_DEVICES=''.
"""

import logging
import sys
import warnings

import torch

from slime.platform import megatron_cpu

if not torch.cuda.is_available():
    megatron_cpu.enable()
    # It says in ten ways that Apex and Transformer Engine are missing, which a CPU has no use for.
    warnings.filterwarnings("ignore", module=r"megatron\.")
# Its timers import wandb where it is installed, which nobody here has them write to: a tenth of the start of a rank.
if "wandb" not in sys.modules:
    sys.modules["wandb"] = None
    try:
        import megatron.core.timers  # noqa: F401
    finally:
        del sys.modules["wandb"]
# Each save and load has it told that ShardedTensor, which Megatron's format is made of, will be replaced.
warnings.filterwarnings("ignore", module=r"torch\.distributed\.checkpoint\.")
# These advise the authors of a trainer, at each start, and not those who run it: to build models of another class, to
# lay out gradient buffers before making them, which it does by itself otherwise, and to write checkpoints by another
# package.
for noisy in (
    "megatron.core.models.gpt.gpt_model",
    "megatron.core.distributed.distributed_data_parallel",
    "megatron.core.dist_checkpointing.strategies.torch",
):
    logging.getLogger(noisy).setLevel(logging.ERROR)
