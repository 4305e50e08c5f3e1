"""train.py killed at random moments, in all that keeps its state, and started again until it is done (case 33).

Supervised, so that no engine has to start: prompts, buffer, ledger, training and checkpoints are the same.
SLIME_RESTART_SEEDS=20 runs as many seeds in place of one, SLIME_RESTART_KILLS=9 kills each run as often in place of 3
times.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from slime.data.ledger_file import open_for_reading
from slime.observe import read_metrics
from slime.tiny import make_tiny
from tests.test_end_to_end import RUN_S, driver, marked, train

SEEDS = int(os.environ.get("SLIME_RESTART_SEEDS", "1"))
KILLS = int(os.environ.get("SLIME_RESTART_KILLS", "3"))
ROLLOUTS, BATCH = 20, 24
VICTIMS = {"driver": "train.py", "buffer": "BufferActor", "trainer": "TrainActor"}


def victim(run: Path, kind: str) -> psutil.Process:
    """The process of a kind that goes on, by its command line or the title that Ray gives it."""
    found = [process for process in marked(run) if any(VICTIMS[kind] in word for word in process.cmdline())]
    return min(found, key=lambda process: process.pid)


def rows(run: Path) -> int:
    return len(read_metrics(run / "run")) if (run / "run" / "metrics.jsonl").exists() else 0


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_is_killed_every_sample_is_trained_on_once_or_dropped(tmp_path, seed):
    tiny = make_tiny(tmp_path / "tiny", "sort", num_train=8, num_heldout=8, num_demos=100)
    saved, dice = tmp_path / "checkpoints", random.Random(seed)
    options = [
        *("--config", "configs/tiny-sft.yaml", "--hf-checkpoint", str(tiny.model), "--prompt-data", str(tiny.sft)),
        *("--num-rollout", str(ROLLOUTS), "--rollout-batch-size", str(BATCH), "--num-steps-per-rollout", "1"),
        *("--save", str(saved), "--load", str(saved), "--allow-fresh-start", "--save-interval", "2"),
        *("--lr-warmup-iters", "2", "--save-hf", str(tmp_path / "model-{rollout_id}")),
    ]
    kinds = [list(VICTIMS)[i % len(VICTIMS)] for i in range(KILLS)]
    dice.shuffle(kinds)
    for kind in kinds:
        with driver(tmp_path, *options) as process:
            more = rows(tmp_path) + dice.randint(1, 12)
            deadline = time.monotonic() + RUN_S
            while rows(tmp_path) < more and process.poll() is None:
                assert time.monotonic() < deadline, (tmp_path / "output").read_text()
                time.sleep(0.02)
            time.sleep(dice.uniform(0, 0.3))
            if process.poll() is None:
                victim(tmp_path, kind).kill()
            status = process.wait(90)
            output = (tmp_path / "output").read_text()
            assert status in (0, 1, -9), output  # 0: the kill came too late
            if status == 1:
                assert re.search("its process died", output), output
    last = train(tmp_path, *options)

    with closing(open_for_reading(tmp_path / "run" / "ledger.db")) as db:
        samples = db.execute("SELECT id, state, rollout, reason FROM samples").fetchall()
        changes = db.execute("SELECT sample, state, note FROM changes ORDER BY number").fetchall()
    assert all(state in ("trained", "dropped") for _, state, _, _ in samples), last
    assert all(reason for _, state, _, reason in samples if state == "dropped")
    # Every rollout of the model that came out was trained on, each on its own samples.
    batches = Counter(rollout for _, state, rollout, _ in samples if state == "trained")
    assert batches == dict.fromkeys(range(ROLLOUTS), BATCH), last
    # What is trained on now was trained on once since it was last taken back.
    times: Counter[int] = Counter()
    for sample, state, note in changes:
        if (note or "").startswith("rolled back"):
            times[sample] = 0
        times[sample] += state == "trained"
    assert {times[id] for id, state, _, _ in samples if state == "trained"} == {1}
