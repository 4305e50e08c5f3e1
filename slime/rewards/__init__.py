"""Graders: a response and a label in, a score out."""

from slime.rewards.errors import RewardError
from slime.rewards.hub import BUILT_IN, grade, grade_group
from slime.rewards.score import score

__all__ = ["BUILT_IN", "RewardError", "grade", "grade_group", "score"]
