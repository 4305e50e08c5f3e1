"""Job: everything that a run has started, in the words of the algorithm. train.py says when, this says who.

Invariants: what returns references returns at once; what waits has a deadline, and ends at once when an engine dies,
with that as its cause; what was started is asked to end in order, before the session ends whatever is left, and a run
of which something could not end in order has failed.
"""

from __future__ import annotations

import ipaddress
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ray

from slime.cluster import placement
from slime.cluster.buffer import ANSWER_S, Buffer
from slime.cluster.critics import Critics
from slime.cluster.engines import Engines
from slime.cluster.progress import Progress
from slime.cluster.pulse import Pulse
from slime.cluster.recovery import Recovery
from slime.cluster.rollouts import Evaluated, Made, Rollouts
from slime.cluster.session import Session
from slime.cluster.trainers import Trained, Trainers
from slime.cluster.turns import Turn, Turns
from slime.cluster.wait import ActorFailed, Stalled, failure_of, stalled, wait
from slime.config import Config, checkpoint_dir
from slime.config.engine_groups import served_models
from slime.inference.watch import Checks
from slime.observe import Console

START_S = 1800.0
TRAIN_S = 4 * 3600.0
SAVE_S = 3600.0
STOP_S = 120.0
STOP_AFTER_FAILURE_S = 5.0  # whoever waits for a peer that is gone will not end in order
GRACE_S = (
    300.0  # beyond the deadline of a request, for rewards and conversion; the request's own error says more than ours
)


