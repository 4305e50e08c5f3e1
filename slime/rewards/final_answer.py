"""Where the answer stands in a response: after the thinking, in the last box, or where the text says so.

Held: what was only thought is no answer; of several boxes the last counts. All of it takes time linear in the text.
"""

from __future__ import annotations

import re
from typing import Any

OPEN, CLOSE = "<think>", "</think>"
_BOX = re.compile(r"\\f?box(?:ed)?\s*(?=\{)|\\boxed\s+(?=[^\s{])")
_STATED = re.compile(
    r"^\W{0,4}(?:so |thus |hence |therefore,? )?(?:the )?(?:(?:final |correct )?answer(?: is)?\W{0,4}?(?::|\bis\b)\**|####)\s*(\S.{0,300})$",
    re.IGNORECASE,
)


def opens_thinking(prompt: Any) -> bool:
    """Whether the chat template ended the prompt in the middle of thinking."""
    return isinstance(prompt, str) and prompt.rstrip().endswith(OPEN)


def after_thinking(response: str, prompt: Any = "") -> str | None:
    """What is said after the last thought; None when a thought was begun, by response or prompt, and never ended."""
    said = response.rpartition(CLOSE)[2]
    if OPEN in said or (CLOSE not in response and opens_thinking(prompt)):
        return None
    return said.strip()


def last_boxed(text: str) -> str | None:
    """The content of the last \\boxed{...}, braces matched; None when there is none or it does not close.

    A box in a box is part of the outer one.
    """
    content, end = None, 0
    for match in _BOX.finditer(text):
        if match.start() >= end:
            content, end = _content(text, match.end())
    return content


def _content(text: str, start: int) -> tuple[str | None, int]:
    """(what the braces opened at `start` hold, or the next word where none are opened; where that ends)."""
    if text[start] != "{":
        word = re.compile(r"\S+").match(text, start)
        return word[0].rstrip("$.,"), word.end()
    depth, escaped = 0, False
    for position in range(start, len(text)):
        character = text[position]
        if escaped or character == "\\":
            escaped = not escaped
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[start + 1 : position].strip(), position + 1
    return None, len(text)


def has_box(text: str) -> bool:
    return _BOX.search(text) is not None


def stated(text: str) -> str | None:
    """What the last line of the text says the answer is ("The answer is 5.", "#### 5"), or that line if it is all."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    match = _STATED.match(lines[-1].strip())
    if match:
        return match[1].strip().strip("*").rstrip(".").strip()
    return lines[0].strip() if len(lines) == 1 and len(lines[0]) <= 300 else None
