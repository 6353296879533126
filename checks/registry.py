"""How a check is declared and found.

A check is one function in one file of ``health/``, decorated with ``@check``. It receives a View and its policy and
yields findings. Configuration keys, documentation and metrics follow from the declaration; there is no second
place to edit. Checks of other distributions are found through the entry-point group ``nodevet.checks``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from typing import Any

import msgspec

from nodevet.checks.errors import RegistryError
from nodevet.checks.model import Finding
from nodevet.checks.quantities import QUANTITIES
from nodevet.checks.view import View

__all__ = ["Check", "check", "discover", "installed", "load"]

ENTRY_POINT_GROUP = "nodevet.checks"
_MARK = "__nodevet_check__"

Judge = Callable[[View, Any], Iterable[Finding]]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A declared check: its name, what it judges, its policy struct and the quantities it looks at."""

    name: str
    summary: str
    judge: Judge
    policy: type[msgspec.Struct]
    inputs: tuple[str, ...] = ()
    module: str = ""


def check(name: str, *, policy: type[msgspec.Struct], inputs: tuple[str, ...] = ()) -> Callable[[Judge], Judge]:
    """Declare the decorated function as check *name*; its docstring's first line is the summary.

    Raises RegistryError when an input is no declared quantity or the docstring is missing.
    """

    def declare(judge: Judge) -> Judge:
        unknown = [key for key in inputs if key not in QUANTITIES]
        if unknown:
            raise RegistryError(f"check {name}: inputs are no quantities: {', '.join(unknown)}")
        if not judge.__doc__:
            raise RegistryError(f"check {name}: {judge.__module__} has no docstring to say what it judges")
        summary = judge.__doc__.strip().splitlines()[0]
        declared = Check(name=name, summary=summary, judge=judge, policy=policy, inputs=inputs, module=judge.__module__)
        setattr(judge, _MARK, declared)
        return judge

    return declare


def load(modules: Iterable[object]) -> tuple[Check, ...]:
    """Return the checks that *modules* declare, by name; raise RegistryError when two share one."""
    found: dict[str, Check] = {}
    for module in modules:
        for declared in _declared_in(module):
            other = found.setdefault(declared.name, declared)
            if other is not declared:
                raise RegistryError(f"check {declared.name} is declared in {other.module} and {declared.module}")
    return tuple(found[name] for name in sorted(found))


def discover() -> tuple[Check, ...]:
    """Return nodevet's own checks: one per file of ``health/``."""
    package = importlib.import_module("nodevet.checks.health")
    return load(
        importlib.import_module(f"{package.__name__}.{entry.name}") for entry in pkgutil.iter_modules(package.__path__)
    )


def installed() -> tuple[Check, ...]:
    """Return nodevet's own checks and those of other distributions."""
    others = (point.load() for point in entry_points(group=ENTRY_POINT_GROUP))
    own = discover()
    modules = {declared.module for declared in own}
    return load((*(importlib.import_module(module) for module in sorted(modules)), *others))


def _declared_in(module: object) -> Iterator[Check]:
    for value in vars(module).values():
        declared = getattr(value, _MARK, None)
        if isinstance(declared, Check) and declared.module == getattr(module, "__name__", None):
            yield declared
