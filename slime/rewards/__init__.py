"""Graders: a response and a label in, a score out."""

from slime.rewards.errors import RewardError, RewardFailure
from slime.rewards.hub import grade, grade_group
from slime.rewards.score import score

__all__ = ["RewardError", "RewardFailure", "grade", "grade_group", "score"]
