"""What a Trainer reports and does on one rank, against values worked out by hand from transformers' logits."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.distributed import run_ranks
from tests.training.expected import mean_of_sample_means, mean_of_tokens, score
from tests.training.ranks import refusals, save_and_export, train_all, trainer
from tests.training.rollouts import Made, shares, varied

SFT = ["--loss-type", "sft_loss"]
ROLLOUT = ["--use-rollout-logprobs"]
PER_TOKEN = ["--calculate-per-token-loss"]
TOGETHER = {"micro_batch_size": 10}
TWO_STEPS = {"micro_batch_size": 10, "num_steps": 2}
SAMPLES = varied()
CUT_STEPS = {"micro_batch_size": 3, "num_steps": 2}


def cut_up(samples: list[Made]) -> list[Made]:
    """The same as parts that fanned out: each is trained on one more piece of the response, after all before it."""
    parts = []
    for i, s in enumerate(samples):
        prompt, middle = len(s.tokens) - s.response, (s.response + 1) // 2
        cuts = [0, middle, s.response] if s.response > 1 else [0, s.response]
        for start, end in pairwise(cuts):
            tokens, mask, log_probs = s.tokens[: prompt + end], s.mask[start:end], s.log_probs[start:end]
            parts.append(Made(tokens, end - start, s.reward, mask, log_probs, s.truncated, whole=i))
    return parts


CUT = cut_up(SAMPLES)


@pytest.fixture(scope="module")
def results(model, other):
    masked = [Made(s.tokens, s.response, 1.0, mask=[0] * s.response) for s in SAMPLES]
    nothing_sampled = [
        Made(s.tokens, s.response, s.reward, s.mask, [0.0 if m else -1e30 for m in s.mask]) for s in SAMPLES
    ]
    kl = ["--use-kl-loss", "--kl-loss-coef", "0.5", "--kl-loss-type", "k3", "--ref-load"]
    cases = {
        "rollout log-probs, cut": (model, ROLLOUT, CUT, CUT_STEPS),
        "sft": (model, SFT, SAMPLES, TOGETHER),
        "sft per token": (model, SFT + PER_TOKEN, SAMPLES, TOGETHER),
        "sft, all masked": (model, SFT, masked, TOGETHER),
        "policy": (model, [], SAMPLES, TWO_STEPS),
        "rollout log-probs": (model, ROLLOUT, SAMPLES, TWO_STEPS),
        "rollout log-probs, per token": (model, ROLLOUT + PER_TOKEN, SAMPLES, TOGETHER),
        "all masked": (model, ["--normalize-advantages"], masked, TOGETHER),
        "masked tokens without log-probs": (model, ROLLOUT, nothing_sampled, TOGETHER),
        "reference is the actor": (model, [*kl, model], SAMPLES, TWO_STEPS),
        "other reference": (model, [*kl, other], SAMPLES, TOGETHER),
        "KL penalty": (model, ["--kl-coef", "0.5", "--kl-loss-type", "k1", "--ref-load", other], SAMPLES, TOGETHER),
        "entropy bonus": (model, ["--entropy-coef", "0.01"], SAMPLES, TOGETHER),
        "temperature": (model, ["--rollout-temperature", "0.5"], SAMPLES, TOGETHER),
        "warm-up and decay": (
            model,
            ["--lr-warmup-iters", "2", "--lr-decay-style", "linear", "--lr-decay-iters", "6", "--min-lr", "1e-4"],
            SAMPLES,
            {"micro_batch_size": 10, "num_steps": 4},
        ),
        "bf16": (model, ["--bf16"], SAMPLES, TWO_STEPS),
    }
    return run_ranks(train_all, 1, cases, deadline=280)[0]


@pytest.fixture(scope="module")
def scored(model):
    return score(model, SAMPLES)


def first_step(results, case):
    return results[case][0].steps[0]


def test_samples_cut_into_parts_have_the_loss_of_the_whole(results):
    """And the gradient: the mean over samples is over wholes, and each whole's over all tokens of its parts."""
    whole, cut = results["rollout log-probs"][0], results["rollout log-probs, cut"][0]
    for name in ("train/loss", "train/pg_loss", "train/entropy_loss", "train/grad_norm"):
        for one, same in zip(whole.steps, cut.steps, strict=True):
            assert same[name] == pytest.approx(one[name], rel=2e-5, abs=1e-7), name


# Supervised fine-tuning.


def test_sft_loss_is_the_mean_of_cross_entropies_of_samples(results, scored):
    want = mean_of_sample_means(scored, [-s.log_probs for s in scored])
    assert first_step(results, "sft")["train/loss"] == pytest.approx(want, abs=1e-5)


