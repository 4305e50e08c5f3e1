"""--rm-type gpqa: one letter, and the right one."""

from __future__ import annotations

import pytest

from slime.data.sample import Sample
from slime.rewards import RewardError
from slime.rewards.choice import gpqa

CHOICES = ["5 m/s", "10 m/s", "15 m/s", "zero"]


def score(response: str, label: object = "B", **metadata: object) -> float:
    return gpqa(None, Sample(index=3, response=response, label=label, metadata=metadata)).score


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (r"\boxed{B}", 1),
        (r"\boxed{(B)}", 1),
        (r"\boxed{\text{B}}", 1),
        ("The answer is (B).", 1),
        ("The correct answer is B", 1),
        ("Answer: B", 1),
        ("**Answer: B**", 1),
        ("I see.\nB", 1),
        ("I see.\n(B)", 1),
        ("B", 1),
        ("b", 1),
        ("Answer: B) 10 m/s", 1),
        (r"\boxed{B. 10 m/s}", 1),
        (r"\boxed{A}", 0),
        (r"\boxed{B} no, \boxed{A}", 0),
        (r"\boxed{A} no, \boxed{B}", 1),
        (r"\boxed{A or B}", 0),
        (r"\boxed{B or C}", 0),
        (r"\boxed{B, C}", 0),
        (r"\boxed{B, not A}", 0),
        (r"\boxed{ABCD}", 0),
        (r"\boxed{}", 0),
        ("(B) is false.", 0),
        ("Answer: B) is incorrect", 0),
        ("Answer: C\n\nB", 0),
        ("The answer is C.\nB", 0),
        ("Answer: B\n\nB", 1),
        ("Is the answer C? No.\n\nB", 1),
        ("Answer: (B) is definitely not the right one", 0),
        ("B: the speed is high. Answer: A", 0),
        ("Answer: B. No wait, A.", 0),
        ("A. B. C. D.", 0),
        ("B. C. D. A.", 0),
        ("B. A.", 0),
        ("Answer: B) the 10 km of a walk", 1),
        ("Answer: A, B, C or D", 0),
        ("B would be wrong, since it is too fast.", 0),
        ("Answer: Between them nothing", 0),
        ("<think>\\boxed{B}</think>Hm.", 0),
        ("<think>\\boxed{B}", 0),
        ("", 0),
    ],
)
def test_letters(response: str, expected: float) -> None:
    assert score(response) == expected


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (r"\boxed{10 m/s}", 1),
        (r"\boxed{zero}", 0),
        (r"\boxed{B) 10 m/s}", 1),
        (r"\boxed{B) 15 m/s}", 0),
        (r"\boxed{E}", 0),
    ],
)
def test_the_text_of_a_choice(response: str, expected: float) -> None:
    assert score(response, choices=CHOICES) == expected


def test_where_the_right_one_stands() -> None:
    assert score("B", None, correct_letter="B") == 1
    assert score("B", "10 m/s", choices=CHOICES) == 1
    assert score("B", 1, choices=CHOICES) == 1
    assert score("B", "B", choices={"A": "x", "B": "y"}) == 1
    with pytest.raises(RewardError, match=r"sample 3 .* neither a letter nor one of the choices"):
        score("B", "20 m/s", choices=CHOICES)
