"""docs/options.md is made from the options; lists of names that are no options stay disjoint from them."""

from __future__ import annotations

import pytest

from slime.config import docs
from slime.config.catalogue import COMMANDS, OWN, find
from slime.config.known_names import NO_EFFECT, NOT_BUILT, NOT_BUILT_VALUES, RENAMED
from slime.config.missing_hooks import HOOKS
from slime.config.sections import SECTIONS


def test_the_reference_of_options_is_current():
    assert docs.FILE.read_text(encoding="utf-8") == docs.text(), "run: python -m slime.config.docs"


def test_every_option_says_what_it_means_in_a_sentence():
    assert [name for name, option in OWN.items() if len(option.help) < 12 or not option.help.endswith(".")] == []


def test_a_name_is_in_one_section_only():
    names = [name for section in SECTIONS.values() for name in section.model_fields]
    assert len(names) == len(set(names)) and not set(names) & set(COMMANDS)


@pytest.mark.parametrize("names", [NOT_BUILT, NO_EFFECT, RENAMED], ids=["NOT_BUILT", "NO_EFFECT", "RENAMED"])
def test_a_name_that_is_listed_as_no_option_is_none(names):
    assert [name for name in names if find(name.replace("-", "_"))] == [], "it is an option now: take it off the list"


def test_the_page_on_hooks_speaks_of_every_option_for_a_function():
    page = (docs.FILE.parent / "hooks.md").read_text(encoding="utf-8")
    assert [OWN[name].flag for name in HOOKS if f"`{OWN[name].flag}`" not in page] == []


def test_older_names_lead_to_options():
    assert [today for today, _ in RENAMED.values() if find(today.replace("-", "_")) is None] == []


def test_a_value_that_is_listed_as_not_supported_is_no_choice():
    for option, values in NOT_BUILT_VALUES.items():
        assert not values.keys() & set(OWN[option].choices), f"--{option}: take them off the list"
