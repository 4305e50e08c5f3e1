"""The model's forward pass over packed micro-batches, up to the log-probs of their response tokens, or their values.

Logits are made for response tokens alone: hidden states are picked before the output layer. There is one copy of them,
which their gradient then takes the place of. In chunks, if asked for, a chunk's logits are computed again in the
backward pass, so that memory for them is bounded by the chunk and not by the batch.

Shape suffixes: T tokens of the row · R response tokens · C a chunk of them · D hidden size · V this rank's part of the
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from slime.algorithms.log_probs import log_probs_and_entropy
from slime.training.balancing import padding_mask
from slime.training.multi_token import shifted_targets
from slime.training.packing import MicroBatch
from slime.training.value_head import ValueHead


@dataclass(frozen=True, slots=True)
class Scoring:
    """What to compute of each response token."""

    vocab_size: int  # of the model; Megatron's rows beyond it are padding, and have no probability
    temperature: float = 1.0  # that the tokens were sampled with: the engine's log-probs are of logits / temperature
    chunk_size: int = -1  # response tokens whose logits exist at a time; -1 or 0: all
    recompute: bool = False  # also where they exist all at once, make them again in the backward pass


Scores = dict[str, Tensor]  # "log_probs" [R] and, of EXTRAS, what was asked for; of a value function "values" [R]
MTP_LOSS = "mtp_loss"  # in training, of a model that has layers for it: this micro-batch's part of that loss
EXTRAS = ("entropy", "logits")  # [R]; [R, V]: over the temperature, this rank's part of the vocabulary


def score(model: nn.Module, batch: MicroBatch, scoring: Scoring, *, extras: tuple[str, ...] = ()) -> Tensor | Scores:
    """Scores on the last pipeline stage, hidden states on the others."""
    return model(
        batch.tokens_1T,
        batch.positions_1T,
        None,
        packed_seq_params=batch.sequences,
        padding_mask=padding_mask(model.config, batch),
        output_processor=_score_response,
        output_processor_context=(batch, scoring, extras),
    )


def _score_response(
    *,
    hidden_states: Tensor,
    output_layer: nn.Module,
    output_weight: Tensor | None,
    context: tuple[MicroBatch, Scoring, tuple[str, ...]],
    further_states: Sequence[Tensor] = (),
    **_: Any,
) -> Scores:
    """GPTModel's hook between the last layer and the output layer."""
    batch, scoring, extras = context
    hidden_RD = _picked(hidden_states, batch.rows_R, output_layer)
    if isinstance(output_layer, ValueHead):
        return {"values": output_layer(hidden_RD)}
    scores = _token_scores(hidden_RD, batch.targets_R, output_layer, output_weight, scoring, extras)
    if further_states:
        weight = output_layer.weight.detach() if output_layer.config.mtp_detach_heads else None
        as_it_is = replace(scoring, temperature=1.0)
        total = sum(
            _token_scores(_picked(states, rows_R, output_layer), targets_R, output_layer, weight, as_it_is)[
                "log_probs"
            ].sum()
            for states, (rows_R, targets_R) in zip(
                further_states, shifted_targets(batch, len(further_states)), strict=True
            )
        )
        scores[MTP_LOSS] = -total / (len(further_states) * max(batch.step.num_tokens, 1))
    return scores


def _picked(states: Tensor, rows_R: Tensor, output_layer: nn.Module) -> Tensor:
    """The hidden states [R, D] of some rows of the whole micro-batch."""
    hidden_TD = states.squeeze(1)
    if output_layer.config.sequence_parallel:
        # Left to the output layer (build.py tells it not to), the gathering would make logits of the whole row.
        hidden_TD = gather_from_sequence_parallel_region(
            hidden_TD, tensor_parallel_output_grad=False, group=output_layer.tp_group
        )
    return hidden_TD.index_select(0, rows_R)


def _token_scores(
    hidden_RD: Tensor,
    targets_R: Tensor,
    output_layer: nn.Module,
    output_weight: Tensor | None,
    scoring: Scoring,
    extras: tuple[str, ...] = (),
) -> Scores:
    group = output_layer.tp_group

    def chunk_scores(hidden_CD: Tensor, targets_C: Tensor) -> Scores:
        logits_CV = output_layer(hidden_CD.unsqueeze(1), weight=output_weight)[0].squeeze(1)
        start = group.rank() * logits_CV.shape[-1]
        log_probs_C, entropy_C = log_probs_and_entropy(
            logits_CV,
            targets_C,
            group=group if group.size() > 1 else None,
            vocab_start=start,
            vocab_size=scoring.vocab_size,
            temperature=scoring.temperature,
            with_entropy="entropy" in extras,
            overwrite="logits" not in extras,
        )
        scores = {"log_probs": log_probs_C}
        if "entropy" in extras:
            scores["entropy"] = entropy_C
        if "logits" in extras:
            logits_CV = logits_CV[:, : scoring.vocab_size - start]
            scores["logits"] = logits_CV if scoring.temperature == 1.0 else logits_CV / scoring.temperature
        return scores

    size = scoring.chunk_size if scoring.chunk_size > 0 else max(len(hidden_RD), 1)
    if len(hidden_RD) <= size and not scoring.recompute:
        return chunk_scores(hidden_RD, targets_R)
    chunks = [
        checkpoint(chunk_scores, hidden_CD, targets_C, use_reentrant=False, preserve_rng_state=False)
        for hidden_CD, targets_C in zip(hidden_RD.split(size), targets_R.split(size), strict=True)
    ]
    return {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}


LossFunction = Callable[[MicroBatch, Scores], tuple[Tensor, dict[str, Tensor]]]


def run(
    chunks: Sequence[nn.Module],
    batches: Sequence[MicroBatch],
    scoring: Scoring,
    *,
    loss: LossFunction | None = None,
    extras: tuple[str, ...] = (),
) -> list[Any]:
    """One pass of Megatron's schedule over the micro-batches: with a loss, forward and backward, else forward alone.

    Returns, on the last pipeline stage, one entry a micro-batch: the loss's sums, or the scores. [] on other stages.
    """

    def forward_step(batches: Any, model: nn.Module) -> tuple[Any, Callable[..., Any]]:
        batch = next(batches)
        output = score(model, batch, scoring, extras=extras)

        def finish(scores: Scores, non_loss_data: bool = False) -> Any:
            if non_loss_data:
                return scores
            total, sums = loss(batch, scores)
            if MTP_LOSS in scores:
                total = total + model.config.mtp_loss_scaling_factor * scores[MTP_LOSS]
                sums = sums | {MTP_LOSS: scores[MTP_LOSS].detach()}
            # Three values, so that Megatron takes the loss as a sum. The count is what it would divide by: not used.
            return total, torch.zeros((), dtype=torch.int, device=total.device), sums

        return output, finish

    with torch.set_grad_enabled(loss is not None):
        return get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=[iter(batches) for _ in chunks],
            model=list(chunks),
            num_microbatches=len(batches),
            seq_length=max(batch.tokens_1T.shape[1] for batch in batches),
            micro_batch_size=1,
            forward_only=loss is None,
            collect_non_loss_data=loss is None,
        )
