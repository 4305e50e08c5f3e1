"""The last layer of a value function: one number of each hidden state.

It is in float32 whatever the body is in, whole on every tensor-parallel rank, and begins at zero: a critic that knows
nothing expects nothing.

Shape suffixes: R response tokens · D hidden size.
"""

from __future__ import annotations

import torch
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn


class ValueHead(MegatronModule):
    """Takes the place of a GPTModel's output layer; `tp_group` is the group that would divide that."""

    def __init__(self, config: TransformerConfig, tp_group: torch.distributed.ProcessGroup) -> None:
        super().__init__(config)
        self.tp_group = tp_group
        self.weight = nn.Parameter(torch.zeros(1, config.hidden_size))

    def forward(self, hidden_RD: Tensor) -> Tensor:
        """Values, float32 [R]."""
        return (hidden_RD.float() @ self.weight.t()).squeeze(-1)
