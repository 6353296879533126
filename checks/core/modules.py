"""The modules of a package, by the names of its files: pkgutil imports inspect for that, which takes 0.8 MiB."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.machinery import BYTECODE_SUFFIXES, SOURCE_SUFFIXES
from pathlib import Path


def modules_in(folders: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the modules that are files in *folders*, sorted, without ``__init__``."""
    suffixes = (*SOURCE_SUFFIXES, *BYTECODE_SUFFIXES)
    files = (file for folder in folders for file in Path(folder).iterdir())
    found = {file.stem for file in files if file.suffix in suffixes and file.stem.isidentifier()}
    return tuple(sorted(found - {"__init__"}))
