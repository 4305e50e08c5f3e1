"""Rules between the options that let training and generation go on at once."""

from __future__ import annotations

from collections.abc import Iterator

from slime.config.config import Config
from slime.config.errors import Problem
from slime.config.rules import Rules

OVERLAP = Rules()
reads = OVERLAP.reads


@reads("async_depth", "max_weight_staleness", "colocate")
def _halves_can_overlap(c: Config) -> Iterator[Problem]:
    fix = "leave one out; without --colocate give the engines their own --rollout-num-gpus"
    if c.async_depth and c.colocate:
        yield Problem("--async-depth", "1 trains and generates at once, --colocate in turns", fix)
    if c.max_weight_staleness is not None and c.colocate:
        yield Problem("--max-weight-staleness", "trains and generates at once, --colocate in turns", fix)


@reads("async_depth", "max_weight_staleness")
def _one_way_to_be_ahead(c: Config) -> Iterator[Problem]:
    if c.async_depth and c.max_weight_staleness is not None:
        yield Problem(
            "--async-depth, --max-weight-staleness",
            "exclude each other: one stops generation for each weight update, the other never",
            "leave one out; --max-weight-staleness 1 is as far ahead as --async-depth 1",
        )


@reads("max_weight_staleness", "loss_type", "debug_train_only")
def _something_is_generated(c: Config) -> Iterator[Problem]:
    if c.max_weight_staleness is not None and not c.has_engines:
        yield Problem("--max-weight-staleness", "is about generation, and nothing is generated", "leave it out")


@reads("stale_group_policy", "max_weight_staleness")
def _stale_groups_come_about(c: Config) -> Iterator[Problem]:
    if c.stale_group_policy != "wait" and c.max_weight_staleness is None:
        yield Problem("--stale-group-policy", "nothing is ever too old without a bound", "add --max-weight-staleness N")


@reads("update_weights_interval", "async_depth", "max_weight_staleness", "eval_interval", "use_fault_tolerance")
def _engines_may_be_behind(c: Config) -> Iterator[Problem]:
    every = c.update_weights_interval
    if every > 1 and not c.async_depth and c.max_weight_staleness is None:
        yield Problem(
            "--update-weights-interval",
            f"{every} leaves the engines with old weights, which is for asynchronous runs",
            "add --max-weight-staleness N, or leave it out",
        )
    if every > 1 and c.use_fault_tolerance:
        yield Problem(
            "--update-weights-interval, --use-fault-tolerance",
            "exclude each other: an engine that comes back between two updates would have weights that no other has",
            "leave one out",
        )
    if every > 1 and c.eval_interval is not None and c.eval_interval % every:
        yield Problem(
            "--eval-interval",
            f"{c.eval_interval} is no multiple of --update-weights-interval {every}: older weights would be evaluated",
            f"e.g. --eval-interval {every * -(-c.eval_interval // every)}",
        )
