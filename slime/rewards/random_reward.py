"""--rm-type random: 0 or 1, to see what a run does when there is nothing to learn."""

from __future__ import annotations

import random
from typing import Any


def random_reward(args: Any, sample: Any) -> float:
    """Depends on --rollout-seed and the sample's numbers alone, not on the order in which samples are graded."""
    return float(
        random.Random(f"{args.rollout_seed}/{sample.rollout_id}/{sample.group_index}/{sample.index}").getrandbits(1)
    )
