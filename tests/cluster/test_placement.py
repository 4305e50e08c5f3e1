"""Plans are checked by hand and by properties; placing them on a real cluster is in test_session.py. Takes 5 s."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slime.cluster.placement import PlacementError, Seat, place, plan
from slime.config.engine_groups import EngineGroup


def alike(devices: int, size: int) -> list[EngineGroup]:
    """One group of regular engines, or none."""
    return [EngineGroup("regular", devices, size)] if devices else []


def test_decoupled_halves_follow_each_other():
    p = plan(train_nodes=1, train_per_node=2, engines=alike(4, 2), per_node=8, colocate=False)
    assert p.bundles == (2, 2, 2)
    assert p.train == (Seat(0, 0), Seat(0, 1))
    assert p.engines == ((Seat(1, 0), Seat(1, 1)), (Seat(2, 0), Seat(2, 1)))
    assert str(p) == "6 devices (2 to train, 4 for 2 engines)"


def test_colocated_engines_sit_on_the_training_devices():
    p = plan(train_nodes=2, train_per_node=4, engines=alike(8, 2), per_node=4, colocate=True)
    assert p.bundles == (4, 4)
    assert [engine[0] for engine in p.engines] == [Seat(0, 0), Seat(0, 2), Seat(1, 0), Seat(1, 2)]
    assert str(p) == "8 devices (8 to train, 4 engines on 8 of them in turns)"


def test_colocated_engines_beyond_the_training_devices_get_their_own():
    p = plan(train_nodes=1, train_per_node=2, engines=alike(4, 1), per_node=8, colocate=True)
    assert p.bundles == (2, 1, 1)
    assert p.engines == ((Seat(0, 0),), (Seat(0, 1),), (Seat(1, 0),), (Seat(2, 0),))
    assert str(p) == "4 devices (2 to train, 4 engines on 2 of them in turns, 2 more for the engines)"


def test_an_engine_larger_than_a_node_takes_whole_nodes():
    p = plan(train_nodes=1, train_per_node=1, engines=alike(16, 16), per_node=8, colocate=False)
    assert p.bundles == (1, 8, 8)
    assert [seat.bundle for seat in p.engines[0]] == [1] * 8 + [2] * 8


def test_without_engines_or_without_training():
    assert plan(2, 2, alike(0, 1), 8, False).engines == ()
    assert str(plan(0, 8, alike(1, 1), 8, False)) == "1 device (1 for 1 engine)"


def test_a_critic_shares_the_training_devices_or_has_its_own_before_the_engines():
    shared = plan(1, 2, alike(2, 1), 8, True, critic=(0, 0))
    assert shared.critic == shared.train and shared.bundles == (2,)
    assert str(shared) == "2 devices (2 to train, a critic on them in turns, 2 engines on 2 of them in turns)"
    own = plan(1, 2, alike(2, 1), 8, False, critic=(2, 1))
    assert own.critic == (Seat(1, 0), Seat(2, 0)) and own.bundles == (2, 1, 1, 1, 1)
    assert own.engines == ((Seat(3, 0),), (Seat(4, 0),))
    assert str(own) == "6 devices (2 to train, 2 for a critic, 2 for 2 engines)"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ((1, 4, alike(6, 4), 8, False), "engines of 4 devices do not divide a group of 6"),
        ((1, 4, alike(12, 12), 8, False), "spans nodes of 8"),
        ((2, 6, alike(12, 4), 8, True), "straddles nodes of 6 training devices"),
        ((1, 2, alike(4, 4), 8, True), "would have only 2 of its devices"),
    ],
)
def test_what_does_not_fit_is_refused(asked, message):
    with pytest.raises(PlacementError, match=message):
        plan(*asked)


def test_groups_of_several_sizes_follow_each_other():
    groups = [EngineGroup("prefill", 2, 2), EngineGroup("placeholder", 1, 8), EngineGroup("decode", 4, 4)]
    p = plan(1, 2, groups, per_node=8, colocate=True)
    assert p.bundles == (2, 1, 4)
    assert [[seat.bundle for seat in engine] for engine in p.engines] == [[0, 0], [2, 2, 2, 2]]
    assert str(p) == "7 devices (2 to train, 2 engines on 2 of them in turns, 4 more for the engines, 1 kept free)"


@given(
    st.integers(0, 4),
    st.integers(1, 8),
    st.integers(0, 6),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from([4, 8]),
    st.booleans(),
    st.sampled_from([None, (0, 0), (1, 4), (2, 2)]),
)
def test_every_plan_gives_each_part_its_devices_once(
    nodes, train_per_node, engines, per_engine, per_node, colocate, critic
):
    try:
        p = plan(nodes, train_per_node, alike(engines * per_engine, per_engine), per_node, colocate, critic)
    except PlacementError:
        assume(False)
    seats = {Seat(bundle, index) for bundle, size in enumerate(p.bundles) for index in range(size)}
    rollout = [seat for engine in p.engines for seat in engine]
    assert len(p.train) == len(set(p.train)) == nodes * train_per_node
    assert len(rollout) == len(set(rollout)) == engines * per_engine
    own = set(p.critic) - set(p.train)
    assert p.critic == (p.train if critic == (0, 0) else p.critic) and len(own) == (
        critic[0] * critic[1] if critic else 0
    )
    assert not own & set(rollout)
    assert set(p.train) | own | set(rollout) == seats, "a device is reserved and not used, or used and not reserved"
    assert len(set(p.train) & set(rollout)) == (min(len(p.train), len(rollout)) if colocate else 0)
    for engine in p.engines:
        if per_engine <= per_node and per_engine <= train_per_node:
            assert len({seat.bundle for seat in engine}) == 1, "a tensor-parallel group left its node"


def test_more_than_there_is_is_said_at_once_and_what_there_is_can_be_had(session):
    with pytest.raises(PlacementError) as refused:
        place(plan(1, 4, alike(4, 1), 8, False), session)
    said = str(refused.value)
    assert said.startswith("needs 8 devices (4 to train, 4 for 4 engines), the cluster has 4 CPUs: ")
    assert "--colocate" in said and "--cpu-slots" in said

    first = place(plan(1, 2, alike(1, 1), 8, False), session)
    assert [p.host for p in first.train] == ["127.0.0.1"] * 2
    with pytest.raises(PlacementError, match="only 1 CPUs are free after 1 s"):
        place(plan(1, 2, alike(0, 1), 8, False), session, timeout=1)
    first.release()
    place(plan(1, 2, alike(2, 1), 8, False), session).release()


def test_engines_elsewhere_and_no_training_take_no_device(session):
    of_none = place(plan(0, 8, [], 8, False), session)
    assert (of_none.train, of_none.engines, of_none.critic) == ((), (), ())
    of_none.release()
