"""Floating-point operations of a forward pass, from a model's figures: two for each multiply-and-add.

A backward pass is twice a forward pass; recomputation is not counted, since it is no work that the model asks for.

Shape suffix: N samples.
"""

from __future__ import annotations

import numpy as np

from slime.config.architecture import Architecture


def forward_flops(model: Architecture, lengths_N: np.ndarray, responses_N: np.ndarray) -> np.ndarray:
    """Operations for each sample, int64 [N], over all ranks that share it.

    A token goes through the matrices that it uses; it attends to itself and those before it, half of all pairs; logits
    are made for response tokens alone.

    Args:
        lengths_N: tokens, prompt and response.
        responses_N: tokens of the response.
    """
    lengths_N, responses_N = lengths_N.astype(np.int64), responses_N.astype(np.int64)
    layers, logits = model["num_layers"], model["hidden_size"] * model["vocab_size"]
    pairs_N = lengths_N * (lengths_N + 1) // 2
    return 2 * (lengths_N * model.matrix_parameters + pairs_N * layers * model.attention_width + responses_N * logits)
