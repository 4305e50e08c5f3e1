"""What a run saves, and what it starts from."""

from __future__ import annotations

from slime.config.section import Count, Index, Path, Section, option


class Checkpoints(Section):
    """Checkpoints

    --load DIR --save DIR --save-interval N, the same directory twice, makes a run that can be killed and started again;
    see docs/checkpoints.md.
    """

    save: Path | None = option(
        None,
        "Directory of checkpoints, from which a run can be resumed exactly; written every --save-interval rollouts and"
        " at the end.",
    )
    save_interval: Count | None = option(
        None, "Rollouts between two checkpoints, and between two exports. Unset: only at the end."
    )
    save_hf: str | None = option(
        None,
        "Path template for exports in Hugging Face format, e.g. 'out/step-{rollout_id}'; written when a checkpoint"
        " would be.",
    )
    save_keep: Count | None = option(None, "How many of the newest checkpoints are kept. Unset: all.")
    async_save: bool = option(
        False, "Write checkpoints while training goes on, from a copy in host memory. The last one is waited for."
    )
    no_save_optim: bool = option(False, "Leave the optimizer out of checkpoints; they then don't resume exactly.")
    critic_save: Path | None = option(None, "Directory of the critic's checkpoints.", derived="<save>/critic")
    load: Path | None = option(
        None, "Directory of checkpoints to start from: what the run that wrote them would do next is done."
    )
    critic_load: Path | None = option(
        None,
        "What the critic starts from: a directory of its checkpoints, of which the newest is taken that --load has as"
        " well, or a Hugging Face model, a reward model say, unless there are checkpoints in <load>/critic.",
        derived="<load>/critic, but with --finetune; without --load the critic starts from --hf-checkpoint",
    )
    ckpt_step: Index | None = option(None, "The rollout whose checkpoint of --load is taken.", derived="the latest")
    allow_fresh_start: bool = option(
        False,
        "Start from --hf-checkpoint while --load has no checkpoint, instead of refusing. --ref-load allows it as well.",
    )
    no_load_optim: bool = option(False, "Leave the optimizer and the learning rate's progress as at a fresh start.")
    no_load_rng: bool = option(False, "Leave the random states as at a fresh start.")
    finetune: bool = option(False, "Take only the weights of --load, and count rollouts from 0.")
    start_rollout_id: Index | None = option(
        None, "First rollout of this run, and with it the position in the data.", derived="the one after --load's, or 0"
    )
