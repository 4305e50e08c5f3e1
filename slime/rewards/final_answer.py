"""Where the answer stands in a response: after the thinking, in the last box, or where the text says so.

Held: what was only thought is no answer; of several boxes the last counts. All of it takes time linear in the text.
"""

from __future__ import annotations

import re
from typing import Any

from slime.rewards.math_text import CHARACTERS

OPEN, CLOSE = "<think>", "</think>"
_TAG = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
_TOKEN = re.compile(
    r"(?P<box>\\f?box(?:ed)?\s*\{)|\\boxed(?:\s+(?P<word>[^\s{]\S*)|(?P<digits>\d+(?:[.,]\d+)*))|\\.|[{}]", re.DOTALL
)
_STATED = re.compile(
    r"(?:^|(?<=[.!?])\s)\W{0,4}(?:final answer\W{1,6})?(?:(?:so|thus|hence|therefore),?\s)?(?:(?:the|my)\s)?"
    r"(?:(?:(?:final|correct|right|best)\s)?(?:answer|choice|option)(?: is)?\W{0,4}?(?::|\bis\b)\**|final\**\s?:\**"
    r"|####)"
    r"\s*(\S.{0,300})$",
    re.IGNORECASE,
)
_HOPED = re.compile(r"(?<=\s)I hope (?:it|this) is correct\.?$")  # as Minerva's examples end (arXiv:2206.14858)

