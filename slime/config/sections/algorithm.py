"""The loss, and what a reward becomes on its way into it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from slime.config.section import Count, Fraction, Hook, Index, NonNegative, Path, Positive, Rate, Section, Unit, option

ClipRange = Annotated[float, Field(ge=0), Unit("X")]


class Algorithm(Section):
    """Algorithm"""

    loss_type: Literal["policy_loss", "sft_loss", "custom_loss"] = option(
        "policy_loss",
        "policy_loss: policy gradient. sft_loss: likelihood of the responses in the prompt files; no engines."
        " custom_loss: --custom-loss-function-path, on samples of the engines.",
    )
    custom_loss_function_path: Hook | None = option(
        None, "custom_loss(args, batch, logits, sum_of_sample_mean) -> (loss, metrics); for --loss-type custom_loss."
    )
    advantage_estimator: Literal[
        "grpo", "gspo", "cispo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo"
    ] = option(
        "grpo",
        "grpo: reward against the mean of the group (arXiv:2402.03300). gspo: the same, with the probability ratio of"
        " the whole sample (2507.18071). cispo: the same, with the clipped ratio as a weight (2506.13585). rloo:"
        " against the mean of the others (2402.14740). reinforce_plus_plus: discounted return of each token"
        " (2501.03262); ..._baseline: reward less the mean of the group. ppo: generalised advantage estimation"
        " against the values of a critic (1707.06347, 1506.02438).",
    )
    gamma: Fraction = option(1.0, "Discount of a reward for each token before it; for reinforce_plus_plus and ppo.")
    eps_clip: ClipRange = option(0.2, "The probability ratio has no further effect below 1 - eps-clip.")
    eps_clip_high: ClipRange | None = option(None, "... and above 1 + eps-clip-high.", derived="--eps-clip")
    eps_clip_c: Annotated[float, Field(gt=1), Unit("X")] | None = option(
        None, "Dual clip: bound of the loss for negative advantages, in multiples of the advantage (arXiv:1912.09729)."
    )
    custom_pg_loss_reducer_function_path: Hook | None = option(
        None,
        "pg_loss_reducer(total_lengths, response_lengths, loss_masks, calculate_per_token_loss) -> callable: how the"
        " losses of tokens add up.",
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
    ref_update_interval: Count | None = option(
        None, "Rollouts after which the reference becomes the policy of then, again and again. Unset: it stays."
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
    custom_advantage_function_path: Hook | None = option(
        None, "custom_advantage(args, rollout_data): sets rollout_data['advantages'], in place of the estimator."
    )
    disable_compute_advantages_and_returns: bool = option(
        False, "With custom_loss: no log-probs from before the update and no advantages, which then cost nothing."
    )
    use_rollout_entropy: bool = option(
        False, "Also compute the entropy of each token before the update: for rollout/entropy and users' functions."
    )


class Critic(Section):
    """Critic

    The value function of --advantage-estimator ppo: a model like the policy, whose last layer gives one number a token.
    Its devices are among those of the cluster, its checkpoints among those of the run. All else is as for the policy.
    """

    lambd: Fraction = option(
        1.0, "GAE: 1 trusts the rewards that followed (high variance), 0 the critic's next value (high bias)."
    )
    value_clip: NonNegative = option(
        0.2, "A value that is further than this from that before the update gains nothing by going on."
    )
    num_critic_only_steps: Index = option(0, "First rollouts on which only the critic is trained.")
    critic_lr: Rate | None = option(None, "Learning rate of the critic, after warm-up.", derived="--lr")


class OffPolicy(Section):
    """Off-policy corrections

    For samples of other weights, or of the same in other kernels. TIS and MIS weigh each token by its probability by
    the trainer, before the update, over that by the engine that sampled it.
    """

    use_rollout_logprobs: bool = option(
        False, "Take the engine's log-probs as those of the old policy, instead of computing them again by the trainer."
    )
    keep_old_actor: bool = option(
        False,
        "With --async-depth 1, keep the weights that sampled a rollout, one update old when it is trained on, to"
        " compute its log-probs by them. Costs a copy of the weights.",
    )
    get_mismatch_metrics: bool = option(
        False, "Compute the trainer's log-probs and the figures of TIS, or of what replaces it, without correcting."
    )
    use_tis: bool = option(False, "Truncated importance sampling: token by token, the weight cut to a range.")
    tis_clip: Positive = option(2.0, "Largest weight of TIS.")
    tis_clip_low: NonNegative = option(0.0, "Smallest weight of TIS.")
    custom_tis_function_path: Hook | None = option(
        None,
        "custom_tis(args, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks, total_lengths, response_lengths)"
        " -> (pg_loss, masks, metrics): replaces TIS.",
    )
    use_mis: bool = option(False, "Importance sampling with a level and a mode of one's choice, instead of TIS.")
    mis_level: Literal["token", "sequence", "geometric"] = option(
        "token",
        "What the weight is of: a token, the whole sample (product over its tokens), or their geometric mean.",
    )
    mis_mode: Literal["truncate", "mask"] = option(
        "truncate", "Weights outside of the range are cut to it, or set to 0 (arXiv:2510.18855)."
    )
    mis_clip: Positive = option(2.0, "Largest weight of MIS.")
    mis_clip_low: NonNegative = option(0.0, "Smallest weight of MIS.")
    use_routing_replay: bool = option(
        False,
        "In training, send tokens to the experts that were chosen when their log-probs were computed before the update"
        " (arXiv:2507.18071).",
    )
    use_rollout_routing_replay: bool = option(
        False,
        "Send tokens to the experts that the engine chose, in training and before (R3, arXiv:2510.11370). Engines then"
        " return them with each sample.",
    )
    use_opsm: bool = option(
        False, "Leave out samples of negative advantage that the policy has moved away from (arXiv:2512.02556)."
    )
    opsm_delta: NonNegative = option(1e-4, "How far: mean over a sample's tokens of log old - log new probability.")


class Distillation(Section):
    """On-policy distillation

    The policy's own samples, each token judged by a teacher: the advantage is lowered by log policy - log teacher.
    """

    use_opd: bool = option(False, "Distil from a teacher, besides the rewards.")
    opd_type: Literal["sglang", "megatron"] | None = option(
        None,
        "Where the teacher's log-probs come from. sglang: from the rollout, which sets teacher_log_probs of samples."
        " megatron: from --opd-teacher-load, in the trainer; it has the policy's architecture.",
    )
    opd_kl_coef: NonNegative = option(1.0, "Weight of the teacher's part of the advantage.")
    opd_teacher_load: Path | None = option(
        None, "The teacher of --opd-type megatron: a Hugging Face directory, or one of checkpoints."
    )
    opd_teacher_ckpt_step: Index | None = option(
        None, "Rollout whose checkpoint of --opd-teacher-load is taken.", derived="the latest"
    )
