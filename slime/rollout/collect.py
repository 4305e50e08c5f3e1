"""From the data source to a full batch: groups are asked for until enough of them are finished and pass the filter.

Held: what was asked for is in the batch, put back into the data source, or dropped with a reason; when the batch is
full the engines have nothing left to do for it. The batch is in the order in which the source handed its groups out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from slime.config.hooks import load_hook
from slime.data.sample import Sample
from slime.data.source import DataSource
from slime.rewards.threads import in_thread
from slime.rollout.generator import Generator, Job, is_cut_short, is_waiting
from slime.rollout.hooks import call
from slime.rollout.types import DynamicFilterOutput, Group, RolloutError, flatten

log = logging.getLogger(__name__)

FILTER = "--dynamic-sampling-filter-path"
STOP_S = 30.0  # how long what was told to stop may take: a user's function may begin another request, or grade
ASK_AGAIN_S = 0.5
WARN_EVERY = 10  # batches of groups that the filter dropped


@dataclass(eq=False, slots=True)
class _Order:
    """A group that was handed out, and what becomes of it."""

    place: int
    ids: list[int]
    task: asyncio.Task[Group]


@dataclass(slots=True)
class Collected:
    """`finished`: all groups that were generated and graded; `batch`: those of them to train on; `dropped`: how many of
    the others, by the filter's reason."""

    batch: list[Group] = field(default_factory=list)
    finished: list[Group] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    def metrics(self) -> dict[str, int]:
        return {f"rollout/dynamic_filter/drop_{reason}": count for reason, count in sorted(self.dropped.items())}


class Collector:
    """Collects one batch; made anew for each rollout."""

    def __init__(self, generator: Generator, job: Job, source: DataSource) -> None:
        self.generator, self.job, self.source = generator, job, source
        self.filter = load_hook(FILTER, job.args.dynamic_sampling_filter_path)
        self.size = job.args.rollout_batch_size
        self.under_way: list[_Order] = []
        self.asked = 0
        self.passed: list[tuple[_Order, Group]] = []
        self.refused: list[tuple[_Order, Group]] = []
        self.dropped: Counter[str] = Counter()

    async def collect(self) -> Collected:
        """Raises RolloutError, or RewardError, at the first sample that fails."""
        try:
            while len(self.passed) < self.size:
                await self._ask()
                await self._wait(asyncio.FIRST_COMPLETED)
                for order in self._done():
                    await self._judge(order)
            await self._settle_the_rest()
        finally:
            for order in self.under_way:
                order.task.cancel()
            await asyncio.gather(*(order.task for order in self.under_way), return_exceptions=True)
        finished = sorted([*self.passed, *self.refused], key=_place)
        batch = sorted(self.passed, key=_place)
        return Collected([group for _, group in batch], [group for _, group in finished], self.dropped)

    async def _ask(self) -> None:
        """Asks the source for as many further groups as could fill the batch, if all of them passed."""
        while len(self.passed) + len(self.under_way) < self.size:
            groups = await in_thread(self.source.get_samples, self.job.args.over_sampling_batch_size)
            if not groups:
                raise RolloutError(
                    f"the data source has no more groups, {len(self.passed)} of {self.size} are collected"
                )
            if self.job.journal is not None:
                waiting = [member.index for group in groups for member in group if is_waiting(member)]
                self.job.journal.generating(waiting, self.job.rollout_id)
            for group in groups:
                task = asyncio.ensure_future(self.generator.group(group, self.job))
                ids = list(dict.fromkeys(sample.index for sample in flatten([group])))
                self.under_way.append(_Order(self.asked, ids, task))
                self.asked += 1

    async def _judge(self, order: _Order) -> None:
        """A finished group is for the batch, unless the filter refuses it or the batch is full already."""
        group = order.task.result()
        if len(self.passed) == self.size:
            await self._left_over(order, group)
            return
        output = DynamicFilterOutput(True) if self.filter is None else await self._filtered(self.filter, group)
        if output.keep:
            self.passed.append((order, group))
            return
        self.refused.append((order, group))
        self.dropped[output.reason] += 1
        self._drop(order, f"dynamic filter: {output.reason}")
        if len(self.refused) % (WARN_EVERY * self.size) == 0:
            log.warning(
                "rollout %d: %s has dropped %d groups (%s), and %d of %d are collected", self.job.rollout_id,
                self.job.args.dynamic_sampling_filter_path, len(self.refused), dict(self.dropped), len(self.passed),
                self.size,
            )  # fmt: skip

    async def _filtered(self, filter_: Callable, group: Group) -> DynamicFilterOutput:
        path = self.job.args.dynamic_sampling_filter_path
        try:
            output = await call(filter_, self.job.args, group)
        except Exception as error:
            raise RolloutError(f"{_name(group)}: {FILTER} {path} raised {type(error).__name__}: {error}") from error
        keep, reason = getattr(output, "keep", output), getattr(output, "reason", None)
        return DynamicFilterOutput(bool(keep), reason or path.rpartition(".")[2])

    async def _settle_the_rest(self) -> None:
        """The batch is full: stops what is under way, and sees that nothing of it is lost."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STOP_S
        while self.under_way and loop.time() < deadline:
            await self.generator.stop(self.job)
            if not self.job.args.partial_rollout and self.generator.client.is_idle:
                break  # what is still graded, or done by a user's function, would be dropped anyway
            await self._wait(asyncio.ALL_COMPLETED, timeout=ASK_AGAIN_S)
            for order in self._done():
                await self._left_over(order, order.task.result())
        if self.under_way:
            what = f"it did not end within {STOP_S:g} s" if self.job.args.partial_rollout else "it was not finished"
            for order in self.under_way:
                order.task.cancel()
                self._drop(order, f"the batch was full, and {what}")
            await asyncio.gather(*(order.task for order in self.under_way), return_exceptions=True)
            await self.generator.stop(self.job)
            self.under_way = []

    async def _left_over(self, order: _Order, group: Group) -> None:
        lists = [member for member in group if not isinstance(member, Sample)]
        if not self.job.args.partial_rollout:
            self._drop(order, "the batch was full")
        elif is_cut_short([part for parts in lists for part in parts]):
            self._drop(order, "the batch was full, and what was cut short had fanned out, so it can't be generated on")
        elif self.job.args.mask_offpolicy_in_partial_rollout and not is_cut_short(group):
            self._drop(order, "the batch was full, and a later one would have all of its tokens masked")
        else:
            await in_thread(self.source.add_samples, [group])

    def _drop(self, order: _Order, reason: str) -> None:
        if self.job.journal is not None:
            self.job.journal.drop(order.ids, reason)

    async def _wait(self, until: str, timeout: float | None = None) -> None:
        await asyncio.wait([order.task for order in self.under_way], return_when=until, timeout=timeout)

    def _done(self) -> Iterable[_Order]:
        """Takes what is done out of what is under way."""
        done = [order for order in self.under_way if order.task.done()]
        self.under_way = [order for order in self.under_way if not order.task.done()]
        return done


def _place(entry: tuple[_Order, Group]) -> int:
    return entry[0].place


def _name(group: Group) -> str:
    return f"group of {flatten([group])[0].name}"
