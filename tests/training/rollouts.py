"""Made-up rollouts for tests of training: samples, and the Batches of the data-parallel ranks that share them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from slime.data.batch import Batch, Step
from slime.schedule import plan

VOCAB = 60
LAYERS, EXPERTS, TOPK = 2, 8, 2  # of the tiny mixture of experts
NO_EXPERTS = np.empty((0, LAYERS, TOPK), np.int16)


@dataclass
class Made:
    """One sample: the last `response` of its tokens were sampled."""

    tokens: list[int]
    response: int
    reward: float = 0.0
    mask: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    truncated: bool = False
    teacher: list[float] | None = None  # log-probs of a teacher
    train_metadata: dict | None = None
    whole: int | None = None  # what the parts of a sample that fanned out have in common; None: it is no part

    def __post_init__(self):
        self.mask = self.mask or [1] * self.response
        self.log_probs = self.log_probs or [-2.0] * self.response


@dataclass
class Trained:
    """A TrainResult that can be read without importing Megatron, and the weights afterwards."""

    rollout: dict[str, float]
    steps: list[dict[str, float]]
    weights: dict[str, float]  # tensor -> its product with a fixed vector of cosines
    log_probs: list[tuple[int, float]] = field(default_factory=list)  # token, from before the training; see by_token


@dataclass
class Routes:
    """Experts [tokens, TOPK] that routers chose, in order of call, and the figures of the steps."""

    scored: list[np.ndarray]  # in passes without gradients
    trained: list[np.ndarray]
    steps: list[dict[str, float]]


def varied(count: int = 10, seed: int = 0, multiple: int = 1) -> list[Made]:
    """Samples of unequal lengths, multiples of `multiple`: one is all masked, one long with a masked middle."""
    rng = np.random.default_rng(seed)
    samples = []
    for index in range(count):
        prompt, response = int(rng.integers(1, 9)), int(rng.integers(1, 12))
        if index == 4:
            response = 40
        prompt += -(prompt + response) % multiple
        samples.append(
            Made(
                tokens=rng.integers(3, VOCAB, prompt + response).tolist(),
                response=response,
                reward=float(rng.normal()),
                log_probs=(-3 * rng.random(response)).tolist(),
                mask=[0] * response if index == 1 else [1] * 10 + [0] * 20 + [1] * 10 if index == 4 else [],
                truncated=index == 1,
            )
        )
    return samples


def engine_experts(sample: Made) -> np.ndarray:
    """What an engine that goes by a token's id alone would choose; [tokens, LAYERS, TOPK]."""
    first_TL = np.add.outer(sample.tokens, np.arange(LAYERS))
    return (np.stack([first_TL, first_TL + 3], axis=-1) % EXPERTS).astype(np.int16)


def shares(
    samples: list[Made],
    dp_size: int = 1,
    *,
    num_steps: int = 1,
    micro_batch_size: int | None = None,
    max_tokens: int | None = None,
    micro_batch_multiple: int = 1,
    log_probs: bool = True,
    experts: bool = False,
) -> list[Batch]:
    """The Batch of each data-parallel rank."""
    plans = plan(
        [len(s.tokens) for s in samples],
        num_steps=num_steps,
        wholes=None if all(s.whole is None for s in samples) else [s.whole for s in samples],
        dp_size=dp_size,
        micro_batch_size=micro_batch_size if max_tokens is None else None,
        max_tokens=max_tokens,
        micro_batch_multiple=micro_batch_multiple,
    )
    wholes = [("alone", i) if s.whole is None else s.whole for i, s in enumerate(samples)]
    in_step = [sorted(i for p in plans for m in p.steps[step] for i in m) for step in range(len(plans[0].steps))]
    return [
        batch_of(
            [samples[i] for i in rank.samples],
            [
                Step(
                    [[rank.samples.index(i) for i in micro_batch] for micro_batch in micro_batches],
                    num_samples=len(in_step[step]),
                    num_tokens=sum(sum(samples[i].mask) for i in in_step[step]),
                    num_wholes=len({wholes[i] for i in in_step[step]}),
                )
                for step, micro_batches in enumerate(rank.steps)
            ],
            log_probs=log_probs,
            experts=experts,
            whole_sizes=[
                sum(sum(samples[j].mask) for j in members if wholes[j] == wholes[i])
                for i in rank.samples
                for members in in_step
                if i in members
            ],
        )
        for rank in plans
    ]


def batch_of(
    samples: list[Made],
    steps: list[Step],
    *,
    log_probs: bool = True,
    experts: bool = False,
    whole_sizes: list[int] | None = None,
) -> Batch:
    def joined(lists, dtype):
        return np.array([x for one in lists for x in one], dtype=dtype)

    has_teacher = bool(samples) and samples[0].teacher is not None
    return Batch(
        tokens_T=joined((s.tokens for s in samples), np.int32),
        total_lengths_N=np.array([len(s.tokens) for s in samples], dtype=np.int32),
        response_lengths_N=np.array([s.response for s in samples], dtype=np.int32),
        loss_mask_R=joined((s.mask for s in samples), np.float32),
        rewards_N=np.array([s.reward for s in samples], dtype=np.float32),
        raw_rewards_N=np.array([s.reward for s in samples], dtype=np.float32),
        group_ids_N=np.zeros(len(samples), dtype=np.int64),
        sample_ids_N=np.arange(len(samples), dtype=np.int64),
        whole_sizes_N=np.array([sum(s.mask) for s in samples] if whole_sizes is None else whole_sizes, dtype=np.int64),
        truncated_N=np.array([s.truncated for s in samples], dtype=bool),
        steps=steps,
        rollout_log_probs_R=joined((s.log_probs for s in samples), np.float32) if log_probs else None,
        teacher_log_probs_R=joined((s.teacher for s in samples), np.float32) if has_teacher else None,
        routed_experts_TLK=np.concatenate([engine_experts(s) for s in samples] or [NO_EXPERTS]) if experts else None,
        train_metadata=[s.train_metadata for s in samples] if samples and samples[0].train_metadata else None,
    )
