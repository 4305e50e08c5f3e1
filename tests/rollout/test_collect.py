"""Collecting a batch: filters, over-sampling, aborts and partial rollouts (cases 13, 14 and 21)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from slime.config import Config
from slime.config.checkpoint_dir import DATA
from slime.data.buffer import DataBuffer
from slime.data.ledger import Ledger
from slime.data.ledger_file import open_for_reading
from slime.data.sample import Sample, Status
from slime.data.source import Group
from slime.inference.router import Router
from slime.inference.server import EngineServer
from slime.rewards import Outcome
from slime.rollout import orders
from slime.rollout.collect import Collected, Collector
from slime.rollout.filters import check_reward_nonzero_std
from slime.rollout.generator import Generator, Job
from slime.rollout.producer import open_source
from slime.rollout.sampling import Sampling
from slime.rollout.scores import record
from slime.rollout.types import RolloutError, flatten
from tests.rollout import hooks
from tests.rollout.samples import finished

HOOKS = "tests.rollout.hooks"
MakeConfig = Callable[..., Config]


class Life:
    """The rollout half of a run: buffer, ledger, and a Generator, which needs an engine only if it is asked for one."""

    def __init__(self, config: Config, path: Path, router: Router | None, engine: EngineServer | None) -> None:
        place = (router.host, router.port) if router else ("127.0.0.1", 9)
        self.config = config.replace(sglang_router_ip=place[0], sglang_router_port=place[1])
        self.ledger = Ledger(path / "ledger.db")
        self.buffer = DataBuffer(open_source(config), self.ledger, directory=config.save and Path(config.save, DATA))
        self.generator = Generator(self.config, router and router.token, [] if engine is None else [engine.control])

    def collect(self, rollout_id: int = 0, **options: object) -> Collected:
        config = self.config.replace(**options)
        self.job = Job(config, Sampling.for_rollout(config), rollout_id, journal=self.buffer)
        return self.generator.run(Collector(self.generator, self.job, self.buffer).collect())

    def states(self) -> dict[int, tuple[str, str | None]]:
        """Of each sample: its state, and why it was dropped."""
        self.ledger.flush()
        with closing(open_for_reading(self.ledger.path)) as db:
            return {id: (state, reason) for id, state, reason in db.execute("SELECT id, state, reason FROM samples")}


@pytest.fixture
def live(make_config: MakeConfig, tmp_path: Path) -> Iterator[Callable[..., Life]]:
    with ExitStack() as stack:

        def begin(
            *more: str, router: Router | None = None, engine: EngineServer | None = None, **options: object
        ) -> Life:
            life = Life(make_config(*more, **options), tmp_path, router, engine)
            stack.callback(life.ledger.close)
            stack.callback(life.generator.close)
            return life

        yield begin


def numbers(groups: list[Group]) -> list[int]:
    return [flatten([group])[0].group_index for group in groups]


COUNTS = {"custom_generate_function_path": f"{HOOKS}.counts_up"}
STD = {"dynamic_sampling_filter_path": "slime.rollout.filters.check_reward_nonzero_std"}


class TestFilter:
    def test_drops_groups_without_deviation_and_samples_others(self, live: Callable[..., Life]) -> None:
        """Of groups 0 to 3, 1 and 2 have equal rewards: 4 to 7 are asked for, and 4 and 5 fill the batch of 4."""
        life = live(**COUNTS, **STD)
        collected = life.collect()
        assert numbers(collected.batch) == [0, 3, 4, 5]
        assert numbers(collected.finished) == [0, 1, 2, 3, 4, 5]
        assert collected.metrics() == {"rollout/dynamic_filter/drop_zero_std_1.0": 2}
        states = life.states()
        for group in (1, 2):
            assert states[2 * group] == states[2 * group + 1] == ("dropped", "dynamic filter: zero_std_1.0")
        assert [states[i] for i in (12, 13, 14, 15)] == [("dropped", "the batch was full")] * 4
        assert [states[i] for i in (0, 1, 6, 7, 8, 9, 10, 11)] == [("finished", None)] * 8

    def test_of_users_by_reason(self, live: Callable[..., Life]) -> None:
        collected = live(**COUNTS, dynamic_sampling_filter_path=f"{HOOKS}.keeps_even_groups").collect()
        assert numbers(collected.batch) == [0, 2, 4, 6]
        assert collected.metrics() == {"rollout/dynamic_filter/drop_odd": 3}

    def test_that_is_asynchronous_and_says_no_reason(self, live: Callable[..., Life]) -> None:
        life = live(**COUNTS, dynamic_sampling_filter_path=f"{HOOKS}.keeps_group_three", rollout_batch_size=1)
        collected = life.collect()
        assert (numbers(collected.batch), collected.dropped) == ([3], {"keeps_group_three": 3})

    def test_that_keeps_nothing_ends_the_run(self, live: Callable[..., Life], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(orders, "HOPELESS", 30)
        life = live(**COUNTS, dynamic_sampling_filter_path=f"{HOOKS}.keeps_group_three", rollout_batch_size=2)
        with pytest.raises(
            RolloutError, match=r"rollout 0: .*keeps_group_three has kept none of the last 30 groups \("
        ):
            life.collect()
        assert Counter(state for state, _ in life.states().values())["dropped"] == 2 * (3 + 30)

    def test_that_forgets_to_return_is_not_taken_for_a_refusal(self, live: Callable[..., Life]) -> None:
        with pytest.raises(RolloutError, match=r"group of sample \d \(.*forgets_to_return returned None, not a bool"):
            live(**COUNTS, dynamic_sampling_filter_path=f"{HOOKS}.forgets_to_return").collect()

    def test_that_raises_names_the_group(self, live: Callable[..., Life]) -> None:
        with pytest.raises(RolloutError, match=r"group of sample \d \(.*breaks raised KeyError: 'std'"):
            live(**COUNTS, dynamic_sampling_filter_path=f"{HOOKS}.breaks").collect()

    @pytest.mark.parametrize(
        "filter_", [STD, {"dynamic_sampling_filter_path": f"{HOOKS}.keeps_what_sums_to_two_and_a_half"}]
    )
    def test_sees_the_parts_of_a_group_that_fanned_out(
        self, live: Callable[..., Life], filter_: dict[str, str]
    ) -> None:
        """Each sample becomes two with rewards .25 and 1."""
        life = live(**filter_, custom_generate_function_path=f"{HOOKS}.two_of_each")
        collected = life.collect()
        assert [[len(parts) for parts in group] for group in collected.batch] == [[2, 2]] * 4
        assert collected.dropped == {}

    def test_of_dapo_without_rewards_that_were_not_had(self) -> None:
        """Of four, two failed; those that are dropped are not taken for zeros beside the ones."""
        args = SimpleNamespace(reward_key=None)
        for drop, expected in ((True, (False, "zero_std_1.0")), (False, (True, None))):
            group = [finished(i, [3], reward=1.0) for i in range(4)]
            for sample in group[2:]:
                record(sample, Outcome(0.0, 1, "the service is gone"), drop=drop)
            output = check_reward_nonzero_std(args, group)
            assert (output.keep, output.reason) == expected
            assert check_reward_nonzero_std(args, group[2:]).reason == ("no_reward" if drop else "zero_std_0.0")

    def test_of_dapo_by_reward_key(self) -> None:
        group = [finished(i, [3], reward={"right": 1.0, "brief": float(i)}) for i in range(2)]
        right, brief = (check_reward_nonzero_std(SimpleNamespace(reward_key=key), group) for key in ("right", "brief"))
        assert (right.keep, right.reason, brief.keep) == (False, "zero_std_1.0", True)


def test_a_source_without_more_groups(live: Callable[..., Life]) -> None:
    life = live(**COUNTS)
    life.buffer.source.get_samples = lambda n: []
    with pytest.raises(RolloutError, match="the data source has no more groups, 0 of 4 are collected"):
        life.collect()


def test_what_users_functions_do_not_end_is_dropped(live: Callable[..., Life]) -> None:
    life = live(
        custom_generate_function_path=f"{HOOKS}.even_groups_never_end", rollout_batch_size=2, over_sampling_batch_size=4
    )
    assert numbers(life.collect().batch) == [1, 3]
    assert Counter(life.states().values()) == {
        ("finished", None): 4, ("dropped", "the batch was full, and it was not finished"): 4
    }  # fmt: skip


def test_finished_groups_beyond_the_batch_go_out_again(live: Callable[..., Life]) -> None:
    """As they are: graded, and not generated again. One that fanned out, too."""
    options = {"partial_rollout": True, "over_sampling_batch_size": 6}
    life = live(custom_generate_function_path=f"{HOOKS}.two_of_each", custom_rm_path=f"{HOOKS}.length_reward")
    first = life.collect(0, **options)
    assert numbers(first.batch) == [0, 1, 2, 3]
    assert [life.states()[i] for i in range(8, 12)] == [("issued", None)] * 4
    second = life.collect(1, **options)
    assert numbers(second.batch) == [4, 5, 6, 7]
    assert {sample.rollout_id for sample in flatten(second.batch[:2])} == {0}
    assert {sample.rollout_id for sample in flatten(second.batch[2:])} == {1}


JUDGED = {
    "custom_generate_function_path": f"{HOOKS}.answers_at_once",
    "custom_rm_path": f"{HOOKS}.first_fails_late_for_groups_from_four_on",
}


def test_what_fails_when_the_batch_is_full_is_dropped_and_ends_no_run(live: Callable[..., Life]) -> None:
    hooks.JUDGED_IN_VAIN.clear()
    life = live(**JUDGED)
    collected = life.collect(partial_rollout=True, over_sampling_batch_size=6)
    assert numbers(collected.batch) == [0, 1, 2, 3]
    for state, reason in [life.states()[i] for i in range(8, 12)]:
        assert state == "dropped"
        assert reason.startswith("the batch was full, and it failed: sample ") and "the judge said nothing" in reason


@pytest.mark.parametrize("policy", ["zero", "drop"])
def test_rewards_that_were_not_had_when_the_batch_was_full_are_asked_for_anew(
    live: Callable[..., Life], policy
) -> None:
    hooks.JUDGED_IN_VAIN.clear()
    life = live(**JUDGED, rm_failure_policy=policy)
    life.collect(0, partial_rollout=True, over_sampling_batch_size=6)
    assert [life.states()[i] for i in range(8, 12)] == [("issued", None)] * 4
    again = flatten(life.collect(1, partial_rollout=True, over_sampling_batch_size=6).batch)[:4]
    assert [sample.reward for sample in again] == [8.0, 9.0, 10.0, 11.0]
    assert not any(sample.remove_sample or "reward_failure" in sample.metadata for sample in again)


def test_a_sample_hook_sees_again_only_what_is_graded_anew(live: Callable[..., Life]) -> None:
    """Of sample 9, whose reward was not had, it saw a reward of 0."""
    hooks.JUDGED_IN_VAIN.clear()
    hooks.JUDGED_IN_VAIN.update({8, 10})
    life = live(**JUDGED, rm_failure_policy="zero", rollout_sample_hook_path=f"{HOOKS}.adds_ten")
    life.collect(0, partial_rollout=True, over_sampling_batch_size=6)
    assert [life.states()[i] for i in range(8, 12)] == [("issued", None)] * 4
    again = flatten(life.collect(1, partial_rollout=True, over_sampling_batch_size=6).batch)[:4]
    assert [sample.reward for sample in again] == [18.0, 19.0, 20.0, 21.0]


def test_a_sample_hook_sees_all_of_a_group_that_was_cut_short_once_it_is_finished(live: Callable[..., Life]) -> None:
    """Samples 8 and 10 were graded before it, and their groups were in no batch."""
    hooks.JUDGED_IN_VAIN.clear()
    hooks.JUDGED_IN_VAIN.update(range(8, 40))
    options = {
        "custom_generate_function_path": f"{HOOKS}.odd_ones_ask_on_when_the_batch_is_full",
        "custom_rm_path": JUDGED["custom_rm_path"],
        "rollout_sample_hook_path": f"{HOOKS}.adds_ten",
    }
    life = live(**options)
    assert numbers(life.collect(0, partial_rollout=True, over_sampling_batch_size=6).batch) == [0, 1, 2, 3]
    again = flatten(life.collect(1, partial_rollout=True, over_sampling_batch_size=6).batch)[:4]
    assert [sample.reward for sample in again] == [18.0, 19.0, 20.0, 21.0]
    assert [sample.rollout_id for sample in again] == [0, 1, 0, 1]


def test_who_asks_the_engines_when_the_batch_is_full_hears_that_it_is(live: Callable[..., Life]) -> None:
    """It is not sent: there is nobody to send it to."""
    hooks.ASKED_IN_VAIN.clear()
    options = {
        "custom_generate_function_path": f"{HOOKS}.asks_on_when_the_batch_is_full",
        "custom_rm_path": JUDGED["custom_rm_path"],
    }
    life = live(**options)
    assert numbers(life.collect(partial_rollout=True, over_sampling_batch_size=6).batch) == [0, 1, 2, 3]
    assert hooks.ASKED_IN_VAIN == ["abort"] * 4


def test_what_a_later_batch_would_mask_as_a_whole_is_dropped(live: Callable[..., Life]) -> None:
    life = live(**COUNTS)
    life.collect(partial_rollout=True, mask_offpolicy_in_partial_rollout=True, over_sampling_batch_size=6)
    reason = "the batch was full, and a later one would have all of its tokens masked"
    assert [life.states()[i] for i in range(8, 12)] == [("dropped", reason)] * 4


GREEDY = {"rollout_top_k": 1, "rollout_max_response_len": 120, "n_samples_per_prompt": 2, "num_steps_per_rollout": 1}


class OneIsFinished:
    """Hands out a finished group before those of another source: the batch of one is full at once."""

    def __init__(self, source: object) -> None:
        self.source, self.is_first = source, True

    def get_samples(self, n: int) -> list[Group]:
        done = [[finished(1000 + i, [3], group=1000) for i in range(2)]] if self.is_first else []
        self.is_first = False
        return [*done, *self.source.get_samples(n - len(done))]

    def __getattr__(self, name: str) -> object:
        return getattr(self.source, name)


@pytest.fixture
def cut_short(live: Callable[..., Life], router: Router, engine: EngineServer) -> Callable[..., Life]:
    """A life whose first rollout is full while three groups are generated."""

    def begin(**options: object) -> Life:
        life = live(router=router, engine=engine, **GREEDY)
        life.buffer.source = OneIsFinished(life.buffer.source)
        hooks.ENGINE_IS_BUSY[:] = [lambda: sum(load["num_used_tokens"] for load in engine.control.loads()) > 150]
        busy = {"dynamic_sampling_filter_path": f"{HOOKS}.keeps_when_the_engine_is_busy"}
        life.first = life.collect(0, rollout_batch_size=1, over_sampling_batch_size=4, **busy, **options)
        return life

    return begin


def test_aborted_samples_are_dropped(cut_short: Callable[..., Life], engine: EngineServer) -> None:
    life = cut_short()
    assert numbers(life.first.batch) == [1000]
    assert Counter(life.states().values()) == {("issued", None): 2, ("dropped", "the batch was full"): 6}
    assert sum(load["num_running_reqs"] for load in engine.control.loads()) == 0


@pytest.mark.parametrize("mask", [False, True])
def test_aborted_samples_are_generated_on(cut_short: Callable[..., Life], mask: bool) -> None:
    """Greedy, so that what was cut and continued must be what comes out in one go."""
    options = {"partial_rollout": True, "mask_offpolicy_in_partial_rollout": mask}
    life = cut_short(**options)
    assert [life.states()[i] for i in range(6)] == [("issued", None)] * 6
    life.buffer.source.is_first = False
    waiting = {s.index: (list(s.tokens), list(s.rollout_log_probs), list(s.weight_versions))
               for s in flatten(life.buffer.source._returned)}  # fmt: skip
    partial = {sample.index: sample.response_length for sample in flatten(life.buffer.source._returned)}
    assert any(0 < length < 120 for length in partial.values())

    second = life.collect(1, rollout_batch_size=3, over_sampling_batch_size=3, **options)
    samples = flatten(second.batch)
    assert sorted(sample.index for sample in samples) == list(range(6))
    for sample in samples:
        sample.check()
        tokens, log_probs, versions = waiting[sample.index]
        n = partial[sample.index]
        assert sample.tokens[: len(tokens)] == tokens
        assert sample.rollout_log_probs[:n] == log_probs
        assert sample.weight_versions[: len(versions)] == versions
        assert len(sample.weight_versions) == (2 if n else 1)
        assert sample.loss_mask == ([0] * n + [1] * (sample.response_length - n) if mask and n else None)
        assert sample.response_length == 120 or sample.status is Status.COMPLETED
    fresh = [
        [Sample(index=s.index, group_index=s.group_index, tokens=s.tokens[: s.prompt_length], label="") for s in group]
        for group in second.batch
    ]
    again = life.generator.run(life.generator.generate(fresh, Job(life.config, life.job.sampling, 2)))
    for sample, same in zip(samples, flatten(again), strict=True):
        assert sample.tokens == same.tokens
        assert sample.response == same.response
        assert sample.rollout_log_probs == pytest.approx(same.rollout_log_probs, abs=1e-4)


def aborted(used: int) -> Sample:
    said = [20 + i % 10 for i in range(used)]
    return finished(0, said, status=Status.ABORTED, label="", reward=None, weight_versions=["before"])


@pytest.mark.parametrize("used", [60, 100])
def test_the_budget_of_a_continued_sample_is_what_is_left_of_it(
    live: Callable[..., Life], router: Router, engine: EngineServer, used: int
) -> None:
    life = live(router=router, engine=engine, rollout_top_k=1, rollout_max_response_len=100, n_samples_per_prompt=1,
                advantage_estimator="ppo")  # fmt: skip
    config = life.config.replace(partial_rollout=True)
    job = Job(config, Sampling.for_rollout(config), 1)
    (sample,) = life.generator.run(life.generator.group([aborted(used)], job))
    sample.check()
    if used == 60:
        (generation,) = job.generations
        assert generation.prompt_tokens == 2 + 60
        assert len(generation.tokens) == sample.response_length - 60
        assert len(generation.tokens) == 40 or sample.status is Status.COMPLETED
        assert sample.weight_versions == ["before", "default"]
        assert sample.rollout_log_probs[60:] == generation.log_probs
    else:
        assert job.generations == []
        assert (sample.response_length, sample.status, sample.reward) == (100, Status.TRUNCATED, 0.0)


def test_without_partial_rollouts_an_aborted_sample_begins_anew(
    live: Callable[..., Life], router: Router, engine: EngineServer
) -> None:
    life = live(router=router, engine=engine)
    (sample,) = life.generator.run(
        life.generator.group([aborted(60)], Job(life.config, Sampling.for_rollout(life.config), 1))
    )
    assert (sample.tokens[:2], sample.weight_versions, sample.response_length <= 8) == ([1, 2], ["default"], True)


@pytest.mark.parametrize(("kept", "mask"), [(2, [0, 0, 1, 1, 1]), (1, [0, 1, 1, 1]), (0, [1, 1, 1])])
def test_a_function_that_says_nothing_of_the_mask_has_what_it_appends_trained_on(
    live: Callable[..., Life], kept: int, mask: list[int]
) -> None:
    """It keeps so many of the tokens that an earlier rollout has sampled, which are not."""
    life = live(custom_generate_function_path=f"{HOOKS}.appends_by_hand")
    config = life.config.replace(partial_rollout=True, mask_offpolicy_in_partial_rollout=True)
    sample = aborted(2)
    sample.metadata["kept"] = kept
    job = Job(config, Sampling.for_rollout(config), 1)
    (made,) = life.generator.run(life.generator.group([sample], job))
    made.check()
    assert made.loss_mask == mask
