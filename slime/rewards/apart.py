"""Tests that are Python text, and the program that they are of, in two processes joined by a socket.

The tests have stand-ins for what the program defines. Plain values are copied as what they are of Python's own types,
so that no `__eq__` or `__sub__` of the program's decides whether an answer is right, single numbers of NumPy's as
Python's; all else stays in the program, and an operator of its own is asked only between two of its own objects. The
program never sees the tests, what they expect, or the process that runs them.

This source is run inside of sandboxes, with a call of `serve` or `judge` after it: nothing but the standard library.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

LINK = 3  # file descriptor of this side's end of the socket
_COPIED = {"l": list, "t": tuple, "s": set, "z": frozenset}
_KEYS, _ITEMS = type({}.keys()), type({}.items())
_MADE_OF: dict[tuple[str, str], Callable[[Any], Any]] = {  # what never changes: the parts that it is made of
    ("builtins", "range"): lambda value: (value.start, value.stop, value.step),
    ("fractions", "Fraction"): lambda value: (value.numerator, value.denominator),
    ("decimal", "Decimal"): lambda value: (str(value),),
    ("datetime", "date"): lambda value: value.timetuple()[:3],
    ("datetime", "datetime"): lambda value: (*value.timetuple()[:6], value.microsecond),
    ("datetime", "timedelta"): lambda value: (value.days, value.seconds, value.microseconds),
}
_BETWEEN_TWO = "eq ne lt le gt ge add sub mul truediv floordiv mod pow and or xor matmul".split()


class Wire:
    """Messages, one a line, and the objects of this side that the other one has stand-ins for."""

    def __init__(self) -> None:
        self.lines, self.out = os.fdopen(LINK), os.fdopen(os.dup(LINK), "w")
        self.kept: list[Any] = []

    def send(self, *message: Any) -> None:
        self.out.write(json.dumps(message) + "\n")
        self.out.flush()

    def receive(self) -> list[Any]:
        line = self.lines.readline()
        if not line:
            raise EOFError("the program has ended")
        return json.loads(line)

    def pack(self, value: Any) -> Any:
        if value is None or isinstance(value, bool):
            return value
        for kind in (int, float, str):
            if isinstance(value, kind):
                return kind.__add__(value, kind())  # of a subclass, the plain value
        if isinstance(value, bytes | bytearray):
            return ["b", value.hex()]
        if isinstance(value, complex):
            return ["c", value.real, value.imag]
        if isinstance(value, dict):
            return ["d", [[self.pack(key), self.pack(one)] for key, one in dict.items(value)]]
        for tag, kind in _COPIED.items():
            if isinstance(value, kind):
                return [tag, [self.pack(one) for one in kind.__iter__(value)]]
        if isinstance(value, StandIn):
            return ["yours", value._number]
        if isinstance(value, deque):
            return ["q", [self.pack(one) for one in deque.__iter__(value)], value.maxlen]
        if isinstance(value, _KEYS | _ITEMS):
            return ["keys" if isinstance(value, _KEYS) else "items", [self.pack(one) for one in value]]
        kind = type(value)
        if (parts := _MADE_OF.get((kind.__module__, kind.__qualname__))) and getattr(value, "tzinfo", None) is None:
            return ["made", [kind.__module__, kind.__qualname__, *map(self.pack, parts(value))]]
        if kind.__module__ == "numpy" and getattr(value, "ndim", None) == 0:
            plain = value.item()
            if type(plain).__module__ != "numpy":
                return self.pack(plain)
        self.kept.append(value)
        return ["awaited" if kind is types.CoroutineType else "mine", len(self.kept) - 1]

    def unpack(self, packed: Any) -> Any:
        if not isinstance(packed, list):
            return packed
        tag, content = packed[0], packed[1]
        match tag:
            case "b":
                return bytes.fromhex(content)
            case "c":
                return complex(content, packed[2])
            case "d":
                return {self.unpack(key): self.unpack(one) for key, one in content}
            case "q":
                return deque(map(self.unpack, content), packed[2])
            case "keys":
                return dict.fromkeys(map(self.unpack, content)).keys()
            case "items":
                return dict(map(self.unpack, content)).items()
            case "made":
                module, name, *parts = content
                if (module, name) in _MADE_OF:
                    return getattr(importlib.import_module(module), name)(*map(self.unpack, parts))
            case "mine":
                return StandIn(self, content)
            case "awaited":
                return self.wait(StandIn(self, content))
            case "yours":
                return self.kept[content]
        return _COPIED[tag](self.unpack(one) for one in content)

    def ask(self, action: str, *arguments: Any) -> Any:
        """What the other side makes of it; meanwhile it may call functions that were handed to it."""
        given = [self.pack(one) for one in arguments]
        self.send("do", action, given)
        while (answer := self.receive())[0] == "do":
            self.answer(answer, only=("call",))
        if answer[0] == "raised":
            raise _exception(*answer[1:])
        for ours, theirs in zip(list(_containers(arguments)), answer[2], strict=True):
            _update(ours, self.unpack(theirs))
        return self.unpack(answer[1])

    async def wait(self, coroutine: StandIn) -> Any:
        return self.ask("await", coroutine)

    def answer(self, message: list[Any], only: tuple[str, ...] = ()) -> None:
        _, action, given = message
        try:
            if only and action not in only:
                raise TypeError(f"{action} is not for the program to ask")
            arguments = [self.unpack(one) for one in given]
            changeable = list(_containers(arguments))
            result = ACTIONS[action](*arguments)
            self.send("done", self.pack(result), [self.pack(one) for one in changeable])
        except Exception as error:
            bases = [base.__name__ for base in type(error).__mro__]
            self.send("raised", type(error).__name__, bases, str(error))


def _containers(arguments: Any) -> Iterator[list | dict | set | deque]:
    """What a function that is called with these may change in place."""
    for one in arguments:
        if isinstance(one, list | dict | set | deque):
            yield one
        if isinstance(one, list | tuple | deque):
            yield from _containers(one)


def _update(ours: list | dict | set | deque, theirs: Any) -> None:
    if type(ours) is type(theirs) and ours != theirs:
        ours.clear()
        ours.extend(theirs) if isinstance(ours, list | deque) else ours.update(theirs)


ACTIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, args, kwargs: function(*args, **kwargs),
    "await": lambda coroutine: importlib.import_module("asyncio").run(coroutine),
    "get": getattr,
    "set": setattr,
    "isinstance": isinstance,
    "iter": iter,
    "next": lambda iterator: next(iterator, _END),
    "ended": lambda value: value is _END,
    "item": lambda container, key: container[key],
    "len": len,
    "bool": bool,
    "str": str,
    "between": lambda name, one, other: getattr(one, name)(other),
}
_END = object()


class StandIn:
    """For an object of the other side."""

    def __init__(self, wire: Wire, number: int) -> None:
        vars(self).update(_wire=wire, _number=number)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._wire.ask("call", self, list(args), kwargs)

    def __getattr__(self, name: str) -> Any:
        return self._wire.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._wire.ask("set", self, name, value)

    def __instancecheck__(self, one: Any) -> bool:
        return isinstance(one, StandIn) and self._wire.ask("isinstance", one, self) is True

    def __iter__(self) -> Iterator[Any]:
        iterator = self._wire.ask("iter", self)
        while True:
            value = self._wire.ask("next", iterator)
            if isinstance(value, StandIn) and self._wire.ask("ended", value):
                return
            yield value

    def __next__(self) -> Any:
        value = self._wire.ask("next", self)
        if isinstance(value, StandIn) and self._wire.ask("ended", value):
            raise StopIteration
        return value

    def __getitem__(self, key: Any) -> Any:
        return self._wire.ask("item", self, key)

    def __contains__(self, value: Any) -> bool:
        return any(one == value for one in self)

    def __len__(self) -> int:
        return self._wire.ask("len", self)

    def __bool__(self) -> bool:
        return self._wire.ask("bool", self)

    def __str__(self) -> str:
        return self._wire.ask("str", self)

    def __hash__(self) -> int:
        return hash(self._number)


def _between(name: str) -> Callable[[StandIn, Any], Any]:
    def operator(self: StandIn, other: Any) -> Any:
        return self._wire.ask("between", name, self, other) if isinstance(other, StandIn) else NotImplemented

    return operator


for _name in _BETWEEN_TWO:
    setattr(StandIn, f"__{_name}__", _between(f"__{_name}__"))


_ENDS = (StopIteration, StopAsyncIteration)
_raised: dict[str, type[Exception]] = {}


def _exception(name: str, bases: list[str], text: str) -> Exception:
    """An error in any case (cf. PEP 479): what ends a loop would end those of the tests."""
    kinds = [kind for base in bases if isinstance(kind := getattr(builtins, base, None), type)]
    errors = [kind for kind in kinds if issubclass(kind, Exception) and not issubclass(kind, _ENDS)]
    base = errors[0] if errors else Exception
    return (base if base.__name__ == name else _raised.setdefault(name, type(name, (base,), {})))(text)


def serve(program: str) -> None:
    """The side of the program: runs it, says what it has defined, and does what is asked."""
    names: dict[str, Any] = {"__name__": "solution"}
    wire = Wire()
    exec(compile(program, "answer.py", "exec"), names)
    wire.send(*([name, *_described(wire, value)] for name, value in names.items() if not name.startswith("_")))
    while True:
        wire.answer(wire.receive())


def _described(wire: Wire, value: Any) -> tuple[str, Any]:
    if isinstance(value, types.ModuleType):
        return "import", [value.__name__, None]
    if getattr(value, "__module__", "solution") in sys.stdlib_module_names and hasattr(value, "__name__"):
        return "import", [value.__module__, value.__name__]
    if isinstance(value, type) and issubclass(value, Exception):
        return "exception", [base.__name__ for base in value.__mro__]
    return "value", wire.pack(value)


def judge(tests: str, word: str) -> None:
    """The side of the tests: the word is said when they have come to their end."""
    wire = Wire()
    names: dict[str, Any] = {"__name__": "tests"}
    for name, kind, what in wire.receive():
        if hasattr(builtins, name):
            continue  # the tests' own `sorted` is Python's
        if kind == "import" and what[0].partition(".")[0] in sys.stdlib_module_names:
            module = importlib.import_module(what[0])
            names[name] = module if what[1] is None else getattr(module, what[1])
        elif kind == "exception":
            names[name] = type(_exception(name, what, ""))
        elif kind == "value":
            names[name] = wire.unpack(what)
    exec(compile(tests, "tests.py", "exec"), names)
    sys.__stdout__.write("\n" + word)
    sys.__stdout__.flush()
