"""`python -m slime.inspect RUN [sample N | dropped | step N | waiting]`: what became of a run's samples, by its ledger.

RUN is a run's directory, or `latest`. Works while the run goes on, and after it was killed. Without more it prints a
summary.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import mean
from typing import Any

from slime.data.errors import DataError
from slime.data.history import History
from slime.data.ledger import LIVE, Entry, State
from slime.data.ledger_file import LedgerError
from slime.data.recording import read_rollout
from slime.data.sample import Sample
from slime.observe.run_dir import LATEST, RunDir, RunDirError
from slime.observe.terminal import Terminal, clean, seconds, shorten

SHOWN = 5  # of the worst, and of the best; of the latest where there are many
COLORS = {
    State.ISSUED: "blue", State.GENERATING: "cyan", State.FINISHED: "yellow", State.TRAINED: "green",
    State.DROPPED: "red",
}  # fmt: skip
MEANINGS = {
    State.ISSUED: "handed out, or waiting to be",
    State.GENERATING: "an engine is at work on them, or was when the run ended",
    State.FINISHED: "graded, waiting for training",
}


class NotThere(Exception):
    """What was asked for is not in the ledger; the message says what is."""


class Page:
    """What is printed of one run. Every method returns lines."""

    def __init__(self, run: RunDir, history: History, terminal: Terminal) -> None:
        self.run, self.history, self.terminal = run, history, terminal
        self.now = time.time()

    def summary(self) -> list[str]:
        counts = self.history.counts()
        lines = [self.terminal.paint(self.run.path.resolve().name, "bold"), ""]
        total = sum(count.samples for count in counts.values())
        lines.append(f"of {total:,} sample{'s' * (total != 1)} that were issued are now")
        for state in State:
            count = counts.get(state)
            said = f"{0:>10}"
            if count:
                said = f"{count.samples:>10,}  in {count.groups:,} group{'s' * (count.groups != 1)}; "
                ago, longest = seconds(self.now - count.until), seconds(self.now - count.since)
                said += f"for {longest} at most" if state in LIVE else f"the last {ago} ago"
            lines.append(f"{self._state(state)} {said}")
        if steps := self.history.steps():
            lines += ["", f"rollouts    {steps[0]} to {steps[-1]} have a batch" + self._rewards(steps[-1])]
        if checkpoints := self.history.checkpoints():
            lines.append(
                f"checkpoints {', '.join(map(str, checkpoints[-8:]))}" + (" are the last" if checkpoints[8:] else "")
            )
        for drop in self.history.drops()[:SHOWN]:
            lines.append(f"dropped     {drop.samples:,} × {self._short(drop.reason, 24)}")
        return lines

    def sample(self, id: int) -> list[str]:
        found = self.history.sample(id)
        if found is None:
            numbers = self.history.numbers()
            there = f"its samples are {numbers[0]} to {numbers[1]}" if numbers else "there is none in it yet"
            raise NotThere(f"{self.history.path} has no sample {id}; {there}")
        entry, changes = found
        lines = [
            self.terminal.paint(f"sample {id}", "bold")
            + f" of group {entry.group_id}: {self._state(entry.state).strip()}",
            "",
        ]
        before = changes[0].time if changes else 0.0
        for change in changes:
            clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(change.time)) + f"{change.time % 1:.3f}"[1:]
            later = f"+{change.time - before:.2f} s"
            lines.append(f"{clock}  {later:>10}  {self._state(change.state)}  {clean(change.note or '')}".rstrip())
            before = change.time
        facts = {
            "reward": None if entry.reward is None else f"{entry.reward:g}",
            "tokens": entry.tokens and f"{entry.tokens}, {entry.response_tokens} of them of the response",
            "weights": entry.weight_versions and f"version {entry.weight_versions}",
            "handed out": f"{entry.issues} times" if entry.issues > 1 else None,
        }
        lines += ["", *(f"{name:<11} {said}" for name, said in facts.items() if said)]
        return lines + self._texts(entry)

    def dropped(self) -> list[str]:
        drops = self.history.drops()
        if not drops:
            return ["nothing was dropped"]
        lines = [f"{'samples':>8}  {'the last':>12}  reason"]
        for drop in drops:
            lines.append(
                f"{drop.samples:>8,}  {seconds(self.now - drop.last) + ' ago':>12}  {self._short(drop.reason, 26)}"
            )
            more = " ..." if drop.samples > len(drop.examples) else ""
            lines.append(" " * 24 + self.terminal.paint(f"sample {', '.join(map(str, drop.examples))}{more}", "dim"))
        return lines

    def step(self, rollout_id: int) -> list[str]:
        batch = self.history.step(rollout_id)
        if not batch:
            steps = self.history.steps()
            there = f"the ledger has {steps[0]} to {steps[-1]}" if steps else "there is none yet"
            raise NotThere(f"{self.history.path} has no batch of rollout {rollout_id}; {there}")
        state = {entry.state for entry in batch}
        said = ", ".join(self._state(one).strip() for one in State if one in state)
        groups = len({entry.group_id for entry in batch})
        lines = [
            self.terminal.paint(f"rollout {rollout_id}", "bold") + f": {len(batch)} samples in {groups} groups, {said}"
        ]
        rewards = [entry.reward for entry in batch if entry.reward is not None]
        if rewards:
            lines.append(f"reward {mean(rewards):.3f} in the mean, {min(rewards):g} to {max(rewards):g}")
        texts = self._recorded(rollout_id)
        best, worst = batch[:SHOWN], batch[SHOWN:][-SHOWN:][::-1]
        for title, entries in (("the best", best), ("the worst", worst)):
            if entries:
                lines += ["", f"{title:<10} {'sample':>9} {'group':>8} {'reward':>8} {'response':>9}  weights"]
                lines += [line for entry in entries for line in self._row(entry, texts)]
        return lines

    def waiting(self) -> list[str]:
        waiting = self.history.waiting()
        if not waiting:
            return ["nothing is waiting: every sample is trained on or dropped"]
        lines = []
        for state in State:
            of_state = [entry for entry in waiting if entry.state is state]
            if not of_state:
                continue
            lines += ["", f"{self._state(state)} {len(of_state):>7,}  {MEANINGS[state]}; those for longest:"]
            for entry in of_state[:SHOWN]:
                tokens = f", {entry.response_tokens} tokens of a response so far" if entry.response_tokens else ""
                again = f", handed out {entry.issues} times" if entry.issues > 1 else ""
                lines.append(
                    f"  sample {entry.id} (group {entry.group_id}) for {seconds(self.now - entry.since)}{tokens}{again}"
                )
        return lines[1:]

    def _row(self, entry: Entry, texts: dict[int, list[Sample]]) -> list[str]:
        reward = "–" if entry.reward is None else f"{entry.reward:g}"
        numbers = f"{entry.id:>9} {entry.group_id!s:>8} {reward:>8} {entry.response_tokens or 0:>9}"
        lines = [f"{'':10} {numbers}  {entry.weight_versions or '–'}"]
        for part in texts.get(entry.id, []):
            lines.append(self.terminal.paint(" " * 11 + self._short(part.response, 12), "dim"))
        return lines

    def _texts(self, entry: Entry) -> list[str]:
        """What the sample says, where the run keeps its rollouts."""
        if entry.rollout is None:
            return []
        lines = []
        for part in self._recorded(entry.rollout).get(entry.id, []):
            prompt = part.prompt if isinstance(part.prompt, str) else part.prompt[-1].get("content", "")
            lines += [
                f"{'prompt':<11} {self._short(str(prompt), 12)}",
                f"{'response':<11} {self._short(part.response, 12)}",
            ]
        return lines or [self.terminal.paint("its text was not kept: --save-debug-rollout-data keeps all of it", "dim")]

    def _recorded(self, rollout_id: int) -> dict[int, list[Sample]]:
        """The samples of a rollout by number, where --save-debug-rollout-data kept them."""
        options = self.run.read_options()
        template = options.get("save_debug_rollout_data")
        path = template and Path(template.format(rollout_id=rollout_id))
        if not path or not path.is_file():
            return {}
        found: dict[int, list[Sample]] = {}
        for group in read_rollout(path):
            for member in group:
                for sample in [member] if isinstance(member, Sample) else member:
                    found.setdefault(sample.index, []).append(sample)
        return found

    def _rewards(self, rollout_id: int) -> str:
        rewards = [entry.reward for entry in self.history.step(rollout_id) if entry.reward is not None]
        return f"; reward of the last {mean(rewards):.3f}" if rewards else ""

    def _state(self, state: State) -> str:
        return self.terminal.paint(f"{state:<11}", COLORS[state])

    def _short(self, text: str, indent: int) -> str:
        return shorten(clean(text), max(20, self.terminal.width - 1 - indent))


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m slime.inspect", description=__doc__, allow_abbrev=False)
    parser.add_argument("run", type=Path, metavar="RUN", help="directory of a run, or `latest`: the newest in runs/")
    questions = parser.add_subparsers(dest="question", metavar="QUESTION")
    questions.add_parser("summary", help="how many samples are in which state [this, if nothing is asked]")
    sample = questions.add_parser("sample", help="what happened to a sample, and when")
    sample.add_argument("number", type=int, metavar="N")
    questions.add_parser("dropped", help="what was dropped, and why")
    step = questions.add_parser("step", help="the best and the worst of a rollout's batch")
    step.add_argument("number", type=int, metavar="N")
    questions.add_parser("waiting", help="what is neither trained on nor dropped, and for how long")
    args = parser.parse_args(words)
    terminal = Terminal(sys.stdout)
    try:
        run = RunDir.open(Path("runs", LATEST) if str(args.run) == LATEST and not args.run.exists() else args.run)
        with closing(History(run.ledger_file)) as history:
            page = Page(run, history, terminal)
            answer: Any = getattr(page, args.question or "summary")
            lines = answer(args.number) if "number" in args else answer()
    except (RunDirError, LedgerError, DataError, NotThere) as error:
        print(f"slime.inspect: {error}", file=sys.stderr)
        return 1
    print(terminal.plain("\n".join(lines)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
