"""Layers for multi-token prediction: what they compute and learn, and what the rest of the model learns of it."""

from __future__ import annotations

from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from slime.models import ModelError, family_of, multi_token_model, read_hf_config
from tests.distributed import run_ranks
from tests.models.tiny import make_multi_token_checkpoint
from tests.training.ranks import trainer
from tests.training.rollouts import Made, shares, varied

KINDS = ("glm4_moe", "deepseek_v3")
LAYER = "model.layers.2."  # the one that predicts further tokens
MTP = "--enable-mtp-training"
COPIES = {
    f"{LAYER}embed_tokens.weight": "model.embed_tokens.weight",
    f"{LAYER}shared_head.head.weight": "lm_head.weight",
}
BIAS = "e_score_correction_bias"


def outcomes(checkpoints: dict[str, str], work: str) -> dict[str, dict[str, Any]]:
    from slime.training.saved import Saved

    batch = shares(varied(5), micro_batch_size=5)[0]
    found = {}
    for kind, directory in checkpoints.items():
        found[kind] = of_kind = {}
        with trainer(directory) as made:
            of_kind["without"] = made.train(0, batch).steps[0]
            made.save_hf(f"{work}/{kind} without")
        with trainer(directory, MTP, "--save", f"{work}/{kind} saved") as made:
            made.save_hf(f"{work}/{kind} untrained")
            of_kind["ours"], of_kind["megatrons"] = both_losses(made, batch)
            of_kind["with"] = made.train(0, batch).steps[0]
            made.save_hf(f"{work}/{kind} with")
            made.save(0)
            of_kind["next"] = made.train(1, batch).steps
            with pytest.raises(ValueError) as refused:
                Saved(Path("old"), mtp_layers=0).check(made.model.shard.family, made.model.config)
            of_kind["refused"] = str(refused.value)
        with trainer(directory, MTP, "--load", f"{work}/{kind} saved") as made:
            of_kind["resumed"] = made.train(1, batch).steps
    return found


def both_losses(made: Any, batch: Any) -> tuple[float, float]:
    """Ours, and that of Megatron's GPTModel itself, of all samples in one row."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

    from slime.training.forward import MTP_LOSS, score

    ((row,),) = made.pack(batch)
    (chunk,) = made.model.chunks
    ours = float(score(chunk, row, made.scoring)[MTP_LOSS].detach())
    mask_1T = row.mask_R.new_zeros(row.tokens_1T.shape).index_copy(1, row.rows_R + 1, row.mask_R[None])
    model = chunk.module
    model._postprocess = MethodType(GPTModel._postprocess, model)
    model(row.tokens_1T, row.positions_1T, None, packed_seq_params=row.sequences, loss_mask=mask_1T)
    del model._postprocess
    mean, predicted = (float(MTPLossLoggingHelper.tracker.pop(f"{name}_values")[0]) for name in ("loss", "total"))
    return ours, mean * predicted / row.step.num_tokens  # Megatron's is a mean over the tokens that can be predicted


def loss_by_transformers(directory: Path, samples: list[Made]) -> float:
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        directory, config=AutoConfig.from_pretrained(directory, num_hidden_layers=3), attn_implementation="sdpa"
    )
    tensors = load_file(directory / "model.safetensors")
    further = {name.removeprefix(LAYER): tensor for name, tensor in tensors.items() if name.startswith(LAYER)}
    body, layer = model.model, model.model.layers[2]
    body.layers = body.layers[:2]

    def norm(name: str, states: Tensor) -> Tensor:
        epsilon = model.config.rms_norm_eps
        return states * (states.square().mean(-1, keepdim=True) + epsilon).rsqrt() * further[f"{name}.weight"]

    total = 0.0
    for sample in samples:
        tokens = torch.tensor([sample.tokens])
        states = body(tokens).last_hidden_state
        seen = torch.cat([norm("enorm", body.embed_tokens(tokens)[:, 1:]), norm("hnorm", states[:, :-1])], dim=-1)
        inner = seen @ further["eh_proj.weight"].T
        positions = torch.arange(inner.shape[1])[None]
        inner = layer(inner, position_ids=positions, position_embeddings=body.rotary_emb(inner, positions))
        log_probs = model.lm_head(norm("shared_head.norm", inner)).detach().log_softmax(-1)[0]
        for place, mask in enumerate(sample.mask, len(sample.tokens) - sample.response):
            if mask and place >= 2:  # the second token of a sample can't be predicted by a state that has seen it
                total -= log_probs[place - 2, sample.tokens[place]].item()
    return total / sum(sum(sample.mask) for sample in samples)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: make_multi_token_checkpoint(tmp_path_factory.mktemp("hf"), kind) for kind in KINDS}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def found(checkpoints: dict[str, Path], work: Path) -> dict[str, dict[str, Any]]:
    return run_ranks(outcomes, 1, {kind: str(path) for kind, path in checkpoints.items()}, str(work))[0]


of_kinds = pytest.mark.parametrize("kind", KINDS)


@of_kinds
def test_the_loss_is_that_of_transformers_layers_and_megatrons_own(kind, found, checkpoints):
    expected = loss_by_transformers(checkpoints[kind], varied(5))
    assert found[kind]["ours"] == pytest.approx(expected, abs=1e-5)
    assert found[kind]["megatrons"] == pytest.approx(expected, abs=1e-5)
    assert found[kind]["with"]["train/mtp_loss"] == pytest.approx(expected, abs=1e-5)


@of_kinds
def test_the_policy_learns_from_its_own_loss_alone(kind, found, work):
    got = {name: value for name, value in found[kind]["with"].items() if name != "train/mtp_loss"}
    assert got == found[kind]["without"]
    with_it, without = (load_file(work / f"{kind} {how}" / "model.safetensors") for how in ("with", "without"))
    assert with_it.keys() == without.keys()
    for name, tensor in without.items():
        assert name.startswith(LAYER) or torch.equal(with_it[name], tensor), name


@of_kinds
def test_untrained_it_is_saved_as_it_was(kind, found, checkpoints, work):
    before = load_file(checkpoints[kind] / "model.safetensors")
    for how in ("untrained", "without"):
        saved = load_file(work / f"{kind} {how}" / "model.safetensors")
        assert saved.keys() == before.keys()
        for name in before.keys() if how == "untrained" else [name for name in before if name.startswith(LAYER)]:
            assert torch.equal(saved[name], before[name]), (how, name)


@of_kinds
def test_trained_it_is_saved_with_what_it_shares(kind, found, checkpoints, work):
    before = load_file(checkpoints[kind] / "model.safetensors")
    after = load_file(work / f"{kind} with" / "model.safetensors")
    for name in (name for name in before if name.startswith(LAYER) and not name.endswith(BIAS)):
        assert not torch.equal(after[name], before[name]), f"{name} was not trained"
    for copy, whole in COPIES.items():
        assert torch.equal(after[copy], after[whole])


@of_kinds
def test_resumed_it_goes_on_exactly(kind, found):
    assert found[kind]["resumed"] == found[kind]["next"]


def test_checkpoints_without_it_are_refused(found):
    assert "no layers for multi-token prediction: leave out --enable-mtp-training" in found["glm4_moe"]["refused"]


def test_models_without_it_are_refused(checkpoints):
    config = read_hf_config(checkpoints["glm4_moe"])
    with pytest.raises(ModelError, match="has no layers for multi-token prediction"):
        multi_token_model(family_of(config | {"num_nextn_predict_layers": 0}))
