"""The context of the engines that make the rollouts: as long as the rollouts and all eval sets ask for, unless SGLang
is told of another. It doesn't start with one that is longer than the model: no evaluation asks it to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from slime.config import architecture
from slime.config.engine_groups import served_models
from slime.config.engine_rules import longest_asked, stated_contexts
from slime.data.errors import DataError
from slime.data.eval_sets import EvalSet, eval_sets

if TYPE_CHECKING:
    from slime.config import Config


class Context(NamedTuple):
    """How many tokens prompt and response have together at most, and who asks for so many; None: there is no limit."""

    length: int | None
    whose: str


def needed(config: Config) -> Context:
    """The longest that is asked for. Without a limit, and where only evaluations ask for more than the model has, the
    engines have the model's own."""
    longest, own, asked = _longest(config), _of_the_model(config), config.rollout_max_context_len
    if None not in (longest.length, own) and asked <= own < longest.length:
        return Context(None, longest.whose)
    return longest


def _longest(config: Config) -> Context:
    rollout = Context(config.rollout_max_context_len, "--rollout-max-context-len")
    asked = [rollout]
    if config.eval_interval is not None:
        asked.append(Context(config.eval_max_context_len, "--eval-max-context-len"))
        asked += [Context(_limit(one), f"eval set {one.name}") for one in eval_sets(config)]
    return next((one for one in asked if one.length is None), None) or max(asked, key=lambda one: one.length)


def too_short(config: Config) -> list[tuple[str, str]]:
    """(where SGLang is told of a context, what is wrong with it) for eval sets that ask for more: each of their longest
    requests would be refused. Nothing of sets that can't be read, which others say."""
    try:
        sets = eval_sets(config) if config.eval_interval is not None else []
    except DataError:
        return []
    return [
        (
            where,
            f"the engine refuses what is longer than {length} tokens, and eval set {one.name} may ask for {longest}",
        )
        for where, length in stated_contexts(config, served_models(config))
        for one in sets
        if length and (longest := longest_asked(one.max_prompt_len, one.max_response_len, one.max_context_len)) > length
    ]


def described(config: Config) -> Iterator[str]:
    """What --check says of it: where evaluations ask for more than the rollouts do."""
    own = config.rollout_max_context_len
    if own is None or all(length for _, length in stated_contexts(config, served_models(config))):
        return
    length, whose = needed(config)
    if length is None and (asked := _longest(config).length) is not None:
        limit = f"{_of_the_model(config):,}"
        yield f"the engines take as many tokens as the model does, {limit}: {whose} asks for {asked:,}"
    elif length is None:
        yield f"the engines take as many tokens as the model does: {whose} has no limit"
    elif length > own:
        yield f"the engines take {length:,} tokens, prompt and response together: rollouts ask for less than {whose}"


def _of_the_model(config: Config) -> int | None:
    try:
        return architecture.read(config.hf_checkpoint).get("max_position_embeddings")
    except ValueError:  # who reads it for more than that says it
        return None


def _limit(one: EvalSet) -> int | None:
    if one.max_context_len is not None or one.max_prompt_len is None or one.max_response_len is None:
        return one.max_context_len
    return one.max_prompt_len + one.max_response_len
