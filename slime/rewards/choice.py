"""--rm-type gpqa: the letter of the right choice.

The right one is metadata["correct_letter"], else the label: a letter, or the text of one of metadata["choices"].
"""

from __future__ import annotations

import re
from typing import Any

from slime.rewards.errors import RewardError
from slime.rewards.final_answer import (
    after_thinking,
    has_box,
    last_boxed,
    stated,
    stated_by,
    stated_later,
    why_not_meant,
)
from slime.rewards.label import label_of
from slime.rewards.math_text import MAX_LENGTH, normalise, plain_words
from slime.rewards.verdict import Verdict, right, wrong

_LETTER = re.compile(
    r"(?:option |choice )?[(\[]?([A-Z])(?:[)\]]|(?=[.:,\s])|$)[.:,]?\s*(.*)", re.IGNORECASE | re.DOTALL
)
_ANOTHER = re.compile(r"\b(?:or|and|not|nor|Or|And|OR|AND)\b\s*[(\[]?[A-Za-z]\b|[,/&;]\s*[(\[]?[A-Z]\b")
_AFFIRMED = re.compile(r"is (?:(?:the )?(?:right|correct)(?: (?:answer|choice|option|one))?|the answer)\.?")
_OTHERS_DENIED = re.compile(
    r"(?:[Bb]oth )?((?:[(\[*]*[A-Z]\b[)\]*]*(?:,? (?:and|or) |, )?)+) (?:is|are|was|were) (?:all |both |clearly )?"
    r"(?:wrong|incorrect|false|excluded|impossible|too [a-z]+)\b"
)
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
    answer = last_boxed(said) if has_box(said) else stated(said) or _last_line(said, choices)
    letter = _chosen(answer, choices) if answer else None
    if letter is None:
        return wrong("no single choice is named at the end")
    said = _without_others(letter, said)
    if reason := why_not_meant(said):
        return wrong(reason)
    if (later := stated_later(said)) and _chosen(later, choices) not in (letter, None):
        return wrong(f"after the box it states another answer: {later}")
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
    is_text = any(str(label).strip() == text.strip() for text in choices.values())
    if re.fullmatch(r"\d{1,2}", str(label)) and int(label) < len(choices) and (isinstance(label, int) or not is_text):
        return list(choices)[int(label)]
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
    if match is None or (match[1].islower() and match[2]):
        return None
    letter = match[1].upper()
    text = _without_others(letter, match[2]).strip()
    if _ANOTHER.search(answer[match.end(1) : match.start(2)] + text):
        return None
    if _AFFIRMED.fullmatch(text):
        return letter if not choices or letter in choices else None
    if choices and letter not in choices:
        return None
    if choices and any(text.casefold() == other.casefold() for key, other in choices.items() if key != letter):
        return None  # the letter of one choice with the text of another
    if text.casefold() != choices.get(letter, "").casefold() and _OPINION.search(text):
        return None
    if not choices and re.match(r"(?!because|since)[a-z]", text) and answer[0] not in "([" and answer[1:2] == " ":
        return None  # "A cat sat": an article
    return letter


def _without_others(letter: str, text: str) -> str:
    """Without what says that other choices are wrong."""
    return _OTHERS_DENIED.sub(lambda match: match[0] if letter in match[1] else "", text)


def _last_line(said: str, choices: dict[str, str]) -> str | None:
    """A last line that is a letter and no more, unless the line before is one as well or states another answer."""
    before, line = ["", "", *(line.strip().strip("*") for line in said.splitlines() if line.strip())][-2:]
    if not _ONLY_A_LETTER.fullmatch(line) or _ONLY_A_LETTER.fullmatch(before):
        return None
    other = _chosen(stated_by(before) or "", choices)
    return line if other in (None, _chosen(line, choices)) else None
