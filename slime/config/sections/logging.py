"""Trackers, and switches for looking into a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from slime.config.section import Count, Counts, Index, Path, Section, Unit, option


class Logging(Section):
    """Logging

    metrics.jsonl in the run directory is always written.
    """

    use_wandb: bool = option(False, "Send metrics to Weights & Biases.")
    wandb_mode: Literal["online", "offline", "disabled"] | None = option(
        None, "offline writes into --wandb-dir for a later `wandb sync`.", derived="WANDB_MODE, or online"
    )
    wandb_dir: Path | None = option(None, "Directory of wandb's files.", derived="the run directory")
    wandb_key: str | None = option(
        None,
        "API key; better left to the environment.",
        derived="WANDB_API_KEY, or the login on this machine",
        secret=True,
    )
    wandb_host: str | None = option(None, "Server, where it is not the public one.")
    wandb_team: str | None = option(None, "Entity that owns the project.")
    wandb_project: str | None = option(None, "Project that the run is shown in.", derived="slime")
    wandb_group: str | None = option(None, "Group of runs that belong together.")
    wandb_run_id: str | None = option(None, "Id of a run to continue.")
    disable_wandb_random_suffix: bool = option(False, "Do not append a random suffix to the group.")
    wandb_always_use_train_step: bool = option(False, "Plot all metrics over optimizer steps instead of over rollouts.")
    use_tensorboard: bool = option(False, "Write TensorBoard files.")
    tb_project_name: str | None = option(None, "Directory of the TensorBoard files.", derived="the run directory")
    tb_experiment_name: str | None = option(None, "Sub-directory of this run.")
    log_multi_turn: bool = option(
        False, "multi_turn/*: lengths of responses with and without what tools said; multi_turn_metric/*: turns."
    )
    log_passrate: bool = option(
        False, "passrate/pass@k of the prompts of each rollout, as of eval sets; see --pass-at-k."
    )
    pass_at_k: Counts = option(
        (),
        "The k of pass@k: the chance that of k samples of a prompt one at least is solved. Sets with fewer samples a"
        " prompt leave it out. Unset: 1, 2, 4 ... up to the number of samples.",
    )
    solved_above: float = option(
        0.5, "A sample is solved when its reward is above this: 1 of 0 and 1, 1 of -1 and 1, more than half of an F1."
    )
    log_correct_samples: bool = option(
        False,
        "rollout/correct_*, rollout/incorrect_*: solved responses, and all others: how many, how long.",
    )
    log_reward_category: str | None = option(
        None, "rollout/error_cat/*: share of the samples by this key of the reward, which is a dict."
    )


class Debug(Section):
    """Debug"""

    custom_config_path: Path | None = option(
        None, "YAML file whose keys become attributes of `args` for functions of yours; none may be an option's name."
    )
    dump_details: Path | None = option(
        None,
        "Directory for all that can be recorded of a run: sets --save-debug-rollout-data and --save-debug-train-data to"
        " files in it.",
    )
    profile_target: Literal["train_overall", "train_actor", "train_log_probs"] | None = option(
        None,
        "Trace by torch.profiler, in profiles/ of the run's directory: all of a rollout's training, its steps,"
        " or the passes that compute log-probs before.",
    )
    profile_step_start: Index = option(10, "First rollout that is traced.")
    profile_step_end: Index = option(12, "First rollout after it that is no longer traced.")
    record_memory_history: bool = option(False, "Record what allocates memory in the training processes.")
    memory_recorder: Literal["torch", "memray"] = option(
        "torch", "torch: memory of the GPU. memray: of the host; needs that package."
    )
    memory_snapshot_dir: Path | None = option(
        None, "Directory of the recordings, one file a rank.", derived="memory/ in the run's directory"
    )
    memory_snapshot_num_steps: Count | None = option(
        None, "Rollouts after which it is written and ends. Unset: at the end of the run."
    )
    debug_rollout_only: bool = option(False, "Generate and grade, but do not train.")
    debug_train_only: bool = option(
        False, "Start no engines, and don't evaluate.", derived="true with --load-debug-rollout-data"
    )
    save_debug_rollout_data: str | None = option(
        None, "Path template for recordings, e.g. 'out/{rollout_id}.jsonl': all samples of each rollout, graded."
    )
    load_debug_rollout_data: str | None = option(
        None, "Path template of recordings to train on in place of generating; losses are the same to the last bit."
    )
    load_debug_rollout_data_subsample: Annotated[float, Field(gt=0, le=1), Unit("0..1")] | None = option(
        None, "Share of a recording's groups to train on, from its beginning."
    )
    save_debug_train_data: str | None = option(
        None,
        "Path template for what each rank trained on, e.g. 'out/{rollout_id}-{rank}.npz': tokens, masks, log-probs,"
        " advantages.",
    )
