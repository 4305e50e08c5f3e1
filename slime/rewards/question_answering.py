"""--rm-type f1 and em: answers in words, compared as SQuAD does (arXiv:1606.05250).

Normalised: lower case, accents composed, without punctuation, without the articles a, an and the, spaces made one.
Unlike SQuAD's, numbers keep what tells them apart (-5 and 5, 1.5 and 15, 5% and 5), with a blank between or without,
relations their sign (x < y and x > y), and what is nothing but punctuation and articles stays.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from itertools import chain, zip_longest
from typing import Any

from slime.rewards.final_answer import after_thinking
from slime.rewards.label import label_of
from slime.rewards.verdict import Verdict, wrong

_PUNCTUATION = str.maketrans("", "", "".join(set(string.punctuation) - set("<>=")) + "‘’“”´")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_MEANT = re.compile(  # a dash apart from its number is a sign where no word is before it
    r"((?<![\w+<>~≈$€£-])(?:(?!(?<=\w\s)-+\s)(?:[-+<>~≈$€£]++\s?){1,4})?\d[\d.,:/%-]*(?<![.,:/-])(?:\s?%)?"
    r"|(?<!\w)[a-z](?:\+\+|#)(?!\w))"
)


def f1(args: Any, sample: Any) -> Verdict:
    """Harmonic mean of precision and recall of words, against the best of the labels."""
    return _best(sample, word_f1, "F1")


def em(args: Any, sample: Any) -> Verdict:
    """1 when the answer, normalised, is one of the labels."""
    return _best(sample, lambda answer, label: float(answer == label), "exact match")


def _best(sample: Any, measure: Any, name: str) -> Verdict:
    label = label_of(sample)
    said = after_thinking(sample.response, sample.prompt)
    if said is None:
        return wrong("the thinking does not end")
    labels = [str(one) for one in (label if isinstance(label, list) else [label])]
    score, best = max((measure(words(said), words(one)), one) for one in labels)
    return Verdict(score, f"{name} {score:.3f} with {best!r}")


def words(text: str) -> list[str]:
    text = unicodedata.normalize("NFC", text.lower()).replace("−", "-")
    pieces = _MEANT.split(text)
    plain = [_ARTICLES.sub(" ", piece.translate(_PUNCTUATION)).split() for piece in pieces[::2]]
    meant = [[re.sub(r"\s|,(?=\d{3})", "", piece)] for piece in pieces[1::2]]
    return list(chain(*chain(*zip_longest(plain, meant, fillvalue=[])))) or text.split()


def word_f1(answer: list[str], label: list[str]) -> float:
    """Of two empty lists 1, of one 0."""
    if not answer or not label:
        return float(answer == label)
    common = (Counter(answer) & Counter(label)).total()
    return 2 * common / (len(answer) + len(label))
