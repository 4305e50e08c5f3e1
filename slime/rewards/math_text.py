"""A mathematical answer as it is written, brought to one spelling; the numbers among such answers, compared.

Held: nothing is computed but fractions of literals of bounded length; what is not understood is left as it is.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_LENGTH = 1000  # characters; a longer answer is right only if it is the label, letter by letter
MAX_EXPONENT = 400

CHARACTERS = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-",
        "－": "-", "＋": "+", "＝": "=", "，": ",", "（": "(", "）": ")",
        "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ", "∗": "*", "÷": "/", "∕": "/", "⁄": "/",
        "π": r"\pi ", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "±": r"\pm ", "∅": r"\emptyset ",
        "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "°": r"^\circ ", "\u00a0": " ", "\u2009": " ", "\u202f": " ",
        "⁰": "^0", "¹": "^1", "²": "^2", "³": "^3", "⁴": "^4", "⁵": "^5", "⁶": "^6", "⁷": "^7", "⁸": "^8", "⁹": "^9",
        "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
        "\u200b": "", "\ufeff": "", "“": '"', "”": '"', "‘": "'", "’": "'",
    }
)  # fmt: skip
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:displaystyle|textstyle|limits|mathstrut)(?![a-zA-Z])|(?<!\\)\\[!;:]|\\phantom\{[^{}]*\}", ""),
        (r"\\(?:left|right|bigl?|bigr?|Bigl?|Bigr?|biggl?|biggr?)(?![a-zA-Z])\.?", ""),
        (r"(?<=\d)(?:\\,|\{,\}|(?<!\\)\\ |~)(?=\d{3}(?!\d))", ","),
        (r"~~|(?:(?<=[{($])|^)\s*~\s*(?=[-\d])|^\s*~(?=\w)", r"\\sim "),  # as typed: struck out, or about so much
        (r"(?<!\\)\\[, ]|~|\\q?quad(?![a-zA-Z])", " "),
        (r"(?<!\\)\\[()\[\]]|(?<!\\)\$", " "),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\[dt]binom(?![a-zA-Z])", r"\\binom"),
        (r"\\binom\s*(\d)\s*(\d)(?!\d)", r"\\binom{\1}{\2}"),
        (r"\\(?:leq|leqslant)(?![a-zA-Z])|<=", r"\\le "),
        (r"\\(?:geq|geqslant)(?![a-zA-Z])|>=", r"\\ge "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\not\s*=", r"\\ne "),
        (r"\\(?:varnothing)(?![a-zA-Z])", r"\\emptyset"),
        (r"\\lbrace(?![a-zA-Z])", r"\\{"),
        (r"\\rbrace(?![a-zA-Z])", r"\\}"),
        (r"\\div(?![a-zA-Z])", "/"),
        (r"\\(?:degree|degrees)(?![a-zA-Z])|\^\{\\circ\}|\^\s*\\circ(?![a-zA-Z])", r"^\\circ "),
        (r"\\frac\s*(\d)\s*(\d)(?!\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"(\\frac\s*\{[^{}]*\})\s*(\d)", r"\1{\2}"),
        (r"\\sqrt\s*([0-9a-zA-Z])", r"\\sqrt{\1}"),
        (r"(?<![\\a-zA-Z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![\\a-zA-Z])(pi|sin|cos|tan|log|ln|infty)(?![a-zA-Z])", r"\\\1"),
        (r"(?<![\\a-zA-Z])(?:inf|infinity|oo)(?![a-zA-Z])", r"\\infty"),
        (r"\+\s*\\infty", r"\\infty"),
        (r"\{([^{}]*)\\over(?![a-zA-Z])([^{}]*)\}", r"\\frac{\1}{\2}"),
        (r"\^\s*-\s*(\w)(?!\w)", r"^{-\1}"),
        (r"\\log\s*_\s*(\w)", r"\\log_{\1}"),
        (r"(?<=\d)_\{(\d+)\}", r"_\1"),
        (r"\*\*", "^"),
        (r"\s+", " "),
    )
]
# One alone is a currency, and no formula's delimiter.
_DOLLARS = re.compile(r"\A([^$\\]*)\$([^$]*)\Z")
_WORDS = re.compile(r"\\(?:text|mathrm|textbf|mathbf|textit|mbox|operatorname|textrm|mathit|boldsymbol)\s*\{([^{}]*)\}")
_WRAPPED = re.compile(r"\\(?:boxed|fbox|text|mathrm|textbf|mathbf|mbox|textit|boldsymbol)\s*\{")

_SIGN = r"(?P<sign>[-+]?)\s*"
_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+"
_NUMBER = re.compile(rf"{_SIGN}(?P<number>{_DECIMAL})")
_FRACTION = re.compile(
    rf"{_SIGN}(?:(?P<whole>\d+)\s*(?:(?=\\)|\s))?"
    rf"(?:\\frac\s*\{{\s*(?P<n>-?\s*(?:{_DECIMAL}))\s*\}}\s*\{{\s*(?P<d>-?\s*(?:{_DECIMAL}))\s*\}}"
    rf"|(?P<n2>{_DECIMAL})\s*/\s*(?P<d2>{_DECIMAL}))"
)
_SCIENTIFIC = re.compile(
    rf"{_SIGN}(?P<number>{_DECIMAL})?\s*(?:(?:\\times|\\cdot|\*|(?<![^-+ ])(?=10))\s*10\s*\^\s*"
    rf"(?:\{{\s*(?P<e1>[-+]?\d+)\s*\}}|\(\s*(?P<e3>[-+]?\d+)\s*\)|(?P<e2>[-+]?\d+))|(?<=[\d.])[eE](?P<e>[-+]?\d+))"
)
# One number with thousands apart, and what it is of: $1,000 or 15,000 miles.
_AMOUNT = re.compile(
    r"-?(?:\\?\$)?\s*-?\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?\s*(?:\\?%|(?:\\text\s*\{[^{},]*\}|[A-Za-z^0-9/ ])*)"
)
# A date, a range, a telephone number: nobody means a subtraction.
_DASHED = re.compile(r"\d+(?:-\d+)+")
_REPEATING = re.compile(rf"{_SIGN}(?P<whole>\d*)\.(?P<once>\d*)\\overline\{{(?P<again>\d+)\}}")


def normalise(text: str) -> str:
    """One spelling for what reads the same: delimiters, spaces, dashes, sizes of brackets, short forms of commands."""
    text = _DOLLARS.sub(r"\1\\$\2", text.translate(CHARACTERS))
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = _unwrap(re.sub(r"(?<![.,;])\s*[.,;]\s*$", "", text).strip())
    if re.fullmatch(r"-?\d{1,3}(?: \d{3})+", text):
        return text.replace(" ", ",")
    return text.replace(",", "") if _AMOUNT.fullmatch(text) else text  # else the comma would be that of a list


def plain_words(text: str) -> str:
    """Text commands taken off their content."""
    return " ".join(_WORDS.sub(r" \1 ", text).split())


def number(text: str) -> Fraction | None:
    """The value of a normalised number literal: 1,000, -.5, 3/4, 2\\frac{1}{2}, 3 \\times 10^{5}; None for all else."""
    text = text.strip()
    while text.startswith("{") and text.endswith("}") and "{" not in text[1:]:
        text = text[1:-1].strip()
    if match := _NUMBER.fullmatch(text):
        return _signed(match, _decimal(match["number"]))
    if match := _FRACTION.fullmatch(text):
        over, under = _decimal(match["n"] or match["n2"]), _decimal(match["d"] or match["d2"])
        if not under:
            return None
        whole = match["whole"]
        if whole is None:
            return _signed(match, over / under)
        return _signed(match, int(whole) + over / under) if 0 <= over < under else None
    if match := _REPEATING.fullmatch(text):
        once, again = match["once"], match["again"]
        value = Fraction(int(again), 10 ** len(once) * (10 ** len(again) - 1))
        return _signed(match, value + Fraction(f"{match['whole'] or 0}.{once or 0}"))
    if match := _SCIENTIFIC.fullmatch(text):
        exponent = int(match["e"] or match["e1"] or match["e2"] or match["e3"])
        if abs(exponent) <= MAX_EXPONENT:
            mantissa = _decimal(match["number"]) if match["number"] else Fraction(1)
            return _signed(match, mantissa * Fraction(10) ** exponent)
    return None


def same_literally(answer: str, label: str) -> tuple[bool, str] | None:
    """Decides what needs no algebra, in little time: empty and overlong answers, equal texts, numbers. Else None."""
    if not answer.strip():
        return False, "the answer is empty"
    if answer.strip() == label.strip():
        return True, "the answer is the label, letter by letter"
    if max(len(answer), len(label)) > MAX_LENGTH:
        return False, f"the answer has {len(answer)} characters and is not the label, letter by letter"
    answer, label = normalise(answer), normalise(label)
    if not answer:
        return False, "the answer is empty"
    if answer == label:
        return True, f"{answer} is the label"
    if _DASHED.fullmatch(answer) or _DASHED.fullmatch(label):
        return False, f"{answer} is not {label}: what has dashes between its digits is compared letter by letter"
    ours, theirs = number(answer), number(label)
    if ours is not None and theirs is not None:
        return ours == theirs, f"{answer} {'=' if ours == theirs else 'is not'} {label}"
    return None


def _decimal(text: str) -> Fraction:
    return Fraction(re.sub(r"[,\s]", "", text))


def _signed(match: re.Match[str], value: Fraction) -> Fraction:
    return -value if match["sign"] == "-" else value


def _unwrap(text: str) -> str:
    """Takes off a command, or braces, that hold all of the text."""
    while True:
        match = _WRAPPED.match(text)
        start = match.end() - 1 if match else 0
        if not text.startswith("{", start) or closing(text, start) != len(text) - 1:
            return text
        text = text[start + 1 : -1].strip()


def closing(text: str, start: int) -> int | None:
    """Where the brace opened at `start` closes."""
    depth = 0
    for position in range(start, len(text)):
        if position and text[position - 1] == "\\":
            continue
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position
    return None