def test_sft_loss_per_token(results, scored):
    assert first_step(results, "sft per token")["train/loss"] == pytest.approx(
        mean_of_tokens(scored, [-s.log_probs for s in scored]), abs=1e-5
    )


def test_sft_learns(results):
    assert results["sft"][1].steps[0]["train/loss"] < first_step(results, "sft")["train/loss"]


@pytest.mark.parametrize("case", ["sft, all masked", "all masked"])
def test_nothing_to_learn_from(case, results):
    for rollout in results[case]:
        assert all(np.isfinite(value) for value in rollout.steps[0].values())
        assert rollout.steps[0]["train/loss"] == rollout.steps[0]["train/grad_norm"] == 0


# The policy loss, and what it is made of.


def test_log_probs_of_trainer_and_engine(results, scored):
    rollout = results["policy"][0].rollout
    assert rollout["rollout/log_probs"] == pytest.approx(
        mean_of_sample_means(scored, [s.log_probs for s in scored]), abs=1e-5
    )
    assert rollout["rollout/rollout_log_probs"] == pytest.approx(
        mean_of_sample_means(scored, [s.rollout for s in scored]), abs=1e-5
    )


def test_sample_metrics(results):
    rollout = results["policy"][0].rollout
    assert rollout["rollout/rewards"] == pytest.approx(np.mean([s.reward for s in SAMPLES]), abs=1e-6)
    assert rollout["rollout/truncated"] == 0.1
    assert rollout["rollout/response_lengths"] == np.mean([s.response for s in SAMPLES])
    assert rollout["rollout/total_lengths"] == np.mean([len(s.tokens) for s in SAMPLES])


def test_the_first_step_is_on_policy(results):
    step = first_step(results, "policy")
    unmasked = [s.reward if any(s.mask) else 0.0 for s in SAMPLES[:5]]
    assert step["train/pg_loss"] == pytest.approx(-np.mean(unmasked), abs=1e-5)
    assert step["train/ppo_kl"] == pytest.approx(0, abs=1e-6) and step["train/pg_clipfrac"] == 0


def test_old_log_probs_stay_fixed_over_the_steps_of_a_rollout(results):
    assert abs(results["policy"][0].steps[1]["train/ppo_kl"]) > 1e-4


def test_mismatch_of_each_step_from_the_recomputed_log_probs(results, scored):
    for step, part in zip(results["policy"][0].steps, (scored[:5], scored[5:]), strict=True):
        differences = [(s.log_probs - s.rollout).abs() for s in part]
        assert step["train/train_rollout_logprob_abs_diff"] == pytest.approx(
            mean_of_tokens(part, differences), abs=1e-5
        )
        largest = max((d * s.mask).max().item() for d, s in zip(differences, part, strict=True))
        assert step["train/train_rollout_logprob_abs_diff_max"] == pytest.approx(largest, abs=1e-5)


def test_mismatch_costs_no_forward_pass_with_rollout_log_probs(results):
    rollout = results["rollout log-probs"][0]
    assert "perf/log_probs_time" not in rollout.rollout and "rollout/log_probs" not in rollout.rollout
    name = "train/train_rollout_logprob_abs_diff"
    assert rollout.steps[0][name] == pytest.approx(first_step(results, "policy")[name], abs=1e-5)
    assert name not in rollout.steps[1]  # the weights are not those that sampled any more


@pytest.mark.parametrize(
    ("case", "count", "mean"),
    [("rollout log-probs", 5, mean_of_sample_means), ("rollout log-probs, per token", 10, mean_of_tokens)],
)
def test_policy_loss_against_the_engines_log_probs(case, count, mean, results, scored):
    part = scored[:count]
    ratios = [(s.log_probs - s.rollout).exp() for s in part]
    losses = [
        -torch.minimum(r * s.sample.reward, r.clamp(0.8, 1.2) * s.sample.reward)
        for r, s in zip(ratios, part, strict=True)
    ]
    step = first_step(results, case)
    assert step["train/pg_loss"] == pytest.approx(mean(part, losses), abs=1e-5)
    assert step["train/ppo_kl"] == pytest.approx(mean(part, [s.rollout - s.log_probs for s in part]), abs=1e-5)
    clipped = [((r.clamp(0.8, 1.2) - r) * s.sample.reward < 0).float() for r, s in zip(ratios, part, strict=True)]
    assert step["train/pg_clipfrac"] == pytest.approx(mean(part, clipped), abs=1e-5)


def test_old_log_probs_of_masked_tokens_do_not_matter(results):
    assert all(np.isfinite(value) for value in first_step(results, "masked tokens without log-probs").values())


def test_entropy_and_its_bonus(results, scored):
    entropy = mean_of_sample_means(scored, [s.entropy for s in scored])
    step = first_step(results, "entropy bonus")
    assert step["train/entropy_loss"] == pytest.approx(entropy, abs=1e-5)
    assert step["train/loss"] == pytest.approx(step["train/pg_loss"] - 0.01 * entropy, abs=1e-5)


