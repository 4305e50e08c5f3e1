"""Report: a Summary as a page for a terminal or a file.

Invariants: no line is longer than 80 columns or the terminal, of which 60 are needed; only paths, which one copies, may
be.
"""

from __future__ import annotations

import math
import shlex
import sys
from typing import Any, TextIO

from slime.observe.run_dir import RunDir
from slime.observe.summary import Evaluation, Summary, Transcript, summarize
from slime.observe.terminal import DEFAULT_WIDTH, Terminal, clean, columns_of, mean, seconds, shorten

MARGIN = 13  # columns of the titles at the left
ENDS = 3  # a curve is labelled with the means of so many values at either end, or of a quarter of the values
SHADES = {  # character, the same in ASCII, colour
    "rollout": ("█", "r", "cyan"),
    "train": ("▓", "t", "green"),
    "sync": ("▒", "s", "yellow"),
    "sleep": ("░", "z", "blue"),
    "wake": ("░", "w", "blue"),
    "rest": ("·", ".", "dim"),
}


def print_summary(run: RunDir, stream: TextIO | None = None) -> None:
    """Prints what the run came to. Raises MetricsError for a damaged metrics.jsonl."""
    stream = stream or sys.stdout
    print(f"\n{report(summarize(run), Terminal(stream))}", file=stream)


def report(summary: Summary, terminal: Terminal) -> str:
    """The whole page, without a newline at its end."""
    width = min(terminal.width, DEFAULT_WIDTH) - 1
    blocks = [
        _head(summary, terminal, width),
        _curves(summary, terminal, width),
        _evaluations(summary.evaluations, terminal, width),
        _time(summary, terminal, width),
        *_transcripts(summary.transcripts, terminal, width),
        _foot(summary, terminal),
    ]
    return terminal.plain("\n\n".join("\n".join(block) for block in blocks if block))


def _head(summary: Summary, terminal: Terminal, width: int) -> list[str]:
    name = terminal.paint(summary.run.path.resolve().name, "bold")
    whole = summary.planned is None or summary.steps >= summary.planned
    steps = f"{summary.steps}" if whole else f"{summary.steps} of {summary.planned}"
    said = f"{steps} step{'s' * (steps != '1')} in {seconds(summary.elapsed_s)}"
    rule = "─" * max(2, width - columns_of(summary.run.path.resolve().name) - columns_of(said) - 8)
    return [f"{'─' * 2} {name} {rule} {said if whole else terminal.paint(said, 'yellow', 'bold')} {'─' * 2}"]


