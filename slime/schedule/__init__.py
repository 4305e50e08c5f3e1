"""Packing into micro-batches and balancing over ranks: integers in, integers out."""

from slime.schedule.flops import forward_flops
from slime.schedule.plan import RankPlan, plan

__all__ = ["RankPlan", "forward_flops", "plan"]
