"""Sample: the record that passes between users' code and ours.

Invariant, held by `Sample.check`: `loss_mask`, `rollout_log_probs` and `teacher_log_probs`, where present, have one
entry a response token, and `tokens` ends with those response tokens. `weight_versions` has one entry for each stretch
of tokens that the same weights made in one generation, in order; `weight_version_starts`, where present, says at which
response token each begins. What nobody sampled counts with what is before it. `rollout_routed_experts` is an integer
array [tokens - 1, layers, experts of a token]: the engine did not compute with the last token.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from slime.data.numbers import LOG_PROB, MASK, TOKEN, Numbers

PACKED = {"tokens": TOKEN, "loss_mask": MASK, "rollout_log_probs": LOG_PROB, "teacher_log_probs": LOG_PROB}


class Status(StrEnum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


class SampleError(ValueError):
    """A sample that contradicts itself; the message names the sample."""


@dataclass(slots=True)
class Sample:
    """One prompt with one response. Token fields are lists of int or float, so that users' code can append to them;
    `pack` makes Numbers of them, which do the same in less memory."""

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str | list[dict[str, Any]] = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: Any = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    rollout_log_probs: list[float] | None = None
    weight_versions: list[str] = field(default_factory=list)
    weight_version_starts: list[int] = field(default_factory=list)
    rollout_routed_experts: Any = None
    teacher_log_probs: list[float] | None = None
    multimodal_inputs: dict[str, Any] | None = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    train_metadata: dict[str, Any] | None = None
    session_id: str | None = None
    non_generation_time: float = 0.0
    generation_time: float = 0.0
    spec_info: dict[str, Any] = field(default_factory=dict)
    prefix_cache_info: dict[str, Any] = field(default_factory=dict)

    Status = Status

    @property
    def name(self) -> str:
        """How messages call this sample."""
        return f"sample {self.index} (group {self.group_index}, rollout {self.rollout_id})"

    @property
    def prompt_length(self) -> int:
        return len(self.tokens) - self.response_length

    def check(self) -> None:
        """Raises SampleError when the lengths of the token fields disagree (cases 12 and 26)."""
        n = self.response_length
        if not 0 <= n <= len(self.tokens):
            raise SampleError(f"{self.name}: response_length is {n}, but there are {len(self.tokens)} tokens in all")
        for field_name in ("loss_mask", "rollout_log_probs", "teacher_log_probs"):
            values = getattr(self, field_name)
            if values is not None and len(values) != n:
                raise SampleError(f"{self.name}: {field_name} has {len(values)} entries, the response has {n} tokens")
        starts = self.weight_version_starts
        if starts and (len(starts) != len(self.weight_versions) or starts != sorted(set(starts)) or starts[-1] >= n):
            raise SampleError(
                f"{self.name}: weight_version_starts {starts} don't fit {len(self.weight_versions)} weight_versions of"
                f" a response of {n} tokens"
            )
        experts = self.rollout_routed_experts
        if experts is not None and (experts.ndim != 3 or len(experts) != len(self.tokens) - 1):
            raise SampleError(
                f"{self.name}: rollout_routed_experts is of shape {experts.shape}; of {len(self.tokens)} tokens it is"
                f" [{len(self.tokens) - 1}, layers, experts of a token]"
            )

    def pack(self) -> None:
        """Stores the token fields as training reads them, when they are whole: handing them over then costs next to
        nothing.

        Raises SampleError for a field that holds something other than numbers.
        """
        for field_name, code in PACKED.items():
            values = getattr(self, field_name)
            if isinstance(values, list):
                try:
                    setattr(self, field_name, Numbers(code, values))
                except (TypeError, OverflowError) as error:
                    raise SampleError(
                        f"{self.name}: {field_name} holds something that is no such number: {error}"
                    ) from error

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, for JSON as far as users' own fields are. Lists and dicts are the sample's, no copies."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"status": self.status.value}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Sample:
        return cls(**values | {"status": Status(values["status"])})
