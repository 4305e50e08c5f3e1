"""DataBuffer: numbers, what it tells the ledger, and going on from a checkpoint (cases 14, 19 and 33)."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime.data.buffer import DataBuffer, Journal
from slime.data.encode import Encoded
from slime.data.errors import DataError
from slime.data.ledger import Ledger
from slime.data.ledger_file import LedgerError, open_for_reading
from slime.data.outcome import Outcome, outcomes
from slime.data.prompts import Prompt
from slime.data.sample import Sample, Status
from slime.data.source import DataSource, PromptSource

N = 2  # samples a prompt


class Lengths:
    limit_option = "--limit"

    def encode(self, prompts):
        return [Encoded(prompt.content, array("i", range(int(prompt.content) + 1))) for prompt in prompts]


class Life:
    """A process's share of a run: data source, ledger and buffer in one directory."""

    def __init__(
        self, path: Path, first_rollout: int = 0, *, ledger: str = "ledger.db", source: DataSource | None = None
    ):
        prompts = [Prompt(str(i), f"prompts:{i}") for i in range(5)]
        options = {"n_samples_per_prompt": N, "shuffle": True, "directory": path / "rollout"}
        self.source = PromptSource(prompts, Lengths(), **options) if source is None else source
        self.ledger = Ledger(path / ledger)
        self.buffer = DataBuffer(self.source, self.ledger, directory=path / "rollout")
        self.rolled_back = self.buffer.resume(first_rollout)

    def take(self, rollout: int, groups: int = 2) -> list[Sample]:
        """Hands out groups that are generated."""
        samples = [sample for group in self.buffer.get_samples(groups) for sample in group]
        self.buffer.generating([sample.index for sample in samples], rollout)
        return samples

    def batch(self, rollout: int, samples: list[Sample]) -> None:
        told = outcomes((sample, 1.0) for sample in samples)
        self.buffer.finished(told)
        self.buffer.batched(rollout, told)

    def states(self) -> dict[int, str]:
        self.ledger.flush()
        with closing(open_for_reading(self.ledger.path)) as db:
            return dict(db.execute("SELECT id, state FROM samples"))


def respond(sample: Sample, n: int, status: Status = Status.ABORTED) -> None:
    sample.tokens = [*sample.tokens, *range(100, 100 + n)]
    sample.response_length = n
    sample.rollout_log_probs = [-1 / (k + 3) for k in range(n)]
    sample.weight_versions = ["4", "5"]
    sample.rollout_routed_experts = np.arange(n * 2, dtype=np.uint8).reshape(n, 2)
    sample.status = status


def facts(groups):
    """All that a sample says, in a form that compares."""
    return [
        [
            sample.to_dict() | {"rollout_routed_experts": np.asarray(sample.rollout_routed_experts).tolist()}
            for sample in group
        ]
        for group in groups
    ]


def test_it_is_what_rollout_functions_expect(tmp_path):
    buffer = Life(tmp_path).buffer
    assert isinstance(buffer, DataSource) and isinstance(buffer, Journal) and len(buffer) == 5


def test_from_the_source_to_training(tmp_path):
    life = Life(tmp_path)
    samples = life.take(0)
    assert set(life.states().values()) == {"generating"}
    life.batch(0, samples)
    assert set(life.states().values()) == {"finished"}
    assert life.buffer.trained(0) == 4
    assert life.states() == dict.fromkeys(range(4), "trained")


def test_what_is_removed_from_a_batch_is_dropped_with_its_reason(tmp_path):
    life = Life(tmp_path)
    samples = life.take(0)
    reasons = [None, "no reward: HTTP 500", None, None]
    life.buffer.batched(0, outcomes(((sample, 0.0) for sample in samples), reasons))
    assert life.buffer.trained(0) == 3
    assert life.states()[samples[1].index] == "dropped"
    life.buffer.drop([life.take(1, 1)[0].index], "zero variance")
    life.ledger.flush()
    with closing(open_for_reading(life.ledger.path)) as db:
        assert dict(db.execute("SELECT id, reason FROM samples WHERE reason IS NOT NULL")) == {
            samples[1].index: "no reward: HTTP 500", 4: "zero variance",
        }  # fmt: skip


def test_nothing_is_trained_on_twice(tmp_path):
    life = Life(tmp_path)
    samples = life.take(0)
    life.batch(0, samples)
    life.buffer.trained(0)
    with pytest.raises(LedgerError, match=r"sample 0 is trained \(rollout 0\)"):
        life.batch(1, samples)
    with pytest.raises(LedgerError, match="so it can't be issued"):
        life.buffer.add_samples([samples])
    batch = life.take(1)
    life.batch(1, batch)
    with pytest.raises(LedgerError, match=f"sample {batch[0].index} was put back, or is in a batch already"):
        life.buffer.add_samples([batch])


