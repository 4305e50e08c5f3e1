"""What families other than Qwen3 bring into training: routers' biases, further norms, latent attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.distributed import run_ranks
from tests.models.tiny import make_checkpoint
from tests.training.ranks import trainer
from tests.training.rollouts import shares, varied

SAVED = ("glm4", "deepseek_v3")  # what torch_dist checkpoints have to hold beyond Qwen3's
BIAS = "e_score_correction_bias"


def outcomes(checkpoints: dict[str, str], work: str) -> dict[str, Any]:
    batch = shares(varied(4), micro_batch_size=2)[0]
    found: dict[str, Any] = {}
    mixture = checkpoints["glm4_moe"]
    with trainer(mixture, "--bf16", "--use-kl-loss", "--kl-loss-coef", "0.1", "--ref-load", mixture) as made:
        made.train(0, batch)
        made.train(1, batch)
        found["bf16"] = weights(made)
    for kind in SAVED:
        path = f"{work}/{kind}"
        with trainer(checkpoints[kind], "--save", path) as made:
            made.train(0, batch)
            made.save(0)
            saved = weights(made)
        with trainer(checkpoints[kind], "--load", path) as made:
            found[kind] = saved, weights(made)
    with trainer(checkpoints["deepseek_v3"]) as made:
        found["refusal"] = refusal(made, checkpoints["deepseek_v3"], ("--tensor-model-parallel-size", "2"))
    return found


def weights(made: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for bucket in made.weights(1 << 20) for name, tensor in bucket}


def refusal(made: Any, directory: str, options: tuple[str, ...]) -> str:
    from slime.config import load
    from slime.training.build import transformer_config

    config = load(["--hf-checkpoint", directory, "--rollout-batch-size", "4", *options])
    with pytest.raises(ValueError) as error:
        transformer_config(config, made.parallel, made.model.shard.family)
    return str(error.value)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {kind: str(make_checkpoint(tmp_path_factory.mktemp("hf"), kind)) for kind in (*SAVED, "glm4_moe")}


@pytest.fixture(scope="module")
def found(checkpoints: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_ranks(outcomes, 1, checkpoints, str(tmp_path_factory.mktemp("saved")))[0]


def test_biases_of_routers_are_neither_moved_nor_rounded_in_bfloat16(found, checkpoints):
    expected = {n: t for n, t in load_file(f"{checkpoints['glm4_moe']}/model.safetensors").items() if n.endswith(BIAS)}
    assert len(expected) == 3
    for name, tensor in expected.items():
        assert torch.equal(found["bf16"][name], tensor), name


def test_everything_else_trains_in_bfloat16(found, checkpoints):
    before = load_file(f"{checkpoints['glm4_moe']}/model.safetensors")
    for name in ("model.layers.1.mlp.gate.weight", "model.layers.1.mlp.shared_experts.up_proj.weight"):
        assert found["bf16"][name].dtype == torch.bfloat16
        assert not torch.equal(found["bf16"][name], before[name].bfloat16()), name


@pytest.mark.parametrize("kind", SAVED)
def test_checkpoints_of_training_hold_every_tensor(kind, found, checkpoints):
    saved, loaded = found[kind]
    before = load_file(f"{checkpoints[kind]}/model.safetensors")
    assert saved.keys() == loaded.keys() == before.keys()
    for name, tensor in saved.items():
        assert torch.equal(loaded[name], tensor), name
        assert name.endswith(BIAS) or not torch.equal(before[name], tensor), f"{name} was not trained"


def test_latent_attention_without_sequence_parallel_is_refused(found):
    assert "--tensor-model-parallel-size above 1 needs --sequence-parallel" in found["refusal"]
