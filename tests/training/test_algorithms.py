"""Each estimator, correction and hook through a Trainer on one rank, against values from transformers' logits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.distributed import run_ranks
from tests.training.expected import mean_of_sample_means, mean_of_tokens, score
from tests.training.ranks import refusals, train_all
from tests.training.rollouts import varied

HOOKS = "tests.training.hooks"
ENGINE = ["--use-rollout-logprobs"]  # so that the ratio is not 1 in the first step
WHITE = ["--normalize-advantages"]
GSPO = ["--advantage-estimator", "gspo"]
CISPO = ["--advantage-estimator", "cispo"]
RETURNS = ["--advantage-estimator", "reinforce_plus_plus", *WHITE]
CUSTOM = ["--loss-type", "custom_loss", "--custom-loss-function-path", f"{HOOKS}.weighed_likelihood"]
ONCE = {"micro_batch_size": 10, "rollouts": 1}
TWICE = {"micro_batch_size": 10, "rollouts": 2}
TWO_STEPS = {"micro_batch_size": 10, "rollouts": 1, "num_steps": 2}
SAMPLES = [
    replace(s, teacher=[-0.5 - i / 10] * s.response, train_metadata={"weight": 1.0 + i}) for i, s in enumerate(varied())
]
MASKED = [replace(s, mask=[0] * s.response) for s in SAMPLES]
ESTIMATORS = {
    "grpo": [],
    "gspo": GSPO,
    "cispo": CISPO,
    "rloo": ["--advantage-estimator", "rloo"],
    "reinforce_plus_plus": RETURNS,
    "reinforce_plus_plus_baseline": ["--advantage-estimator", "reinforce_plus_plus_baseline", *WHITE],
}
MIS = {
    "token, truncated": ["--mis-clip", "1.5", "--mis-clip-low", "0.5"],
    "token, masked": ["--mis-mode", "mask", "--mis-clip", "1.5", "--mis-clip-low", "0.5"],
    "sequence, truncated": ["--mis-level", "sequence", "--mis-clip-low", "0.01"],
    "geometric, masked": ["--mis-level", "geometric", "--mis-mode", "mask", "--mis-clip-low", "0.2"],
}


@pytest.fixture(scope="module")
def results(model, other):
    kl_reward = ["--kl-coef", "0.5", "--kl-loss-type", "k1", "--ref-load", other]
    teacher = ["--use-opd", "--opd-kl-coef", "0.3", "--opd-type"]
    options = {
        "grpo": ([], ONCE),
        "gspo": (ENGINE + GSPO, ONCE),
        "gspo, two steps": (GSPO, TWO_STEPS),
        "cispo": (ENGINE + CISPO, ONCE),
        "opsm": ([*ENGINE, "--use-opsm", "--opsm-delta", "0.1"], ONCE),
        "opsm, mixed signs": (
            [*ENGINE, "--use-opsm", "--opsm-delta", "0.1", "--custom-advantage-function-path", f"{HOOKS}.alternating"],
            ONCE,
        ),
        "returns": ([*RETURNS, "--gamma", "0.9", *kl_reward], ONCE),
        "tis": (["--use-tis", "--tis-clip", "1.2", "--tis-clip-low", "0.3"], ONCE),
        **{f"mis: {name}": (["--use-mis", *how], ONCE) for name, how in MIS.items()},
        "engine": (ENGINE, TWO_STEPS),
        "measured": ([*ENGINE, "--get-mismatch-metrics"], TWO_STEPS),
        "custom tis": (["--use-tis", "--custom-tis-function-path", f"{HOOKS}.half_without_the_first_token"], ONCE),
        "custom loss": (CUSTOM, ONCE),
        "custom loss alone": ([*CUSTOM, "--disable-compute-advantages-and-returns"], ONCE),
        "custom loss per token": ([*CUSTOM, "--calculate-per-token-loss"], ONCE),
        "reducer": (["--custom-pg-loss-reducer-function-path", f"{HOOKS}.by_a_constant_length"], ONCE),
        "narrowed": (["--rollout-data-postprocess-path", f"{HOOKS}.only_likely_tokens"], ONCE),
        "custom advantages": (["--custom-advantage-function-path", f"{HOOKS}.rising"], ONCE),
        "teacher in the trainer": ([*teacher, "megatron", "--opd-teacher-load", other], TWICE),
        "teacher of the rollout": ([*teacher, "sglang"], ONCE),
        "reference follows": (["--use-kl-loss", "--ref-load", other, "--ref-update-interval", "1"], TWICE),
        "old actor": (["--keep-old-actor", "--async-depth", "1"], {**TWICE, "rollouts": 3}),
        "no old actor": ([], {**TWICE, "rollouts": 3}),
        "entropy": (["--use-rollout-entropy"], ONCE),
        "recomputed": (["--recompute-loss-function"], ONCE),
        "experts of one layer": (["--only-train-params-name-list", r"layers\.1\.mlp", "layers.0"], TWICE),
        "but its norms": (["--freeze-params-name-list", "norm", "embedding"], TWICE),
    }
    cases = {name: (model, how, SAMPLES, sharing) for name, (how, sharing) in options.items()}
    everything = ["--use-opsm", "--use-mis", "--mis-level", "sequence", *kl_reward]
    for name, how in ESTIMATORS.items():
        cases[f"{name}, all masked"] = (model, [*how, *everything], MASKED, ONCE)
    return run_ranks(train_all, 1, cases, deadline=400)[0]


@pytest.fixture(scope="module")
def scored(model):
    return score(model, SAMPLES)


def first_step(results, case):
    return results[case][0].steps[0]


def sample_means(scored, values):
    """For each token the mean over its sample's unmasked tokens."""
    return [
        ((v * s.mask).sum() / s.mask.sum().clamp(min=1)).expand(len(v)) for s, v in zip(scored, values, strict=True)
    ]


