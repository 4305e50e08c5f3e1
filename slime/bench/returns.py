"""returns: how long returns and GAE of long responses take, beside the recurrence that defines them.

The recurrence goes token by token, here over all samples side by side, which is the most that a loop can do; since it
begins at the end, its last `--loop-tokens` tokens are timed, and the rest of it would take as long a token. On one
device and, on a CPU, one thread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypeVar

import torch
from torch import Tensor

from slime.algorithms.returns import discounted_returns, gae
from slime.bench.arguments import count
from slime.config import ConfigError
from slime.config.errors import Problem
from slime.observe.console import Console

GAMMA, LAMBDA = 0.999, 0.95
Result = TypeVar("Result")


@dataclass(frozen=True)
class ReturnsReport:
    """`ratio` is that of seconds, GAE over its recurrence; `difference` the largest between their advantages."""

    bench: str
    setup: str
    seconds_returns: float
    seconds_gae: float
    seconds_loop: float
    ratio: float
    difference: float

    def table(self) -> str:
        return "\n".join(
            [
                self.setup,
                "",
                f"discounted returns  {self.seconds_returns:8.2f} s",
                f"GAE                 {self.seconds_gae:8.2f} s   advantages differ by {self.difference:.1e} at most",
                f"its recurrence      {self.seconds_loop:8.2f} s",
                "",
                f"returns: {self.ratio:.3f} of the time of the recurrence",
            ]
        )

    def line(self) -> str:
        return json.dumps(asdict(self))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=count, default=256, metavar="N", help="samples [256]")
    parser.add_argument("--tokens", type=count, default=131072, metavar="N", help="response tokens of each [131072]")
    parser.add_argument("--loop-tokens", type=count, default=4096, metavar="N", help="of these in the loop [4096]")


def run(args: argparse.Namespace, options: list[str], console: Console) -> ReturnsReport:
    """Raises ConfigError for options of the configuration: nothing here reads any."""
    if options:
        raise ConfigError([Problem(options[0], "is no option of this bench, which reads no configuration")])
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    looped = min(args.loop_tokens, args.tokens)
    generator = torch.Generator().manual_seed(0)
    rewards_R, values_R = torch.randn(2, args.samples * args.tokens, generator=generator).to(device)
    mask_R = torch.ones_like(rewards_R)
    lengths_N = torch.full((args.samples,), args.tokens, device=device)
    with console.phase(f"{args.samples} samples of {args.tokens} tokens"):
        seconds_returns, _ = timed(lambda: discounted_returns(rewards_R, mask_R, lengths_N, GAMMA))
        seconds_gae, (advantages_R, _) = timed(
            lambda: gae(rewards_R, values_R, mask_R, lengths_N, gamma=GAMMA, lambd=LAMBDA)
        )
        ends = [whole_R.view(args.samples, -1)[:, -looped:] for whole_R in (rewards_R, values_R, advantages_R)]
        seconds_loop, expected_NT = timed(lambda: recurrence(*ends[:2]))
    seconds_loop *= args.tokens / looped
    return ReturnsReport(
        "returns",
        f"{args.samples} samples of {args.tokens} response tokens, float32, {device}",
        seconds_returns,
        seconds_gae,
        seconds_loop,
        ratio=seconds_gae / seconds_loop,
        difference=float((ends[2] - expected_NT).abs().max()),
    )


def recurrence(rewards_NT: Tensor, values_NT: Tensor) -> Tensor:
    """A_t = delta_t + gamma · lambda · A_{t+1}, from the last token on; [N, T]."""
    advantages_NT = torch.empty_like(rewards_NT)
    advantage_N = next_N = torch.zeros_like(values_NT[:, 0])
    for t in reversed(range(rewards_NT.shape[1])):
        delta_N = rewards_NT[:, t] + GAMMA * next_N - values_NT[:, t]
        advantage_N = delta_N + GAMMA * LAMBDA * advantage_N
        advantages_NT[:, t] = advantage_N
        next_N = values_NT[:, t]
    return advantages_NT


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    start = time.perf_counter()
    result = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, result
