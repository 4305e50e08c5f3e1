"""Prompt files, and how prompts add up to optimizer steps."""

from __future__ import annotations

from slime.config.section import (
    Count,
    FrozenDict,
    Hook,
    Json,
    Paths,
    Positives,
    Section,
    Seed,
    Tokens,
    option,
    required,
)


class Data(Section):
    """Data

    Prompt files are JSON lines or Parquet; `file@[a:b]` takes a slice of the lines.
    """

    prompt_data: Paths = option((), "Prompt files; together they are one set, unless --prompt-data-weights.")
    prompt_data_weights: Positives = option(
        (),
        "One number a prompt file: prompts are drawn from the files in this proportion, each file epoch after epoch"
        " by itself.",
    )
    disable_rollout_global_dataset: bool = option(
        False,
        "No prompt files: samples are handed out with empty prompts, for a function of --rollout-function-path or"
        " --custom-generate-function-path that finds its own.",
    )
    data_source_path: Hook | None = option(
        None, "Class with get_samples, add_samples, save and load that replaces the prompt files."
    )
    input_key: str = option("input", "Key of the prompt in a line: a text, or messages for the chat template.")
    label_key: str | None = option(None, "Key of the label that the reward compares with.")
    metadata_key: str = option("metadata", "Key of a dict that is handed on to hooks and rewards.")
    tool_key: str = option("tools", "Key of the tool definitions for the chat template.")
    apply_chat_template: bool = option(
        False, "Render prompts by the tokenizer's chat template; a text becomes a user message."
    )
    apply_chat_template_kwargs: Json = option(
        FrozenDict(), "Further arguments of the chat template, e.g. '{\"enable_thinking\": false}'."
    )
    skip_malformed_prompts: bool = option(False, "Leave out lines that are not JSON, and count them.")
    rollout_shuffle: bool = option(False, "Shuffle the prompts, anew in each epoch.")
    rollout_seed: Seed = option(42, "Seed of the shuffling and of sampling.")


class Batches(Section):
    """Batches

    prompts x samples of a rollout = optimizer steps x global batch.
    """

    num_rollout: Count | None = option(
        None, "Rollouts of the run; each is generated, trained on and synced.", derived="--num-epoch"
    )
    num_epoch: Count | None = option(
        None, "Passes over the prompts, instead of --num-rollout, which decides where both are given."
    )
    rollout_batch_size: Count = required("Prompts of one rollout.")
    n_samples_per_prompt: Count = option(1, "Responses sampled for each prompt: the group that GRPO compares.")
    global_batch_size: Count | None = option(
        None, "Samples of one optimizer step.", derived="prompts x samples / --num-steps-per-rollout"
    )
    num_steps_per_rollout: Count | None = option(
        None, "Optimizer steps on each rollout.", derived="prompts x samples / --global-batch-size, or 1"
    )
    micro_batch_size: Count = option(1, "Samples of one forward pass of a rank, unless --use-dynamic-batch-size.")
    use_dynamic_batch_size: bool = option(
        False, "Pack samples into micro-batches by their tokens instead of by their number; needs --max-tokens-per-gpu."
    )
    max_tokens_per_gpu: Tokens | None = option(
        None, "Tokens of one packed micro-batch on one device. A longer sample is alone in its micro-batch."
    )
    log_probs_max_tokens_per_gpu: Tokens | None = option(
        None,
        "The same for the passes that only compute log-probs, which have no gradients to keep memory for.",
        derived="--max-tokens-per-gpu",
    )
    balance_data: bool = option(
        False, "Divide samples among data-parallel ranks by tokens, so that none waits for another."
    )
    balance_by_flops: bool = option(
        False,
        "Divide them by floating-point operations instead, to which long samples add more than their tokens say;"
        " implies --balance-data.",
    )
