"""Declaration and discovery of checks.

A check is one function in one file of ``health/``, decorated with ``@check``. It receives a View and its policy and
yields findings. Configuration keys, documentation and metrics follow from the declaration; there is no second place to
edit. Checks of other distributions are found through the entry-point group ``nodevet.checks``: each entry names a
module that declares some. A distribution whose checks cannot be loaded is listed as a check that cannot run.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib.metadata import Distribution, EntryPoint, distributions
from types import ModuleType
from typing import Any

import msgspec

from nodevet.checks.core.errors import RegistryError
from nodevet.checks.core.guard import Bug, attempt
from nodevet.checks.core.later import SELDOM, loaded_later
from nodevet.checks.core.model import Finding
from nodevet.checks.core.modules import modules_in
from nodevet.checks.core.overrun import Overrun, within
from nodevet.checks.core.quantities import QUANTITIES

from .site_code import UNWATCHED, During, SiteCode, Watch, Work, in_one_process, line_of
from .view import View

ENTRY_POINT_GROUP = "nodevet.checks"
SWITCHES = frozenset({"enabled", "mode"})
"""Keys in the configuration table of each check besides the fields of its policy."""

IMPORT_SECONDS = 10.0
"""Time limit in seconds for the import of a site's package: nothing is read before."""

NEXT_STEP = "correct the package or remove it, and restart the agent"

_MARK = "__nodevet_check__"

Judge = Callable[[View, Any], Iterable[Finding]]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A declared check: its name, its function, its policy struct and the quantities that it reads.

    A ``broken`` one represents checks of another distribution that cannot be loaded, and holds the reason. One of
    another distribution judges ``during`` a context, in which its watch knows that it runs.
    """

    name: str
    summary: str
    judge: Judge
    policy: type[msgspec.Struct]
    inputs: tuple[str, ...] = ()
    module: str = ""
    broken: str = ""
    during: During = nullcontext

    @property
    def is_own(self) -> bool:
        """Return whether nodevet itself declares it."""
        return self.module.startswith("nodevet.")


class _NoPolicy(msgspec.Struct, frozen=True):
    """The policy of a check that cannot be loaded."""


def check(name: str, *, policy: type[msgspec.Struct], inputs: tuple[str, ...] = ()) -> Callable[[Judge], Judge]:
    """Declare the decorated function as check *name*; its docstring's first line is the summary.

    Raises RegistryError if an input is no declared quantity or the docstring is missing.
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
    """Return the checks that *modules* declare, by name. Raises RegistryError if two share a name."""
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
    with loaded_later(*SELDOM):
        return load(importlib.import_module(f"{package.__name__}.{name}") for name in modules_in(package.__path__))


def installed(watch: Watch = UNWATCHED) -> tuple[Check, ...]:
    """Return nodevet's own checks and those of other distributions, by name.

    An error of another distribution costs only its own checks: a broken check replaces them. *watch* is told before
    code of one runs, and the code that it refuses is neither imported nor run.
    """
    found = {declared.name: declared for declared in discover()}
    places: dict[str, EntryPoint] = {}
    # Python's path names an archive that hardly ever exists, for which importlib would load zipfile.
    there = [place for place in sys.path if os.path.exists(place or os.curdir)]  # noqa: PTH110 (Path raises EACCES)
    for distribution in distributions(path=there):
        points = attempt(partial(_points, distribution))
        if isinstance(points, Bug):
            name = str(attempt(lambda: distribution.metadata["Name"]))  # noqa: B023 (called at once)
            _add_broken(found, name, f"the entry points of package {name} cannot be read: {points}")
            continue
        for point in points:
            package = f"{point.name} = {point.value} of a package of the site"
            code = SiteCode(Work.IMPORT, point.name, point.module, point.dist)
            refusal = _refusal(code, watch)
            if refusal:
                _add_broken(found, point.name, f"{package} is not imported: {refusal}")
                continue
            with _over(code, watch):
                declared = attempt(partial(_of_other, point, found))
            if isinstance(declared, Bug):
                _add_broken(found, point.name, f"{package} cannot be had: {declared}")
            else:
                found |= {entry.name: entry for entry in declared}
                places |= dict.fromkeys((entry.name for entry in declared), point)
    return tuple(_watched(found[name], places.get(name), watch) for name in sorted(found))


