"""What a person knew who resumes a node in SLURM: its faults of that moment, and what is the same fault. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nodevet.checks.core.model import Action, Episode, EpisodeState, Instant, Key, Outcome
from nodevet.checks.engine.acknowledgement import are_other_boards
from nodevet.checks.engine.damping import later
from nodevet.checks.engine.losses import GONE, is_driverless, is_loss, is_same_board

HELD_SECONDS = 3600.0
"""So long a resume covers returns of what it acknowledged: a fault that comes and goes is the one that was known."""


class KnownFault(msgspec.Struct, frozen=True):
    """A fault as far as it was known: its episode, how often it had occurred, and what was to be done about it.

    Once a person has resumed the node with it, its returns that open before ``until`` are the same fault. Where it was
    not ``measured`` no fault was known.
    """

    key: Key
    opened: Instant
    count: int
    action: Action = Action.REPLACE
    until: Instant | None = None
    serial: str | None = None
    measured: bool = True

    def covers(self, episode: Episode) -> bool:
        """Return whether *episode* is that fault, however often it occurred since, and asks for nothing harder."""
        knew = self.measured or episode.outcome is Outcome.UNMEASURED
        return knew and self.is_same(episode) and episode.finding.action.rank <= self.action.rank

    def is_same(self, episode: Episode) -> bool:
        """Return whether *episode* is that fault, or its return."""
        returned = self.holds(episode.opened) and not are_other_boards(episode.serial, self.serial)
        if episode.key == self.key:
            return episode.opened == self.opened or returned
        return returned and self._is_same_loss(episode)

    def _is_same_loss(self, episode: Episode) -> bool:
        """Return whether *episode* tells the loss of the same board under another code.

        Of what the driver says of that board only what it had said by the resume: later the ledger knows whether the
        board answers.
        """
        if self.until is None or self.key.code not in GONE or not is_same_board(self.key, episode.key):
            return False
        resumed = later(self.until, -HELD_SECONDS)
        is_before = episode.opened.boottime_ns <= resumed.boottime_ns
        return episode.key.code in GONE or (is_before and is_loss(episode.key.code))

    def of(self, episode: Episode) -> KnownFault:
        """Return this as what is known of *episode*, which is the same fault, perhaps under another code."""
        return msgspec.structs.replace(self, key=episode.key)

    def holds(self, moment: Instant) -> bool:
        """Return whether a return at *moment* is the same fault."""
        end = self.until
        return end is not None and moment.boot_id == end.boot_id and moment.boottime_ns < end.boottime_ns

    def gives_way(self, episode: Episode) -> bool:
        """Return whether a person acknowledged that fault for a term after the resume: then the later word counts."""
        said = episode.acknowledged
        if said is None or episode.until is None or self.until is None or not self.is_same(episode):
            return False
        resumed = later(self.until, -HELD_SECONDS)
        if said.boot_id == resumed.boot_id:
            return said.boottime_ns > resumed.boottime_ns
        return said.wall_seconds > resumed.wall_seconds


def as_known(faults: Iterable[Episode]) -> tuple[KnownFault, ...]:
    """Return *faults* as a person knows them who resumes the node."""
    return tuple(
        KnownFault(
            entry.key,
            entry.opened,
            entry.count,
            _known_action(entry),
            serial=entry.serial,
            measured=entry.outcome is not Outcome.UNMEASURED,
        )
        for entry in faults
    )


def not_resumed(faults: Iterable[Episode], resumed: Iterable[KnownFault]) -> tuple[Episode, ...]:
    """Return those of *faults*, which close the gate, that nobody has *resumed* the node with.

    Whether the loss of some boards is what a driver says that has none left only the ledger can tell, and it has not
    been told of the resume as long as one of these losses closes the gate.
    """
    known, every = tuple(resumed), tuple(faults)
    covered = {fault.key for fault in every if any(one.covers(fault) for one in known)}
    is_told = not any(key.code in GONE for key in covered)
    return tuple(fault for fault in every if fault.key not in covered and (is_told or not is_driverless(fault.key)))


def _known_action(entry: Episode) -> Action:
    """Return the hardest action that is known of *entry*: its own, or one that a word in force was about."""
    now = entry.finding.action
    if entry.state is not EpisodeState.ACKNOWLEDGED or entry.known is None:
        return now
    return max((now, entry.known[1]), key=lambda action: action.rank)
