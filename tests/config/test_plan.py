"""The plan in words: the arithmetic is right, and what is remarkable is remarked."""

from __future__ import annotations

import pytest

from slime.config import architecture, load
from slime.config.plan import data_parallel_size, describe
from tests.config.checkpoints import write_checkpoint

BASE = ["--hf-checkpoint", "model", "--rollout-batch-size", "4", "--n-samples-per-prompt", "6", "--num-rollout", "10"]


def plan(*argv: str) -> str:
    """Without line breaks, so that texts can be found whatever the width."""
    return " ".join(describe(load([*BASE, *argv]), None).split())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--num-steps-per-rollout 3", "24 samples = 3 optimizer steps x global batch of 8 in each step 1 sample"),
        ("--micro-batch-size 2", "in each step 3 samples for each of 8 data-parallel ranks, in 2 micro-batches of 2"),
        (
            "--num-steps-per-rollout 2 --tensor-model-parallel-size 2 --balance-data",
            "3 samples for each of 4 data-parallel ranks, balanced by tokens, in 3 micro-batches of 1 sample",
        ),
        (
            "--use-dynamic-batch-size --max-tokens-per-gpu 1000 --context-parallel-size 2",
            "packed into micro-batches of at most 2,000 tokens (1,000 x CP 2)",
        ),
        ("--actor-num-gpus-per-node 1", "24 samples for the one data-parallel rank, in 24 micro-batches"),
        ("--num-steps-per-rollout 2", "1 or 2 samples for each of 8 data-parallel ranks"),
        ("--num-steps-per-rollout 2", "10 rollouts = 20 optimizer steps = 240 samples"),
        (
            "--num-steps-per-rollout 2 --start-rollout-id 7",
            "3 rollouts of 10, from number 7 on, = 6 optimizer steps = 72 samples",
        ),
        ("", "8 ranks = TP 1 x PP 1 x CP 1 x DP 8"),
        ("--actor-num-nodes 2", "node 0: ranks 0-7, node 1: ranks 8-15"),
        (
            "--rollout-num-gpus 4 --rollout-num-gpus-per-engine 2",
            "2 engines of 2 devices (TP 2) on devices of their own; 12 devices in all",
        ),
        ("--rollout-num-gpus 4", "to the engines after each rollout, by broadcast, in buckets of 512 MiB"),
        (
            "--rollout-num-gpus 4 --async-depth 1 --update-weights-interval 3",
            "to the engines after every 3 rollouts, by broadcast",
        ),
        ("", "gradient norm at most 1"),
        ("--clip-grad 0", "constant; gradient norm not limited"),
        (
            "--rollout-num-gpus 4 --max-weight-staleness 1 --stale-group-policy drop",
            "generation never stops; what is trained on is at most 1 weight update old, dropped is what is older",
        ),
        (
            "--colocate --rollout-num-gpus-per-engine 4",
            "2 engines of 4 devices (TP 4) on the devices of training, in turns with it; 8 devices in all"
            " engine 0: ranks 0-3, engine 1: ranks 4-7",
        ),
        (
            "--colocate --rollout-num-gpus 16 --rollout-num-gpus-per-engine 8",
            "and on 8 further devices; 16 devices in all engine 0: ranks 0-7 behind",
        ),
        (
            "--colocate --check-weight-update-equal",
            "through shared memory (of GPUs, by CUDA IPC), in buckets of 512 MiB, then compared",
        ),
        (
            "--colocate --advantage-estimator ppo --num-critic-only-steps 3 --lambd 0.95",
            "Critic 8 ranks, divided as the policy is, on the devices of the policy, in turns with it; from model"
            " learning rate 1e-06, values clipped at 0.2; gamma 1, lambda 0.95; alone in the first 3 rollouts",
        ),
        (
            "--colocate --advantage-estimator ppo --num-critic-only-steps 3 --num-steps-per-rollout 2",
            "10 rollouts = 14 optimizer steps = 240 samples",
        ),
        (
            "--colocate --advantage-estimator ppo --num-critic-only-steps 3 --start-rollout-id 2",
            "8 rollouts of 10, from number 2 on, = 7 optimizer steps",
        ),
        (
            "--rollout-num-gpus 4 --advantage-estimator ppo --critic-num-nodes 1",
            "on devices of their own, while the policy trains",
        ),
        ("--rollout-num-gpus 4 --advantage-estimator ppo --critic-num-nodes 1", "20 devices in all"),
        ("--loss-type sft_loss", "Engines none"),
        ("--use-tis --use-opsm", "weighed by importance, 0 to 2; without bad samples that have become unlikely"),
        ("--use-mis --mis-level sequence --mis-mode mask", "of each sequence: masked outside of 0..2"),
        (
            "--use-kl-loss --kl-loss-coef 0.1 --kl-loss-type k3 --ref-load old --entropy-coef 0.01",
            "mean over each sample's tokens, then over samples; + 0.1 x KL (k3) to old; - 0.01 x entropy",
        ),
        (
            "--kl-coef 0.1 --ref-load old --entropy-coef -0.1",
            "then over samples; each token's reward less 0.1 x KL (k1) to old; + 0.1 x entropy",
        ),
        ("--use-opd --opd-type megatron --opd-teacher-load big", "+ 1 x what the teacher says (big)"),
        ("--loss-type custom_loss --custom-loss-function-path my.loss", "Loss my.loss; mean over"),
        ("--debug-rollout-only", "Training none"),
        ("--save-hf out/{rollout_id} --save-interval 5", "exported to out/{rollout_id} at the end, and every 5"),
        ("--save out --save-keep 2", "checkpoints in out at the end; 2 are kept"),
        ("--load out --allow-fresh-start", "starts anew, for out has no checkpoint yet"),
        (
            "--eval-interval 2 --eval-prompt-data a a.jsonl --n-samples-per-eval-prompt 4",
            "before the first rollout and every 2 rollouts, 4 samples a prompt on a (a.jsonl)",
        ),
    ],
)  # fmt: skip
def test_what_the_plan_says(options, text):
    words = options.split()
    if not {"--rollout-num-gpus", "--colocate", "sft_loss", "--debug-rollout-only"} & set(words):
        words += ["--rollout-num-gpus", "1"]
    assert text in plan(*words)