def log_ratios(scored):
    """Of the trainer's probability over the engine's."""
    return [s.log_probs - s.rollout for s in scored]


def clipped(ratio, advantage):
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)


def close(value):
    return pytest.approx(value, abs=1e-5, rel=1e-5)


# Estimators.


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_nothing_to_learn_from(estimator, results):
    """Case 11."""
    step = first_step(results, f"{estimator}, all masked")
    assert all(np.isfinite(value) for value in step.values())
    assert step["train/loss"] == step["train/grad_norm"] == 0


def test_gspo_clips_the_ratio_of_the_sample(results, scored):
    ratios = [r.exp() for r in sample_means(scored, log_ratios(scored))]
    losses = [clipped(r, s.sample.reward) for r, s in zip(ratios, scored, strict=True)]
    step = first_step(results, "gspo")
    assert step["train/pg_loss"] == close(mean_of_sample_means(scored, losses))
    moved = [((r.clamp(0.8, 1.2) - r) * s.sample.reward < 0).float() for r, s in zip(ratios, scored, strict=True)]
    assert step["train/pg_clipfrac"] == close(mean_of_sample_means(scored, moved)) and step["train/pg_clipfrac"] > 0


def test_gspo_begins_as_grpo_does(results):
    step = first_step(results, "gspo, two steps")
    assert step["train/pg_loss"] == close(-np.mean([s.reward if any(s.mask) else 0.0 for s in SAMPLES[:5]]))
    assert step["train/pg_clipfrac"] == 0


def test_cispo(results, scored):
    losses = [
        -r.exp().clamp(0.8, 1.2) * s.sample.reward * s.log_probs
        for r, s in zip(log_ratios(scored), scored, strict=True)
    ]
    assert first_step(results, "cispo")["train/pg_loss"] == close(mean_of_sample_means(scored, losses))


def test_opsm_leaves_out_whole_samples(results, scored):
    drift = sample_means(scored, log_ratios(scored))
    keep = [1 - float(s.sample.reward < 0 and -d[0] > 0.1) for d, s in zip(drift, scored, strict=True)]
    losses = [clipped(r.exp(), s.sample.reward) * k for r, s, k in zip(log_ratios(scored), scored, keep, strict=True)]
    step = first_step(results, "opsm")
    assert step["train/pg_loss"] == close(mean_of_sample_means(scored, losses))
    left_out = [torch.full((s.sample.response,), 1 - k) for s, k in zip(scored, keep, strict=True)]
    share = mean_of_sample_means(scored, left_out)
    assert 0 < step["train/opsm_clipfrac"] == close(share)


