"""--rollout-data-postprocess-path: a user's last look at a rollout, with all log-probs, before it is trained on.

What the function masks counts as 0 in means whose denominators stay, as with any correction: those are global, and
known before the first forward pass.

Shape suffixes: R response tokens of this rank · S those of whole samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from slime.config import Config
from slime.config.hooks import load_hook
from slime.training.columns import columns
from slime.training.packing import MicroBatch

OPTION = "--rollout-data-postprocess-path"


class Postprocess:
    """For the last pipeline stage: the others have no log-probs. A rank without samples does not ask."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.function = load_hook(OPTION, config.rollout_data_postprocess_path)

    def apply(self, rollout_id: int, batches: Sequence[MicroBatch]) -> None:
        """Raises ValueError for masks that are not those of the samples, or narrower."""
        if self.function is None:
            return
        data = columns(batches, whole=True)
        if data["tokens"]:
            self.function(self.config, rollout_id, data)
        masks = data["loss_masks"]
        if (lengths := [len(mask) for mask in masks]) != data["response_lengths"]:
            raise ValueError(
                f"{OPTION}: {len(masks)} loss_masks of the lengths {lengths[:5]}..., the samples' responses are"
                f" {len(data['response_lengths'])} of {data['response_lengths'][:5]}..."
            )
        of_samples = iter(masks)
        for batch in batches:
            mine = [torch.as_tensor(next(of_samples)) for _ in range(len(batch.samples))]
            before_S = batch.samples.mask_S
            mask_S = torch.cat([mask.to(before_S) for mask in mine]) if mine else before_S
            if (mask_S > before_S).any():
                raise ValueError(f"{OPTION}: a loss mask has a token that was masked before: they can only be narrowed")
            batch.samples = replace(batch.samples, mask_S=mask_S)
            batch.mask_R = batch.samples.here(mask_S)
            batch.weights_R = batch.weights_R * batch.mask_R
