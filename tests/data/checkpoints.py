"""Checkpoint directories for these tests: tokenizers with the special tokens that chat templates name."""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|observation|>"]
SPECIAL += ["[gMASK]", "<sop>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
WORDS = 'the quick brown fox jumps over the lazy dog; user system assistant tool name arguments {"a": 1} 12 + 34 = 46\n'


def byte_level_tokenizer() -> Tokenizer:
    """Bytes, a few merges and words cut as GPT-2 and its successors cut them."""
    tokenizer = Tokenizer(models.BPE())
    words = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(words, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([WORDS] * 3, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED])
    return tokenizer


def write_tokenizer(directory: Path, template: str | None, stops: tuple[str, ...] = ("<|im_end|>",)) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_level_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": stops[0]}
    (directory / "tokenizer_config.json").write_text(json.dumps(config | {"clean_up_tokenization_spaces": False}))
    ids = [tokenizer.token_to_id(stop) for stop in stops]
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    return directory
