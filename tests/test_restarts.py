"""Runs whose processes are killed at random moments, by the command that users have for it, and which go on until they
are done (cases 14 and 33).

The engine is not theirs, so that a start takes seconds; what becomes of killed ones is in test_faults.py. Its model
knows nothing, so that rewards are random, and samples are long enough to be cut short. SLIME_CHAOS_SEEDS=20 runs as
many seeds in place of one, SLIME_CHAOS_KILLS=6 kills each run as often in place of twice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from slime.data.ledger_file import open_for_reading
from slime.data.recording import group_from, loads, read_rollout
from slime.data.sample import Sample
from slime.inference.server import EngineServer
from slime.rollout.types import flatten
from tests.runs import REPOSITORY, RUN_S, of_no_knowledge

SEEDS = range(int(os.environ.get("SLIME_CHAOS_SEEDS", "1")))
KILLS = int(os.environ.get("SLIME_CHAOS_KILLS", "2"))
PROMPTS, SAMPLES = 8, 4
MORE = ["--over-sampling-batch-size", str(2 * PROMPTS)]


@pytest.fixture(scope="module")
def options(engine: EngineServer, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    yield [
        *of_no_knowledge(tmp_path_factory.mktemp("sort"), tiny_model),
        *("--cpu-slots", "3", "--no-colocate"),
        *("--rollout-external-engine-addrs", f"{engine.host}:{engine.port}"),
        *("--rollout-batch-size", str(PROMPTS), "--n-samples-per-prompt", str(SAMPLES)),
        *("--rollout-max-response-len", "32", "--num-steps-per-rollout", "1"),
    ]
    engine.control.update_weights_from_disk(model_path=str(tiny_model), weight_version="default")
    engine.control.flush_cache()


@pytest.mark.parametrize("seed", SEEDS)
def test_partial_rollouts_in_turns_without_fault_tolerance(options, tmp_path, seed):
    more = ["--partial-rollout", *MORE, "--no-use-fault-tolerance"]
    said = run_under_faults(tmp_path, seed, *options, *more, kills=["--kill", "router@1"])
    assert "router has ended, killed by SIGKILL. With --use-fault-tolerance it is started again" in said


@pytest.mark.parametrize("seed", SEEDS)
def test_generation_that_never_stops(options, tmp_path, seed):
    run_under_faults(tmp_path, seed, *options, *MORE, "--max-weight-staleness", "2", kills=[])


def run_under_faults(path: Path, seed: int, *options: str, kills: list[str]) -> str:
    """KILLS of them, the named ones among them. Returns what the run said."""
    rollouts = 2 * KILLS + 2
    command = ["-m", "slime.chaos", *kills, "--random-kills", str(KILLS - len(kills) // 2), "--seed", str(seed)]
    command += ["--json", "--run-dir", str(path / "run"), "--num-rollout", str(rollouts)]
    recorded = ["--save-debug-rollout-data", str(path / "recorded" / "{rollout_id}.jsonl")]
    done = subprocess.run(
        [sys.executable, *command, *options, *recorded],
        cwd=REPOSITORY, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=(KILLS + 1) * RUN_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(done.stderr, found)
    assert (found["lost"], found["twice"], len(found["kills"])) == (0, 0, KILLS)
    check(path, rollouts)
    return done.stderr


def check(path: Path, rollouts: int) -> None:
    """All rollouts were trained on, each on its own samples, and what a checkpoint kept of these they still have."""
    with closing(open_for_reading(path / "run" / "ledger.db")) as db:
        samples = db.execute("SELECT id, state, rollout, reason FROM samples").fetchall()
    assert all(state == "trained" or (state == "dropped" and reason) for _, state, _, reason in samples)
    batches = Counter(rollout for _, state, rollout, _ in samples if state == "trained")
    assert batches == dict.fromkeys(range(rollouts), PROMPTS * SAMPLES)
    files = [path / "recorded" / f"{rollout_id}.jsonl" for rollout_id in range(rollouts)]
    trained = {sample.index: sample for file in files for sample in flatten(read_rollout(file))}
    assert trained.keys() == {id for id, state, _, _ in samples if state == "trained"}
    kept = [sample for file in (path / "run" / "checkpoints" / "rollout").iterdir() for sample in waiting(file)]
    kept = [sample for sample in kept if sample.index in trained]
    print(f"{len(kept)} kept, {len({sample.index for sample in kept})} of them different")
    assert kept, "nothing was cut short, so nothing was seen"
    for sample in kept:
        assert goes_on(sample, trained[sample.index]), f"{sample}\nbecame {trained[sample.index]}"


def waiting(file: Path) -> list[Sample]:
    """What a checkpoint has of samples that have no batch yet, and have tokens of a response."""
    state = loads(file.read_text())
    groups = map(group_from, state.get("returned") or state.get("handed_out") or [])
    return [sample for sample in flatten(groups) if sample.response_length]


def goes_on(before: Sample, after: Sample) -> bool:
    """Whether a sample still has the tokens that it had, and what is known of each."""
    n, v = before.response_length, len(before.weight_versions)
    return (
        after.tokens[: len(before.tokens)] == before.tokens
        and after.rollout_log_probs[:n] == before.rollout_log_probs
        and after.weight_versions[:v] == before.weight_versions
        and after.weight_version_starts[:v] == before.weight_version_starts
    )
