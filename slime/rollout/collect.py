"""From the data source to a full batch: groups are asked for until enough of them are finished and pass the filter.

Held: what was asked for is in the batch, put back into the data source, or dropped with a reason; when the batch is
full the engines have nothing left to do for it. The batch is in the order in which the source handed its groups out.
"""

from __future__ import annotations

import asyncio

from slime.data.sample import Sample
from slime.data.source import DataSource
from slime.rollout.generator import Generator, Job, is_cut_short
from slime.rollout.orders import Collected, Finished, Orders
from slime.rollout.scores import ungrade_failure
from slime.rollout.types import RolloutError, flatten

STOP_S = 30.0  # how long what was told to stop may take: a user's function may begin another request, or grade
ASK_AGAIN_S = 0.5


class Collector:
    """Collects one batch; made anew for each rollout."""

    def __init__(self, generator: Generator, job: Job, source: DataSource) -> None:
        self.generator, self.job = generator, job
        self.size = job.args.rollout_batch_size
        self.orders = Orders(generator, job, source)
        self.passed: list[Finished] = []

    async def collect(self) -> Collected:
        """Raises RolloutError, or RewardError, at the first sample that fails."""
        try:
            while len(self.passed) < self.size:
                await self._ask()
                await self.orders.wait(asyncio.FIRST_COMPLETED)
                for finished in self.orders.done():
                    if len(self.passed) == self.size:
                        await self._left_over(finished)
                    elif await self.orders.passes(finished):
                        self.passed.append(finished)
            await self._settle_the_rest()
        finally:
            await self.orders.cancel()
        return self.orders.collected(self.passed)

    def progress(self) -> str:
        return self.orders.progress(len(self.passed), self.size)

    async def _ask(self) -> None:
        """Asks the source for as many further groups as could fill the batch, if all of them passed."""
        while len(self.passed) + len(self.orders) < self.size:
            if not await self.orders.ask(self.job.args.over_sampling_batch_size):
                raise RolloutError(
                    f"the data source has no more groups, {len(self.passed)} of {self.size} are collected"
                )

    async def _settle_the_rest(self) -> None:
        """The batch is full: stops what is under way, and sees that nothing of it is lost."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STOP_S
        while self.orders.under_way and loop.time() < deadline:
            await self.generator.stop(self.job)
            if not self.job.args.partial_rollout and self.generator.client.is_idle:
                break  # what is still graded, or done by a user's function, would be dropped anyway
            await self.orders.wait(asyncio.ALL_COMPLETED, timeout=ASK_AGAIN_S)
            for finished in self.orders.done_too_late("the batch was full"):
                await self._left_over(finished)
        if self.orders.under_way:
            what = f"it did not end within {STOP_S:g} s" if self.job.args.partial_rollout else "it was not finished"
            for order in self.orders.under_way:
                self.orders.drop(order, f"the batch was full, and {what}")
            await self.orders.cancel()
            await self.generator.stop(self.job)

    async def _left_over(self, finished: Finished) -> None:
        order, group = finished
        lists = [member for member in group if not isinstance(member, Sample)]
        if not self.job.args.partial_rollout:
            reason = "the batch was full"
        elif is_cut_short([part for parts in lists for part in parts]):
            reason = "the batch was full, and what was cut short had fanned out, so it can't be generated on"
        elif self.job.args.mask_offpolicy_in_partial_rollout and not is_cut_short(group):
            reason = "the batch was full, and a later one would have all of its tokens masked"
        else:
            for sample in flatten([group]):
                ungrade_failure(sample)  # which may come of having been stopped
            await self.orders.put_back(group)
            return
        self.orders.drop(order, reason)
