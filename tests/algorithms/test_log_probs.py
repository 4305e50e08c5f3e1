from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist

from slime.algorithms.log_probs import BLOCK, log_probs_and_entropy
from tests.distributed import run_ranks

ROWS, VOCAB = 7, 12


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(ROWS, VOCAB, generator=generator, dtype=torch.float64) * 4).to(dtype)
    return logits, torch.randint(0, VOCAB, (ROWS,), generator=generator), torch.randn(2, ROWS, generator=generator)


def expected(logits, targets, weights):
    """Log-probs, entropies, and the gradient of their weighted sum, by torch alone."""
    logits = logits.float().requires_grad_()
    log_softmax = logits.log_softmax(-1)
    log_probs, entropy = log_softmax.gather(-1, targets[:, None])[:, 0], -(log_softmax.exp() * log_softmax).sum(-1)
    (weights[0] @ log_probs + weights[1] @ entropy).backward()
    return log_probs.detach(), entropy.detach(), logits.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_torchs_log_softmax(dtype):
    logits, targets, weights = inputs(dtype)
    want = expected(logits, targets, weights)
    logits.requires_grad_()
    log_probs, entropy = log_probs_and_entropy(logits, targets, with_entropy=True)
    (weights[0] @ log_probs + weights[1] @ entropy).backward()
    torch.testing.assert_close((log_probs.detach(), entropy.detach()), want[:2])
    torch.testing.assert_close(logits.grad, want[2].to(dtype))


def test_log_probs_alone():
    logits, targets, weights = inputs(torch.float32)
    weights[1] = 0
    want = expected(logits, targets, weights)
    logits.requires_grad_()
    log_probs, entropy = log_probs_and_entropy(logits, targets)
    (weights[0] @ log_probs).backward()
    assert entropy is None
    torch.testing.assert_close((log_probs.detach(), logits.grad), (want[0], want[2]))


def test_more_rows_than_a_block_padding_a_temperature_and_the_gradient_in_place_of_the_logits():
    generator = torch.Generator().manual_seed(0)
    vocab, padding, rows = BLOCK // 8, 3, 20
    given = torch.randn(rows, vocab + padding, generator=generator)
    targets, weights = torch.randint(0, vocab, (rows,), generator=generator), torch.randn(2, rows, generator=generator)
    want = expected(given[:, :vocab] / 0.7, targets, weights)
    logits = given.clone().requires_grad_()
    made = logits * 1  # as by a layer: not the leaf, which autograd lets nobody write to
    log_probs, entropy = log_probs_and_entropy(
        made, targets, vocab_size=vocab, temperature=0.7, with_entropy=True, overwrite=True
    )
    (weights[0] @ log_probs + weights[1] @ entropy).backward()
    torch.testing.assert_close((log_probs.detach(), entropy.detach()), want[:2], atol=1e-4, rtol=0)
    torch.testing.assert_close(logits.grad[:, :vocab], want[2] / 0.7)
    assert logits.grad[:, vocab:].count_nonzero() == 0
    torch.testing.assert_close(made.detach(), logits.grad, rtol=0, atol=0)


def test_no_rows():
    logits = torch.zeros(0, VOCAB, requires_grad=True)
    log_probs, entropy = log_probs_and_entropy(logits, torch.zeros(0, dtype=torch.long), with_entropy=True)
    (log_probs.sum() + entropy.sum()).backward()
    assert log_probs.shape == entropy.shape == (0,) and logits.grad.shape == (0, VOCAB)


def test_very_unequal_logits_stay_finite():
    logits = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    log_probs, entropy = log_probs_and_entropy(logits, torch.tensor([2]), with_entropy=True)
    (log_probs.sum() + entropy.sum()).backward()
    assert log_probs.item() == -2e4 and entropy.item() == 0 and logits.grad.isfinite().all()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_what_cannot_be_sampled_adds_nothing_to_the_entropy_nor_to_gradients(temperature):
    """0 · log 0 is 0: equal to leaving these logits out."""
    logits, targets, weights = inputs(torch.float32)
    weights = weights * 1000
    masked = torch.cat([torch.full((ROWS, 1), -torch.inf), logits, torch.full((ROWS, 2), -torch.inf)], dim=1)
    want = expected(logits / temperature, targets, weights)
    masked.requires_grad_()
    log_probs, entropy = log_probs_and_entropy(masked, targets + 1, temperature=temperature, with_entropy=True)
    (weights[0] @ log_probs + weights[1] @ entropy).backward()
    torch.testing.assert_close((log_probs.detach(), entropy.detach()), want[:2])
    torch.testing.assert_close(masked.grad[:, 1:-2], want[2] / temperature)
    assert masked.grad[:, [0, -2, -1]].count_nonzero() == 0


def test_a_target_that_cannot_be_sampled():
    logits = torch.tensor([[0.0, -torch.inf, 0.0]], requires_grad=True)
    log_probs, entropy = log_probs_and_entropy(logits, torch.tensor([1]), with_entropy=True)
    entropy.sum().backward()
    assert log_probs.item() == -torch.inf and entropy.item() == pytest.approx(math.log(2))
    assert logits.grad.tolist() == [[0.0, 0.0, 0.0]]


def test_a_part_of_the_vocabulary_whose_first_token_cannot_be_sampled_adds_nothing_for_a_target_elsewhere():
    logits = torch.tensor([[-torch.inf, 1.0, 1.0]])
    log_probs, _ = log_probs_and_entropy(logits, torch.tensor([0]), vocab_start=5)
    assert log_probs.item() == pytest.approx(-math.log(2))  # of the largest logit, and all ranks together


def of_a_divided_vocabulary():
    logits, targets, weights = inputs(torch.float32)
    start, end = [(0, 5), (5, 12)][dist.get_rank()]  # parts of unequal size: the last has no padding
    part = logits[:, start:end].clone().requires_grad_()
    log_probs, entropy = log_probs_and_entropy(
        part, targets, group=dist.group.WORLD, vocab_start=start, with_entropy=True
    )
    (weights[0] @ log_probs + weights[1] @ entropy).backward()
    return log_probs.detach(), entropy.detach(), part.grad


def test_a_vocabulary_divided_over_two_ranks():
    first, second = run_ranks(of_a_divided_vocabulary, 2)
    want = expected(*inputs(torch.float32))
    torch.testing.assert_close(first[:2], want[:2])
    torch.testing.assert_close(second[:2], want[:2])
    torch.testing.assert_close(torch.cat([first[2], second[2]], dim=1), want[2])