def test_opsm_decides_by_sample_where_advantages_have_mixed_signs(results, scored):
    """Case 25."""
    advantages = [torch.tensor([1.0, -2.0] * s.sample.response)[: s.sample.response] for s in scored]
    of_sample, drift = sample_means(scored, advantages), sample_means(scored, log_ratios(scored))
    keep = [1 - float(a[0] < 0 and -d[0] > 0.1) for a, d in zip(of_sample, drift, strict=True)]
    assert 0 < sum(keep) < len(keep)
    losses = [clipped(r.exp(), a) * k for r, a, k in zip(log_ratios(scored), advantages, keep, strict=True)]
    assert first_step(results, "opsm, mixed signs")["train/pg_loss"] == close(mean_of_sample_means(scored, losses))


def test_returns_are_discounted_with_the_kl_of_unmasked_tokens(results, scored, other):
    """Case 24, with one sample whose middle is masked."""
    returns = []
    for s, reference in zip(scored, score(other, SAMPLES), strict=True):
        after, of_sample = 0.0, torch.zeros(s.sample.response)
        is_last = True
        for t in reversed(range(s.sample.response)):
            if s.mask[t]:
                after = 0.9 * after - 0.5 * (s.log_probs - reference.log_probs)[t] + is_last * s.sample.reward
                of_sample[t], is_last = after, False
        returns.append(of_sample)
    rollout = results["returns"][0].rollout
    assert rollout["rollout/returns"] == close(mean_of_sample_means(scored, returns))
    unmasked = torch.cat([r[s.mask > 0] for r, s in zip(returns, scored, strict=True)])
    white = [(r - unmasked.mean()) / unmasked.std() for r in returns]
    assert rollout["rollout/advantages"] == close(mean_of_sample_means(scored, white))
    kl = [s.log_probs - r.log_probs for s, r in zip(scored, score(other, SAMPLES), strict=True)]
    assert rollout["rollout/kl"] == close(mean_of_sample_means(scored, kl))


# Corrections.


def test_tis(results, scored):
    ratios = [r.exp() for r in log_ratios(scored)]
    weights = [r.clamp(0.3, 1.2) for r in ratios]
    step = first_step(results, "tis")
    losses = [-w * s.sample.reward for w, s in zip(weights, scored, strict=True)]
    assert step["train/pg_loss"] == close(mean_of_sample_means(scored, losses))
    figures = {
        "tis": ratios,
        "tis_abs": [(r - 1).abs() for r in ratios],
        "tis_clipfrac": [(w != r).float() for w, r in zip(weights, ratios, strict=True)],
        "ois": [torch.ones_like(r) for r in ratios],
    }
    for name, values in figures.items():
        assert step[f"train/{name}"] == close(mean_of_sample_means(scored, values)), name


@pytest.mark.parametrize("kind", MIS)
def test_mis(kind, results, scored):
    log_ratio = log_ratios(scored)
    if kind.startswith("sequence"):
        log_ratio = [(r * s.mask).sum().expand(len(r)) for r, s in zip(log_ratio, scored, strict=True)]
    elif kind.startswith("geometric"):
        log_ratio = sample_means(scored, log_ratio)
    low, high = {"token": (0.5, 1.5), "sequence": (0.01, 2.0), "geometric": (0.2, 2.0)}[kind.split(",")[0]]
    ratios = [r.exp() for r in log_ratio]
    weights = [r * ((low <= r) & (r <= high)) if "masked" in kind else r.clamp(low, high) for r in ratios]
    losses = [-w * s.sample.reward for w, s in zip(weights, scored, strict=True)]
    step = first_step(results, f"mis: {kind}")
    assert step["train/pg_loss"] == close(mean_of_sample_means(scored, losses))
    assert step["train/mis"] == close(mean_of_sample_means(scored, weights))
    cut = [(w != r).float() for w, r in zip(weights, ratios, strict=True)]
    assert 0 < step["train/mis_clipfrac"] == close(mean_of_sample_means(scored, cut))


