"""What a token leads to: discounted returns, and GAE against a value function.

Time is counted in tokens that the policy chose. Masked ones (what a tool answered, say) are no actions: they get no
reward and no advantage, and what comes after them is discounted as if they were not there.

Nothing here loops over tokens: a discounted sum within a chunk is one matrix product, and what the chunks hand on to
the chunks before them is the same problem again, CHUNK times smaller.

Shape suffixes: N samples · R response tokens of all of them, concatenated · U the unmasked ones of them · K chunks · C
tokens of a chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 128


def token_rewards(rewards_N: Tensor, penalties_R: Tensor, mask_R: Tensor, lengths_N: Tensor) -> Tensor:
    """REINFORCE++, arXiv:2501.03262: minus the penalty at each unmasked token, plus the sample's reward at
    its last one; float32 [R], 0 where masked.

    Args:
        penalties_R: of each token, a KL times its coefficient say.
        lengths_N: response tokens of each sample, masked or not.
    """
    rewards_R = torch.where(mask_R > 0, -penalties_R.float(), torch.zeros((), device=mask_R.device))
    unmasked = torch.cumsum(mask_R > 0, 0)
    ends_N = lengths_N.cumsum(0)
    before = torch.cat([unmasked.new_zeros(1), unmasked])
    has_token_N = before[ends_N] > before[ends_N - lengths_N]
    last_N = torch.searchsorted(unmasked, before[ends_N])  # the first place with that count is the last unmasked token
    return rewards_R.index_add(0, last_N[has_token_N], rewards_N.float()[has_token_N])


def discounted_returns(rewards_R: Tensor, mask_R: Tensor, lengths_N: Tensor, gamma: float) -> Tensor:
    """G_t = r_t + gamma · G of the next unmasked token of the sample; float32 [R], 0 where masked."""
    chosen_U, lengths_N = _unmasked(mask_R, lengths_N)
    returns_U = discounted_sums(rewards_R[chosen_U].float(), lengths_N, gamma)
    return torch.zeros_like(rewards_R, dtype=torch.float32).index_copy(0, chosen_U, returns_U)


def gae(
    rewards_R: Tensor, values_R: Tensor, mask_R: Tensor, lengths_N: Tensor, *, gamma: float, lambd: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation, arXiv:1506.02438, equation 16; the value after the last token is 0.

    delta_t = r_t + gamma · V_{t+1} - V_t, and A_t = sum over k of (gamma · lambd)^k · delta_{t+k}.

    Args:
        values_R: V of the state that each token was chosen in.
        lengths_N: response tokens of each sample, masked or not.

    Returns:
        Advantages, and returns A + V that a value function is fitted to; both float32 [R], 0 where masked.
    """
    chosen_U, lengths_N = _unmasked(mask_R, lengths_N)
    rewards_U, values_U = rewards_R[chosen_U].float(), values_R[chosen_U].float()
    next_U = torch.cat([values_U[1:], values_U.new_zeros(1)])[: len(values_U)]
    next_U[(lengths_N.cumsum(0) - 1)[lengths_N > 0]] = 0.0
    advantages_U = discounted_sums(rewards_U + gamma * next_U - values_U, lengths_N, gamma * lambd)
    zeros_R = torch.zeros_like(rewards_R, dtype=torch.float32)
    return zeros_R.index_copy(0, chosen_U, advantages_U), zeros_R.index_copy(0, chosen_U, advantages_U + values_U)


def discounted_sums(values_R: Tensor, lengths_N: Tensor, decay: float) -> Tensor:
    """y_t = x_t + decay · y_{t+1} within each sample; float32 [R]. Linear in the number of tokens."""
    if not len(values_R):
        return values_R.float()
    chunks_N = (lengths_N + CHUNK - 1).div(CHUNK, rounding_mode="floor")
    starts_N = lengths_N.cumsum(0) - lengths_N
    # Each sample begins with a new chunk, so its tokens move on by the padding of those before it.
    shift_N = (chunks_N.cumsum(0) - chunks_N) * CHUNK - starts_N
    place_R = torch.arange(len(values_R), device=values_R.device) + shift_N.repeat_interleave(lengths_N)
    padded_KC = values_R.new_zeros(int(chunks_N.sum()) * CHUNK, dtype=torch.float32)
    padded_KC = padded_KC.index_copy(0, place_R, values_R.float()).view(-1, CHUNK)
    step_C = torch.arange(CHUNK, device=values_R.device)
    distance_CC = (step_C[:, None] - step_C).clamp(min=0)
    weight_CC = torch.tril(torch.full_like(distance_CC, decay, dtype=torch.float32).pow(distance_CC))
    sums_KC = padded_KC @ weight_CC
    if int(chunks_N.max()) > 1:
        of_chunks_K = discounted_sums(sums_KC[:, 0], chunks_N, decay**CHUNK)
        from_next_K = torch.cat([of_chunks_K[1:], of_chunks_K.new_zeros(1)])
        from_next_K[(chunks_N.cumsum(0) - 1)[chunks_N > 0]] = 0.0
        sums_KC = sums_KC.addcmul_(from_next_K[:, None], decay ** (CHUNK - step_C).float())
    return sums_KC.view(-1)[place_R]


def _unmasked(mask_R: Tensor, lengths_N: Tensor) -> tuple[Tensor, Tensor]:
    """Places of the unmasked tokens, and how many each sample has."""
    is_chosen_R = mask_R > 0
    sample_R = torch.arange(len(lengths_N), device=mask_R.device).repeat_interleave(lengths_N)
    return is_chosen_R.nonzero().squeeze(1), torch.bincount(sample_R[is_chosen_R], minlength=len(lengths_N))
