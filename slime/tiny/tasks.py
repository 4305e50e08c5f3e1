"""Three tasks with an exact answer, and demonstrations that leave reinforcement learning something to find.

Invariants: everything is a function of the `random.Random` that is passed in; a prompt is held out or not by its own
hash, so that no training file of any seed ever contains a held-out prompt.
"""

from __future__ import annotations

import hashlib
import operator
import random
import re
from typing import Protocol

THINKING_SHARE = 0.3  # of the demonstrations of `col`
CORRECT_SHARE = 0.3  # of the demonstrations of `sort`
CALLING_SHARE, SLIP_SHARE = 0.3, 0.15  # of the demonstrations of `tool`, and of the calls in them
HELD_OUT_SHARE = 10  # one prompt in ten


class Task(Protocol):
    prompts: int  # different ones, those that are held out included
    max_new_tokens: int  # enough for every correct answer, the end of the turn included
    sft_steps: int  # of 64 demonstrations each, at learning rate 5e-3, until the cold start is good enough

    def question(self, rng: random.Random) -> tuple[str, str]:
        """A prompt and its answer."""

    def demonstration(self, prompt: str, answer: str, rng: random.Random) -> str | list[str]:
        """What an imperfect teacher says to the prompt; turn by turn where a tool speaks in between."""


class ColumnAddition:
    """`47+85=` is 132. A teacher who thinks, `<think>7+5=12 4+8+1=13</think>132`, is right; one who guesses is near.

    Reinforcement learning finds that thinking pays: the share of thinking answers rises from .3 to .99.
    """

    prompts = 90 * 90
    max_new_tokens = 22
    sft_steps = 900

    def question(self, rng: random.Random) -> tuple[str, str]:
        a, b = rng.randint(10, 99), rng.randint(10, 99)
        return f"{a}+{b}=", str(a + b)

    def demonstration(self, prompt: str, answer: str, rng: random.Random) -> str:
        if rng.random() >= THINKING_SHARE:
            return str(int(answer) + rng.choice((-20, -11, -10, -2, -1, 0, 1, 2, 10, 11, 20)))
        a, b = prompt.removesuffix("=").split("+")
        carry, columns = 0, []
        for digit_a, digit_b in zip(reversed(a), reversed(b), strict=True):
            total = int(digit_a) + int(digit_b) + carry
            columns.append(f"{digit_a}+{digit_b}{'+1' if carry else ''}={total}")
            carry = int(total > 9)
        return f"<think>{' '.join(columns)}</think>{answer}"


class SortDigits:
    """`sort 52941` is 12459. The teacher is right three times in ten, else reverses, copies or swaps two neighbours."""

    prompts = 10**3 + 10**4 + 10**5 + 10**6
    max_new_tokens = 8
    sft_steps = 500

    def question(self, rng: random.Random) -> tuple[str, str]:
        digits = "".join(rng.choice("0123456789") for _ in range(rng.randint(3, 6)))
        return f"sort {digits}", "".join(sorted(digits))

    def demonstration(self, prompt: str, answer: str, rng: random.Random) -> str:
        if rng.random() < CORRECT_SHARE:
            return answer
        mistake = rng.choice(("reverse", "copy", "swap"))
        if mistake == "reverse":
            return answer[::-1]
        if mistake == "copy":
            return prompt.removeprefix("sort ")
        i = rng.randrange(len(answer) - 1)
        return answer[:i] + answer[i + 1] + answer[i] + answer[i + 2 :]


class Calculation:
    """`34*62=` is 2108. A teacher who asks the calculator (slime.tiny.calculator) repeats what it says; one who doesn't
    guesses. Reinforcement learning finds that asking pays."""

    prompts = 90 * 3 * 90
    max_new_tokens = 36  # of all turns together, and what the calculator says
    sft_steps = 700

    def question(self, rng: random.Random) -> tuple[str, str]:
        expression = f"{rng.randint(10, 99)}{rng.choice('+-*')}{rng.randint(10, 99)}"
        return f"{expression}=", calculate(expression)

    def demonstration(self, prompt: str, answer: str, rng: random.Random) -> str | list[str]:
        if rng.random() >= CALLING_SHARE:
            return str(rng.randint(0, 10 ** len(answer) - 1))
        called = prompt.removesuffix("=")
        if rng.random() < SLIP_SHARE:
            i = rng.choice((0, 1, 3, 4))
            called = called[:i] + rng.choice("0123456789") + called[i + 1 :]
        said = calculate(called)
        return [f"<tool_call>{called}</tool_call>", said, said]


OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def calculate(expression: str) -> str:
    """The value of two whole numbers of up to three digits with +, - or * between them; `error` for all else."""
    match = re.fullmatch(r"(\d{1,3})([+*-])(\d{1,3})", expression)
    return str(OPERATIONS[match[2]](int(match[1]), int(match[3]))) if match else "error"


TASKS: dict[str, Task] = {"col": ColumnAddition(), "sort": SortDigits(), "tool": Calculation()}


def is_held_out(prompt: str) -> bool:
    return int(hashlib.md5(prompt.encode(), usedforsecurity=False).hexdigest(), 16) % HELD_OUT_SHARE == 0


def draw(task: Task, rng: random.Random, *, held_out: bool) -> tuple[str, str]:
    """A question of the wanted side of the split, with replacement: a file is a sample of the task's distribution."""
    while True:
        prompt, answer = task.question(rng)
        if is_held_out(prompt) == held_out:
            return prompt, answer
