"""Code that Python runs in every program at its start: lines of ``.pth`` files in the folders of its packages.

Profilers and tracers of a site load native code in this way, as others do by ld.so.preload: a crash in a driver call
may then be theirs (https://docs.python.org/3/library/site.html).
"""

from __future__ import annotations

import site
from collections.abc import Iterable
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path

import msgspec

from nodevet.checks.reference.tables import load_table
from nodevet.checks.system.files import text_of

RUN = ("import ", "import\t")
"""How a line begins that is run; any other one is a folder."""


class StartupFile(msgspec.Struct, frozen=True):
    """A row of reference/startup_files.csv: the name of a file whose code is known to load nothing native."""

    pattern: str
    source: str


def startup_code(folders: Iterable[str] | None = None) -> str:
    """Return the first file in *folders* that runs unknown code in every Python; empty if there is none.

    By default the folders are those of this interpreter, which is that of the readers.
    """
    for folder in site.getsitepackages() if folders is None else folders:
        for path in sorted(Path(folder).glob("*.pth")):
            is_known = any(fnmatch(path.name, row.pattern) for row in _known())
            if not is_known and any(line.startswith(RUN) for line in text_of(path).splitlines()):
                return str(path)
    return ""


@lru_cache(maxsize=1)
def _known() -> tuple[StartupFile, ...]:
    return load_table("startup_files.csv", StartupFile)
