"""Evaluation on held-out prompts, by the same generation and grading as the rollout."""

from __future__ import annotations

from slime.config import Config
from slime.data.sample import Status
from slime.rewards import score
from slime.rollout.generator import Generator, Job
from slime.rollout.loop import all_of
from slime.rollout.sampling import Sampling
from slime.rollout.types import RolloutFnEvalOutput, flatten


def evaluate(generator: Generator, args: Config, rollout_id: int) -> RolloutFnEvalOutput:
    """All held-out sets at once, each with its own number of samples, sampling, grader and reward key."""
    jobs = {}
    for prompts in generator.eval_prompts:
        one = prompts.eval_set
        own = args if one.reward_key == args.eval_reward_key else args.replace(eval_reward_key=one.reward_key)
        if one.rm_type is not None:  # which its samples ask for; that of the run would be asked before them
            own = own.replace(custom_rm_path=None, group_rm=False)
        jobs[one.name] = Job(own, Sampling.for_eval(own, one), rollout_id, evaluation=True)
    groups = [prompts.groups() for prompts in generator.eval_prompts]
    sets = generator.run(
        all_of(generator.generate(of_set, job) for of_set, job in zip(groups, jobs.values(), strict=True))
    )

    data = {}
    for (name, job), finished in zip(jobs.items(), sets, strict=True):
        samples = flatten(finished)
        data[name] = {
            "rewards": [score(sample.name, sample.reward, job.args.eval_reward_key) for sample in samples],
            "truncated": [sample.status == Status.TRUNCATED for sample in samples],
            "samples": samples,
        }
    return RolloutFnEvalOutput(data)
