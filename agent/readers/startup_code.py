"""Code that Python runs in every program at its start: ``.pth`` files and ``sitecustomize`` among its packages.

Profilers and tracers of a site load native code in this way, as others do by ld.so.preload: a crash in a driver call
may then be theirs (https://docs.python.org/3/library/site.html).
"""

from __future__ import annotations

import site
import sysconfig
from collections.abc import Iterable
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path

import msgspec

from nodevet.checks.reference.tables import load_table
from nodevet.checks.system.files import text_of

CUSTOM = "sitecustomize.py"

RUN = ("import ", "import\t")
"""How a line begins that is run; any other one is a folder."""


class StartupFile(msgspec.Struct, frozen=True):
    """A row of reference/startup_files.csv: the name of a file whose code is known to load nothing native."""

    pattern: str
    source: str


class StartupLine(msgspec.Struct, frozen=True):
    """A row of reference/startup_lines.csv: a line of a ``sitecustomize`` that loads nothing native."""

    line: str
    source: str


def startup_code(folders: Iterable[str] | None = None) -> str:
    """Return the first file in *folders* that runs unknown code in every Python; empty if there is none.

    By default the folders are those of this interpreter, which is that of the readers: of its packages, and for
    ``sitecustomize`` also of its own library. Readers run isolated, so the folder of a user is not among them.
    """
    chosen = (*site.getsitepackages(), sysconfig.get_path("stdlib")) if folders is None else folders
    for folder in chosen:
        custom = Path(folder) / CUSTOM
        if any(line not in _known_lines() for line in _code_of(text_of(custom))):
            return str(custom)
        for path in sorted(Path(folder).glob("*.pth")):
            is_known = any(fnmatch(path.name, row.pattern) for row in _known())
            if not is_known and any(line.startswith(RUN) for line in text_of(path).splitlines()):
                return str(path)
    return ""


def _code_of(text: str) -> list[str]:
    """Return the lines of *text* that are neither empty nor a comment."""
    return [line for each in text.splitlines() if (line := each.strip()) and not line.startswith("#")]


@lru_cache(maxsize=1)
def _known_lines() -> frozenset[str]:
    return frozenset(row.line for row in load_table("startup_lines.csv", StartupLine))


@lru_cache(maxsize=1)
def _known() -> tuple[StartupFile, ...]:
    return load_table("startup_files.csv", StartupFile)
