"""Faults of the drills, scenarios and boards that further checks find, too: each check's own test declares its own.

``tests/test_health_NAME.py`` declares them by code and verdict, under the names that the tests give their faults:
``ALSO_FOUND = {("fan.speed", State.DEGRADED): ("dgx-h100 overheat",)}``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from pathlib import Path

from nodevet.checks.core.model import State

__all__ = ["also_found", "declared", "with_also_found"]


@functools.cache
def declared() -> frozenset[tuple[str, str, State]]:
    """Return every declared fault with the code that is found in it and its verdict."""
    paths = sorted(Path(__file__).parents[1].glob("test_health_*.py"))
    tables = [getattr(importlib.import_module(path.stem), "ALSO_FOUND", {}) for path in paths]
    return frozenset(
        (fault, code, state) for table in tables for (code, state), faults in table.items() for fault in faults
    )


def also_found(fault: str) -> set[str]:
    """Return the codes that are declared for *fault*."""
    return {code for name, code, _ in declared() if name == fault}


def with_also_found(fault: str, state: State, codes: Iterable[str]) -> tuple[State, set[str]]:
    """Return the verdict and all codes of *fault*: its own *state* and *codes*, and the declared ones."""
    states = [state, *(state for name, _, state in declared() if name == fault)]
    return max(states, key=lambda entry: entry.rank), {*codes, *also_found(fault)}
