"""A tiny Qwen3 checkpoint and two tasks that it really learns on a laptop: `python -m slime.tiny --output DIR`.

The files are in the formats of the real thing, so nothing downstream knows that the model is small. No torch is
imported here.
"""

from slime.tiny.checkpoint import write_checkpoint
from slime.tiny.files import Tiny, make_tiny
from slime.tiny.tasks import TASKS, Task, is_held_out

__all__ = ["TASKS", "Task", "Tiny", "is_held_out", "make_tiny", "write_checkpoint"]
