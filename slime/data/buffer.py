"""DataBuffer: the data source of a run, and the ledger of what it hands out.

Held: each sample that is handed out has a number that no other sample of the run has; what is handed out is remembered
until it is in a batch, dropped or put back, and saved with the checkpoint: a run that goes on from there hands it out
again, once. No Ray in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from slime.data.errors import DataError
from slime.data.ledger import LIVE, Ledger, RolledBack
from slime.data.ledger_file import LedgerError
from slime.data.outcome import Outcome, outcomes
from slime.data.recording import dumps, group_from, group_to, loads, replacing
from slime.data.sample import Sample
from slime.data.source import DataSource, Group, PromptSource


@runtime_checkable
class Journal(Protocol):
    """Who is told what happens to samples. The data source that rollout functions get is one; others need not be."""

    def generating(self, ids: Sequence[int], rollout_id: int) -> None:
        """They are being generated, most likely for this rollout."""

    def finished(self, finished: Sequence[Outcome]) -> None:
        """They are generated and graded; whose batch they will be in is not said yet."""

    def batched(self, rollout_id: int, batch: Sequence[Outcome]) -> None:
        """They are the batch of this rollout: all that it is trained on, and what was removed from it."""

    def drop(self, ids: Sequence[int], reason: str) -> None:
        """They will never be trained on."""

    def noted(self) -> dict[str, float]:
        """Returns when all that was told is noted, with metrics. Raises what was refused of it."""


@dataclass(frozen=True, slots=True)
class HandedOut:
    """A sample as it was handed out, and the number of the group that it was in: some data sources give none. A list if
    it had fanned out before."""

    sample: Sample | list[Sample]
    group: int


class DataBuffer:
    """A Journal and a DataSource. Samples and groups that come without a number get negative ones. Not made for several
    threads."""

    def __init__(
        self,
        source: DataSource,
        ledger: Ledger,
        *,
        directory: str | Path | None = None,
        load_directory: str | Path | None = None,
    ) -> None:
        """`directory`: where `save` keeps its part of checkpoints, and `resume` finds it if not in `load_directory`."""
        self.source, self.ledger = source, ledger
        self._directory, self._load_directory = directory, load_directory or directory
        self._out: dict[int, HandedOut] = {}
        self._groups = 0  # handed out so far
        self._next_own = min(-1, ledger.lowest - 1)

    def __len__(self) -> int:
        return len(self.source)

    def get_samples(self, num_groups: int) -> list[Group]:
        """Raises LedgerError when the data source hands out a sample twice."""
        groups = self.source.get_samples(num_groups)
        if isinstance(self.source, PromptSource):
            self._discard(self.source.take_discarded())
        for group in groups:
            self._number(group)
        self.ledger.issue((_first(member).index, _first(member).group_index) for group in groups for member in group)
        for group in groups:
            self._out |= {_first(member).index: HandedOut(member, self._groups) for member in group}
            self._groups += 1
        return groups

    def add_samples(self, groups: list[Group]) -> None:
        """Takes groups back, with whatever tokens they have, to hand them out again; also such as it never handed out.

        Raises LedgerError for a sample that was put back already, or is in a batch.
        """
        samples = [sample for group in groups for member in group for sample in _parts(member)]
        known = {id for id in {sample.index for sample in samples} if self._issued(id)}
        back = outcomes((sample, None) for sample in samples if sample.index in known)
        self.ledger.put_back(back)
        self._forget(outcome.id for outcome in back)
        self.source.add_samples(groups)

    def generating(self, ids: Sequence[int], rollout_id: int) -> None:
        self.ledger.generate(ids, rollout_id)

    def finished(self, finished: Sequence[Outcome]) -> None:
        self.ledger.finish([outcome for outcome in finished if self._issued(outcome.id)])

    def batched(self, rollout_id: int, batch: Sequence[Outcome]) -> None:
        """Samples that a rollout function made by itself get numbers here."""
        issued, made = [], []
        for outcome in batch:
            if self._issued(outcome.id):
                issued.append(outcome)
            else:
                made.append(outcome._replace(id=self._own()))
        self.ledger.issue(((outcome.id, None) for outcome in made), "made by the rollout function")
        batch = [*issued, *made]
        self.ledger.finish([outcome for outcome in batch if outcome.removed is None], rollout_id)
        for outcome in batch:
            if outcome.removed is not None:
                self.ledger.drop([outcome.id], outcome.removed)
        self._forget(outcome.id for outcome in batch)

    def drop(self, ids: Sequence[int], reason: str) -> None:
        self.ledger.drop(ids, reason)
        self._forget(ids)

    def noted(self) -> dict[str, float]:
        return self.source.metrics() if isinstance(self.source, PromptSource) else {}

    def trained(self, rollout_id: int) -> int:
        """The batch of a rollout has been trained on. Returns how many samples that are."""
        return self.ledger.train(rollout_id)

    def save(self, rollout_id: int, finished: Sequence[Group] = ()) -> None:
        """Keeps the data source's state, and what is handed out and not in a batch yet, under the number of a rollout:
        as it was handed out, but for groups that are `finished` meanwhile."""
        self.source.save(rollout_id)
        made = {_first(member).index: member for group in finished for member in group}
        groups: dict[int, Group] = {}
        for id, out in self._out.items():
            groups.setdefault(out.group, []).append(made.get(id, out.sample))
        state = {
            "token": self.ledger.mark(rollout_id),
            "next_own": self._next_own,
            "handed_out": list(map(group_to, groups.values())),
        }
        with replacing(self._file(self._directory, rollout_id)) as file:
            file.write(dumps(state))

    def load(self, rollout_id: int) -> None:
        self.resume(rollout_id + 1)

    def resume(self, first_rollout: int) -> RolledBack:
        """Goes on before a rollout, 0 for a fresh start. Whatever the ledger knows beyond the checkpoint is taken back.

        Raises DataError or LedgerError when the checkpoint and the ledger, or the data source, are not of one run.
        """
        if first_rollout == 0:
            return self.ledger.roll_back(-1, None)
        rollout_id = first_rollout - 1
        self.source.load(rollout_id)
        state = self._read(rollout_id)
        rolled_back = self.ledger.roll_back(rollout_id, state["token"])
        self._next_own = state["next_own"]
        if state["handed_out"]:
            self.source.add_samples(state["handed_out"])
        return rolled_back

    def close(self, *, whole: bool) -> None:
        """With `whole`, the run has done all that it was to do: nothing that is left over will be trained on."""
        if whole:
            self.ledger.drop_rest("the run ended before it was trained on")
        self.ledger.close()

    def _read(self, rollout_id: int) -> dict[str, Any]:
        path = self._file(self._load_directory, rollout_id)
        if not path.is_file():  # of a data source that was saved without a buffer
            return {"token": None, "next_own": -1, "handed_out": []}
        try:
            state = loads(path.read_text(encoding="utf-8"))
            known = {name: state[name] for name in ("token", "next_own")}
            return known | {"handed_out": list(map(group_from, state["handed_out"]))}
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is not what a data buffer saved: {error!r}") from error

    def _file(self, directory: str | Path | None, rollout_id: int) -> Path:
        if directory is None:
            raise DataError("this data buffer was made without a directory to keep its state in")
        return Path(directory) / f"{rollout_id}.buffer.json"

    def _issued(self, id: int | None) -> bool:
        """Whether a sample is one that was handed out; what was trained or dropped since, the ledger will refuse.

        Raises LedgerError when it came back already.
        """
        if id is None or id in self._out:
            return id is not None
        state = self.ledger.state_of(id)
        if state in LIVE:
            raise LedgerError(f"sample {id} was put back, or is in a batch already ({state}): once is enough")
        return state is not None

    def _number(self, group: Group) -> None:
        own = None
        for sample in (sample for member in group for sample in _parts(member)):
            if sample.index is None:
                sample.index = self._own()
            if sample.group_index is None:
                sample.group_index = own = self._own() if own is None else own

    def _discard(self, groups: list[Group]) -> None:
        ids = dict.fromkeys(sample.index for group in groups for member in group for sample in _parts(member))
        self.ledger.drop(
            [id for id in ids if self.ledger.state_of(id) is not None], "discarded by --buffer-filter-path"
        )

    def _own(self) -> int:
        self._next_own -= 1
        return self._next_own + 1

    def _forget(self, ids: Iterable[int]) -> None:
        for id in ids:
            self._out.pop(id, None)


def _parts(member: Sample | list[Sample]) -> list[Sample]:
    return [member] if isinstance(member, Sample) else member


def _first(member: Sample | list[Sample]) -> Sample:
    return _parts(member)[0]
