"""The measurements of a workload."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from .conditions import LARGEST_NUMBER, sound_conditions
from .sample import Instant

UNNAMED = "unnamed"
"""The workload of a result that names none."""


class ResultState(StrEnum):
    """The end of a workload. Only ``finished`` measured everything that it set out to."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    REFUSED = "refused"
    DIED = "died"


class Metric(msgspec.Struct, frozen=True):
    """One figure of a workload with its unit."""

    name: str
    value: float | int | None
    unit: str

    def __post_init__(self) -> None:
        """Leave out a value that is no finite number: it was not measured."""
        if self.value is not None and not -LARGEST_NUMBER <= self.value <= LARGEST_NUMBER:
            msgspec.structs.force_setattr(self, "value", None)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of a workload on its devices, with their conditions.

    Every Result can be judged, stored and shown: a load that sends nonsense beside a wrong result hides nothing.
    """

    workload: str
    devices: tuple[str, ...]
    state: ResultState
    started: Instant
    ended: Instant
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    seed: int | None = None
    pattern: str | None = None
    detail: str = ""
    conditions: dict[str, Any] = {}
    metrics: tuple[Metric, ...] = ()

    def __post_init__(self) -> None:
        """Leave out known conditions of another type and empty names of devices, and name an unnamed workload."""
        conditions = sound_conditions(self.conditions)
        if conditions is not self.conditions:
            msgspec.structs.force_setattr(self, "conditions", conditions)
        if "" in self.devices:
            msgspec.structs.force_setattr(self, "devices", tuple(filter(None, self.devices)))
        if not self.workload:
            msgspec.structs.force_setattr(self, "workload", UNNAMED)

    def metric(self, name: str) -> float | int | None:
        """Return the value of the metric *name*, or None where it was not measured."""
        return next((metric.value for metric in self.metrics if metric.name == name), None)
