"""Follows the kernel log: opens it, again when that failed, and remembers how far it was read."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from functools import partial

import msgspec

from nodevet.agent.services.protocol import Service
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.model import Event
from nodevet.checks.engine.view import KernelLogState
from nodevet.checks.kernel_log.reader import Cursor, KernelLogError, KernelLogReader, recorded

from .kernel_backlog import JournalReader, Output, journal_output

POLL_SECONDS = 0.5
"""How often a log that no selector can wait for is read: half of the budget from event to metric."""

BEGIN_SECONDS = 0.25
"""Between two looks at a long log until it was read to its end: a piece of it takes about as long."""

LOOK_SECONDS = 10.0
"""How often one is read that the selector waits for: it would tell, so this is only for safety."""

RETRY_SECONDS = 60.0

PIECE_EVENTS = 1000
"""So many events of the journal are taken in one turn of the loop, which hears signals between two turns."""

Take = Callable[[list[Event], KernelLogState], None]
"""What takes events, and whether the log can be read."""


class KernelWatch(Service):
    """Reads new events when it is due; *wake* is called when the selector sees that there are some."""

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
        """Go on from *memory*, the ``memory`` of an earlier watch; *log* takes a line about lost records.

        *take* is told what each tick has read.

        *journal* is asked for the kernel's records where the ring was overwritten before this watch began.

        *stands_for_kernel*: the log is that of a simulated node, its lines count as its kernel's.
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
        """Return how many records nobody read, for every surface: what they told is not known, so green says less."""
        if self._skipped:
            return (
                f"{self._path}: {self._skipped >> 20} MiB of it were not read, because more was there than can be "
                "read in time: what they told is lost; name /dev/kmsg, or have the file rotated earlier"
            )
        if not self._lost or self._is_asking:
            return ""
        return (
            f"{self._path}: {self._lost} records were overwritten before they could be read: what they told is lost; "
            "enlarge the ring with the kernel option log_buf_len if this repeats"
        )

    @property
    def _skipped(self) -> int:
        """Return how many bytes of a long file were passed over: a file has no records that are overwritten."""
        return self._skipped_by_earlier_readers + (self._reader.skipped_bytes if self._reader is not None else 0)

    @property
    def memory(self) -> bytes | None:
        """Return what the next process needs to go on behind the last event."""
        cursor = self._reader.cursor if self._reader else self._cursor
        if self._is_asking:
            # What the journal tells has no second chance once the cursor has passed it.
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
        """Tell what came since the last turn."""
        self._take(self.read(), self.state)

    def read(self) -> list[Event]:
        """Return the events that came since the last call."""
        now = self._clock.monotonic()
        if self._reader is None and now < self._next:
            return []
        try:
            if self._reader is None:
                self._open()
            events = self._read()
        except KernelLogError as error:
            self._failed(str(error))
            self._next = now + RETRY_SECONDS
            return []
        self._next = now + self._pause()
        return events

    def wake(self, _mask: int) -> None:
        """Have the next turn read at once."""
        self._next = 0.0

    def close(self) -> None:
        """Stop following."""
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
            self._log(f"{self._path}: read from the boot on, the place of an earlier version is not readable: {error}")
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
        self._failure = ""
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
        """Return what the log and the journal, where it was asked, still have, and wait for it: for a single look."""
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
        """Return the next events in what the journal has of the overwritten records, each once."""
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
        """Count and tell how much of what was overwritten the journal has."""
        told, missing = asked.told, asked.missing.records
        self._recovered = min(told.records, missing)
        self._lost = max(self._lost - self._recovered, 0)
        self._log(
            f"{self._path}: of {missing} overwritten records the journal has {self._recovered}"
            f"{f', and does not tell the rest: {told.trouble}' if told.trouble else ''}"
        )

    def _pause(self) -> float:
        if self._reader is not None and not self._reader.was_at_end:
            return BEGIN_SECONDS
        if self._is_asking and self._given:
            return 0.0
        return POLL_SECONDS if self._must_poll() else LOOK_SECONDS

    def _must_poll(self) -> bool:
        """Return whether something may be due that the selector will not tell of."""
        return self._reader is not None and (self._is_asking or self._reader.holds_back or not self._reader.pollable)

    def _failed(self, detail: str) -> None:
        if detail != self._failure:
            self._log(detail)
        self._failure = detail
        self.close()
