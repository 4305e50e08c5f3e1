"""The checkpoint's tokenizer, read from its files by the `tokenizers` library.

Importing transformers costs seconds and hundreds of megabytes in every process; the ids are the same (tests hold that).
Invariant: nothing is ever added to a text, cut off or padded here; special tokens come from the chat template alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as Backend

from slime.data.errors import DataError

CONFIG = "tokenizer_config.json"
MANY_TOKENS = 10_000  # fewer are decoded before the library's threads, on a machine whose cores are busy, have begun
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """`named_tokens`: bos_token, eos_token ... as templates call them; `templates`: name -> source of chat templates;
    `stop_token_ids`: where the checkpoint stops to generate; `special_ids`: tokens that are no text."""

    def __init__(
        self, backend: Backend, named_tokens: dict[str, str], templates: dict[str, str], stop_token_ids: Iterable[int]
    ):
        self._backend = backend
        backend.no_truncation()
        backend.no_padding()
        self.named_tokens = named_tokens
        self.templates = templates
        self.stop_token_ids = frozenset(stop_token_ids)
        self.special_ids = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)

    @classmethod
    def load(cls, checkpoint: str | Path) -> Tokenizer:
        """Of a directory in HF's format. Raises DataError when there is no tokenizer in it."""
        directory = Path(checkpoint)
        if not directory.is_dir():
            raise DataError(f"{directory}: no such directory; a tokenizer is looked for there")
        config = read_json(directory / CONFIG)
        backend = load_backend(directory)
        for token in _added_tokens(config, directory / CONFIG):
            if backend.token_to_id(token["content"]) is None:
                backend.add_tokens([AddedToken(**token)])
        named = {**_named_tokens(directory / "special_tokens_map.json"), **_named_tokens(directory / CONFIG)}
        stops = {backend.token_to_id(named["eos_token"])} if "eos_token" in named else set()
        for name in ("config.json", "generation_config.json"):
            stops |= _stop_token_ids(directory / name)
        return cls(backend, named, load_templates(directory, config), stops - {None})

    def __len__(self) -> int:
        return self._backend.get_vocab_size()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text. One call for many texts is much faster than one each."""
        return [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Encoding]:
        """As `encode`; `offsets` of an encoding are the characters (begin, end) that each of its `ids` stands for."""
        return self._backend.encode_batch(list(texts), add_special_tokens=False)

    def decode(self, ids: Sequence[Sequence[int]], *, skip_special_tokens: bool = False) -> list[str]:
        lists = [list(one) for one in ids]
        if sum(map(len, lists)) < MANY_TOKENS:
            return [self._backend.decode(one, skip_special_tokens=skip_special_tokens) for one in lists]
        return self._backend.decode_batch(lists, skip_special_tokens=skip_special_tokens)

    def decode_responses(
        self, ids: Sequence[Sequence[int]], stop_token_ids: Iterable[int] = (), *, skip_special_tokens: bool = False
    ) -> list[str]:
        """The text of each response without the token that ended it, one of the checkpoint's or of `stop_token_ids`."""
        stops = self.stop_token_ids.union(stop_token_ids)
        spoken = [one[:-1] if one and one[-1] in stops else one for one in ids]
        return self.decode(spoken, skip_special_tokens=skip_special_tokens)


def load_backend(directory: Path) -> Backend:
    file = directory / "tokenizer.json"
    if file.exists():
        try:
            return Backend.from_file(str(file))
        except Exception as error:  # the library raises nothing more specific
            raise DataError(f"{file}: not a tokenizer: {error}") from error
    from transformers import AutoTokenizer  # converts older formats; the only use of it, because its import is slow

    try:
        converted = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, ImportError) as error:
        raise DataError(
            f"{directory}: no tokenizer.json, and nothing that transformers can make one of: {error}"
        ) from error
    if not hasattr(converted, "backend_tokenizer"):
        raise DataError(
            f"{directory}: {type(converted).__name__} has no tokenizer.json; save a fast version of it there"
        )
    return converted.backend_tokenizer


def load_templates(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    """Name -> source. Files of their own win over tokenizer_config.json, where older checkpoints keep templates."""
    templates = _inline_templates(config.get("chat_template"))
    if not all(isinstance(source, str) for source in templates.values()):
        raise DataError(f"{directory / CONFIG}: its chat_template is neither a text nor a list of named ones")
    if (file := directory / "chat_template.jinja").exists():
        templates["default"] = file.read_text(encoding="utf-8")
    for file in sorted(directory.glob("additional_chat_templates/*.jinja")):
        templates[file.stem] = file.read_text(encoding="utf-8")
    return templates


def _inline_templates(inline: Any) -> dict[str, Any]:
    if not isinstance(inline, list):
        return {} if inline is None else {"default": inline}
    try:
        return {template["name"]: template["template"] for template in inline}
    except (LookupError, TypeError):
        return {"default": inline}


def _added_tokens(config: dict[str, Any], file: Path) -> list[dict[str, Any]]:
    """In the order of their ids."""
    by_id = config.get("added_tokens_decoder") or {}
    try:
        tokens = [token for _, token in sorted(by_id.items(), key=lambda item: int(item[0]))]
        if all(isinstance(token["content"], str) for token in tokens):
            return tokens
    except (AttributeError, LookupError, TypeError, ValueError):
        pass
    raise DataError(f"{file}: its added_tokens_decoder gives no text by id")


def _named_tokens(file: Path) -> dict[str, str]:
    content, named = read_json(file), {}
    for name in NAMED_TOKENS:
        if token := content.get(name):
            named[name] = token.get("content") if isinstance(token, dict) else token
            if not isinstance(named[name], str):
                raise DataError(f"{file}: its {name} is no text")
    return named


def _stop_token_ids(file: Path) -> set[int | None]:
    stated = read_json(file).get("eos_token_id")
    ids = stated if isinstance(stated, list) else [stated]
    if not all(one is None or type(one) is int for one in ids):
        raise DataError(f"{file}: its eos_token_id is neither an id nor a list of them")
    return set(ids)


def read_json(file: Path) -> dict[str, Any]:
    """{} when there is no such file: all of these files are optional."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise DataError(f"{file}: can't be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:  # the latter where it is nested too deep
        raise DataError(f"{file}: not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise DataError(f"{file}: must be a JSON object, not {type(content).__name__}")
    return content
