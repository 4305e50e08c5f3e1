"""Data sources: where a rollout gets its prompts from, as groups of samples.

Invariants of PromptSource: prompts come in the order of slime.data.order, but for those over the limit of tokens;
groups that come back through `add_samples` go out again first, the oldest before the others, unless a buffer filter
chooses; the state is small, exact and JSON, so that a resumed run gets the identical next batch. Not made for several
threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from slime.config.hooks import load_hook
from slime.data.encode import ConversationEncoder, Encoded, Encoder, PromptEncoder
from slime.data.errors import DataError
from slime.data.order import Mixture
from slime.data.prompts import Keys, Prompt, PromptSet
from slime.data.recording import dumps, group_from, group_to, loads, replacing
from slime.data.sample import Sample, Status
from slime.data.template import ChatTemplate
from slime.data.tokenizer import Tokenizer

log = logging.getLogger(__name__)

BUFFER_FILTER = "--buffer-filter-path"
NO_PROMPT = (Prompt("", where="no prompt file"),)  # of --disable-rollout-global-dataset
NAMED = 20  # prompts that are left out for their length
MAX_KEPT_TOKENS = 1 << 28  # 1 GiB of them; what is beyond is encoded again in each epoch

Group = list[Sample | list[Sample]]  # of one prompt; once generated, a list where a sample fanned out into several
BufferFilter = Callable[[list[Group], int], list[Group]]


@runtime_checkable
class DataSource(Protocol):
    """What --data-source-path names: a class that is made with the configuration as its only argument."""

    def get_samples(self, n: int) -> list[Group]:
        """The next `n` groups, each of --n-samples-per-prompt samples of one prompt."""

    def add_samples(self, groups: list[Group]) -> None:
        """Takes groups back, as they are, to hand them out again."""

    def save(self, id: int) -> None:
        """Keeps the state under the number of a rollout."""

    def load(self, id: int) -> None:
        """Goes on from the state that `save` kept."""

    def __len__(self) -> int:
        """The number of prompts in an epoch."""


class PromptSource:
    """The prompts of files, encoded, epoch after epoch."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        encoder: Encoder,
        *,
        n_samples_per_prompt: int = 1,
        max_tokens: int | None = None,
        shuffle: bool = False,
        seed: int = 42,
        sizes: Sequence[int] | None = None,
        weights: Sequence[float] | None = None,
        buffer_filter: BufferFilter | None = None,
        directory: str | Path | None = None,
        load_directory: str | Path | None = None,
    ):
        """`max_tokens`: prompts that encode to more are left out. `weights`: prompts are `sizes` of several sets, each
        of which is drawn from in this proportion; else all are drawn from alike. `buffer_filter`: takes out of the list
        of groups that came back at most so many to hand out again; the oldest otherwise. `directory`: where `save`
        keeps states, and `load` finds them if not in `load_directory`."""
        self._prompts = prompts
        self._encoder = encoder
        self._n_samples_per_prompt = n_samples_per_prompt
        self._max_tokens = max_tokens
        self._shuffle = shuffle
        self._seed = seed
        self._directory = directory
        self._load_directory = load_directory or directory
        self._encoded: dict[int, Encoded] = {}
        self._kept_tokens = 0
        self._too_long: dict[int, int] = {}  # prompt -> its number of tokens
        self._buffer_filter = buffer_filter or _oldest
        self._returned: list[Group] = []
        self._discarded: list[Group] = []
        self._next_group = self._next_sample = 0
        self._sizes = list(sizes) if weights else [len(prompts)]
        self._weights = list(weights) if weights else [1.0]
        if 0 in self._sizes:
            raise DataError("one of the prompt files has no sound row, so none can be drawn from it: leave it out")
        self._order = Mixture(self._sizes, self._weights, seed if shuffle else None)

    @classmethod
    def from_config(cls, config: Any) -> PromptSource:
        """Of --prompt-data, for generation or, with --loss-type sft_loss, for supervised training; with
        --disable-rollout-global-dataset, empty prompts without end.

        States are kept in rollout/ of --save, and looked for in that of --load.
        """
        tokenizer = Tokenizer.load(config.hf_checkpoint)
        keys = Keys(config.input_key, config.label_key, config.metadata_key, config.tool_key)
        if config.disable_rollout_global_dataset:
            prompts, sizes = NO_PROMPT, [1]
        else:
            prompts = PromptSet(config.prompt_data, keys, skip_malformed=config.skip_malformed_prompts)
            sizes = prompts.sizes
        if config.loss_type == "sft_loss":
            template = ChatTemplate(tokenizer, config.apply_chat_template_kwargs)
            encoder, max_tokens = ConversationEncoder(tokenizer, template), config.rollout_max_context_len
        else:
            encoder, max_tokens = PromptEncoder.from_config(config, tokenizer), config.rollout_max_prompt_len
        buffer_filter = load_hook(BUFFER_FILTER, config.buffer_filter_path)
        return cls(
            prompts,
            encoder,
            buffer_filter=None if buffer_filter is None else partial(buffer_filter, config, None),
            n_samples_per_prompt=config.n_samples_per_prompt,
            max_tokens=max_tokens,
            shuffle=config.rollout_shuffle,
            seed=config.rollout_seed,
            sizes=sizes,
            weights=config.prompt_data_weights,
            directory=config.save and Path(config.save, "rollout"),
            load_directory=config.load and Path(config.load, "rollout"),
        )

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def epoch(self) -> int:
        """How many times all prompts have been handed out."""
        return self._order.epoch

    @property
    def num_too_long(self) -> int:
        """Prompts left out for their length so far: they are found when it would be their turn."""
        return len(self._too_long)

    def metrics(self) -> dict[str, float]:
        """How far it has come."""
        return {"rollout/epoch": self.epoch, "rollout/prompts_too_long": self.num_too_long}

    def get_samples(self, n: int) -> list[Group]:
        """Raises DataError when all prompts are longer than the limit, or when the buffer filter breaks its promise."""
        groups = self._again(n)
        while len(groups) < n:
            drawn = [self._order.draw() for _ in range(n - len(groups))]
            encoded = self._encode(drawn)
            groups += [self._group(i, encoded[i]) for i in drawn if i in encoded]
        return groups

    def _again(self, n: int) -> list[Group]:
        """At most `n` of the groups that came back."""
        before = list(self._returned)
        groups = self._buffer_filter(self._returned, n) if before else []
        if not isinstance(groups, list | tuple):
            raise DataError(f"{BUFFER_FILTER} returned a {type(groups).__name__}, not a list of groups")
        chosen = list(map(id, groups))
        if len(chosen) > n or len(set(chosen)) < len(chosen) or not set(chosen) <= set(map(id, before)):
            raise DataError(
                f"{BUFFER_FILTER} returned {len(groups)} groups; asked for at most {n}, each once, of its buffer"
            )
        left = set(map(id, self._returned))
        if twice := left & set(chosen):
            raise DataError(
                f"{BUFFER_FILTER} left {len(twice)} groups that it returned in the buffer: take them out of it"
            )
        self._discarded += [group for group in before if id(group) not in left.union(chosen)]
        return groups

    def take_discarded(self) -> list[Group]:
        """The groups that the buffer filter took out of the buffer for good, since this was asked last."""
        discarded, self._discarded = self._discarded, []
        return discarded

    def add_samples(self, groups: list[Group]) -> None:
        for group in groups:
            if not isinstance(group, list) or not all(isinstance(sample, Sample | list) for sample in group):
                raise TypeError("add_samples takes a list of groups, each a list of samples")
        self._returned.extend(groups)

    def state_dict(self) -> dict[str, Any]:
        return {
            "num_prompts": len(self),
            "shuffle": self._shuffle,
            "seed": self._seed,
            "sizes": self._sizes,
            "weights": self._weights,
            "drawn": self._order.drawn,
            "next_group": self._next_group,
            "next_sample": self._next_sample,
            "returned": list(map(group_to, self._returned)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises DataError when the state is of other prompts or another order: going on would skip and repeat some."""
        mine = self.state_dict()
        for name in ("num_prompts", "shuffle", "seed", "sizes", "weights"):
            if state[name] != mine[name]:
                raise DataError(
                    f"the saved position is of a run with {name} = {state[name]}, this one has {mine[name]}"
                )
        self._next_group, self._next_sample = state["next_group"], state["next_sample"]
        self._order.go_to(state["drawn"])
        self._returned = list(map(group_from, state["returned"]))

    def save(self, id: int) -> None:
        with replacing(_state_file(self._directory, id)) as file:
            file.write(dumps(self.state_dict()))

    def load(self, id: int) -> None:
        path = _state_file(self._load_directory, id)
        if not path.exists():
            raise DataError(f"{path}: no such file, so the position in the prompts is not known")
        try:
            self.load_state_dict(loads(path.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: {error}") from error

    def _encode(self, drawn: list[int]) -> dict[int, Encoded]:
        """Those of the drawn prompts that are not too long."""
        missing = [i for i in dict.fromkeys(drawn) if i not in self._encoded and i not in self._too_long]
        encoded = dict(zip(missing, self._encoder.encode([self._prompts[i] for i in missing]), strict=True))
        for i in missing:
            length = len(encoded[i].tokens)
            if self._max_tokens is not None and length > self._max_tokens:
                del encoded[i]
                self._leave_out(i, length)
            elif self._kept_tokens + length <= MAX_KEPT_TOKENS:
                self._kept_tokens += length
                self._encoded[i] = encoded[i]
        return encoded | {i: self._encoded[i] for i in drawn if i in self._encoded}

    def _leave_out(self, i: int, length: int) -> None:
        self._too_long[i] = length
        limit = f"{self._encoder.limit_option} {self._max_tokens}"
        if len(self._too_long) <= NAMED:
            log.warning("%s: left out, its %d tokens are more than %s", self._prompts[i].where, length, limit)
        elif len(self._too_long) == NAMED + 1:
            log.warning("further prompts are left out for their length; rollout/prompts_too_long counts them")
        if len(self._too_long) == len(self):
            shortest = min(self._too_long.values())
            raise DataError(f"all {len(self)} prompts are longer than {limit}; the shortest has {shortest} tokens")

    def _group(self, i: int, encoded: Encoded) -> Group:
        group, first = self._next_group, self._next_sample
        self._next_group, self._next_sample = group + 1, first + self._n_samples_per_prompt
        return make_group(self._prompts[i], encoded, group, first, self._n_samples_per_prompt)


def _oldest(buffer: list[Group], n: int) -> list[Group]:
    groups, buffer[:] = buffer[:n], buffer[n:]
    return groups


def _state_file(directory: str | Path | None, id: int) -> Path:
    if directory is None:
        raise DataError("this data source was made without a directory to keep its state in")
    return Path(directory) / f"{id}.json"


def make_group(prompt: Prompt, encoded: Encoded, group_index: int, first: int, n: int) -> Group:
    """`n` samples of one prompt, numbered from `first` on. They share nothing, since users' functions change them in
    place."""
    return [make_sample(prompt, encoded, group_index, first + k) for k in range(n)]


def make_sample(prompt: Prompt, encoded: Encoded, group_index: int, index: int) -> Sample:
    """A sample still to be generated; of a conversation, a completed one with its loss mask."""
    mask = encoded.loss_mask
    return Sample(
        group_index=group_index,
        index=index,
        prompt=deepcopy(encoded.prompt),
        tokens=encoded.tokens.tolist(),
        response=encoded.response,
        response_length=encoded.response_length,
        loss_mask=None if mask is None else list(mask),
        label=prompt.label,
        metadata=deepcopy(prompt.metadata) | ({"tools": deepcopy(prompt.tools)} if prompt.tools else {}),
        status=Status.PENDING if mask is None else Status.COMPLETED,
    )
