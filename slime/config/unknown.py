"""What to say about a name that is no option: why it is none, and which options may have been meant."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher

from slime.config import catalogue
from slime.config.catalogue import COMMANDS, OWN, READERS, family_of, passed_through
from slime.config.installed.source import NotInstalled
from slime.config.known_names import ELSEWHERE, NO_EFFECT, NOT_BUILT, RENAMED

LIKE = 0.7  # of 1: what is less like a name is not worth mentioning
MISSPELLED = 0.85  # of 1: two words that are more alike are meant to be the same
AS_LIKE = 0.1  # how much less like it than the best a further suggestion may be


def explain(name: str) -> tuple[str, str]:
    """(what is wrong, what to do) about a full name with underscores that `catalogue.find` does not know."""
    family = family_of(name)
    if not_built := NOT_BUILT.get(name.replace("_", "-")):
        return not_built
    if owner := READERS[family].RESERVED.get(name.removeprefix(f"{family}_")):
        return "is not set here", f"it follows from {owner}"
    if name.startswith("no_") and (positive := catalogue.find(name.removeprefix("no_"))):
        option, _ = positive
        undone = f" (unset again by {option.name}: null in a later --config)" if option.optional else ""
        return "negates an option that is no switch", f"{option.flag} {option.unit}: {option.help}{undone}"
    if name in COMMANDS:  # in a file
        return "is not an option of files", f"give --{name.replace('_', '-')} on the command line"
    near = nearest(name)
    try:
        passed_through(family)
    except NotInstalled as error:
        if family != "megatron" or not near:  # without a prefix it is more likely one of ours, misspelled
            return "unknown option", f"if it is one of {family}: {error}, and only there could it be checked"
    if near:
        return "unknown option", f"did you mean {' or '.join(near)}?"
    if family != "megatron":
        return "unknown option", f"--help {family} lists those that there are"
    return "unknown option", "--help lists the options, --help-all those of libraries, too"


def nearest(name: str, count: int = 3) -> list[str]:
    """Flags of the options that are most like this name, the likest first."""
    if known := ELSEWHERE.get(name.replace("_", "-")):
        return [f"--{today}" for today in known.split()]
    if name.startswith("no_"):
        switches = [flag for flag in nearest(name.removeprefix("no_"), count) if _is_switch(flag)]
        return [f"--no-{flag.removeprefix('--')}" for flag in switches]
    family = family_of(name)
    prefix = "" if family == "megatron" else f"{family}_"  # what all of them share says nothing
    likeness = {
        other: _likeness(name.removeprefix(prefix), other.removeprefix(prefix), help)
        for other, help in _candidates(family)
    }
    floor = max(LIKE, max(likeness.values(), default=0.0) - AS_LIKE)
    best = sorted((other for other in likeness if likeness[other] >= floor), key=likeness.get, reverse=True)
    return ["--" + other.replace("_", "-") for other in best[:count]]


def _candidates(family: str) -> Iterator[tuple[str, str]]:
    """Name and help of all options among which one of this family is looked for; ours come first."""
    if family == "megatron":  # no prefix
        yield from ((name, option.help) for name, option in OWN.items())
        yield from ((name.replace("-", "_"), "") for name in (*COMMANDS, *NO_EFFECT, *RENAMED))
    for other in READERS if family == "megatron" else [family]:
        try:
            yield from ((option.full_name, option.help) for option in passed_through(other).values())
        except NotInstalled:
            continue


def _likeness(asked: str, name: str, help: str) -> float:
    """1: the same. A name is also like one that has all of its words, and like what the help says in its words."""
    words, theirs = asked.split("_"), name.split("_")
    same = sum(any(_same_word(word, their) for their in theirs) for word in words)
    letters = SequenceMatcher(None, asked, name)
    spelling = letters.ratio() if letters.quick_ratio() >= LIKE else 0.0
    if same == len(words):
        begins = AS_LIKE * name.startswith(asked)
        return max(spelling, begins + LIKE + (1 - LIKE - AS_LIKE) * len(words) / len(theirs))
    return max(spelling, LIKE if " ".join(words) in help.lower() else 0.0)


def _same_word(word: str, other: str) -> bool:
    """Also of one in short (temp, temperature), in the plural, or misspelled."""
    if other == word or (len(word) > 2 and other.startswith(word)) or word == f"{other}s":
        return True
    return len(word) > 4 and word[0] == other[0] and SequenceMatcher(None, word, other).ratio() > MISSPELLED


def _is_switch(flag: str) -> bool:
    found = catalogue.find(flag.removeprefix("--").replace("-", "_"))
    return found is not None and found[0].is_switch
