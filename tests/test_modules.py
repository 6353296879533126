"""The modules of a package by the names of its files."""

from __future__ import annotations

import pkgutil
from pathlib import Path

import nodevet.checks.health
from nodevet.checks.core.modules import modules_in


def test_modules_are_those_that_python_finds(tmp_path: Path) -> None:
    """Files of an editor or of a package manager beside them are none."""
    for name in ("b.py", "a.py", "__init__.py", "c.pyc", "notes.txt", "a.cpython-311.pyc", "old.copy.py", "x-y.py"):
        (tmp_path / name).touch()
    assert modules_in([str(tmp_path)]) == ("a", "b", "c")
    assert [each.name for each in pkgutil.iter_modules([str(tmp_path)]) if each.name.isidentifier()] == ["a", "b", "c"]
    own = list(nodevet.checks.health.__path__)
    assert modules_in(own) == tuple(sorted(each.name for each in pkgutil.iter_modules(own)))
