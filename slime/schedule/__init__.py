"""Packing into micro-batches and balancing over ranks: integers in, integers out."""

from slime.schedule.flops import forward_flops
from slime.schedule.plan import RankPlan, pack, plan

__all__ = ["RankPlan", "forward_flops", "pack", "plan"]
