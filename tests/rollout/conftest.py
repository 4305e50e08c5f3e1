from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from slime.config import Config, load
from slime.inference.router import Router
from slime.rollout.generator import Generator
from slime.tiny import Tiny, make_tiny
from tests.documented import documented_hooks

MakeConfig = Callable[..., Config]


@pytest.fixture
def my_hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of docs/hooks.md as the file that the page speaks of."""
    (tmp_path / "my_hooks.py").write_text(documented_hooks())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_hooks", raising=False)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The files of a tiny experiment; the model is the one that the engine of these tests serves."""
    return make_tiny(tmp_path_factory.mktemp("tiny") / "sort", "sort", num_train=16, num_heldout=6, num_demos=16)


@pytest.fixture(scope="session")
def make_config(tiny: Tiny) -> MakeConfig:
    """A configuration of 4 prompts and 2 samples each, with options added as on a command line."""

    def make(*more: str, **options: object) -> Config:
        argv = [
            *("--hf-checkpoint", str(tiny.model), "--prompt-data", str(tiny.train), "--num-rollout", "1"),
            *("--input-key", "prompt", "--label-key", "label", "--apply-chat-template", "--rm-type", "exact_match"),
            *("--rollout-batch-size", "4", "--n-samples-per-prompt", "2", "--rollout-max-response-len", "8"),
            *("--actor-num-gpus-per-node", "1", "--rollout-num-gpus", "1"),
            *more,
        ]
        for name, value in options.items():
            argv += ["--" + name.replace("_", "-"), str(value)]
        return load(argv)

    return make


@pytest.fixture
def at_router(router: Router) -> Callable[[Config], Config]:
    """The configuration with the router's address in it."""
    return lambda config: config.replace(sglang_router_ip=router.host, sglang_router_port=router.port)


@pytest.fixture
def open_generator(router: Router, at_router: Callable[[Config], Config]) -> Iterator[Callable[[Config], Config]]:
    """Opens a Generator for a configuration, which comes back with the router's address in it."""
    with ExitStack() as stack:

        def open_one(config: Config) -> Config:
            config = at_router(config)
            stack.enter_context(Generator(config, router.token))
            return config

        yield open_one
