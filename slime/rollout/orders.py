"""Orders: groups that were handed out and are under way, for whoever collects them into batches.

Held: nothing is dropped without a reason; the failure of a group is raised when it would be taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from slime.config.hooks import Hook, load_hook
from slime.data.sample import Sample
from slime.data.source import DataSource
from slime.inference.client import Generation
from slime.rewards.threads import in_thread
from slime.rollout.generator import Generator, Job, is_waiting
from slime.rollout.hooks import ask, keeping_numbers
from slime.rollout.metrics import request_metrics
from slime.rollout.types import DynamicFilterOutput, Group, RolloutError, flatten

log = logging.getLogger(__name__)

FILTER = "--dynamic-sampling-filter-path"
WARN_EVERY = 10  # batches of groups that the filter dropped
HOPELESS = 1000  # groups at least, and as many batches, that it dropped without keeping one


@dataclass(slots=True)
class Collected:
    """`finished`: all groups that were generated and graded; `batch`: those of them to train on; `dropped`: how many of
    the others, by the filter's reason; `generations`: those that were made meanwhile; `figures`: further metrics."""

    batch: list[Group] = field(default_factory=list)
    finished: list[Group] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    generations: Sequence[Generation] = ()
    figures: dict[str, float] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        dropped = {f"rollout/dynamic_filter/drop_{reason}": count for reason, count in sorted(self.dropped.items())}
        return request_metrics(self.generations) | dropped | self.figures


@dataclass(eq=False, slots=True)
class Order:
    """A group that was handed out, and what becomes of it. `begun`: after how many weight updates, if somebody counts
    them; `fresh`: the group as it was, if it had no tokens yet and that is kept."""

    place: int
    ids: list[int]
    task: asyncio.Task[Group]
    begun: int
    fresh: list[Sample | list[Sample]] | None


Finished = tuple[Order, Group]


