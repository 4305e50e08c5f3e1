"""--rm-type ifbench: each instruction with a response that follows it and one that does not."""

from __future__ import annotations

import pytest

from slime.data.sample import Sample
from slime.rewards import RewardError
from slime.rewards.instructions import CHECKS, ifbench

TABLE = [
    ("keywords:existence", {"keywords": ["cat", "dog"]}, "A Cat, a dog.", "A category of dog."),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "A category.", "My Cat."),
    ("keywords:frequency", {"keyword": "a", "frequency": 2, "relation": "at least"}, "a b A", "a b"),
    ("keywords:frequency", {"keyword": "a", "frequency": 2, "relation": "less than"}, "a b", "a a"),
    ("keywords:letter_frequency", {"letter": "e", "let_frequency": 3, "let_relation": "at least"}, "Eel see", "eel"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "it's well-known", "one two three"),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}, "Hi. You?", "3.5 is it."),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}, "Am I. You?", "By J. K. Li."),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n\nb"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "so"},
        "a b\n\nSo it is",
        "so\n\nit is",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name] at [place]", "[name] [] x"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\nP.S. more", "Bye. PS more"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Bye! P.P.S more", "Add a P.P.S here"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "**a**\n* b"),
    ("detectable_format:constrained_response", {}, "My answer is yes.", "My answer is yes"),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and **b c**", "*a* and * *"),
    ("detectable_format:multiple_sections", {"section_spliter": "PART", "num_sections": 2}, "PART 1 PART 2", "PART"),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{a: 1}"),
    ("detectable_format:title", {}, "<<Ode>>\nx", "<< >> x"),
    ("combination:two_responses", {}, "a\n******\nb", "a\n******\na"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say hi."}, "say hi. Hi!", "Hi! Say hi."),
    ("startend:end_checker", {"end_phrase": "Any questions?"}, 'Well. "any questions?"', "Any questions? No."),
    ("startend:quotation", {}, '"hm"', '"hm'),
    ("change_case:capital_word_frequency", {"capital_frequency": 2}, "AM I ok", "Am I ok"),
    ("change_case:english_capital", {}, "HI 5", "Hi"),
    ("change_case:english_lowercase", {}, "hi 5", "Hi"),
    ("punctuation:no_comma", {}, "a b", "a, b"),
]  # fmt: skip


def grade(response: str, *instructions: tuple[str, dict]):
    names, kwargs = zip(*instructions, strict=True)
    metadata = {"instruction_id_list": list(names), "kwargs": list(kwargs)}
    return ifbench(None, Sample(index=3, response=response, metadata=metadata))


@pytest.mark.parametrize(("name", "kwargs", "follows", "does_not"), TABLE)
def test_one(name: str, kwargs: dict, follows: str, does_not: str) -> None:
    assert grade(follows, (name, kwargs | {"not_given": None})).score == 1
    verdict = grade(does_not, (name, kwargs))
    assert (verdict.score, verdict.reason) == (0, f"not followed: {name}")


def test_every_check_is_tested() -> None:
    assert {name for name, *_ in TABLE} == CHECKS.keys()


def test_all_must_be_followed() -> None:
    two = ("punctuation:no_comma", {}), ("change_case:english_lowercase", {})
    assert grade("a b", *two).score == 1
    assert grade("a, b", *two).score == 0
    assert grade("", *two).score == 0
    assert grade("<think>a b", *two).score == 0
    assert grade("<think>A, b</think>a b", *two).score == 1


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "instruction_id_list"),
        ({"instruction_id_list": ["a:b"]}, "no check for the instructions a:b; there are: change_case"),
        (
            {"instruction_id_list": ["keywords:existence"], "kwargs": [{"words": []}]},
            "existence: they lack keywords, and they have what it does not know: words",
        ),
        ({"instruction_id_list": ["keywords:existence"], "kwargs": [{}, {}]}, "1 instructions, but kwargs for 2"),
    ],
)
def test_metadata_that_is_not_sound(metadata: dict, message: str) -> None:
    with pytest.raises(RewardError, match=f"sample 3 .*{message}"):
        ifbench(None, Sample(index=3, response="x", metadata=metadata))
