"""EngineServer: one SGLang server in a process of its own.

Invariants
- An option that the user set always wins over a default of ours.
- Loopback unless another host is named; what listens wider asks for a token.
- Two engines on a machine never collide: ports come from the system, temporary files are each engine's own.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from slime.config.engine_rules import SEEDS
from slime.data.eval_sets import eval_sets
from slime.inference.context import needed
from slime.inference.control import EngineControl
from slime.inference.errors import InferenceError
from slime.inference.flags import flags
from slime.inference.process import ServerProcess, is_loopback

if TYPE_CHECKING:
    from slime.config import Config
    from slime.config.engine_groups import PlannedEngine

DEFAULTS: dict[str, Any] = {
    "skip_tokenizer_init": True,  # token ids in, token ids out
    "log_level": "warning",
}
CPU_DEFAULTS: dict[str, Any] = {
    "dtype": "float32",
    "attention_backend": "torch_native",
    "disable_overlap_schedule": True,
    "sleep_on_idle": True,  # else an idle engine burns a core
    "mem_fraction_static": 0.1,  # of the machine's memory; engines, trainer and Ray share it
    "max_total_tokens": 65536,
    "max_running_requests": 256,
}
KEEP_ALIVE_S = 120  # longer than router and client keep idle connections, so that it never closes one just being used


class EngineServer(ServerProcess):
    """`options` are SGLang's own, by name with underscores. `tp_size` devices; those visible, on a GPU machine.
    `about` is what its EngineControl says besides."""

    def __init__(
        self,
        model: str | Path,
        *,
        log_path: Path,
        device: Literal["cpu", "cuda"] = "cpu",
        tp_size: int = 1,
        host: str = "127.0.0.1",
        port: int | None = None,
        token: str | None = None,
        options: Mapping[str, Any] | None = None,
        name: str = "engine",
        about: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, host=host, port=port, log_path=log_path)
        self.about = dict(about or {})
        self.bootstrap_port: int | None = None
        self.token = token or (None if is_loopback(host) else secrets.token_urlsafe(32))
        self.device = device
        self.tp_size = tp_size
        self.options = {
            **DEFAULTS,
            **(CPU_DEFAULTS if device == "cpu" else {}),
            **(options or {}),
            "model_path": str(model),
            "device": device,
            "tp_size": tp_size,
        }

    @classmethod
    def from_config(
        cls,
        config: Config,
        engine: PlannedEngine,
        *,
        device: Literal["cpu", "cuda"],
        log_path: Path,
        host: str = "127.0.0.1",
        token: str | None = None,
    ) -> Self:
        """An engine of a run. `host` is this machine's address as the others reach it; `token` is the run's."""
        sleeps = device == "cuda" and bool(config.offload_rollout)
        role = engine.group.worker_type
        options = {
            "random_seed": (config.rollout_seed + engine.index) % SEEDS,
            "disaggregation_mode": role if role in ("prefill", "decode") else None,
            # What gives the memory of weights and KV cache back while the trainer has the device.
            "enable_memory_saver": sleeps,
            **(_of_the_policy(config) if engine.model.update_weights else {"skip_tokenizer_init": False}),
            # Weights that nobody brings again have to be kept.
            "enable_weights_cpu_backup": sleeps and not engine.model.update_weights,
            **config.sglang,
            **engine.group.overrides,
        }
        return cls(
            engine.model.path,
            log_path=log_path,
            device=device,
            tp_size=engine.num_devices,
            host=host,
            token=token,
            options=options,
            name=f"engine {engine.index}",
            about={
                "index": engine.index,
                "first_device": engine.first_device,
                "model": engine.model.name,
                "gets_weights": engine.model.update_weights,
            },
        )

    def command(self) -> list[str]:
        options = {**self.options, "host": self.host, "port": self.port}
        if options.get("disaggregation_mode") == "prefill":  # where those that decode ask for its caches
            self.bootstrap_port = options.get("disaggregation_bootstrap_port") or self.reserve_port()
            options["disaggregation_bootstrap_port"] = self.bootstrap_port
        return [sys.executable, "-m", "slime.inference.launch", *flags("sglang", options)]

    def environment(self) -> dict[str, str | None]:
        return {
            "SLIME_TOKEN": self.token,
            # Else /health generates a token, which takes a second, and fails while the engine is paused or asleep.
            "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
            "SGLANG_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_S),
            "TOKENIZERS_PARALLELISM": "false",
            **(self._cpu_environment() if self.device == "cpu" else {}),
        }

    def _cpu_environment(self) -> dict[str, str]:
        cores = sorted(os.sched_getaffinity(0))
        chosen = {
            "TORCHDYNAMO_DISABLE": "1",  # else SGLang compiles small functions of TP > 1, seconds each, in C++
            "OMP_NUM_THREADS": "1",  # more threads than free cores make it many times slower
            # Asked for when there are more ranks than NUMA nodes.
            "SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(cores[rank % len(cores)]) for rank in range(self.tp_size)),
            **({"GLOO_SOCKET_IFNAME": "lo"} if is_loopback(self.host) else {}),
        }
        return {**{name: os.environ.get(name, value) for name, value in chosen.items()}, "CUDA_VISIBLE_DEVICES": ""}

    @property
    def control(self) -> EngineControl:
        """Settled once `wait_ready` has returned."""
        return EngineControl(
            self.url,
            self.token,
            name=self.name,
            **self.about,
            num_devices=self.tp_size,
            worker_type=self.options.get("disaggregation_mode") or "regular",
            bootstrap_port=self.bootstrap_port,
        )

    def is_healthy(self) -> bool:
        try:
            self.control.health()
        except InferenceError:
            return False
        return True


def _of_the_policy(config: Config) -> dict[str, Any]:
    """What the rollouts ask of the engines that make them."""
    return {
        "context_length": needed(config).length,
        # Users' functions may send and expect text.
        "skip_tokenizer_init": needs_texts(config) is None and config.custom_generate_function_path is None,
        "enable_return_routed_experts": config.use_rollout_routing_replay,
    }


def needs_texts(config: Config) -> str | None:
    """The option for which an engine of the policy has to know its tokenizer, if there is one: it can only look for
    stop strings in text, and only there finds out which token ends a response."""
    if config.rollout_stop:
        return "--rollout-stop"
    if config.eval_interval is None:
        return None
    return next((f"min_new_tokens of eval set {one.name}" for one in eval_sets(config) if one.min_new_tokens), None)
