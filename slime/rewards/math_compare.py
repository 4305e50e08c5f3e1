"""Whether two mathematical answers, as they are written, are the same. Runs in a worker: it may take any time.

LaTeX is parsed by latex2sympy2_extended, the grammar of math-verify, and never by anything that evaluates Python.
math-verify's own comparison is not used: it takes 9% for 9, rounds to six decimals and reads letters as one word.

Held: nothing is rounded; two expressions are equal when their values agree to 250 digits, with variables at several
random points (Schwartz-Zippel), and in doubt they are not equal; `{1, 2}` and `1, 2` have no order, `(1, 2)` has.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from latex2sympy2_extended import latex2sympy
from sympy import Expr, Float, I, N, Rational, Symbol
from sympy.core.function import AppliedUndef

from slime.rewards.math_text import normalise, number, plain_words, same_literally
from slime.rewards.units import split_unit

DIGITS = 250
POINTS = 6
_OPENING, _CLOSING = "([{", ")]}"
_MATRIX = re.compile(r"\\begin\{([pbv]?matrix|array|Bmatrix|Vmatrix)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_NAME = r"(?:\\?[A-Za-z]+|\\text\{[^{}]*\})(?:_\{?\w+\}?)?'?"
_ASSIGNED = re.compile(
    rf"({_NAME}(?:\s*\([\w, ]+\))?|\(\s*{_NAME}\s*(?:,\s*{_NAME}\s*)+\))\s*(?:=(?![=<>])|\\in(?![a-z]))(.*)"
)
_ASSIGNED_LAST = re.compile(r"(-?[\d.]+)\s*=\s*([A-Za-z])")
_PERCENT = re.compile(r"(.*?)\s*(?:\\?%|\\?\bper\s?cent)")
_UNFINISHED = re.compile(r"\\(?:binom|Gamma)(?![a-zA-Z])|!")
_CALCULATION = re.compile(r"(?:[\d.,(){}\s+*/-]|\\times|\\cdot|\\frac)*")
# What the grammar reads as something else ("1 2" as a mixed number, 101_2 as 101, 2' and [2] as 2, 1/2x as 1/(2x)), or
# takes too long for.
_MISREAD = re.compile(
    r"\d\s+\d|\d\s*_|(?<![\d.])0\s*[xbo]\s*\d|\de[-+]?\d|\^\s*[{(]?\s*-?\d{3}|\d\s*\^\s*\{?[\d.]+\s*\^|\^[^^]*\^[^^]*\^"
    r"|\.\.|[%$\"'`:]|__|(?<!\\sqrt)(?<!\\sqrt )\[|/\s*(?:\d+|[a-z])\s*[a-z(\\]|\bnan\b"
    r"|\\(?:sin|cos|tan|cot|sec|csc|log|ln)\s*[a-z]\s*[a-z(]",
    re.IGNORECASE,
)
_GREEK = set(
    """
    alpha beta gamma delta epsilon varepsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau phi varphi chi psi
    omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega
    """.split()
)
_KNOWN = _GREEK | set(
    """
    frac sqrt cdot times pi infty binom lvert rvert vert ln log exp
    sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan
    """.split()
)
"""Commands that the grammar reads as they are meant; of the rest it drops some: for it `x \\approx 2` is 2."""
_COMMAND = re.compile(r"\\([A-Za-z]+|.)")
_OF_SOME_BASE = re.compile(r"\\log(?![a-zA-Z]|\s*_)")
_SPACE = re.compile(r"(?<!\d) | (?!\d)")  # "1 2" is not 12
_REALS = (r"\mathbb{R}", r"\mathbb R", r"\R")
_RELATION = re.compile(r"(\\le(?![a-z])|\\ge(?![a-z])|\\ne(?![a-z])|<|>)")
_FLIPPED = {r"\le": r"\ge", r"\ge": r"\le", "<": ">", ">": "<", r"\ne": r"\ne"}


def same(answer: str, label: str) -> tuple[bool, str]:
    """(whether `answer` is `label`, why). Both as they stand in a response, LaTeX or not."""
    decided = same_literally(answer, label)
    if decided is not None:
        return decided
    answer, label = normalise(answer), normalise(label)
    if _equal(answer, label):
        return True, f"{answer} equals {label}"
    return False, f"{answer} is not shown to equal {label}"


def _equal(a: str, b: str, *, within: bool = False) -> bool:
    """`within`: both are elements of something."""
    a, b = map(_without_brackets, _without_name(a, b))
    kinds = [_structure(text) for text in (a, b)]
    if kinds[0] is None and kinds[1] is None:
        return _leaf_equal(a, b)
    if kinds[0] is None or kinds[1] is None:  # {5} and 5 are one solution; all else is of two kinds
        (kind, parts), single = (kinds[0], b) if kinds[0] else (kinds[1], a)
        return kind == "set" and not within and len(parts) == 1 and _equal(parts[0], single)
    (kind, ours), (other, theirs) = map(_as_interval, kinds) if kinds[0][0] != kinds[1][0] else kinds
    if kind != other or len(ours) != len(theirs):
        return False
    if kind in ("set", "union"):
        return _matched(ours, theirs)
    return all(_equal(x, y, within=True) for x, y in zip(ours, theirs, strict=True))


def _without_brackets(text: str) -> str:
    """(5) is 5; (1, 2) stays."""
    if text.startswith("(") and text.endswith(")") and _encloses(text) and len(_split(text[1:-1], (",", ";"))) == 1:
        return text[1:-1].strip()
    return text


def _matched(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether the elements are the same in some order. Equality is transitive, so that the first match will do."""
    named = [[_named(one) for one in side] for side in (ours, theirs)]
    if len({name for side in named for name, _ in side if name}) > 1:  # x = 1, y = 2: which is which counts
        a, b = map(dict, named)
        return (
            len(a) == len(b) == len(ours)
            and a.keys() == b.keys()
            and all(_equal(a[name], b[name], within=True) for name in a)
        )
    left = list(theirs)
    for one in ours:
        match = next((other for other in left if _equal(one, other, within=True)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _named(text: str) -> tuple[str, str]:
    """("x", "5") of `x = 5` or `x \\in 5`, ("", the text) of all else, as of chains and systems of equations."""
    if match := _ASSIGNED_LAST.fullmatch(text):
        return match[2], match[1]
    match = _ASSIGNED.fullmatch(text)
    if match is None or "=" in match[2] or (match[1][0] == "\\" and not _is_letter(match[1])):
        return "", text
    return match[1].replace(" ", ""), match[2].strip()


def _is_letter(name: str) -> bool:
    r"""Of what begins with a backslash: \alpha_1 and \text{area} name something, \not and \approx relate."""
    command = re.match(r"\\([A-Za-z]+)", name)
    return command is not None and (command[1] == "text" or command[1] in _GREEK)


def _without_name(a: str, b: str) -> tuple[str, str]:
    """Takes `x =` off where one side has it, or both the same."""
    (name, ours), (other, theirs) = _named(a), _named(b)
    if name == other or not (name or other or "=" in ours + theirs):
        return ours, theirs
    return (a, b) if (name and other) or "=" in (theirs if name else ours) else (ours, theirs)


def _structure(text: str) -> tuple[str, list[str]] | None:
    """(kind, parts) of a set, tuple, interval, union, matrix or chain of relations; None for a single expression.

    A tuple of two and an open interval are written the same, and are the same kind here: "()".
    """
    text = text.strip()
    if match := _MATRIX.fullmatch(text):
        rows = [row.strip() for row in re.split(r"\\\\", match[2]) if row.strip()]
        kind = "determinant" if match[1] == "vmatrix" else "norm" if match[1] == "Vmatrix" else "matrix"
        cells = [cell.strip() for row in rows for cell in row.split("&")]
        return f"{kind} of {[row.count('&') for row in rows]}", cells
    union = _split(text, (r"\cup",))
    if len(union) > 1:
        return "union", union
    if text in _REALS:
        return "()", [r"-\infty", r"\infty"]
    if text in (r"\emptyset", r"\{\}", r"\{ \}"):
        return "set", []
    if text.startswith(r"\{") and text.endswith(r"\}"):
        inside = text[2:-2]
        return ("set", _elements(inside, thousands=False)) if not re.search(r"\\mid|\||:", inside) else None
    if text and text[0] in "([" and text[-1] in ")]" and _encloses(text):
        parts = _split(text[1:-1], (",", ";"))
        if len(parts) > 1 and not any(re.fullmatch(r"0\d+", part.strip()) for part in parts):  # (1,000) is no pair
            return text[0] + text[-1], parts
    parts = _elements(text)
    if len(parts) > 1:
        return "set", parts
    pieces = [piece.strip() for piece in _RELATION.split(text)]
    if len(pieces) > 1:
        terms, relations = pieces[::2], pieces[1::2]
        if relations[0] in (">", r"\ge"):
            terms, relations = terms[::-1], [_FLIPPED[relation] for relation in relations[::-1]]
        return "relations " + " ".join(relations), terms
    return None


def _as_interval(structure: tuple[str, list[str]]) -> tuple[str, list[str]]:
    """1 < x <= 2 as (1, 2], x > 2 as (2, \\infty); all else as it is."""
    kind, terms = structure
    relations = re.findall(r"<|\\le\b", kind) if kind.startswith("relations") and r"\ne" not in kind else []
    variable = [i for i, term in enumerate(terms) if re.fullmatch(r"\\?[A-Za-z]+", term) and term != r"\infty"]
    if not relations or variable not in ([0], [1]) or len(relations) != len(terms) - 1:
        return structure
    at = variable[0]
    if len(terms) == 3 and at == 1:
        low, high, opening, closing = terms[0], terms[2], relations[0], relations[1]
    elif len(terms) == 2:
        low, opening = (r"-\infty", "<") if at == 0 else (terms[0], relations[0])
        high, closing = (r"\infty", "<") if at == 1 else (terms[1], relations[0])
    else:
        return structure
    return ("(" if opening == "<" else "[") + (")" if closing == "<" else "]"), [low, high]


def _elements(text: str, *, thousands: bool = True) -> list[str]:
    """What stands between commas, semicolons, "and", "or"; \\pm makes two. With `thousands` 1,000 is one number."""
    if thousands and number(text) is not None:
        return [text]
    elements = []
    for part in _split(text, (",", ";", " and ", " or ", r"\text{ and }", r"\text{ or }", r"\text{and}", r"\text{or}")):
        if part.count(r"\pm") == 1 and r"\mp" not in part:
            elements += [part.replace(r"\pm", sign) for sign in "+-"]
        else:
            elements.append(part)
    return elements


def _encloses(text: str) -> bool:
    """Whether the first bracket is closed by the last character; an interval's brackets need not be of one kind."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth == 0:
            return position == len(text) - 1
    return False


def _split(text: str, separators: Sequence[str]) -> list[str]:
    """Splits at separators that stand in no bracket."""
    parts, depth, start, position = [], 0, 0, 0
    while position < len(text):
        character = text[position]
        depth += (character in _OPENING) - (character in _CLOSING)
        found = next((s for s in separators if depth == 0 and text.startswith(s, position)), None)
        if found:
            parts.append(text[start:position])
            start = position = position + len(found)
        else:
            position += 1
    parts.append(text[start:])
    parts = [part.strip() for part in parts]
    return [part for part in parts if part] if len(parts) > 1 else parts


def _leaf_equal(a: str, b: str) -> bool:
    """Of single expressions: texts by their words, numbers exactly, all else by value. `b` is the label."""
    if _SPACE.sub("", a) == _SPACE.sub("", b):
        return True
    if "=" in a or "=" in b:  # equations: side by side, in either order
        left, right = a.split("="), b.split("=")
        if len(left) != 2 or len(right) != 2:
            return False
        return all(map(_leaf_equal, left, right)) or all(map(_leaf_equal, left, right[::-1]))
    words = [plain_words(text) for text in (a, b)]
    if any(re.fullmatch(r"\(?[A-Za-z]\)?", word) for word in words):  # a letter: a choice or a variable
        return words[0].strip("()") == words[1].strip("()")
    if all(re.fullmatch(r"[A-Za-z][A-Za-z' -]+", word) for word in words):
        long = len(words[0]) > 2 or words[0].casefold() == "no"  # AB and ab are names, True and true one word
        return words[0] == words[1] or (long and words[0].casefold() == words[1].casefold())
    (a, unit), (b, other) = split_unit(a), split_unit(b)
    if unit and other and unit != other:
        return False
    a_percent, b_percent = (_PERCENT.fullmatch(plain_words(text)) for text in (a, b))
    if a_percent or b_percent:
        return not unit and not other and _percent_equal(a, b, a_percent, b_percent)
    ours, theirs = number(a), number(b)
    if ours is not None and theirs is not None:
        return ours == theirs
    if ours is None and theirs is not None and _CALCULATION.fullmatch(a):
        return False  # 2+3 is no answer where 5 is asked for: it may just repeat the question
    if _UNFINISHED.search(a) and not _UNFINISHED.search(b):
        return False
    return _values_equal(a, b)


def _percent_equal(a: str, b: str, a_percent: re.Match[str] | None, b_percent: re.Match[str] | None) -> bool:
    """50% is 50%, 0.5 and 1/2; it is also 50, a count of per cent, where the number is 1 or more."""
    ours = number(a_percent[1] if a_percent else a)
    theirs = number(b_percent[1] if b_percent else b)
    if ours is None or theirs is None:
        return False
    if ours == theirs:
        return bool(a_percent and b_percent) or abs(ours) >= 1
    return (ours / 100 if a_percent else ours) == (theirs / 100 if b_percent else theirs)


def _values_equal(a: str, b: str) -> bool:
    letters = _letters(a) | _letters(b)
    if (_letters(a) ^ _letters(b)) - {"e", "i"}:
        return False  # x/x is not how one writes 1, whatever the grammar makes of it
    if len({letter.lower() for letter in letters}) < len(letters):
        return False  # the grammar takes X for x
    if bool(_OF_SOME_BASE.search(a)) != bool(_OF_SOME_BASE.search(b)):
        return False  # is \\log that of 10 or of e?
    ours, theirs = parse(a), parse(b)
    if ours is None or theirs is None:
        return False
    try:
        difference = ours - theirs
        symbols = sorted(ours.free_symbols | theirs.free_symbols, key=str)
        if not symbols:
            return _vanishes(difference, ours, {})
        generator = random.Random(0)
        agreed = 0
        for _ in range(2 * POINTS):
            point = {s: Fraction(generator.randint(-3000, 3000), 1009) for s in symbols}
            decided = _vanishes(difference, ours, point)
            if decided is False:
                return False
            agreed += decided is True
        return agreed >= POINTS
    except (ArithmeticError, AttributeError, TypeError, ValueError, NotImplementedError, RecursionError):
        return False


def _vanishes(difference: Any, size: Any, point: dict[Any, Fraction]) -> bool | None:
    """Whether the difference is 0 there, against the size of what was compared; None where there is no value."""
    exact = {symbol: Rational(value.numerator, value.denominator) for symbol, value in point.items()}
    value, scale = (N(expression.subs(exact), DIGITS + 20) for expression in (difference, size))
    if not (value.is_number and value.is_finite and scale.is_finite):
        return None if point else False
    return bool(abs(value) <= Float(10) ** -DIGITS * max(1, abs(scale)))


def parse(text: str) -> Any:
    """The SymPy expression that the LaTeX says; None when it is not an expression, or not surely understood.

    `i` is the imaginary unit; symbols come without assumptions, so that those of two expressions are the same.
    """
    if _MISREAD.search(text) or text.count("{") != text.count("}") or set(_COMMAND.findall(text)) - _KNOWN:
        return None
    try:
        parsed = latex2sympy(text, is_real=False, convert_degrees=False, normalization_config=None)
        if not isinstance(parsed, Expr) or _drops(parsed, text):
            return None
        units = {symbol: I for symbol in parsed.free_symbols if symbol.name == "i"}
        parsed = parsed.subs(units) if units else parsed
        return parsed.subs({symbol: Symbol(symbol.name) for symbol in parsed.free_symbols})
    except Exception:  # its grammar's errors have no class in common
        return None


def _letters(text: str) -> set[str]:
    """The letters of an expression, and the commands for Greek ones, as they are written."""
    return {*re.findall("[A-Za-z]", _COMMAND.sub("", text)), *(set(_COMMAND.findall(text)) & _GREEK)}


def _drops(parsed: Expr, text: str) -> bool:
    """Whether the grammar left out a letter of the text, as the T of x^T."""
    named = [one.name for one in parsed.free_symbols] + [one.func.__name__ for one in parsed.atoms(AppliedUndef)]
    letters = {letter.lower() for letter in _letters(text) - _GREEK}
    return not letters <= {"e", "i"}.union(*(name.lower() for name in named))


parse("x^{2}")  # builds the grammar's tables now: the time of an answer is for the answer
