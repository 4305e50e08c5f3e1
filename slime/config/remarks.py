"""Remarks on a plan: what is allowed, and may still not be meant. Most are options that do nothing beside the others.

A remark is made of what is given another value than its default: the default itself cannot be told from no option.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slime.config.architecture import Architecture
from slime.config.catalogue import OWN
from slime.config.config import Config
from slime.config.critic import learners

OPTIONS_OF = {  # switches, one of which it takes: options that say how
    ("use_kl_loss",): ("kl_loss_coef", "use_unbiased_kl"),
    ("use_dynamic_batch_size",): ("max_tokens_per_gpu",),
    ("use_tis", "get_mismatch_metrics"): ("tis_clip", "tis_clip_low"),
    ("use_mis",): ("mis_level", "mis_mode", "mis_clip", "mis_clip_low"),
    ("use_opsm",): ("opsm_delta",),
    ("use_opd",): ("opd_kl_coef",),
}
AUXILIARY = ("aux_loss", "seq_aux_loss", "global_aux_loss")
"""Values of --moe-router-load-balancing-type that are losses, each with its coefficient."""


@dataclass(frozen=True)
class Needed:
    """An option of Megatron's and the value it takes for others to count; None: any."""

    name: str
    value: str | None
    shown: str

    def is_given(self, c: Config) -> bool:
        value = c.megatron.get(self.name)
        return bool(value) if self.value is None else value == self.value


OF_MEGATRON = {  # the same of Megatron's own options
    Needed("fp8", None, "--fp8-format"): ("fp8_recipe",),
    Needed("optimizer_cpu_offload", None, "--optimizer-cpu-offload"): (
        "overlap_cpu_optimizer_d2h_h2d", "optimizer_offload_fraction",
    ),
    Needed("recompute_granularity", "full", "--recompute-granularity full"): (
        "recompute_method", "recompute_num_layers", "distribute_saved_activations",
    ),
    Needed("recompute_granularity", "selective", "--recompute-granularity selective"): ("recompute_modules",),
}  # fmt: skip


def remarks(c: Config, model: Architecture | None, ranks: int) -> Iterator[str]:
    """One sentence each; `ranks` are the data-parallel ones. Expects a configuration without problems."""
    for switches, options in OPTIONS_OF.items():
        for name in options:
            if _is_given(c, name) and not any(getattr(c, switch) for switch in switches):
                yield f"{OWN[name].flag} has no effect without {' or '.join(OWN[switch].flag for switch in switches)}."
    if _is_given(c, "micro_batch_size") and c.use_dynamic_batch_size:
        yield "--micro-batch-size has no effect with --use-dynamic-batch-size: tokens are counted, not samples."
    if c.ref_load is not None and c.load is None and not (c.use_kl_loss or c.kl_coef):  # --load may start anew by it
        yield "--ref-load has no effect without --use-kl-loss or --kl-coef: nothing is compared with the reference."
    if c.sequence_parallel and c.tensor_model_parallel_size == 1:
        yield "--sequence-parallel has no effect without --tensor-model-parallel-size above 1."
    of_each = [dict.fromkeys(_of_megatron(learner, model)) for learner in learners(c)]
    yield from (text for text in (of_each or [{}])[0] if all(text in texts for texts in of_each))
    if model is not None and "num_experts" not in model:
        yield from _of_no_experts(c)
    if c.log_probs_chunk_size == 0:
        yield "--log-probs-chunk-size 0 has no effect: as with -1, all logits are in memory at once."
    if c.eval_prompt_data and c.eval_interval is None:
        yield "--eval-prompt-data is not used without --eval-interval."
    if c.loss_type == "sft_loss":
        yield from _of_demonstrations(c)
    if c.global_batch_size % ranks and not c.debug_rollout_only:
        yield f"The global batch is not a multiple of {ranks} data-parallel ranks: some have a sample less, and wait."
    if c.max_weight_staleness and not (c.use_rollout_logprobs or c.use_tis or c.use_mis):
        yield (
            "Samples of older weights will be taken for samples of the current ones:"
            " --use-rollout-logprobs or --use-tis keeps them apart."
        )
    yield from _of_the_learning_rate(c)
    yield from _of_lengths(c, model)


def _is_given(c: Config, name: str) -> bool:
    return getattr(c, name) != OWN[name].default


def _of_megatron(c: Config, model: Architecture | None) -> Iterator[str]:
    for needed, options in OF_MEGATRON.items():
        for name in options:
            if c.megatron.get(name) and not needed.is_given(c):
                yield f"{_flag(name)} has no effect without {needed.shown}."
    if model is not None and "num_experts" not in model:
        return
    kinds = set(_several(c.megatron.get("moe_router_load_balancing_type"))) & set(AUXILIARY)
    is_weighed = any(_several(c.megatron.get("moe_aux_loss_coeff")))
    if is_weighed and not kinds:
        kind = "--moe-router-load-balancing-type"
        yield f"--moe-aux-loss-coeff has no effect without {kind} {', '.join(AUXILIARY[:-1])} or {AUXILIARY[-1]}."
    if kinds and not is_weighed:
        yield "--moe-router-load-balancing-type has no effect without --moe-aux-loss-coeff: its loss counts 0 times."


def _several(value: object) -> list:
    """Of an option that takes one value or a list of them."""
    return list(value) if isinstance(value, (list, tuple)) else [] if value is None else [value]


def _of_no_experts(c: Config) -> Iterator[str]:
    options = sorted(name for name, value in c.megatron.items() if name.startswith("moe_") and value)
    size = c.expert_tensor_parallel_size
    if size not in (1, c.tensor_model_parallel_size):  # which it is unless it is given
        options.append("expert_tensor_parallel_size")
    for name in options:
        yield f"{_flag(name)} has no effect: the model has no experts."


def _of_the_learning_rate(c: Config) -> Iterator[str]:
    if c.num_policy_rollouts is None or c.debug_rollout_only or not c.lr_warmup_iters:
        return
    steps = c.num_policy_rollouts * c.num_steps_per_rollout
    if c.lr_warmup_iters >= steps:  # the first step has a rate of 0, the last one that of `steps` - 1
        yield (
            f"--lr-warmup-iters {c.lr_warmup_iters} is longer than the run, which has {steps:,} optimizer"
            f" step{'' if steps == 1 else 's'}: the learning rate never reaches --lr."
        )


def _of_demonstrations(c: Config) -> Iterator[str]:
    if c.eval_interval is not None:
        yield "--eval-interval has no effect with --loss-type sft_loss: there are no engines to evaluate by."
    if c.n_samples_per_prompt > 1:
        yield f"--n-samples-per-prompt: each demonstration is {c.n_samples_per_prompt} times in its batch."


def _of_lengths(c: Config, model: Architecture | None) -> Iterator[str]:
    longest = (c.rollout_max_prompt_len or 0) + (c.rollout_max_response_len or 0)
    longest = min(longest, c.rollout_max_context_len or longest)
    if c.use_dynamic_batch_size and c.max_tokens_per_gpu * c.context_parallel_size < longest:
        yield f"Samples of up to {longest:,} tokens exceed a micro-batch; such a one will be alone in its own."
    limit = model.get("max_position_embeddings") if model else None
    of_eval = c.eval_max_context_len if c.eval_interval else None
    if limit and max(longest, c.rollout_max_context_len or 0, of_eval or 0) > limit:
        yield f"The model was made for at most {limit:,} tokens (max_position_embeddings in config.json)."


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
