"""Generator: prompts to the engines, responses back, graded as they come.

Held: what the engine sampled is what the sample holds, token by token; one request makes all samples of a prompt; a
group is graded as soon as it is back, while others are still generated; when anything fails, everything under way is
cancelled and the error names the sample. A job that is stopped, since its batch is full, leaves samples as far as they
have come: they can be generated on, with what is left of their tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

from slime.config import Config, architecture
from slime.config.hooks import Hook, load_hook
from slime.data.buffer import Journal
from slime.data.chat import Chat
from slime.data.eval_sets import EvalPrompts, eval_sets
from slime.data.outcome import outcomes, reward_of
from slime.data.sample import Sample, Status
from slime.data.template import ChatTemplate
from slime.data.tokenizer import Tokenizer
from slime.inference.client import WANTED, GenerateClient, Generation
from slime.inference.control import EngineControl, call_all
from slime.inference.errors import InferenceError
from slime.rewards import settle
from slime.rewards.threads import in_thread
from slime.rollout.hooks import Identity, accepts, ask, keeping_numbers
from slime.rollout.loop import EventLoop, all_of
from slime.rollout.responses import begin, grow, mask_all, mask_only
from slime.rollout.sampling import Sampling, seeds
from slime.rollout.scores import record
from slime.rollout.types import Group, RolloutError, flatten

if TYPE_CHECKING:
    from slime.rollout.collect import Collector
    from slime.rollout.stream import Stream

T = TypeVar("T")

CUSTOM_GENERATE = "--custom-generate-function-path"
ANSWER_S = 10.0  # for router and engines, which are asked whether they are the reason of a failure
FINISHED = {"stop": Status.COMPLETED, "length": Status.TRUNCATED}


@dataclass(slots=True)
class Job:
    """One rollout, or one set of an evaluation: what is the same for all of its samples."""

    args: Config
    sampling: Sampling
    rollout_id: int
    evaluation: bool = False
    journal: Journal | None = None  # who is told what happens to the samples; of an evaluation, nobody
    stopped: bool = False  # what is not finished yet is not needed any more
    generations: list[Generation] = field(default_factory=list)  # those made so far by the default generation

    @property
    def request_options(self) -> dict[str, Any]:
        """What a request asks for besides tokens and their log-probs."""
        wants_experts = self.args.use_rollout_routing_replay and not self.evaluation
        return {"return_routed_experts": True} if wants_experts else {}


class Generator:
    """What generation needs, opened once a process: the way to the engines, the tokenizer, the held-out prompts, and an
    event loop, in which users' asynchronous functions run. Rollout functions find it as `Generator.current()`.

    `weight_version` is that of the weights which the engines have, as the driver says; `stream` what is generated while
    nobody waits for it, `collector` what collects the batch, or the last one."""

    weight_version = 0
    stream: Stream | None = None
    collector: Collector | None = None
    _current: ClassVar[Generator | None] = None

    def __init__(self, config: Config, token: str | None = None, engines: Sequence[EngineControl] = ()) -> None:
        """`config` says where the router is (sglang_router_ip and sglang_router_port); `token` is what it asks for. The
        router does not pass on that requests are to be ended: the `engines` behind it are told so themselves.

        Raises DataError when the tokenizer or a held-out set is not sound.
        """
        if Generator._current is not None:
            raise RolloutError("a Generator is open in this process already")
        self.tokenizer = Tokenizer.load(config.hf_checkpoint)
        self._template_kwargs = config.apply_chat_template_kwargs
        template = ChatTemplate(self.tokenizer, self._template_kwargs) if config.apply_chat_template else None
        self.eval_prompts = [EvalPrompts(one, self.tokenizer, template) for one in eval_sets(config)]
        self.client = GenerateClient.from_config(
            config,
            f"http://{config.sglang_router_ip}:{config.sglang_router_port}",
            token,
            num_engines=max(1, len(engines)),
        )
        self.engines = engines
        if config.use_rollout_routing_replay:
            self.num_layers = architecture.read(config.hf_checkpoint)["num_layers"]
        self._custom_at_once = asyncio.Semaphore(self.client.max_samples)
        self._loop = EventLoop("rollout")
        Generator._current = self

    @cached_property
    def chat(self) -> Chat:
        """The checkpoint's chat template, for conversations of several turns. Raises DataError when it has none."""
        return Chat(self.tokenizer, ChatTemplate(self.tokenizer, self._template_kwargs))

    @classmethod
    def current(cls) -> Generator:
        if cls._current is None:
            raise RolloutError(
                "no slime.rollout.generator.Generator is open in this process: the way to the engines is not known"
            )
        return cls._current

    def close(self) -> None:
        Generator._current = None
        if self.stream is not None:
            self.run(self.stream.close())
        self.run(self.client.close())
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the generator's event loop and waits for it."""
        return self._loop.run(coroutine)

    def progress(self) -> str:
        """How far the batch is that is collected; see Producer."""
        collecting = self.stream or self.collector
        return "" if collecting is None else collecting.progress()

    def finished(self) -> list[Group]:
        """Groups that are generated and graded, and in no batch yet."""
        return [] if self.stream is None else self.run(self.stream.finished())

    async def generate(self, groups: Sequence[list[Sample]], job: Job) -> list[Group]:
        """The groups, generated and graded. Raises RolloutError, or RewardError, at the first sample that fails."""
        return await all_of(self.group(group, job) for group in groups)

    async def stop(self, job: Job) -> None:
        """Ends what the engines are generating; what waits for its turn is not sent any more."""
        job.stopped = True
        try:
            await in_thread(call_all, self.engines, "abort")
        except InferenceError:
            if not job.args.use_fault_tolerance:  # else it is down, and generates nothing
                raise

    async def group(self, group: Group, job: Job) -> Group:
        """Generates what of the group is not finished: one that was handed back to the source may be, in part or in
        whole. Of a job that was stopped it may come back unfinished (see `is_cut_short`), and is not graded then."""
        custom = load_hook(CUSTOM_GENERATE, job.args.custom_generate_function_path)
        hook = load_hook("--rollout-sample-hook-path", job.args.rollout_sample_hook_path)
        if job.args.mask_offpolicy_in_partial_rollout and not job.evaluation:
            for sample in flatten([group]):
                mask_all(sample)
        waiting = {i: member for i, member in enumerate(group) if is_waiting(member)}
        if not waiting and all(sample.reward is not None for sample in flatten([group])):
            return group
        for sample in waiting.values():
            sample.rollout_id = job.rollout_id
        seen = set() if is_cut_short(group) else _finished_before(group)  # by the hook, which sees no group cut short
        WANTED.set(lambda: not job.stopped)  # of all that this task asks the engines, and users' functions in it
        members: list[Sample | list[Sample]] = list(group)
        if custom is not None:
            made = await all_of(self._customised(sample, job, custom) for sample in waiting.values())
            for i, member in zip(waiting, made, strict=True):
                members[i] = member
        elif waiting:
            await self._sample(list(waiting.values()), job)
        if job.stopped and is_cut_short(members):
            return members
        await self._grade(members, job)
        if hook is not None:
            members = await all_of(self._hooked(member, job, hook, seen) for member in members)
        if not job.evaluation:
            for sample in flatten([members]):
                sample.pack()  # now, while others are still generated
        if job.journal is not None:
            key = job.args.reward_key
            job.journal.finished(outcomes((sample, reward_of(sample, key)) for sample in flatten([members])))
        return members

    async def _sample(self, group: list[Sample], job: Job) -> None:
        """Fills samples of a group, by one request when they have one prompt in common, and nothing else yet."""
        for sample in group:
            if not (job.args.partial_rollout and sample.response_length and sample.rollout_log_probs):
                begin(sample, self._prompt_ids(sample))
        if all(sample.tokens == group[0].tokens and not sample.response_length for sample in group):
            await self._request(group, job)
        else:
            await all_of(self._request([sample], job) for sample in group)

    async def _request(self, samples: list[Sample], job: Job) -> None:
        """Samples that have the same tokens so far are generated on from there."""
        prompt = list(samples[0].tokens)
        max_new_tokens = job.sampling.max_new_tokens(samples[0].prompt_length, samples[0].response_length)
        if max_new_tokens == 0:  # nothing can be asked for
            for sample in samples:
                sample.status = Status.TRUNCATED
            return
        params = {**job.sampling.params, "max_new_tokens": max_new_tokens}
        try:
            generations = await self.client.generate(
                prompt,
                params,
                n=len(samples),
                seeds=seeds(job.args, samples),
                **job.request_options,
            )
        except InferenceError as error:
            raise RolloutError(f"{samples[0].name}: {error}{await self._silent()}") from error
        job.generations += generations
        for sample, generation in zip(samples, generations, strict=True):
            status = FINISHED.get(generation.finish_reason, Status.ABORTED)
            if status is Status.ABORTED and not job.stopped:
                reason = generation.meta["finish_reason"].get("message") or generation.finish_reason
                raise RolloutError(f"{sample.name}: the engine gave up on it: {reason}")
            grow(sample, generation)
            if generation.routed_experts is not None:  # of all tokens so far, also those of earlier requests
                sample.rollout_routed_experts = self._experts_by_layer(generation)
            sample.status = status
        responses = self.tokenizer.decode_responses(
            [sample.tokens[sample.prompt_length :] for sample in samples],
            job.args.rollout_stop_token_ids,
            skip_special_tokens=job.args.rollout_skip_special_tokens,
        )
        for sample, response in zip(samples, responses, strict=True):
            sample.response = response

    async def _silent(self) -> str:
        """Who does not answer, for a message."""
        names = ["the router", *(engine.name for engine in self.engines)]
        urls = [self.client.url, *(engine.url for engine in self.engines)]
        answers = await asyncio.gather(
            self.client.answers(ANSWER_S), *(in_thread(engine.answers, ANSWER_S) for engine in self.engines)
        )
        asked = zip(names, urls, answers, strict=True)
        return "".join(f"; {name} at {url} does not answer" for name, url, does in asked if not does)

    def _experts_by_layer(self, generation: Generation) -> np.ndarray:
        """[tokens - 1, layers, experts of a token]. They leave the generation, which is kept for its figures."""
        experts, generation.routed_experts = generation.routed_experts, None
        return experts.reshape(len(experts), self.num_layers, -1).astype(np.int16)

    def _prompt_ids(self, sample: Sample) -> list[int]:
        if sample.tokens:
            return sample.tokens[: sample.prompt_length]
        if not isinstance(sample.prompt, str):
            raise RolloutError(
                f"{sample.name}: the prompt is a list of messages without tokens; give --apply-chat-template, or a"
                f" {CUSTOM_GENERATE} that renders them"
            )
        return self.tokenizer.encode([sample.prompt])[0]

    async def _customised(self, sample: Sample, job: Job, custom: Hook) -> Sample | list[Sample]:
        """One sample by the user's function, which may make several of it; graded at once, unless its group is."""
        keywords = {"evaluation": job.evaluation} if accepts(custom.function, "evaluation") else {}
        limit = job.args.sglang_router_request_timeout_secs
        identity = Identity.of(sample)
        masks = job.args.mask_offpolicy_in_partial_rollout and not job.evaluation
        earlier = list(sample.tokens[sample.prompt_length :]) if masks else []
        async with self._custom_at_once:
            if job.stopped:
                sample.status = Status.ABORTED
                return sample
            made = await ask(custom, identity.name, limit, job.args, sample, dict(job.sampling.params), **keywords)
        members = [made] if isinstance(made, Sample) else made
        if not isinstance(members, list) or not members or not all(isinstance(member, Sample) for member in members):
            raise RolloutError(f"{identity.name}: {custom} returned {made!r:.200}, not a Sample or a list of them")
        for member in members:
            identity.adopt(member, custom)
            if earlier and member.loss_mask == [0] * len(earlier):
                mask_only(member, earlier)
        if is_cut_short(members) and not job.stopped:
            raise RolloutError(f"{identity.name}: {custom} returned it aborted, and nobody has stopped it")
        if not (job.args.group_rm or (job.stopped and is_cut_short([made]))):
            await self._grade([made], job)
        return made

    async def _grade(self, members: Group, job: Job) -> None:
        """Grades what has no reward yet."""
        ungraded = [sample for sample in flatten([members]) if sample.reward is None]
        if ungraded:
            with keeping_numbers(ungraded, f"--custom-rm-path {job.args.custom_rm_path}"):
                outcomes = await settle(job.args, ungraded, evaluation=job.evaluation)
            for sample, outcome in zip(ungraded, outcomes, strict=True):
                record(sample, outcome, drop=job.args.rm_failure_policy == "drop")

    async def _hooked(
        self, member: Sample | list[Sample], job: Job, hook: Hook, seen: set[int]
    ) -> Sample | list[Sample]:
        if not isinstance(member, Sample):
            return await all_of(self._hooked(sample, job, hook, seen) for sample in member)
        if id(member) in seen:
            return member
        limit = job.args.sglang_router_request_timeout_secs
        keywords = {"rollout_id": job.rollout_id, "evaluation": job.evaluation}
        identity = Identity.of(member)
        replaced = await ask(hook, identity.name, limit, job.args, member, **keywords)
        if replaced is None:
            replaced = member
        if not isinstance(replaced, Sample):
            raise RolloutError(f"{identity.name}: {hook} returned {replaced!r:.200}, not a Sample or None")
        identity.adopt(replaced, hook)
        return replaced


def is_cut_short(group: Group) -> bool:
    """Whether something of it was aborted."""
    return any(sample.status is Status.ABORTED for sample in flatten([group]))


def _finished_before(group: Group) -> set[int]:
    """Identities of its samples that are neither to be generated nor to be graded."""
    done = flatten([[member for member in group if not is_waiting(member)]])
    return {id(sample) for sample in done if sample.reward is not None}


def is_waiting(member: Sample | list[Sample]) -> bool:
    """Whether a member of a group is still to be generated; one that has fanned out is not."""
    return isinstance(member, Sample) and member.status not in FINISHED.values()
