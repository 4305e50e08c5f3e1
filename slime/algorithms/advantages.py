"""Advantages of samples against others of their group.

Groups are told apart by id alone, so their sizes may differ and their samples need not be neighbours.

Shape suffixes: N samples · G groups.
"""

from __future__ import annotations

import numpy as np

EPSILON = 1e-6


def group_normalised(rewards_N, group_ids_N, *, divide_by_std: bool = True, ddof: int = 1) -> np.ndarray:
    """GRPO, arXiv:2402.03300, section 4.1.2: A = (r - mean of the group) / (std of the group + 1e-6).

    A group whose rewards are all equal, one of a single sample too, gets exactly 0. Without `divide_by_std` only the
    mean is subtracted (Dr. GRPO, arXiv:2503.20783, equation 3).

    Args:
        rewards_N: one reward a sample.
        group_ids_N: integers.
        ddof: 1 for the sample standard deviation, 0 for that of the population.

    Returns:
        float32 [N].
    """
    rewards_N, group_N, size_G = _grouped(rewards_N, group_ids_N)
    centred_N = rewards_N - (np.bincount(group_N, weights=rewards_N) / size_G)[group_N]
    if divide_by_std:
        variance_G = np.bincount(group_N, weights=centred_N**2) / np.maximum(size_G - ddof, 1)
        centred_N = centred_N / (np.sqrt(variance_G) + EPSILON)[group_N]
    return _zero_where_equal(centred_N, rewards_N, group_N, len(size_G))


def leave_one_out(rewards_N, group_ids_N) -> np.ndarray:
    """RLOO, arXiv:2402.14740, section 2.2: A = r - mean of the others of the group; float32 [N].

    A group whose rewards are all equal, one of a single sample too, gets exactly 0.
    """
    rewards_N, group_N, size_G = _grouped(rewards_N, group_ids_N)
    others_N = np.bincount(group_N, weights=rewards_N)[group_N] - rewards_N
    baseline_N = others_N / np.maximum(size_G[group_N] - 1, 1)
    return _zero_where_equal(rewards_N - baseline_N, rewards_N, group_N, len(size_G))


def _grouped(rewards_N, group_ids_N) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rewards, the group 0..G-1 of each, and the sizes of the groups."""
    _, group_N, size_G = np.unique(np.asarray(group_ids_N), return_inverse=True, return_counts=True)
    return np.asarray(rewards_N, dtype=np.float64), group_N, size_G


def _zero_where_equal(
    advantages_N: np.ndarray, rewards_N: np.ndarray, group_N: np.ndarray, num_groups: int
) -> np.ndarray:
    """The mean of equal numbers is not always that number in floating point."""
    lowest_G, highest_G = np.full(num_groups, np.inf), np.full(num_groups, -np.inf)
    np.minimum.at(lowest_G, group_N, rewards_N)
    np.maximum.at(highest_G, group_N, rewards_N)
    return np.where((lowest_G == highest_G)[group_N], 0.0, advantages_N).astype(np.float32)
