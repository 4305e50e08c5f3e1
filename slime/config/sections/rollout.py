"""Generation, grading and evaluation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from slime.config.section import (
    Count,
    Deadline,
    FrozenDict,
    Hook,
    Index,
    Integers,
    Json,
    Path,
    Paths,
    Positive,
    Section,
    Strings,
    Tokens,
    TopK,
    Unit,
    option,
)

TopP = Annotated[float, Field(gt=0, le=1), Unit("0..1")]

RmType = Literal[
    "exact_match", "math", "deepscaler", "dapo", "gpqa", "f1", "em", "ifbench", "code",
    "remote_rm", "reward_model", "judge", "random",
    "boxed_math", "boxed_deepscaler", "boxed_dapo", "boxed_gpqa", "boxed_f1", "boxed_em", "boxed_ifbench",
    "boxed_remote_rm",
]  # fmt: skip


class Rollout(Section):
    """Rollout and sampling"""

    rollout_temperature: Positive = option(1.0, "Sampling temperature.")
    rollout_top_p: TopP = option(1.0, "Sample from the smallest set of tokens with this much probability.")
    rollout_top_k: TopK = option(-1, "Sample from this many of the most probable tokens; -1: from all.")
    rollout_max_response_len: Tokens | None = option(
        None, "Longest response; a longer one is cut and counts as truncated."
    )
    rollout_max_prompt_len: Tokens | None = option(
        None, "Longer prompts are left out, and counted.", derived="--rollout-max-context-len less one token"
    )
    rollout_max_context_len: Tokens | None = option(None, "Longest prompt and response together.")
    rollout_stop: Strings = option((), "Texts that end a response.")
    rollout_stop_token_ids: Integers = option((), "Token ids that end a response.")
    rollout_skip_special_tokens: bool = option(
        False, "Leave special tokens out of the response text (not of its tokens)."
    )
    rollout_function_path: Hook | None = option(
        None,
        "generate_rollout(args, rollout_id, data_source, evaluation=False): replaces the whole rollout.",
        derived="slime.rollout.generate.generate_rollout, or slime.rollout.sft.generate_rollout with sft_loss",
    )
    over_sampling_batch_size: Count | None = option(
        None,
        "Prompts asked for at a time until --rollout-batch-size groups are finished; what is still generated then is"
        " aborted.",
        derived="--rollout-batch-size",
    )
    dynamic_sampling_filter_path: Hook | None = option(
        None,
        "dynamic_filter(args, samples) -> DynamicFilterOutput(keep, reason) or bool: which finished groups are"
        " trained on; others are sampled in place of the rest. slime.rollout.filters.check_reward_nonzero_std is"
        " DAPO's.",
    )
    partial_rollout: bool = option(
        False, "What is aborted goes back into the buffer and is generated on in the next rollout; else it is dropped."
    )
    mask_offpolicy_in_partial_rollout: bool = option(
        False, "Do not train on the tokens that a continued sample has from earlier rollouts."
    )
    buffer_filter_path: Hook | None = option(
        None,
        "buffer_filter(args, rollout_id, buffer, num_samples) -> groups: takes out of the list of groups that were"
        " put back those to hand out next; rollout_id is None, for that is decided later.",
    )
    custom_generate_function_path: Hook | None = option(
        None, "async generate(args, sample, sampling_params[, evaluation]): replaces the generation of one sample."
    )
    rollout_sample_hook_path: Hook | None = option(
        None, "sample_hook(args, sample, *, rollout_id, evaluation): sees each finished sample and may replace it."
    )
    rollout_sample_filter_path: Hook | None = option(
        None, "sample_filter(args, samples): sets sample.remove_sample on those that training is to leave out."
    )
    rollout_all_samples_process_path: Hook | None = option(
        None, "all_samples_process(args, all_samples, data_source): sees all samples of a rollout."
    )
    custom_convert_samples_to_train_data_path: Hook | None = option(
        None, "convert_samples(args, samples) -> dict: replaces the conversion of samples into training data."
    )
    rollout_data_postprocess_path: Hook | None = option(
        None,
        "postprocess(args, rollout_id, rollout_data): a last look at a rollout on its way to training, with all"
        " log-probs and advantages; may narrow rollout_data['loss_masks'].",
    )
    custom_rollout_log_function_path: Hook | None = option(
        None, "log_rollout(rollout_id, args, samples, extra_metrics, rollout_time) -> bool: true replaces the metrics."
    )
    custom_eval_rollout_log_function_path: Hook | None = option(
        None, "log_eval(rollout_id, args, data, extra_metrics) -> bool: true replaces the eval metrics."
    )


class Reward(Section):
    """Reward"""

    rm_type: RmType | None = option(
        None,
        "Built-in grader, docs/rewards.md says what each takes for right. boxed_ before one: only what the last"
        " \\boxed{} holds is graded. random: 0 or 1, by chance.",
    )
    rm_url: str | None = option(
        None, "Where the reward service of --rm-type remote_rm, reward_model or judge is: http://host:port."
    )
    http_proxy: str | None = option(
        None, "Proxy through which --rm-url is asked: http://host:port. Unset: none, whatever the environment says."
    )
    rm_model: str | None = option(
        None, "Name of a model of --sglang-config that serves as --rm-type reward_model or judge, instead of --rm-url."
    )
    rm_judge_model: str = option("default", "Name that --rm-type judge asks for at --rm-url.")
    rm_judge_params: Json = option(
        FrozenDict(),
        'Further fields of the request to the judge, e.g. \'{"max_tokens": 256, "temperature": 0.6}\'; SGLang takes a'
        ' "regex" that the answer obeys.',
    )
    rm_judge_prompt: Path | None = option(
        None,
        "File of the question put to the judge, with {prompt}, {response} and {label} in it. Unset: a built-in one.",
    )
    custom_rm_path: Hook | None = option(None, "async reward(args, sample) -> float | dict: replaces --rm-type.")
    rm_timeout: Deadline = option(300.0, "Longest that one reward by --custom-rm-path or --rm-url may take.")
    rm_retries: Index = option(0, "How often a reward is asked for again when its function raised or took too long.")
    rm_failure_policy: Literal["stop", "zero", "drop"] = option(
        "stop",
        "When a reward is not had after all tries: stop the run, take it as 0, or drop the sample from training and"
        " from its group's mean. Counted in rollout/reward_failures.",
    )
    group_rm: bool = option(False, "Give --custom-rm-path all samples of a prompt at once; it returns a list.")
    reward_key: str | None = option(None, "Key of the reward to train on, where the reward is a dict.")
    eval_reward_key: str | None = option(None, "The same for eval.", derived="--reward-key")
    custom_reward_post_process_path: Hook | None = option(
        None, "post_process(args, samples) -> (raw_rewards, rewards): replaces the normalisation of rewards."
    )


class Eval(Section):
    """Eval

    Held-out prompts, sampled every --eval-interval rollouts and before the first. Unset options are as in rollout.
    """

    eval_interval: Count | None = option(None, "Rollouts between two evals. Unset: no eval.")
    eval_prompt_data: Paths = option(
        (), "Data sets, as pairs of name and path: --eval-prompt-data gsm gsm.jsonl aime aime.parquet."
    )
    eval_config: Path | None = option(
        None, "YAML of data sets with options of their own: {defaults: {...}, datasets: [{name: ..., path: ...}]}."
    )
    skip_eval_before_train: bool = option(False, "No eval before the first rollout.")
    eval_function_path: Hook | None = option(
        None, "Replaces the evaluation; same signature as the rollout function.", derived="--rollout-function-path"
    )
    n_samples_per_eval_prompt: Count = option(1, "Responses for each eval prompt; more than one gives pass@k.")
    eval_input_key: str | None = option(None, "Key of the prompt.", derived="--input-key")
    eval_label_key: str | None = option(None, "Key of the label.", derived="--label-key")
    eval_tool_key: str | None = option(None, "Key of the tools.", derived="--tool-key")
    eval_temperature: Annotated[float, Field(ge=0), Unit("X")] | None = option(
        None, "Sampling temperature; 0 is greedy.", derived="--rollout-temperature"
    )
    eval_top_p: TopP | None = option(None, "As --rollout-top-p.", derived="--rollout-top-p")
    eval_top_k: TopK | None = option(None, "As --rollout-top-k.", derived="--rollout-top-k")
    eval_max_response_len: Tokens | None = option(None, "Longest response.", derived="--rollout-max-response-len")
    eval_max_prompt_len: Tokens | None = option(None, "Longest prompt.", derived="--rollout-max-prompt-len")
    eval_max_context_len: Tokens | None = option(
        None,
        "Longest prompt and response. The engines' context is the longest of rollouts and evals, or the model's own.",
        derived="--rollout-max-context-len",
    )
    eval_min_new_tokens: Tokens | None = option(None, "Shortest response.")

    @property
    def datasets(self) -> dict[str, str]:
        """Name -> path of each eval data set."""
        return dict(zip(self.eval_prompt_data[::2], self.eval_prompt_data[1::2], strict=True))