def _curves(summary: Summary, terminal: Terminal, width: int) -> list[str]:
    curves = [
        ("reward", summary.rewards, "{:.3f}", "green"),
        ("length", summary.lengths, "{:.1f}", "blue"),
        ("thinking", summary.thinking if any(summary.thinking) else [], "{:.0%}", "cyan"),
    ]
    if summary.supervised:  # the lengths are those of the demonstrations
        curves = [("loss", summary.losses, "{:.4f}", "blue")]
    lines = []
    for title, values, form, color in curves:
        if not values:
            continue
        ends = max(1, min(ENDS, len(values) // 4))
        first, last = form.format(mean(values[:ends])).rjust(7), form.format(mean(values[-ends:]))
        room = width - MARGIN - len(first) - max(7, len(last)) - 4
        line = terminal.sparkline(values, room, shares=title in ("reward", "thinking"))
        lines.append(f"{_title(title, terminal)}{first}  {terminal.paint(line, color)}  {last}")
    return lines


def _evaluations(evaluations: list[Evaluation], terminal: Terminal, width: int) -> list[str]:
    """A table: a line for each held-out set, a column for each evaluation."""
    if not evaluations:
        return []
    column = 11
    fit = max(2, (width - MARGIN) // column)
    labels = list(dict.fromkeys(label for evaluation in evaluations for label, _ in evaluation.rewards))
    if len(labels) > fit:  # the first, the last, and what lies evenly between them
        labels = [labels[round(i * (len(labels) - 1) / (fit - 1))] for i in range(fit)]
    lines = [_title("held out", terminal) + "".join(terminal.paint(label.rjust(column), "dim") for label in labels)]
    for evaluation in evaluations:
        cells = _aligned(evaluation.rewards, labels, "{:.3f}", column)
        lines.append(_title(evaluation.name, terminal) + terminal.paint(cells, "bold"))
        if any(value for _, value in evaluation.thinking):
            lines.append(_title("  thinking", terminal) + _aligned(evaluation.thinking, labels, "{:.0%}", column))
    return lines


def _aligned(values: list[tuple[str, float]], labels: list[str], form: str, column: int) -> str:
    by_label = dict(values)
    return "".join((form.format(by_label[label]) if label in by_label else "–").rjust(column) for label in labels)


def _time(summary: Summary, terminal: Terminal, width: int) -> list[str]:
    parts = {part: value for part, value in summary.seconds.items() if part != "step"}
    total = summary.seconds.get("step", sum(parts.values()))
    lines = []
    if total > 0:
        parts["rest"] = max(0.0, total - sum(parts.values()))
        parts = {part: value for part, value in parts.items() if value >= 0.005 * total}
        lines.append(f"{_title('a step', terminal)}{total:.2f} s" + (", its parts overlap" if summary.overlaps else ""))
        if not summary.overlaps:
            lines.append(" " * MARGIN + _stacked(parts, width - MARGIN, terminal))
        lines += _legend(parts, width, terminal)
    if math.isfinite(summary.tokens_per_s):
        whose = "trained on" if summary.supervised else "of the longest sample of a rollout"
        lines.append(f"{_title('speed', terminal)}{summary.tokens_per_s:.0f} tokens/s {whose}")
    if math.isfinite(summary.logprob_diff):
        older = ", whose weights are older" if summary.overlaps else ""
        difference = f"trainer and engine differ by at most {summary.logprob_diff:.1e}"
        lines.append(f"{_title('log-probs', terminal)}{difference}{older}")
    if summary.reward_failures:
        said = f"{summary.reward_failures} were not had (--rm-failure-policy)"
        lines.append(f"{_title('rewards', terminal)}{terminal.paint(said, 'yellow', 'bold')}")
    return lines


def _stacked(parts: dict[str, float], cells: int, terminal: Terminal) -> str:
    """One bar of `cells` columns, divided as the parts divide their sum."""
    scale, end, bar = cells / sum(parts.values()), 0.0, ""
    for part, value in parts.items():
        bar += _shade(part, round((end + value) * scale) - round(end * scale), terminal)
        end += value
    return bar


def _legend(parts: dict[str, float], width: int, terminal: Terminal) -> list[str]:
    lines, used = [""], 0
    for part, value in parts.items():
        entry = f" {part} {value:.2f}  "
        if used + 1 + len(entry) > width - MARGIN:
            lines, used = [*lines, ""], 0
        lines[-1] += _shade(part, 1, terminal) + entry
        used += 1 + len(entry)
    return [" " * MARGIN + line.rstrip() for line in lines]


def _transcripts(transcripts: list[Transcript], terminal: Terminal, width: int) -> list[list[str]]:
    blocks = []
    for transcript in transcripts:
        label = clean(transcript.label)
        asked = shorten(clean(transcript.prompt), max(10, width - MARGIN - columns_of(label) - 10))
        lines = [f"{_title(transcript.dataset, terminal)}{terminal.paint(asked, 'bold')}  (answer: {label})"]
        for name, response, reward in transcript.answers:
            answer = shorten(clean(response), width - 2 * MARGIN - 1)
            lines.append(f"{_title('  ' + name, terminal)}{_verdict(reward, terminal)} {answer}")
        blocks.append(lines)
    return blocks


def _foot(summary: Summary, terminal: Terminal) -> list[str]:
    path = summary.run.path
    return [
        f"{_title('directory', terminal)}{path}",
        f"{_title('this page', terminal)}python -m slime.observe {shlex.quote(str(path))}",
    ]


def _title(text: str, terminal: Terminal) -> str:
    text = shorten(clean(text) if text.strip() == text else text, MARGIN - 2)
    return terminal.paint(text, "dim") + " " * (MARGIN - columns_of(text))


def _shade(part: str, cells: int, terminal: Terminal) -> str:
    block, letter, color = SHADES[part]
    return terminal.paint((block if terminal.unicode else letter) * cells, color)


def _verdict(reward: Any, terminal: Terminal) -> str:
    """✓ for 1, ✗ for 0; any other reward is said as it is."""
    if reward == 1:
        return terminal.paint("✓", "green")
    if reward == 0:
        return terminal.paint("✗", "red")
    return f"{reward:.2f}" if isinstance(reward, float) else shorten(clean(str(reward)), MARGIN)
