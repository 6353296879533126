"""What the writer asks of SLURM: a call by its name, so that a model of a large cluster can answer it in its time."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

import msgspec

from nodevet.exporters.slurm.rules import NodeState


class Call(msgspec.Struct, frozen=True):
    """A call to be made: the name of a method of ``Slurm``, and its arguments."""

    name: str
    words: tuple[str, ...] = ()


Work = Generator[Call, Any, float]
"""Yields calls, takes their answers, and returns after how many seconds to look again."""


class Slurm(Protocol):
    """What the writer needs of SLURM; each call raises SlurmError."""

    def read(self, name: str) -> NodeState:
        """Return node *name*."""
        ...

    def read_all(self) -> tuple[NodeState, ...]:
        """Return every node."""
        ...

    def size(self) -> int:
        """Return about how many nodes there are."""
        ...

    def started(self) -> str:
        """Return when slurmctld was started."""
        ...

    def drain(self, name: str, reason: str, field: str = "", text: str = "") -> None:
        """Drain node *name* and write *text* into its *field*."""
        ...

    def update(self, name: str, reason: str) -> None:
        """Give a drained node another reason."""
        ...

    def mark(self, name: str, field: str, text: str) -> None:
        """Write *text* into *field* of node *name*; ``Comment Extra`` are both."""
        ...
