"""One pass of the writer to SLURM: read the node, decide by the rules, write, and read again.

It holds what must outlive the agent and counts what it did; it knows neither threads nor time but the wall clock,
by which nodes that fail together take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from nodevet.agent.settings import SlurmSettings
from nodevet.checks.model import Episode, Snapshot
from nodevet.checks.modes import draining, named
from nodevet.checks.scheduler import WriterStatus
from nodevet.exporters.slurm import SlurmError
from nodevet.exporters.slurm_rules import (
    Decision,
    Guard,
    Known,
    Memory,
    NodeState,
    OutputError,
    Step,
    Why,
    decide,
    guard,
    has_turn,
    is_ours,
    seconds_to_turn,
)

__all__ = ["Acknowledged", "Pass", "Slurm", "Writer"]

SOON_SECONDS = 1.0
"""Until the next look at a node that changed while it was about to be drained."""

EARLY_SECONDS = 0.05
"""The least that is waited for a turn."""

PROLOG_ERROR = "Prolog error"
"""SLURM's own reason for a node on which a prolog failed; it is not ours to replace."""

BY_A_PERSON = "resumed in SLURM by a person"


class Slurm(Protocol):
    """What the writer needs of SLURM; each call raises SlurmError."""

    def read(self, name: str) -> NodeState:
        """Return node *name*."""
        ...

    def read_all(self) -> tuple[NodeState, ...]:
        """Return every node."""
        ...

    def drain(self, name: str, reason: str) -> None:
        """Drain node *name*."""
        ...

    def update(self, name: str, reason: str) -> None:
        """Give a drained node another reason."""
        ...


class Acknowledged(msgspec.Struct, frozen=True):
    """A fault that a person resumed the node with, and what to note at it."""

    known: Known
    note: str


class Pass(msgspec.Struct, frozen=True):
    """What one pass gave: how the writer is doing, what was acknowledged, and when to look again."""

    status: WriterStatus
    memory: Memory
    acknowledged: tuple[Acknowledged, ...]
    again_seconds: float


