"""Batches out of generation that never stops: order, bounds, and what becomes of groups that take too long."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from slime.data.outcome import outcomes
from slime.rollout.generator import Job
from slime.rollout.orders import Collected, Order, Orders
from slime.rollout.sampling import Sampling
from slime.rollout.stream import Stream
from slime.rollout.types import RolloutError, flatten
from tests.rollout.hooks import HELD
from tests.rollout.test_collect import HOOKS, STD, Life, live, numbers  # noqa: F401

BATCH = 2
ENDS_S = 30.0


class Run:
    """What the driver does to a stream: the engines get new weights after each batch."""

    def __init__(self, life: Life, first_rollout: int = 0) -> None:
        self.life = life
        job = Job(life.config, Sampling.for_rollout(life.config), first_rollout, journal=life.buffer)
        self.stream = life.generator.stream = Stream(life.generator, job, life.buffer)

    def take(self, rollout_id: int) -> Collected:
        self.life.generator.weight_version = rollout_id
        return self.life.generator.run(self.stream.take(rollout_id, rollout_id))

    def until_finished(self, count: int) -> None:
        deadline = time.monotonic() + ENDS_S
        while len(self.stream.passed) < count:
            assert time.monotonic() < deadline, f"{len(self.stream.passed)} of {count} are finished"
            time.sleep(0.002)

    def states(self, group: int) -> set[tuple[str, str | None]]:
        states = self.life.states()
        return {states[2 * group], states[2 * group + 1]}


@pytest.fixture
def begin(live: Callable[..., Life]) -> Iterator[Callable[..., Run]]:  # noqa: F811
    def of(held: set[int] = frozenset(), function: str = "answers_when_not_held", *more: str, **options: object) -> Run:
        HELD.clear()
        HELD.update(held)
        defaults = {"rollout_batch_size": BATCH, "num_rollout": 4, "max_weight_staleness": 1}
        generate = {"custom_generate_function_path": f"{HOOKS}.{function}"}
        return Run(live(*more, **defaults | generate | options))

    yield of
    HELD.clear()


def test_what_is_finished_first_joins_the_batch_and_the_rest_goes_on(begin) -> None:
    run = begin({0}, over_sampling_batch_size=3)
    first = run.take(0)
    assert numbers(first.batch) == [1, 2]
    assert run.states(0) == {("generating", None)}
    HELD.clear()
    run.until_finished(2)
    second = run.take(1)
    assert numbers(second.batch) == [0, 3]
    assert second.figures == {
        "rollout/staleness/mean": 1.0, "rollout/staleness/max": 1,
        "rollout/stale_groups/dropped": 0, "rollout/stale_groups/retried": 0,
    }  # fmt: skip


def test_no_more_is_begun_than_can_be_trained_on(begin) -> None:
    """Beside rollout 0, that it is begun by the same weights, rollout 1 may be made, and no third."""
    run = begin(over_sampling_batch_size=8)
    run.take(0)
    run.until_finished(BATCH)
    assert sorted(run.life.states()) == list(range(2 * 2 * BATCH))
    assert [numbers(run.take(rollout_id).batch) for rollout_id in (1, 2, 3)] == [[2, 3], [4, 5], [6, 7]]
    assert sorted(run.life.states()) == list(range(4 * 2 * BATCH)), "more was begun than the run needs"


def test_training_waits_for_what_would_become_too_old(begin) -> None:
    run = begin({0}, over_sampling_batch_size=4)
    run.take(0)

    def release() -> None:
        run.until_finished(BATCH)
        HELD.clear()

    with ThreadPoolExecutor() as meanwhile:
        released = meanwhile.submit(release)
        second = run.take(1)
        released.result()
    assert numbers(second.batch) == [0, 3]


def test_what_is_too_old_is_dropped_with_the_reason(begin) -> None:
    run = begin({0}, stale_group_policy="drop", over_sampling_batch_size=3)
    assert [numbers(run.take(rollout_id).batch) for rollout_id in (0, 1)] == [[1, 2], [3, 4]]
    HELD.clear()
    run.until_finished(BATCH)
    third = run.take(2)
    assert (numbers(third.batch), numbers(third.finished)) == ([5, 6], [0, 5, 6])
    assert third.figures["rollout/stale_groups/dropped"] == 1
    assert third.figures["rollout/staleness/max"] == 1
    assert run.states(0) == {("dropped", "too old: 2 weight updates, more than --max-weight-staleness 1")}


def last(run: Run, rollout_id: int) -> Collected:
    run.life.generator.weight_version = rollout_id
    taken = run.stream.take(rollout_id, rollout_id)
    return run.life.generator.run(asyncio.wait_for(taken, ENDS_S))


def test_nobody_waits_for_what_can_only_be_dropped(begin) -> None:
    """The run needs eight groups, and begins no more; group 0, the first of them, never ends."""
    run = begin({0}, stale_group_policy="drop", over_sampling_batch_size=3)
    assert [numbers(run.take(rollout_id).batch) for rollout_id in (0, 1, 2)] == [[1, 2], [3, 4], [5, 6]]
    collected = last(run, 3)
    assert numbers(collected.batch) == [7, 8]
    assert collected.figures["rollout/stale_groups/dropped"] == 1
    reason = "too old: begun 3 weight updates ago, more than --max-weight-staleness 1, and not finished"
    assert run.states(0) == {("dropped", reason)}


def test_those_given_up_are_ended_at_once_and_what_is_made_in_spite_of_it_is_taken() -> None:
    """One after the other, what ended or failed while another took its time would pass for unfinished."""
    job = SimpleNamespace(args=SimpleNamespace(dynamic_sampling_filter_path=None), journal=None)
    orders = Orders(None, job, None)
    told: list[str] = []

    async def work(name: str, ends: Callable[[], list[str]]) -> list[str]:
        try:
            await asyncio.sleep(ENDS_S)
        except asyncio.CancelledError:
            told.append(name)
            await asyncio.sleep(0)
            told.append(name)
            return ends()

    def fails() -> list[str]:
        raise RolloutError("it was cancelled")

    def gives_up() -> list[str]:
        raise asyncio.CancelledError

    async def give_up() -> list[Order]:
        works = work("a", gives_up), work("b", lambda: ["group b"]), work("c", fails)
        orders.under_way = [Order(i, [i], asyncio.create_task(one), 0, None) for i, one in enumerate(works)]
        await asyncio.sleep(0)
        return await orders.give_up(list(orders.under_way))

    assert [order.place for order in asyncio.run(give_up())] == [0, 2]
    assert told == ["a", "b", "c", "a", "b", "c"]
    assert [group for _, group in orders.done()] == [["group b"]]


def test_of_several_that_fail_the_first_is_raised_and_nobody_complains_of_the_others() -> None:
    orders = Orders(None, SimpleNamespace(args=SimpleNamespace(dynamic_sampling_filter_path=None)), None)
    complaints: list[Any] = []

    async def fail(name: str) -> list[str]:
        raise RolloutError(name)

    async def take() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
        orders.under_way = [Order(i, [i], asyncio.create_task(fail(name)), 0, None) for i, name in enumerate("ab")]
        await orders.wait(asyncio.ALL_COMPLETED)
        with pytest.raises(RolloutError, match=r"^a$"):
            orders.done()
        gc.collect()

    asyncio.run(take())
    assert complaints == []


def test_what_can_only_be_made_anew_is_begun_anew_where_training_waits(begin) -> None:
    run = begin({0}, stale_group_policy="retry", over_sampling_batch_size=3)
    for rollout_id in (0, 1, 2):
        run.take(rollout_id)

    def release() -> None:
        deadline = time.monotonic() + ENDS_S
        while not run.stream.counts["retried"] and time.monotonic() < deadline:
            time.sleep(0.002)
        HELD.clear()

    with ThreadPoolExecutor() as meanwhile:
        released = meanwhile.submit(release)
        collected = last(run, 3)
        released.result()
    assert numbers(collected.batch) == [7, 0]
    assert collected.figures["rollout/stale_groups/retried"] == 1
    assert {version for sample in collected.batch[1] for version in sample.weight_versions} == {"3"}


def test_what_is_too_old_is_made_anew_once(begin) -> None:
    run = begin({0}, stale_group_policy="retry", over_sampling_batch_size=3, num_rollout=8)
    run.take(0), run.take(1)
    HELD.clear()
    run.until_finished(BATCH)
    HELD.add(0)
    third = run.take(2)
    assert (third.figures["rollout/stale_groups/retried"], 0 in numbers(third.batch)) == (1, False)
    run.take(3)
    assert run.states(0) == {("generating", None)}
    run.take(4), run.take(5)
    HELD.clear()
    run.until_finished(BATCH)
    assert run.take(6).figures["rollout/stale_groups/dropped"] == 1
    ((state, reason),) = run.states(0)
    assert (state, reason.partition(":")[0]) == ("dropped", "too old once more")


def test_what_is_finished_while_others_are_put_back_is_judged_too(begin) -> None:
    """Groups 0 and 1 are both too old for rollout 3; 1 is finished while 0 is put back."""
    run = begin({0, 1}, stale_group_policy="retry", over_sampling_batch_size=4, num_rollout=8)
    assert [numbers(run.take(rollout_id).batch) for rollout_id in (0, 1, 2)] == [[2, 3], [4, 5], [6, 7]]
    orders, put_back = run.stream.orders, run.stream.orders.put_back

    async def meanwhile(group: object) -> None:
        orders.put_back = put_back
        HELD.discard(1)
        while 1 not in (passed := numbers([group for _, group in run.stream.passed])) or len(passed) < BATCH:
            await asyncio.sleep(0.002)
        await put_back(group)

    orders.put_back = meanwhile
    HELD.discard(0)
    run.until_finished(1)
    fourth = run.take(3)
    assert fourth.figures["rollout/stale_groups/retried"] == 2
    assert fourth.figures["rollout/staleness/max"] <= 1 and not {0, 1} & set(numbers(fourth.batch))


def test_fan_out_through_filter_and_group_reward(begin) -> None:
    """Each sample becomes two, rewarded 0 to 3 in their group: filter and batch see the parts."""
    group_reward = {"custom_rm_path": f"{HOOKS}.ranks_in_group"}
    run = begin({0}, "fans_out_when_not_held", "--group-rm", **STD, **group_reward, over_sampling_batch_size=3)
    batches = [run.take(0)]
    HELD.clear()
    batches += [run.take(rollout_id) for rollout_id in (1, 2, 3)]
    groups = [group for collected in batches for group in collected.batch]
    assert sorted(numbers(groups)) == list(range(8))
    assert [[len(parts) for parts in group] for group in groups] == [[2, 2]] * 8
    assert {tuple(sample.reward for sample in flatten([group])) for group in groups} == {(0, 1, 2, 3)}
    assert sum(map(len, (flatten(collected.batch) for collected in batches))) == 32


def test_the_filter_refuses_what_is_finished_and_others_are_made(begin) -> None:
    """Groups 1 and 2 have equal rewards."""
    run = begin(**STD, num_rollout=2)
    batches = [run.take(0), run.take(1)]
    assert [numbers(collected.batch) for collected in batches] == [[0, 3], [4, 5]]
    assert run.states(1) == run.states(2) == {("dropped", "dynamic filter: zero_std_1.0")}
    assert sum(collected.dropped.total() for collected in batches) == 2


def test_what_fails_between_two_batches_is_raised_by_the_next(begin) -> None:
    run = begin({0}, "breaks_when_not_held", over_sampling_batch_size=3)
    run.take(0)
    HELD.clear()
    with pytest.raises(RolloutError, match=r"sample 0 .*breaks_when_not_held raised KeyError: 'tool'"):
        run.take(1)


def test_a_source_that_ends(begin) -> None:
    run = begin()
    run.take(0)
    run.life.buffer.source.get_samples = lambda n: []
    with pytest.raises(RolloutError, match=r"the data source has no more groups, . of 2 are collected"):
        run.take(1), run.take(2)


def test_what_had_no_batch_at_a_checkpoint_is_handed_out_again_once(begin, tmp_path) -> None:
    run = begin({0}, over_sampling_batch_size=3, save=tmp_path / "saved")
    life = run.life
    taken = flatten(run.take(0).batch)
    life.buffer.batched(0, outcomes((sample, 0.0) for sample in taken))
    run.until_finished(1)  # group 3; group 0 is held
    life.buffer.save(0, life.generator.finished())
    life.generator.run(run.stream.close())

    life.buffer.resume(1)
    assert life.buffer.trained(0) == 0
    assert {life.states()[sample.index] for sample in taken} == {("trained", None)}
    second = Run(life, 1).take(1)  # group 0 is held again
    assert numbers(second.batch) == [3, 4]
    made_by = {(sample.index, *sample.weight_versions) for sample in flatten(second.batch)}
    assert made_by == {(6, "0"), (7, "0"), (8, "1"), (9, "1")}, "what was finished is not made anew"
    assert run.states(0) == {("generating", None)}
