"""The command lines by which a run starts its engines and routers, as --check shows them.

Ports, addresses and tokens are each process's own, and found at its start: here stand those of a run on one machine.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from slime.config import machine
from slime.config.engine_groups import planned_engines, policy_of, served_models
from slime.inference.process import ServerProcess
from slime.inference.router import ExternalRouter, router_from_config
from slime.inference.server import EngineServer

if TYPE_CHECKING:
    from slime.config import Config

NOWHERE = Path("log")  # nothing is started


def command_lines(config: Config) -> Iterator[tuple[str, str]]:
    """(what, command) of the first engine of each group, and of each router, of a configuration without problems."""
    models = served_models(config)
    disaggregated = any(model.is_disaggregated for model in models)  # which is for GPUs, here or elsewhere
    on_gpus = config.device == "cuda" or (config.device == "auto" and (machine.num_gpus() > 0 or disaggregated))
    seen: list[int] = []
    for engine in planned_engines(models):
        if engine.address is None and id(engine.group) not in seen:
            seen.append(id(engine.group))
            server = EngineServer.from_config(config, engine, device="cuda" if on_gpus else "cpu", log_path=NOWHERE)
            yield f"{engine.model.name}, each {_role(engine.group.worker_type)}", _words(server)
    for model in models:
        router = router_from_config(config, model, log_path=NOWHERE, is_policy=model is policy_of(models))
        if not isinstance(router, ExternalRouter):
            yield f"{model.name}, the router", _words(router)


def _role(worker_type: str) -> str:
    return "engine" if worker_type == "regular" else f"{worker_type} engine"


def _words(server: ServerProcess) -> str:
    try:
        return shlex.join(["python", *server.command()[1:]])
    finally:
        server.stop()  # lets go of ports that its options name