class Writer:
    """Drains one node for hard faults, by the rules. Used by one thread."""

    def __init__(
        self, slurm: Slurm, settings: SlurmSettings, node: str, *, wall_seconds: Callable[[], float], memory: Memory
    ) -> None:
        """Write for *node*, as SLURM calls it, going on with *memory*."""
        self._slurm = slurm
        self._settings = settings
        self._wall_seconds = wall_seconds
        self._memory = memory
        self._note = BY_A_PERSON
        self._began = 0.0
        self._gate_closed = False
        self.status = WriterStatus(
            writer=settings.writer,
            node=node,
            writes={Step.DRAIN.value: 0, Step.UPDATE.value: 0},
            skipped={why.value: 0 for why in Why},
        )

    def due(self, snapshot: Snapshot) -> tuple[Episode, ...]:
        """Return the faults of *snapshot* to drain for; none before the first round is complete."""
        return draining(snapshot) if snapshot.agent.ready and not snapshot.agent.stopping else ()

    def step(self, snapshot: Snapshot, *, gate_closed: bool = False) -> Pass:
        """Make one pass for *snapshot*.

        Where the *gate_closed* on a job SLURM drains this node in any case: then there is no turn to wait for and no
        limit to keep, only a reason that would be lost.
        """
        faults = self.due(snapshot)
        self._gate_closed = gate_closed
        status = self.status
        self.status = msgspec.structs.replace(
            status, wanted="", doing="", trouble="", limit_reached=False, considered=named(faults)
        )
        again = self._settings.poll_seconds
        if faults or self._memory != Memory() or status.last_read_seconds is None:
            try:
                again = self._look(faults)
            except SlurmError as error:
                self._say(f"could not be asked or told: {error}", trouble=str(error))
                if faults:
                    self._skip(error.why)
        acknowledged = self._acknowledged(faults) if self._settings.writer == "drain" else ()
        return Pass(self.status, self._memory, acknowledged, again)

    def _look(self, faults: tuple[Episode, ...]) -> float:
        """Read the node and do what follows; return when to look again."""
        self._began = self._wall_seconds()
        node = self._read()
        before = self._memory.drained
        decision = decide(faults, node, self._memory, self._settings.reason_prefix)
        self._memory = decision.memory
        match decision.step:
            case Step.ACKNOWLEDGE:
                ours = is_ours(before or "", self._settings.reason_prefix)
                self._note = f"{BY_A_PERSON}, drained before with: {before}" if ours else BY_A_PERSON
                follows = "are" if self._settings.writer == "drain" else "would be"
                self._say(
                    f"a person resumed the node: the faults known at that moment {follows} acknowledged",
                    acknowledged=self.status.acknowledged + 1,
                )
                return 0.0
            case Step.DRAIN | Step.UPDATE if self._settings.writer == "drain":
                return self._write(faults, decision)
            case Step.DRAIN | Step.UPDATE:
                self._say(f"would {decision.step.value} with: {decision.reason}", wanted=decision.reason)
            case Step.NOTHING if decision.why is not None:
                self._skip(decision.why)
                if node.reason == PROLOG_ERROR:
                    self._say("does not drain: SLURM did, after a prolog failed; gate.log says whether it was ours")
        return self._settings.poll_seconds

    def _write(self, faults: tuple[Episode, ...], decision: Decision) -> float:
        """Write what *decision* says, unless too many nodes are drained, or it is not our turn, or the node changed."""
        name, reason = self.status.node, decision.reason
        self._say(f"is about to {decision.step.value} with: {reason}", wanted=reason)
        found = self._guard() if decision.step is Step.DRAIN and not self._gate_closed else None
        wait = 0.0 if found is None else seconds_to_turn(self._wall_seconds(), found)
        if found is not None and found.permits and wait:
            # What was read before is read again then, so it may be begun a little earlier.
            return max(wait - (self._wall_seconds() - self._began), EARLY_SECONDS)
        if found is not None and found.permits and not found.permits_all:
            found = self._guard()  # what the nodes before this one wrote is there by now
        if found is not None and not found.permits:
            return self._refuse(found)
        unchanged = decide(faults, self._read(), self._memory, self._settings.reason_prefix) == decision
        if not unchanged or (found is not None and not has_turn(self._wall_seconds(), found)):
            self._skip(Why.CHANGED)
            return SOON_SECONDS
        if decision.step is Step.DRAIN:
            self._slurm.drain(name, reason)
        else:
            self._slurm.update(name, reason)
        # SLURM accepted it: from here on a node that is not drained was resumed by a person, however fast they were.
        self._memory = msgspec.structs.replace(self._memory, drained=reason)
        writes = {**self.status.writes, decision.step.value: self.status.writes[decision.step.value] + 1}
        self._say(f"wrote: {reason}", writes=writes, wanted="")
        seen = self._read()
        if not seen.drained or seen.reason != reason:
            self._skip(Why.UNVERIFIED)
            return SOON_SECONDS
        return self._settings.poll_seconds

    def _guard(self) -> Guard:
        """Return how many nodes are drained and may be."""
        name, prefix = self.status.node, self._settings.reason_prefix
        try:
            return guard(self._slurm.read_all(), name, prefix, self._settings.maximum_drained_ratio)
        except OutputError as error:
            raise SlurmError(Why.READ_UNPARSABLE, f"scontrol show nodes: {error}") from error

    def _refuse(self, found: Guard) -> float:
        """Say that as many nodes are drained as may be; return when to look again."""
        self._skip(Why.LIMIT)
        self._say(
            f"does not drain: {found.drained} of {found.nodes} nodes are drained by nodevet, which is the limit:"
            " look for a common cause before raising slurm.maximum_drained_ratio",
            limit_reached=True,
        )
        return self._settings.poll_seconds

    def _read(self) -> NodeState:
        node = self._slurm.read(self.status.node)
        ours = is_ours(node.reason, self._settings.reason_prefix)
        self.status = msgspec.structs.replace(
            self.status,
            states=tuple(sorted(node.states)),
            drained_by=("nodevet" if ours else "other") if node.drained else "",
            last_read_seconds=self._wall_seconds(),
        )
        return node

    def _acknowledged(self, faults: tuple[Episode, ...]) -> tuple[Acknowledged, ...]:
        """Return what was resumed and still counts: told again until it does not."""
        return tuple(
            Acknowledged(known, self._note) for known in self._memory.resumed if any(map(known.covers, faults))
        )

    def _skip(self, why: Why) -> None:
        skipped = {**self.status.skipped, why.value: self.status.skipped[why.value] + 1}
        self._say(_WHY.get(why, self.status.doing), skipped=skipped)

    def _say(self, words: str, **changes: object) -> None:
        self.status = msgspec.structs.replace(self.status, doing=words, **changes)


_WHY = {
    Why.FOREIGN_REASON: "does not drain: the node is drained with a reason of somebody else",
    Why.EMPTY_REASON: "does not drain: the node is drained without a reason",
    Why.MAINTENANCE: "does not drain: the node is in maintenance",
    Why.POWER: "does not drain: the node changes its power state",
    Why.REBOOT: "does not drain: the node is about to reboot",
    Why.DOWN: "does not drain: the node is down",
    Why.UNKNOWN_STATE: "does not drain: the node is in a state that nodevet does not know",
    Why.CHANGED: "does not drain yet: the node changed at this moment, or its turn went by",
    Why.UNVERIFIED: "wrote, and somebody changed the node at once",
}
"""For people; the other reasons come with a message of their own."""
