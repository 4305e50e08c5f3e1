"""The rollout function of --load-debug-rollout-data: what was recorded is trained on again; no engine, no prompts."""

from __future__ import annotations

from slime.config import Config
from slime.data.recording import read_rollout
from slime.data.source import DataSource, Group
from slime.rollout.types import RolloutError, RolloutFnTrainOutput


def generate_rollout(
    args: Config, rollout_id: int, data_source: DataSource, evaluation: bool = False
) -> RolloutFnTrainOutput:
    """The groups of the file, or the first share of them."""
    if evaluation:
        raise RolloutError("--debug-train-only has no engines, so nothing can be generated for an evaluation")
    groups = read_rollout(args.load_debug_rollout_data.format(rollout_id=rollout_id))
    share = args.load_debug_rollout_data_subsample
    return RolloutFnTrainOutput(groups if share is None else groups[: max(1, round(share * len(groups)))])


class NoPrompts:
    """The data source of a replay, which asks it for nothing and leaves no position to go on from."""

    def get_samples(self, n: int) -> list[Group]:
        raise RolloutError("a replay has no prompts: leave out --load-debug-rollout-data")

    def add_samples(self, groups: list[Group]) -> None:
        raise RolloutError("a replay takes nothing back")

    def save(self, id: int) -> None: ...

    def load(self, id: int) -> None: ...

    def __len__(self) -> int:
        return 0