class Unnumbered:
    """A user's data source, whose samples have no numbers."""

    def get_samples(self, n):
        return [[Sample(prompt="x", tokens=[1]), Sample(prompt="x", tokens=[1])] for _ in range(n)]

    def add_samples(self, groups): ...
    def save(self, id): ...
    def load(self, id): ...
    def __len__(self):
        return 1


def test_samples_without_numbers_get_some_that_stay_the_same_after_a_restart(tmp_path):
    first = Life(tmp_path, source=Unnumbered())
    samples = first.take(0)
    assert len({sample.index for sample in samples}) == 4 and all(sample.index < 0 for sample in samples)
    assert [sample.group_index for sample in samples[::2]] == [sample.group_index for sample in samples[1::2]]
    first.batch(0, samples)
    first.buffer.batched(0, [Outcome(None, 0, 9, 4), Outcome(77, 0, 9, 4)])  # the rollout function made these by itself
    assert first.buffer.trained(0) == 6 and max(first.states()) < 0
    first.buffer.save(0)
    numbers = [sample.index for sample in first.take(1)]
    first.ledger.close()
    second = Life(tmp_path, 1, source=Unnumbered())
    assert [sample.index for sample in second.take(1)] == numbers


class Repeating(Unnumbered):
    def get_samples(self, n):
        return [[Sample(index=3, group_index=0, tokens=[1])]]


def test_a_source_that_hands_out_a_number_twice_is_told(tmp_path):
    life = Life(tmp_path, source=Repeating())
    life.batch(0, life.take(0))
    life.buffer.trained(0)
    with pytest.raises(LedgerError, match=r"sample 3 is trained.*a number of its own"):
        life.take(1)


# Partial generations, and restarts.


def test_what_is_put_back_keeps_tokens_log_probs_and_versions_exactly_once(tmp_path):
    life = Life(tmp_path)
    group = life.take(0, 1)
    respond(group[0], 60)
    respond(group[1], 3, Status.COMPLETED)
    before = facts([group])
    life.buffer.add_samples([group])
    with pytest.raises(LedgerError, match="sample 0 was put back, or is in a batch already"):
        life.buffer.add_samples([group])
    with pytest.raises(LedgerError, match="sample 0 was put back"):
        life.buffer.batched(0, outcomes((sample, 1.0) for sample in group))
    again, new = life.buffer.get_samples(2)
    assert facts([again]) == before
    assert new[0].index not in [sample.index for sample in group]


def test_a_resumed_run_gets_the_identical_next_batch(tmp_path):
    """Case 19, with partial generations in the buffer: to the last bit of their log-probs and arrays."""
    life = Life(tmp_path)
    life.batch(0, life.take(0))
    partial = life.take(0, 1)
    respond(partial[0], 60)
    respond(partial[1], 7)
    life.buffer.add_samples([partial])
    life.buffer.save(0)
    expected = life.buffer.get_samples(4)
    before = facts(expected)
    life.ledger.close()
    resumed = Life(tmp_path, 1)
    assert facts(resumed.buffer.get_samples(4)) == before
    assert resumed.rolled_back.under_way == 8


def test_what_was_handed_out_when_the_checkpoint_was_saved_is_handed_out_again_once(tmp_path):
    life = Life(tmp_path)
    late = life.take(1)  # of a rollout that goes on while the next one is generated
    life.batch(0, life.take(0))
    life.buffer.save(0)
    life.buffer.trained(0)
    life.batch(1, late)
    life.buffer.trained(1)  # after the checkpoint: taken back
    life.ledger.close()

    resumed = Life(tmp_path, 1)
    assert resumed.rolled_back.untrained == 4
    assert [sample.index for group in resumed.buffer.get_samples(2) for sample in group] == [s.index for s in late]
    assert resumed.buffer.get_samples(1)[0][0].index == 8
    assert resumed.states() == {
        **dict.fromkeys(range(4), "issued"),
        **dict.fromkeys(range(4, 8), "trained"),
        8: "issued",
        9: "issued",
    }


def test_a_checkpoint_in_a_new_directory_begins_a_ledger(tmp_path):
    life = Life(tmp_path)
    late = life.take(1)
    life.batch(0, life.take(0))
    life.buffer.save(0)
    life.ledger.close()
    resumed = Life(tmp_path, 1, ledger="new.db")
    assert [sample.index for sample in resumed.take(1)] == [sample.index for sample in late]
    assert resumed.states() == dict.fromkeys(range(4), "generating")


