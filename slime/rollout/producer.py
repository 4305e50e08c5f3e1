"""Producer: the rollout half of a run, in one process: from the data source to batches and metrics. No Ray in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Self

from slime.config import Config
from slime.config.hooks import load_hook
from slime.data.batch import Batch
from slime.data.buffer import Journal
from slime.data.outcome import outcomes
from slime.data.recording import write_rollout
from slime.data.sample import Sample
from slime.data.source import DataSource, PromptSource
from slime.data.users_source import open_users_source
from slime.inference.control import EngineControl
from slime.rollout.convert import Scratch, assemble, columns, removed_because
from slime.rollout.engine_load import EngineLoad
from slime.rollout.generator import Generator
from slime.rollout.metrics import demonstration_metrics, eval_metrics, further_metrics, rollout_metrics
from slime.rollout.replay import NoPrompts
from slime.rollout.scores import rewards_for_training
from slime.rollout.types import (
    Group,
    RolloutError,
    RolloutFnEvalOutput,
    RolloutFnTrainOutput,
    check_eval,
    check_groups,
    flatten,
    number_groups,
)


def open_source(config: Config) -> DataSource:
    """Of --data-source-path, else the prompts of --prompt-data. Raises DataError for prompts, or a source, that are not
    sound."""
    if config.load_debug_rollout_data is not None:
        return NoPrompts()
    make = load_hook("--data-source-path", config.data_source_path)
    return PromptSource.from_config(config) if make is None else open_users_source(make, config)


class Producer:
    """Owns the Generator. Rollouts are made one at a time; an evaluation may go on beside them."""

    def __init__(
        self,
        config: Config,
        source: DataSource,
        token: str | None = None,
        engines: Sequence[EngineControl] = (),
        deliver: Callable[[Batch], Any] | None = None,
    ) -> None:
        """`config` says where the router is, `token` is what it asks for, `engines` are those behind it; supervised
        training and replays need none of them. `deliver` copies a batch to where training finds it; what it returns
        takes the batch's place, whose memory is used again."""
        self.config = config
        self.source = source
        self._rollout = load_hook("--rollout-function-path", config.rollout_function_path)
        self._evaluate = load_hook("--eval-function-path", config.eval_function_path)
        self._generator = Generator(config, token, engines) if config.has_engines else None
        if self._generator is not None:  # its connections belong to its loop
            self._rollout, self._evaluate = (
                replace(hook, run=self._generator.run) for hook in (self._rollout, self._evaluate)
            )
        self._deliver = deliver
        self._scratch = None if deliver is None else Scratch()
        self._taken_at: float | None = None  # when the last rollout was, if what is in the next is made since then
        self._num_gpus = sum(engine.num_devices for engine in engines)

    def rollout(self, rollout_id: int, *, dp_size: int, weight_version: int = 0) -> tuple[list[Any], dict[str, Any]]:
        """Makes one rollout: a batch for each of `dp_size` ranks, delivered, and the metrics. 0: nobody trains on it.
        `weight_version` is that of the weights which the engines have."""
        start = time.perf_counter() if self._taken_at is None else self._taken_at
        if self._generator is not None:
            self._generator.weight_version = weight_version
        with EngineLoad(lambda: self._generator.engines if self._generator is not None else ()) as load:
            output = self._rollout(self.config, rollout_id, self.source)
        if not isinstance(output, RolloutFnTrainOutput):  # older functions return bare groups
            output = RolloutFnTrainOutput(output)
        check_groups(output.samples, self.config.rollout_function_path)
        number_groups(output.samples)
        taken_at = time.perf_counter()
        seconds = taken_at - start
        if self.config.max_weight_staleness is not None:
            self._taken_at = taken_at

        if self.config.save_debug_rollout_data is not None:
            write_rollout(self.config.save_debug_rollout_data.format(rollout_id=rollout_id), output.samples)
        samples, extra = flatten(output.samples), load.metrics() | dict(output.metrics or {})
        raw_N, rewards_N = rewards_for_training(self.config, samples)
        data = columns(self.config, samples, raw_N, rewards_N) if dp_size else None
        journal = self.source if isinstance(self.source, Journal) else None
        if journal is not None:
            graded = self.config.loss_type != "sft_loss"  # the rewards of demonstrations say nothing
            batch = [(sample, float(raw) if graded else None) for sample, raw in zip(samples, raw_N, strict=True)]
            journal.batched(rollout_id, outcomes(batch, removed_because(samples, data)))
        began = time.perf_counter()
        batches = [] if data is None else self._batches(data, dp_size)  # while that is noted
        handed_over_in = time.perf_counter() - began
        if journal is not None:
            extra |= journal.noted()

        log = load_hook("--custom-rollout-log-function-path", self.config.custom_rollout_log_function_path)
        if log is not None and log(rollout_id, self.config, samples, extra, seconds):
            return batches, {}
        if batches:
            extra["perf/buffer_samples_per_sec"] = len(samples) / handed_over_in
        if self.config.loss_type == "sft_loss":
            return batches, demonstration_metrics(samples, seconds=seconds) | extra
        num_gpus = self._num_gpus or 1 if self.config.has_engines else None
        extra |= further_metrics(self.config, samples, raw_N)
        return batches, rollout_metrics(samples, raw_N, seconds=seconds, num_gpus=num_gpus) | extra

    def _batches(self, data: Mapping[str, Sequence[Any]], dp_size: int) -> list[Any]:
        batches = assemble(self.config, data, dp_size=dp_size, scratch=self._scratch)
        if self._deliver is None:
            return list(batches)
        delivered: list[Future[Any]] = []
        with ThreadPoolExecutor(1) as beside:  # one is copied while the next is laid out
            for batch in batches:
                delivered.append(beside.submit(self._deliver, batch))
                if len(delivered) > 1:
                    delivered[-2].result()  # its memory is the next one's
        return [one.result() for one in delivered]

    def progress(self) -> str:
        """How far the rollout is that is being made, for a person; "" where that is not known. From any thread."""
        return "" if self._generator is None else self._generator.progress()

    def finished(self) -> list[Group]:
        """Groups that are generated and graded, and in no rollout yet."""
        return [] if self._generator is None else self._generator.finished()

    def evaluate(self, rollout_id: int) -> tuple[dict[str, Any], dict[str, list[Sample]]]:
        """Evaluates on all held-out sets: the metrics, and the samples of each set."""
        output = self._evaluate(self.config, rollout_id, self.source, evaluation=True)
        if not isinstance(output, RolloutFnEvalOutput):  # older functions return the bare data
            output = RolloutFnEvalOutput(output)
        if not isinstance(output.data, Mapping):
            raise RolloutError(
                f"--eval-function-path {self.config.eval_function_path} returned a {type(output.data).__name__}: it was"
                " asked with evaluation=True, and should return RolloutFnEvalOutput, or its data by the name of the set"
            )
        sets = {name: results for name, results in output.data.items() if isinstance(results, Mapping)}
        samples = {name: results.get("samples") or [] for name, results in sets.items()}
        extra = output.metrics or {}
        log = load_hook("--custom-eval-rollout-log-function-path", self.config.custom_eval_rollout_log_function_path)
        if log is not None and log(rollout_id, self.config, output.data, extra):
            return {}, samples
        check_eval(output.data, self.config.eval_function_path)
        return eval_metrics(self.config, output.data) | extra, samples

    def serve(self, engines: Sequence[EngineControl]) -> None:
        """From now on these are the engines behind the router."""
        if self._generator is not None:
            self._generator.engines = engines

    def close(self) -> None:
        if self._generator is not None:
            self._generator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
