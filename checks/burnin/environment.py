"""The environment that a load child starts with: the site's, without what a table names. Imports no torch.

A load must measure the device with the defaults of its libraries. What was removed is stored with the result, because
the jobs of the site run with it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

import msgspec

from nodevet.checks.reference.tables import load_table

from .errors import RefusedError


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``load_environment.csv``: variables (a pattern), and whether a load keeps them.

    ``changes_arithmetic``: a product could be rounded by it, so that a load that has it all the same is refused.
    """

    variable: str
    kept: bool
    changes_arithmetic: bool
    why: str
    evidence: str
    source: str


def split(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the part of *environment* with which a load starts, and what was removed."""
    removed = {name: value for name, value in sorted(environment.items()) if _is_removed(name)}
    return {name: value for name, value in environment.items() if name not in removed}, removed


def relevant_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the set variables of the table, to be stored with the result of a load that has them."""
    return {name: value for name, value in sorted(environment.items()) if _row(name) is not None}


def forbidden_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the names of set variables that change the arithmetic of products."""
    return sorted(name for name in environment if (row := _row(name)) is not None and row.changes_arithmetic)


def require_clean_environment(environment: Mapping[str, str]) -> None:
    """Raise RefusedError naming the variables that change the arithmetic of products."""
    names = forbidden_variables(environment)
    if names:
        named = ", ".join(names)
        raise RefusedError(f"the environment changes the arithmetic of products; unset {named} and run again")


def _is_removed(name: str) -> bool:
    row = _row(name)
    return row is not None and not row.kept


def _row(name: str) -> Variable | None:
    rows: tuple[Variable, ...] = load_table("load_environment.csv", Variable)
    return next((row for row in rows if fnmatch.fnmatchcase(name, row.variable)), None)
