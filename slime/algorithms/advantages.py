"""Advantages of samples against others of their group.

Groups are told apart by id alone, so their sizes may differ and their samples need not be neighbours. Where one sample
of a group has fanned out into several, `wholes_N` gives these one number: together they count in the group as one, in
its mean and in its variance, and each is compared by its own reward.

Shape suffixes: N samples · W wholes · G groups.
"""

from __future__ import annotations

import numpy as np

EPSILON = 1e-6


def group_normalised(rewards_N, group_ids_N, wholes_N=None, *, divide_by_std: bool = True, ddof: int = 1) -> np.ndarray:
    """GRPO, arXiv:2402.03300, section 4.1.2: A = (r - mean of the group) / (std of the group + 1e-6).

    A group whose rewards are all equal, one of a single sample too, gets exactly 0. Without `divide_by_std` only the
    mean is subtracted (Dr. GRPO, arXiv:2503.20783, equation 3). Of wholes with p parts the variance is the mean over
    the wholes of (1/p) sum (r - mean)^2, as it is for p = 1: whatever the parts get, A stays bounded.

    Args:
        rewards_N: one reward a sample.
        group_ids_N: integers.
        wholes_N: integers, equal for the parts of one sample; unset: nothing has fanned out.
        ddof: 1 for the sample standard deviation, 0 for that of the population.

    Returns:
        float32 [N].
    """
    rewards_N, group_N, whole_N = _numbered(rewards_N, group_ids_N, wholes_N)
    rewards_W, group_W = _of_wholes(rewards_N, group_N, whole_N)
    size_G = np.bincount(group_W)
    mean_G = np.bincount(group_W, weights=rewards_W) / size_G
    centred_N = rewards_N - mean_G[group_N]
    if divide_by_std:
        squares_W, _ = _of_wholes(centred_N**2, group_N, whole_N)
        variance_G = np.bincount(group_W, weights=squares_W) / np.maximum(size_G - ddof, 1)
        centred_N = centred_N / (np.sqrt(variance_G) + EPSILON)[group_N]
    return _zero_where_equal(centred_N, rewards_N, group_N, len(size_G))


def leave_one_out(rewards_N, group_ids_N, wholes_N=None) -> np.ndarray:
    """RLOO, arXiv:2402.14740, section 2.2: A = r - mean of the others of the group; float32 [N].

    A group whose rewards are all equal gets exactly 0, and so does one of a single sample, whatever its parts got.
    """
    rewards_N, group_N, whole_N = _numbered(rewards_N, group_ids_N, wholes_N)
    rewards_W, group_W = _of_wholes(rewards_N, group_N, whole_N)
    size_G = np.bincount(group_W)
    others_W = np.bincount(group_W, weights=rewards_W)[group_W] - rewards_W
    baseline_W = others_W / np.maximum(size_G[group_W] - 1, 1)
    compared_N = np.where(size_G[group_N] > 1, rewards_N - baseline_W[whole_N], 0.0)
    return _zero_where_equal(compared_N, rewards_N, group_N, len(size_G))


def _numbered(rewards_N, group_ids_N, wholes_N) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rewards, the group 0..G-1 of each, and the whole 0..W-1 of each."""
    rewards_N = np.asarray(rewards_N, dtype=np.float64)
    wholes_N = np.arange(len(rewards_N)) if wholes_N is None else np.asarray(wholes_N)
    return rewards_N, *(np.unique(ids_N, return_inverse=True)[1] for ids_N in (np.asarray(group_ids_N), wholes_N))


def _of_wholes(values_N: np.ndarray, group_N: np.ndarray, whole_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean value and group of each whole."""
    parts_W = np.bincount(whole_N)
    group_W = np.zeros(len(parts_W), group_N.dtype)
    group_W[whole_N] = group_N
    return np.bincount(whole_N, weights=values_N) / parts_W, group_W


def _zero_where_equal(
    advantages_N: np.ndarray, rewards_N: np.ndarray, group_N: np.ndarray, num_groups: int
) -> np.ndarray:
    """The mean of equal numbers is not always that number in floating point."""
    lowest_G, highest_G = np.full(num_groups, np.inf), np.full(num_groups, -np.inf)
    np.minimum.at(lowest_G, group_N, rewards_N)
    np.maximum.at(highest_G, group_N, rewards_N)
    return np.where((lowest_G == highest_G)[group_N], 0.0, advantages_N).astype(np.float32)
