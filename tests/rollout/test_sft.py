"""Demonstrations to batches, without any server."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from slime.config import Config, load
from slime.data.buffer import DataBuffer
from slime.data.history import History
from slime.data.ledger import Ledger
from slime.data.sample import SampleError
from slime.data.tokenizer import Tokenizer
from slime.rollout import sft
from slime.rollout.producer import Producer, open_source
from slime.rollout.types import RolloutError
from slime.tiny import Tiny


@pytest.fixture
def config(tiny: Tiny) -> Config:
    return load(
        [
            *("--loss-type", "sft_loss", "--hf-checkpoint", str(tiny.model), "--num-rollout", "1"),
            *("--prompt-data", str(tiny.sft), "--input-key", "messages"),
            *("--rollout-batch-size", "4", "--micro-batch-size", "2", "--actor-num-gpus-per-node", "1"),
        ]
    )


def test_what_is_trained_on_is_what_the_assistant_says(config: Config, tiny: Tiny) -> None:
    source = open_source(config)
    with Producer(config, source) as producer:
        (batch,), metrics = producer.rollout(0, dp_size=1)
    assert len(batch) == 4
    assert batch.rollout_log_probs_R is None
    assert batch.rewards_N.tolist() == [0] * 4
    assert [step.micro_batches for step in batch.steps] == [[[0, 1], [2, 3]]]

    tokens = batch.tokens_T[: batch.total_lengths_N[0]].tolist()
    split = batch.total_lengths_N[0] - batch.response_lengths_N[0]
    prompt, response = Tokenizer.load(tiny.model).decode([tokens[:split], tokens[split:]])
    assert prompt.startswith("<|im_start|>user\nsort ") and prompt.endswith("<|im_start|>assistant\n")
    assert response.removesuffix("<|im_end|>").isdigit()
    assert batch.loss_mask_R.all()
    assert metrics["rollout/response_len/max"] == batch.response_lengths_N.max()


def test_the_ledger_has_no_rewards_of_demonstrations(config: Config, tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        buffer = DataBuffer(open_source(config), ledger)
        buffer.resume(0)
        with Producer(config, buffer) as producer:
            producer.rollout(0, dp_size=1)
    with closing(History(tmp_path / "ledger.db")) as history:
        assert [entry.reward for entry in history.step(0)] == [None] * 4


def test_a_source_without_masks(config: Config) -> None:
    source = open_source(config)
    group = [replace(sample, loss_mask=None) for sample in source.get_samples(1)[0]]
    source.add_samples([group])
    with pytest.raises(SampleError, match=r"sample 0 .*has no loss mask"):
        sft.generate_rollout(config, 0, source)


def test_nothing_to_evaluate_with(config: Config) -> None:
    with pytest.raises(RolloutError, match="no engines"):
        sft.generate_rollout(config, 0, open_source(config), evaluation=True)
