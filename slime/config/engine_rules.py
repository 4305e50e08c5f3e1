"""Whether engines could start with what SGLang is told of them, and take what the rollout asks of them.

Each group of engines has the options of the command line and, over them, its own of --sglang-config.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from slime.config.config import Config
from slime.config.engine_groups import ServedModel, policy_of
from slime.config.errors import Problem

AT_LEAST_ONE = ("max_running_requests", "max_total_tokens", "page_size", "context_length")
SEEDS = 2**32  # numpy, which SGLang seeds as well, takes no others
ATTENTION = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
ON_A_CPU = ("torch_native", "intel_amx", "flex_attention")
LENGTHS = {f"{kind}_max_{part}_len" for kind in ("rollout", "eval") for part in ("prompt", "response", "context")}


@dataclass(frozen=True)
class _Told:
    """What SGLang is told of one group, and where."""

    config: Config
    model: ServedModel
    own: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.own.get(name, self.config.sglang.get(name))

    def where(self, name: str) -> str:
        if name in self.own:
            return f"{self.config.sglang_config}: model {self.model.name}: {name}"
        return "--sglang-" + name.replace("_", "-")


def look(config: Config, models: tuple[ServedModel, ...], unsound: set[str]) -> list[Problem]:
    """What is wrong on whatever devices; and on CPUs, where they are asked for."""
    problems: list[Problem] = []
    for told in _groups(config, models):
        problems += _numbers(told)
        if told.model == policy_of(models) and not LENGTHS & unsound:
            problems += _context(told)
        if config.device == "cpu":
            problems += _attention(told)
    return list(dict.fromkeys(problems))


def only_on_gpus(config: Config, models: tuple[ServedModel, ...]) -> list[Problem]:
    """What CPUs could not do."""
    return list(dict.fromkeys(problem for told in _groups(config, models) for problem in _attention(told)))


def stated_contexts(config: Config, models: Sequence[ServedModel]) -> Iterator[tuple[str, int | None]]:
    """Of each group of the policy's engines that is started here: where SGLang's context is stated, and its length;
    None where it is not."""
    for told in _groups(config, models):
        if told.model == policy_of(models):
            yield told.where("context_length"), told["context_length"]


def longest_asked(prompt: int | None, response: int | None, context: int | None) -> int:
    """Tokens of the longest request by limits, None where there is none; of a prompt without a limit one is known."""
    longest = (prompt or 1) + response if response else context or 0
    return min(longest, context or longest)


def _groups(config: Config, models: Sequence[ServedModel]) -> Iterator[_Told]:
    """Those that are started here."""
    for model in models:
        for group in model.groups:
            if group.num_engines and not group.addresses:
                yield _Told(config, model, group.overrides)


def _numbers(told: _Told) -> Iterator[Problem]:
    for name in AT_LEAST_ONE:
        if (number := told[name]) is not None and number < 1:
            yield Problem(told.where(name), f"{number} is out of range: must be >= 1", "leave it out for SGLang's own")
    if (seed := told["random_seed"]) is not None and not 0 <= seed < SEEDS:
        yield Problem(told.where("random_seed"), f"{seed} is out of range: must be 0 to {SEEDS - 1}", "choose another")


def _context(told: _Told) -> Iterator[Problem]:
    c, length = told.config, told["context_length"]
    if length is None or length < 1:
        return
    seen = []
    for kind in ("rollout", "eval") if c.eval_interval else ("rollout",):
        limits = {part: getattr(c, f"{kind}_max_{part}_len") for part in ("prompt", "response", "context")}
        longest = longest_asked(*limits.values())
        if length < longest and limits not in seen:
            given = ", ".join(f"--{kind}-max-{part}-len {limit}" for part, limit in limits.items() if limit)
            what = f"the engine refuses what is longer than {length} tokens, and {longest} may be asked of it ({given})"
            yield Problem(told.where("context_length"), what, f"raise it, or give --{kind}-max-context-len {length}")
        seen.append(limits)


def _attention(told: _Told) -> Iterator[Problem]:
    for name in ATTENTION:
        if (backend := told[name]) not in (None, *ON_A_CPU):
            yield Problem(told.where(name), f"{backend} computes on GPUs alone", "leave it out: torch_native is taken")
