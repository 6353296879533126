"""What the writer to a scheduler says of itself. It stands below the model, whose snapshots carry it."""

from __future__ import annotations

import msgspec


class Permit(msgspec.Struct, frozen=True):
    """Whether this node may be taken from its users: ``held``, and in words why, or why not.

    Where the scheduler gave it, it stands for its ``node`` alone, by the scheduler's name; else for the whole machine.
    """

    held: bool = False
    why: str = "no permit was asked for"
    node: str = ""


class WriterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the writer to SLURM is doing: ``writer`` is what it may do, ``node`` what SLURM calls this node.

    ``states`` are the words that SLURM said last, ``partitions`` those that the node is in, ``drained_by`` whose
    reason stood there (``nodevet``, ``other``, or empty), ``closed`` whether it shows that nodevet closed the node,
    by its reason or by a mark beside a closed gate, ``wanted`` the reason of a drain that is due and not written,
    ``doing`` the last pass in words, ``trouble`` what went wrong with SLURM. ``considered`` are the faults of the
    last pass, as ``modes.named`` calls them; ``asking``: the permit is being asked for, and the answer comes within
    seconds. ``unanswered``: it was asked for, and SLURM did not answer. ``returned`` says that the node came back
    into service by no person, and what to type where it was one. ``writes`` are counted by kind, ``skipped`` by why
    a drain that was due was not written.
    """

    writer: str
    node: str
    states: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    drained_by: str = ""
    closed: bool = False
    wanted: str = ""
    considered: tuple[str, ...] = ()
    doing: str = ""
    trouble: str = ""
    last_read_seconds: float | None = None
    limit_reached: bool = False
    asking: bool = False
    unanswered: bool = False
    permit: Permit = Permit()
    returned: str = ""
    acknowledged: int = 0
    writes: dict[str, int] = {}
    skipped: dict[str, int] = {}

    @property
    def drained(self) -> bool:
        """Return whether SLURM showed the node drained when it was asked last."""
        return "DRAIN" in self.states
