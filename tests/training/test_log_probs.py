"""The trainer's log-probs against those of transformers, for the same checkpoint."""

from __future__ import annotations

import pytest
import torch

from tests.distributed import run_ranks
from tests.training.ranks import response_log_probs
from tests.training.rollouts import varied


def of_transformers(directory, samples, temperature=1.0):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    scores = []
    for sample in samples:
        tokens = torch.tensor([sample.tokens])
        with torch.no_grad():
            log_softmax = (model(tokens).logits[0, :-1] / temperature).log_softmax(-1)
        scores += log_softmax.gather(-1, tokens[0, 1:, None])[-sample.response :, 0].tolist()
    return torch.tensor(scores)


def all_log_probs(dense, moe, samples):
    return {
        "dense": response_log_probs(dense, [], samples, micro_batch_size=10),
        "moe": response_log_probs(moe, [], samples, micro_batch_size=10),
        "one sample a row": response_log_probs(dense, [], samples, micro_batch_size=1),
        "temperature": response_log_probs(dense, ["--rollout-temperature", "0.7"], samples, micro_batch_size=10),
        "chunks": response_log_probs(dense, ["--log-probs-chunk-size", "16"], samples, micro_batch_size=10),
        "bf16": response_log_probs(dense, ["--bf16"], samples, micro_batch_size=10),
    }


@pytest.fixture(scope="module")
def checkpoints(model, moe):
    return {"dense": model, "moe": moe}


@pytest.fixture(scope="module")
def ours(checkpoints):
    (results,) = run_ranks(all_log_probs, 1, checkpoints["dense"], checkpoints["moe"], varied())
    return {name: torch.tensor(scores) for name, scores in results.items()}


@pytest.mark.parametrize("model", ["dense", "moe"])
def test_equal_transformers(model, checkpoints, ours):
    torch.testing.assert_close(ours[model], of_transformers(checkpoints[model], varied()), atol=1e-5, rtol=0)


def test_of_logits_over_the_temperature(checkpoints, ours):
    torch.testing.assert_close(
        ours["temperature"], of_transformers(checkpoints["dense"], varied(), 0.7), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("way", ["one sample a row", "chunks"])
def test_packing_and_chunks_change_nothing(way, ours):
    torch.testing.assert_close(ours[way], ours["dense"], atol=2e-6, rtol=0)


def test_bfloat16_is_near(ours):
    assert 0 < (ours["bf16"] - ours["dense"]).abs().max() < 0.2