class Orders:
    """`under_way`: those whose groups nobody has taken yet, in the order in which they were handed out."""

    def __init__(self, generator: Generator, job: Job, source: DataSource, *, keep_fresh: bool = False) -> None:
        self.generator, self.job, self.source = generator, job, source
        self.keep_fresh = keep_fresh
        self.filter = load_hook(FILTER, job.args.dynamic_sampling_filter_path)
        self.under_way: list[Order] = []
        self.refused: list[Finished] = []
        self.reasons: Counter[str] = Counter()
        self._asked = self._dropped_in_a_row = 0
        self._source_is_free = asyncio.Lock()  # a data source is not made for several threads

    def __len__(self) -> int:
        return len(self.under_way)

    async def ask(self, num_groups: int, updates: int = 0) -> bool:
        """Asks the source for groups, and begins to generate them. Returns False where the source has no more."""
        async with self._source_is_free:
            groups = await in_thread(self.source.get_samples, num_groups)
        if groups and self.job.journal is not None:
            waiting = [member.index for group in groups for member in group if is_waiting(member)]
            self.job.journal.generating(waiting, self.job.rollout_id)
        for group in groups:
            is_fresh = all(isinstance(member, Sample) and not member.response_length for member in group)
            fresh = deepcopy(group) if self.keep_fresh and is_fresh else None
            task = asyncio.ensure_future(self.generator.group(group, self.job))
            ids = list(dict.fromkeys(sample.index for sample in flatten([group])))
            self.under_way.append(Order(self._asked, ids, task, updates, fresh))
            self._asked += 1
        return bool(groups)

    def progress(self, passed: int, size: int) -> str:
        """Of a batch of `size` groups, for a person. From any thread."""
        dropped = f", {len(self.refused)} dropped by the filter" if self.refused else ""
        return f"{passed} of {size} groups{dropped}"

    async def wait(self, until: str, timeout: float | None = None) -> None:
        await asyncio.wait([order.task for order in self.under_way], return_when=until, timeout=timeout)

    def done(self) -> list[Finished]:
        """Takes what is done out of what is under way. Raises RolloutError, or RewardError, if one of them failed."""
        taken = self._taken()
        for order in taken:  # asyncio complains of a failure that nobody has looked at, as of those behind the first
            _ = order.task.cancelled() or order.task.exception()
        return [(order, order.task.result()) for order in taken]

    def done_too_late(self, why: str) -> list[Finished]:
        """As `done`, when a failure is no loss, and may come of having been stopped: what failed is dropped."""
        finished = []
        for order in self._taken():
            if (error := order.task.exception()) is None:
                finished.append((order, order.task.result()))
            else:
                log.warning("rollout %d: %s, and a group failed that is left over: %s", self.job.rollout_id, why, error)
                self.drop(order, f"{why}, and it failed: {error}")
        return finished

    def _taken(self) -> list[Order]:
        done = [order for order in self.under_way if order.task.done()]
        self.under_way = [order for order in self.under_way if not order.task.done()]
        return done

    async def passes(self, finished: Finished) -> bool:
        """Whether a group may be trained on, by the dynamic filter if there is one; what it refuses is dropped.

        Raises RolloutError where the filter has kept nothing for so long that it can't be chance.
        """
        order, group = finished
        output = DynamicFilterOutput(True) if self.filter is None else await self._filtered(self.filter, group)
        if output.keep:
            self._dropped_in_a_row = 0
            return True
        self._dropped_in_a_row += 1
        self.refused.append(finished)
        self.reasons[output.reason] += 1
        self.drop(order, f"dynamic filter: {output.reason}")
        if len(self.refused) % (WARN_EVERY * self.job.args.rollout_batch_size) == 0:
            log.warning(
                "rollout %d: %s has dropped %d groups (%s), and the batch is not full yet",
                self.job.rollout_id, self.job.args.dynamic_sampling_filter_path, len(self.refused), dict(self.reasons),
            )  # fmt: skip
        if self._dropped_in_a_row >= max(HOPELESS, WARN_EVERY * self.job.args.rollout_batch_size):
            raise RolloutError(
                f"rollout {self.job.rollout_id}: {FILTER} {self.job.args.dynamic_sampling_filter_path} has kept none of"
                f" the last {self._dropped_in_a_row} groups ({dict(self.reasons)}): there is nothing left to train on"
            )
        return False

    def collected(self, batch: list[Finished], left_out: Iterable[Finished] = ()) -> Collected:
        """What there is to say of a batch: it, all that were finished for it, and all that happened since the last."""
        finished = [*batch, *self.refused, *left_out]
        collected = Collected(_groups(batch), _groups(finished), self.reasons, self.job.generations)
        self.refused, self.reasons, self.job.generations = [], Counter(), []
        return collected

    async def _filtered(self, filter_: Hook, group: Group) -> DynamicFilterOutput:
        args = self.job.args
        samples, limit = flatten([group]), args.sglang_router_request_timeout_secs
        with keeping_numbers(samples, filter_):
            output = await ask(filter_, _name(group), limit, args, samples)
        keep, reason = getattr(output, "keep", output), getattr(output, "reason", None)
        if keep is None or isinstance(keep, str):
            raise RolloutError(f"{_name(group)}: {filter_} returned {output!r:.200}, not a bool or DynamicFilterOutput")
        return DynamicFilterOutput(bool(keep), reason or filter_.path.rpartition(".")[2])

    async def put_back(self, group: Group) -> None:
        async with self._source_is_free:
            await in_thread(self.source.add_samples, [group])

    async def give_up(self, orders: Sequence[Order]) -> list[Order]:
        """Ends these, which are under way, all at once. Returns those that are over by it: what becomes of them is the
        caller's to say. One that comes to its end in spite of it stays under way, to be taken."""
        for order in orders:
            order.task.cancel()
        await asyncio.gather(*(order.task for order in orders), return_exceptions=True)
        over = [order for order in orders if order.task.cancelled() or order.task.exception() is not None]
        self.under_way = [order for order in self.under_way if order not in over]
        return over

    def drop(self, order: Order, reason: str) -> None:
        if self.job.journal is not None:
            self.job.journal.drop(order.ids, reason)

    async def cancel(self) -> None:
        """Ends what is under way, whatever it is doing."""
        for order in self.under_way:
            order.task.cancel()
        await asyncio.gather(*(order.task for order in self.under_way), return_exceptions=True)
        self.under_way = []


def place(finished: Finished) -> int:
    """By which finished groups are sorted: in the order in which they were handed out."""
    return finished[0].place


def _groups(finished: list[Finished]) -> list[Group]:
    return [group for _, group in sorted(finished, key=place)]


def _name(group: Group) -> str:
    return f"group of {flatten([group])[0].name}"
