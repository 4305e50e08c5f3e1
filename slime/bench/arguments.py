"""What the arguments of benches have in common."""

from __future__ import annotations

import argparse


def count(text: str) -> int:
    """The type of an argument that counts something."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value