def test_mismatch_can_be_measured_without_correcting(results, scored):
    plain, measured = results["engine"][0], results["measured"][0]
    assert measured.steps[0]["train/pg_loss"] == plain.steps[0]["train/pg_loss"]
    ratios = [r.exp() for r in log_ratios(scored[:5])]
    assert measured.steps[0]["train/tis"] == close(mean_of_sample_means(scored[:5], ratios))
    later = [(s.log_probs - s.rollout).abs() for s in scored[5:]]
    assert measured.steps[1]["train/train_rollout_logprob_abs_diff"] == close(mean_of_tokens(scored[5:], later))
    assert "rollout/log_probs" in measured.rollout and "rollout/log_probs" not in plain.rollout


# Functions of users.


def test_a_custom_correction_sees_whole_samples_and_its_masks_hold(results, scored):
    losses = [-s.sample.reward / 2 * torch.cat([torch.zeros(1), torch.ones(s.sample.response - 1)]) for s in scored]
    step = first_step(results, "custom tis")
    assert step["train/pg_loss"] == close(mean_of_sample_means(scored, losses))
    ratios = [r.exp() for r in log_ratios(scored)]
    assert step["train/my_ratio"] == close(mean_of_sample_means(scored, ratios))


@pytest.mark.parametrize("case", ["custom loss", "custom loss alone", "custom loss per token"])
def test_train_metadata_reaches_a_custom_loss(case, results, scored):
    """Case 29."""
    mean = mean_of_tokens if "token" in case else mean_of_sample_means
    want = mean(scored, [-s.log_probs * s.sample.train_metadata["weight"] for s in scored])
    step = first_step(results, case)
    assert step["train/loss"] == step["train/weighed"] == close(want)
    assert step["train/gap"] == close(0) and step["train/grad_norm"] > 0
    difference = mean_of_tokens(scored, [(s.log_probs - s.rollout).abs() for s in scored])
    assert step["train/train_rollout_logprob_abs_diff"] == close(difference)


def test_a_custom_loss_alone_has_no_log_probs_from_before(results):
    with_them, without = results["custom loss"][0].rollout, results["custom loss alone"][0].rollout
    assert {"rollout/log_probs", "rollout/advantages", "perf/log_probs_time"} <= with_them.keys()
    assert not {"rollout/log_probs", "rollout/advantages", "perf/log_probs_time"} & without.keys()


def test_a_reducer_decides_how_tokens_add_up(results, scored):
    want = np.mean([-s.sample.reward * s.mask.sum().item() / 8 for s in scored])
    assert first_step(results, "reducer")["train/pg_loss"] == close(want)


def test_a_last_look_at_the_rollout_may_narrow_its_masks(results, scored):
    """What it masks counts as 0 in means over as many tokens as before."""
    kept = [(s.log_probs > -4.15).float() for s in scored]  # ln 64 = 4.16
    assert 0 < sum(float((k * s.mask).sum()) for k, s in zip(kept, scored, strict=True))
    assert any(((1 - k) * s.mask).any() for k, s in zip(kept, scored, strict=True))
    advantages = [s.sample.reward * k for s, k in zip(scored, kept, strict=True)]
    want = mean_of_sample_means(scored, advantages)
    assert results["narrowed"][0].rollout["rollout/advantages"] == close(want)
    assert first_step(results, "narrowed")["train/pg_loss"] == close(-want), "the ratio is 1 in the first step"


def test_custom_advantages(results, scored):
    want = mean_of_sample_means(scored, [s.sample.reward * torch.arange(s.sample.response).float() for s in scored])
    rollout = results["custom advantages"][0].rollout
    assert rollout["rollout/advantages"] == rollout["rollout/returns"] == close(want)


# Teachers and references.


def test_a_teacher_in_the_trainer(results, scored, other):
    teacher = score(other, SAMPLES)
    kl = [s.log_probs - t.log_probs for s, t in zip(scored, teacher, strict=True)]
    first, second = results["teacher in the trainer"]
    assert first.rollout["rollout/teacher_log_probs"] == close(
        mean_of_sample_means(scored, [t.log_probs for t in teacher])
    )
    assert first.rollout["rollout/opd_reverse_kl"] == close(mean_of_sample_means(scored, kl))
    advantages = [s.sample.reward - 0.3 * k for s, k in zip(scored, kl, strict=True)]
    assert first.rollout["rollout/advantages"] == close(mean_of_sample_means(scored, advantages))
    assert first.rollout["perf/teacher_log_probs_time"] > 0
    assert second.rollout["rollout/teacher_log_probs"] == first.rollout["rollout/teacher_log_probs"]


