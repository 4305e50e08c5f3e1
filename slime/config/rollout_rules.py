"""Rules between the options of generation."""

from __future__ import annotations

from collections.abc import Iterator

from slime.config.config import Config
from slime.config.derive import ROLLOUT_FUNCTIONS
from slime.config.errors import Problem
from slime.config.rules import Rules

ROLLOUT = Rules()
reads = ROLLOUT.reads

OURS = ROLLOUT_FUNCTIONS["policy_loss"]
STD_FILTER = "check_reward_nonzero_std"


@reads("over_sampling_batch_size", "rollout_batch_size")
def _asks_for_a_whole_batch(c: Config) -> Iterator[Problem]:
    if c.over_sampling_batch_size < c.rollout_batch_size:
        yield Problem(
            "--over-sampling-batch-size",
            f"{c.over_sampling_batch_size} prompts are less than --rollout-batch-size {c.rollout_batch_size}",
            "give as many or more: what is too much is aborted when the batch is full",
        )


@reads("dynamic_sampling_filter_path", "n_samples_per_prompt", "custom_generate_function_path")
def _deviation_is_of_several(c: Config) -> Iterator[Problem]:
    path = c.dynamic_sampling_filter_path or ""
    alone = c.n_samples_per_prompt == 1 and c.custom_generate_function_path is None
    if alone and path.rpartition(".")[2] == STD_FILTER:
        yield Problem(
            "--dynamic-sampling-filter-path",
            f"{STD_FILTER} would drop every group: with --n-samples-per-prompt 1 its only reward is equal to itself",
            "give at least 2 samples a prompt, or leave the filter out",
        )


@reads(
    "over_sampling_batch_size", "rollout_batch_size", "dynamic_sampling_filter_path", "partial_rollout",
    "mask_offpolicy_in_partial_rollout", "rollout_function_path", "max_weight_staleness",
)  # fmt: skip
def _partial_rollouts_come_about(c: Config) -> Iterator[Problem]:
    if c.mask_offpolicy_in_partial_rollout and not c.partial_rollout:
        yield Problem("--mask-offpolicy-in-partial-rollout", "there are no partial rollouts", "add --partial-rollout")
    in_turns = c.max_weight_staleness is None  # else what a run in turns has put back may still be generated on
    if c.partial_rollout and in_turns and not c.aborts_generation and c.rollout_function_path == OURS:
        yield Problem(
            "--partial-rollout",
            "nothing would ever be aborted: as many prompts are asked for as are needed",
            f"add --over-sampling-batch-size N, more than {c.rollout_batch_size}, or a --dynamic-sampling-filter-path",
        )


@reads(
    "disable_rollout_global_dataset", "prompt_data", "data_source_path", "rollout_function_path",
    "custom_generate_function_path", "num_rollout",
)  # fmt: skip
def _empty_prompts_are_filled(c: Config) -> Iterator[Problem]:
    if not c.disable_rollout_global_dataset:
        return
    option = "--disable-rollout-global-dataset"
    if c.prompt_data or c.data_source_path is not None:
        where = "--prompt-data" if c.prompt_data else "--data-source-path"
        yield Problem(f"{option}, {where}", "exclude each other: without prompts, or with these?", "leave one out")
    if c.rollout_function_path in ROLLOUT_FUNCTIONS.values() and c.custom_generate_function_path is None:
        fix = "give --custom-generate-function-path or --rollout-function-path"
        yield Problem(option, "leaves every prompt empty, and nothing fills them", fix)
    if c.num_rollout is None:
        yield Problem(option, "leaves no prompts to count, so --num-epoch says nothing", "give --num-rollout N")


@reads("rollout_stop")
def _stops_are_texts(c: Config) -> Iterator[Problem]:
    for stop in c.rollout_stop:
        if not stop:
            yield Problem("--rollout-stop", "an empty text is in every response", "leave it out")
        elif any("\ud800" <= character <= "\udfff" for character in stop):
            yield Problem("--rollout-stop", f"{stop!r} holds half of a surrogate pair", "write the whole character")


@reads("buffer_filter_path", "data_source_path")
def _buffer_is_ours(c: Config) -> Iterator[Problem]:
    if c.buffer_filter_path is not None and c.data_source_path is not None:
        yield Problem(
            "--buffer-filter-path",
            "is for the buffer of the prompt files: --data-source-path chooses itself what it hands out again",
            "leave one out",
        )
