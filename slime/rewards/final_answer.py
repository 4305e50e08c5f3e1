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

_JOINED = re.compile(r"[\s$]*(?:,|;|,?\s*\b(?:or|and)\b|\\text\s*\{\s*(?:or|and)\s*\})[\s$]*", re.IGNORECASE)
_DENIED = re.compile(r"(?:\bnot|n't)(?:\s+(?:be|equal to))?[\s$:(]*$", re.IGNORECASE)
_TAKEN_BACK = re.compile(r"\b(?:wait|actually|scratch that|on second thoughts?|correction)\b", re.IGNORECASE)


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
    boxes = _boxes(text)
    if not boxes:
        return None
    start, end = boxes[-1]
    return text[start:end].strip().rstrip("$.,")


def why_not_meant(text: str) -> str | None:
    """Why the last box is not the one answer that the text gives; None when it may be."""
    boxes = _boxes(text)
    if not boxes:
        return None
    start, end = boxes[-1]
    command = text.rfind("\\", 0, start)
    if len(boxes) > 1:
        before, since = text[slice(*boxes[-2])], boxes[-2][1] + 1
        if before.strip() != text[start:end].strip() and _JOINED.fullmatch(text, since, command):
            return "it offers several answers"
    if _DENIED.search(text[max(0, command - 40) : command]):
        return "it says what the answer is not"
    if _TAKEN_BACK.search(text, end):
        return "it takes its answer back"
    return None


def _boxes(text: str) -> list[tuple[int, int]]:
    """(start, end) of the contents, those that lie in another left out; empty when a later one does not close."""
    boxes: list[tuple[int, int]] = []
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
    if boxes and any(start is not None and start > boxes[-1][1] for start in opened):
        return []
    return boxes


def stated(text: str) -> str | None:
    """What the last line of the text says the answer is ("The answer is 5.", "#### 5"), or that line if it is all."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    match = _STATED.match(lines[-1].strip())
    if match:
        return match[1].strip().strip("*").rstrip(".").strip()
    return lines[0].strip() if len(lines) == 1 and len(lines[0]) <= 300 else None
