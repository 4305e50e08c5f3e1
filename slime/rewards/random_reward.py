"""--rm-type random: 0 or 1, to see what a run does when there is nothing to learn."""

from __future__ import annotations

import random
from typing import Any

from slime.rewards.verdict import Verdict


def random_reward(args: Any, sample: Any) -> Verdict:
    """Depends on --rollout-seed and the sample's numbers alone, not on the order in which samples are graded."""
    seed = f"{args.rollout_seed}/{sample.rollout_id}/{sample.group_index}/{sample.index}"
    return Verdict(float(random.Random(seed).getrandbits(1)), "by chance")
