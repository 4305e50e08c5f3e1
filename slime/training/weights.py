"""Weights beside those that train: a copy that stays as it is, put in place for forward passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn


class WeightCopy:
    """A copy of all parameters and persistent buffers that `chunks` have when it is made.

    `in_place` exchanges storage, so it copies nothing and keeps no third set; the copy stays on the device of the
    weights. Inside it nothing may update, reduce or move the parameters.
    """

    def __init__(self, chunks: Sequence[nn.Module]) -> None:
        self.copies = [{name: tensor.detach().clone() for name, tensor in _tensors(chunk).items()} for chunk in chunks]

    def refresh(self, chunks: Sequence[nn.Module]) -> None:
        """Takes over the values that `chunks` have now."""
        for chunk, copies in zip(chunks, self.copies, strict=True):
            for name, tensor in _tensors(chunk).items():
                copies[name].copy_(tensor.detach())

    @contextmanager
    def in_place(self, chunks: Sequence[nn.Module]) -> Iterator[None]:
        """The copy's values in `chunks`, the same models, however they are wrapped by now."""
        live = [_tensors(chunk) for chunk in chunks]
        self._exchange(live)
        try:
            yield
        finally:
            self._exchange(live)

    def _exchange(self, live: list[dict[str, Tensor]]) -> None:
        for tensors, copies in zip(live, self.copies, strict=True):
            for name, tensor in tensors.items():
                tensor.data, copies[name] = copies[name], tensor.data


def _tensors(chunk: nn.Module) -> dict[str, Tensor]:
    """By the names in the bare model. Names wrapped in `module.` prefixes are those of DDP and Float16Module."""
    while isinstance(getattr(chunk, "module", None), nn.Module):
        chunk = chunk.module
    persistent = chunk.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in persistent.items() if isinstance(tensor, Tensor)}
