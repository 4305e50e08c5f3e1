"""From what a sample earned to what each of its tokens is worth.

Rewards come compared within their group already, where the estimator compares (slime.rollout.scores); what is left is
what needs log-probs or the tokens of all ranks.

Shape suffixes: R response tokens of this rank · S those of whole samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from slime.algorithms.kl import kl_estimate
from slime.algorithms.returns import discounted_returns, gae, token_rewards
from slime.algorithms.whitening import moments, whiten
from slime.config import Config
from slime.config.hooks import load_hook
from slime.training.columns import columns
from slime.training.packing import MicroBatch
from slime.training.parallel import Parallel
from slime.training.scores import old_log_probs

CUSTOM = "--custom-advantage-function-path"


class Advantages:
    """Fills `advantages_R` and `returns_R`, and `kl_R` and `opd_reverse_kl_R` where there is something to compare with.

    For the last pipeline stage: the others have no log-probs, and need no advantages.
    """

    def __init__(self, config: Config, parallel: Parallel) -> None:
        self.config, self.parallel = config, parallel
        self.custom = load_hook(CUSTOM, config.custom_advantage_function_path)

    def fill(self, batches: Sequence[MicroBatch]) -> None:
        config = self.config
        for batch in batches:
            if batch.ref_log_probs_R is not None:
                batch.kl_R = self._masked_kl(batch, batch.ref_log_probs_R, config.kl_loss_type)
            if config.use_opd:
                batch.opd_reverse_kl_R = self._masked_kl(batch, batch.teacher_log_probs_R, "k1")
        if self.custom is not None:
            self._ask(batches)
        else:
            for batch in batches:
                batch.advantages_R, batch.returns_R = self._estimate(batch)
        if config.use_opd:
            for batch in batches:
                batch.advantages_R = batch.advantages_R - config.opd_kl_coef * batch.opd_reverse_kl_R
        if config.normalize_advantages:
            local = torch.stack([moments(batch.advantages_R, batch.mask_R) for batch in batches]).sum(dim=0)
            everyone = self.parallel.sum_over_data(local)
            for batch in batches:
                batch.advantages_R = whiten(batch.advantages_R, everyone)

    def _estimate(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Advantages and returns: the reward of a token's sample less the KL penalty at the token; with REINFORCE++
        what follows it as well, with PPO that against the critic's values."""
        samples = batch.samples
        penalty_R = torch.zeros_like(batch.mask_R)
        if self.config.kl_coef:
            penalty_R = self.config.kl_coef * batch.kl_R
        if self.config.advantage_estimator not in ("reinforce_plus_plus", "ppo"):
            rewards_R = samples.spread(samples.rewards_N) - penalty_R
            return rewards_R, rewards_R
        mask_S, lengths_N, gamma = samples.mask_S, samples.lengths_N, self.config.gamma
        rewards_S = token_rewards(samples.rewards_N, samples.whole(penalty_R), mask_S, lengths_N)
        if self.config.advantage_estimator == "reinforce_plus_plus":
            returns_R = samples.here(discounted_returns(rewards_S, mask_S, lengths_N, gamma))
            return returns_R, returns_R
        values_S = samples.whole(batch.values_R)
        advantages_S, returns_S = gae(rewards_S, values_S, mask_S, lengths_N, gamma=gamma, lambd=self.config.lambd)
        return samples.here(advantages_S), samples.here(returns_S)

    def _masked_kl(self, batch: MicroBatch, base_R: Tensor, kind: str) -> Tensor:
        kl_R = kl_estimate(old_log_probs(self.config, batch), base_R, kind)
        return torch.where(batch.mask_R > 0, kl_R, torch.zeros_like(kl_R))

    def _ask(self, batches: Sequence[MicroBatch]) -> None:
        """The user's function sees whole samples, and leaves `advantages`, and `returns` if it likes, in the dict.

        A rank without samples does not ask.
        """
        data = columns(batches, whole=True)
        if data["tokens"]:
            self.custom(self.config, data)
        else:
            data["advantages"] = []
        if "advantages" not in data:
            raise ValueError(f"{CUSTOM}: the function left no 'advantages' in rollout_data")
        data.setdefault("returns", data["advantages"])
        for name in ("advantages", "returns"):
            lengths = [len(values) for values in data[name]]
            if lengths != data["response_lengths"]:
                raise ValueError(
                    f"{CUSTOM}: {name} have {len(lengths)} entries of the lengths {lengths[:5]}...,"
                    f" the samples' responses {len(data['response_lengths'])} of {data['response_lengths'][:5]}..."
                )
            of_samples = iter(data[name])
            for batch in batches:
                mine = [torch.as_tensor(next(of_samples)) for _ in range(len(batch.samples))]
                values_S = torch.cat([values.to(batch.mask_R) for values in mine]) if mine else batch.samples.mask_S
                setattr(batch, f"{name}_R", batch.samples.here(values_S))
