"""Responses in samples: begun anew, or grown by what an engine made next.

Held: each token is in its sample once, with the log-prob that it was sampled with; what a sample has from an earlier
rollout stays as it is, but for its loss mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from slime.config import Config
from slime.data.sample import Sample
from slime.inference.client import Generation


def begin(sample: Sample, prompt: list[int]) -> None:
    """Makes of it the prompt alone, without a response and without what belonged to one."""
    sample.tokens = list(prompt)
    sample.response, sample.response_length, sample.rollout_log_probs = "", 0, []
    sample.loss_mask = sample.reward = sample.rollout_routed_experts = None
    sample.weight_versions, sample.weight_version_starts = [], []
    sample.prefix_cache_info, sample.spec_info, sample.generation_time = {}, {}, 0.0


def grow(sample: Sample, generation: Generation) -> None:
    """Appends what was generated after all tokens that the sample has."""
    _note_versions(sample, generation)
    new = generation.tokens
    sample.tokens = sample.tokens + new
    sample.response_length += len(new)
    sample.rollout_log_probs = sample.rollout_log_probs + generation.log_probs
    if sample.loss_mask is not None:
        sample.loss_mask = sample.loss_mask + [1] * len(new)
    sample.generation_time += generation.e2e_latency or 0.0
    _note_drafts(sample, generation)
    cached = sample.prefix_cache_info
    sample.prefix_cache_info = {
        "cached_tokens": cached.get("cached_tokens", 0) + generation.cached_tokens,
        "total_prompt_tokens": cached.get("total_prompt_tokens", 0) + generation.prompt_tokens,
    }


def _note_versions(sample: Sample, generation: Generation) -> None:
    """Which weights make the tokens that come next; not from where on, if that is not known of earlier ones."""
    known = len(sample.weight_version_starts) == len(sample.weight_versions)
    start = sample.response_length
    for version, length in generation.weight_versions:
        if length:
            sample.weight_versions = [*sample.weight_versions, version]
            sample.weight_version_starts = [*sample.weight_version_starts, start] if known else []
        start += length


def _note_drafts(sample: Sample, generation: Generation) -> None:
    """What came of speculative decoding, where the engine does it: it says so of each request."""
    verifications = generation.meta.get("spec_verify_ct", 0)
    if not verifications:
        return
    more = {
        "accepted_drafts": generation.meta["spec_num_correct_drafts"],
        "proposed_drafts": generation.meta["spec_num_proposed_drafts"],
        "verifications": verifications,
        "tokens": len(generation.tokens),
    }
    sample.spec_info = {name: sample.spec_info.get(name, 0) + count for name, count in more.items()}


def observe(sample: Sample, tokens: list[int]) -> None:
    """Appends what nobody sampled: what a tool, or a user, says between two turns. It is masked."""
    mask = [1] * sample.response_length if sample.loss_mask is None else sample.loss_mask
    sample.tokens = sample.tokens + tokens
    sample.response_length += len(tokens)
    sample.loss_mask = mask + [0] * len(tokens)
    sample.rollout_log_probs = sample.rollout_log_probs + [0.0] * len(tokens)


def room(args: Config, sample: Sample, sampling_params: Mapping[str, Any]) -> int:
    """How many tokens the next turn may get: of `max_new_tokens`, which is for all turns with what is said in between,
    and of the engine's context. 0 when nothing more can be asked for."""
    left = sampling_params["max_new_tokens"] - sample.response_length
    if args.rollout_max_context_len is not None:
        left = min(left, args.rollout_max_context_len - len(sample.tokens))
    return max(left, 0)


def mask_all(sample: Sample) -> None:
    """Nothing of the response so far is to be trained on: other weights made it."""
    if sample.response_length:
        sample.loss_mask = [0] * sample.response_length


def mask_only(sample: Sample, earlier: list[int]) -> None:
    """After a function of the user's that has left the mask of `mask_all` as it was: not to be trained on is what it
    has kept of the response of `earlier`."""
    both = zip(sample.tokens[sample.prompt_length :], earlier, strict=False)
    kept = len(list(takewhile(lambda pair: pair[0] == pair[1], both)))
    sample.loss_mask = [0] * kept + [1] * (sample.response_length - kept)
