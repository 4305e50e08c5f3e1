"""Megatron: build, forward, train step, export. No Ray in it, so that it also runs under torchrun.

Where PyTorch sees no GPU, importing this package first makes Megatron run on the CPU. To train on the CPU of a machine with
GPUs, hide them: CUDA_VISIBLE_DEVICES=''.
"""

import torch

from slime.platform import megatron_cpu

if not torch.cuda.is_available():
    megatron_cpu.enable()
