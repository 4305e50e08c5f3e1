"""Which grader is asked, and what is said when it does not answer properly (cases 8 and 28)."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from slime.data.sample import Sample, Status
from slime.rewards import RewardError, RewardFailure, settle
from slime.rewards.catalogue import GRADERS
from slime.rewards.hub import grade
from tests.rewards import hooks


@pytest.fixture(autouse=True, scope="module")
def release_threads():
    yield
    hooks.released.set()


def args_of(hook=None, **options):
    path = None if hook is None else f"tests.rewards.hooks.{hook}"
    defaults = {
        "rm_type": None,
        "group_rm": False,
        "reward_key": None,
        "eval_reward_key": None,
        "rm_timeout": 30,
        "rm_retries": 0,
        "rm_failure_policy": "stop",
        "rollout_seed": 42,
    }
    return SimpleNamespace(**defaults | {"custom_rm_path": path} | options)


def sample_of(index=3, **fields):
    return Sample(index=index, group_index=1, rollout_id=2, status=Status.COMPLETED, **fields)


def run(args, sample, **kwargs):
    return asyncio.run(grade(args, sample, **kwargs))


def run_group(args, samples):
    return [outcome.reward for outcome in asyncio.run(settle(args, samples))]


NAME = r"sample 3 \(group 1, rollout 2\): "


def test_built_in_by_option_and_by_the_sample_itself():
    right = sample_of(response="7", label="7")
    assert run(args_of(rm_type="exact_match"), right) == 1.0
    right.metadata["rm_type"] = "exact_match"
    assert run(args_of(rm_type="random"), right) == 1.0


def test_nothing_says_how_to_grade():
    with pytest.raises(
        RewardError, match=NAME + "nothing says how .* --rm-type .exact_match, math, .* or --custom-rm-path"
    ):
        run(args_of(), sample_of())
    with pytest.raises(RewardError, match=NAME + "there is no reward type 'exactmatch', only exact_match, math, "):
        run(args_of(), sample_of(metadata={"rm_type": "exactmatch"}))


def test_whatever_a_built_in_grader_raises_names_the_sample_and_is_a_failure(monkeypatch):
    def full(args, sample):
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(GRADERS, "em", full)
    with pytest.raises(RewardFailure, match=NAME + r"em raised OSError: \[Errno 28\] No space left on device"):
        run(args_of(rm_type="em"), sample_of(response="7", label="7"))


def test_random_depends_on_the_seed_and_the_sample_and_is_even():
    samples = [sample_of(i) for i in range(400)]
    first, again, other = (
        [run(args_of(rm_type="random", rollout_seed=seed), sample) for sample in samples] for seed in (1, 1, 2)
    )
    assert first == again != other and set(first) == {0.0, 1.0} and 150 < sum(first) < 250


@pytest.mark.parametrize(
    ("hook", "expected"),
    [("length", 2), ("gives_a_coroutine", 2), ("grader", 3.0), ("plain", {"right": 1.0, "short": 0.5})],
)
def test_custom_functions_asynchronous_or_not(hook, expected):
    assert run(args_of(hook, rm_type="exact_match", reward_key="right"), sample_of(response="ab")) == expected


def test_plain_functions_do_not_block_the_loop():
    async def both():
        task = asyncio.ensure_future(grade(args_of("waits_for_the_loop"), sample_of()))
        await asyncio.sleep(0)
        hooks.loop_turned.set()
        return await task

    assert asyncio.run(both()) == 1.0


def test_the_key_of_training_and_of_evaluation():
    two = {"returns": {"a": 1.0, "b": 2.0}}
    args = args_of("returns", reward_key="a", eval_reward_key="c")
    assert run(args, sample_of(metadata=two)) == two["returns"]
    with pytest.raises(RewardError, match=NAME + "the reward has no key 'c' .* Its keys: 'a', 'b'"):
        run(args, sample_of(metadata=two), evaluation=True)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (None, "the reward is None, not a finite number"),
        (float("nan"), "the reward is nan, not a finite number"),
        (float("inf"), "the reward is inf, not a finite number"),
        ("1", "the reward is '1', not a finite number"),
        (np.ones(2), "the reward is array"),
        ({"a": 1}, "the reward is a dict; say which key counts with --reward-key. Its keys: 'a'"),
        ({}, "the reward is a dict; .* Its keys: none"),
    ],
)
def test_a_reward_that_is_no_number_names_the_sample(reward, message):
    with pytest.raises(RewardError, match=NAME + message):
        run(args_of("returns"), sample_of(metadata={"returns": reward}))


@pytest.mark.parametrize("reward", [1, True, 0.5, np.float32(0.5), np.int64(1), np.array(0.5), np.bool_(True)])
def test_all_kinds_of_numbers_are_rewards(reward):
    assert run(args_of("returns"), sample_of(metadata={"returns": reward})) == reward


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        ("raises", "tests.rewards.hooks.raises raised ZeroDivisionError: division by zero"),
        ("raises_timeout", "tests.rewards.hooks.raises_timeout raised TimeoutError: the reward service did not answer"),
        ("plain_raises", "tests.rewards.hooks.plain_raises raised KeyError: 'answer'"),
        ("leaves", r"tests.rewards.hooks.leaves raised RuntimeError: SystemExit\(3\)"),
        ("leaves_asynchronously", r".*leaves_asynchronously raised RuntimeError: SystemExit\(3\)"),
        ("gives_itself_up", r".*gives_itself_up raised RuntimeError: CancelledError\(\)"),
    ],
)
def test_a_function_that_raises_names_the_sample_and_keeps_the_cause(hook, message):
    with pytest.raises(RewardError, match=NAME + message) as error:
        run(args_of(hook), sample_of())
    assert error.value.__cause__ is not None


@pytest.mark.parametrize("hook", ["hang", "hang_asynchronously", "blocks"])
def test_a_function_that_hangs_is_given_up(hook):
    with pytest.raises(
        RewardError, match=NAME + f"tests.rewards.hooks.{hook} did not return within 0.1 s .--rm-timeout."
    ):
        run(args_of(hook, rm_timeout=0.1), sample_of())


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("tests.rewards.hooks.no_such", "has no attribute 'no_such'"),
        ("no_such_module.reward", "No module named 'no_such_module'"),
        ("tests.rewards.hooks.not_a_function", "is not a function but 7"),
    ],
)
def test_a_path_without_a_function(path, message):
    with pytest.raises(RewardError, match=f"--custom-rm-path {path}: .*{message}"):
        run(args_of(custom_rm_path=path), sample_of())


GROUP = [sample_of(i, response="x" * i, label="x") for i in range(3)]


def test_a_group_is_graded_in_one_call():
    assert run_group(args_of("of_group", group_rm=True), GROUP) == [0.0, 0.0, 1.0]


def test_a_group_without_group_rm_is_graded_one_by_one():
    assert run_group(args_of("length"), GROUP) == [0, 1, 2]
    assert run_group(args_of(rm_type="exact_match", group_rm=True), GROUP) == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        ("one_too_few", r"group 1 \(sample 0 .*sample 2 .*\): .*one_too_few returned 2 rewards for 3 samples"),
        ("no_list", "group 1 .*no_list returned 1.0, not a list of one reward for each sample"),
        ("by_number", "group 1 .*by_number returned {0: 1.0, 1: 1.0, 2: 1.0}, not a list of one reward"),
        ("one_is_nan", r"sample 2 \(group 1, rollout 2\): the reward is nan"),
    ],
)
def test_rewards_of_a_group_that_do_not_fit(hook, message):
    with pytest.raises(RewardError, match=message):
        run_group(args_of(hook, group_rm=True), GROUP)


def test_when_one_of_a_group_fails_nobody_waits_for_the_others():
    async def fail():
        with pytest.raises(RewardError, match=r"sample 0 .* raised ValueError: first"):
            await settle(args_of("slow_but_first_fails"), GROUP)
        await asyncio.sleep(0)
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.cancelling()]

    assert asyncio.run(fail()) == []
