"""Tensors have the same names in checkpoints, whichever layers wrote them: those of Transformer Engine's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed import run_ranks
from tests.models.tiny import make_checkpoint
from tests.training.checkpoint_ranks import different, state, steps
from tests.training.ranks import trainer

QUERY_AND_KEY = {"self_attention.q_layernorm.weight", "self_attention.k_layernorm.weight"}
ATTENTION = {"self_attention.linear_qkv.layer_norm_weight"}
LATENTS = {"input_layernorm.weight", "self_attention.linear_kv_up_proj.layer_norm_weight"}
QUERY_LATENT = {"self_attention.linear_q_up_proj.layer_norm_weight"}
DENSE = {"mlp.linear_fc1.layer_norm_weight"}  # the norm is part of the layer that follows it, where there is one
MIXTURE = {"pre_mlp_layernorm.weight"}
POST = {"self_attention.linear_proj.post_layernorm.weight", "mlp.linear_fc2.post_layernorm.weight"}
NORMS = {  # of layers 0 and 1
    "dense": [ATTENTION | QUERY_AND_KEY | DENSE] * 2,
    "moe": [ATTENTION | QUERY_AND_KEY | MIXTURE] * 2,
    "glm4": [ATTENTION | DENSE | POST] * 2,
    "glm4_moe": [ATTENTION | QUERY_AND_KEY | DENSE, ATTENTION | QUERY_AND_KEY | MIXTURE],
    "deepseek_v3": [LATENTS | QUERY_LATENT | DENSE, LATENTS | QUERY_LATENT | MIXTURE],
    "moonlight": [LATENTS | DENSE, LATENTS | MIXTURE],
}
# How names begin that local layers gave once, and Megatron's own do, after those of the modules.
MEGATRONS = {
    "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
    "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
}
ONCE = {"moe": MEGATRONS, "glm4_moe": MEGATRONS, "deepseek_v3": {}}


def norms(checkpoint: Path) -> list[set[str]]:
    """Names of the norms of layers 0 and 1 in a checkpoint, in which alike layers have theirs together."""
    from megatron.core import dist_checkpointing

    found: list[set[str]] = [set(), set()]
    for name in dist_checkpointing.load_tensors_metadata(str(checkpoint)):
        head, _, tail = name.partition("decoder.layers.")
        if head == "" and "norm" in tail:
            number, _, rest = tail.partition(".")
            for layer in [int(number)] if number.isdigit() else [0, 1]:
                if layer < 2:
                    found[layer].add(rest if number.isdigit() else tail)
    return found


def saved(models: dict[str, str], out: str) -> dict[str, Any]:
    """Names of norms by kind of model; and for those of ONCE the names of then in a checkpoint, and what differs when a
    run goes on from it."""
    names, after = {}, {}
    for kind, model in models.items():
        with trainer(model, "--save", f"{out}/{kind}") as made:
            steps(made, 0, 1)
            made.save(0)
            names[kind] = norms(Path(out) / kind / "iter_0000000")
    for kind, then in ONCE.items():
        once = f"{out}/{kind} once"
        with trainer(models[kind], "--save", once) as made:
            steps(made, 0, 1)
            for module in made.model.chunks[0].modules():
                if hasattr(module, "submodules_config") and hasattr(module, "self_attention"):
                    module.submodules_config.sharded_state_dict_keys_map = then
            made.save(0)
            expected = state(made)
        with trainer(models[kind], "--load", once) as made:
            after[kind] = norms(Path(once) / "iter_0000000"), different(expected, state(made))
    return {"names": names, "once": after}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    directory = tmp_path_factory.mktemp("names")
    models = {kind: str(make_checkpoint(directory / kind, kind)) for kind in NORMS}
    return run_ranks(saved, 1, models, str(directory / "saved"), deadline=200.0)[0]


@pytest.mark.parametrize("kind", NORMS)
def test_norms_have_the_names_that_they_have_in_transformer_engines_layers(kind, found):
    assert found["names"][kind] == NORMS[kind]


@pytest.mark.parametrize("kind", ONCE)
def test_a_run_goes_on_from_a_checkpoint_with_the_names_of_local_layers(kind, found):
    names, differences = found["once"][kind]
    assert names != NORMS[kind] and differences == []
