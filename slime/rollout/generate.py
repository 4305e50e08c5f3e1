"""The default rollout function, --rollout-function-path."""

from __future__ import annotations

from slime.config import Config
from slime.config.hooks import load_hook
from slime.data.buffer import Journal
from slime.data.source import DataSource
from slime.rollout.collect import Collector
from slime.rollout.evaluate import evaluate
from slime.rollout.generator import Generator, Job
from slime.rollout.hooks import keeping_numbers
from slime.rollout.sampling import Sampling
from slime.rollout.stream import Stream
from slime.rollout.types import RolloutFnEvalOutput, RolloutFnTrainOutput, flatten


def generate_rollout(
    args: Config, rollout_id: int, data_source: DataSource, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """Collects --rollout-batch-size groups, or with `evaluation` samples all held-out sets, by this process's
    Generator. With --max-weight-staleness it takes them out of what is generated all the time.

    The sample filter gets all samples of the batch in one list; the function for all samples gets all finished groups,
    those that the dynamic filter dropped, too.
    """
    generator = Generator.current()
    if evaluation:
        return evaluate(generator, args, rollout_id)
    journal = data_source if isinstance(data_source, Journal) else None
    job = Job(args, Sampling.for_rollout(args), rollout_id, journal=journal)
    if args.max_weight_staleness is None:
        generator.collector = Collector(generator, job, data_source)
        collected = generator.run(generator.collector.collect())
    else:
        generator.stream = generator.stream or Stream(generator, job, data_source)
        collected = generator.run(generator.stream.take(rollout_id, generator.weight_version))
    sample_filter = load_hook("--rollout-sample-filter-path", args.rollout_sample_filter_path)
    if sample_filter is not None:
        samples = flatten(collected.batch)
        with keeping_numbers(samples, sample_filter):
            sample_filter(args, samples)
    process = load_hook("--rollout-all-samples-process-path", args.rollout_all_samples_process_path)
    if process is not None:
        with keeping_numbers(flatten(collected.finished), process):
            process(args, collected.finished, data_source)
    return RolloutFnTrainOutput(collected.batch, collected.metrics())
