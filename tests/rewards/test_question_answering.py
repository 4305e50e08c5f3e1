"""--rm-type f1 and em."""

from __future__ import annotations

import pytest

from slime.data.sample import Sample
from slime.rewards.question_answering import em, f1


@pytest.mark.parametrize(
    ("response", "label", "overlap", "exact"),
    [
        ("The Eiffel Tower!", "eiffel tower", 1, 1),
        ("the tower", "eiffel tower", 2 / 3, 0),  # precision 1, recall 1/2
        ("Paris Paris Paris Paris", "Paris", 2 / 5, 0),  # precision 1/4, recall 1
        ("London", "Paris", 0, 0),
        ("", "Paris", 0, 0),
        ("the", "a", 0, 0),  # nothing but articles, both: then they count
        ("rome", ["Paris", "Rome"], 1, 1),
        ("U.S.", "US", 1, 1),
        ("<think>Paris</think>Rome", "Paris", 0, 0),
        ("<think>Paris", "Paris", 0, 0),
        ("1990", 1990, 1, 1),
        ("\ue000 was 5, not 7", "was not 5 7", 8 / 9, 0),  # precision 4/5, recall 1
        ("5 \ue000", "5 \ue000", 1, 1),
    ],
)
def test_words(response: str, label: object, overlap: float, exact: float) -> None:
    sample = Sample(response=response, label=label)
    assert f1(None, sample).score == pytest.approx(overlap)
    assert em(None, sample).score == exact
