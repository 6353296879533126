"""The state of the scheduler writer. It stands below the model, whose snapshots hold it."""

from __future__ import annotations

import msgspec


class Permit(msgspec.Struct, frozen=True):
    """The permit to take this node from its users: ``held``, and the reason.

    A permit from the scheduler holds for its ``node`` alone, by the scheduler's name; any other for the whole machine.
    """

    held: bool = False
    why: str = "no permit was asked for"
    node: str = ""


class WriterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the SLURM writer: ``writer`` is its mode, ``node`` the name of this node in SLURM.

    ``states`` are the states that SLURM returned last, ``partitions`` those of the node, ``drained_by`` the author of
    the reason there (``nodevet``, ``other``, or empty), ``closed`` whether SLURM shows that nodevet closed the node, by
    its reason or by a mark beside a closed gate, ``wanted`` the reason of a drain that is due and not written,
    ``doing`` describes the last pass, ``trouble`` the last problem with SLURM. ``considered`` are the faults of the
    last pass, as ``modes.named`` formats them; ``asking``: a request for the permit is open and is answered within
    seconds.
    ``unanswered``: SLURM did not answer that request. ``returned`` says that no person returned the node to service,
    and the command to type if a person did. ``writes`` counts writes by kind, ``skipped`` unwritten drains by reason.
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
        """Return whether SLURM returned the node as drained last time."""
        return "DRAIN" in self.states
