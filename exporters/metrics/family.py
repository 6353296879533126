"""A metric family as plain data; the modules beside this one build it from a Snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from nodevet.checks.core.guard import Guard
from nodevet.checks.core.tables import read_table

PREFIX = "nodevet_"

Value = float | int | bool
LabelValues = tuple[str, ...]


class Family(msgspec.Struct):
    """One metric family: name without ``_total``, kind ``gauge | counter``, help, and values by label values."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    samples: dict[LabelValues, Value]


Made = TypeVar("Made")

Maker = tuple[str, Callable[[], Iterable[Family]]]
"""A function that builds metric families, with the name under which its failure is reported."""


class _Declared(msgspec.Struct, frozen=True):
    """A row of ``families.csv``: a metric that is no quantity."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


_DECLARED = {row.name: row for row in read_table(Path(__file__).with_name("families.csv"), _Declared)}


def family(name: str, samples: Mapping[LabelValues, Value | None], *, unit: str = "") -> Family:
    """Return the family *name* of ``families.csv``; *unit*, if it is given, is the end of its full name."""
    row = _DECLARED[name]
    return measured(f"{name}_{unit}" if unit else name, row.kind, row.help, row.labels, samples)


def measured(
    name: str, kind: str, description: str, labels: tuple[str, ...], samples: Mapping[LabelValues, Value | None]
) -> Family:
    """Return a family with our prefix; a sample of None was not measured and is left out."""
    known = {values: value for values, value in samples.items() if value is not None}
    return Family(PREFIX + name, kind, description, labels, known)


def kept(guard: Guard | None, name: str, work: Callable[[], Made], otherwise: Made) -> Made:
    """Return the result of *work*; if it raises, *guard* reports *name*, and *otherwise* is returned.

    Without a guard, the exception is raised.
    """
    return guard.run(name, work, lambda: otherwise) if guard else work()
