"""The helper that other tests stand on: results, failures and hangs of ranks."""

from __future__ import annotations

import os
import sys

import pytest
import torch
import torch.distributed as dist

from tests.distributed import run_ranks


def gather_ranks(offset: int) -> list[int]:
    ranks = [torch.zeros(1, dtype=torch.long) for _ in range(dist.get_world_size())]
    dist.all_gather(ranks, torch.tensor([dist.get_rank() + offset]))
    return [int(rank) for rank in ranks]


def fail_on_one() -> None:
    if dist.get_rank() == 1:
        raise KeyError("the cause")
    dist.barrier()


def hang_on_one() -> None:
    if dist.get_rank() == 1:
        wait_for_nobody()


def wait_for_nobody() -> None:
    dist.recv(torch.zeros(1), src=0)


def die() -> None:
    os._exit(7)


def patch_torch() -> tuple[bool, bool]:
    """Whether the trainer was imported, and whether torch was patched before."""
    before = "slime.training.trainer" in sys.modules, hasattr(torch, "patched_by_a_rank")
    torch.patched_by_a_rank = True
    return before


def test_results_come_by_rank():
    assert run_ranks(gather_ranks, 2, 10) == [[10, 11], [10, 11]]


def test_the_first_failure_is_raised_with_its_traceback():
    with pytest.raises(
        AssertionError, match=r"(?s)rank 1 of 2 failed in fail_on_one:.*in fail_on_one.*KeyError: 'the cause'"
    ):
        run_ranks(fail_on_one, 2)


def test_a_hang_ends_at_the_deadline_with_stacks():
    with pytest.raises(AssertionError, match=r"(?s)not done after 1 s.*rank 1:.*wait_for_nobody"):
        run_ranks(hang_on_one, 2, deadline=1)


def test_a_dead_rank_is_noticed():
    with pytest.raises(AssertionError, match="rank 0 of 1 died in die with exit code 7"):
        run_ranks(die, 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU ranks are spawned")
def test_ranks_find_the_trainer_imported_and_nothing_that_others_patched():
    for _ in range(2):
        assert run_ranks(patch_torch, 2) == [(True, False)] * 2
    assert run_ranks(patch_torch, 1, spawned=True) == [(False, False)]
    assert not hasattr(torch, "patched_by_a_rank")
