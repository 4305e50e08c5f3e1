"""How much each token counts in a mean over a global batch.

A mean is a sum of values times weights. The weights are made from sizes of the whole global batch, known up front, so a
rank only sums over what it has, and the sum over ranks does not depend on how samples were packed and sharded.

Shape suffixes: N samples · R response tokens of all of them, concatenated.
"""

from __future__ import annotations

import numpy as np


def sample_mean_weights(mask_R: np.ndarray, response_lengths_N: np.ndarray, sizes_N: np.ndarray) -> np.ndarray:
    """Weights, float32 [R]: the sum of weight x value is the sum over samples of their means over unmasked tokens.

    `sizes_N`: over how many unmasked tokens the mean is, those of the sample and, where it is a part of one that fanned
    out, those of the other parts. A sample without unmasked tokens has weights 0: it adds nothing, and never 0/0.
    """
    return (mask_R / np.repeat(np.maximum(sizes_N, 1), response_lengths_N)).astype(np.float32)
