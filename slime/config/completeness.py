"""What a run must be told before it can start: options whose defaults nobody could guess."""

from __future__ import annotations

from collections.abc import Iterator

from slime.config.config import Config
from slime.config.derive import ROLLOUT_FUNCTIONS
from slime.config.errors import Problem
from slime.config.rules import Rules

COMPLETENESS = Rules()
reads = COMPLETENESS.reads


def _rollout_is_ours(c: Config) -> bool:
    return c.rollout_function_path in ROLLOUT_FUNCTIONS.values()


def _samples_by_us(c: Config) -> bool:
    return c.loss_type != "sft_loss" and _rollout_is_ours(c)


@reads("num_rollout", "num_epoch")
def _length_of_the_run(c: Config) -> Iterator[Problem]:
    if c.num_rollout is None and c.num_epoch is None:
        yield Problem("--num-rollout", "is missing: how long is the run?", "give --num-rollout N or --num-epoch N")


@reads("prompt_data", "data_source_path", "rollout_function_path", "disable_rollout_global_dataset")
def _prompts(c: Config) -> Iterator[Problem]:
    has_source = c.prompt_data or c.data_source_path is not None or c.disable_rollout_global_dataset
    if not has_source and _rollout_is_ours(c):
        yield Problem(
            "--prompt-data", "is missing: there is nothing to train on", "name a prompt file, .jsonl or .parquet"
        )


@reads("rollout_num_gpus", "colocate", "loss_type", "debug_train_only", "rollout_external_engine_addrs")
def _engines(c: Config) -> Iterator[Problem]:
    if c.has_engines and not c.rollout_num_gpus and not c.rollout_external_engine_addrs:
        what = "is missing: how many devices generate?" if c.rollout_num_gpus is None else "is 0, so nothing generates"
        fix = "leave it out to generate on all devices that train"
        if not c.colocate:
            fix = "give a number of further devices, or --colocate to generate on those that train"
        yield Problem("--rollout-num-gpus", what, fix)


@reads("rm_type", "custom_rm_path", "custom_generate_function_path", "rollout_function_path", "loss_type")
def _reward(c: Config) -> Iterator[Problem]:
    if _samples_by_us(c) and not (c.rm_type or c.custom_rm_path or c.custom_generate_function_path):
        yield Problem(
            "--rm-type", "is missing: nothing would grade the responses", "give --rm-type or --custom-rm-path"
        )


@reads("rollout_max_response_len", "rollout_max_context_len", "rollout_function_path", "loss_type")
def _response_length(c: Config) -> Iterator[Problem]:
    if _samples_by_us(c) and c.rollout_max_response_len is None and c.rollout_max_context_len is None:
        yield Problem(
            "--rollout-max-response-len",
            "is missing: SGLang would cut every response at 128 tokens",
            "give --rollout-max-response-len N or --rollout-max-context-len N",
        )


@reads(
    "n_samples_per_prompt", "disable_rewards_normalization", "advantage_estimator", "debug_rollout_only",
    "rollout_function_path", "loss_type",
)  # fmt: skip
def _group(c: Config) -> Iterator[Problem]:
    compared = c.advantage_estimator not in ("reinforce_plus_plus", "ppo") and not c.disable_rewards_normalization
    compared = compared and not (c.custom_reward_post_process_path or c.debug_rollout_only)
    if _samples_by_us(c) and c.n_samples_per_prompt == 1 and compared:
        yield Problem(
            "--n-samples-per-prompt",
            f"1 leaves {c.advantage_estimator} nothing to compare: every advantage would be 0",
            "give at least 2, or take rewards as they are: --disable-rewards-normalization",
        )
