"""slime: RL post-training for language models, from a laptop CPU to a GPU cluster."""

import sys
from itertools import pairwise

__version__ = "0.1.0"

if sys.argv[:1] == ["-m"]:  # python -m slime.tiny, whose own imports are still to come
    _module = next((word for option, word in pairwise(sys.orig_argv) if option == "-m"), "")
    if _module.count(".") == 1:  # slime.inference.launch and the like are called by a run, not by a person
        import slime.command  # noqa: F401
