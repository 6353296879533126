"""A reader process of an earlier agent: an orphan that should exit by itself, but may be unable to.

An agent that is killed leaves its readers behind. They notice within seconds. The next agent kills one that hangs in a
driver. If an orphan cannot be killed, the agent starts no reader of its own beside it.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from nodevet.checks.core.clock import Clock
from nodevet.checks.core.model import Failure, FailureKind, ReaderState
from nodevet.checks.system.procfs import ChildRecord, describe, is_alive

from .calls_of_users import meaning_of_users
from .witness import ProcessStatus, Surroundings, disturbance

ORPHAN_SECONDS = 5.0
"""Time in seconds for the orphan to notice that its agent is gone."""

KILLED_SECONDS = 2.0
"""Time in seconds for a killed process to exit before it counts as stuck."""


class Orphan:
    """Waits for the process of *record* to exit."""

    def __init__(self, record: ChildRecord, clock: Clock, surroundings: Surroundings, patience_seconds: float) -> None:
        """Start to wait; *surroundings* shows whether the machine keeps the process from exiting.

        The driver is blamed if the process is inside a call *patience_seconds* after it was killed: before that, it may
        be working, as the first call after a boot takes long.
        """
        self._patience_seconds = patience_seconds
        self._surroundings = surroundings
        self.record = record
        self.gone = False
        self.state = ReaderState.STARTING
        self.detail = ""
        self.failure: Failure | None = None
        self._clock = clock
        self._since = clock.monotonic()
        self._killed = False
        self._seen: tuple[float, ProcessStatus | None] | None = None

    def tick(self, now: float) -> None:
        """Check whether it has exited; kill it if it does not exit by itself, and report if that has no effect."""
        if not is_alive(self.record, self._clock.instant().boot_id):
            self.gone = True
            return
        waited = now - self._since
        where = f"process {self.record.pid}, {describe(self.record.pid)}"
        if waited >= ORPHAN_SECONDS + KILLED_SECONDS:
            self.state = ReaderState.STUCK
            call = self.record.detail or "the collector of an earlier agent"
            self.detail = f"{call} cannot be terminated ({where}); no second collector is started"
            self.failure = Failure(FailureKind.STUCK, self.detail, of_driver=True)
            look = self._surroundings.look(self.record.pid)
            before, seen = self._seen or (now, look)
            self._seen = now, look
            cause = disturbance(look, look, 1.0) or disturbance(seen, look, now - before) or meaning_of_users(call)
            early = waited < ORPHAN_SECONDS + self._patience_seconds
            if cause:
                self._since = now - ORPHAN_SECONDS - KILLED_SECONDS
            if cause or early or not self.record.in_call:
                words = "it was killed and has not ended yet; check the load of the node"
                why = cause or (words if self.record.in_call else "it is in no known driver call")
                self.detail = f"{self.detail}: {why}"
                self.failure = Failure(FailureKind.READER, self.detail)
            return
        self.detail = f"waits for the collector of an earlier agent to end ({where})"
        if waited >= ORPHAN_SECONDS and not self._killed:
            self._killed = True
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.record.pid, signal.SIGKILL)
