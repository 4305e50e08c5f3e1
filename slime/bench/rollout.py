"""rollout: generation through router, client and rollout code, beside the bare engine driven by a plain client.

One engine serves both, in turns: bare, slime, bare, slime ... Both send the same prompts with the same sampling
parameters, all samples of a prompt in one request, onto an empty cache; every response has the same length. A sample's
tokens/s are its tokens over the time from the start of the round until it is there; the slowest sample sets the pace of
a training step. Unknown options go to the configuration: --sglang-*, --router-* and the rest.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from slime.bench.arguments import count
from slime.bench.plain import PlainClient
from slime.bench.report import Report, Row
from slime.config import Config, load
from slime.config.engine_groups import planned_engines, served_models
from slime.data.sample import Sample
from slime.inference.client import GenerateClient
from slime.inference.errors import InferenceError
from slime.inference.router import Router
from slime.inference.server import EngineServer
from slime.observe.console import Console
from slime.rollout.generate import generate_rollout
from slime.rollout.generator import Generator
from slime.rollout.sampling import Sampling
from slime.rollout.types import flatten
from slime.tiny import write_checkpoint

TARGET = 0.95
TIMEOUT_S = 1800.0  # a large model takes long to load
FIRST_TOKENS = 16  # samples whose first token is timed
ARRIVED = "arrived"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hf-checkpoint", metavar="DIR", help="model to serve [a tiny Qwen3 with random weights]")
    parser.add_argument("--tp", type=count, default=1, metavar="N", help="devices of the engine [1]")
    parser.add_argument("--prompts", type=count, default=32, metavar="N", help="prompts a round [32]")
    parser.add_argument("--samples", type=count, default=8, metavar="N", help="samples a prompt, in one request [8]")
    parser.add_argument("--prompt-tokens", type=count, default=24, metavar="N", help="length of a prompt [24]")
    parser.add_argument("--response-tokens", type=count, default=48, metavar="N", help="length of a response [48]")
    parser.add_argument("--rounds", type=count, default=12, metavar="N", help="rounds of each side [12]")
    parser.add_argument("--logs", metavar="DIR", help="keep the logs of engine and router here")


@dataclass(frozen=True)
class Round:
    """What one side did with the prompts of one round, in tokens/s: `total`, and `speeds`, one a sample."""

    total: float
    speeds: list[float]

    @classmethod
    def of(cls, start: float, samples: Sequence[tuple[int, float]]) -> Round:
        """`samples`: (number of tokens, time of arrival)."""
        seconds = time.perf_counter() - start
        return cls(sum(n for n, _ in samples) / seconds, [n / (arrived - start) for n, arrived in samples])


class Prompts:
    """Random token ids, the same in every round; a data source of the rollout code."""

    def __init__(self, num_prompts: int, num_samples: int, length: int, vocab_size: int) -> None:
        rng = random.Random(0)
        self.num_samples = num_samples
        self.prompts = [[rng.randrange(vocab_size) for _ in range(length)] for _ in range(num_prompts)]

    def get_samples(self, n: int) -> list[list[Sample]]:
        return [
            [
                Sample(group_index=i, index=i * self.num_samples + k, tokens=list(prompt), label="")
                for k in range(self.num_samples)
            ]
            for i, prompt in enumerate(self.prompts[:n])
        ]


async def note_arrival(args: Config, sample: Sample, *, rollout_id: int, evaluation: bool) -> None:
    """--rollout-sample-hook-path: called when the sample is back and graded; in the event loop, as the bare side's."""
    sample.metadata[ARRIVED] = time.perf_counter()


class Sides:
    """The engine with both ways to it. `config` has the router's address."""

    def __init__(self, config: Config, engine: EngineServer, router: Router, prompts: Prompts) -> None:
        self.config = config
        self.engine = engine
        self.prompts = prompts
        self.plain = PlainClient(engine.url, engine.token)
        self.generator = Generator(config, router.token)
        self.params = {**Sampling.for_rollout(config).params, "n": config.n_samples_per_prompt}

    def both(self, *, slime_first: bool) -> tuple[Round, Round]:
        """A round of bare and one of slime."""
        if slime_first:
            slime = self.slime()
            return self.bare(), slime
        return self.bare(), self.slime()

    def bare(self) -> Round:
        self.engine.control.flush_cache()
        start = time.perf_counter()
        groups = self.plain.sample(self.prompts.prompts, self.params)
        return Round.of(start, [sample for group in groups for sample in group])

    def slime(self) -> Round:
        self.engine.control.flush_cache()
        start = time.perf_counter()
        samples = flatten(generate_rollout(self.config, 0, self.prompts).samples)
        return Round.of(start, [(sample.response_length, sample.metadata[ARRIVED]) for sample in samples])

    def first_tokens(self, prompt: list[int]) -> tuple[float, float]:
        """Seconds until the first token of a streamed sample: bare, slime."""
        params = {**self.params, "n": 1, "max_new_tokens": 4}
        self.engine.control.flush_cache()
        bare = self.plain.first_token(prompt, params)
        self.engine.control.flush_cache()
        return bare, self.generator.run(first_token(self.generator.client, prompt, params))

    def close(self) -> None:
        self.plain.close()
        self.generator.close()


