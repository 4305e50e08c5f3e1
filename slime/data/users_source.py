"""The data source of --data-source-path: what fails in it, or what it hands out that nobody can use, is said by its
name."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import Any

from slime.config.hook_shapes import DATA_SOURCE
from slime.config.hooks import Hook, blaming
from slime.data.errors import DataError
from slime.data.sample import Sample
from slime.data.source import DataSource, Group, PromptSource

log = logging.getLogger(__name__)


def open_users_source(make: Hook, config: Any) -> DataSource:
    """Raises DataError where what it makes is no data source. One that is ours with a change says itself what is
    wrong."""
    source = make(config)
    if missing := [name for name in DATA_SOURCE if not callable(getattr(source, name, None))]:
        raise DataError(f"{make} made a {type(source).__name__}, which has no {', '.join(missing)}")
    return source if isinstance(source, PromptSource) else UsersSource(make, source, config.n_samples_per_prompt)


class UsersSource:
    """A DataSource. Every method raises DataError for whatever the user's raises, but errors of ours."""

    def __init__(self, make: Hook, source: DataSource, group_size: int) -> None:
        self._name, self._source, self._group_size = str(make), source, group_size
        self._warned = False

    def get_samples(self, n: int) -> list[Group]:
        with self._blamed("get_samples"):
            groups = self._source.get_samples(n)
        returned = f"{self._name}: get_samples returned"
        if not isinstance(groups, list | tuple):
            raise DataError(f"{returned} a {type(groups).__name__}, not a list of groups")
        for group in groups:
            if not isinstance(group, list | tuple) or not group:
                raise DataError(f"{returned} {group!r:.80} among its groups, not a list of samples")
            for member in group:
                for part in member if isinstance(member, list) else [member]:
                    if not isinstance(part, Sample):
                        raise DataError(f"{returned} a group that holds a {type(part).__name__}, not a Sample")
            if len(group) != self._group_size and not self._warned:
                self._warned = True
                log.warning(
                    "%s a group of %d samples, where --n-samples-per-prompt is %d; nothing is said of further ones",
                    returned, len(group), self._group_size,
                )  # fmt: skip
        return list(groups)

    def add_samples(self, groups: list[Group]) -> None:
        with self._blamed("add_samples"):
            self._source.add_samples(groups)

    def save(self, id: int) -> None:
        with self._blamed("save"):
            self._source.save(id)

    def load(self, id: int) -> None:
        with self._blamed("load"):
            self._source.load(id)

    def __len__(self) -> int:
        with self._blamed("__len__"):
            return len(self._source)

    def _blamed(self, method: str) -> AbstractContextManager[None]:
        return blaming(f"{self._name}: {method}", DataError)
