"""The loss, and what a reward becomes on its way into it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from slime.config.section import NonNegative, Section, Unit, option

ClipRange = Annotated[float, Field(ge=0), Unit("X")]


class Algorithm(Section):
    """Algorithm"""

    loss_type: Literal["policy_loss", "sft_loss"] = option(
        "policy_loss",
        "policy_loss: clipped policy gradient. sft_loss: likelihood of the responses in the prompt files; no engines.",
    )
    advantage_estimator: Literal["grpo"] = option(
        "grpo", "grpo: reward of a sample against the mean of its group (arXiv:2402.03300)."
    )
    eps_clip: ClipRange = option(0.2, "The probability ratio has no further effect below 1 - eps-clip.")
    eps_clip_high: ClipRange | None = option(None, "... and above 1 + eps-clip-high.", derived="--eps-clip")
    eps_clip_c: Annotated[float, Field(gt=1), Unit("X")] | None = option(
        None, "Dual clip: bound of the loss for negative advantages, in multiples of the advantage (arXiv:1912.09729)."
    )
    use_kl_loss: bool = option(False, "Add kl-loss-coef x KL(policy, reference) to the loss; needs --ref-load.")
    kl_loss_coef: NonNegative = option(0.0, "Weight of the KL loss.")
    kl_loss_type: Literal["k1", "k2", "k3", "low_var_kl"] = option(
        "k1",
        "Estimator: k1 log-ratio, k2 half its square, k3 unbiased and never negative, low_var_kl k3 of 10 at most.",
    )
    use_unbiased_kl: bool = option(
        False, "Weight the KL loss by the probability ratio to the old policy (arXiv:2512.02556)."
    )
    kl_coef: NonNegative = option(
        0.0, "Weight of a KL penalty in the reward of each token; needs --ref-load, excludes kl-loss-coef."
    )
    entropy_coef: float = option(0.0, "Weight of an entropy bonus.")
    calculate_per_token_loss: bool = option(
        False, "Mean over all tokens of the global batch, instead of over each sample's tokens and then over samples."
    )
    normalize_advantages: bool = option(False, "Whiten the advantages over the tokens of the global batch.")
    disable_grpo_std_normalization: bool = option(
        False, "Subtract the mean of the group, but do not divide by its deviation."
    )
    disable_rewards_normalization: bool = option(False, "Take rewards as they are, without comparing within the group.")
    use_rollout_logprobs: bool = option(
        False, "Take the engine's log-probs as those of the old policy, instead of computing them again by the trainer."
    )