def _watched(declared: Check, point: EntryPoint | None, watch: Watch) -> Check:
    """Return *declared* as *watch* lets it run: a broken check where that refuses it."""
    if point is None or declared.broken:
        return declared
    code = SiteCode(Work.JUDGE, declared.name, declared.module, point.dist)
    refusal = watch.refusal(code)
    if refusal:
        return msgspec.structs.replace(declared, broken=f"{refusal}; {NEXT_STEP}")
    return msgspec.structs.replace(declared, during=partial(watch.over, code))


def _points(distribution: Distribution) -> tuple[EntryPoint, ...]:
    return tuple(distribution.entry_points.select(group=ENTRY_POINT_GROUP))


def _of_other(point: EntryPoint, known: Mapping[str, Check]) -> tuple[Check, ...]:
    """Return the checks of the module of *point*. Raises any exception of its code, and RegistryError."""
    try:
        module = _loaded(point)
    except SystemExit as error:
        ended = RegistryError(f"it ends its process when it is imported: SystemExit: {error}")
        raise ended.with_traceback(line_of(error, point.module)) from error
    if not isinstance(module, ModuleType):
        raise RegistryError(f"it names a {type(module).__name__}, expected a module with checks in it")
    declared = load([module])
    if not declared:
        raise RegistryError("the module declares no check of its own")
    for entry in declared:
        other = known.get(entry.name)
        if other is not None and other is not entry:
            raise RegistryError(f"check {entry.name} is declared in {other.module} and {entry.module}")
        _refuse_policy(entry)
    return declared


class _Endless(ModuleType):
    """Represents a module whose import did not end, so that it is not imported again."""


class _Refused(ModuleType):
    """Represents a module that a watch refused, so that nothing else in this process imports it."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name)
        self.why = why


def _refusal(code: SiteCode, watch: Watch) -> str:
    """Return why the module of *code* must not be imported, or an empty string."""
    known = sys.modules.get(code.module)
    if watch is UNWATCHED:
        return known.why if isinstance(known, _Refused) else ""
    why = watch.refusal(code)
    if why:
        sys.modules[code.module] = _Refused(code.module, why)
    elif isinstance(known, _Refused):
        del sys.modules[code.module]
    return why


def _over(code: SiteCode, watch: Watch) -> AbstractContextManager[None]:
    """Return a context for the import of the module of *code*, which does nothing where it is imported already."""
    return nullcontext() if code.module in sys.modules else watch.over(code)


def _loaded(point: EntryPoint) -> object:
    """Return the module of *point*. Raises any exception of its code, and RegistryError if the import does not end."""
    if not isinstance(sys.modules.get(point.module), _Endless):
        try:
            return within(IMPORT_SECONDS, partial(in_one_process, point.load))
        except Overrun:
            sys.modules[point.module] = _Endless(point.module)
    raise RegistryError(f"its import did not end within {IMPORT_SECONDS:g} s and was interrupted")


def _refuse_policy(declared: Check) -> None:
    """Raise if the policy of *declared* has no default, or cannot be read from or written to a file."""
    clash = SWITCHES & set(declared.policy.__struct_fields__)
    if clash:
        raise RegistryError(f"check {declared.name}: its policy must not name a field {', '.join(sorted(clash))}")
    msgspec.inspect.type_info(declared.policy)
    msgspec.json.encode(declared.policy())


def _add_broken(found: dict[str, Check], name: str, why: str) -> None:
    """Add to *found*, under *name* or one like it, a check that cannot run."""
    while name in found:
        name = f"{name}-broken"
    words = f"{why}; {NEXT_STEP}"
    found[name] = Check(name=name, summary="Not available.", judge=_judges_nothing, policy=_NoPolicy, broken=words)


def _judges_nothing(_view: View, _policy: Any) -> Iterable[Finding]:
    """Return no findings: the checks cannot be loaded."""
    return ()


def _declared_in(module: object) -> Iterator[Check]:
    for value in vars(module).values():
        declared = getattr(value, _MARK, None)
        if isinstance(declared, Check) and declared.module == getattr(module, "__name__", None):
            yield declared