# What is between two boxes that are both meant.
_ALTERNATIVE = re.compile(
    r"[\s$.,;:)(]*(?:or|oder|ou|vs)\b|\A[^.!?\n]{0,60}\b(?:could|might|may|perhaps|possibly|maybe)\b"
    r"|\b(?:option|guess|alternative|candidate)\b",
    re.IGNORECASE,
)
_JOINING = set("or and else either also possibly maybe perhaps alternatively if when otherwise for case text".split())
_NAMED = re.compile(r"[A-Za-z]\w*\s*=")
_NOT_SO = r"(?:(?!\b(?:so|thus|hence|therefore|but)\b)[^.!?:;\n]){0,30}"  # up to a conclusion
_DENIED = re.compile(
    r"(?:\bif\b[^.!?\n]{0,40}\b(?:were|was)"
    r"|\bnot|n't|\bnever|\bneither|\bcannot|\bimpossible that|\brather than|\binstead of"
    r"|\b(?:anything|everything|all) (?:but|except)|\bother than"
    r"|\b(?:more|less|fewer|greater|larger|smaller) than"
    rf"|\b(?:(?:wrong|incorrect|mistakes?|suppose|assume|pretend|nobody|no one|i doubt)\b"
    rf"|(?:false|untrue|unlikely|doubtful|doubt) (?:that|if|whether)\b){_NOT_SO}"
    r"|\b(?:far from|nowhere near|different from|exceeds?|(?:is|it's) no|between\s[^!?\n]{1,30}\sand)"
    r"|\b(?:answer|result)\b[^.!?\n]{0,20}\b(?:at least|at most|up to|above|below|under|over|from\s[^!?\n]{1,20}\sto)"
    r"|(?:^|[.!?\n])\W{0,4}(?:wrong|incorrect|false)\b.{0,20}:)"
    r"(?:\s+(?:be|equals?|equal to|the answer))*[\s$:(}]*$",
    re.IGNORECASE,
)
# An answer is taken back by what is said of it, right after it or where a sentence or a part of one begins. What is
# said of anything else ("7 is not prime", "no other value fits") explains it.
_LED = (
    r"[\s$*_#)}\]]{0,9}(?:(?:and|but|so|thus|hence|therefore|then|well|oh|no|lol|unfortunately"
    r"|(?:i|we|it) \w{2,9}(?: out)?(?: that)?)\b[\s,]{1,3}){0,3}"
)
_SENTENCE, _PART = rf"(?:\A|[.!?;\n(]){_LED}", rf"(?:\A|[.!?;\n(,:–—]){_LED}"
_OF_IT = r"(?:(?!\b(?:because|since|as|for|if|that|which|who|where|when)\b)[^.,;:!?\n]){0,60}?"
_WRONG = r"(?:wrong|incorrect|false|impossible|absurd|contradict\w*|doubt\w*)"
_NO = (
    rf"(?:n't|\b(?:{_WRONG}|not|no|nope|never|cannot|untrue|mistake\w*|errors?|unlikely|fails?|too [a-z]+|should"
    r"|trap|joke|lie|decoy|my first)\b)"
)
_RIGHT = r"(?:right|correct|valid|possible|plausible|acceptable)"
_THAT = r"that(?='s| (?:\w+n't|is|was|does|did|can|cannot|would|could|must|should|seems|looks|fails|contradicts)\b)"
_TWO = r"both \$?(?-i:[A-Z]|-?\d{1,9})\$? and \$?(?-i:[A-Z]|-?\d{1,9})\$?"
_TAKEN_BACK = re.compile(
    r"\A[\s$*]*\?|\A[ \t$*\\)\]]*(?:"
    rf"(?:would|could|might|may|not|never|cannot|fails)\b|(?:is|was|does|did|can?|seems|looks){_OF_IT}{_NO})"
    rf"|(?:{_PART}(?:\w{{1,9}}\s?=\s?)?(?:it|this|{_THAT})|\b(?:the|this|that|my) (?:final )?answer)\b{_OF_IT}{_NO}"
    r"|\b(?:is|are|was)(?: [\w']{1,20})? (?:wrong|incorrect|false|not (?:right|correct))\b"
    rf"|{_PART}which\b{_OF_IT}{_WRONG}\b"
    rf"|{_PART}i(?: do| ca| am|'m)?(?:n't|nnot| not| doubt| was wrong)\b|\bmade (?:a|an|some) (?:mistake|error)s?\b"
    rf"|{_PART}(?:wait|actually|however|scratch that|on second thoughts?|correction|sorry|oops|hm+|nope|contradiction"
    r"|(?:just )?(?:kidding|joking)|(?:ignore|disregard|forget) (?:that|this|it)|let me re-?\w+|i mean|no way"
    r"|(?:wrong|incorrect|false|mistaken?|no)(?! [a-z]))\b"
    rf"|{_SENTENCE}not (?:the|so|it|this|that|sure|{_RIGHT})\b"
    r"|\bbut\b[^.!?\n]{0,60}\b(?:must|should|not)\b"
    # what would be right as well, or in another case
    rf"|\b(?:also|equally|just as) {_RIGHT}\b|[$}})\d] also (?:works?|fits?)\b"
    rf"|\b{_TWO} (?:are {_RIGHT}|work|fit|could|might)\b"
    r"|\b(?:could|might|may) (?:(?:also|well|instead) be\b|be(?: [-\\$\d]| (?-i:[A-Z])\b))"
    r"|\A[ \t$*,;]*(?:(?:and|but)\s)?(?:if|for|when)\b[^.\n]{0,60}"
    r"(?:[,;]\s*(?:(?:and|but)\s)?|\bit(?: is|'s) )\$?-?\d",
    re.IGNORECASE,
)
_OR_ELSE = re.compile(
    r"(?:\^\s*\{?\\circ\}?)?"
    r"(?:[\s$*,]*(?:(?:\\q?quad|\\[,; ])\s*)?(?:\\(?:text|mathrm|mbox)\s*\{\s*|\(\s*)?\b(?:or|and)|[\s$*,.;…]*\bor)"
    r"(?:\s+(?:else|also|maybe|perhaps|possibly|equivalently|simply|rather|really|actually))*\s[\s}]*\$?"
    r"([-\\\d.(\[][^\n]{0,200}|(?-i:[A-Z])\b)",
    re.IGNORECASE,
)
_EQUATED = re.compile(r"[\s$]*=[\s$]*([^\s$=][^$\n=]{0,100})")
_VALUE = (
    r"-?\d(?:[\d,./]*\d)?|-?\d*\s?\\(?:[dt]?frac\{[^{}\n]{0,50}\}\{[^{}\n]{0,50}\}|sqrt(?:\{[^{}\n]{0,50}\}|\s?\d)|pi\b)"
    r"|(?-i:[A-Z])\b"
)
_NAME = r"(?:[A-Z]\w{0,9}\s{0,2}=[\s$]{0,2})?"
_STATED_LATER = re.compile(
    rf"\b(?:answer|(?:right|correct|true|real) (?:one|value|number|result|solution))\b"
    rf"(?:\s+(?:is|equals|must be|would be)\b|\s*[:=])+[\s$*]*{_NAME}"
    r"([-\\\d.(\[][^\n]{0,200}|(?-i:[A-Z])\b)",
    re.IGNORECASE,
)
_AFFIRMED_LATER = re.compile(
    rf"(?<![\w.,/])({_VALUE})[$*)]{{0,3}} (?:is|was|would be) (?:the answer|(?:the )?(?:right|correct|true))\b",
    re.IGNORECASE,
)
# A sentence that is a value and no more but for words that lead up to it; without such words all of a line.
_CONCLUDED = re.compile(
    r"(?:\A|[\n(]|[.!?;:](?=\s)|,(?=\s(?:the|it|so|then|maybe|perhaps|i)\b))[\s*#$]{0,6}"
    r"(?P<led>(?:(?:and|so|thus|hence|therefore|then|finally|final|maybe|perhaps|rather|alternatively|possibly|it|it's|this|that|is|i|say|think"
    r"|meant|the|my|real|true|correct|right|truth|result|value|answer|solution|choice|option|must|be)\b[\s,:]{1,3}){1,8})?"
    rf"(?:[\s*$#(\\]|(?<=\\)\[){{0,6}}{_NAME}({_VALUE})(?:[*$)\\]|(?<=\\)\]){{0,4}}"
    r"(?(led)(?:[.!?);]?(?:\s*\n|\Z)|[.!?);]\s)|[.!?)]?[ \t]*(?:\n|\Z))",
    re.IGNORECASE,
)
# What makes a box a part of a formula: before it, around it, and after it. There, other signs are what LaTeX writes for
# them; but dashes may be those of a sentence.
_SIGNS = CHARACTERS | str.maketrans(
    {dash: dash for dash in "−–—"}
    | dict.fromkeys("√∛∜", r"\sqrt ")
    | dict.fromkeys("⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞⅐⅑⅒", r"\frac{1}{2}")
    | {sub: f"_{digit}" for digit, sub in enumerate("₀₁₂₃₄₅₆₇₈₉")}
    | {"⁻": "^-", "⁺": "^+", "ⁿ": "^n", "∓": r"\mp ", "∙": r"\cdot ", "✕": r"\times ", "✖": r"\times ", "∼": r"\sim "}
    | {"⩽": r"\le ", "⩾": r"\ge ", "≦": r"\le ", "≧": r"\ge ", "＜": "<", "＞": ">", "＊": "*", "／": "/", "＾": "^"}
)
_LETTER = "A-Za-zΑ-ω"
_GREEK = "alpha|beta|gamma|delta|epsilon|theta|lambda|rho|sigma|tau|phi|omega|pi"
_SPACE = r"\\[,;:! ]"
_BEGUN = re.compile(
    rf"(?:(?:(?<!-)-|(?<![A-Za-z]{{2}})[–—]|−\s*)(?:\*\*|[${{(]|\\(?:left|\()|{_SPACE}|(?<={_SPACE})\s)*"
    rf"|(?:[=(:$]|\\[(\[])\ *-(?:[\s${{(]|\\(?:left|\()|{_SPACE})*"
    rf"|\d\.?|[([{{]\s*-?[\d.]+\s*,\s*|\bor[\s$]*|(?<![{_LETTER}\\])[{_LETTER}]\(?|\d\s?(?:\\left\s?)?\(|[\^_]\s*"
    r"|(?:\A|\n)\s*-?[\d.]+\s*,\s*|(?:\A|\s)[!.]|/=\s*|<>\s*"
    r"|([A-Za-z])\s*=[^=\n]{1,20}\b(?:or|and)[\s$]*\1\s*=[\s$]*"
    r"|[\w)}]\s*[+/<]\s*|[\w)}]\s*(?<!<answer)>\s*|[\d)}]\s+-\s+|≠\s*|!=\s*"
    rf"|\d\s*\*\s*|(?:[)}}]|(?<![{_LETTER}])[{_LETTER}])(?:\*|\s*\*\s+)|[\d)}}]\*\*"
    rf"|\$\s*-?[\d.]+\s*,\s*|\\(?:neq?|not\s*=|lnot|neg|lfloor|lceil|sum|prod|lt|gt|[lg]eq?|sim|pm|mp|cdot|times|div|sqrt)(?:[\s$({{]|\\left|{_SPACE})*"
    rf"|\\(?:{_GREEK})\ *|(?:\\[dtc]?frac\{{.{{1,30}}\}}|\\sqrt(?:\[\w*\])?|[\^_]|\}}\^)\{{[^{{}}]{{1,30}}\}}\ *"
    r"|(?<![A-Za-z])\\?(?:sqrt|log|ln|sin|cos|tan|exp)\s*(?:\\left\s?)?\(?"
    r"|(?i:\b(?:minus|negative|plus|times|twice|half"
    r"|(?:opposite|negative|square|cube|half|inverse|reciprocal|multiple) of)\s[\s$]*))$"
)
_WITHIN = re.compile(
    r"(?:[\^_}]|\\(?:[bx]?cancel|sout|st|not|[hv]?phantom|[dtc]?frac|sqrt|overline|bar|hat|vec|log|ln|sin|cos|tan)"
    r"(?:\[[^\]]*\])?)\s*$"
)
_GOES_ON = re.compile(
    rf"\.?\d|[{_LETTER}](?![{_LETTER}])|‰|(?:\s|~|{_SPACE})*(?:\\(?:text|mathrm)\{{\s*)?"
    r"(?:million|billion|thousand|hundred|dozen)\b"
    rf"|(?:~|\{{,\}}|{_SPACE})\s*\d|\s+(?:plus|minus|times)\s[\s$]*(?:-?[\d\\]|one|two)"
    r"|[ \t]+(?:doubled|tripled|squared|cubed|halved|factorial)\b|[ \t]*[|&][ \t]*\$?-?\d|\{"
    r"|[\s$]*(?:to|–|—|→|\\to|\\rightarrow|[<>]=?|!=|≠)[\s$]*-?[\d\\]|\s*[<>]=?\s*[A-Za-z](?![A-Za-z>])"
    r"|[ \t$]*\\(?:[lg]eq?|lt|gt|neq?)(?![a-z])|\*{1,2}[\d\\(]|\*{1,2}[A-Za-z](?![A-Za-z])|\s*\*\s+[\w\\(]"
    r"|\s*(?:_|!\s*(?:\$|\\[)\]])|\+\s*[\w\\(]|/\s*[\d\\(]|[-−]\s?[\d\\(]|,\s*\$?-?\d)"
    r"|(?:\s*|(?:[ \t$})]|\\right|\\\))*)(?:\^(?!\s*\{?\\circ)"
    rf"|\\(?:cdot|times|div|pm|mp|{_GREEK}|sqrt|[dt]?frac|sin|cos|tan|ln|log)(?![a-z]))"
)


