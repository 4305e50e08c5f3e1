"""Summary: what a run came to, read from its directory alone.

Invariants: a run that was killed half-way, or is still going on, has a summary too; what was not measured is left out.
Where a resumed run measured a step twice, the later one counts. The transcripts are the first prompts of the held-out
set, not chosen.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from slime.observe import names
from slime.observe.metrics import read_metrics
from slime.observe.run_dir import RunDir
from slime.observe.terminal import mean

Row = dict[str, float]
TRANSCRIPTS = 3
PARTS = {
    "rollout": "perf/rollout_time",
    "train": "perf/train_time",
    "sync": "perf/update_weights_time",
    "sleep": "perf/sleep_time",
    "wake": "perf/wake_up_time",
}


@dataclass(frozen=True)
class Evaluation:
    """One held-out set: its mean rewards, and the shares of answers that think, each as (label, value) in order."""

    name: str
    rewards: list[tuple[str, float]]
    thinking: list[tuple[str, float]]


@dataclass(frozen=True)
class Transcript:
    """One prompt of a held-out set with the first and the last answer that was kept, each with its reward."""

    dataset: str
    prompt: str
    label: str
    answers: list[tuple[str, str, Any]]  # (label, response, reward)


@dataclass(frozen=True)
class Summary:
    """`steps`: steps of the driver that were measured; `planned`: those it was to make, where that is known;
    `elapsed_s`: from the beginning of the first step to the last row of metrics. Series have one value a step."""

    run: RunDir
    supervised: bool
    overlaps: bool  # rollouts are made while others are trained on
    steps: int
    planned: int | None
    elapsed_s: float
    rewards: list[float]
    lengths: list[float]
    thinking: list[float]
    losses: list[float]
    evaluations: list[Evaluation]
    seconds: dict[str, float]  # mean of a step: its parts, and "step" for the whole
    tokens_per_s: float  # mean over the steps: of the slowest sample, or in supervised training of all tokens
    logprob_diff: float  # largest that was seen; NaN if none was
    reward_failures: int
    transcripts: list[Transcript] = field(default_factory=list)


def summarize(run: RunDir) -> Summary:
    """Raises MetricsError for a metrics.jsonl that is damaged in the middle (half a last line is passed over), and
    RunDirError for a damaged config.yaml or transcript."""
    rows = read_metrics(run.metrics_file) if run.metrics_file.exists() else []  # it may have died before a step
    options, losses = run.read_options(), series(rows, "train/loss")
    supervised = bool(losses) and not series(rows, "rollout/advantages")
    rewards = series(rows, "rollout/raw_reward")
    speed = "perf/actor_train_tok_per_s" if supervised else "perf/longest_sample_tokens_per_sec"
    seconds = {part: mean(series(rows, name)) for part, name in {**PARTS, "step": "perf/step_time"}.items()}
    diffs = series(rows, f"{names.LOGPROB_DIFF}_max") or series(rows, names.LOGPROB_DIFF)
    return Summary(
        run=run,
        supervised=supervised,
        steps=len(series(rows, "perf/step_time")) or len(rewards) or len(losses),
        overlaps=bool(options.get("async_depth")) or options.get("max_weight_staleness") is not None,
        planned=options.get("num_rollout"),
        elapsed_s=_elapsed(rows),
        rewards=rewards,
        lengths=series(rows, "rollout/response_len/mean"),
        thinking=series(rows, "rollout/thinking_ratio"),
        losses=losses,
        evaluations=_evaluations(rows),
        seconds={part: value for part, value in seconds.items() if math.isfinite(value)},
        tokens_per_s=mean(series(rows, speed)),
        logprob_diff=max(diffs, default=math.nan),
        reward_failures=int(sum(series(rows, names.REWARD_FAILURES))),
        transcripts=_transcripts(run, rows),
    )


def series(rows: list[Row], name: str) -> list[float]:
    """The values of a metric by rising step; of a step that was measured twice the later value."""
    axis = names.axis(name)
    by_step = {row[axis]: row[name] for row in rows if name in row and axis in row}
    return [by_step[step] for step in sorted(by_step)]


def _elapsed(rows: list[Row]) -> float:
    """Seconds. A row has the time at which it was written, that of a step when the step was over."""
    times = [row["time"] for row in rows if "time" in row]
    starts = [row["time"] - row["perf/step_time"] for row in rows if {"time", "perf/step_time"} <= row.keys()]
    return times[-1] - (starts or times)[0] if times else 0.0


def _eval_labels(rows: list[Row]) -> dict[int, str]:
    """How each evaluation is called: "before" the first step, "after" the last, between them "step 20". By the number
    of steps, for that before the first step may be written after it."""
    done = 1 + max((int(row["rollout/step"]) for row in rows if "rollout/step" in row), default=-1)
    steps = {int(row["eval/step"]) for row in rows if "eval/step" in row}
    return {step: "before" if step == 0 else "after" if step == done else f"step {step}" for step in steps}


def _evaluations(rows: list[Row]) -> list[Evaluation]:
    labels = _eval_labels(rows)
    sets = dict.fromkeys(found for row in rows for name in row if (found := names.eval_set(name)))

    def labelled(name: str) -> list[tuple[str, float]]:
        values = {int(row["eval/step"]): row[name] for row in rows if name in row and "eval/step" in row}
        return [(labels[step], values[step]) for step in sorted(values)]

    return [Evaluation(name, labelled(f"eval/{name}"), labelled(f"eval/{name}/thinking_ratio")) for name in sets]


def _transcripts(run: RunDir, rows: list[Row]) -> list[Transcript]:
    kept = run.read_samples()
    if not kept:
        return []
    labels = _eval_labels(rows)
    first, last = min(kept), max(kept)
    ends = {number: kept[number] for number in (first, last)}  # one, where there was only one evaluation
    transcripts: list[Transcript] = []
    for i, row in enumerate(ends[first]):
        if any(t.prompt == question(row["prompt"]) for t in transcripts):
            continue  # several samples a prompt: one is enough
        answers = [
            (labels.get(number, f"step {number}"), samples[i]["response"], samples[i]["reward"])
            for number, samples in ends.items()
            if i < len(samples) and samples[i]["prompt"] == row["prompt"]
        ]
        transcripts.append(Transcript(row["set"], question(row["prompt"]), str(row["label"]), answers))
        if len(transcripts) == TRANSCRIPTS:
            break
    return transcripts


def question(prompt: Any) -> str:
    """What was asked: the last message of the user, without what a chat template put around it; else the prompt."""
    if isinstance(prompt, str):
        parts = re.split(r"<\|[^|<>]*\|>", prompt)
        turns = [
            after if part == "user" else part[5:] for part, after in pairwise(parts) if re.match(r"user(\n|$)", part)
        ]
        return turns[-1].strip() if turns else prompt
    asked = [message for message in prompt if message.get("role") == "user"] or prompt
    content = asked[-1].get("content", "")
    return (
        content if isinstance(content, str) else " ".join(part.get("text", f"[{part.get('type')}]") for part in content)
    )
