"""Qwen2 and Qwen2.5, dense: biases in the query, key and value projections, and nowhere else.

The architecture is that of transformers' models/qwen2.
"""

from __future__ import annotations

from slime.models.decoder import Decoder


class Qwen2(Decoder):
    qkv_bias = True
