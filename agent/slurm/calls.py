"""The writer's calls to SLURM, by name, so that a model of a large cluster can answer them in simulated time."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

import msgspec

from nodevet.exporters.slurm.rules import NodeState


class Call(msgspec.Struct, frozen=True):
    """A call: the name of a method of ``Slurm``, and its arguments."""

    name: str
    words: tuple[str, ...] = ()


Work = Generator[Call, Any, float]
"""Yields calls, receives their answers, and returns the time until the next reading (s)."""


class Slurm(Protocol):
    """The calls to SLURM that the writer needs; each raises SlurmError."""

    def read(self, name: str) -> NodeState:
        """Return node *name*."""
        ...

    def read_all(self) -> tuple[NodeState, ...]:
        """Return every node."""
        ...

    def size(self) -> int:
        """Return the approximate number of nodes."""
        ...

    def started(self) -> str:
        """Return the start time of slurmctld, as SLURM prints it."""
        ...

    def drain(self, name: str, reason: str, field: str = "", text: str = "") -> None:
        """Drain node *name* and write *text* into its *field*."""
        ...

    def update(self, name: str, reason: str) -> None:
        """Replace the reason of a drained node."""
        ...

    def mark(self, name: str, field: str, text: str) -> None:
        """Write *text* into *field* of node *name*; ``Comment Extra`` means both fields."""
        ...
