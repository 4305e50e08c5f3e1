"""A critic on one rank, and the policy that learns from its values, against values worked out by hand."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from slime.tiny import write_checkpoint
from tests.distributed import run_ranks
from tests.training.checkpoint_ranks import several
from tests.training.critic_ranks import four_against_two_and_two, of_one_rank, rates_otherwise, write_score
from tests.training.expected import mean_of_sample_means, score
from tests.training.rollouts import varied

SAMPLES = varied()
GAMMA, LAMBDA, CLIP = 0.9, 0.8, 0.05
OPTIONS = ["--gamma", str(GAMMA), "--lambd", str(LAMBDA), "--value-clip", str(CLIP), "--use-rollout-logprobs"]
RESUMED = {
    "float32": ["--lr-warmup-iters", "3"],
    "bfloat16": ["--bf16"],
    "without distributed optimizer": ["--no-use-distributed-optimizer"],
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("critic")


@pytest.fixture(scope="module")
def model(directory):
    return write_checkpoint(directory / "model")


@pytest.fixture(scope="module")
def reward_model(directory, model):
    return write_score(model, directory / "reward-model")


@pytest.fixture(scope="module")
def found(directory, model, reward_model):
    arguments = (str(model), str(reward_model), str(directory), OPTIONS, SAMPLES, {"micro_batch_size": 10})
    return run_ranks(of_one_rank, 1, *arguments)[0]


@pytest.fixture(scope="module")
def values(reward_model):
    """Of each sample's response tokens: of the states that they were chosen in."""
    return values_by_transformers(reward_model)


def values_by_transformers(directory):
    from transformers import AutoModel

    body = AutoModel.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    head = load_file(directory / "model.safetensors")["score.weight"][0]
    with torch.no_grad():
        return [(body(torch.tensor([s.tokens])).last_hidden_state[0] @ head)[-s.response - 1 : -1] for s in SAMPLES]


@pytest.fixture(scope="module")
def estimates(values):
    """Advantages and returns of each sample, token by token."""
    found = []
    for sample, value in zip(SAMPLES, values, strict=True):
        chosen = [t for t in range(sample.response) if sample.mask[t]]
        advantages, returns, following, advantage = torch.zeros(len(value)), torch.zeros(len(value)), 0.0, 0.0
        for t in reversed(chosen):
            reward = sample.reward if t == chosen[-1] else 0.0
            advantage = reward + GAMMA * following - value[t] + GAMMA * LAMBDA * advantage
            following = value[t]
            advantages[t], returns[t] = advantage, advantage + value[t]
        found.append((advantages, returns))
    return found


def close(value):
    return pytest.approx(value, abs=1e-5, rel=1e-5)


def test_values_are_those_of_the_states_that_tokens_were_chosen_in(found, values):
    assert found["values"] == close(torch.cat(values).tolist())


def test_a_bias_of_a_reward_models_head_is_not_left_out_unless_it_is_zero(found):
    assert "score.bias in model.safetensors is not zero, and the model has none" in found["biased"]


def test_a_critic_without_a_head_expects_nothing(found):
    assert set(found["new"]) == {0.0}


def test_returns(found, estimates):
    assert found["returns"] == close(torch.cat([returns for _, returns in estimates]).tolist())


def test_the_policy_learns_by_advantages_against_the_values(found, values, estimates, model):
    scored = score(str(model), SAMPLES)
    ratios = [(s.log_probs - s.rollout).exp() for s in scored]
    losses = [
        -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        for ratio, (advantages, _) in zip(ratios, estimates, strict=True)
    ]
    result = found["trained"]
    assert result.steps[0]["train/pg_loss"] == close(mean_of_sample_means(scored, losses))
    means = {
        "values": values,
        "advantages": [advantages for advantages, _ in estimates],
        "returns": [returns for _, returns in estimates],
    }
    for name, of_samples in means.items():
        assert result.rollout[f"rollout/{name}"] == close(mean_of_sample_means(scored, of_samples)), name


def test_a_policy_that_waits_for_its_critic_reports_and_stays_as_it_is(found, model):
    waits, learns = found["untrained"], found["trained"]
    assert waits.steps == [] and waits.rollout["rollout/returns"] == learns.rollout["rollout/returns"]
    assert learns.steps[0]["train/step"] == 0
    for name, tensor in load_file(model / "model.safetensors").items():
        product = float(tensor.double().flatten() @ torch.arange(tensor.numel()).double().cos())
        assert waits.weights[name] == pytest.approx(product, rel=1e-9)
        assert learns.weights[name] != waits.weights[name]


def test_the_value_loss_of_the_first_step(found, values, estimates, model):
    (step,) = found["critic"].steps
    squares = [(v - returns).square() / 2 for v, (_, returns) in zip(values, estimates, strict=True)]
    want = mean_of_sample_means(score(str(model), SAMPLES), squares)
    assert step["critic-train/value_loss"] == step["critic-train/loss"] == close(want)
    assert step["critic-train/value_clipfrac"] == 0 and step["critic-train/grad_norm"] > 0
    assert step["critic-train/global_batch_size"] == len(SAMPLES)


def test_tokens_of_another_layout_are_refused(found):
    number = sum(s.response for s in SAMPLES)
    assert (
        f"values of 3 response tokens came from the rank whose place is this one's, which has {number}"
        in found["other layout"]
    )


def test_an_exported_critic_is_a_classifier_of_transformers_and_loads_again(found, directory, model):
    from transformers import AutoModelForSequenceClassification

    saved = load_file(directory / "saved" / "model.safetensors")
    assert saved.keys() == load_file(model / "model.safetensors").keys() | {"score.weight"}
    assert all(torch.equal(saved[name], tensor) for name, tensor in found["exported"].items())
    assert found["loaded"].keys() == saved.keys()
    assert all(torch.equal(saved[name], tensor) for name, tensor in found["loaded"].items())
    classifier = AutoModelForSequenceClassification.from_pretrained(directory / "saved", num_labels=1)
    assert torch.equal(classifier.score.weight, saved["score.weight"])


def test_the_checkpoint_of_a_policy_is_none_of_a_critic(found):
    assert "it gives logits of tokens, where this model gives values" in found["checkpoint of a policy"]


@pytest.fixture(scope="module")
def resumed(directory, model):
    out = str(directory / "resumed")
    calls = {
        "same": (four_against_two_and_two, str(model), out, RESUMED),
        "rates": (rates_otherwise, str(model), f"{out}/bfloat16", ["--bf16", "--critic-lr", "0.02"]),
    }
    return run_ranks(several, 1, calls)[0]


@pytest.mark.parametrize("case", RESUMED)
def test_a_resumed_critic_is_the_same_to_the_last_bit(case, resumed):
    differences, whole, after, *_ = resumed["same"][case]
    assert differences == []
    assert len(whole) == 4 and whole == after


def test_another_rate_takes_effect_when_it_is_resumed(resumed):
    assert set(resumed["rates"]) == {0.02}


@pytest.mark.parametrize("case", RESUMED)
def test_its_checkpoint_is_converted_with_the_head(case, resumed):
    *_, saved, converted = resumed["same"][case]
    assert converted.keys() == saved.keys() and "score.weight" in saved
    assert all(torch.equal(converted[name], tensor.to(converted[name])) for name, tensor in saved.items())
    assert converted["score.weight"].abs().max() > 0
