"""When to judge: at once on news, once per round on readings, and when readings grow old."""

from __future__ import annotations

from nodevet.checks.core.clock import Clock

SETTLE_SECONDS = 0.25
"""How long a round may still be coming in before what is there is judged."""

FIRST_ROUND_SECONDS = 5.0
"""How long the first judgement, also after a stand-still of the agent, waits for every reader; one that hangs must not
hide the others."""

LONGEST_START_SECONDS = 60.0
"""A reader that never comes up does not keep the agent from being ready; it is told like any other fault."""


class Pace:
    """Knows when the next judgement is due."""

    def __init__(self, clock: Clock, interval_seconds: float) -> None:
        """Begin now; without news it is judged every *interval_seconds*."""
        self.ready = False
        """Whether the first round has come in, or is not waited for any longer."""
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._began = clock.monotonic()
        self._judged = 0.0
        self._news_since: float | None = None
        self._held_until: float | None = None

    @property
    def next_deadline(self) -> float:
        """Return when to judge next, in monotonic seconds."""
        # Time itself is evidence: a reading grows old although nothing comes in.
        since = self._judged + self._interval_seconds
        if self._held_until is not None:
            since = max(since, self._held_until)
        if self._news_since is not None:
            since = min(since, self._news_since)
        due = since + SETTLE_SECONDS
        # Half a round would call everything that is still to come missing.
        return due if self.ready else max(due, self._began + FIRST_ROUND_SECONDS)

    @property
    def due(self) -> bool:
        """Return whether it is time to judge."""
        return self._clock.monotonic() >= self.next_deadline

    def hurry(self) -> None:
        """Have it judged at once."""
        self._news_since = self._clock.monotonic() - SETTLE_SECONDS

    def readings_came(self, *, settled: bool) -> None:
        """Have it judged soon: at once where the round has *settled*, else when that may be expected."""
        if settled:
            self.hurry()
        elif self._news_since is None:
            self._news_since = self._clock.monotonic()

    def look(self, *, settled: bool) -> None:
        """Become ready, once, when every reader has *settled* or may be waited for no longer."""
        now = self._clock.monotonic()
        late_seconds = now - self._judged - self._interval_seconds
        if self.ready and self._held_until is None and late_seconds > self._interval_seconds:
            # The agent stood still, as in a virtual machine that was paused: what it read is old for no other reason.
            self._held_until = now + FIRST_ROUND_SECONDS
        patient = now < self._began + LONGEST_START_SECONDS
        if not self.ready and (settled or not patient):
            self.ready = True
            self.hurry()

    def judged(self) -> None:
        """Note that it was judged just now."""
        self._news_since = self._held_until = None
        self._judged = self._clock.monotonic()
