"""Rejection sampling: of each group the best sample is learnt from, if it is any good, and nothing of the others."""

from __future__ import annotations

from collections.abc import Sequence

from slime.config import Config
from slime.data.sample import Sample
from slime.rewards import score


def best_of_group(args: Config, samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    """For --custom-reward-post-process-path: (raw rewards, 1 for the best sample of each group and 0 for the others).

    With one optimizer step a rollout, the policy loss of these is the likelihood of the best samples: supervised
    fine-tuning on the very tokens that were sampled. Of equally good samples the first is taken; a group without a
    positive reward has no best.
    """
    raw = [score(sample.name, sample.reward, args.reward_key) for sample in samples]
    best: dict[int | None, int] = {}
    for i, sample in enumerate(samples):
        if raw[i] > 0 and (sample.group_index not in best or raw[i] > raw[best[sample.group_index]]):
            best[sample.group_index] = i
    chosen = set(best.values())
    return raw, [float(i in chosen) for i in range(len(samples))]
