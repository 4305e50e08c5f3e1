"""What is allowed, and may still not be meant, is remarked; and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slime.config import architecture, load
from slime.config.plan import data_parallel_size
from slime.config.remarks import remarks
from tests.config.checkpoints import TINY

BASE = ["--hf-checkpoint", "model", "--rollout-batch-size", "4", "--n-samples-per-prompt", "6", "--num-rollout", "10"]


def said(options: str, model: Path | None = None, ranks: int = 8) -> list[str]:
    """With 3 steps a rollout of 8 samples each, unless something else is given."""
    steps = [] if "--num-steps-per-rollout" in options else ["--num-steps-per-rollout", "3"]
    config = load([*BASE, "--colocate", *steps, *options.split()])
    return list(remarks(config, None if model is None else architecture.read(model), ranks))


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return tmp_path


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--mis-level sequence", "--mis-level has no effect without --use-mis."),
        ("--tis-clip 3", "--tis-clip has no effect without --use-tis or --get-mismatch-metrics."),
        ("--tis-clip-low 0.5", "--tis-clip-low has no effect without --use-tis or --get-mismatch-metrics."),
        ("--kl-loss-coef 0.1", "--kl-loss-coef has no effect without --use-kl-loss."),
        ("--opd-kl-coef 0.5", "--opd-kl-coef has no effect without --use-opd."),
        (
            "--ref-load m",
            "--ref-load has no effect without --use-kl-loss or --kl-coef: nothing is compared with the reference.",
        ),
        ("--max-tokens-per-gpu 9", "--max-tokens-per-gpu has no effect without --use-dynamic-batch-size."),
        (
            "--micro-batch-size 2 --use-dynamic-batch-size --max-tokens-per-gpu 9",
            "--micro-batch-size has no effect with --use-dynamic-batch-size: tokens are counted, not samples.",
        ),
        (
            "--loss-type sft_loss --eval-interval 2 --eval-prompt-data a a.jsonl --n-samples-per-prompt 1"
            " --rollout-batch-size 24",
            "--eval-interval has no effect with --loss-type sft_loss: there are no engines to evaluate by.",
        ),
        (
            "--loss-type sft_loss --n-samples-per-prompt 8 --num-steps-per-rollout 4 --global-batch-size 8",
            "--n-samples-per-prompt: each demonstration is 8 times in its batch.",
        ),
        ("--sequence-parallel", "--sequence-parallel has no effect without --tensor-model-parallel-size above 1."),
        ("--fp8-recipe tensorwise", "--fp8-recipe has no effect without --fp8-format."),
        (
            "--overlap-cpu-optimizer-d2h-h2d",
            "--overlap-cpu-optimizer-d2h-h2d has no effect without --optimizer-cpu-offload.",
        ),
        ("--optimizer-offload-fraction 0.5", "--optimizer-offload-fraction has no effect without --optimizer-cpu-off"),
        ("--recompute-method block", "--recompute-method has no effect without --recompute-granularity full."),
        (
            "--recompute-granularity selective --recompute-method block",
            "--recompute-method has no effect without --recompute-granularity full.",
        ),
        ("--recompute-modules moe", "--recompute-modules has no effect without --recompute-granularity selective."),
        (
            "--moe-aux-loss-coeff 0.01",
            "--moe-aux-loss-coeff has no effect without --moe-router-load-balancing-type aux_loss, seq_aux_loss or",
        ),
        ("--moe-aux-loss-coeff 0.01 --moe-router-load-balancing-type none", "--moe-aux-loss-coeff has no effect"),
        (
            "--moe-router-load-balancing-type seq_aux_loss",
            "--moe-router-load-balancing-type has no effect without --moe-aux-loss-coeff: its loss counts 0 times.",
        ),
        ("--log-probs-chunk-size 0", "--log-probs-chunk-size 0 has no effect: as with -1, all logits are"),
        ("--eval-prompt-data a a.jsonl", "--eval-prompt-data is not used without --eval-interval."),
        ("--num-steps-per-rollout 2", "The global batch is not a multiple of 8 data-parallel ranks: some have a"),
        (
            "--lr-warmup-iters 30",  # of 30 steps the last has 29 / 30 of the rate
            "--lr-warmup-iters 30 is longer than the run, which has 30 optimizer steps: the learning rate never reach",
        ),
        (
            "--lr-warmup-iters 24 --advantage-estimator ppo --num-critic-only-steps 2",
            "--lr-warmup-iters 24 is longer than the run, which has 24 optimizer steps",
        ),
        (
            "--lr-decay-style linear --lr-decay-iters 99 --lr-warmup-iters 40",
            "--lr-warmup-iters 40 is longer than the run",
        ),
        (
            "--use-dynamic-batch-size --max-tokens-per-gpu 100 --rollout-max-response-len 1000",
            "Samples of up to 1,000 tokens exceed a micro-batch; such a one will be alone in its own.",
        ),
    ],
)
def test_what_may_not_be_meant_is_remarked(options, text):
    options += " --ref-load m --load out --allow-fresh-start" * ("--kl-loss-coef" in options)
    (remark,) = said(options)
    assert remark.startswith(text) and remark.endswith(".")


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--use-tis --tis-clip 3 --tis-clip-low 0.5",
        "--get-mismatch-metrics --tis-clip 3",
        "--ref-load m --kl-coef 0.1",
        "--ref-load m --use-kl-loss",
        "--ref-load m --load out",  # from which a run may start anew
        "--micro-batch-size 2",
        "--tensor-model-parallel-size 2 --sequence-parallel",
        "--optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d --optimizer-offload-fraction 0.5",
        "--recompute-granularity full --recompute-method block --recompute-num-layers 1",
        "--recompute-granularity selective --recompute-modules moe",
        "--moe-aux-loss-coeff 0.01 --moe-router-load-balancing-type aux_loss",
        "--moe-aux-loss-coeff 0 --moe-z-loss-coeff 0.1",
        "--lr-warmup-iters 29",
        "--debug-rollout-only --lr-warmup-iters 99",
    ],
)
def test_what_counts_is_not_remarked(options):
    assert said(options) == []


def test_evaluations_that_are_longer_than_the_model_was_made_for_are_remarked(dense):
    options = "--rollout-max-context-len 64 --eval-prompt-data a a --eval-max-context-len"
    made = "The model was made for at most 128 tokens (max_position_embeddings in config.json)."
    assert said(f"{options} 129 --eval-interval 1", dense) == [made]
    assert said(f"{options} 128 --eval-interval 1", dense) == []


def test_what_is_about_experts_is_remarked_of_dense_models(dense, moe):
    options = (
        "--moe-aux-loss-coeff 0.01 --moe-router-load-balancing-type aux_loss --tensor-model-parallel-size 2"
        " --sequence-parallel --expert-tensor-parallel-size"
    )
    names = ["--moe-aux-loss-coeff", "--moe-router-load-balancing-type", "--expert-tensor-parallel-size"]
    assert said(f"{options} 4", dense) == [f"{name} has no effect: the model has no experts." for name in names]
    assert said(f"{options} 1", dense) == [f"{name} has no effect: the model has no experts." for name in names[:2]]
    assert said(f"{options} 4", moe) == said(options.rpartition(" ")[0], moe) == []


def test_what_counts_for_one_role_is_not_remarked(tmp_path):
    (tmp_path / "roles.yaml").write_text("critic: {optimizer_cpu_offload: true}\n")
    options = f"--optimizer-offload-fraction 0.5 --megatron-config-path {tmp_path}/roles.yaml"
    assert said(f"{options} --advantage-estimator ppo") == []
    (remark,) = said(options)
    assert remark.startswith("--optimizer-offload-fraction has no effect")


@pytest.mark.parametrize(
    "recipe", sorted((Path(__file__).parents[2] / "configs").glob("*.yaml")), ids=lambda file: file.stem
)
def test_our_recipes_leave_nothing_to_remark(recipe, dense):
    beside = [
        word for file in ("tiny-grpo", recipe.stem) for word in ("--config", str(recipe.with_name(f"{file}.yaml")))
    ]
    config = load(beside if recipe.stem == "tiny-ahead" else beside[2:])
    assert list(remarks(config, architecture.read(dense), data_parallel_size(config))) == []
