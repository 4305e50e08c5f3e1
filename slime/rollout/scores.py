"""Rewards as training sees them: numbers, compared within their group.

Shape suffixes: N samples of the rollout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slime.algorithms.advantages import group_normalised, leave_one_out
from slime.config import Config
from slime.config.hooks import load_hook
from slime.data.sample import Sample, SampleError
from slime.rewards import Outcome, score
from slime.rollout.hooks import keeping_numbers
from slime.rollout.types import RolloutError, whole_ids

FAILURE, RETRIES = "reward_failure", "reward_retries"  # in a sample's metadata, where there is something to say
POST_PROCESS = "--custom-reward-post-process-path"


def record(sample: Sample, outcome: Outcome, *, drop: bool) -> None:
    """Writes a reward into its sample; with `drop`, training is to leave out a sample whose reward was not had."""
    sample.reward = outcome.reward
    said = {RETRIES: outcome.retries or None, FAILURE: outcome.failure}
    others = {key: value for key, value in sample.metadata.items() if key not in said}
    sample.metadata = others | {key: value for key, value in said.items() if value is not None}
    if outcome.failure is not None and drop:
        sample.remove_sample = True


def ungrade_failure(sample: Sample) -> None:
    """Where no reward was had, it is asked for anew the next time."""
    if FAILURE in sample.metadata:
        sample.metadata = {key: value for key, value in sample.metadata.items() if key not in (FAILURE, RETRIES)}
        sample.reward, sample.remove_sample = None, False


def is_graded(sample: Sample) -> bool:
    """Whether its reward counts in its group: it was had, or counts as 0 (--rm-failure-policy)."""
    return not (sample.remove_sample and FAILURE in sample.metadata)


def rewards_for_training(config: Config, samples: Sequence[Sample]) -> tuple[np.ndarray, np.ndarray]:
    """(raw rewards, rewards to train on), each [N].

    A sample that was dropped, as its reward was not had, gets 0 and does not count in its group. All of it is replaced
    by --custom-reward-post-process-path. Raises RewardError, naming the sample, for a reward that is no number, and
    RolloutError when no reward was had at all.
    """
    if samples and all(FAILURE in sample.metadata for sample in samples):
        raise RolloutError(
            f"for none of the {len(samples)} samples of the rollout a reward was had: there is nothing to learn from."
            f" The last failure: {samples[-1].metadata[FAILURE]}"
        )
    post_process = load_hook(POST_PROCESS, config.custom_reward_post_process_path)
    if post_process is not None:
        with keeping_numbers(samples, post_process):
            pair = post_process(config, samples)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise RolloutError(f"{post_process} returned a {type(pair).__name__}, not raw rewards and rewards")
        raw, rewards = pair
        return _checked("raw rewards", raw, samples), _checked("rewards", rewards, samples)
    key = config.reward_key
    raw_N = np.array([score(sample.name, sample.reward, key) for sample in samples])
    ids_2N = np.array([[sample.group_index for sample in samples], whole_ids(samples)])
    graded_N = np.array(list(map(is_graded, samples)))
    rewards_N = np.zeros_like(raw_N)
    if graded_N.any():
        rewards_N[graded_N] = _compared(config, raw_N[graded_N], *ids_2N[:, graded_N])
    return raw_N, rewards_N


def _compared(config: Config, raw_N: np.ndarray, group_ids_N: np.ndarray, wholes_N: np.ndarray) -> np.ndarray:
    """As --advantage-estimator wants it: REINFORCE++ compares with the whole batch, by whitening, PPO with a critic's
    values; neither here."""
    if config.disable_rewards_normalization:
        return raw_N
    match config.advantage_estimator:
        case "reinforce_plus_plus" | "ppo":
            return raw_N
        case "reinforce_plus_plus_baseline":
            return group_normalised(raw_N, group_ids_N, wholes_N, divide_by_std=False)
        case "rloo":
            return leave_one_out(raw_N, group_ids_N, wholes_N)
    return group_normalised(raw_N, group_ids_N, wholes_N, divide_by_std=not config.disable_grpo_std_normalization)


def _checked(what: str, values: Sequence[float], samples: Sequence[Sample]) -> np.ndarray:
    try:
        values_N = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise RolloutError(f"{POST_PROCESS}: {what} are no numbers: {error}") from error
    if values_N.shape != (len(samples),):
        raise RolloutError(
            f"{POST_PROCESS}: {what} have the shape {values_N.shape}, not one for each of {len(samples)} samples"
        )
    if not np.isfinite(values_N).all():
        first = samples[int(np.argmin(np.isfinite(values_N)))]
        raise SampleError(f"{first.name}: {POST_PROCESS} made {what} of it that are no finite number")
    return values_N
