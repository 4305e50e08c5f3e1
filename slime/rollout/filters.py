"""Ready-made functions for --dynamic-sampling-filter-path."""

from __future__ import annotations

from typing import Any

from slime.config import Config
from slime.rewards import score
from slime.rollout.scores import is_graded
from slime.rollout.types import DynamicFilterOutput, Group, flatten


def check_reward_nonzero_std(args: Config, samples: Group, **kwargs: Any) -> DynamicFilterOutput:
    """Dynamic sampling of DAPO (arXiv:2503.14476, section 3.2): a group whose rewards are all equal has no advantage to
    learn from, so another is sampled in its place. Rewards that were not had and are dropped don't count."""
    graded = [sample for sample in flatten([samples]) if is_graded(sample)]
    rewards = [score(sample.name, sample.reward, args.reward_key) for sample in graded]
    if len(set(rewards)) > 1:
        return DynamicFilterOutput(True)
    return DynamicFilterOutput(False, f"zero_std_{round(rewards[0], 1)}" if rewards else "no_reward")
