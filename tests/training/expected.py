"""Losses of a rollout computed sample by sample from transformers' logits, with none of our code."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.training.rollouts import Made


@dataclass
class Scored:
    """One sample's response under a model."""

    sample: Made
    log_probs: Tensor
    entropy: Tensor

    @property
    def rollout(self) -> Tensor:
        return torch.tensor(self.sample.log_probs)

    @property
    def mask(self) -> Tensor:
        return torch.tensor(self.sample.mask, dtype=torch.float32)


def score(directory: str, samples: list[Made], temperature: float = 1.0) -> list[Scored]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    scored = []
    for sample in samples:
        tokens = torch.tensor([sample.tokens])
        with torch.no_grad():
            log_softmax = (model(tokens).logits[0, :-1] / temperature).log_softmax(-1)[-sample.response :]
        log_probs = log_softmax.gather(-1, tokens[0, -sample.response :, None])[:, 0]
        scored.append(Scored(sample, log_probs, -(log_softmax.exp() * log_softmax).sum(-1)))
    return scored


def mean_of_sample_means(scored: list[Scored], values: list[Tensor]) -> float:
    means = [
        (v * s.mask).sum() / s.mask.sum() if s.mask.any() else torch.tensor(0.0)
        for s, v in zip(scored, values, strict=True)
    ]
    return torch.stack(means).mean().item()


def mean_of_tokens(scored: list[Scored], values: list[Tensor]) -> float:
    return (
        torch.cat([v * s.mask for s, v in zip(scored, values, strict=True)]).sum() / sum(s.mask.sum() for s in scored)
    ).item()