_COMMENTS = [("<!--", "-->"), (r"\begin{comment}", r"\end{comment}"), (r"\iffalse", r"\fi")]


def opens_thinking(prompt: Any) -> bool:
    """Whether the chat template ended the prompt in the middle of thinking."""
    return isinstance(prompt, str) and prompt.rstrip().endswith(OPEN)


def after_thinking(response: str, prompt: Any = "") -> str | None:
    """What is said after the last thought; None when a thought was begun, by response or prompt, and never ended."""
    response = _TAG.sub(r"<\1think>", response)
    said = response.rpartition(CLOSE)[2]
    if OPEN in said or (CLOSE not in response and opens_thinking(prompt)):
        return None
    return said.strip()


def has_box(text: str) -> bool:
    return any(match["box"] or match["word"] or match["digits"] for match in _TOKEN.finditer(text))


def last_boxed(text: str) -> str | None:
    """The content of the last \\boxed{...}, braces matched; None when there is none or it does not close.

    A box in a box is part of the outer one; one that never closes holds nothing of what comes after it.
    """
    boxes = _boxes(text)
    if not boxes:
        return None
    start, end = boxes[-1]
    content = text[start:end].strip()
    ended = content.rstrip("$ \t\n")
    content = ended + content[len(ended) :][: (len(ended) - len(ended.rstrip("\\"))) % 2]  # 5\$ is an amount
    return content[:-1].rstrip() if content.endswith((".", ",")) and content[-2:-1] not in (".", ",") else content


