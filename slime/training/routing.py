"""Routing replay: in a pass over the model, tokens go to the experts of an earlier pass, or to those of the engine.

After a small update, or in other kernels, a router may choose other experts, and the probability of a token jumps. With
--use-routing-replay the training passes use the experts of the pass that made the old log-probs (GSPO,
arXiv:2507.18071); with --use-rollout-routing-replay both use the engine's (R3, arXiv:2510.11370). The weights of the
experts are those of the router as it is now, which so goes on learning. Frozen models choose for themselves.

Invariant, of all of Megatron's schedules: a router is asked once for each micro-batch of a pass, in their order, and
where activations are recomputed, once more for each in the backward passes, in the same order.

Shape suffixes: T tokens that a router of this rank sees · E experts · L layers of the model · K experts of a token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor

from slime.config import Config
from slime.config.architecture import Architecture
from slime.training.build import Model
from slime.training.packing import MicroBatch


def require_experts(config: Config, model: Architecture) -> None:
    """Raises ValueError when replay is asked for, and the model has no experts."""
    asked = {
        "--use-routing-replay": config.use_routing_replay,
        "--use-rollout-routing-replay": config.use_rollout_routing_replay,
    }
    for option, is_given in asked.items():
        if is_given and "num_experts" not in model:
            raise ValueError(f"{option}: the model has no experts")


class Choices:
    """What one router chooses; a router of Megatron's asks it as its `router_replay`.

    Megatron's own RouterReplay has to be told before each forward and each backward pass what the next one is, and
    pipelines interleave them; this one sees it for itself.
    """

    def __init__(self) -> None:
        self.made: list[Tensor] | None = None  # [T, K] of each micro-batch, in a pass that records
        self._given: Iterator[Tensor] | None = None  # the same, in a pass that replays
        self._to_recompute: deque[Tensor] = deque()

    def replay(self, choices_TK: Sequence[Tensor] | None) -> None:
        """In the next pass, over as many micro-batches. None: choose freely again."""
        self._given = None if choices_TK is None else iter(choices_TK)
        self._to_recompute.clear()

    def get_replay_topk(
        self,
        scores_TE: Tensor,
        topk: int,
        num_groups: int | None,
        group_topk: int | None,
        choose: Callable[[Tensor, int, int | None, int | None], tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """The scores of the chosen experts and their ids, both [T, K]. The name is Megatron's."""
        if self._given is None:
            chosen_TK, ids_TK = choose(scores_TE, topk, num_groups, group_topk)
            if self.made is not None:
                self.made.append(ids_TK.to(torch.int16))
            return chosen_TK, ids_TK
        if torch._C._current_graph_task_id() != -1:  # autograd is at work: a recomputation
            ids_TK = self._to_recompute.popleft()
        else:
            ids_TK = next(self._given)
            self._to_recompute.append(ids_TK)
        ids_TK = ids_TK.to(scores_TE.device, torch.int64)
        return scores_TE.gather(1, ids_TK), ids_TK


class Routing:
    """The routers of this rank, and where their choices are from."""

    def __init__(self, config: Config, model: Model) -> None:
        self.by_engine = config.use_rollout_routing_replay
        self.num_layers, self.topk = model.config.num_layers, model.config.moe_router_topk
        self.tp_rank = model.parallel.tp_rank
        self.tp_size = model.parallel.tp_size if model.config.sequence_parallel else 1
        self.choices: dict[int, Choices] = {}  # by layer, counted over the whole model from 0
        if not (config.use_routing_replay or self.by_engine):
            return
        for chunk in model.chunks:
            for module in chunk.modules():
                if isinstance(module, TopKRouter) and not module.is_mtp_layer:  # those run in training alone
                    module.router_replay = self.choices[module.layer_number - 1] = Choices()

    @contextmanager
    def scoring(self, batches: Sequence[MicroBatch]) -> Iterator[None]:
        """Around the pass that makes the old log-probs: takes the engine's choices, or keeps what is chosen."""
        if self.by_engine:
            with self.training(batches):
                yield
            return
        for choices in self.choices.values():
            choices.made = []
        yield
        for index, batch in enumerate(batches):
            batch.experts = {layer: choices.made[index] for layer, choices in self.choices.items()}
        for choices in self.choices.values():
            choices.made = None

    @contextmanager
    def training(self, batches: Sequence[MicroBatch]) -> Iterator[None]:
        """Around a pass that trains: takes the choices that are there."""
        for layer, choices in self.choices.items():
            choices.replay([self._chosen(batch, layer) for batch in batches])
        try:
            yield
        finally:
            for choices in self.choices.values():
                choices.replay(None)

    def check(self, shape: tuple[int, ...]) -> None:
        """Raises ValueError unless the engine's choices of all tokens, of this shape, are of such a model."""
        if shape[1:] != (self.num_layers, self.topk):
            raise ValueError(
                f"--use-rollout-routing-replay: the engine chose {shape[2]} experts in each of {shape[1]} layers, the"
                f" model has {self.num_layers} layers and {self.topk} experts a token"
            )

    def _chosen(self, batch: MicroBatch, layer: int) -> Tensor:
        """[T, K]"""
        if not self.by_engine:
            return batch.experts[layer]
        return batch.engine_experts_TLK.chunk(self.tp_size)[self.tp_rank if self.tp_size > 1 else 0][:, layer]
