"""Follows the kernel log: opens it, reopens it after a failure, and remembers the position."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from functools import partial

import msgspec

from nodevet.agent.services.protocol import Service
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.counts import count_of, records_lost
from nodevet.checks.core.model import Event
from nodevet.checks.engine.view import KernelLogState
from nodevet.checks.kernel_log.reader import Cursor, KernelLogError, KernelLogReader, recorded

from .kernel_backlog import JournalReader, Output, journal_output

POLL_SECONDS = 0.5
"""Poll interval of a log that a selector cannot wait for: half of the time allowed from event to metric."""

BEGIN_SECONDS = 0.25
"""Interval between two pieces of a long log until its end is reached: reading one piece takes about as long."""

LOOK_SECONDS = 10.0
"""Poll interval of a log that the selector waits for: only for safety."""

RETRY_SECONDS = 60.0
"""Interval between two tries to open a log that cannot be read; another file at its path is opened at once."""

PIECE_EVENTS = 1000
"""Limit of journal events per turn of the loop, which handles signals between two turns."""

Take = Callable[[list[Event], KernelLogState], None]
"""Receives events, and whether the log can be read."""


class KernelWatch(Service):
    """Reads new events when due; the selector calls *wake* when there are some."""

    name = "kernel_log"

    def __init__(
        self,
        path: str,
        clock: Clock,
        selector: selectors.BaseSelector,
        *,
        memory: bytes | None = None,
        log: Callable[[str], None],
        take: Take = lambda _events, _state: None,
        stands_for_kernel: bool = False,
        journal: Output = journal_output,
        read: Callable[[int, int], bytes] = os.read,
    ) -> None:
        """Continue from *memory*, the ``memory`` of an earlier watch; *log* receives a line about lost records.

        *take* receives what each tick has read.

        *journal* returns the kernel's records if the ring buffer was overwritten before this watch began.

        *stands_for_kernel*: the log is that of a simulated node; its lines count as kernel messages.
        """
        self._path = path
        self._clock = clock
        self._selector = selector
        self._log = log
        self._take = take
        self._stands_for_kernel = stands_for_kernel
        self._journal = journal
        self._read_descriptor = read
        self._backlog: JournalReader | None = None
        self._asked_from: Cursor | None = None
        self._cursor = self._recalled(memory)
        self._reader: KernelLogReader | None = None
        self._next = 0.0
        self._lost = 0
        self._lost_by_earlier_readers = 0
        self._skipped_by_earlier_readers = 0
        self._recovered = 0
        self._heard = False
        self._given = 0
        self._failure = ""
        self._found: tuple[int, int, int] | None = None

    @property
    def state(self) -> KernelLogState:
        """Return whether the log can be read."""
        return KernelLogState(
            readable=self._reader is not None,
            path=self._path,
            detail=self._failure,
            lost_records=self._lost,
            skipped_bytes=self._skipped,
            read=self._clock.instant() if self._reader else None,
            is_evidence=self._reader is None or self._reader.is_evidence,
            begun=self._reader is not None and not self._reader.was_at_end,
        )

    @property
    def trouble(self) -> str:
        """Return the number of unread records, for every output: their content is unknown, so green means less."""
        if self._skipped:
            return (
                f"{self._path}: {self._skipped >> 20} MiB were skipped, because the file holds more than can be "
                "read in time: their events are lost; set kernel_log.path to /dev/kmsg, or rotate the file earlier"
            )
        if not self._lost or self._is_asking:
            return ""
        return (
            f"{self._path}: {records_lost(self._lost)}: their events are lost; "
            "if this repeats, enlarge the ring buffer with the kernel option log_buf_len"
        )

    @property
    def _skipped(self) -> int:
        """Return the number of skipped bytes of a long file: records of a file are not overwritten."""
        return self._skipped_by_earlier_readers + (self._reader.skipped_bytes if self._reader is not None else 0)

    @property
    def memory(self) -> bytes | None:
        """Return the state from which the next process continues behind the last event."""
        cursor = self._reader.cursor if self._reader else self._cursor
        if self._is_asking:
            # The journal's records cannot be read again once the cursor has passed them.
            cursor = self._asked_from
        return msgspec.msgpack.encode(cursor) if cursor else None

    @property
    def _is_asking(self) -> bool:
        return self._backlog is not None and not self._heard

    @property
    def next_deadline(self) -> float:
        """Return when ``tick`` must be called next, in monotonic seconds."""
        return self._next

    def tick(self) -> None:
        """Report the events since the last turn."""
        self._take(self.read(), self.state)

    def read(self) -> list[Event]:
        """Return the events since the last call."""
        now = self._clock.monotonic()
        if self._reader is None and now < self._next and self._found == _file_at(self._path):
            return []
        try:
            if self._reader is None:
                self._open()
            events = self._read()
        except KernelLogError as error:
            self._failed(str(error))
            self._next = now + RETRY_SECONDS
            self._found = _file_at(self._path)
            return []
        self._failure = ""
        self._next = now + self._pause()
        return events

    def wake(self, _mask: int) -> None:
        """Make the next turn read at once."""
        self._next = 0.0

    def close(self) -> None:
        """Stop following the log."""
        if self._reader is not None:
            self._cursor = self._reader.cursor
            self._lost_by_earlier_readers += self._reader.statistics.lost
            self._skipped_by_earlier_readers += self._reader.skipped_bytes
            if self._reader.pollable:
                self._selector.unregister(self._reader)
            self._reader.close()
            self._reader = None

    def _recalled(self, memory: bytes | None) -> Cursor | None:
        try:
            return msgspec.msgpack.decode(memory, type=Cursor) if memory else None
        except msgspec.MsgspecError as error:
            self._log(f"{self._path}: read from the boot on, because the saved position cannot be decoded: {error}")
            return None

    def _open(self) -> None:
        instant = self._clock.instant()
        self._reader = KernelLogReader(
            self._path,
            self._cursor,
            boot_id=instant.boot_id,
            read=self._read_descriptor,
            stands_for_kernel=self._stands_for_kernel,
        )
        if not self._reader.pollable:
            return
        try:
            self._selector.register(self._reader, selectors.EVENT_READ, self.wake)
        except OSError as error:
            self._reader.close()
            self._reader = None
            raise KernelLogError(f"{self._path}: cannot be waited for: {error.strerror}") from error

    def _read(self) -> list[Event]:
        assert self._reader is not None
        events = self._reader.read_available(self._clock.instant())
        for note in self._reader.take_notes():
            self._log(note)
        self._lost = self._lost_by_earlier_readers + self._reader.statistics.lost - self._recovered
        if self._reader.missing is not None and self._backlog is None and self._reader.is_evidence:
            self._asked_from = self._cursor
            now = self._clock.instant()
            place = partial(recorded, now=now, offset_ns=now.boottime_ns - time.monotonic_ns())
            self._backlog = JournalReader(self._reader.missing, self._journal, place, now.boot_id)
        return [*self._told_by_journal(), *events]

    def settle(self) -> list[Event]:
        """Return the remaining events of the log and of the journal, and wait for them: for one-shot commands."""
        rest: list[Event] = []
        try:
            if self._reader is not None:
                rest = self._reader.read_to_end(self._clock.instant())
        except KernelLogError as error:
            self._failed(str(error))
        if self._backlog is not None:
            self._backlog.wait()
        while told := self._told_by_journal():
            rest += told
        return rest

    def _told_by_journal(self) -> list[Event]:
        """Return the next events of the overwritten records that the journal has, each once."""
        asked = self._backlog
        if asked is None or self._heard or not asked.is_done:
            return []
        if not self._given:
            self._tell_of_journal(asked)
        piece = asked.told.events[self._given : self._given + PIECE_EVENTS]
        self._given += len(piece)
        self._heard = self._given == len(asked.told.events)
        return list(piece)

    def _tell_of_journal(self, asked: JournalReader) -> None:
        """Count and report how many of the overwritten records the journal has."""
        told, missing = asked.told, asked.missing.records
        self._recovered = min(told.records, missing)
        self._lost = max(self._lost - self._recovered, 0)
        self._log(
            f"{self._path}: the journal has {self._recovered} of {count_of(missing, 'overwritten record')}"
            f"{f'; the others cannot be read: {told.trouble}' if told.trouble else ''}"
        )

    def _pause(self) -> float:
        if self._reader is not None and not self._reader.was_at_end:
            return BEGIN_SECONDS
        if self._is_asking and self._given:
            return 0.0
        return POLL_SECONDS if self._must_poll() else LOOK_SECONDS

    def _must_poll(self) -> bool:
        """Return whether events may be due that the selector does not report."""
        return self._reader is not None and (self._is_asking or self._reader.holds_back or not self._reader.pollable)

    def _failed(self, detail: str) -> None:
        if detail != self._failure:
            self._log(detail)
        self._failure = detail
        self.close()


def _file_at(path: str) -> tuple[int, int, int] | None:
    """Return what tells the file at *path* from another one; None where none can be seen."""
    try:
        status = os.stat(path)  # noqa: PTH116 (in each turn)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mode
