"""Group-relative advantages.

Shape suffixes: N samples · G groups.
"""

from __future__ import annotations

import numpy as np

EPSILON = 1e-6


def group_normalised(rewards_N, group_ids_N, *, divide_by_std: bool = True, ddof: int = 1) -> np.ndarray:
    """GRPO, arXiv:2402.03300, section 4.1.2: A = (r - mean of the group) / (std of the group + 1e-6).

    Groups are told apart by id alone, so their sizes may differ and their samples need not be neighbours. A group whose
    rewards are all equal, one of a single sample too, gets exactly 0. Without `divide_by_std` only the mean is
    subtracted (Dr. GRPO, arXiv:2503.20783, equation 3).

    Args:
        rewards_N: one reward a sample.
        group_ids_N: integers.
        ddof: 1 for the sample standard deviation, 0 for that of the population.

    Returns:
        float32 [N].
    """
    rewards_N = np.asarray(rewards_N, dtype=np.float64)
    _, group_N, size_G = np.unique(np.asarray(group_ids_N), return_inverse=True, return_counts=True)
    centred_N = rewards_N - (np.bincount(group_N, weights=rewards_N) / size_G)[group_N]
    if divide_by_std:
        variance_G = np.bincount(group_N, weights=centred_N**2) / np.maximum(size_G - ddof, 1)
        centred_N = centred_N / (np.sqrt(variance_G) + EPSILON)[group_N]
    lowest_G, highest_G = np.full(len(size_G), np.inf), np.full(len(size_G), -np.inf)
    np.minimum.at(lowest_G, group_N, rewards_N)
    np.maximum.at(highest_G, group_N, rewards_N)
    # The mean of equal numbers is not always that number in floating point.
    return np.where((lowest_G == highest_G)[group_N], 0.0, centred_N).astype(np.float32)
