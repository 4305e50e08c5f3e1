"""docs/options.md, made from the options: `python -m slime.config.docs` writes it, a test holds it to be current."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slime.config.catalogue import OWN
from slime.config.help import LIBRARIES, default_text, usage
from slime.config.known_names import NO_EFFECT, NOT_BUILT, NOT_BUILT_VALUES, RENAMED
from slime.config.sections import SECTIONS

FILE = Path(__file__).parents[2] / "docs" / "options.md"
INTRODUCTION = """\
<!-- Made by `python -m slime.config.docs`; change the options in slime/config/sections instead. -->
# Options

Each option can be given on the command line (`--lr 1e-6`), and in YAML files (`--config recipe.yaml`) by the same name,
with `-` or `_`, at the top level or under its section. Later files win over earlier ones, the command line wins over
files; `null` in a later file unsets what may be unset. `--check` says all that is wrong, or prints placement and batch
arithmetic, and exits. Any boolean can be switched off by `--no-...`; lists take several words; a dict is JSON on the
command line.
"""


def text() -> str:
    return "\n".join([INTRODUCTION, *_sections(), *_libraries(), *_other_names()])


def _sections() -> Iterator[str]:
    for name, section in SECTIONS.items():
        title, _, introduction = section.__doc__.partition("\n")
        yield f"## {title}\n"
        yield f"YAML section `{name}`. {' '.join(introduction.split())}".rstrip() + "\n"
        yield "| option | default | meaning |"
        yield "|---|---|---|"
        for option in (OWN[field] for field in section.model_fields):
            default = default_text(option).removeprefix("default: ")
            yield f"| `{_cell(usage(option))}` | {_cell(_prose(default))} | {_cell(_prose(option.help))} |"
        yield ""


def _libraries() -> Iterator[str]:
    yield "## Options of the libraries\n"
    yield "Passed through; name, type and choices are checked against the installed version.\n"
    for family, (library, how) in LIBRARIES.items():
        yield f"- **{library}** (`--help {family}` lists them): {how}."
    yield ""


def _other_names() -> Iterator[str]:
    yield "## Names of scripts that are not options here\n"
    yield "Older names, taken as today's and said once:\n"
    for old, (today, value) in sorted(RENAMED.items()):
        shown = {None: "", "engine-size": " <devices of an engine>"}.get(value, f" {value}".lower())
        yield f"- `--{old}`: `--{today}{shown}`"
    yield "\nAccepted, without effect, and said once:\n"
    yield from (f"- `--{name}`: {why}" for name, why in sorted(NO_EFFECT.items()))
    yield "\nNot there, and refused with these reasons; switched off (`--no-...`) they are accepted:\n"
    refused = {f"--{name}": reason for name, reason in NOT_BUILT.items()}
    refused |= {
        f"{OWN[o].flag} {value}": why for o, values in NOT_BUILT_VALUES.items() for value, why in values.items()
    }
    for reason in dict.fromkeys(refused.values()):
        names = ", ".join(f"`{name}`" for name, of in refused.items() if of == reason)
        yield f"- {names} {reason[0]}. Instead: {reason[1]}."
    yield ""


def _prose(text: str) -> str:
    return text.replace("<", "&lt;")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"wrote {FILE}")
