"""Every option of a run: typed, checked, immutable. Imports no torch, Ray, SGLang, Megatron or transformers."""

from slime.config.config import Config
from slime.config.entry import from_command_line
from slime.config.errors import ConfigError, Problem
from slime.config.load import load

__all__ = ["Config", "ConfigError", "Problem", "from_command_line", "load"]
