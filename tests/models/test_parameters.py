"""Patterns that no parameter could have in its name, said without a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slime.config import load
from slime.models.names import local_spec_name, names_by_either_spec
from slime.models.parameters import possible_names, unmatched_patterns
from slime.models.registry import family_of
from tests.models.tiny import COMMON, LATENT, MOE


def said(directory: Path, *words: str, hf_config: dict = COMMON) -> list[tuple[str, str]]:
    (directory / "config.json").write_text(json.dumps(hf_config))
    return unmatched_patterns(load(["--hf-checkpoint", str(directory), "--rollout-batch-size", "4", *words]))


@pytest.mark.parametrize("option", ["--only-train-params-name-list", "--freeze-params-name-list"])
def test_a_pattern_that_no_parameter_has_is_said_with_the_name_of_one(option, tmp_path):
    ((where, what),) = said(tmp_path, option, "linear_fc1", "q_proj")
    assert where == option
    assert what.startswith("'q_proj': no parameter has that in its name; one is called decoder.layers.")


@pytest.mark.parametrize(
    ("pattern", "hf_config"),
    [
        (r"layers\.3\.self_attention\.linear_qkv\.weight$", COMMON),
        (r"linear_fc1.layer_norm_weight", COMMON),  # of Transformer Engine
        (r"pre_mlp_layernorm", COMMON),  # of the local layers
        (r"experts\.local_experts\.3\.", MOE),
        (r"experts\.linear_fc2\.weight3$", MOE),  # grouped
        (r"linear_kv_up_proj.layer_norm_weight", LATENT),
        (r"^decoder\.layers\.0\.mlp\.router", LATENT),  # whose first layer is dense, but that of a later stage is not
    ],
)
def test_a_pattern_that_a_parameter_has_on_some_rank_is_fine(pattern, hf_config, tmp_path):
    assert said(tmp_path, "--freeze-params-name-list", pattern, hf_config=hf_config) == []


def test_layers_for_multi_token_prediction_are_there_when_they_are_trained(tmp_path):
    words = ("--freeze-params-name-list", r"^mtp\.layers\.0\.eh_proj")
    assert said(tmp_path, *words, "--enable-mtp-training", hf_config=LATENT) == []
    assert len(said(tmp_path, *words, hf_config=LATENT)) == 1


def test_of_a_model_of_the_users_nothing_is_known(tmp_path):
    words = ("--freeze-params-name-list", "adapter")
    assert len(said(tmp_path, *words)) == 1
    assert said(tmp_path, *words, "--custom-model-provider-path", "a.b") == said(
        tmp_path, *words, "--debug-rollout-only"
    )


@pytest.mark.parametrize("hf_config", [COMMON, MOE, LATENT])
def test_names_by_either_spec_are_of_the_same_parameter(hf_config):
    family = family_of(hf_config)
    for name in family.tensors:
        assert {local_spec_name(other) for other in names_by_either_spec(name)} == {name}
        assert name in possible_names(family)
