"""Users' functions that options name and that are not there, as the processes of a run will look for them (hooks.py).

Invariant: nothing of the user's is run or imported. A module is found as Python finds it, its names and the packages
that it imports are read off its source, and what only running it could tell (`from x import *`, a module `__getattr__`,
an extension module) is left to the run.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from slime.config.catalogue import OWN
from slime.config.config import Config
from slime.config.errors import Problem
from slime.config.hook_shapes import wrong_shape

ARRANGED = re.compile(r"__path__|sys\.modules\s*(\[[^]]*\]\s*=[^=]|\.(setdefault|update)\b)")
HOOKS = [name for name, option in OWN.items() if option.unit == "MODULE.ATTR"]


class _NotThere(LookupError):
    """What is missing, and what to do about it."""


def look(config: Config, unsound: set[str]) -> Iterator[Problem]:
    """The functions that are not where an option says."""
    # The workers of a run look in the directory where the command runs, too, and those that train where they are told.
    further = [entry for entry in str(config.train_env_vars.get("PYTHONPATH", "")).split(os.pathsep) if entry]
    search = [str(Path.cwd()), *further, *sys.path]
    for name in HOOKS:
        path = getattr(config, name)
        if path is not None and name not in unsound:
            try:
                _look_for(path, search, _call_of(name, config))
            except _NotThere as lack:
                what, fix = lack.args
                # An eval function is the rollout function unless it is given: then it is said of that one alone.
                if not (name == "eval_function_path" and path == config.rollout_function_path):
                    yield Problem(OWN[name].flag, f"{path}: {what}", fix)


def _call_of(name: str, config: Config) -> str:
    """By which option's call a function is judged: the rollout function may be asked for evaluations, too."""
    evaluates = config.eval_interval is not None and config.eval_function_path == config.rollout_function_path
    return "eval_function_path" if name == "rollout_function_path" and evaluates else name


def _look_for(path: str, search: list[str], option: str) -> None:
    """Raises _NotThere when `path` (module.attribute) surely names nothing, or nothing that the option can use."""
    module, _, attribute = path.rpartition(".")
    spec = _find(module, search)
    if spec is not None and spec.origin is None and spec.submodule_search_locations:
        where = ", ".join(spec.submodule_search_locations)
        what = f"{module!r} is a directory without an __init__.py, {where}, which can only hold modules"
        raise _NotThere(what, "a path is module.function")
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return
    source = _parsed(Path(spec.origin))
    for line, package in _imports(source):
        if PathFinder.find_spec(package, search) is None and _by_other_finders(package) is None:
            fix = "install it in this environment, or import it only where it is used"
            raise _NotThere(f"{spec.origin}:{line} imports {package!r}, which is not there", fix)
    names = _names(source)
    there = vars(sys.modules.get(module, object))  # where it happens to be imported here already
    if names is None and attribute in there and not callable(there[attribute]):
        kind = type(there[attribute]).__name__
        raise _NotThere(f"it is of type {kind}, which nobody can call", "name a function")
    if names is not None and names.get(attribute) == "module":
        raise _NotThere(f"{attribute!r} is a module that {spec.origin} imports", "name a function that it defines")
    if names is not None and attribute not in names:
        near = difflib.get_close_matches(attribute, names, n=3)
        fix = f"did you mean {' or '.join(near)}?" if near else "name a function that it defines"
        raise _NotThere(f"{spec.origin} has no {attribute!r}", fix)
    if names is not None and (wrong := wrong_shape(source, attribute, option)) is not None:
        raise _NotThere(*wrong)


def _find(module: str, search: list[str]) -> ModuleSpec | None:
    """Where a module is, without importing the packages around it; None where only these could tell."""
    first, *rest = module.split(".")
    spec = PathFinder.find_spec(first, search) or _by_other_finders(first)
    if spec is None:
        raise _NotThere(
            f"there is no module {first!r} on the Python path",
            "it is looked for where the command runs, in PYTHONPATH, and among the installed packages",
        )
    for part in rest:
        name, package = f"{spec.name}.{part}", spec
        if package.submodule_search_locations is None:
            what = f"{package.name!r} is a file, {package.origin}"
            raise _NotThere(f"there is no module {name!r}: {what}", "a path is module.function, without classes")
        spec = _find_in(package, name)
        if spec is None and _arranges_its_modules(package):
            return None
        if spec is None:
            where = ", ".join(package.submodule_search_locations)
            raise _NotThere(f"there is no module {name!r}: {where} does not hold it", "correct the path")
    return spec


def _find_in(package: ModuleSpec, name: str) -> ModuleSpec | None:
    try:
        return PathFinder.find_spec(name, package.submodule_search_locations)
    except KeyError:  # a directory without an __init__.py, of which Python would ask the package around it
        spec = ModuleSpec(name, None, is_package=True)
        places = [Path(place, name.rpartition(".")[2]) for place in package.submodule_search_locations]
        spec.submodule_search_locations = [str(place) for place in places if place.is_dir()]
        return spec


def _by_other_finders(name: str) -> ModuleSpec | None:
    """A built-in module, or one that was installed as editable."""
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # a module that is running, such as __main__, and does not say where it is from
        return None


def _arranges_its_modules(package: ModuleSpec) -> bool:
    """Whether a package's own code may say where its modules are."""
    if not package.origin or not package.origin.endswith(".py"):
        return False
    source = Path(package.origin).read_text(encoding="utf-8", errors="replace")
    return ARRANGED.search(source) is not None


def _parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes())
    except SyntaxError as error:
        raise _NotThere(f"{file}:{error.lineno}: {error.msg}", "correct the file") from None


def _imports(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and top-level package of each import that certainly happens; none where a module changes what can be."""
    if any(isinstance(node, ast.Name) and node.id == "sys" for node in ast.walk(module)):  # sys.path, sys.modules
        return
    for node in module.body:
        match node:
            case ast.Import(names=aliases):
                yield from ((node.lineno, alias.name.partition(".")[0]) for alias in aliases)
            case ast.ImportFrom(module=str(name), level=0):
                yield node.lineno, name.partition(".")[0]


def _names(module: ast.Module) -> dict[str, str] | None:
    """What a module defines at its top level, in whatever branch, and as what: of a "module" it is sure that nobody can
    call it. None where running it could define more."""
    names: dict[str, str] = {}
    todo: list[ast.AST] = list(module.body)
    while todo:
        match todo.pop():
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names[name] = "definition"
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases) as statement:
                kind = "module" if isinstance(statement, ast.Import) else "imported"
                for alias in aliases:
                    names.setdefault(alias.asname or alias.name.partition(".")[0], kind)
            case ast.Name(id=name, ctx=ast.Store()):
                names[name] = "value"
            case ast.Name(id="globals" | "setattr"):
                return None
            case node:
                todo += ast.iter_child_nodes(node)
    return None if names.keys() & {"*", "__getattr__"} else names
