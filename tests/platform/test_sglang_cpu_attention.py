"""The padded calls against one plain attention a request, and when they step aside."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slime.platform import sglang_cpu_attention
from slime.platform.sglang_cpu_attention import padded_decode, padded_extend

H, G, D = 4, 2, 8
SCALING = D**-0.5


def refused(*args: Any) -> torch.Tensor:
    raise AssertionError("stepped aside")


class Batch:
    """Requests in random slots of a cache, after `prefix_lens` cached tokens each; unused slots hold NaN."""

    def __init__(self, prefix_lens: list[int], new_lens: list[int], seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.prefix_B, self.new_B = torch.tensor(prefix_lens), torch.tensor(new_lens)
        self.total_B = self.prefix_B + self.new_B
        num_slots = int(self.total_B.sum()) + 5
        slots = torch.randperm(num_slots)
        self.k_SGD, self.v_SGD = torch.randn(num_slots, G, D), torch.randn(num_slots, G, D)
        unused = slots[int(self.total_B.sum()) :]
        self.k_SGD[unused] = self.v_SGD[unused] = float("nan")
        self.rows_B = torch.randperm(len(new_lens) + 3)[: len(new_lens)]
        # Beyond a request's tokens lies what earlier requests left there.
        self.req_to_token = unused[torch.randint(5, (len(new_lens) + 3, int(self.total_B.max()) + 2))].to(torch.int32)
        for row, own in zip(self.rows_B, slots[: int(self.total_B.sum())].split(self.total_B.tolist()), strict=True):
            self.req_to_token[row, : len(own)] = own.to(torch.int32)
        self.query_NHD = torch.randn(int(self.new_B.sum()), H, D)

    def expected(self) -> torch.Tensor:
        """softmax(q k^T / sqrt(D)) v, one request at a time; query i of a request sees its keys up to prefix + i."""
        out = []
        for query, row, prefix, total in zip(
            self.query_NHD.split(self.new_B.tolist()), self.rows_B, self.prefix_B, self.total_B, strict=True
        ):
            own = self.req_to_token[row, :total].long()
            k_HKD, v_HKD = (
                cache[own].transpose(0, 1).repeat_interleave(H // G, 0) for cache in (self.k_SGD, self.v_SGD)
            )
            scores_HQK = query.transpose(0, 1) @ k_HKD.transpose(1, 2) * SCALING
            future_QK = torch.arange(total)[None] > prefix + torch.arange(len(query))[:, None]
            out.append((scores_HQK.masked_fill(future_QK, -torch.inf).softmax(-1) @ v_HKD).transpose(0, 1))
        return torch.cat(out)

    def extend(self, original: Any = refused, padding: int = 0, **changes: Any) -> torch.Tensor:
        output_NHD = torch.zeros(len(self.query_NHD) + padding, H, D)
        options = {"scaling": SCALING, "enable_gqa": True, "causal": True} | changes
        result = padded_extend(
            *(
                original,
                None,
                self.query_NHD,
                output_NHD,
                self.k_SGD,
                self.v_SGD,
                self.req_to_token,
                self.rows_B,
                self.total_B,
            ),
            *(self.prefix_B, self.new_B),
            **options,
        )
        assert result is output_NHD or original is not refused
        return result

    def decode(self, original: Any = refused, **changes: Any) -> torch.Tensor:
        output_BHD = torch.zeros_like(self.query_NHD)
        options = {"scaling": SCALING, "enable_gqa": True} | changes
        result = padded_decode(
            *(
                original,
                None,
                self.query_NHD,
                output_BHD,
                self.k_SGD,
                self.v_SGD,
                self.req_to_token,
                self.rows_B,
                self.total_B,
            ),
            **options,
        )
        assert result is output_BHD or original is not refused
        return result


lengths = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), min_size=1, max_size=6)


@settings(deadline=None, max_examples=40)
@given(lengths, st.integers(0, 2**16))
def test_extend_equals_one_attention_a_request(lens: list[tuple[int, int]], seed: int) -> None:
    batch = Batch([prefix for prefix, _ in lens], [new for _, new in lens], seed)
    torch.testing.assert_close(batch.extend(), batch.expected())


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(0, 2**16))
def test_decode_equals_one_attention_a_request(prefix_lens: list[int], seed: int) -> None:
    batch = Batch(prefix_lens, [1] * len(prefix_lens), seed)
    torch.testing.assert_close(batch.decode(), batch.expected())


def test_rows_of_the_output_beyond_the_tokens_stay() -> None:
    batch = Batch([3, 0], [2, 4])
    output = batch.extend(padding=3)
    torch.testing.assert_close(output[:6], batch.expected())
    assert (output[6:] == 0).all()


@pytest.mark.parametrize(
    "unusual",
    [{"is_cross_attn": True}, {"sliding_window_size": 4}, {"encoder_lens": torch.tensor([1])}, {"causal": False}],
    ids=str,
)
def test_extend_leaves_the_unusual_to_the_original(unusual: dict[str, Any]) -> None:
    batch, seen = Batch([2], [3]), []
    result = batch.extend(lambda *args: seen.append(args) or "original", **unusual)
    assert result == "original"
    assert len(seen[0]) == 16  # SGLang's method, its arguments in its order


def test_decode_leaves_the_unusual_to_the_original() -> None:
    batch = Batch([2], [1])
    assert batch.decode(lambda *args: len(args), sliding_window_size=4) == 14
    batch.k_SGD = batch.k_SGD.double()
    assert batch.decode(lambda *args: len(args)) == 14


def test_big_batches_are_left_to_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch([4, 4], [2, 2])
    monkeypatch.setattr(sglang_cpu_attention, "MAX_SCORES", 2 * 2 * 6)
    torch.testing.assert_close(batch.extend(), batch.expected())
    monkeypatch.setattr(sglang_cpu_attention, "MAX_SCORES", 2 * 2 * 6 - 1)
    assert batch.extend(lambda *args: "original") == "original"