def test_log_probs_are_of_logits_over_the_temperature(results, model):
    at_half = score(model, SAMPLES, temperature=0.5)
    want = mean_of_sample_means(at_half, [s.log_probs for s in at_half])
    assert results["temperature"][0].rollout["rollout/log_probs"] == pytest.approx(want, abs=1e-5)


# The reference model.


def test_no_kl_to_a_reference_that_is_the_actor(results):
    rollout = results["reference is the actor"][0]
    assert rollout.steps[0]["train/kl_loss"] == 0
    assert rollout.rollout["rollout/ref_log_probs"] == rollout.rollout["rollout/log_probs"]


def test_the_reference_stays_while_the_actor_learns(results):
    first, second = results["reference is the actor"]
    assert second.steps[0]["train/kl_loss"] > 1e-5
    assert second.rollout["rollout/ref_log_probs"] == first.rollout["rollout/ref_log_probs"]


def test_another_reference(results, scored, other):
    reference = score(other, SAMPLES)
    rollout = results["other reference"][0]
    want = mean_of_sample_means(scored, [r.log_probs for r in reference])
    assert rollout.rollout["rollout/ref_log_probs"] == pytest.approx(want, abs=1e-5)
    difference = [s.log_probs - r.log_probs for s, r in zip(scored, reference, strict=True)]
    kl = mean_of_sample_means(scored, [(-d).exp() - 1 + d for d in difference])
    step = rollout.steps[0]
    assert step["train/kl_loss"] == pytest.approx(kl, rel=1e-5, abs=1e-5)
    assert step["train/loss"] == pytest.approx(step["train/pg_loss"] + 0.5 * step["train/kl_loss"], abs=1e-5)


def test_scoring_by_the_reference_leaves_the_actor_as_it_was(results):
    assert (
        results["other reference"][0].rollout["rollout/log_probs"] == results["policy"][0].rollout["rollout/log_probs"]
    )


def test_a_kl_penalty_lowers_the_advantages(results, scored, other):
    reference = score(other, SAMPLES)
    penalised = [s.sample.reward - 0.5 * (s.log_probs - r.log_probs) for s, r in zip(scored, reference, strict=True)]
    want = mean_of_sample_means(scored, penalised)
    assert results["KL penalty"][0].rollout["rollout/advantages"] == pytest.approx(want, abs=1e-5)


# Steps, times, precision.


def test_learning_rate_warms_up_and_decays(results):
    rates = [step["train/lr-pg_0"] for rollout in results["warm-up and decay"] for step in rollout.steps]
    assert rates == pytest.approx([0, 5e-4, 1e-3, 7.75e-4, 5.5e-4, 3.25e-4, 1e-4, 1e-4])


def test_steps_are_counted_over_rollouts(results):
    steps = [step for rollout in results["policy"] for step in rollout.steps]
    assert [step["train/step"] for step in steps] == [0, 1, 2, 3]
    assert [step["train/global_batch_size"] for step in steps] == [5, 5, 5, 5]


def test_every_phase_has_its_time(results):
    rollout = results["other reference"][0].rollout
    names = ("train", "data_preprocess", "log_probs", "ref_log_probs", "actor_train")
    assert all(0 < rollout[f"perf/{name}_time"] <= rollout["perf/train_time"] for name in names)
    assert all(rollout[f"perf/{name}_tflops"] > 0 for name in ("log_probs", "ref_log_probs", "actor_train"))
    assert rollout["perf/actor_train_tok_per_s"] > 0


def test_bfloat16_is_near_float32(results):
    for got, want in zip(results["bf16"][0].steps, results["policy"][0].steps, strict=True):
        assert got["train/loss"] == pytest.approx(want["train/loss"], abs=0.02)
        assert got["train/grad_norm"] == pytest.approx(want["train/grad_norm"], rel=0.05)


# Weights, and what is refused.


def test_exported_and_saved_weights_are_the_same_and_trained(directory, model):
    ((exported, saved),) = run_ranks(save_and_export, 1, model, str(directory / "saved"), SAMPLES)
    before = load_file(f"{model}/model.safetensors")
    assert exported.keys() == saved.keys() == before.keys()
    assert all(torch.equal(exported[name], saved[name]) for name in saved)
    assert all((saved[name] - before[name]).abs().max() > 1e-5 for name in saved)


