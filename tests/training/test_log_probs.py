"""The trainer's log-probs against those of transformers, for the same checkpoint."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest
import torch

from tests.distributed import run_ranks
from tests.training.ranks import response_log_probs, trainer
from tests.training.rollouts import Made, shares, varied

LARGE_VOCABULARY = 16384


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


FIXED = ("log_probs", "ref_log_probs", "entropy")


def fixed_scores(directory, samples, rows):
    """Those of each training micro-batch, computed in these rows; None: in the micro-batches themselves."""
    (batch,) = shares(samples, micro_batch_size=2, num_steps=2)
    reference = ("--use-kl-loss", "--kl-loss-coef", "0.1", "--ref-load", directory, "--use-rollout-entropy")
    with trainer(directory, *reference) as made:
        made.prepare(0, replace(batch, scored=rows))
        micro_batches = made.prepared.micro_batches
        return {name: [getattr(one, f"{name}_R") for one in micro_batches] for name in FIXED}


def all_log_probs(dense, moe, samples):
    return {
        "dense": response_log_probs(dense, [], samples, micro_batch_size=10),
        "moe": response_log_probs(moe, [], samples, micro_batch_size=10),
        "one sample a row": response_log_probs(dense, [], samples, micro_batch_size=1),
        "temperature": response_log_probs(dense, ["--rollout-temperature", "0.7"], samples, micro_batch_size=10),
        "chunks": response_log_probs(dense, ["--log-probs-chunk-size", "16"], samples, micro_batch_size=10),
        "bf16": response_log_probs(dense, ["--bf16"], samples, micro_batch_size=10),
        "as in training": fixed_scores(dense, samples, None),
        "in rows of their own": fixed_scores(dense, samples, [[7, 2, 0], [9, 8, 6, 5, 4, 3, 1]]),
    }


@pytest.fixture(scope="module")
def checkpoints(model, moe):
    return {"dense": model, "moe": moe}


@pytest.fixture(scope="module")
def ours(checkpoints):
    (results,) = run_ranks(all_log_probs, 1, checkpoints["dense"], checkpoints["moe"], varied())
    return {name: torch.tensor(scores) if isinstance(scores, list) else scores for name, scores in results.items()}


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_equal_transformers(kind, checkpoints, ours):
    torch.testing.assert_close(ours[kind], of_transformers(checkpoints[kind], varied()), atol=1e-5, rtol=0)


def test_of_logits_over_the_temperature(checkpoints, ours):
    torch.testing.assert_close(
        ours["temperature"], of_transformers(checkpoints["dense"], varied(), 0.7), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("way", ["one sample a row", "chunks"])
def test_packing_and_chunks_change_nothing(way, ours):
    torch.testing.assert_close(ours[way], ours["dense"], atol=2e-6, rtol=0)


def test_scores_of_rows_of_their_own_come_to_the_tokens_that_they_are_of(ours):
    for name, expected in ours["as in training"].items():
        got = ours["in rows of their own"][name]
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other, atol=2e-6, rtol=0)


def peak_bytes(work):
    """Of all tensors that are made in the work, those that exist at the same time; what the process itself takes would
    depend on what the kernel reclaims meanwhile."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


def memory_of_logits(directory, *options):
    """Of scoring, and of then training, in copies of all logits."""
    (batch,) = shares([Made([3] * 129, 128) for _ in range(8)], micro_batch_size=8)
    copy = 8 * 128 * LARGE_VOCABULARY * 4
    with trainer(directory, "--use-rollout-entropy", "--entropy-coef", "0.1", *options) as made:
        made.train(0, batch)  # from then on all that stays is there
        return peak_bytes(lambda: made.prepare(1, batch)) / copy, peak_bytes(made.update) / copy


def memory_of_both_ways(directory):
    return memory_of_logits(directory), memory_of_logits(directory, "--log-probs-chunk-size", "32")


def test_memory_of_logits(tmp_path):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    Qwen3ForCausalLM(Qwen3Config(vocab_size=LARGE_VOCABULARY, **sizes, **heads)).save_pretrained(tmp_path)
    ((at_once, in_chunks),) = run_ranks(memory_of_both_ways, 1, str(tmp_path))
    assert all(0.9 < copies < 1.6 for copies in at_once), at_once  # the logits and a few blocks: no second copy
    assert all(copies < 0.5 for copies in in_chunks), in_chunks


def test_bfloat16_is_near(ours):
    assert 0 < (ours["bf16"] - ours["dense"]).abs().max() < 0.2