def test_a_teacher_of_the_rollout(results, scored):
    kl = [s.log_probs - torch.tensor(s.sample.teacher) for s in scored]
    rollout = results["teacher of the rollout"][0].rollout
    assert rollout["rollout/opd_reverse_kl"] == close(mean_of_sample_means(scored, kl))
    assert rollout["rollout/teacher_log_probs"] == close(
        mean_of_sample_means(scored, [torch.tensor(s.sample.teacher) for s in scored])
    )


def test_the_reference_becomes_the_policy(results):
    first, second = (rollout.rollout for rollout in results["reference follows"])
    assert abs(first["rollout/ref_log_probs"] - first["rollout/log_probs"]) > 1e-3
    assert second["rollout/ref_log_probs"] == second["rollout/log_probs"]


def test_the_old_actor_is_the_policy_of_one_update_ago(results):
    """The first two rollouts are of the initial weights, the third of those after the first update."""
    kept, plain = (
        [rollout.rollout["rollout/log_probs"] for rollout in results[case]] for case in ("old actor", "no old actor")
    )
    assert kept[0] == kept[1] == plain[0]
    assert kept[2] == close(plain[1]) and abs(plain[1] - plain[0]) > 1e-3
    assert abs(results["old actor"][1].steps[0]["train/ppo_kl"]) > 1e-3


# Memory, and what trains.


def test_entropy_before_the_update(results, scored):
    want = mean_of_sample_means(scored, [s.entropy for s in scored])
    assert results["entropy"][0].rollout["rollout/entropy"] == close(want)


def test_recomputing_the_loss_changes_nothing(results):
    once, twice = (first_step(results, case) for case in ("grpo", "recomputed"))
    assert {n: once[n] for n in ("train/loss", "train/grad_norm")} == {
        n: close(twice[n]) for n in ("train/loss", "train/grad_norm")
    }


def changed(results, case):
    before, after = (rollout.weights for rollout in results[case])
    return {name for name in before if before[name] != after[name]}


def test_only_some_parameters_train(results):
    names = changed(results, "experts of one layer")
    assert names and all(name.startswith("model.layers.0.") or "layers.1.mlp" in name for name in names)
    assert any("layers.1.mlp" in name for name in names)


def test_some_parameters_are_frozen(results):
    names = changed(results, "but its norms")
    assert names and not any("norm" in name or "embed" in name for name in names)
    assert any("q_proj" in name for name in names) and any("mlp" in name for name in names)


def test_refusals(model):
    teacher = ["--use-opd", "--opd-type", "sglang"]
    custom_tis = ["--use-tis", "--custom-tis-function-path", f"{HOOKS}.forgets_a_token"]
    without_teacher = varied()
    cases = {
        "TIS without log-probs": (model, ["--use-tis"], SAMPLES, False),
        "no teacher": (model, teacher, without_teacher, True),
        "no such parameter": (model, ["--freeze-params-name-list", "norm", "atention"], SAMPLES, True),
        "nothing trains": (model, ["--freeze-params-name-list", "."], SAMPLES, True),
        "a token forgotten": (model, custom_tis, SAMPLES, True),
        "no advantages": (model, ["--custom-advantage-function-path", f"{HOOKS}.no_advantages"], SAMPLES, True),
        "unmasked": (model, ["--rollout-data-postprocess-path", f"{HOOKS}.unmasks"], SAMPLES, True),
        "no function": (model, ["--custom-advantage-function-path", f"{HOOKS}.nothing"], SAMPLES, True),
    }
    (said,) = run_ranks(refusals, 1, cases)
    assert "--use-tis: the rollout has no log-probs of the engine" in said["TIS without log-probs"]
    assert "--opd-type sglang: the rollout has no log-probs of a teacher" in said["no teacher"]
    assert "--freeze-params-name-list atention: no parameter has that in its name" in said["no such parameter"]
    assert "nothing is left to train on training rank 0" in said["nothing trains"]
    assert "--custom-tis-function-path: pg_loss came back with the shape" in said["a token forgotten"]
    assert "left no 'advantages' in rollout_data" in said["no advantages"]
    assert "a loss mask has a token that was masked before" in said["unmasked"]
    assert "has no 'nothing'" in said["no function"]
