"""The faults that a person knew when resuming a node in SLURM, and the test for the same fault. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nodevet.checks.core.model import Action, Episode, EpisodeState, Instant, Key, Outcome
from nodevet.checks.engine.acknowledgement import are_other_boards
from nodevet.checks.engine.damping import later
from nodevet.checks.engine.losses import GONE, is_driverless, is_loss, is_same_board

HELD_SECONDS = 3600.0
"""A resume covers returns of its faults for this time (s): a fault that comes and goes is the one that was known."""


class KnownFault(msgspec.Struct, frozen=True):
    """A fault at the time of a drain or resume: its episode, its count of occurrences, and its action.

    After a resume, returns that open before ``until`` are the same fault. ``measured`` is False where the check could
    not measure, so that no fault was known.
    """

    key: Key
    opened: Instant
    count: int
    action: Action = Action.REPLACE
    until: Instant | None = None
    serial: str | None = None
    measured: bool = True

    def covers(self, episode: Episode) -> bool:
        """Return whether *episode* is this fault, whatever its count, and its action is no harder."""
        knew = self.measured or episode.outcome is Outcome.UNMEASURED
        return knew and self.is_same(episode) and episode.finding.action.rank <= self.action.rank

    def is_same(self, episode: Episode) -> bool:
        """Return whether *episode* is this fault or a return of it."""
        returned = self.holds(episode.opened) and not are_other_boards(episode.serial, self.serial)
        if episode.key == self.key:
            return episode.opened == self.opened or returned
        return returned and self._is_same_loss(episode)

    def _is_same_loss(self, episode: Episode) -> bool:
        """Return whether *episode* reports the loss of the same board under another code.

        Other reports of the driver about that board count only if they opened before the resume: after it, the ledger
        itself knows whether the board answers.
        """
        if self.until is None or self.key.code not in GONE or not is_same_board(self.key, episode.key):
            return False
        resumed = later(self.until, -HELD_SECONDS)
        is_before = episode.opened.boottime_ns <= resumed.boottime_ns
        return episode.key.code in GONE or (is_before and is_loss(episode.key.code))

    def of(self, episode: Episode) -> KnownFault:
        """Return this fault under the key of *episode*, which is the same fault, perhaps with another code."""
        return msgspec.structs.replace(self, key=episode.key)

    def holds(self, moment: Instant) -> bool:
        """Return whether a return that opens at *moment* is covered by the resume."""
        end = self.until
        return end is not None and moment.boot_id == end.boot_id and moment.boottime_ns < end.boottime_ns

    def gives_way(self, episode: Episode) -> bool:
        """Return whether a person acknowledged this fault with a term after the resume: the later one counts."""
        said = episode.acknowledged
        if said is None or episode.until is None or self.until is None or not self.is_same(episode):
            return False
        resumed = later(self.until, -HELD_SECONDS)
        if said.boot_id == resumed.boot_id:
            return said.boottime_ns > resumed.boottime_ns
        return said.wall_seconds > resumed.wall_seconds


def as_known(faults: Iterable[Episode]) -> tuple[KnownFault, ...]:
    """Return *faults* as the faults that are known to a person who resumes the node."""
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
    """Return those of *faults*, all of which close the gate, that no resume covers.

    A driver that lists no board may report a loss that was resumed already. Only the ledger can relate the two, and it
    does not know of the resume while one of these losses closes the gate.
    """
    known, every = tuple(resumed), tuple(faults)
    covered = {fault.key for fault in every if any(one.covers(fault) for one in known)}
    is_told = not any(key.code in GONE for key in covered)
    return tuple(fault for fault in every if fault.key not in covered and (is_told or not is_driverless(fault.key)))


def _known_action(entry: Episode) -> Action:
    """Return the hardest known action of *entry*: its own, or that of its acknowledgement in force."""
    now = entry.finding.action
    if entry.state is not EpisodeState.ACKNOWLEDGED or entry.known is None:
        return now
    return max((now, entry.known[1]), key=lambda action: action.rank)
