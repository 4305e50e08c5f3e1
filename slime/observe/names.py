"""Every metric that slime emits: its name, unit and meaning. docs/metrics.md is made from this table.

`{name}` in a name stands for a part that a run fills in. Invariants: what is logged under one of our prefixes stands
here, and what stands here is logged; a name that dashboards already plot is never renamed. Names under other prefixes
are the user's own.

    python -c 'from slime.observe import names; print(names.document(), end="")' > docs/metrics.md
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property

PREFIXES = ("rollout", "perf", "train", "critic-train", "eval", "passrate", "multi_turn", "multi_turn_metric")
AXES = ("rollout/step", "train/step", "critic-train/step", "eval/step")
LOGPROB_DIFF = "train/train_rollout_logprob_abs_diff"
REWARD_FAILURES = "rollout/reward_failures"
STATISTIC = "{mean|median|max|min}"


@dataclass(frozen=True)
class Metric:
    """`pattern` is a name with `{part}` for what varies: `{a|b}` is one of these, `{set}` any text without a slash."""

    pattern: str
    unit: str
    meaning: str

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        parts = re.split(r"(\{[^}]+\})", self.pattern)
        return re.compile("".join(_part(part[1:-1]) if part.startswith("{") else re.escape(part) for part in parts))

    def matches(self, name: str) -> bool:
        return self._regex.fullmatch(name) is not None


ROLLOUT = (
    Metric("rollout/step", "", "the rollout this row is about: the axis of `rollout/*` and `perf/*`"),
    Metric("rollout/raw_reward", "reward", "mean reward of the samples, as the grader gave it"),
    Metric(
        "rollout/rewards", "reward", "mean reward after normalisation in the group: what the advantages are made of"
    ),
    Metric(f"rollout/response_len/{STATISTIC}", "tokens", "length of the responses"),
    Metric("rollout/response_lengths", "tokens", "mean length of the responses that were trained on"),
    Metric("rollout/total_lengths", "tokens", "mean length of prompt and response"),
    Metric("rollout/truncated_ratio", "share", "responses that hit the length limit"),
    Metric("rollout/truncated", "share", "the same of those that were trained on"),
    Metric("rollout/thinking_ratio", "share", "responses that hold a closed `<think>` part"),
    Metric("rollout/repetition_frac", "share", "responses that end in a loop of the same text"),
    Metric("rollout/zero_std/count_{reward}", "groups", "groups whose samples all got this reward: they teach nothing"),
    Metric("rollout/epoch", "", "how many times all prompts have been handed out"),
    Metric("rollout/prompts_too_long", "prompts", "left out for their length, of those that it was the turn of so far"),
    Metric(
        "rollout/dynamic_filter/drop_{reason}", "groups", "that `--dynamic-sampling-filter-path` dropped, by its reason"
    ),
    Metric(
        "rollout/staleness/{mean|max}",
        "updates",
        "`--max-weight-staleness`: how much older the weights that made a token were than those it is trained by",
    ),
    Metric(
        "rollout/stale_groups/{dropped|retried}",
        "groups",
        "that took longer than `--max-weight-staleness` allows, by `--stale-group-policy`",
    ),
    Metric("rollout/error_cat/{category}", "share", "samples by `--log-reward-category`, a key of their rewards"),
    Metric(
        "passrate/pass@{k}", "share", "`--log-passrate`: prompts solved by at least one of k samples, unbiased estimate"
    ),
    Metric(
        f"multi_turn/raw_response_length/{STATISTIC}", "tokens", "`--log-multi-turn`: responses, with what tools said"
    ),
    Metric(f"multi_turn/wo_obs_response_length/{STATISTIC}", "tokens", "the same without: what was sampled"),
    Metric(
        f"multi_turn_metric/round_number_{STATISTIC}", "turns", 'of a sample, where its `metadata["round_number"]` says'
    ),
    Metric(
        "multi_turn_metric/template_drift",
        "share",
        'of the samples whose `metadata["template_drift"]` says: their chat template would write them otherwise',
    ),
    Metric("rollout/correct_ratio", "share", "`--log-correct-samples`: samples with a reward above `--solved-above`"),
    Metric(f"rollout/{{correct|incorrect}}_response_len/{STATISTIC}", "tokens", "of their responses, and of others'"),
    Metric("rollout/{correct|incorrect}_truncated_ratio", "share", "of each that hit the length limit"),
    Metric("rollout/spec_accept_rate", "share", "draft tokens (speculative decoding) that the model accepted"),
    Metric("rollout/spec_accept_length", "tokens", "that one verification of drafts gave, its own among them"),
    Metric(REWARD_FAILURES, "samples", "whose reward was not had: 0 or dropped, by `--rm-failure-policy`"),
    Metric("rollout/reward_retries", "calls", "rewards asked for again, `--rm-retries`"),
    Metric("rollout/engine_restarts", "engines", "`--use-fault-tolerance`: that died and were started again, so far"),
    Metric("rollout/router_restarts", "routers", "the same of the router"),
    Metric("rollout/prefix_cache_hit_rate", "share", "prompt tokens that the engine found in its prefix cache"),
    Metric("rollout/avg_cached_tokens_per_sample", "tokens", "the same, in tokens a sample"),
    Metric("rollout/rollout_log_probs", "nats", "mean log-probability of the sampled tokens, by the engine"),
    Metric("rollout/log_probs", "nats", "the same by the trainer, before the update"),
    Metric("rollout/ref_log_probs", "nats", "the same by the reference model"),
    Metric("rollout/advantages", "", "mean advantage of the trained tokens"),
    Metric("rollout/returns", "", "mean return of the trained tokens"),
    Metric("rollout/values", "", "mean value that the critic gave the trained tokens, before its update"),
    Metric("rollout/teacher_log_probs", "nats", "mean log-probability of the sampled tokens, by the teacher"),
    Metric("rollout/opd_reverse_kl", "nats", "mean of log-probability by the policy less that by the teacher"),
    Metric("rollout/kl", "nats", "mean divergence from the reference model, before the update"),
    Metric("rollout/entropy", "nats", "mean entropy of the token distributions, before the update"),
)

TRAIN = (
    Metric("train/step", "", "the optimizer step this row is about: the axis of `train/*`"),
    Metric("train/loss", "", "what is minimised"),
    Metric("train/pg_loss", "", "its policy-gradient part"),
    Metric("train/pg_clipfrac", "share", "tokens whose probability ratio was clipped"),
    Metric("train/ppo_kl", "nats", "mean of log-probability at sampling less log-probability now"),
    Metric("train/entropy_loss", "nats", "mean entropy of the token distributions"),
    Metric("train/kl_loss", "nats", "divergence from the reference model, before its coefficient"),
    Metric(
        "train/ois",
        "",
        "mean probability of the sampled tokens now over that before the update; with what compares trainer and engine:"
        " `--use-tis`, `--use-mis`, `--custom-tis-function-path`, `--get-mismatch-metrics`",
    ),
    Metric("train/tis", "", "mean probability by the trainer, before the update, over that by the engine"),
    Metric("train/tis_clipfrac", "share", "tokens whose weight was cut by TIS"),
    Metric("train/tis_abs", "", "mean distance of `tis` from 1"),
    Metric("train/mis", "", "mean weight of MIS"),
    Metric("train/mis_clipfrac", "share", "tokens whose weight was cut or masked by MIS"),
    Metric(
        "train/mtp_loss", "", "`--enable-mtp-training`: minus log-prob of the tokens that its layers predict, a mean"
    ),
    Metric("train/opsm_clipfrac", "share", "tokens of samples that OPSM left out"),
    Metric(
        LOGPROB_DIFF,
        "nats",
        "mean difference, trainer before the update to engine, of the sampled tokens' log-probabilities; with"
        " `--use-rollout-logprobs` and without `--get-mismatch-metrics`, as the two below, of a rollout's first step"
        " alone: later weights would show what was learned",
    ),
    Metric(f"{LOGPROB_DIFF}_max", "nats", "the largest of them: a jump means that the weight sync is broken"),
    Metric(
        "train/train_rollout_kl",
        "nats",
        "divergence of the trainer's distribution from the engine's, estimated on them",
    ),
    Metric("train/grad_norm", "", "norm of the gradient before clipping"),
    Metric("train/lr-pg_{group}", "", "learning rate of a parameter group"),
    Metric("train/global_batch_size", "samples", "samples of this optimizer step, over all ranks"),
)

CRITIC = (
    Metric("critic-train/step", "", "the critic's optimizer step this row is about: the axis of `critic-train/*`"),
    Metric("critic-train/loss", "", "what is minimised: `value_loss`"),
    Metric(
        "critic-train/value_loss", "", "half the squared distance of values from returns, the clipped one if larger"
    ),
    Metric("critic-train/value_clipfrac", "share", "tokens whose value the clip held"),
    Metric("critic-train/grad_norm", "", "norm of the gradient before clipping"),
    Metric("critic-train/lr-pg_{group}", "", "learning rate of a parameter group"),
    Metric("critic-train/global_batch_size", "samples", "samples of this optimizer step, over all ranks"),
)

PERF = (
    Metric("perf/step_time", "s", "one step of the driver, everything in it"),
    Metric(
        "perf/rollout_time",
        "s",
        "generation and rewards; with `--max-weight-staleness`, where they never stop, since the batch before",
    ),
    Metric(
        "perf/ledger_time", "s", "its part for telling the ledger, and for waiting until it has taken note of the batch"
    ),
    Metric(
        "perf/buffer_samples_per_sec",
        "samples/s",
        "laid out for the training ranks and put where these find them, while the ledger is written",
    ),
    Metric("perf/train_wait_time", "s", "the trainers waited for a rollout"),
    Metric("perf/train_time", "s", "all of the training on one rollout"),
    Metric("perf/data_preprocess_time", "s", "its first part: from the batch to micro-batches of tensors"),
    Metric("perf/log_probs_time", "s", "its part for the log-probabilities before the update"),
    Metric("perf/ref_log_probs_time", "s", "its part for the reference model's log-probabilities"),
    Metric("perf/teacher_log_probs_time", "s", "its part for the teacher's log-probabilities"),
    Metric("perf/actor_train_time", "s", "its part for forward, backward and optimizer"),
    Metric("perf/values_time", "s", "the critic's values before its update"),
    Metric("perf/critic_train_time", "s", "the critic's forward, backward and optimizer"),
    Metric("perf/save_model_time", "s", "a checkpoint, an export, or both"),
    Metric("perf/update_weights_time", "s", "weights from the trainers into the engines"),
    Metric("perf/sleep_time", "s", "colocated: the engines give their memory back"),
    Metric("perf/wake_up_time", "s", "colocated: the engines take it again"),
    Metric("perf/wait_time_ratio", "share", "`train_wait_time` of it and `train_time` together"),
    Metric(
        "perf/longest_sample_tokens_per_sec",
        "tokens/s",
        "of the longest response, which sets the pace of a step: over `rollout_time`, or its own if that is more",
    ),
    Metric("perf/tokens_per_gpu_per_sec", "tokens/s", "response tokens a second of `rollout_time`, by engine device"),
    Metric("perf/effective_tokens_per_gpu_per_sec", "tokens/s", "the same, only of tokens that are trained on"),
    Metric(f"perf/non_generation_time/{STATISTIC}", "s", "of a sample: tools and other waits between generations"),
    Metric(f"perf/request/e2e_latency/{STATISTIC}", "s", "of a request, as the engine measures it"),
    Metric(f"perf/request/queue_time/{STATISTIC}", "s", "the part of it before the engine took it up"),
    Metric("perf/kv_cache_utilization", "share", "of KV cache in use, mean over busy engines and the rollout"),
    Metric("perf/engine_running_requests", "requests", "that one busy engine works on, mean over time"),
    Metric("perf/engine_waiting_requests", "requests", "that wait in the engine for it"),
    Metric(f"perf/decode/throughput/{STATISTIC}", "tokens/s", "that one busy engine decodes, as it measures itself"),
    Metric("perf/actor_train_tok_per_s", "tokens/s", "tokens trained on a second of `actor_train_time`"),
    Metric(
        "perf/{actor_train|log_probs|ref_log_probs|teacher_log_probs}_tflops",
        "TFLOP/s",
        "of one training device, in that part",
    ),
    Metric(
        "perf/actor_train_mfu",
        "share",
        "`actor_train_tflops` of what the device could do at most, by its data sheet or as measured",
    ),
    Metric("perf/update_weights_wire_bytes", "bytes", "sent by one weight update"),
)  # fmt: skip

EVAL = (
    Metric("eval/step", "", "the evaluation this row is about: rollouts trained on so far"),
    Metric("eval/{set}", "reward", "mean reward on a held-out set; an accuracy where rewards are 0 and 1"),
    Metric("eval/{set}-truncated_ratio", "share", "its responses that hit the length limit"),
    Metric("eval/{set}-reward_failures", "samples", "its samples whose reward was not had, and so is 0"),
    Metric("eval/{set}-reward_retries", "calls", "its rewards asked for again"),
    Metric("eval/{set}-pass@{k}", "share", "its prompts solved by at least one of k samples, unbiased estimate"),
    Metric(f"eval/{{set}}/response_len/{STATISTIC}", "tokens", "length of its responses"),
    Metric("eval/{set}/repetition_frac", "share", "its responses that end in a loop of the same text"),
    Metric("eval/{set}/thinking_ratio", "share", "its responses that hold a closed `<think>` part"),
)

SECTIONS = {"Rollout": ROLLOUT, "Training": TRAIN, "Critic": CRITIC, "Time and speed": PERF, "Held-out prompts": EVAL}
METRICS = tuple(metric for section in SECTIONS.values() for metric in section)


@cache
def find(name: str) -> Metric | None:
    """The entry that documents `name`: of those that match, the one that says most of it literally."""
    matching = [metric for metric in METRICS if metric.matches(name)]
    return max(matching, key=lambda metric: len(re.sub(r"\{[^}]+\}", "", metric.pattern)), default=None)


def is_ours(name: str) -> bool:
    """Whether the name is under a prefix that only slime emits to; others are for the user's own metrics."""
    return name.partition("/")[0] in PREFIXES and "/" in name


