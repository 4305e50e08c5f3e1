"""Stream: one batch after the other, of groups that are generated all the time (--max-weight-staleness).

Nothing is stopped when a batch is full: what is under way then is for a later one. The engines get new weights in the
middle of it; each token says which weights made it.

Held: no token of a batch is older than --max-weight-staleness updates when it is handed over; no more is begun than
can be trained on by then, nor than the run needs; of what is finished a batch takes what was begun first; a group is in
one batch, put back once to be generated anew, or dropped with a reason.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from slime.data.source import DataSource
from slime.rollout.generator import Generator, Job
from slime.rollout.orders import Collected, Finished, Order, Orders, place
from slime.rollout.staleness import Bound, age, staleness_metrics
from slime.rollout.types import Group, RolloutError, flatten

TOO_OLD = "too old"  # how the reason begins of what is dropped for its age


class Stream:
    """Lives as long as the generator. Between two calls of `take` generation goes on, in the generator's event loop."""

    def __init__(self, generator: Generator, job: Job, source: DataSource) -> None:
        self.job = job
        self.bound = Bound.of(job.args)
        self.policy = job.args.stale_group_policy
        self.orders = Orders(generator, job, source, keep_fresh=self.policy == "retry")
        self.judged: list[Finished] = []  # by the filter, at this moment, or next
        self.passed: list[Finished] = []  # and in no batch yet
        self.stale: list[Finished] = []  # that were too old for this batch, and so for all to come
        self.counts: Counter[str] = Counter()  # of what became of these
        self.retried: set[int] = set()  # numbers of samples
        self.next_rollout = job.rollout_id
        self.updates = 0
        self._awaited = False  # whether somebody waits for a batch
        self._limit = f"--max-weight-staleness {self.bound.staleness}"
        self._generation: asyncio.Task[None] | None = None
        self._finished, self._room = asyncio.Event(), asyncio.Event()

    async def take(self, rollout_id: int, version: int) -> Collected:
        """The batch of a rollout, to be trained on at once; `version` is that of the weights which the engines have.

        Raises RolloutError, or RewardError, when a sample has failed since the last batch.
        """
        self.job.rollout_id, self.updates = rollout_id, self.bound.updates_before(rollout_id)
        if self._generation is None:
            self._generation = asyncio.create_task(self._generate())
        self._awaited = True
        self._room.set()
        while not await self._is_there(rollout_id, version):
            await self._news()
        self._awaited = False
        size = self.bound.batch_size
        batch, self.passed = self.passed[:size], self.passed[size:]
        self.next_rollout = rollout_id + 1
        self._room.set()
        collected = self.orders.collected(batch, self.stale)
        collected.figures = staleness_metrics(flatten(collected.batch), version) | {
            f"rollout/stale_groups/{what}": self.counts[what] for what in ("dropped", "retried")
        }
        self.stale, self.counts = [], Counter()
        return collected

    def progress(self) -> str:
        return self.orders.progress(len(self.passed), self.bound.batch_size)

    async def _is_there(self, rollout_id: int, version: int) -> bool:
        """Whether there is a whole batch, without what is too old, and nothing to wait for that would become so."""
        while stale := self._take_stale(version):  # others may be finished while these are given up
            for order, group in stale:
                self.stale.append((order, group))
                await self._leave_out(order, f"{age(group, version)} weight updates, more than {self._limit}")
            self._room.set()
        self.passed.sort(key=place)
        if len(self.passed) < self.bound.batch_size:
            return False
        finished = [*self.judged, *self.passed[self.bound.batch_size :]]
        left = [*self.orders.under_way, *(order for order, _ in finished)]
        return self.policy != "wait" or self.bound.fits((order.begun for order in left), rollout_id)

    def _take_stale(self, version: int) -> list[Finished]:
        """Takes out of what has passed what is too old."""
        passed, self.passed, stale = self.passed, [], []
        for finished in passed:
            (stale if age(finished[1], version) > self.bound.staleness else self.passed).append(finished)
        return stale

    async def _give_up_the_late(self) -> bool:
        """Of what is under way all that will be too old when it ends, where training has nothing else to wait for;
        returns whether there was any."""
        unfinished = [order for order in self.orders.under_way if not order.task.done()]
        late = [order for order in unfinished if self.updates - order.begun > self.bound.staleness]
        is_short = self._awaited and len(self.passed) < self.bound.batch_size
        if self.policy == "wait" or not is_short or len(late) < len(self.orders):
            return False
        over = await self.orders.give_up(late)
        for order in over:
            begun = self.updates - order.begun
            await self._leave_out(order, f"begun {begun} weight updates ago, more than {self._limit}, and not finished")
        return bool(over)

    async def _leave_out(self, order: Order, why: str) -> None:
        if order.fresh is not None and self.retried.isdisjoint(order.ids):
            self.retried.update(order.ids)
            self.counts["retried"] += 1
            await self.orders.put_back(order.fresh)
            return
        self.counts["dropped"] += 1
        again = " once more" if order.fresh is not None else ""
        self.orders.drop(order, f"{TOO_OLD}{again}: {why}")

    async def _news(self) -> None:
        """Waits until a group is finished. Raises what generation has failed of."""
        news = asyncio.create_task(self._finished.wait())
        try:
            await asyncio.wait([news, self._generation], return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        if self._generation.done():
            self._generation.result()
        self._finished.clear()

    async def _generate(self) -> None:
        """Keeps as many groups under way as may be, until it is cancelled."""
        room = asyncio.create_task(self._room.wait())
        try:
            while True:
                await self._ask()
                if await self._give_up_the_late():
                    continue
                tasks = [order.task for order in self.orders.under_way]
                await asyncio.wait([room, *tasks], return_when=asyncio.FIRST_COMPLETED)
                if room.done():
                    self._room.clear()
                    room = asyncio.create_task(self._room.wait())
                self.judged = self.orders.done()
                while self.judged:
                    if await self.orders.passes(self.judged[0]):
                        self.passed.append(self.judged[0])
                    del self.judged[0]
                    self._finished.set()
        finally:
            room.cancel()
            await self.orders.cancel()

    async def _ask(self) -> None:
        """Begins what may be begun: of this many groups at a time (--over-sampling-batch-size) the engines are sure to
        be kept busy, and of more the samples would only be older."""
        while True:
            free = self.job.args.over_sampling_batch_size - len(self.orders)
            left = self.bound.limit(self.next_rollout, self.updates) - len(self.orders) - len(self.passed)
            if min(free, left) <= 0:
                return
            if not await self.orders.ask(min(free, left), self.updates):
                if not len(self.orders) and len(self.passed) < self.bound.batch_size:
                    raise RolloutError(
                        f"the data source has no more groups, {len(self.passed)} of {self.bound.batch_size} are"
                        " collected"
                    )
                return

    async def finished(self) -> list[Group]:
        """What is generated and graded, and in no batch yet; the filter may still refuse some of it. Nothing where a
        run that goes on with it would mask all of its tokens."""
        if self.job.args.mask_offpolicy_in_partial_rollout:
            return []
        done = [order.task for order in self.orders.under_way if order.task.done()]
        sound = [task.result() for task in done if not task.cancelled() and task.exception() is None]
        return [group for _, group in [*self.passed, *self.judged]] + sound

    async def close(self) -> None:
        """Ends what is under way; it stays what it is in the ledger."""
        self.job.stopped = True
        if self._generation is not None:
            self._generation.cancel()
            await asyncio.gather(self._generation, return_exceptions=True)
