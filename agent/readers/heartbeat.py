"""A process that only answers heartbeats: evidence that the machine ran a process like a reader during a long call.

It starts only when a call has used half of its deadline. It has a session of its own, as readers have, so that the
scheduler gives it the same share. It answers each byte at once. If its answers are late, a reader's may be too.
"""

from __future__ import annotations

import os
import selectors
import sys
from collections.abc import Sequence

import msgspec

from nodevet.checks.core.clock import Clock
from nodevet.checks.system.process import PIPE, Process

LATE_SECONDS = 0.5
"""An answer that takes longer is late: an idle machine answers within milliseconds."""

START_SECONDS = 2.0
"""Time limit of the start of the process, which takes longer than an answer."""

BEATS = 3
"""The number of answers on time that prove that the machine ran processes on time."""

PAUSE_SECONDS = 0.2
UNWANTED_SECONDS = 5.0
"""Lifetime after the last request: a call that hangs is often the first of several."""

END_SECONDS = 0.2

ENDED = "the idle test process was killed: see journalctl -k"
NEVER_BEGAN = (
    "the idle test process could not start: see the log of the agent; Python's own library may be "
    "missing while the system is upgraded"
)

ECHO = (sys.executable, "-I", "-S", "-c", "import os\nwhile data := os.read(0, 64):\n    os.write(1, data)")


class Beat(msgspec.Struct, frozen=True):
    """One heartbeat: its time, and the seconds until its answer."""

    asked: float
    seconds: float


class Heartbeat:
    """Sends heartbeats to the process while it is needed. All times are those of *clock*."""

    def __init__(self, clock: Clock, selector: selectors.BaseSelector, argv: Sequence[str] = ECHO) -> None:
        """Start nothing yet."""
        self._clock = clock
        self._selector = selector
        self._argv = tuple(argv)
        self._process: Process | None = None
        self._wanted = 0.0
        self._started = False
        self._asked: float | None = None
        self._next = 0.0
        self._beats: list[Beat] = []
        self.failure = ""
        """Why it could not be started or reached; empty while it works."""

    @property
    def next_deadline(self) -> float | None:
        """Return when ``tick`` must be called next; None while nothing runs."""
        if self._process is None:
            return None
        unwanted = self._wanted + UNWANTED_SECONDS
        return min(unwanted, self._next) if self._asked is None else unwanted

    @property
    def pid(self) -> int | None:
        """Return the process id, or None while none runs."""
        return self._process.pid if self._process is not None else None

    @property
    def waits(self) -> bool:
        """Return whether an answer is outstanding."""
        return self._process is not None and self._asked is not None and not self.failure

    def want(self, *, anew: bool = False) -> None:
        """Keep the process running for a while from now on; *anew* for another call: earlier failures are forgotten."""
        if anew and self.failure:
            self.stop()
        self._wanted = self._clock.monotonic()
        if self._process is None:
            self._begin()

    def tick(self) -> None:
        """Send a heartbeat, or end a process that is no longer needed."""
        now = self._clock.monotonic()
        if self._process is None:
            return
        if now >= self._wanted + UNWANTED_SECONDS:
            self.stop()
        elif self._asked is None and now >= self._next:
            self._ask(now)

    def kept_time(self, since: float) -> bool | None:
        """Return whether all answers since *since* were on time; None while there are too few."""
        if self._process is None or self.failure:
            return False
        now = self._clock.monotonic()
        if self._asked is not None and now - self._asked > (LATE_SECONDS if self._started else START_SECONDS):
            return False
        beats = [beat for beat in self._beats if beat.asked >= since]
        if any(beat.seconds > LATE_SECONDS for beat in beats):
            return False
        return True if len(beats) >= BEATS else None

    def worst(self, since: float) -> float:
        """Return the delay in seconds of the slowest answer since *since*, an outstanding one included."""
        out = [] if self._asked is None else [self._clock.monotonic() - self._asked]
        return max((*out, *(beat.seconds for beat in self._beats if beat.asked >= since)), default=0.0)

    def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        self._asked, self._beats, self._started, self.failure = None, [], False, ""
        if process is None:
            return
        if process.stdout in self._selector.get_map():
            self._selector.unregister(process.stdout)
        process.end(0.0, END_SECONDS)

    def _begin(self) -> None:
        try:
            self._process = Process(self._argv, stdin=PIPE, stdout=PIPE)
        except OSError as error:
            self.failure = f"the idle test process could not be started ({error})"
            return
        self._selector.register(self._process.stdout, selectors.EVENT_READ, self._answered)
        self._ask(self._clock.monotonic())

    def _ask(self, now: float) -> None:
        assert self._process is not None
        try:
            self._process.stdin.write(b".")
        except OSError:
            self._note_end()
        self._asked = now

    def _answered(self, _mask: int) -> None:
        if self._process is None:
            return
        now = self._clock.monotonic()
        if not os.read(self._process.stdout.fileno(), 64):
            self._note_end()
            self._selector.unregister(self._process.stdout)
            return
        if self._asked is not None and self._started:
            self._beats = [*self._beats[-99:], Beat(self._asked, now - self._asked)]
        self._started = True
        self._asked, self._next = None, now + PAUSE_SECONDS

    def _note_end(self) -> None:
        self.failure = ENDED if self._started else NEVER_BEGAN
