"""How to sample: the engine's parameters, from the options of the rollout or of an eval set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from slime.config import Config
from slime.data.eval_sets import EvalSet
from slime.data.sample import Sample


@dataclass(frozen=True, slots=True)
class Sampling:
    """`params` are SGLang's, `max_new_tokens` among them; custom generate functions get a copy of these."""

    params: dict[str, Any]
    max_context_len: int | None

    @classmethod
    def for_rollout(cls, config: Config) -> Sampling:
        return cls._of(
            config,
            temperature=config.rollout_temperature,
            top_p=config.rollout_top_p,
            top_k=config.rollout_top_k,
            max_response_len=config.rollout_max_response_len,
            max_context_len=config.rollout_max_context_len,
        )

    @classmethod
    def for_eval(cls, config: Config, eval_set: EvalSet) -> Sampling:
        minimum = {} if eval_set.min_new_tokens is None else {"min_new_tokens": eval_set.min_new_tokens}
        return cls._of(
            config,
            temperature=eval_set.temperature,
            top_p=eval_set.top_p,
            top_k=eval_set.top_k,
            max_response_len=eval_set.max_response_len,
            max_context_len=eval_set.max_context_len,
            **minimum,
        )

    @classmethod
    def _of(
        cls, config: Config, *, max_response_len: int | None, max_context_len: int | None, **params: Any
    ) -> Sampling:
        params["max_new_tokens"] = max_response_len or max_context_len
        params["skip_special_tokens"] = config.rollout_skip_special_tokens
        # Text that custom functions get from the engine says all that was sampled, as the tokens do.
        params["no_stop_trim"] = True
        params["spaces_between_special_tokens"] = False
        if config.rollout_stop:
            params["stop"] = list(config.rollout_stop)
        if config.rollout_stop_token_ids:
            params["stop_token_ids"] = list(config.rollout_stop_token_ids)
        return cls(params, max_context_len)

    def max_new_tokens(self, num_prompt_tokens: int, num_response_tokens: int = 0) -> int:
        """How many tokens a response to such a prompt may still get, when it has some; 0 when the context is full."""
        most = self.params["max_new_tokens"]
        if self.max_context_len is not None:
            most = min(most, self.max_context_len - num_prompt_tokens)
        return max(most - num_response_tokens, 0)


def seeds(config: Config, samples: Sequence[Sample]) -> list[int] | None:
    """Of each sample its own, by --rollout-seed: the same weights say the same again, whatever is generated beside.

    None unless the engines heed them, with --sglang-enable-deterministic-inference; SGLang has that on GPUs only.
    """
    if not config.sglang.get("enable_deterministic_inference"):
        return None
    return [_hashed(config.rollout_seed, s.rollout_id, s.index, s.response_length) for s in samples]


def _hashed(*numbers: int | None) -> int:
    """31 bits, as SGLang wants a seed."""
    return int.from_bytes(blake2b(repr(numbers).encode(), digest_size=4).digest()) >> 1
