"""A SLURM of a few nodes that a test moves by hand: what is written is applied, and any call can be made to fail."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from nodevet.exporters.slurm import SlurmError
from nodevet.exporters.slurm_rules import NodeState, Why

__all__ = ["MemorySlurm"]


class MemorySlurm:
    """Nodes ``n1`` to ``nN``, idle at first. ``fail`` names calls that raise, ``before`` runs ahead of each call."""

    def __init__(self, size: int = 3) -> None:
        """Begin with *size* idle nodes."""
        self.nodes = {f"n{n}": NodeState(f"n{n}", frozenset({"IDLE"})) for n in range(1, size + 1)}
        self.calls: list[str] = []
        self.writes: list[str] = []
        self.fail: dict[str, Why] = {}
        self.before: Callable[[str], None] = lambda _call: None

    def read(self, name: str) -> NodeState:
        """Return the node."""
        self._called("read")
        return self.nodes[name]

    def read_all(self) -> tuple[NodeState, ...]:
        """Return every node."""
        self._called("read_all")
        return tuple(self.nodes.values())

    def drain(self, name: str, reason: str) -> None:
        """Drain it as ours."""
        self._called("drain")
        self.writes.append(reason)
        self.set(name, "IDLE", "DRAIN", reason=reason)

    def update(self, name: str, reason: str) -> None:
        """Change the reason."""
        self._called("update")
        self.writes.append(reason)
        self.nodes[name] = msgspec.structs.replace(self.nodes[name], reason=reason)

    def set(self, name: str, *states: str, reason: str = "") -> None:
        """Put the node into *states*."""
        self.nodes[name] = NodeState(name, frozenset(states), reason, "root" if reason else None)

    def _called(self, call: str) -> None:
        self.calls.append(call)
        self.before(call)
        if call in self.fail:
            raise SlurmError(self.fail[call], f"scontrol {call}: made to fail")