def test_the_plan_of_a_run_that_goes_on_counts_what_is_left(tmp_path):
    def goes_on(step: int, *argv: str) -> str:
        checkpoint = tmp_path / f"iter_{step:07d}"
        write_checkpoint(checkpoint, step)
        return plan("--colocate", "--load", str(tmp_path), "--ckpt-step", str(step), *argv)

    assert "7 rollouts of 10, from number 3 on, = 7 optimizer steps = 168 samples" in goes_on(2)
    assert f"goes on from {tmp_path}/iter_0000002" in goes_on(2)
    assert "Run 10 rollouts = 10 optimizer steps" in goes_on(2, "--finetune")
    assert f"starts from the weights of {tmp_path}/iter_0000002" in goes_on(2, "--finetune")
    assert "nothing is left to do: of 10 rollouts, 10 are done" in goes_on(9)
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / "state.json").write_text('{"progress": null}')
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release")
    said = plan("--colocate", "--load", str(tmp_path))
    assert "Run 10 rollouts = 10 optimizer steps" in said
    assert f"starts from the weights of {tmp_path}/release, and with nothing else of it" in said


def test_the_model_is_described_by_its_config_json(moe):
    config = load([*BASE, "--colocate", "--rollout-max-response-len", "50000"])
    text = " ".join(describe(config, architecture.read(moe)).split())
    assert "qwen3_moe: 48 layers, hidden 2048, 32 heads (4 key-value), 128 experts of which a token visits 8" in text
    assert "30.5 B parameters, 3.35 B of them at work for each token" in text
    assert "The model was made for at most 40,960 tokens" in text


def test_data_parallel_size_is_what_the_other_parallel_sizes_leave():
    config = load(
        [*BASE, *"--actor-num-nodes 2 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4".split()]
    )
    assert data_parallel_size(config) == 2
