"""Packing into micro-batches and balancing over ranks: integers in, integers out."""

from slime.schedule.plan import RankPlan, plan

__all__ = ["RankPlan", "plan"]
