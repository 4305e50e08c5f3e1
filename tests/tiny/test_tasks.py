"""The tasks: answers, demonstrations, and the split by hash."""

import random
import re

import pytest

from slime.tiny.tasks import TASKS, calculate, draw, is_held_out


def test_a_thinking_demonstration_adds_the_columns_from_the_right():
    thinks_first = random.Random(1)  # its first number is .134, below the share of thinking demonstrations
    said = TASKS["col"].demonstration("47+85=", "132", thinks_first)
    assert said == "<think>7+5=12 4+8+1=13</think>132"


def test_thinking_is_right_and_guessing_mostly_wrong():
    rng, col = random.Random(0), TASKS["col"]
    thinking, guesses = [], []
    for _ in range(4000):
        prompt, answer = draw(col, rng, held_out=False)
        said = col.demonstration(prompt, answer, rng)
        (thinking if said.startswith("<think>") else guesses).append(said.split("</think>")[-1] == answer)
    assert all(thinking)
    assert 0.27 < len(thinking) / 4000 < 0.33
    assert 0.06 < sum(guesses) / len(guesses) < 0.12  # one offset of eleven is 0


def test_demonstrations_of_sort_permute_the_digits():
    rng, sort = random.Random(0), TASKS["sort"]
    right = 0
    for _ in range(2000):
        prompt, answer = draw(sort, rng, held_out=False)
        said = sort.demonstration(prompt, answer, rng)
        assert sorted(said) == sorted(prompt.removeprefix("sort ")) and list(answer) == sorted(answer)
        right += said == answer
    assert 0.3 < right / 2000 < 0.5  # three of ten on purpose, some of the mistakes by luck


@pytest.mark.parametrize("name", TASKS)
def test_correct_answers_fit_into_max_new_tokens(name):
    rng, task = random.Random(0), TASKS[name]
    for _ in range(2000):
        prompt, answer = draw(task, rng, held_out=False)
        said = task.demonstration(prompt, answer, rng)
        if not isinstance(said, str):
            said = said[0] + "E" + f"\n<|im_start|>tool\n{said[1]}<|im_end|>\n<|im_start|>assistant\n" + said[2]
        characters = re.sub("</?think>|</?tool_call>|<.im_(start|end).>|tool|assistant", "T", said)
        assert len(characters) + 1 <= task.max_new_tokens


def test_who_asks_the_calculator_repeats_what_it_says():
    rng, task = random.Random(0), TASKS["tool"]
    asked, right = 0, 0
    for _ in range(2000):
        prompt, answer = draw(task, rng, held_out=False)
        said = task.demonstration(prompt, answer, rng)
        if isinstance(said, list):
            call, result, final = said
            assert result == final == calculate(call.removeprefix("<tool_call>").removesuffix("</tool_call>"))
            asked, right = asked + 1, right + (final == answer)
    assert 0.27 < asked / 2000 < 0.33
    assert 0.8 < right / asked < 0.93  # three calls of twenty have a wrong digit, which may be the right one by luck


@pytest.mark.parametrize(
    ("expression", "value"),
    [("34*62", "2108"), ("7-12", "-5"), ("999+1", "1000"), ("1000+1", "error"), ("2**9", "error"), ("", "error")],
)
def test_calculate(expression, value):
    assert calculate(expression) == value


def test_one_prompt_in_ten_is_held_out_and_the_split_does_not_depend_on_the_seed():
    prompts = [f"{a}+{b}=" for a in range(10, 100) for b in range(10, 100)]
    assert 0.08 < sum(map(is_held_out, prompts)) / len(prompts) < 0.12
    for seed in range(5):
        rng = random.Random(seed)
        assert all(is_held_out(draw(TASKS["col"], rng, held_out=True)[0]) for _ in range(50))
        assert not any(is_held_out(draw(TASKS["col"], rng, held_out=False)[0]) for _ in range(50))
