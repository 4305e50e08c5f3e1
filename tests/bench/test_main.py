"""python -m slime.bench: what it says of its benches."""

from __future__ import annotations

import sys

import pytest

from slime.bench.__main__ import BENCHES, main


def test_help_says_of_each_bench_what_it_measures_to_the_end(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["slime.bench", "--help"])
    with pytest.raises(SystemExit):
        main()
    said = " ".join(capsys.readouterr().out.split())
    titles = said.partition("positional arguments:")[2].partition("options:")[0]
    assert titles.count(". ") == len(BENCHES)
    assert "and what the ledger costs." in said and "and what both have learnt." in said
