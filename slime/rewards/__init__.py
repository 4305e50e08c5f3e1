"""Graders: a response and a label in, a score out."""

from slime.rewards.errors import RewardError, RewardFailure
from slime.rewards.policy import Outcome, settle
from slime.rewards.score import score

__all__ = ["Outcome", "RewardError", "RewardFailure", "score", "settle"]
