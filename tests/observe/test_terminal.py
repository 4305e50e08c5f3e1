"""Text for a terminal: pictures by hand-computed characters, and widths that hold for any text."""

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime.observe.terminal import Terminal, clean, columns_of, mean, seconds, shorten


def terminal(encoding="utf-8", env=None):
    return Terminal(io.TextIOWrapper(io.BytesIO(), encoding=encoding), env or {})


@pytest.mark.parametrize(
    ("share", "unicode", "ascii"),
    [
        (0.0, "    ", "    "),
        (1.0, "████", "####"),
        (0.5, "██  ", "##  "),
        (0.59375, "██▍ ", "##  "),
        (math.nan, "    ", "    "),
        (1.5, "    ", "    "),
    ],
)
def test_bar(share, unicode, ascii):
    assert terminal().bar(share, 4) == unicode
    assert terminal("ascii").bar(share, 4) == ascii


def test_sparkline_of_shares_is_on_the_scale_of_one():
    assert terminal().sparkline([0.0, 0.5, 1.0], 10, shares=True) == "▁▅█"
    assert terminal().sparkline([0.9, 0.9], 10, shares=True) == "▇▇"


def test_sparkline_of_numbers_is_on_their_own_scale():
    assert terminal().sparkline([10, 17, 14], 10) == "▁█▅"
    assert terminal("ascii").sparkline([10, 17, 14], 10) == ".@+"
    assert terminal().sparkline([0.9, 0.8], 10) == "█▁"
    assert terminal().sparkline([3, 3, 3], 10) == "▁▁▁"


def test_sparkline_of_many_values_shows_the_means_of_their_parts():
    assert terminal().sparkline([0, 2, 10, 12, 20, 22], 3) == terminal().sparkline([1, 11, 21], 3)


def test_sparkline_has_gaps_where_nothing_is_finite():
    assert terminal().sparkline([0, math.nan, math.inf, 7], 4) == "▁  █"
    assert terminal().sparkline([3, math.nan, 3], 4) == "▁ ▁"
    assert terminal().sparkline([math.nan], 4) == terminal().sparkline([], 4) == ""


@given(st.lists(st.floats(), max_size=300), st.integers(1, 80))
def test_sparkline_fits(values, cells):
    assert len(terminal().sparkline(values, cells)) <= cells


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (17.2, "17 s"),
        (119.6, "2 min 00 s"),
        (200, "3 min 20 s"),
        (7199.6, "2 h 00 min"),
        (7380, "2 h 03 min"),
    ],
)
def test_seconds(value, said):
    assert seconds(value) == said


def test_mean_is_of_what_is_finite():
    assert mean([1.0, math.nan, 3.0, math.inf]) == 2.0
    assert math.isnan(mean([]))


def test_text_of_a_model_cannot_act_on_the_terminal():
    assert clean("a\x1b[2J\x07b\r\nc\td\u202e") == "a·[2J·b⏎c d·"


@pytest.mark.parametrize(("text", "columns"), [("abc", 3), ("数学", 4), ("e\u0301", 1), ("", 0)])
def test_columns(text, columns):
    assert columns_of(text) == columns


def test_shorten_keeps_both_ends():
    assert shorten("0123456789", 7) == "012…789"
    assert shorten("0123456789", 10) == "0123456789"
    assert shorten("数学数学数学", 8) == "数…数学"


@given(st.text(), st.integers(1, 60))
def test_shorten_fits(text, columns):
    assert columns_of(shorten(text, columns)) <= columns


def test_ascii_stream_gets_ascii():
    assert terminal("ascii").plain("── ✓ 数 ──") == "-- + ? --"


def test_columns_of_the_environment_win():
    assert terminal(env={"COLUMNS": "132"}).width == 132
    assert terminal(env={"COLUMNS": "0"}).width == terminal(env={}).width == 80