def test_refusals(model):
    promptless = [*SAMPLES[:3], Made([5, 6, 7], 3)]
    not_a_number = [*SAMPLES[:3], Made([5, 6, 7], 2, reward=float("nan"))]
    cases = {
        "no log-probs": (model, ROLLOUT, SAMPLES, False),
        "no reference": (model, ["--kl-coef", "0.1"], SAMPLES, True),
        "no prompt": (model, [], promptless, True),
        "not a number": (model, [], not_a_number, True),
        "no samples": (model, [], [], True),
        "too many ranks": (model, ["--tensor-model-parallel-size", "2"], SAMPLES, True),
        "Transformer Engine": (model, ["--transformer-impl", "transformer_engine"], SAMPLES, True),
        "fp8": (model, ["--fp8-format", "hybrid"], SAMPLES, True),
        "DeepEP": (model, ["--moe-token-dispatcher-type", "flex", "--moe-enable-deepep"], SAMPLES, True),
        "NCCL": (model, ["--nccl-communicator-config-path", "nccl.yaml"], SAMPLES, True),
        "memory": (model, ["--record-memory-history"], SAMPLES, True),
        "fine": (model, [], SAMPLES, False),
    }
    (said,) = run_ranks(refusals, 1, cases)
    assert "--use-rollout-logprobs: the rollout has no log-probs" in said["no log-probs"]
    assert "--ref-load" in said["no reference"]
    assert "sample 3 has no prompt token" in said["no prompt"]
    assert (
        "NaN" in said["not a number"]
        and "in rollout 0, optimizer step 0 of it, on training rank 0" in said["not a number"]
    )
    assert "rollout 0 has no samples" in said["no samples"]
    assert (
        "1 training ranks can't be divided into models of 2 ranks: --tensor-model-parallel-size 2"
        in said["too many ranks"]
    )
    assert "transformer-engine computes on GPUs alone" in said["Transformer Engine"]
    assert "only the layers of Transformer Engine compute in fp8" in said["fp8"]
    assert "deep-ep computes on GPUs alone" in said["DeepEP"]
    assert "--nccl-communicator-config-path: the ranks talk by gloo" in said["NCCL"]
    assert "only memory of GPUs has a history; on a CPU use memray" in said["memory"]
    assert said["fine"] == ""


TARGETS = {"train_overall": True, "train_actor": True, "train_log_probs": False}  # whether it has a backward pass


def trace(directory, runs):
    batch = shares(varied(3), micro_batch_size=3)[0]
    for target in TARGETS:
        which = ("--profile-target", target, "--profile-step-start", "1", "--profile-step-end", "2")
        with trainer(directory, *which, "--run-dir", f"{runs}/{target}") as made:
            for rollout_id in range(3):
                made.train(rollout_id, batch)


def test_one_rollout_is_traced(tiny_model, tmp_path):
    run_ranks(trace, 1, str(tiny_model), str(tmp_path))
    for target, has_backward in TARGETS.items():
        (file,) = (tmp_path / target / "profiles").iterdir()
        assert file.name == f"{target}-1-rank0.json"
        names = {event.get("name", "") for event in json.loads(file.read_text())["traceEvents"]}
        assert "aten::mm" in names
        assert any("Backward" in name for name in names) == has_backward


def calls_of_hooks(directory):
    from tests.training import hooks

    paths = {
        "--custom-megatron-init-path": "note_init",
        "--custom-model-provider-path": "with_a_fixed_embedding",
        "--custom-megatron-before-log-prob-hook-path": "note_log_prob",
        "--custom-megatron-before-train-step-hook-path": "note_step",
    }
    options = [word for option, name in paths.items() for word in (option, f"{hooks.__name__}.{name}")]
    kl = ["--use-kl-loss", "--kl-loss-coef", "0.1", "--ref-load", directory]
    multiple = ["--data-pad-size-multiplier", "64"]
    batch = shares(varied(), num_steps=2, micro_batch_size=5)[0]
    with trainer(directory, *options, *kl, *multiple) as made:
        before = dict(flat_weights(made))
        made.train(7, batch)
        same = sorted(name for name, tensor in flat_weights(made) if torch.equal(tensor, before[name]))
        return hooks.CALLS, [row.tokens_1T.shape[1] % 64 for step in made.pack(batch) for row in step], same


def flat_weights(made):
    return [(name, tensor.clone()) for bucket in made.weights(50_000) for name, tensor in bucket]


def test_hooks_of_training_are_called_in_order(tiny_model):
    ((calls, beyond, same),) = run_ranks(calls_of_hooks, 1, str(tiny_model))
    scoring = [("log_prob", "ref_", 1), ("log_prob", "", 1)]
    assert same == ["model.embed_tokens.weight"]  # the provider took its gradient
    start = [("init", 1e-3, True), ("provide", True, True, None)]
    assert calls == [*start, *scoring, ("step", 7, 0, 0), ("step", 7, 1, 1)]
    assert beyond == [0, 0]  # rows are multiples of --data-pad-size-multiplier
