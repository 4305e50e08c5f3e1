"""--rm-type ifbench: whether a response follows instructions that a program can check (IFEval, arXiv:2311.07911).

metadata["instruction_id_list"] names them, metadata["kwargs"] has a dict of arguments for each, as in IFEval's files.
Checked are the instructions of CHECKS; another is an error, never skipped. `language:response_language` is not among
them: it would take a model to tell languages apart. Nor are those that IFBench adds (arXiv:2507.02833).

Held: a check takes time linear in the response. A pattern in which two repetitions can share a text does not.
"""

from __future__ import annotations

import inspect
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Any

from slime.rewards.errors import RewardError
from slime.rewards.final_answer import after_thinking
from slime.rewards.verdict import Verdict, right, wrong

Check = Callable[..., bool]
CHECKS: dict[str, Check] = {}


def ifbench(args: Any, sample: Any) -> Verdict:
    """1 when every instruction is followed, else 0 and those that are not."""
    metadata = sample.metadata or {}
    names = metadata.get("instruction_id_list")
    if not names:
        raise RewardError(f'{sample.name}: ifbench checks metadata["instruction_id_list"], which is not there')
    arguments = metadata.get("kwargs") or [{}] * len(names)
    if len(arguments) != len(names):
        raise RewardError(f"{sample.name}: {len(names)} instructions, but kwargs for {len(arguments)}")
    if unknown := sorted(set(names) - CHECKS.keys()):
        raise RewardError(f"{sample.name}: no check for the instructions {', '.join(unknown)}; there are: {_known()}")
    said = after_thinking(sample.response, sample.prompt)
    if said is None:
        return wrong("the thinking does not end")
    said = "".join(letter for letter in said if unicodedata.category(letter) != "Cf")  # those that nobody sees
    if not said:
        return wrong("the response is empty")
    broken = []
    for name, given in zip(names, arguments, strict=True):
        given = {key: value for key, value in (given or {}).items() if value is not None}
        if problem := _problem(CHECKS[name], given):
            raise RewardError(f"{sample.name}: kwargs of the instruction {name}: {problem}")
        try:
            if not CHECKS[name](said, **given):
                broken.append(name)
        except (TypeError, AttributeError) as error:
            raise RewardError(f"{sample.name}: kwargs of the instruction {name}, {given}: {error}") from error
    return wrong(f"not followed: {', '.join(broken)}") if broken else right(f"followed all {len(names)}")


def _problem(check: Check, given: dict[str, Any]) -> str:
    """Which arguments of a check are missing, or are none of its own; empty when they are all there."""
    _, *wanted = inspect.signature(check).parameters.values()
    needed = {one.name for one in wanted if one.default is one.empty}
    parts = {"lack": needed - given.keys(), "have what it does not know:": given.keys() - {one.name for one in wanted}}
    return ", and ".join(f"they {verb} {', '.join(sorted(names))}" for verb, names in parts.items() if names)


