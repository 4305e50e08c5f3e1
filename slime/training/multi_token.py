"""Multi-token prediction: Megatron's layers for it (arXiv:2412.19437, section 2.2), trained on what the policy sampled.

Layer k predicts, from the state of a position and the embedding of the token k places on, the token after that one. The
loss is minus the log-probability of the unmasked response tokens, as a mean over those of the global batch and over the
layers. Megatron's own, which it adds inside of the forward pass, is a mean over the tokens of a micro-batch, so that it
would depend on packing, and makes the logits of whole rows; so only the layers, and the shifting of tokens, are
Megatron's.

Shape suffixes: T tokens of the row on this rank · R those of them that predict · D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.multi_token_prediction import roll_tensor
from torch import Tensor

from slime.training.packing import MicroBatch


class MultiTokenModel(GPTModel):
    """GPTModel that runs these layers where gradients are wanted, and hands their states to the output processor."""

    def _postprocess(
        self, hidden_states: Tensor, *, output_processor: Any, output_processor_context: Any, **given: Any
    ) -> Any:
        further: Sequence[Tensor] = ()
        if self.mtp_process and torch.is_grad_enabled():
            of_layers = self.mtp(
                hidden_states=hidden_states,
                embedding=self.embedding,
                **{name: given[name] for name in ("input_ids", "position_ids", "attention_mask", "padding_mask")},
                **{name: given[name] for name in ("rotary_pos_emb", "packed_seq_params", "sequence_len_offset")},
            )
            hidden_states, *further = of_layers.chunk(1 + self.config.mtp_num_layers)
        if not self.post_process:
            return hidden_states
        return output_processor(
            hidden_states=hidden_states,
            further_states=further,
            output_layer=self.output_layer,
            output_weight=None,
            context=output_processor_context,
        )


def shifted_targets(batch: MicroBatch, depth: int) -> Iterator[tuple[Tensor, Tensor]]:
    """For each layer the rows [R] that predict an unmasked response token, and these tokens [R]."""
    num_tokens = batch.tokens_1T.shape[1]
    targets_1T = batch.targets_R.new_zeros(1, num_tokens).index_copy(1, batch.rows_R, batch.targets_R[None])
    mask_1T = batch.mask_R.new_zeros(1, num_tokens).index_copy(1, batch.rows_R, batch.mask_R[None])
    for _ in range(depth):
        targets_1T, mask_1T = (
            roll_tensor(row, cp_group=batch.samples.group, packed_seq_params=batch.sequences)[0]
            for row in (targets_1T, mask_1T)
        )
        rows_R = mask_1T[0].nonzero()[:, 0]
        yield rows_R, targets_1T[0, rows_R]
