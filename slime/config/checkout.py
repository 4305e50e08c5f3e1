"""The checkout that slime runs from: train.py, configs/ and scripts/ are in it, and in no wheel."""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def lacking() -> str | None:
    """Why this installation trains nothing, and what to do; None in a checkout."""
    if (CHECKOUT / "train.py").is_file():
        return None
    return (
        f"{CHECKOUT} has no train.py: slime runs from a checkout of its repository, which `bash scripts/install.sh`"
        " there installs as editable"
    )
