"""What is done of a death while another is not over yet; real ones are in tests/test_faults.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from slime.cluster import recovery
from slime.cluster.recovery import Recovery
from slime.inference.watch import Death


def test_nobody_waits_for_a_router_that_is_started_again_to_know_of_a_dead_engine(monkeypatch: pytest.MonkeyPatch):
    """Both are done by one thread of the rollout process: the driver stood still until the router was back."""
    routed: list[Any] = []
    monkeypatch.setattr(recovery, "wait", lambda call, *_: routed.append(call))
    rollouts = SimpleNamespace(routers={"policy": "the router"}, serve=lambda engines, _: engines, watch=lambda _: None)
    controls = [SimpleNamespace(name=f"engine {index}", index=index, gets_weights=True) for index in (0, 1)]
    console = SimpleNamespace(warn=lambda _: None, say=lambda _: None)
    keeper = Recovery(SimpleNamespace(), rollouts, controls, [None, None, None], console, checks=None)
    death = Death("ended", log_tail="", what_then="it is started again")

    keeper._bury(keeper.routers[0], death)
    keeper._bury(keeper.engines[0], death)
    assert routed == []
    keeper._revive(keeper.routers[0], None)
    assert routed == [[controls[1]]]
