"""train.py as a user runs it: real Ray, Megatron, SGLang and router, in processes of their own, on the `sort` task.

The thresholds are those that all of 12 runs with different seeds passed with room to spare, and that neither a broken
weight sync (rewards stay near .35 to .4) nor random rewards reach.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from slime.data.ledger_file import open_for_reading
from slime.data.recording import read_rollout
from slime.observe import RunDir, read_metrics
from slime.tiny import Tiny, make_tiny
from tests.processes import in_dev_shm
from tests.runs import (
    DECOUPLED,
    END_S,
    REPOSITORY,
    assert_nothing_left,
    column,
    driver,
    is_engine,
    marked,
    train,
    wait_for,
)


@pytest.fixture(scope="module")
def sort(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny(tmp_path_factory.mktemp("sort") / "tiny", "sort")


@pytest.fixture(scope="module")
def cold_start(sort: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model after 500 steps of supervised fine-tuning, by the framework itself."""
    tmp_path = tmp_path_factory.mktemp("cold-start")
    model = tmp_path / "model"
    options = ["--hf-checkpoint", str(sort.model), "--prompt-data", str(sort.sft), "--save-hf", str(model)]
    train(tmp_path, "--config", "configs/tiny-sft.yaml", *options, "--num-rollout", "50")
    losses = [row["train/loss"] for row in read_metrics(tmp_path / "run") if "train/loss" in row]
    assert len(losses) == 500
    assert losses[-1] < 0.3 * losses[0]
    return model