def axis(name: str) -> str:
    """The step metric that a name is plotted over."""
    match name.partition("/")[0]:
        case "train" | "critic-train" | "eval" as prefix:
            return f"{prefix}/step"
        case _:
            return "rollout/step"


def axes(names: Iterable[str]) -> tuple[str, ...]:
    """The step metrics that one row of metrics is plotted over; names of the user's own go with ours."""
    return tuple(sorted({axis(name) for name in names if is_ours(name)})) or ("rollout/step",)


def eval_set(name: str) -> str | None:
    """The held-out set whose mean reward `name` is: "col" for eval/col, None for eval/step or eval/col-pass@8."""
    metric = find(name)
    return name.removeprefix("eval/") if metric is not None and metric.pattern == "eval/{set}" else None


def document() -> str:
    """docs/metrics.md."""
    return _HEAD + "".join(
        f"\n## {title}\n\n| name | unit | meaning |\n|---|---|---|\n"
        + "".join(f"| `{_cell(m.pattern)}` | {m.unit} | {_cell(m.meaning)} |\n" for m in section)
        for title, section in SECTIONS.items()
    )


_HEAD = """\
# Metrics

What a run measures, one JSON object a line in `runs/<name>/metrics.jsonl`, and under the same names in TensorBoard
(`--use-tensorboard`) and Weights & Biases (`--use-wandb`). In a name, `{set}` stands for whatever a run fills in, and
`{mean|median|max|min}` for one of these. A row also holds `time`, seconds since 1970.

Means over tokens (`train/entropy_loss`, `rollout/advantages`, ...) are means over samples of their means, as the loss
is; those of `train/*` are over all unmasked tokens with `--calculate-per-token-loss`. A sample without a token to train
on (`remove_sample`, an empty mask) counts as 0 in the former.

A step may have several rows: one when its rollout is trained on, before the checkpoint that counts it as done, another
at its end, and rows of a run that was killed after its last checkpoint. They belong together by `rollout/step` or
`train/step`; of a name that is in several the last counts.

Names under other prefixes are yours: a hook may return any of them, and they are logged as they are. A name under one
of the prefixes below that is not in these tables is logged too, and said once.

This page is made from `slime/observe/names.py`, which says how; a test compares the two.
"""


def _part(part: str) -> str:
    return f"(?:{part})" if "|" in part else r"\d+" if part == "k" else "[^/]+"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
