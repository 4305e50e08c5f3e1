"""Where the answer stands in a response: after the thinking, in the last box, or where the text says so.

Held: what was only thought is no answer; of several boxes the last counts. All of it takes time linear in the text.
"""

from __future__ import annotations

import re
from typing import Any

OPEN, CLOSE = "<think>", "</think>"
_TOKEN = re.compile(r"(?P<box>\\f?box(?:ed)?\s*\{)|\\boxed\s+(?P<word>[^\s{]\S*)|\\.|[{}]", re.DOTALL)
_STATED = re.compile(
    r"^\W{0,4}(?:so |thus |hence |therefore,? )?(?:the )?"
    r"(?:(?:final |correct )?answer(?: is)?\W{0,4}?(?::|\bis\b)\**|####)\s*(\S.{0,300})$",
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


def has_box(text: str) -> bool:
    return any(match["box"] or match["word"] for match in _TOKEN.finditer(text))


def last_boxed(text: str) -> str | None:
    """The content of the last \\boxed{...}, braces matched; None when there is none or it does not close.

    A box in a box is part of the outer one; one that never closes holds nothing of what comes after it.
    """
    boxes: list[tuple[int, int]] = []  # (start, end) of contents, those that lie in another left out
    opened: list[int | None] = []  # braces not closed yet: where the content starts of those that are boxes
    for match in _TOKEN.finditer(text):
        if match["word"]:
            boxes.append(match.span("word"))
        elif match["box"]:
            opened.append(match.end())
        elif match[0] == "{":
            opened.append(None)
        elif match[0] == "}" and opened:
            start = opened.pop()
            if start is not None:
                while boxes and boxes[-1][0] >= start:
                    boxes.pop()
                boxes.append((start, match.start()))
    if not boxes or any(start is not None and start > boxes[-1][1] for start in opened):
        return None
    start, end = boxes[-1]
    return text[start:end].strip().rstrip("$.,")


def stated(text: str) -> str | None:
    """What the last line of the text says the answer is ("The answer is 5.", "#### 5"), or that line if it is all."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    match = _STATED.match(lines[-1].strip())
    if match:
        return match[1].strip().strip("*").rstrip(".").strip()
    return lines[0].strip() if len(lines) == 1 and len(lines[0]) <= 300 else None
