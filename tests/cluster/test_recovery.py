"""What is done of a death while another is not over yet; real ones are in tests/test_faults.py."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from slime.cluster import recovery
from slime.cluster.recovery import Recovery
from slime.inference.watch import Death

Keep = Callable[..., tuple[Recovery, list[Any], list[Any]]]


@pytest.fixture
def keep(monkeypatch: pytest.MonkeyPatch) -> Keep:
    """A keeper of two engines and of the routers of these models; the engines; and what routers were told of which."""

    def of(*models: str) -> tuple[Recovery, list[Any], list[Any]]:
        routed: list[Any] = []
        monkeypatch.setattr(recovery, "wait", lambda call, *_: routed.append(call))
        rollouts = SimpleNamespace(
            routers={model: f"router of {model}" for model in models},
            serve=lambda engines, models, _: (models, engines),
            watch=lambda _: None,
        )
        controls = [SimpleNamespace(name=f"engine {index}", index=index, gets_weights=True) for index in (0, 1)]
        console = SimpleNamespace(warn=lambda _: None, say=lambda _: None)
        watches = [None] * (len(controls) + len(models))
        return Recovery(SimpleNamespace(), rollouts, controls, watches, console, checks=None), controls, routed

    return of


DEATH = Death("ended", log_tail="", what_then="it is started again")


def test_nobody_waits_for_a_router_that_is_started_again_to_know_of_a_dead_engine(keep: Keep) -> None:
    """The driver stood still until the router was back."""
    keeper, controls, routed = keep("policy")
    keeper._bury(keeper.routers[0], DEATH)
    keeper._bury(keeper.engines[0], DEATH)
    assert routed == []
    keeper._revive(keeper.routers[0], None)
    assert routed == [(["policy"], [controls[1]])]


def test_a_dead_engine_leaves_a_router_at_once_though_that_of_another_model_is_down(keep: Keep) -> None:
    keeper, controls, routed = keep("policy", "judge")
    keeper._bury(keeper.routers[1], DEATH)
    keeper._bury(keeper.engines[0], DEATH)
    assert routed == [(["policy"], [controls[1]])]
    keeper._revive(keeper.routers[1], None)
    assert routed[1:] == [(["policy", "judge"], [controls[1]])]
