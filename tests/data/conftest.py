from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slime.data.template import ChatTemplate
from slime.data.tokenizer import Tokenizer
from tests.data.checkpoints import write_tokenizer

MadeOf = Callable[..., tuple[Tokenizer, Any]]


@pytest.fixture(scope="session")
def made_of(tmp_path_factory: pytest.TempPathFactory) -> MadeOf:
    """class, template, stop tokens -> a tokenizer, and what the class makes of it and the template."""

    def make(kind: type, template: str, stops: tuple[str, ...] = ("<|im_end|>",)) -> tuple[Tokenizer, Any]:
        tokenizer = Tokenizer.load(write_tokenizer(tmp_path_factory.mktemp("checkpoint"), template, stops))
        return tokenizer, kind(tokenizer, ChatTemplate(tokenizer))

    return make
