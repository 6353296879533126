"""Delays of an agent's queries to SLURM: a change of faults may occur on all nodes of a cluster at once."""

from __future__ import annotations

from collections.abc import Callable

FIRST_PER_SECOND = 25.0
"""Maximum mean rate of nodes that begin to query (1/s), if all nodes of a cluster fail at the same moment."""

AGAIN_PER_SECOND = 3.0
"""Rate of repeated requests (1/s), if all were refused."""

UNKNOWN_SIZE_SECONDS = 2.0
"""Spread (s) of the first readings while the number of nodes is unknown."""

AT_ONCE = 50
"""This many closed nodes may read at the same moment: with up to three calls each, the load is small."""

WORTH_WAITING_SECONDS = 4.0
"""A job may wait at the gate for a permit that is requested within this time (s)."""


def first_looks_seconds(nodes: int) -> float:
    """Return the time (s) over which the readings of *nodes* nodes are spread."""
    return nodes / FIRST_PER_SECOND


class Turn:
    """The delay of one agent's queries among the agents of a cluster."""

    def __init__(self, *, random: Callable[[], float], monotonic: Callable[[], float], poll_seconds: float) -> None:
        """Start without a delay; *random* returns numbers from 0 to 1."""
        self._poll_seconds = poll_seconds
        self._random = random
        self._monotonic = monotonic
        self._met: frozenset[str] | None = None
        self._begins_at, self._is_awaited = 0.0, False
        self._looks_at: float | None = None

    @property
    def left(self) -> float:
        """Return the rest of the delay (s)."""
        return max(self._begins_at - self._monotonic(), 0.0)

    def wait(self, met: frozenset[str], nodes: int, *, closed: bool = False) -> float:
        """Return the delay (s) of the query for the present faults, *met*.

        A change during a delay does not restart it. A *closed* node waits only after a change, and no longer than until
        its next regular reading, because these are not at the same moment on all nodes.
        """
        is_first, changed = self._met is None, met != self._met
        if (is_first or (changed and (met or closed))) and not self.left and not self._is_awaited:
            spread = first_looks_seconds(nodes) if nodes else UNKNOWN_SIZE_SECONDS
            self._begins_at = self._monotonic() + self._random() * spread
        left = self.left
        self._met, self._is_awaited = met, left > 0
        if not closed:
            return left
        return min(left, self._until_look()) if changed and not 0 < nodes <= AT_ONCE else 0.0

    def _until_look(self) -> float:
        if self._looks_at is None:
            self._looks_at = self._monotonic() + self._random() * self._poll_seconds
        return max(self._looks_at - self._monotonic(), 0.0)

    def behind_gate(self, nodes: int) -> float:
        """Return the delay (s) of a reading after a gate closed with a local permit: all gates may close at once."""
        if 0 < nodes <= AT_ONCE:
            return 0.0
        return self._random() * min(first_looks_seconds(nodes) or UNKNOWN_SIZE_SECONDS, self._poll_seconds)

    def looks_in(self, seconds: float) -> None:
        """Set the next regular reading to *seconds* from now."""
        self._looks_at = self._monotonic() + seconds

    def sized(self, nodes: int) -> float | None:
        """Return the delay (s) now that the number of *nodes* is known; None if it does not grow."""
        spread = first_looks_seconds(nodes)
        if spread <= UNKNOWN_SIZE_SECONDS:
            return None
        # All nodes may have started at this moment.
        self._begins_at = self._monotonic() + self._random() * spread
        return self.left

    def keep(self) -> None:
        """Continue a started request without a new delay, despite changes: it holds up other nodes, and a gate."""
        self._is_awaited = True

    def again(self, nodes: int, least: float, *, most: float = 0.0) -> float:
        """Return the time until the next request (s), spread so that a whole cluster sends a few a second.

        Where *most* is above zero, a write may take effect for that time (s); the request is at most *least* later.
        """
        seconds = max(least, nodes / AGAIN_PER_SECOND) * (1.0 + self._random())
        return min(seconds, most + least * self._random()) if most > 0 else seconds
