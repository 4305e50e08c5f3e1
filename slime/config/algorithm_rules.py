"""Rules between the options of the algorithm."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slime.config.config import Config
from slime.config.errors import Problem
from slime.config.rules import Rules

ALGORITHM = Rules()
reads = ALGORITHM.reads


@reads("use_kl_loss", "kl_coef", "ref_load")
def _kl_has_a_reference(c: Config) -> Iterator[Problem]:
    if c.ref_load is None and (c.use_kl_loss or c.kl_coef):
        option = "--use-kl-loss" if c.use_kl_loss else "--kl-coef"
        yield Problem(option, "needs a reference model", "add --ref-load DIR, often the same as --hf-checkpoint")


@reads("kl_coef", "kl_loss_coef")
def _kl_counts_once(c: Config) -> Iterator[Problem]:
    if c.kl_coef and c.kl_loss_coef:
        yield Problem(
            "--kl-coef, --kl-loss-coef", "exclude each other: the KL would count twice", "set one of them to 0"
        )


@reads("use_kl_loss", "kl_coef", "ref_update_interval")
def _what_is_updated_is_there(c: Config) -> Iterator[Problem]:
    if c.ref_update_interval is not None and not (c.use_kl_loss or c.kl_coef):
        yield Problem(
            "--ref-update-interval", "there is no reference that anything is compared with", "add --use-kl-loss"
        )


@reads("advantage_estimator", "normalize_advantages", "gamma", "eps_clip_c", "loss_type")
def _estimator_fits(c: Config) -> Iterator[Problem]:
    if c.loss_type != "policy_loss":
        return
    if c.advantage_estimator.startswith("reinforce_plus_plus") and not c.normalize_advantages:
        yield Problem(
            "--advantage-estimator",
            f"{c.advantage_estimator} is made for advantages of zero mean and unit variance",
            "add --normalize-advantages",
        )
    if c.gamma != 1 and c.advantage_estimator not in ("reinforce_plus_plus", "ppo"):
        yield Problem(
            "--gamma", f"{c.advantage_estimator} does not discount", "only reinforce_plus_plus and ppo do: leave it out"
        )
    if c.eps_clip_c is not None and c.advantage_estimator == "cispo":
        yield Problem("--eps-clip-c", "cispo has no dual clip: its weights are bounded as it is", "leave it out")


@reads("loss_type", "custom_loss_function_path", "disable_compute_advantages_and_returns", "log_probs_chunk_size")
def _custom_loss_is_there(c: Config) -> Iterator[Problem]:
    custom = "--loss-type custom_loss"
    if c.loss_type == "custom_loss":
        if c.custom_loss_function_path is None:
            yield Problem(custom, "needs a function", "add --custom-loss-function-path MODULE.FUNCTION")
        if c.log_probs_chunk_size > 0:
            yield Problem(
                "--log-probs-chunk-size", "a custom loss is given all logits of a micro-batch at once", "leave it out"
            )
        return
    if c.custom_loss_function_path is not None:
        yield Problem("--custom-loss-function-path", f"is not used by --loss-type {c.loss_type}", f"add {custom}")
    if c.disable_compute_advantages_and_returns and c.loss_type == "policy_loss":
        yield Problem(
            "--disable-compute-advantages-and-returns",
            "the policy loss is made of advantages",
            f"leave it out, or bring a loss of your own: {custom}",
        )


@reads("disable_compute_advantages_and_returns", "use_kl_loss", "kl_coef", "use_opd")
def _nothing_is_compared(c: Config) -> Iterator[Problem]:
    compares = {"--use-kl-loss": c.use_kl_loss, "--kl-coef": c.kl_coef, "--use-opd": c.use_opd}
    for option, is_given in compares.items():
        if is_given and c.disable_compute_advantages_and_returns:
            yield Problem(
                f"{option}, --disable-compute-advantages-and-returns",
                "exclude each other: without a look at the rollout before the update nothing is compared with it",
                "leave one of them out",
            )


@reads("use_rollout_logprobs", "use_tis", "use_mis", "custom_tis_function_path", "get_mismatch_metrics")
def _one_correction(c: Config) -> Iterator[Problem]:
    given = [name for name, on in (("--use-tis", c.use_tis), ("--use-mis", c.use_mis)) if on]
    if len(given) > 1:
        yield Problem(", ".join(given), "exclude each other: the weight would count twice", "leave one of them out")
    if given and c.use_rollout_logprobs:
        yield Problem(
            f"{given[0]}, --use-rollout-logprobs",
            "exclude each other: with the engine's log-probs as the old ones, the ratio corrects already",
            "leave one of them out",
        )
    if c.custom_tis_function_path is not None and c.use_mis:
        yield Problem("--custom-tis-function-path, --use-mis", "exclude each other", "leave one of them out")
    elif c.custom_tis_function_path is not None and not (c.use_tis or c.get_mismatch_metrics):
        yield Problem(
            "--custom-tis-function-path",
            "is not used",
            "add --use-tis to correct by it, or --get-mismatch-metrics to measure by it",
        )


@reads("keep_old_actor", "async_depth", "max_weight_staleness", "update_weights_interval", "use_rollout_logprobs")
def _old_actor_is_older(c: Config) -> Iterator[Problem]:
    if c.keep_old_actor and c.max_weight_staleness is not None:
        yield Problem(
            "--keep-old-actor",
            "keeps the weights of one update ago; with --max-weight-staleness samples are of several",
            "leave it out; --use-rollout-logprobs takes the log-probs of whatever weights sampled",
        )
    elif c.keep_old_actor and not c.async_depth:
        yield Problem("--keep-old-actor", "samples are of the current weights anyway", "add --async-depth 1")
    elif c.keep_old_actor and c.update_weights_interval > 1:
        yield Problem(
            "--keep-old-actor, --update-weights-interval",
            "exclude each other: the weights of one update ago sampled nothing where engines get only some",
            "leave one of them out; --use-rollout-logprobs takes the log-probs of whatever weights sampled",
        )
    elif c.keep_old_actor and c.use_rollout_logprobs:
        yield Problem(
            "--keep-old-actor, --use-rollout-logprobs",
            "exclude each other: both say what the old log-probs are",
            "leave one of them out",
        )


@reads("tis_clip", "tis_clip_low", "mis_clip", "mis_clip_low")
def _ranges_are_not_empty(c: Config) -> Iterator[Problem]:
    for kind in ("tis", "mis"):
        low, high = getattr(c, f"{kind}_clip_low"), getattr(c, f"{kind}_clip")
        if low >= high:
            what = f"{low} is not below --{kind}-clip {high}"
            yield Problem(f"--{kind}-clip-low", what, "weights are cut to what is between")


@reads("ref_load", "ref_ckpt_step", "opd_teacher_load", "opd_teacher_ckpt_step")
def _checkpoints_are_of_a_directory(c: Config) -> Iterator[Problem]:
    for model in ("ref", "opd_teacher"):
        if getattr(c, f"{model}_ckpt_step") is not None and getattr(c, f"{model}_load") is None:
            load = f"--{model.replace('_', '-')}-load"
            yield Problem(f"{load[:-5]}-ckpt-step", f"is about the checkpoint of {load}", f"add {load} DIR")


@reads("use_opd", "opd_type", "opd_teacher_load")
def _teacher_is_there(c: Config) -> Iterator[Problem]:
    if not c.use_opd:
        if c.opd_type is not None or c.opd_teacher_load is not None:
            option = "--opd-type" if c.opd_type is not None else "--opd-teacher-load"
            yield Problem(option, "is not used without distillation", "add --use-opd")
    elif c.opd_type is None:
        yield Problem("--use-opd", "where do the teacher's log-probs come from?", "give --opd-type sglang or megatron")
    elif c.opd_type == "megatron" and c.opd_teacher_load is None:
        yield Problem("--opd-type", "megatron needs the teacher's weights", "add --opd-teacher-load DIR")
    elif c.opd_type == "sglang" and c.opd_teacher_load is not None:
        yield Problem(
            "--opd-teacher-load", "with --opd-type sglang the rollout brings the log-probs", "leave one of them out"
        )


@reads("only_train_params_name_list", "freeze_params_name_list")
def _patterns_are_patterns(c: Config) -> Iterator[Problem]:
    for option in ("only_train_params_name_list", "freeze_params_name_list"):
        for pattern in getattr(c, option):
            try:
                re.compile(pattern)
            except re.error as error:
                flag = "--" + option.replace("_", "-")
                yield Problem(flag, f"{pattern!r} is not a regular expression: {error}", "e.g. 'mlp.experts'")


@reads(
    "use_routing_replay", "use_rollout_routing_replay", "loss_type", "disable_compute_advantages_and_returns",
    "use_rollout_logprobs", "get_mismatch_metrics", "use_rollout_entropy",
)  # fmt: skip
def _routing_can_be_replayed(c: Config) -> Iterator[Problem]:
    if c.use_rollout_routing_replay:
        option = "--use-rollout-routing-replay"
        if c.loss_type == "sft_loss":
            yield Problem(option, "--loss-type sft_loss has no engine that chose experts", "leave it out")
    elif c.use_routing_replay:
        option = "--use-routing-replay"
        scores = not c.use_rollout_logprobs or c.get_mismatch_metrics or c.use_rollout_entropy
        if c.loss_type == "sft_loss" or c.disable_compute_advantages_and_returns or not scores:
            yield Problem(
                option,
                "the trainer does not run the model before the update: there are no experts to use again",
                "leave it out, or take the engine's: --use-rollout-routing-replay",
            )
    else:
        return
    if c.megatron.get("moe_router_fusion"):
        yield Problem(f"{option}, --moe-router-fusion", "the fused router chooses by itself", "leave one of them out")