@pytest.fixture(scope="module")
def grpo(sort: Tiny, cold_start: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of a run of 30 steps of 16 prompts x 8."""
    # Held-out answers are graded by what is right, whatever the training rewards are.
    held_out = tmp_path_factory.mktemp("eval") / "eval.yaml"
    held_out.write_text(
        json.dumps({"datasets": [{"name": "sort", "path": str(sort.heldout), "rm_type": "exact_match"}]})
    )
    return [
        *("--config", "configs/tiny-grpo.yaml", "--hf-checkpoint", str(cold_start), "--prompt-data", str(sort.train)),
        *("--eval-prompt-data", "--eval-config", str(held_out)),
        *("--num-rollout", "30", "--rollout-batch-size", "16", "--rollout-max-response-len", "8"),
    ]


HELD_OUT = 0.60  # of the answers are right, after learning


def shortcomings(run_dir: Path) -> list[str]:
    """What a run lacks of having learnt."""
    rows, held_out = read_metrics(run_dir), column(run_dir, "eval/sort")
    of_steps = {row["rollout/step"]: row["rollout/raw_reward"] for row in rows if "rollout/raw_reward" in row}
    rewards = list(of_steps.values())  # the last, of a step that a restart has made again
    first, last = sum(rewards[:3]) / 3, sum(rewards[-5:]) / 5
    checks = {
        f"30 steps, not {len(rewards)}": len(rewards) == 30,
        f"rewards of the first 3 steps below .55, not {first:.3f}": first < 0.55,
        f"rewards of the last 5 steps at least .70, not {last:.3f}": last >= 0.70,
        f"a rise of .30, not {last - first:.3f}": last - first >= 0.30,
        f"held-out accuracy of at least {HELD_OUT}, not {held_out[-1]:.3f}": held_out[-1] >= HELD_OUT,
    }
    return [text for text, met in checks.items() if not met]


def test_learns_in_turns_on_the_same_devices(grpo, tmp_path):
    output = train(tmp_path, *grpo)
    assert shortcomings(tmp_path / "run") == []
    differences = column(tmp_path / "run", "train/train_rollout_logprob_abs_diff_max")
    assert len(differences) == 30
    assert max(differences) < 1e-4
    assert RunDir.open(tmp_path / "run").read_samples().keys() >= {0, 30}
    assert str(tmp_path / "run") in output


def test_learns_one_step_ahead_on_devices_of_their_own(grpo, tmp_path):
    train(tmp_path, *grpo, *DECOUPLED, "--async-depth", "1")
    assert shortcomings(tmp_path / "run") == []


def test_learns_while_generation_never_stops(grpo, tmp_path):
    """What is trained on is at most two updates old. What becomes of such a run when it is killed: test_restarts.py."""
    options = [*grpo, *DECOUPLED, "--max-weight-staleness", "2", "--over-sampling-batch-size", "24"]
    train(tmp_path, *options, "--save-debug-rollout-data", str(tmp_path / "recorded" / "{rollout_id}.jsonl"))
    assert shortcomings(tmp_path / "run") == []
    assert 1 <= max(column(tmp_path / "run", "rollout/staleness/max")) <= 2

    with closing(open_for_reading(tmp_path / "run" / "ledger.db")) as ledger:
        rows = ledger.execute("SELECT id, state, rollout, reason, weight_versions FROM samples").fetchall()
    assert Counter(rollout for _, state, rollout, *_ in rows if state == "trained") == dict.fromkeys(range(30), 16 * 8)
    assert all(state == "trained" or (state == "dropped" and reason) for _, state, _, reason, _ in rows)
    ages = {rollout - int(v) for _, state, rollout, _, versions in rows if state == "trained" for v in versions.split()}
    assert ages <= {0, 1, 2}, "the weights of rollout n are version n"
    for group in read_rollout(tmp_path / "recorded" / "29.jsonl"):
        for sample in group:
            assert sample.weight_version_starts[0] == 0
            assert len(sample.weight_version_starts) == len(sample.weight_versions)


@pytest.fixture(scope="module")
def killed(grpo, tmp_path_factory) -> Iterator[tuple[Path, list[Path]]]:
    """A run with random rewards whose driver is killed after the evaluation of step 20: its directory, and its files
    in /dev/shm. Colocated, so with weights in shared memory."""
    tmp_path = tmp_path_factory.mktemp("killed")
    with driver(tmp_path, *grpo, "--rm-type", "random") as process:
        wait_for(tmp_path / "run" / "metrics.jsonl", '"eval/step": 20', process)
        shared = in_dev_shm(marked(tmp_path))
        process.kill()
        process.wait()
        yield tmp_path, shared


def test_killed_driver_leaves_nothing(killed):
    tmp_path, shared = killed
    assert_nothing_left(tmp_path)
    assert shared
    assert not [file for file in shared if file.exists()]


def test_random_rewards_teach_nothing(killed):
    """After 20 steps those that learn have more than .80 right."""
    before, after = column(killed[0] / "run", "eval/sort")
    assert after < HELD_OUT and after < before + 0.1


@pytest.fixture(scope="module")
def interrupted(grpo, tmp_path_factory) -> Iterator[tuple[Path, int]]:
    """Two tensor-parallel ranks and engines of two sizes, interrupted after two rollouts: directory and exit status.

    The comparison stops the run if the engines have other weights than the trainers after any update.
    """
    tmp_path = tmp_path_factory.mktemp("interrupted")
    groups = tmp_path / "groups.yaml"
    server_groups = [{"num_gpus": 2, "num_gpus_per_engine": 2}, {"num_gpus": 1, "overrides": {"dtype": "float32"}}]
    groups.write_text(json.dumps({"sglang": [{"name": "policy", "server_groups": server_groups}]}))
    options = ["--no-colocate", "--tensor-model-parallel-size", "2", "--rollout-num-gpus", "3", "--cpu-slots", "5"]
    options += ["--sglang-config", str(groups), "--skip-eval-before-train", "--check-weight-update-equal"]
    with driver(tmp_path, *grpo, *options) as process:
        wait_for(tmp_path / "run" / "metrics.jsonl", '"rollout/step": 1[,}]', process)
        process.send_signal(signal.SIGINT)
        yield tmp_path, process.wait(END_S)


def test_interrupt_ends_everything_and_says_so(interrupted):
    tmp_path, status = interrupted
    assert status == 130
    assert_nothing_left(tmp_path)
    output = (tmp_path / "output").read_text()
    assert "slime: interrupted" in output and "Traceback" not in output


def test_tensor_parallel_training_into_engines_of_two_sizes(interrupted):
    run = interrupted[0] / "run"
    assert len(column(run, "perf/update_weights_time")) >= 2
    assert max(column(run, "train/train_rollout_logprob_abs_diff_max")) < 1e-4


@pytest.fixture(scope="module")
def without_engine(grpo, tmp_path_factory) -> Iterator[tuple[Path, int]]:
    """A mixture of experts that are divided between two ranks, trained with the experts that the engine chose, which is
    killed after two rollouts: directory and exit status. Random rewards move the policy away from the reference, which
    it equals at first."""
    tmp_path = tmp_path_factory.mktemp("without-engine")
    model = make_tiny(tmp_path / "tiny", "sort", moe=True).model
    options = ["--hf-checkpoint", str(model), "--expert-model-parallel-size", "2", "--check-weight-update-equal"]
    options += ["--use-rollout-routing-replay", "--save-debug-rollout-data", str(tmp_path / "{rollout_id}.pt")]
    reference = ["--ref-load", str(model), "--use-kl-loss", "--kl-loss-coef", "0.01", "--kl-loss-type", "low_var_kl"]
    quick = ["--rm-type", "random", "--skip-eval-before-train", "--lr-warmup-iters", "0"]
    with driver(tmp_path, *grpo, *options, *reference, *quick) as process:
        wait_for(tmp_path / "run" / "metrics.jsonl", '"rollout/step": 1[,}]', process)
        (server,) = [process for process in marked(tmp_path) if is_engine(process)]
        server.kill()
        yield tmp_path, process.wait(90)


def test_dead_engine_ends_the_run_as_its_cause(without_engine):
    """Without --use-fault-tolerance; with it, see test_faults.py."""
    tmp_path, status = without_engine
    assert status == 1
    assert_nothing_left(tmp_path)
    output = (tmp_path / "output").read_text()
    assert "engine 0 has ended, killed by SIGKILL. With --use-fault-tolerance it is started again." in output
    assert 'Traceback (most recent call last):\n  File "' + str(REPOSITORY / "train.py") not in output


def test_mixture_of_experts_against_a_reference(without_engine):
    run = without_engine[0] / "run"
    kl_losses = column(run, "train/kl_loss")
    assert len(kl_losses) >= 8
    assert kl_losses[0] == pytest.approx(0, abs=1e-9) and min(kl_losses[1:]) > 0
    assert max(column(run, "train/train_rollout_logprob_abs_diff_max")) < 1e-4


def test_the_engines_experts_come_through_the_router(without_engine):
    """Of each token but the last, in both layers, two of eight."""
    for group in read_rollout(without_engine[0] / "1.pt"):
        for sample in group:
            experts_TLK = sample.rollout_routed_experts
            assert experts_TLK.shape == (len(sample.tokens) - 1, 2, 2)
            assert experts_TLK.min() >= 0 and experts_TLK.max() < 8
            assert (experts_TLK[..., 0] != experts_TLK[..., 1]).all()


def test_killed_and_resumed_run_is_the_same_to_the_last_bit(sort, tmp_path):
    """Weights, and what is logged from the first resumed step on; prompts are shuffled and don't fill an epoch
    evenly."""
    options = [
        *("--config", "configs/tiny-sft.yaml", "--hf-checkpoint", str(sort.model), "--prompt-data", str(sort.sft)),
        *("--num-rollout", "9", "--rollout-batch-size", "96", "--num-steps-per-rollout", "2", "--lr-warmup-iters", "3"),
    ]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for path in (whole, killed):
        path.mkdir()
    train(whole, *options, "--save-hf", str(whole / "model"))

    saved = killed / "checkpoints"
    resuming = ["--save", str(saved), "--load", str(saved), "--allow-fresh-start", "--save-interval", "3"]
    resuming += ["--save-hf", str(killed / "model-{rollout_id}")]
    with driver(killed, *options, *resuming) as process:
        wait_for(saved / "latest_checkpointed_iteration.txt", "^[25]$", process)
        process.kill()
    number = (saved / "latest_checkpointed_iteration.txt").read_text()
    shutil.rmtree(killed / f"model-{number}", ignore_errors=True)  # if it was there already
    train(killed, *options, *resuming)

    assert {path.name for path in killed.glob("model-*")} == {"model-2", "model-5", "model-8"}
    assert (saved / "latest_checkpointed_iteration.txt").read_text() == "8"
    assert (killed / "model-8" / "model.safetensors").read_bytes() == (
        whole / "model" / "model.safetensors"
    ).read_bytes()
    expected, rows = (
        {row["train/step"]: row | {"time": 0} for row in read_metrics(path / "run") if "train/step" in row}
        for path in (whole, killed)
    )
    assert list(expected) == list(range(18)) and rows == expected


# PPO.


@pytest.fixture(scope="module")
def ppo_options(sort, cold_start) -> list[str]:
    paths = ["--hf-checkpoint", str(cold_start), "--prompt-data", str(sort.train)]
    held_out = ["--eval-prompt-data", "sort", str(sort.heldout), "--skip-eval-before-train"]
    sizes = ["--num-rollout", "5", "--rollout-max-response-len", "8"]
    return ["--config", "configs/tiny-ppo.yaml", *paths, *held_out, *sizes]


@pytest.fixture(scope="module")
def ppo(ppo_options, tmp_path_factory) -> Path:
    """The directory of a run whose critic is on the policy's devices."""
    tmp_path = tmp_path_factory.mktemp("ppo")
    train(tmp_path, *ppo_options, "--dump-details", str(tmp_path / "details"))
    return tmp_path


def test_policy_and_critic_are_resumed_together_to_the_last_bit(ppo, ppo_options, tmp_path):
    """From recorded rollouts, with a critic that has devices of its own."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    saved, details = str(tmp_path / "checkpoints"), ppo / "details"
    assert len(list((details / "train_data").iterdir())) == 5 * 2  # of each rollout and rank
    replay = ["--load-debug-rollout-data", str(details / "rollout_data" / "{rollout_id}.jsonl")]
    replay += ["--no-colocate", "--actor-num-gpus-per-node", "1", "--critic-num-gpus-per-node", "1"]
    runs = {whole: ["--save", saved, "--save-interval", "3"], resumed: ["--load", saved, "--ckpt-step", "2"]}
    for path, options in runs.items():
        path.mkdir()
        train(path, *ppo_options, *replay, *options)
    for prefix, first in {"train": 0, "critic-train": 12}.items():  # the policy waits for three rollouts
        expected, rows = (
            [row | {"time": 0} for row in read_metrics(path / "run") if row.get(f"{prefix}/step", -1) >= first]
            for path in (whole, resumed)
        )
        assert len(expected) == 8 and rows == expected


def test_the_critic_begins_to_know_what_is_earned(ppo):
    values, returns = (column(ppo / "run", f"rollout/{name}") for name in ("values", "returns"))
    assert len(values) == 5
    assert values[0] == 0 < returns[0]
    assert abs(values[-1] - returns[-1]) < returns[0]


def test_the_policy_waits_for_its_critic(ppo):
    """The first three rollouts are the critic's alone; the engines then have the weights that they began with."""
    rows = read_metrics(ppo / "run")
    waiting = [row for row in rows if "perf/step_time" in row and "perf/actor_train_time" not in row]
    assert [row["rollout/step"] for row in waiting] == [0, 1, 2]
    assert [int(row["train/step"]) for row in rows if "train/loss" in row] == list(range(2 * 4))
    assert [int(row["critic-train/step"]) for row in rows if "critic-train/loss" in row] == list(range(5 * 4))
    assert max(column(ppo / "run", "train/train_rollout_logprob_abs_diff_max")) < 1e-4