async def first_token(client: GenerateClient, prompt: list[int], params: dict[str, Any]) -> float:
    start = time.perf_counter()
    first = None
    async for generation in client.stream(prompt, params):
        if first is None and generation.tokens:
            first = time.perf_counter() - start
    return first


def run(args: argparse.Namespace, options: list[str], console: Console) -> Report:
    """`options` are those of the configuration. Raises ConfigError, InferenceError, RolloutError."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slime-bench-")))
        logs = Path(args.logs or scratch)
        model = Path(args.hf_checkpoint or write_checkpoint(scratch / "model"))
        prompts = Prompts(args.prompts, args.samples, args.prompt_tokens, vocab_size(model))
        config = make_config(args, model, options)
        on_gpu = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
        engine = EngineServer.from_config(
            config,
            planned_engines(served_models(config))[0],
            device="cuda" if on_gpu else "cpu",
            log_path=logs / "engine.log",
        )
        router = stack.enter_context(Router(log_path=logs / "router.log", options=config.router))
        with console.phase(f"starting an engine with {model}"):
            stack.enter_context(engine)
            engine.wait_ready(TIMEOUT_S)
            router.wait_ready(TIMEOUT_S)
            router.add_workers([engine.url], TIMEOUT_S)
        config = config.replace(sglang_router_ip=router.host, sglang_router_port=router.port)
        sides = stack.enter_context(closing(Sides(config, engine, router, prompts)))
        with console.phase("warming up"):
            sides.bare()
            sides.slime()
        with console.phase(f"measuring {args.rounds} rounds of each"):
            bare, slime = zip(*[sides.both(slime_first=bool(i % 2)) for i in range(args.rounds)], strict=True)
        with console.phase("measuring the time to the first token"):
            first = [sides.first_tokens(prompt) for prompt in prompts.prompts[:FIRST_TOKENS]]
    rows = [
        Row.of_pairs("all samples", "tokens/s", [r.total for r in bare], [r.total for r in slime]),
        Row.of_pairs("slowest sample", "tokens/s", [min(r.speeds) for r in bare], [min(r.speeds) for r in slime]),
        Row.of_pairs("median sample", "tokens/s", [median(r.speeds) for r in bare], [median(r.speeds) for r in slime]),
        Row.of_pairs("first token", "ms", [1e3 * a for a, _ in first], [1e3 * b for _, b in first]),
    ]
    setup = (
        f"{args.prompts} prompts of {args.prompt_tokens} tokens x {args.samples} samples of {args.response_tokens}, "
        f"{args.rounds} rounds of each, {'GPU' if on_gpu else 'CPU'}, {args.hf_checkpoint or 'tiny Qwen3'}"
    )
    return Report("rollout", setup, rows, rows[0].ratio, TARGET)


def make_config(args: argparse.Namespace, model: Path, options: list[str]) -> Config:
    return load(
        [
            *("--hf-checkpoint", str(model), "--rollout-num-gpus", str(args.tp)),
            *("--rollout-num-gpus-per-engine", str(args.tp), "--actor-num-gpus-per-node", "1"),
            *("--rollout-batch-size", str(args.prompts), "--n-samples-per-prompt", str(args.samples)),
            *("--rollout-max-response-len", str(args.response_tokens), "--num-rollout", "1"),
            *("--rm-type", "exact_match", "--label-key", "label"),
            *("--rollout-sample-hook-path", f"{__name__}.{note_arrival.__name__}"),
            *("--sglang-preferred-sampling-params", json.dumps({"ignore_eos": True})),
            *options,
        ]
    )


def vocab_size(model: Path) -> int:
    """Raises InferenceError when the directory is no model."""
    file = model / "config.json"
    try:
        config = json.loads(file.read_text())
    except OSError as error:
        raise InferenceError(f"{model} is not the directory of a model: {error}") from error
    return config.get("text_config", config)["vocab_size"]
