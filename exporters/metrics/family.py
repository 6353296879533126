"""A metric as plain data, built from a Snapshot by the modules beside this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from nodevet.checks.core.guard import Guard

PREFIX = "nodevet_"

Value = float | int | bool
LabelValues = tuple[str, ...]


class Family(msgspec.Struct):
    """All series of one metric: name without ``_total``, kind ``gauge | counter``, help, value by values of labels."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    samples: dict[LabelValues, Value]


Made = TypeVar("Made")

Maker = tuple[str, Callable[[], Iterable[Family]]]
"""A function that builds metric families, with the name under which its failure is reported."""


def gauge(name: str, description: str, labels: tuple[str, ...], samples: Mapping[LabelValues, Value | None]) -> Family:
    """Return a gauge with our prefix; samples that are None were not measured and are left out."""
    return Family(PREFIX + name, "gauge", description, labels, _measured(samples))


def counter(
    name: str, description: str, labels: tuple[str, ...], samples: Mapping[LabelValues, Value | None]
) -> Family:
    """Return a counter with our prefix; the page adds ``_total``."""
    return Family(PREFIX + name, "counter", description, labels, _measured(samples))


def kept(guard: Guard | None, name: str, work: Callable[[], Made], otherwise: Made) -> Made:
    """Return the result of *work*; where it raises, *guard* reports *name*, and *otherwise* is returned.

    Without a guard whatever it raises is raised.
    """
    return guard.run(name, work, lambda: otherwise) if guard else work()


def _measured(samples: Mapping[LabelValues, Value | None]) -> dict[LabelValues, Value]:
    return {labels: value for labels, value in samples.items() if value is not None}
