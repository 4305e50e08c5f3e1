"""slime: rollout, reward, update, weight sync.

The whole algorithm is the loop of `train`. What it passes around are references: samples and weights go from process to
process and never come by here. With --async-depth 1 the next rollout is generated while this one is trained on. With
--max-weight-staleness generation never stops: a rollout is what is finished when it is asked for. Nothing else changes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from slime.command import OutputLost  # first: from here on Ctrl+C ends in one line
from slime.config import Config, from_command_line
from slime.data.inspect import unusable_data
from slime.inference import context
from slime.inference.commands import command_lines
from slime.models.parameters import unmatched_patterns
from slime.models.registry import untrainable
from slime.observe import Console, Recorder, RunDir, RunDirError, TrackerError, make_trackers, print_summary
from slime.observe.run_dir import unusable_run_dir

if TYPE_CHECKING:
    from slime.cluster.evaluation import Evaluation
    from slime.cluster.job import Job


def train(config: Config, job: Job, evaluation: Evaluation, recorder: Recorder) -> None:
    job.turns.to_inference()
    evaluation.begin_first(job.first_rollout)
    ahead = None

    for rollout_id in range(job.first_rollout, config.num_rollout):
        last = rollout_id + 1 == config.num_rollout
        with recorder.step(rollout_id) as step:
            with step.clock("train_wait"):
                batches, metrics = job.wait_rollout(ahead or job.generate(rollout_id))
            step.add(metrics)
            ahead = job.generate(rollout_id + 1) if config.async_depth and not last else None

            if not config.debug_rollout_only:
                step.add(job.turns.to_training())
                with step.clock("train"):
                    step.add(*job.train(rollout_id, batches))
                if config.saves_after(rollout_id):
                    step.write()  # before a checkpoint counts it as done
                    with step.clock("save_model"):
                        job.save(rollout_id)

                if config.updates_weights_after(rollout_id):
                    if ahead:  # weights don't change under a generation that is one step ahead,
                        with step.clock("train_wait"):
                            job.wait_rollout(ahead)
                    evaluation.end()  # nor under an evaluation
                    step.add(job.turns.to_inference())

        evaluation.begin(rollout_id + 1)
    evaluation.end()


def main() -> None:
    look_inside = (untrainable, unmatched_patterns, unusable_data, context.too_short, unusable_run_dir)
    config = from_command_line(look_inside=look_inside, commands=command_lines, context=context.described)
    # Ray takes a second to import, which --help, --check and a misspelled option need not wait for.
    from slime.cluster.evaluation import Evaluation
    from slime.cluster.job import Job
    from slime.cluster.local_ray import RayStartError
    from slime.cluster.placement import PlacementError
    from slime.cluster.session import Session
    from slime.cluster.wait import ActorFailed, Stalled

    console = Console()
    try:
        with RunDir.create(config.run_dir, resume=config.load is not None) as run:
            run.save_config(config)
            trackers = make_trackers(config, run, console.phase)
            with Recorder(run, console, trackers) as recorder, Session(config) as session:
                with Job(config, session, console) as job:
                    run.point_latest()
                    train(job.config, job, Evaluation(job, recorder), recorder)
            print_summary(run)
    except OutputLost:
        print("slime: its output is lost; whatever this run had started has ended", file=sys.stderr)
        raise
    except RunDirError as error:
        sys.exit(f"slime: {error}")
    except (ActorFailed, Stalled, PlacementError, RayStartError, TrackerError) as error:
        sys.exit(f"slime: {error}\nslime: the logs of this run are in {run.logs}")


if __name__ == "__main__":
    main()