class Job:
    """Use as a context manager: inside, all actors are up, and it is the turn of training."""

    def __init__(self, config: Config, session: Session, console: Console) -> None:
        self.config, self.session, self.console = config, session, console
        self.watched: list[ray.ObjectRef] = []  # until all are up: from then on it is the recovery's
        self.starting: list[ray.ObjectRef] = []  # the engines
        self.recovery: Recovery | None = None
        self.whole = False  # whether all that was to be done is done
        self.stops: list[Any] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def _start(self) -> None:
        config, session = self.config, self.session
        models = served_models(config)
        plan = placement.plan_for(config)
        seats = placement.place(plan, session)
        device = "cuda" if session.resource == "GPU" else "cpu"
        token = None if _all_on_loopback(seats) else secrets.token_urlsafe(32)
        with self.console.phase(f"starting {plan}"):
            # Engines take longest, so they go first; everything else starts meanwhile.
            self.engines = Engines(config, models, seats, device=device, logs=session.logs, token=token)
            self.stops.append(self.engines.stop)
            self.watched = [self.engines.watch(index) for index in range(len(self.engines))]
            self.starting = self.engines.ready(START_S)
            self.buffer = buffer = Buffer.start(config)
            opened = buffer.open(config)
            if config.num_rollout is None:
                num_prompts = self.wait(opened, f"{buffer.name} to count the prompts", START_S)
                self.config = config = config.replace(
                    num_rollout=max(1, config.num_epoch * num_prompts // config.rollout_batch_size)
                )
            self.rollouts = Rollouts(
                config,
                models,
                buffer,
                dp_size=len(seats.train) // _model_parallel_size(config),
                logs=session.logs,
                token=token,
            )
            self.stops.append(lambda: [buffer.close(whole=self.whole)])
            self.stops.append(lambda: [self.rollouts.close()])
            self.trainers = Trainers(config, seats, seats.train)
            self.stops.append(self.trainers.close)
            training, others = self.trainers.start(), [opened]
            self.critics = Critics(config, seats, seats.critic) if config.has_critic else None
            if self.critics is not None:
                self.stops.append(self.critics.close)
                others += self.critics.start()
            if len(self.engines):
                others.append(self.rollouts.start_routers())
            everybody = f"training ranks, {buffer.name} and router to start"
            started = self.wait([*training, *others], everybody, START_S)
            loaded, version = started[0] if len(self.trainers) else (-1, 0)
            self.first_rollout = loaded + 1 if config.start_rollout_id is None else config.start_rollout_id
            rolled_back = self.wait(buffer.resume(self.first_rollout), f"{buffer.name} to find its place", START_S)
            if len(self.engines):
                self.watched += [self.rollouts.watch(model) for model in self.rollouts.routers]
            controls = self.wait(self.starting, "the engines to start", START_S)
            self.wait(self.rollouts.connect(controls, START_S), "the router to find the engines", START_S)
        critics = self.critics.ranks if self.critics is not None else []
        self.pulse = Pulse([*self.trainers.ranks, *critics, buffer.actor, self.rollouts.actor])
        checks = Checks.from_config(config)
        self.recovery = Recovery(self.engines, self.rollouts, controls, self.watched, self.console, checks)
        if rolled_back:
            self.console.say(str(rolled_back))
        self._make_up_for_an_export(loaded)
        if self.first_rollout >= self.config.num_rollout:
            done = f"{self.first_rollout} rollouts are done, of {self.config.num_rollout} (--num-rollout, --num-epoch)"
            self.console.say(f"nothing is left to do: {done}")
        self.turns = Turns(
            self.trainers,
            self.engines,
            self.recovery,
            self.wait,
            colocated=config.colocate,
            engines_sleep=config.offload_rollout,
            first_version=version,
        )

    def wait(self, refs: Any, what: str, timeout: float) -> Any:
        """Fails when anybody has died, except for those that come back."""
        return wait(refs, what, timeout, self._watch)

    def _watch(self) -> list[ray.ObjectRef]:
        if self.recovery is None:
            return [*self.watched, *self.starting]
        self.recovery.look()
        return [*self.recovery.watched, *self.pulse.beat()]

    def _wait_for_inference(self, ref: ray.ObjectRef, what: str, look: Callable[[], None] = lambda: None) -> Any:
        """While training has nothing to do, so that engines which come back can get its weights."""

        def watch() -> list[ray.ObjectRef]:
            self.turns.heal()
            look()
            return self._watch()

        return wait(ref, what, self.config.sglang_router_request_timeout_secs + GRACE_S, watch)

    # The verbs of the algorithm.

    def generate(self, rollout_id: int) -> ray.ObjectRef:
        """A reference to (references to a batch for each data-parallel rank, metrics)."""
        self.turns.expect(Turn.INFERENCE, f"generation of rollout {rollout_id}")
        return self.rollouts.generate(rollout_id, self.turns.version)

    def wait_rollout(self, ref: ray.ObjectRef) -> Made:
        batches, metrics = self._wait_for_inference(ref, "the rollout", Progress(self.rollouts, self.console).look)
        return batches, metrics | self.recovery.rollout_is_over()

    def train(self, rollout_id: int, batches: list[ray.ObjectRef]) -> Trained:
        """Trains every rank on its share. Returns metrics: those of the rollout, and those of each optimizer step."""
        what = f"training on rollout {rollout_id}"
        self.turns.expect(Turn.TRAINING, what)
        if self.critics is None:
            self.turns.is_current = False
            trained = self.wait(self.trainers.train(rollout_id, batches), what, TRAIN_S)[0]
        else:
            trained = self._train_with_critic(rollout_id, batches, what)
        self.wait(self.buffer.trained(rollout_id), f"{self.buffer.name} to take note of the training", ANSWER_S)
        return trained

    def _train_with_critic(self, rollout_id: int, batches: list[ray.ObjectRef], what: str) -> Trained:
        """Values, from them advantages and returns, and then policy and critic learn: at once, or in turns."""
        values = self.wait(self.critics.values(rollout_id, batches), f"the critic's values for {what}", TRAIN_S)
        returns = self.wait(self.trainers.prepare(rollout_id, batches, values), f"the returns for {what}", TRAIN_S)
        critics = self.critics.train(returns)
        if not self.config.critic_has_own_devices:
            self.wait(critics, f"the critic's {what}", TRAIN_S)
        optimises = rollout_id >= self.config.num_critic_only_steps
        self.turns.is_current = self.turns.is_current and not optimises
        policy = self.trainers.update(optimises=optimises)
        done = self.wait([*policy, *critics], what, TRAIN_S)
        (metrics, rows), (of_critic, critic_rows) = done[0], done[len(policy)]
        return metrics | of_critic, [*rows, *critic_rows]

    def evaluate(self, done: int) -> ray.ObjectRef:
        """A reference to what the held-out prompts say after so many rollouts."""
        self.turns.expect(Turn.INFERENCE, "evaluation")
        return self.rollouts.evaluate(done)

    def wait_evaluation(self, ref: ray.ObjectRef) -> Evaluated:
        return self._wait_for_inference(ref, "the evaluation")

    def save(self, rollout_id: int) -> None:
        """A checkpoint, an export, or both. Of checkpoints in the background the last is waited for, for then the run
        ends."""
        config = self.config
        if config.save:
            in_background = config.async_save and rollout_id + 1 < config.num_rollout
            with self.console.phase(f"saving a checkpoint to {config.save}"):
                # The critic first: of a run that is killed in between, both go on from the checkpoint before.
                for ranks in filter(None, (self.critics, self.trainers)):
                    saving = ranks.save(rollout_id, self.turns.next_version, in_background=in_background)
                    self.wait(saving, "the checkpoint to be saved", SAVE_S)
        if config.save_hf:
            self._export(config.save_hf.format(rollout_id=rollout_id))

    def _export(self, directory: str) -> None:
        with self.console.phase(f"saving weights to {directory}"):
            self.wait(self.trainers.save_hf(directory), "the weights to be saved", SAVE_S)

    def _make_up_for_an_export(self, rollout_id: int) -> None:
        """Of the checkpoint that this run goes on from: whatever ended it may have ended it between the two."""
        config = self.config
        if rollout_id >= 0 and config.save_hf and config.saves_after(rollout_id):
            directory = config.save_hf.format(rollout_id=rollout_id)
            if not is_export_of(Path(directory), checkpoint_dir.to_load(config)):
                self._export(directory)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Asks all to end, last started first; the session ends whoever does not in time. Raises the first failure to
        end, ActorFailed or Stalled, unless the run ends by an earlier one: then it is only said, and of who is dead or
        waits for the dead, nothing."""
        self.whole = kind is None
        seconds, clock = STOP_S if kind is None else STOP_AFTER_FAILURE_S, time.strftime("%H:%M:%S")
        deadline = time.monotonic() + seconds
        failures: list[ActorFailed | Stalled] = []
        for stop in reversed(self.stops):
            asked = stop()
            if not asked:
                continue
            ended, late = ray.wait(asked, num_returns=len(asked), timeout=max(0.0, deadline - time.monotonic()))
            failures += filter(None, (failure_of(ref, "it to end") for ref in ended))
            if late:
                failures.append(stalled("the run to end", late, len(asked), seconds, clock))
        others = [failure for failure in failures if isinstance(failure, ActorFailed) and failure.cause is not None]
        for failure in failures[1:] if kind is None else others:
            self.console.warn(str(failure))
        if kind is None and failures:
            raise failures[0]


def is_export_of(export: Path, checkpoint: Path) -> bool:
    """Whether the export that belongs to a checkpoint is there: it is made after that, so one that is older is of an
    earlier rollout."""
    is_there = (export / "config.json").is_file()
    return is_there and export.stat().st_mtime >= checkpoint.stat().st_mtime


def _model_parallel_size(config: Config) -> int:
    return config.tensor_model_parallel_size * config.pipeline_model_parallel_size * config.context_parallel_size


def _all_on_loopback(seats: placement.Placement) -> bool:
    places = [*seats.train, *seats.critic, *(place for engine in seats.engines for place in engine)]
    return all(ipaddress.ip_address(place.host).is_loopback for place in places)
