"""A run as a whole."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from slime.config.section import Count, DirectoryName, Index, Path, Section, option


class Run(Section):
    """Run

    Where the run's files go, what it runs on, and how far rollout may be ahead of training.
    """

    run_name: DirectoryName | None = option(
        None,
        "Name of the run: its directory under runs/ and its name in the trackers.",
        derived="date and time of the start",
    )
    run_dir: Path | None = option(
        None,
        "Directory of everything the run writes: config.yaml, metrics.jsonl, logs/. It must not hold another run.",
        derived="runs/<run-name>",
    )
    device: Literal["auto", "cpu", "cuda"] = option(
        "auto", "Devices of training and generation. auto takes CUDA where a GPU is visible, else the CPU."
    )
    async_depth: Annotated[int, Field(ge=0, le=1)] = option(
        0,
        "How many rollouts generation may be ahead of training. 0: they take turns. 1: the next rollout is generated,"
        " with weights one update old, while this one is trained on; needs decoupled placement.",
    )
    max_weight_staleness: Index | None = option(
        None,
        "Generation never stops, and the engines get new weights in the middle of it. No token is trained on that"
        " weights made which are more than this many updates old; no more is generated in advance than can be. Needs"
        " decoupled placement. Unset: off.",
    )
    stale_group_policy: Literal["wait", "drop", "retry"] = option(
        "wait",
        "What becomes of groups that take longer than --max-weight-staleness allows. wait: training waits for them, as"
        " long as they can still be trained on. drop: they are left out, and with them the slowest samples. retry: they"
        " are generated anew, once. Counted in rollout/stale_groups.",
    )
    update_weights_interval: Count = option(
        1, "Rollouts that are trained on between two weight updates of the engines; more than 1 only asynchronously."
    )
