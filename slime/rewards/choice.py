"""--rm-type gpqa: the letter of the right choice.

The right one is metadata["correct_letter"], else the label: a letter, or the text of one of metadata["choices"].
"""

from __future__ import annotations

import re
from typing import Any

from slime.rewards.errors import RewardError
from slime.rewards.final_answer import after_thinking, has_box, last_boxed, stated, why_not_meant
from slime.rewards.label import label_of
from slime.rewards.math_text import MAX_LENGTH, normalise, plain_words
from slime.rewards.verdict import Verdict, right, wrong

_LETTER = re.compile(
    r"(?:option |choice )?[(\[]?([A-Z])(?:[)\]]|(?=[.:,\s])|$)[.:,]?\s*(.*)", re.IGNORECASE | re.DOTALL
)
_ANOTHER = re.compile(r"\b(?:or|and|not|nor|Or|And|OR|AND)\b\s*[(\[]?[A-Za-z]\b|[,/&;]\s*[(\[]?[A-Z]\b")
_ONLY_A_LETTER = re.compile(r"[(\[]?[A-Za-z][)\].]?\.?")

# What may be said of a choice instead of what it says: whether it is right, or that another one is.
_OPINION = re.compile(
    r"\b(?:is|are|was|isn't|not|no|never|wrong|incorrect|false|true|right|correct|wait|but|however|actually|answers?|"
    r"instead|rather|maybe|perhaps|hmm?)\b|(?<![A-Za-z])(?-i:[B-HJ-Z])(?![A-Za-z'])|^\W*[A-Z]\W*$",
    re.IGNORECASE,
)


def gpqa(args: Any, sample: Any) -> Verdict:
    """1 for exactly one letter, the right one, in the last box, or in what the last line states; else 0."""
    choices = _choices(sample)
    wanted = _right_letter(sample, choices)
    said = after_thinking(sample.response, sample.prompt)
    if said is None:
        return wrong("the thinking does not end")
    if reason := why_not_meant(said):
        return wrong(reason)
    answer = last_boxed(said) if has_box(said) else stated(said) or _last_line(said)
    letter = _chosen(answer, choices) if answer else None
    if letter is None:
        return wrong("no single choice is named at the end")
    return right(f"chose {letter}") if letter == wanted else wrong(f"chose {letter}, right is {wanted}")


def _choices(sample: Any) -> dict[str, str]:
    """Letter -> text; empty when the sample does not list them."""
    choices = (sample.metadata or {}).get("choices") or {}
    if isinstance(choices, dict):
        return {str(letter).upper(): str(text) for letter, text in choices.items()}
    return {chr(ord("A") + i): str(text) for i, text in enumerate(choices)}


def _right_letter(sample: Any, choices: dict[str, str]) -> str:
    metadata = sample.metadata or {}
    label = metadata.get("correct_letter") or label_of(sample)
    if isinstance(label, int) and 0 <= label < len(choices):
        return list(choices)[label]
    letter = _chosen(str(label), choices)
    if letter is None:
        raise RewardError(f"{sample.name}: the label {label!r} is neither a letter nor one of the choices {choices}")
    return letter


def _chosen(answer: str, choices: dict[str, str]) -> str | None:
    if len(answer) > MAX_LENGTH:
        return None
    answer = plain_words(normalise(answer.strip("*` "))).strip("*` ").rstrip(".")
    same = [letter for letter, text in choices.items() if text.casefold().strip() == answer.casefold()]
    if len(same) == 1:
        return same[0]
    match = _LETTER.fullmatch(answer)
    if match is None or _ANOTHER.search(answer, match.end(1)) or (match[1].islower() and match[2]):
        return None
    letter, text = match[1].upper(), match[2].strip()
    if choices and letter not in choices:
        return None
    if choices and any(text.casefold() == other.casefold() for key, other in choices.items() if key != letter):
        return None  # the letter of one choice with the text of another
    if text.casefold() != choices.get(letter, "").casefold() and _OPINION.search(text):
        return None
    if not choices and re.match(r"[a-z]", text) and answer[0] not in "([" and answer[1:2] == " ":
        return None  # "A cat sat": an article
    return letter


def _last_line(said: str) -> str | None:
    """A last line that is a letter and no more, and not one of several such."""
    before, line = ["", "", *(line.strip().strip("*") for line in said.splitlines() if line.strip())][-2:]
    return line if _ONLY_A_LETTER.fullmatch(line) and not _ONLY_A_LETTER.fullmatch(before) else None
