"""Reward functions as users write them."""

import asyncio
import sys
import threading
import time

released = threading.Event()  # ends the threads of `hang` at the end of the tests
loop_turned = threading.Event()


async def length(args, sample, **kwargs):
    await asyncio.sleep(0)
    return len(sample.response)


def plain(args, sample, **kwargs):
    assert threading.current_thread() is not threading.main_thread()
    return {"right": 1.0, "short": 0.5}


def gives_a_coroutine(args, sample):
    return length(args, sample)


class Grader:
    async def __call__(self, args, sample):
        return 3.0


grader = Grader()
not_a_function = 7


async def returns(args, sample):
    return sample.metadata["returns"]


async def raises(args, sample):
    raise ZeroDivisionError("division by zero")


async def raises_timeout(args, sample):
    raise TimeoutError("the reward service did not answer")


def plain_raises(args, sample):
    raise KeyError("answer")


def leaves(args, sample):
    sys.exit(3)


def hang(args, sample):
    released.wait(60)
    return 0.0


async def blocks(args, sample):
    time.sleep(0.3)
    return 1.0


async def leaves_asynchronously(args, sample):
    sys.exit(3)


async def gives_itself_up(args, sample):
    raise asyncio.CancelledError


async def hang_asynchronously(args, sample):
    await asyncio.sleep(3600)


async def of_group(args, samples, **kwargs):
    best = max(len(sample.response) for sample in samples)
    return [float(len(sample.response) == best) for sample in samples]


async def one_too_few(args, samples):
    return [1.0] * (len(samples) - 1)


async def no_list(args, samples):
    return 1.0


async def by_number(args, samples):
    return dict.fromkeys(range(len(samples)), 1.0)


async def one_is_nan(args, samples):
    return [1.0] * (len(samples) - 1) + [float("nan")]


async def slow_but_first_fails(args, sample):
    if sample.index == 0:
        raise ValueError("first")
    await asyncio.sleep(3600)


def waits_for_the_loop(args, sample):
    return float(loop_turned.wait(20))


ASKED = []


async def fails_for_the_odd(args, sample):
    ASKED.append(sample.index)
    if sample.index % 2:
        raise ConnectionError("no service")
    return 1.0


async def second_time_lucky(args, sample):
    ASKED.append(sample.index)
    if ASKED.count(sample.index) == 1:
        raise ConnectionError("no service")
    return 1.0


async def group_fails(args, samples):
    raise ConnectionError("no service")