def check(name: str) -> Callable[[Check], Check]:
    def enter(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return enter


def _known() -> str:
    return ", ".join(sorted(CHECKS))


def _compare(count: int, relation: str, wanted: int) -> bool:
    if relation not in ("at least", "less than"):
        raise TypeError(f"relation {relation!r} is neither 'at least' nor 'less than'")
    return count >= wanted if relation == "at least" else count < wanted


def _words(text: str) -> list[str]:
    return re.findall(r"(?<!\w)_*[^\W_]\w*(?:[-'’]\w+)*", text)


def _occurrences(text: str, phrase: str) -> int:
    """As whole words, whatever their case."""
    return len(re.findall(rf"(?<!\w){re.escape(phrase)}(?!\w)", text, re.IGNORECASE))


@check("keywords:existence")
def _existence(text: str, keywords: list[str]) -> bool:
    return all(_occurrences(text, keyword) for keyword in keywords)


@check("keywords:forbidden_words")
def _forbidden(text: str, forbidden_words: list[str]) -> bool:
    return not any(_occurrences(text, word) for word in forbidden_words)


@check("keywords:frequency")
def _frequency(text: str, keyword: str, frequency: int, relation: str = "at least") -> bool:
    return _compare(_occurrences(text, keyword), relation, frequency)


@check("keywords:letter_frequency")
def _letter_frequency(text: str, letter: str, let_frequency: int, let_relation: str = "at least") -> bool:
    return _compare(Counter(text.lower())[letter.lower()], let_relation, let_frequency)


@check("length_constraints:number_words")
def _number_words(text: str, num_words: int, relation: str = "at least") -> bool:
    return _compare(len(_words(text)), relation, num_words)


# What ends in a full stop and no sentence does: Dr. Li, J. K. Li. One initial alone may end one, as in "So did I."
_INITIALS = re.compile(r"\b[A-Z]\.(?:\s+[A-Z]\.)+(?=\s)")
_GOES_ON = re.compile(r"(?:\A|.*\W)(?:Mrs?|Ms|Dr|Prof|St|Rev|Gen|e\.g|i\.e|vs|cf)\.|[A-Z]\.", re.DOTALL)


@check("length_constraints:number_sentences")
def _number_sentences(text: str, num_sentences: int, relation: str = "at least") -> bool:
    text = _INITIALS.sub("I", text.strip())
    parts = [part for part in re.split(r"(?<=[.!?])[\"')\]]*\s+", text) if _words(part)]
    ended = [part for part in parts[:-1] if not _GOES_ON.fullmatch(part)]
    return _compare(len(ended + parts[-1:]), relation, num_sentences)


@check("length_constraints:number_paragraphs")
def _number_paragraphs(text: str, num_paragraphs: int) -> bool:
    """Parted by the divider ***."""
    parts = [part.strip() for part in re.split(r"\s?\*\*\*\s?", text)]
    return all(parts[1:-1]) and len([part for part in parts if part]) == num_paragraphs


@check("length_constraints:nth_paragraph_first_word")
def _nth_paragraph(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Parted by blank lines."""
    parts = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    if len(parts) != num_paragraphs or not 1 <= nth_paragraph <= len(parts):
        return False
    words = _words(parts[nth_paragraph - 1])
    return bool(words) and words[0].lower() == first_word.lower()


@check("detectable_content:number_placeholders")
def _placeholders(text: str, num_placeholders: int) -> bool:
    return len(re.findall(r"\[[^\w\[\]]*\w[^\[\]]*\]", text)) >= num_placeholders


@check("detectable_content:postscript")
def _postscript(text: str, postscript_marker: str = "P.S.") -> bool:
    """A line or sentence that begins with the marker and says something."""
    pattern = rf"(?:^|(?<=[.!?])[ \t])[ \t]*{re.escape(postscript_marker)}\s*\S"
    return re.search(pattern, text, re.IGNORECASE | re.MULTILINE) is not None


@check("detectable_format:number_bullet_lists")
def _bullets(text: str, num_bullets: int) -> bool:
    return len(re.findall(r"^[ \t]*(?:\*(?!\*)|-(?![-\d]))[^\n]*\w", text, re.MULTILINE)) == num_bullets


@check("detectable_format:constrained_response")
def _constrained(text: str) -> bool:
    return text.strip() in ("My answer is yes.", "My answer is no.", "My answer is maybe.")


@check("detectable_format:number_highlighted_sections")
def _highlighted(text: str, num_highlights: int) -> bool:
    return len(re.findall(r"\*\*[^\w\n*]*\w[^\n*]*\*\*|(?<!\*)\*[^\w\n*]*\w[^\n*]*\*(?!\*)", text)) >= num_highlights


@check("detectable_format:multiple_sections")
def _sections(text: str, section_spliter: str, num_sections: int) -> bool:
    return len(set(re.findall(rf"\b{re.escape(section_spliter)}\s?(\d+)", text))) >= num_sections


@check("detectable_format:json_format")
def _json(text: str) -> bool:
    text = re.sub(r"^```(?:json)?|```$", "", text.strip(), flags=re.IGNORECASE).strip()
    try:
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is Python's, not JSON's")


@check("detectable_format:title")
def _title(text: str) -> bool:
    return re.search(r"<<[^\w\n<>]*\w[^\n<>]*>>", text) is not None


@check("combination:two_responses")
def _two_responses(text: str) -> bool:
    parts = [part.strip() for part in text.split("******")]
    return len(parts) == 2 and all(parts) and parts[0] != parts[1]


@check("combination:repeat_prompt")
def _repeats(text: str, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


@check("startend:end_checker")
def _ends(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


@check("startend:quotation")
def _quoted(text: str) -> bool:
    text = text.strip()
    return re.fullmatch(r'"\W*\w.*"', text, re.DOTALL) is not None


@check("change_case:capital_word_frequency")
def _capital_words(text: str, capital_frequency: int, capital_relation: str = "at least") -> bool:
    return _compare(sum(word.isupper() for word in _words(text)), capital_relation, capital_frequency)


@check("change_case:english_capital")
def _capitals(text: str) -> bool:
    return text.isupper() and _is_latin(text)


@check("change_case:english_lowercase")
def _lower_case(text: str) -> bool:
    return text.islower() and _is_latin(text)


def _is_latin(text: str) -> bool:
    return all(unicodedata.name(letter, "").startswith("LATIN") for letter in set(text) if letter.isalpha())


@check("punctuation:no_comma")
def _no_comma(text: str) -> bool:
    return not set(text) & set(",，")
