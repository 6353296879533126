"""When an agent may ask SLURM: what begins, ends or grows does so on a whole cluster at once."""

from __future__ import annotations

from collections.abc import Callable

FIRST_PER_SECOND = 25.0
"""How many nodes of a cluster begin to ask within a second at most, on average, where all fail at the same moment."""

AGAIN_PER_SECOND = 3.0
"""How many ask again within a second where all were refused."""

UNKNOWN_SIZE_SECONDS = 2.0
"""Over how long the first look is spread where it is not known yet how many nodes there are."""

AT_ONCE = 50
"""So many closed nodes may look at the same moment: with up to three calls each that is no flood."""

WORTH_WAITING_SECONDS = 4.0
"""A job may wait at the gate for a permit that is asked for within so long."""


def first_looks_seconds(nodes: int) -> float:
    """Return over how long the looks of so many *nodes* are spread."""
    return nodes / FIRST_PER_SECOND


class Turn:
    """The turn of one agent among those of a cluster."""

    def __init__(self, *, random: Callable[[], float], monotonic: Callable[[], float], poll_seconds: float) -> None:
        """Begin with a turn to be waited for; *random* gives numbers from 0 to 1."""
        self._poll_seconds = poll_seconds
        self._random = random
        self._monotonic = monotonic
        self._met: frozenset[str] | None = None
        self._begins_at, self._is_awaited = 0.0, False
        self._looks_at: float | None = None

    @property
    def left(self) -> float:
        """Return after how many seconds the turn comes."""
        return max(self._begins_at - self._monotonic(), 0.0)

    def wait(self, met: frozenset[str], nodes: int, *, closed: bool = False) -> float:
        """Return how long to wait where the faults *met* are those of now.

        What changes while a turn is awaited does not have it lost. A node that is *closed* waits only where something
        changed, and no longer than until its next look, for that is not at one moment on all nodes.
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
        """Return after how long to look where a gate closed without a permit of the cluster: all may have, together."""
        if 0 < nodes <= AT_ONCE:
            return 0.0
        return self._random() * min(first_looks_seconds(nodes) or UNKNOWN_SIZE_SECONDS, self._poll_seconds)

    def looks_in(self, seconds: float) -> None:
        """Take in when the next look comes that nothing hurries."""
        self._looks_at = self._monotonic() + seconds

    def sized(self, nodes: int) -> float | None:
        """Return how long to wait now that it is known how many *nodes* there are; None where that is no longer."""
        spread = first_looks_seconds(nodes)
        if spread <= UNKNOWN_SIZE_SECONDS:
            return None
        # All of them may have started at this moment.
        self._begins_at = self._monotonic() + self._random() * spread
        return self.left

    def keep(self) -> None:
        """Go on with what was begun, whatever changes until the next look: it holds up other nodes, and a gate."""
        self._is_awaited = True

    def again(self, nodes: int, least: float, *, most: float = 0.0) -> float:
        """Return after how long to ask again, spread so that a whole cluster asks a few times a second.

        Where *most* is above zero, a write may take effect for so long; then it is at most a look later than that.
        """
        seconds = max(least, nodes / AGAIN_PER_SECOND) * (1.0 + self._random())
        return min(seconds, most + least * self._random()) if most > 0 else seconds
