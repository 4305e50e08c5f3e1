"""Units after a number: "5 cm", "5\\text{ cm}^2", "90^\\circ", "\\$5"; of a plain number also "5 apples", any noun in
the plural that is no number itself.

Held: a unit that one side leaves out is no difference; two different units are, even where they could be converted.
"""

from __future__ import annotations

import re

from slime.rewards.math_text import number, plain_words

_NAMES = {
    "length": "mm millimeter millimetre|cm centimeter centimetre|dm|m meter metre|km kilometer kilometre|in inch inche"
    "|ft foot feet|yd yard|mi mile|nm|light-year",
    "mass": "mg milligram|g gram|kg kilogram|lb pound|oz ounce|ton tonne",
    "time": "s sec second|ms millisecond|min minute|h hr hour|day|week|month|year yr",
    "other": "degree deg|rad radian|dollar USD|cent|euro €|£|L l liter litre|ml mL milliliter millilitre|N newton"
    "|J joule|kJ|W watt|kW|V volt|A ampere|Hz hertz|kHz|MHz|Pa pascal|kPa|K kelvin|mol mole|mph"
    "|unit|square_unit|cubic_unit|people person|way",
}  # fmt: skip
_CANONICAL = {
    name.replace("_", " "): names.split()[0].replace("_", " ")
    for kind in _NAMES.values()
    for names in kind.split("|")
    for name in names.split()
}
_SPLIT = re.compile(r"(?P<value>.*?[\d})\]!.])(?P<space>\s*)(?P<unit>\^\\circ\s*[CF]?|[A-Za-z€£].*)")
_ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")  # in \sin 30^\circ the degrees are not the sine's
_EXPLICIT = re.compile(
    r"(?P<value>.*\S)\s*\\(?:text|mathrm|mbox|textrm|operatorname)\s*\{(?P<unit>[^{}]*)\}"
    r"(?P<power>\s*\^\s*\{?[23]\}?)?"
)
_AFTER = re.compile(
    r"[\s$]*(?:(?P<percent>\\?%|per\s?cent\b)|(?P<angle>\^\s*\{?\\circ\}?)"
    r"|\\(?:text|mathrm|mbox|textrm)\s*\{(?P<text>[^{}\n]{1,40})\}(?P<power>\s*\^\s*\{?[23]\}?)?"
    r"|(?P<words>(?:(?:square|cubic) )?[A-Za-z]{1,20}(?: per [A-Za-z]{1,20})?(?:\s?\^\s?\{?[23]\}?)?)"
    r"(?P<ends>[\s$*)]*(?:[.,;!]|\Z))?)"
)
PER_CENT = r"\%"
# What is counted, in the plural; not what says how many of it, or goes on.
_COUNTED = re.compile(r"(?:[a-z]{3,19}(?<![sui])s|children|men|women)")
_NUMBERED = re.compile(
    r".*(?:(?:[rnfhxd]|ie)ths|illions)|thirds|halves|quarters|thousands|hundreds|tens|dozens|pairs|couples|scores|twins|grands"
    r"|lakhs|crores|myriads|googols|ones|twos|threes|fours|fives|sixes|sevens|eights|nines|elevens|twelves|percents"
    r"|(?:doubl|tripl|quadrupl)es|logs|sins|pis|equals|times|hers|theirs|ours|has|does|goes|perhaps|powers|squares|cubes"
)
_PERHAPS = re.compile("in|.")  # which may be words as well: units after a box only where the sentence ends with them
_PART = re.compile(r"(?P<prefix>square |cubic |sq |cu )?(?P<name>[A-Za-z€£-]+)(?:\s*\^?\s*\{?(?P<power>-?[23])\}?)?")


def split_unit(text: str) -> tuple[str, str]:
    """(what is before the unit, the unit in one spelling), the unit "" when there is none that is known."""
    if text.startswith((r"\$", "€", "£")):
        return text.lstrip("\\$€£ "), {"€": "euro", "£": "£"}.get(text[0], "dollar")
    if text.endswith(r"\$"):
        return text[:-2].strip(), "dollar"
    explicit = _EXPLICIT.fullmatch(text)
    if explicit:
        value, unit = explicit["value"].strip(), explicit["unit"].strip()
        if spelled := _spelled(unit + (explicit["power"] or "")) or (not explicit["power"] and _counted(value, unit)):
            return value, spelled
    match = _SPLIT.fullmatch(plain_words(text))
    if match is None or _ANGLE.search(match["value"]):
        return text, ""
    unit = match["unit"].strip()
    if re.fullmatch(r"\^\\circ\s*", unit):
        return match["value"].strip(), "degree"
    if not (match["space"] or len(unit) > 1):
        return text, ""
    spelled = _spelled(unit) or _counted(match["value"], unit)
    return (match["value"].strip(), spelled) if spelled else (text, "")


def unit_after(text: str) -> str:
    """The unit or per cent sign that a text begins with, as what follows a box; "" where it begins with neither."""
    match = _AFTER.match(text)
    if match is None:
        return ""
    if match["percent"]:
        return PER_CENT
    if match["angle"]:
        return r"^\circ"
    if match["text"]:
        unit = match["text"].strip() + (match["power"] or "")
        return rf"\text{{ {unit}}}" if _spelled(unit) else PER_CENT if re.fullmatch(r"\\?%|per\s?cent", unit) else ""
    words = match["words"]
    known = next((one for one in (words, words.partition(" per ")[0]) if _spelled(one)), "")
    doubtful = _PERHAPS.fullmatch(known) and (known != words or match["ends"] is None)
    return rf"\text{{ {known}}}" if known and not doubtful else ""


def _counted(value: str, unit: str) -> str:
    """The unit, where it is what a plain number counts; else ""."""
    counted = _COUNTED.fullmatch(unit) and not _NUMBERED.fullmatch(unit) and number(value) is not None
    return unit if counted else ""


def _spelled(unit: str) -> str:
    """ "square meters per second" -> "m^2/s"; "" for a unit that is not known."""
    if match := re.fullmatch(r"\^\\circ\s*([CF])", unit):
        return f"degree {match[1]}"
    parts = []
    for part in re.split(r"/|\bper\b", unit):
        match = _PART.fullmatch(part.strip())
        if match is None:
            return ""
        name = match["name"] if len(match["name"]) <= 3 else match["name"].lower()  # mm and Mm are two things
        singular = (name, name.removesuffix("s"), name.removesuffix("es"))
        known = next((_CANONICAL[one] for one in singular if one in _CANONICAL), None)
        if known is None:
            return ""
        power = {"square ": "2", "sq ": "2", "cubic ": "3", "cu ": "3"}.get(match["prefix"] or "", match["power"])
        parts.append(f"{known}^{power}" if power else known)
    return "/".join(parts)
