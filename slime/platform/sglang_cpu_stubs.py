"""Stand-ins for packages that SGLang imports at the top of its modules and never calls for text on a CPU.

Invariants
- A real package always wins: the finder stands last in `sys.meta_path`, so it is asked only for what nobody else has.
- Libraries that probe for these packages (torch and transformers do, once) have had their answer, "absent", before the
  stand-ins exist.
- A stand-in is false, is iterated as empty, decorates by leaving its function alone, and hands out further stand-ins as
  attributes; names that begin with a capital are classes, so that they can be inherited from and annotated with.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

PACKAGES = frozenset({"triton", "torchvision", "IPython", "sgl_kernel", "soundfile"})


class StandInClass:
    """What a capitalised attribute of a stand-in inherits from: takes any arguments, also when it is subclassed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__()


class StandIn(ModuleType):
    __path__ = ()  # a package, so that modules below it can be imported

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            value: Any = type(name, (StandInClass,), {"__module__": self.__name__})
        else:
            value = importlib.import_module(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As a decorator: both `@triton.jit` and `@triton.autotune(configs)`."""
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]
        return lambda function: function

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=__file__, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Adds the few values that SGLang computes with while it is imported."""
        module.__file__ = __file__
        if module.__name__ == "triton":
            module.__version__ = "3.0.0"
            module.cdiv = lambda a, b: -(a // -b)
            module.next_power_of_2 = lambda n: 1 << (n - 1).bit_length() if n > 0 else 1
        elif module.__name__ == "IPython":
            module.get_ipython = lambda: None  # "not in a notebook", as the real one says
        elif module.__name__ == "triton.language":
            module.constexpr = type(
                "constexpr", (), {"__init__": lambda self, value=None: setattr(self, "value", value)}
            )


def install() -> None:
    """Idempotent."""
    from torch.utils import _triton
    from transformers.utils import is_torchvision_available

    if not any(isinstance(finder, StandInFinder) for finder in sys.meta_path):
        _triton.has_triton_package()  # both answers are cached
        is_torchvision_available()
        sys.meta_path.append(StandInFinder())
