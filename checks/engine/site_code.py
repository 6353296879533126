"""Code of a site that runs in our process: its files, its line in an exception, and the watch over it.

No ``except`` catches ``os._exit``, ``os.abort`` or a signal in a library that the code calls: the process ends at once
and without a word. So a watch is told before such code runs, and says what must not run again.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from functools import partial
from importlib.metadata import Distribution
from itertools import islice
from types import TracebackType
from typing import NamedTuple, TypeVar

from nodevet.checks.core.digest import sha256
from nodevet.checks.core.guard import Bug, attempt, one_line

Returned = TypeVar("Returned")

CODE_SUFFIXES = (".py", ".so")
"""A check may write other files of its distribution, such as a cache: they are no change of its code."""

MOST_FILES = 10_000
"""Limit of files that are looked at for a change; a package of checks has a few."""


class Work(Enum):
    """What code of a site does in our process; the value completes "while it"."""

    IMPORT = "was imported"
    JUDGE = "judged"


class SiteCode(NamedTuple):
    """A module of a site that is imported (*name* is its entry point), or a check of it that judges."""

    work: Work
    name: str
    module: str
    distribution: Distribution | None = None

    @property
    def key(self) -> tuple[Work, str, str]:
        """Return what tells it from other code, with every letter printable."""
        return self.work, one_line(self.name), one_line(self.module)

    @property
    def file(self) -> str:
        """Return the file of the module, which is not imported for that; empty where it cannot be found."""
        found = attempt(lambda: tuple(_files(self.module)))
        return "" if isinstance(found, Bug) or not found else found[-1]

    @property
    def version(self) -> str:
        """Return sixteen hexadecimal digits that change when a file of the module or its distribution does."""
        lines = attempt(lambda: "\n".join(self._lines()))
        return sha256(str(lines).encode("utf-8", "backslashreplace")).hex()[:16]

    def _lines(self) -> Iterator[str]:
        distribution = self.distribution
        found = set(_files(self.module))
        if distribution is not None:
            yield distribution.version
            listed = islice(distribution.files or (), MOST_FILES)
            found |= {str(distribution.locate_file(path)) for path in listed if path.suffix in CODE_SUFFIXES}
        for path in sorted(found):
            try:
                status = os.stat(path)  # noqa: PTH116 (text that is no path of this system)
            except (OSError, ValueError):
                continue
            yield f"{path} {status.st_size} {status.st_mtime_ns}"


class Watch:
    """Watches nothing. A watch never raises: it stands between a judgement and the code of a site."""

    def refusal(self, code: SiteCode) -> str:
        """Return why *code* must not run, or an empty string."""
        return ""

    def over(self, code: SiteCode) -> AbstractContextManager[None]:
        """Return a context in which *code* runs."""
        return nullcontext()

    @property
    def closer(self) -> str:
        """Return which code closed descriptors that are not its own; empty where none is known."""
        return ""


UNWATCHED = Watch()

During = Callable[[], AbstractContextManager[None]]


def in_one_process(run: Callable[[], Returned]) -> Returned:
    """Return the result of *run*, code of a site, in the process that called it.

    A child that the code forked, and in which it returns or raises, would go on as a second agent, fork again in the
    next round, and so on: it is ended. Functions that the code set for a debugger or profiler are taken off here, by
    calls that run no Python: they would be called for each line of ours, and may raise there.
    """
    process, trace, profile = os.getpid(), sys.gettrace(), sys.getprofile()
    trace_of_threads, profile_of_threads = threading.gettrace(), threading.getprofile()
    try:
        return run()
    finally:
        try:
            sys.setprofile(profile)
        finally:
            if sys.gettrace() is not trace:
                sys.settrace(trace)
            if os.getpid() != process:
                os._exit(1)
        threading.settrace(trace_of_threads)
        threading.setprofile(profile_of_threads)


def line_of(error: BaseException, module: str) -> TracebackType | None:
    """Return the traceback of *error* cut to the innermost line of *module*; to its innermost line where none is."""
    lines = list(_tracebacks(error))
    own = [line for line in lines if line.tb_frame.f_globals.get("__name__") == module]
    if not lines:
        return None
    last = (own or lines)[-1]
    return TracebackType(None, last.tb_frame, last.tb_lasti, last.tb_lineno)


def _tracebacks(error: BaseException) -> Iterator[TracebackType]:
    line = error.__traceback__
    while line is not None:
        yield line
        line = line.tb_next


def _files(module: str) -> Iterator[str]:
    """Yield the files that an import of *module* runs, those of the packages around it first."""
    places: Iterable[str] | None = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}".lstrip(".")
        found = (attempt(partial(finder.find_spec, name, places)) for finder in sys.meta_path)  # type: ignore[arg-type]
        spec = next((entry for entry in found if entry is not None and not isinstance(entry, Bug)), None)
        if spec is None:
            return
        if spec.origin is not None:
            yield spec.origin
        places = spec.submodule_search_locations
