"""Grades by hand: python -m slime.rewards grade --type math --response 'so \\boxed{4}' --label 4

One response, and the score and why are said in a line; or a file of them, and there is one JSON object a line, in the
order of the file. Nothing is graded when a line of the file is not sound: all such lines are named, and the exit
status is 2. One that a grader cannot grade has no score, `null`, and the exit status is 1 when all are through.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slime.rewards.catalogue import GRADERS, MAY_BE_BOXED, judged
from slime.rewards.errors import RewardError
from slime.rewards.verdict import Verdict

AT_ONCE = 64
SHOWN = 20


@dataclass(frozen=True, slots=True)
class Case:
    """What a grader looks at of a sample."""

    name: str
    response: str
    label: Any
    metadata: dict[str, Any] = field(default_factory=dict)
    prompt: Any = ""
    status: str = "completed"
    index: int = 0
    group_index: int = 0
    rollout_id: int = 0


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        cases = list(of_file(args)) if args.file else [of_arguments(args)]
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    write = write_json if args.file else write_text
    return 1 if asyncio.run(grade_all(args, cases, write)) else 0


async def grade_all(args: Any, cases: list[Case], write: Callable[[Verdict | RewardError], None]) -> int:
    """Several at once, written in order as soon as they are there. Returns how many could not be graded."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(case: Case) -> Verdict | RewardError:
        async with limit:
            try:
                return await judged(args, case, case.metadata.get("rm_type") or args.type)
            except RewardError as error:
                return error

    tasks = [asyncio.create_task(one(case)) for case in cases]
    failed = 0
    try:
        for task in tasks:
            verdict = await task
            write(verdict)
            failed += isinstance(verdict, RewardError)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return failed


def write_json(verdict: Verdict | RewardError) -> None:
    if isinstance(verdict, RewardError):
        line = {"score": None, "reason": str(verdict)}
        print(verdict, file=sys.stderr)
    else:
        line = verdict.extra | {"score": verdict.score, "reason": verdict.reason}
    text = json.dumps(line)
    if "NaN" in text or "Infinity" in text:  # in what a service said besides: JSON has no such numbers
        text = json.dumps(json.loads(text, parse_constant=lambda name: None))
    print(text, flush=True)


def write_text(verdict: Verdict | RewardError) -> None:
    if isinstance(verdict, RewardError):
        print(verdict, file=sys.stderr)
    else:
        print(f"{verdict.score:g}: {verdict.reason}", flush=True)


def of_arguments(args: argparse.Namespace) -> Case:
    if args.response is None:
        raise ValueError("what is to be graded? Give --response and --label, or --file")
    return Case("the response", args.response, args.label, args.metadata or {}, args.prompt)


def of_file(args: argparse.Namespace) -> Iterator[Case]:
    """The lines of a file. Raises ValueError that lists those that are not sound."""
    given = [f"--{name}" for name in ("response", "label", "prompt", "metadata") if getattr(args, name)]
    if given:
        raise ValueError(
            f"with --file, {', '.join(given)} would not be looked at: each line has its own. Leave one out"
        )
    path: Path = args.file
    problems: list[str] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                yield of_line(where, line)
            except ValueError as error:
                problems.append(f"{where}: {error}")
    if problems:
        more = [f"... and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        raise ValueError("\n".join(problems[:SHOWN] + more))


def of_line(where: str, content: bytes) -> Case:
    try:
        line = content.decode("utf-8-sig")
        entry = json.loads(line)
    except UnicodeDecodeError as error:
        raise ValueError(f"not text in UTF-8: {error}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise ValueError(f"a JSON object is wanted, with `response` and `label`, not {line.strip()[:80]}")
    if not isinstance(entry.get("response"), str):
        raise ValueError(f"`response` is not a text; the keys are {', '.join(entry) or 'none'}")
    metadata = entry.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise ValueError(f"`metadata` is not an object but {metadata!r:.80}")
    return Case(where, entry["response"], entry.get("label"), metadata, entry.get("prompt") or "")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m slime.rewards", description=__doc__.partition(":")[0])
    grade = parser.add_subparsers(required=True, metavar="grade").add_parser(
        "grade", help="say the score of a response, or of a file of them, and why"
    )
    grade.add_argument(
        "--type", required=True, help=f"as --rm-type: {', '.join(GRADERS)}; boxed_ before {', '.join(MAY_BE_BOXED)}"
    )
    grade.add_argument("--response", help="what was said")
    grade.add_argument("--label", type=_label, help="what is right; a JSON list of texts for several of which each is")
    grade.add_argument("--prompt", default="", help="what was asked; one that ends in <think> opens the thinking")
    grade.add_argument("--metadata", type=_object, help="JSON object, as the sample's metadata")
    grade.add_argument("--file", type=Path, help="JSON lines of `response`, `label`, maybe `metadata`, `prompt`")
    grade.add_argument("--rm-url", help="where a reward service is")
    grade.add_argument("--http-proxy", help="proxy through which it is asked")
    grade.add_argument("--rm-timeout", type=float, default=300, help="seconds that it may take")
    grade.add_argument("--rm-judge-model", default="default", help="the model that judges")
    grade.add_argument("--rm-judge-prompt", help="file of the question put to the judge")
    grade.add_argument("--rm-judge-params", type=_object, default={}, help="JSON object: further fields of the request")
    grade.add_argument("--reward-key", help="key of a service's reward")
    grade.add_argument("--rollout-seed", type=int, default=42, help="of --type random")
    grade.set_defaults(rm_model=None)  # of a run that serves one
    return parser


def _label(text: str) -> str | list[str]:
    """A list only where all in it are texts: [1, 2] is an interval."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, list) and value and all(isinstance(one, str) for one in value) else text


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"not a JSON object: {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
