"""The measurements of a workload."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from .sample import Instant


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


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of a workload on its devices, with their conditions."""

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

    def metric(self, name: str) -> float | int | None:
        """Return the value of the metric *name*, or None where it was not measured."""
        return next((metric.value for metric in self.metrics if metric.name == name), None)