def test_a_state_that_is_none(tmp_path):
    life = Life(tmp_path)
    life.buffer.save(0)
    (tmp_path / "rollout" / "0.buffer.json").write_text('{"token": 1}')
    with pytest.raises(DataError, match=r"0\.buffer\.json is not what a data buffer saved"):
        life.buffer.load(0)
    of_another_slime = '{"token": null, "next_own": -1, "handed_out": [[{"status": "pending", "masks": []}]]}'
    (tmp_path / "rollout" / "0.buffer.json").write_text(of_another_slime)
    with pytest.raises(DataError, match=r"0\.buffer\.json is not what a data buffer saved: .*masks"):
        life.buffer.load(0)
    with pytest.raises(DataError, match="without a directory"):
        DataBuffer(life.source, life.ledger).save(0)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_sample_is_trained_on_once_or_dropped_whatever_is_killed(tmp_path_factory, seed):
    """Asynchronous runs by chance: groups finish out of order, some are put back or dropped, each life ends
    anywhere."""
    path, dice = tmp_path_factory.mktemp("run"), random.Random(seed)
    saved, rollouts = -1, 6
    trained: dict[
        int, list[int]
    ] = {}  # rollout -> samples, as the weights of the latest checkpoint and this life know it
    while True:
        life = Life(path, saved + 1)
        trained = {rollout: ids for rollout, ids in trained.items() if rollout <= saved}
        under_way: list[list[Sample]] = []
        steps = dice.randint(3, 40)
        rollout = saved + 1
        while rollout < rollouts and steps > 0:
            steps -= 1
            match dice.choice("gggpdb"):
                case "g":
                    under_way += life.buffer.get_samples(1)
                    life.buffer.generating([sample.index for sample in under_way[-1]], rollout)
                case "p" if under_way:
                    life.buffer.add_samples([under_way.pop(dice.randrange(len(under_way)))])
                case "d" if under_way and dice.random() < 0.3:
                    life.buffer.drop([s.index for s in under_way.pop(dice.randrange(len(under_way)))], "chance")
                case "b" if len(under_way) >= 2:
                    batch = [sample for _ in range(2) for sample in under_way.pop(dice.randrange(len(under_way)))]
                    life.batch(rollout, batch)
                    if rollout % 2:
                        life.buffer.save(rollout)
                    trained[rollout] = [sample.index for sample in batch]
                    life.buffer.trained(rollout)
                    if rollout % 2:
                        saved = rollout
                    rollout += 1
        if rollout == rollouts:
            life.buffer.close(whole=True)
            break
        life.ledger.flush()
        life.ledger._db.close()  # this life ends here
        life.ledger._closed = True
    with closing(open_for_reading(path / "ledger.db")) as db:
        states = dict(db.execute("SELECT id, state FROM samples"))
        reasons = db.execute("SELECT reason FROM samples WHERE state = 'dropped'").fetchall()
    counts = Counter(id for ids in trained.values() for id in ids)
    assert set(counts.values()) == {1} and len(trained) == rollouts
    assert states == {id: "trained" if id in counts else "dropped" for id in states}
    assert all(reason for (reason,) in reasons)


def throw_the_oldest_away(buffer, n):
    del buffer[0]
    return [buffer.pop() for _ in range(min(n, len(buffer)))]


def test_what_the_buffer_filter_discards_is_dropped(tmp_path):
    prompts = [Prompt(str(i), f"prompts:{i}") for i in range(5)]
    source = PromptSource(prompts, Lengths(), n_samples_per_prompt=N, buffer_filter=throw_the_oldest_away)
    life = Life(tmp_path, source=source)
    groups = life.buffer.get_samples(2)
    made_by_the_user = [Sample(index=70), Sample(index=71)]
    life.buffer.add_samples([made_by_the_user, *groups])
    assert life.buffer.get_samples(1) == [groups[1]]  # what the ledger never knew is not told to it
    life.buffer.add_samples([groups[1]])
    assert [group[0].index for group in life.buffer.get_samples(1)] == [2]
    assert [life.states()[i] for i in (0, 1)] == ["dropped"] * 2
    life.ledger.close()


def test_a_fanned_out_group_waits_once(tmp_path):
    life = Life(tmp_path)
    ((first, second),) = life.buffer.get_samples(1)
    other = Sample(group_index=first.group_index, index=first.index, tokens=[1, 2, 3], response_length=1)
    life.buffer.add_samples([[[first, other], second]])
    assert set(life.states().values()) == {"issued"}
    assert life.buffer.get_samples(1) == [[[first, other], second]]
    life.buffer.save(0)
    life.ledger.close()
    again = Life(tmp_path, 1)
    (((a, b), c),) = again.buffer.get_samples(1)
    assert (a, b, c) == (first, other, second)
    again.ledger.close()