def after_last_box(text: str) -> str:
    """What stands after the last box; "" when there is none."""
    boxes = _boxes(text)
    if not boxes:
        return ""
    end = boxes[-1][1]
    return text[end + text.startswith("}", end) :]


def why_not_meant(text: str) -> str | None:
    """Why the last box is not the one answer that the text gives; None when it may be."""
    boxes = _boxes(text)
    if not boxes:
        return None
    start, end = boxes[-1]
    command, after = text.rfind("\\", 0, start), end + text.startswith("}", end)
    if len(boxes) > 1:
        before, since = text[slice(*boxes[-2])], boxes[-2][1]
        if before.strip() != text[start:end].strip() and _joins(text[since + text.startswith("}", since) : command]):
            return "it offers several answers"
    if _DENIED.search(text[max(0, command - 60) : command]):
        return "it says what the answer is not"
    if _is_hidden(text, command, after):
        return "the box is struck out, or in a comment"
    if takes_back(text[after:], text[start:end].strip()):
        return "it takes its answer back"
    begun = _BEGUN.search(text[max(0, command - 80) : command].translate(_SIGNS))
    rest = text[after:].partition("|")[0] if _line_to(text, command).startswith("|") else text[after:]  # of its cell
    if begun or _GOES_ON.match(rest.translate(_SIGNS)) or _is_within(text, command):
        return "the box holds only a part of a formula"
    return None


