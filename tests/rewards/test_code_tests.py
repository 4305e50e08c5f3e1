"""Tests of programs in the forms of public data sets: a right program passes, a wrong one does not, in a sandbox."""

from __future__ import annotations

import asyncio

import pytest

from slime.data.sample import Sample
from slime.rewards import RewardError
from slime.rewards.code import code
from slime.rewards.code_tests import runnable

RIGHT, WRONG = "def add(a, b):\n    return a + b", "def add(a, b):\n    return a * b"
CASES = """import unittest

class Cases(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(add(2, 3), 5)
"""
FORMS = {
    "HumanEval": "METADATA = dict(author='x')\n\ndef check(candidate):\n    assert candidate(2, 3) == 5\n",
    "MBPP": ["assert add(2, 2) == 4", "assert add(2, 3) == 5"],
    "BigCodeBench": CASES,
    "unittest with a main": CASES + "\nif __name__ == '__main__':\n    unittest.main()\n",
    "unittest that runs as a script": CASES + "\nunittest.main()\n",
    "unittest whose result nobody reads": CASES
    + "\nunittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(Cases))\n",
    "pytest": "def test_four():\n    assert add(2, 2) == 4\n\ndef test_five():\n    assert add(2, 3) == 5\n",
    "pytest of an error": "import pytest\n\ndef test_a():\n    with pytest.raises(TypeError):\n        add(2, '3')\n",
    "a loop": "for a, b, c in [(2, 2, 4), (2, 3, 5)]:\n    assert add(a, b) == c\n",
    "a loop over functions": "def four():\n    assert add(2, 2) == 4\n\ndef five():\n    assert add(2, 3) == 5\n\n"
    "for one in (four, five):\n    one()\n",
    "the method of an operator": "assert add(2, 3).__eq__(5)\nassert not add(2, 2).__lt__(4)",
    "what may not fail, beside what can": "assert True, 'a message'\nassert add(2, 3) == 5",
    "a case that is skipped, beside another": CASES.replace("class Cases", "class Skipped").replace(
        "    def", "    @unittest.skip('x')\n    def"
    )
    + CASES,
    "a long sum": "assert add(2, 3) == " + "1 + " * 400 + "5 - 400\n",
    "a function that is called": "def run():\n    if add(2, 3) != 5:\n        raise ValueError('no sum')\n\nrun()\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_run(form: str) -> None:
    def score(program: str) -> float:
        metadata = {"tests": FORMS[form], "entry_point": "add"}
        return asyncio.run(code(None, Sample(response=f"```python\n{program}\n```", metadata=metadata))).score

    assert (score(RIGHT), score(WRONG)) == (1, 0)


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("# assert add(2, 3) == 5", "they assert nothing"),
        ("print(add(2, 3))", "they assert nothing"),
        ("with pytest.raises(Exception):\n    add(2, 3)", "they assert nothing"),
        ("assert (add(2, 3) == 5, 'no sum')", "they assert nothing"),
        ("assert add(2, 3) == 5 or True", "they assert nothing"),
        ("assert 5, add(2, 3)", "they assert nothing"),
        ("assert not (False and add(2, 3) == 5)", "they assert nothing"),
        ("assert lambda: add(2, 3) == 5", "they assert nothing"),
        (CASES.replace("    def", "    @unittest.skip('x')\n    def"), "they assert nothing"),
        (CASES.replace("class", "@unittest.skip('x')\nclass"), "they assert nothing"),
        ("assert add(2, 3) ==", "they are not Python: invalid syntax"),
        ("def check(candidate):\n    assert candidate(2, 3) == 5", "nothing calls check: .*entry_point"),
        ("def check(f):\n    assert f(2, 3) == 5\n\nfor i in range(3):\n    print(i)", "nothing calls check"),
        ("def cases():\n    return [1]\n\ndef check(f):\n    assert f(2) == 5\n\nx = cases()", "nothing calls check"),
        ("def verify(f):\n    assert f(2, 3) == 5", "nothing calls it"),
        ("def test_sum(add):\n    assert add(2, 3) == 5", "nothing calls it"),
    ],
)
def test_what_would_pass_with_any_program_is_refused(tests: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        runnable(tests)
    with pytest.raises(RewardError, match=rf"sample 3 .*tests are a list .*Python text that asserts.*{reason}"):
        asyncio.run(code(None, Sample(index=3, response=f"```python\n{RIGHT}\n```", metadata={"tests": tests})))


@pytest.mark.parametrize("how", ["__eq__", "__ge__", "__le__"])
def test_no_object_of_a_program_answers_for_its_operators(how: str) -> None:
    program = "class A:\n    __eq__ = __ge__ = __le__ = lambda s, o: True\ndef add(a, b): return A()"
    sample = Sample(response=f"```python\n{program}\n```", metadata={"tests": f"assert add(2, 3).{how}(5)"})
    assert asyncio.run(code(None, sample)).score == 0


def test_cases_that_are_all_skipped_when_they_run_pass_with_no_program() -> None:
    tests = CASES.replace("    def", "    @unittest.skipIf(True, 'x')\n    def")
    verdict = asyncio.run(code(None, Sample(response=f"```python\n{RIGHT}\n```", metadata={"tests": tests})))
    assert verdict.score == 0 and "every test case was skipped" in verdict.reason


@pytest.mark.parametrize("name", ["add(", "a.b", 7, "exit(0) or add", None])
def test_an_entry_point_is_a_name(name: object) -> None:
    with pytest.raises(ValueError, match="entry_point"):
        runnable(FORMS["HumanEval"], name)
