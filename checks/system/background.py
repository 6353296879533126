"""Work in a thread of its own, started within a time limit.

``threading.Thread.start`` waits for the first step of the new thread. Where that step fails for lack of memory, it
waits for ever and blocks its caller: a main loop would judge nothing any more and handle no signal.
"""

from __future__ import annotations

from _thread import allocate_lock, start_new_thread
from collections.abc import Callable

START_SECONDS = 2.0
"""Longest time to the first step of a thread, also on a loaded machine."""


class Background:
    """Does *work* once in a thread. The process ends without waiting for it."""

    def __init__(self, work: Callable[[], object]) -> None:
        """Prepare; nothing runs before ``start``."""
        self._work = work
        self._claim, self._begun, self._runs = allocate_lock(), allocate_lock(), allocate_lock()

    def start(self, seconds: float | None = None) -> None:
        """Start within *seconds*. Raises RuntimeError where no thread can be started, also for lack of memory."""
        patience = START_SECONDS if seconds is None else seconds
        self._begun.acquire()
        try:
            start_new_thread(self._run, ())
        except MemoryError as error:
            raise RuntimeError("no memory for a new thread") from error
        # A thread that starts after that finds its work claimed, and does nothing.
        if not self._begun.acquire(timeout=patience) and self._claim.acquire(blocking=False):
            raise RuntimeError("a new thread made no step: the machine has no memory left, or is overloaded")

    def is_alive(self) -> bool:
        """Return whether the work has begun and has not ended."""
        return self._runs.locked()

    def join(self, seconds: float) -> None:
        """Wait for the end of the work, for at most *seconds*."""
        if self._runs.acquire(timeout=seconds):
            self._runs.release()

    def _run(self) -> None:
        # No memory is allocated here before the lock is held, which is released whatever the work raises.
        if not self._claim.acquire(blocking=False):
            return
        self._runs.acquire()
        try:
            self._begun.release()
            self._work()
        finally:
            self._runs.release()
