"""What goes wrong between us and an engine or a router."""

from __future__ import annotations


class InferenceError(RuntimeError):
    """A server that didn't start, or gave no good answer. The message names it, what was asked, and its words."""


class RequestError(InferenceError):
    """A server answered, but not with success. `status` is HTTP's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self):
        return RequestError, (str(self), self.status)
