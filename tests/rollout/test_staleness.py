"""How old samples are, and what may be begun: arithmetic, with values computed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime.data.sample import Sample, SampleError
from slime.rollout.staleness import Bound, age, staleness_metrics
from tests.rollout.samples import finished


@pytest.mark.parametrize(
    ("staleness", "interval", "next_rollout", "updates", "batches"),
    [
        (0, 1, 0, 0, 1),  # only what is trained on by the very weights that make it
        (0, 1, 1, 0, 0),  # rollout 0 is being trained on: rollout 1 needs the weights that come of it
        (0, 1, 1, 1, 1),
        (1, 1, 0, 0, 2),
        (1, 1, 1, 0, 1),  # beside training on rollout 0 rollout 1 is made, as with --async-depth 1
        (2, 1, 5, 4, 2),  # 5 and 6, by weights of which rollout 6 is 2 updates further
        (0, 2, 0, 0, 2),  # rollouts 0 and 1 are by the same weights
        (1, 2, 3, 1, 3),  # 3, 4 and 5: rollouts 4 and 5 are trained on after the second update
        (9, 1, 7, 6, 1),  # the run ends with rollout 7
        (9, 1, 8, 7, 0),
    ],
)
def test_what_may_be_begun(staleness, interval, next_rollout, updates, batches) -> None:
    bound = Bound(staleness, interval, batch_size=16, num_rollouts=8)
    assert bound.limit(next_rollout, updates) == 16 * batches


@pytest.mark.parametrize(
    ("staleness", "interval", "begun", "last"), [(0, 1, 3, 3), (1, 1, 3, 4), (2, 1, 0, 2), (0, 2, 1, 3), (1, 3, 0, 5)]
)
def test_the_last_rollout_that_a_group_can_be_in(staleness, interval, begun, last) -> None:
    bound = Bound(staleness, interval, batch_size=16, num_rollouts=100)
    assert bound.last_rollout(begun) == last
    assert bound.fits([begun], last - 1) and not bound.fits([begun], last)


def test_what_is_left_over_fits_in_the_batches_to_come() -> None:
    """Of 2 groups each. Those begun after 3 updates must be in rollout 5 at the latest, those after 4 in 6."""
    bound = Bound(2, 1, batch_size=2, num_rollouts=100)
    assert bound.fits([3, 3, 3, 3], 3) and not bound.fits([3, 3, 3, 3, 3], 3)
    assert bound.fits([4, 3, 3, 4], 4) and not bound.fits([4, 3, 3, 3], 4)
    assert not bound.fits([4, 4, 4, 4, 4], 4)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 12), st.randoms(use_true_random=False))
def test_nothing_is_too_old_if_training_waits_for_what_would_be(staleness, interval, size, rollouts, dice) -> None:
    """Groups end in any order. A batch takes the oldest that are finished, and waits until what is left fits."""
    bound = Bound(staleness, interval, size, rollouts)
    under_way: list[int] = []  # after how many updates each was begun
    done: list[int] = []

    def begin(next_rollout: int, updates: int) -> None:
        while len(under_way) + len(done) < bound.limit(next_rollout, updates):
            under_way.append(updates)

    for rollout_id in range(rollouts):
        updates = bound.updates_before(rollout_id)
        begin(rollout_id, updates)
        while len(done) < size or not bound.fits([*under_way, *sorted(done)[size:]], rollout_id):
            done.append(under_way.pop(dice.randrange(len(under_way))))
        done.sort()
        assert updates - done[0] <= staleness
        del done[:size]
        begin(rollout_id + 1, updates)  # while this batch is trained on
        for _ in range(dice.randint(0, len(under_way))):
            done.append(under_way.pop(dice.randrange(len(under_way))))
    assert under_way == done == []  # no more was begun than the run needs


def test_a_group_is_as_old_as_its_oldest_token() -> None:
    group = [finished(0, [3, 4], weight_versions=["7", "8"]), [finished(1, [3], weight_versions=["6"])]]
    assert age(group, 9) == 3
    assert age([finished(0, [3], weight_versions=["default"]), finished(1, [3])], 9) == 0


def test_the_mean_age_is_that_of_tokens() -> None:
    """Of 4 + 2 tokens, 1 is 2 updates old, 3 are 1, and 2 are new: 5/6. Whoever says no starts counts as the oldest."""
    samples = [
        finished(0, [3, 4, 5, 6], weight_versions=["7", "8"], weight_version_starts=[0, 1]),
        finished(1, [3, 4], weight_versions=["9"], weight_version_starts=[0]),
        Sample(),
    ]
    assert staleness_metrics(samples, 9) == {"rollout/staleness/mean": 5 / 6, "rollout/staleness/max": 2}
    samples[0].weight_version_starts = []
    assert staleness_metrics(samples, 9)["rollout/staleness/mean"] == 8 / 6
    assert staleness_metrics([Sample()], 9) == {}


@pytest.mark.parametrize("starts", [[0], [1, 0], [0, 0], [0, 2]])
def test_starts_that_fit_no_versions_are_an_error(starts) -> None:
    sample = finished(0, [3, 4], weight_versions=["7", "8"], weight_version_starts=starts)
    with pytest.raises(SampleError, match=r"sample 0 .*weight_version_starts .* don't fit 2 weight_versions"):
        sample.check()
