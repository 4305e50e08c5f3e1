"""The tiny checkpoint as HF's own loaders see it."""

import os

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

from slime.tiny.checkpoint import ID, VOCABULARY, write_checkpoint


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def tokenizer(directory):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


def test_the_vocabulary_is_the_size_of_the_embedding_and_every_id_decodes(tokenizer):
    assert len(VOCABULARY) == len(tokenizer) == 64
    assert [tokenizer.decode([i]) for i in range(64)] == VOCABULARY


def test_a_user_turn_with_the_generation_prompt(tokenizer):
    encoded = tokenizer.apply_chat_template([{"role": "user", "content": "47+85="}], add_generation_prompt=True)
    markers = [ID["<|im_start|>"], ID["user"], ID["\n"]]
    question = [ID[character] for character in "47+85="]
    opening = [ID["<|im_end|>"], ID["\n"], ID["<|im_start|>"], ID["assistant"], ID["\n"]]
    assert encoded["input_ids"] == markers + question + opening == [1, 3, 8, 14, 17, 46, 18, 15, 53, 2, 8, 1, 4, 8]


def test_thinking_tags_are_one_token_and_survive_decoding(tokenizer):
    ids = tokenizer.encode("<think>7+5=12</think>132<|im_end|>", add_special_tokens=False)
    assert ids == [61, 17, 46, 15, 53, 11, 12, 62, 11, 13, 12, 2]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>7+5=12</think>132"


def test_a_character_outside_the_vocabulary_is_unknown_and_not_lost(tokenizer):
    assert tokenizer.encode("aQb", add_special_tokens=False) == [ID["a"], ID["<unk>"], ID["b"]]


@pytest.mark.parametrize(("moe", "parameters"), [(False, 102784), (True, 329088)])
def test_transformers_loads_all_weights(tmp_path, moe, parameters):
    from transformers import AutoModelForCausalLM

    write_checkpoint(tmp_path, moe=moe)
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    assert sum(weight.numel() for weight in model.parameters()) == parameters
    assert type(model).__name__ == ("Qwen3MoeForCausalLM" if moe else "Qwen3ForCausalLM")


def test_weights_depend_on_the_seed_alone(tmp_path):
    written = [write_checkpoint(tmp_path / str(i), seed=seed) for i, seed in enumerate((0, 0, 1))]
    first, same, other = [(directory / "model.safetensors").read_bytes() for directory in written]
    assert first == same != other
