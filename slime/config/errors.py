"""What is wrong with a configuration, all of it at once.

Invariant: a ConfigError carries every problem that was found, and each says where it is, what is wrong and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing to correct. `where` is an option ("--lr") or a place in a file ("a.yaml:12: lr")."""

    where: str
    what: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f"\n      -> {self.fix}" if self.fix else "")


class ConfigError(ValueError):
    """The configuration cannot be used. `problems` lists every reason."""

    def __init__(self, problems: list[Problem]):
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(
            "\n".join([f"{count} in the configuration:", *(f"  {n:2}. {p}" for n, p in enumerate(problems, 1))])
        )

    def __reduce__(self):
        return ConfigError, (self.problems,)
