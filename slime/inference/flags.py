"""Options of SGLang and its router, as values, turned into the words of their command lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from slime.config.catalogue import READERS


def flags(family: Literal["sglang", "router"], options: Mapping[str, Any]) -> list[str]:
    """{"mem_fraction_static": 0.5, "enable_metrics": True} -> ["--mem-fraction-static", "0.5", "--enable-metrics"].

    Names have underscores and no family prefix. None leaves an option to its default; so does False a switch that is
    off by default, while it negates any other.
    """
    known = READERS[family].read()
    words: list[str] = []
    for name, value in options.items():
        flag, option = "--" + name.replace("_", "-"), known.get(name)
        match value:
            case None:
                continue
            case True:
                words.append(flag)
            case False:
                if option is not None and option.default is not False:
                    words.append(flag.replace("--", "--no-", 1))
            case dict():
                words += [flag, json.dumps(value)]
            case list() | tuple():
                words += [flag, json.dumps(value)] if option is not None and option.json else [flag, *map(str, value)]
            case _:
                words += [flag, str(value)]
    return words