def takes_back(text: str, answer: str) -> bool:
    """Whether what follows an answer says that it is none."""
    it = rf"(?<![\w.]){re.escape(answer)}(?!\.?\w)" if 0 < len(answer) <= 50 else r"\Z"
    return any(map(_TAKEN_BACK.search, (text, re.sub(it, "it", text))))


def stated_later(text: str) -> str | None:
    """What the text says the answer is, or may be as well, after its last box."""
    after = after_last_box(text).translate(CHARACTERS)
    if match := _OR_ELSE.match(after) or _EQUATED.match(after):
        return _first(match[1])
    return concluded(after)


def concluded(text: str) -> str | None:
    """What the end of a text that follows an answer says that the answer is."""
    text = text[-4000:].translate(CHARACTERS)
    patterns = (_STATED_LATER, _AFFIRMED_LATER, _CONCLUDED)
    found = [(match.end(), match[match.lastindex]) for one in patterns for match in one.finditer(text)]
    return _first(max(found)[1]) if found else None


def _first(text: str) -> str:
    return re.split(r"[$*]|[.,;](?:\s|$)", text)[0].strip()


def _joins(between: str) -> bool:
    if _ALTERNATIVE.match(between) or _ALTERNATIVE.search(between, 1):
        return True
    words = re.findall(r"[a-z]{2,}", _NAMED.sub("", between).lower())
    return between.strip(" $") != "=" and set(words) <= _JOINING


def _is_hidden(text: str, command: int, after: int) -> bool:
    """Whether nobody would see the box, or see it struck out: in a comment of TeX or HTML, between ~~ of Markdown."""
    line = _line_to(text, command)
    if any(text.rfind(a, 0, command) > text.rfind(b, 0, command) for a, b in _COMMENTS):
        return True
    commented = line.startswith("%") and "=" not in line  # "% change ="
    return commented or (line.endswith("~~") and text.startswith("~~", after))


def _line_to(text: str, command: int) -> str:
    return text[text.rfind("\n", 0, command) + 1 : command].lstrip()


def _is_within(text: str, command: int) -> bool:
    """Whether the box stands in the braces of a fraction, a root, an exponent."""
    depth = 0
    for position in range(command - 1, max(-1, command - 200), -1):
        depth += {"}": 1, "{": -1}.get(text[position], 0)
        if depth < 0:
            return _WITHIN.search(text[max(0, position - 20) : position]) is not None
    return False


def _boxes(text: str) -> list[tuple[int, int]]:
    """(start, end) of the contents, those that lie in another left out; empty when a later one does not close."""
    boxes: list[tuple[int, int]] = []
    opened: list[int | None] = []  # braces not closed yet: where the content starts of those that are boxes
    for match in _TOKEN.finditer(text):
        if name := next((name for name in ("word", "digits") if match[name]), None):
            boxes.append(match.span(name))
        elif match["box"]:
            opened.append(match.end())
        elif match[0] == "{":
            opened.append(None)
        elif match[0] == "}" and opened:
            start = opened.pop()
            if start is not None:
                while boxes and boxes[-1][0] >= start:
                    boxes.pop()
                boxes.append((start, match.start()))
    if boxes and any(start is not None and start > boxes[-1][1] for start in opened):
        return []
    return boxes


def stated(text: str) -> str | None:
    """What the last line of the text says the answer is ("The answer is 5.", "#### 5"), or that line if it is all."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    if answer := stated_by(lines[-1]):
        return answer
    return _plain(lines[0]) if len(lines) == 1 and len(lines[0]) <= 300 else None


def stated_by(line: str) -> str | None:
    """What a line says the answer is."""
    match = _STATED.search(_HOPED.sub("", line.strip()).strip())
    return _plain(match[1]) if match else None


def _plain(text: str) -> str:
    """Without full stop and emphasis around it."""
    for _ in range(2):
        text = re.sub(r"(?<!\.)\.$", "", text.strip()).strip().strip("*").removeprefix("__").removesuffix("__")
    return text.strip()
