"""slime: RL post-training for language models, from a laptop CPU to a GPU cluster."""

import importlib.util
import sys

_missing = [name for name in ("pydantic", "ray", "tokenizers", "torch") if importlib.util.find_spec(name) is None]
if _missing:  # of these it would be the imports, deep inside, that fail
    raise ImportError(
        f"{' and '.join(_missing)} not installed for {sys.executable}: scripts/install.sh makes an environment that has"
        " what slime needs, and .venv/bin/python is its interpreter"
    )

__version__ = "0.1.0"
