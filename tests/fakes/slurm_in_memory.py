"""A SLURM of a few nodes that a test moves by hand: what is written is applied, and any call can be made to fail."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from nodevet.exporters.slurm.rules import NodeState, Why
from nodevet.exporters.slurm.scontrol import SlurmError

__all__ = ["MemorySlurm"]


class MemorySlurm:
    """Nodes ``n1`` to ``nN``, idle at first. ``fail`` names calls that raise, ``before`` runs ahead of each call.

    ``slurmctld`` is when its controller was started, ``deaf`` names writes that it accepts and forgets.
    """

    def __init__(self, size: int = 3) -> None:
        """Begin with *size* idle nodes."""
        idle = NodeState("", frozenset({"IDLE"}), partitions=("main",), slurmd_started="2026-11-20T08:00:00")
        self.nodes = {f"n{n}": msgspec.structs.replace(idle, name=f"n{n}") for n in range(1, size + 1)}
        self.slurmctld = "2026-11-20T07:00:00"
        self.now = 0.0
        self.deaf: frozenset[str] = frozenset()
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

    def size(self) -> int:
        """Return how many nodes there are."""
        self._called("size")
        return len(self.nodes)

    def started(self) -> str:
        """Return when slurmctld was started."""
        self._called("started")
        return self.slurmctld

    def drain(self, name: str, reason: str, field: str = "", text: str = "") -> None:
        """Drain it as ours, and write *text* into its *field*."""
        self._called("drain")
        self.writes.append(reason)
        if "drain" not in self.deaf:
            self.set(name, "IDLE", "DRAIN", reason=reason)
            self.change(name, **dict.fromkeys(field.lower().split(), text))

    def update(self, name: str, reason: str) -> None:
        """Change the reason, which is signed and dated anew."""
        self._called("update")
        self.writes.append(reason)
        self.change(name, reason=reason, reason_user="root", reason_seconds=self.now)

    def mark(self, name: str, field: str, text: str) -> None:
        """Write a mark."""
        self._called("mark")
        if "mark" not in self.deaf:
            self.change(name, **dict.fromkeys(field.lower().split(), text))

    def set(self, name: str, *states: str, reason: str = "", user: str = "root") -> None:
        """Put the node into *states*, as *user* does."""
        signed = {"reason_user": user, "reason_seconds": self.now} if reason else {}
        bare: dict[str, object] = {"reason_user": None, "reason_seconds": None}
        self.change(name, states=frozenset(states), reason=reason, **{**bare, **signed})

    def change(self, name: str, **changes: object) -> None:
        """Change what is shown of the node."""
        self.nodes[name] = msgspec.structs.replace(self.nodes[name], **changes)

    def _called(self, call: str) -> None:
        self.calls.append(call)
        self.before(call)
        if call in self.fail:
            raise SlurmError(self.fail[call], f"scontrol {call}: made to fail")
