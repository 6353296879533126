"""The kernel log, read as it grows, from the position where the last process stopped.

``/dev/kmsg`` returns one record per read and keeps those of this boot until its ring is full. The caller stores the
cursor (boot id and sequence number): with one of this boot, reading resumes after it; without one, it begins with the
oldest record, because events since boot still apply to this boot. A FIFO or a regular file may replace the device.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import msgspec

from nodevet.checks.core.counts import records_lost
from nodevet.checks.core.errors import NodevetError, UsageError
from nodevet.checks.core.model import Event, Instant, Provenance

from .beginning import Beginning
from .lines import MAXIMUM_LINE, Line, split_line, split_record
from .parse import SETTLE_SECONDS, KernelLogParser, events_from_lines
from .rules import stand_in

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

DEFAULT_PATH = "/dev/kmsg"

OLD_PATH = "/proc/kmsg"
"""The same log for syslogd: by its file type a plain file, which never ends either."""

KERNEL_DEVICE = os.makedev(1, 11)
"""The device number of /dev/kmsg (Documentation/admin-guide/devices.txt): other files may hold a user's text."""

RECORD_BYTES = 8192
"""The kernel refuses a read that is shorter than the record; no record is longer (CONSOLE_EXT_LOG_MAX)."""

MAXIMUM_RECORDS = 10_000
"""Largest number of records per call, so that a flood cannot block the caller; the next call reads the rest."""

MAXIMUM_CALLS = 100
"""Largest number of calls of a one-shot read: a million records, more than any ring holds."""

MOST_UNREAD_BYTES = 64 << 20
"""Largest unread part of a file: half a minute of work and more than any ring holds; the newest part is read."""

MAXIMUM_OVERRUNS = 16
"""How often in a row the ring may overtake one read before it returns to the caller."""

BEFORE_BOOT = -1.0
"""A time stamp before all others: the kernel's first records have the stamp 0."""

SETTLE_NS = int(SETTLE_SECONDS * 1e9)

STAMPS_APART_SECONDS = 1.0
"""Processors stamp their records by their own clocks: a later number may have a slightly earlier stamp."""

_COMPRESSED = "is compressed; unpack it and give its lines to --from -, such as with zcat, xzcat or zstdcat"
_NO_TEXT = {
    b"\x1f\x8b": _COMPRESSED,
    b"\xfd7zXZ": _COMPRESSED,
    b"(\xb5/\xfd": _COMPRESSED,
    b"BZh": _COMPRESSED,
    b"PK\x03\x04": _COMPRESSED,
    b"LPKSHHRH": "is a file of journald; give what journalctl -k --file prints to --from -",
}
"""First bytes of files that hold a log in another form than text: read as text they would seem to hold no event."""

_UTF_16 = re.compile(rb"\xff\xfe[\s\S]\0|\xfe\xff\0")
"""A byte order mark followed by a plain character; the mark alone may be broken text."""


class KernelLogError(NodevetError):
    """The kernel log cannot be read; the message names the remedy."""


_Place = Annotated[int, msgspec.Meta(ge=0)]
"""No log has a record or a byte before its first: a kept position below 0 is refused like one that is unreadable."""


class Cursor(msgspec.Struct, frozen=True):
    """The position up to which the log was read: the last sequence number, or inode and offset of a regular file.

    ``seconds`` is the kernel's time stamp of that record, ``beginning`` the first bytes of the file.
    """

    boot_id: str
    sequence: _Place | None = None
    offset: _Place = 0
    inode: int = 0
    seconds: float | None = None
    beginning: bytes = b""


class Missing(msgspec.Struct, frozen=True):
    """Records that were overwritten before they were read: their number, and the kernel's time stamps around them."""

    records: int
    after_seconds: float
    before_seconds: float


class ReaderStatistics(msgspec.Struct, frozen=True):
    """Counts since the reader was opened. ``lost`` records were overwritten before they could be read."""

    records: int = 0
    malformed: int = 0
    overruns: int = 0
    lost: int = 0


class KernelLogReader:
    """Reads new records and returns the events in them. Never blocks; for one thread.

    ``fileno()`` is for a selector when ``pollable``; a regular file is not, and is polled by time instead. Call
    ``read_available`` about once a second even without new records: it then returns events that only their header
    announced.
    """

    def __init__(
        self,
        path: str = DEFAULT_PATH,
        cursor: Cursor | None = None,
        *,
        boot_id: str,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        read: Callable[[int, int], bytes] = os.read,
        seek: Callable[[int, int, int], int] = os.lseek,
        stands_for_kernel: bool = False,
    ) -> None:
        """Open *path* and continue after *cursor* if it is of the boot *boot_id*. Raises KernelLogError.

        Only the kernel's own device gives evidence; *stands_for_kernel*: *path* is the log of a simulated node, whose
        lines count as its kernel's.

        *monotonic_ns* is the clock of the kernel's time stamps: it stands still while the machine is suspended.
        *read* reads a descriptor, *seek* sets the position of the next read.
        """
        self.path = path
        self._boot_id = boot_id
        self._monotonic_ns = monotonic_ns
        self._read_descriptor = read
        self._seek = seek
        self._parser = KernelLogParser()
        self._notes: list[str] = []
        self.statistics = ReaderStatistics()
        """The counts so far."""
        self._partial = b""
        self._stands_for_kernel = stands_for_kernel
        self._descriptor, self._kind = _open(path)
        self.is_evidence = stands_for_kernel
        """Whether the log is written by the kernel alone; a user can write into any other."""
        self._unsettled: list[tuple[int, Cursor]] = []
        self.was_at_end = False
        """Whether everything present at the opening has been read: a file may have gigabytes."""
        self.skipped_bytes = 0
        """The skipped bytes of a regular file, of which more was unread than can be read in time."""
        try:
            self.is_evidence = stands_for_kernel or is_kernel_device(self._descriptor)
            self._resume(cursor if cursor is not None and cursor.boot_id == boot_id else None)
        except OSError as error:
            self.close()
            raise KernelLogError(f"{self.path}: reading failed: {error.strerror}") from error

    @property
    def pollable(self) -> bool:
        """Return whether a selector can wait for this log."""
        return not stat.S_ISREG(self._kind)

    @property
    def cursor(self) -> Cursor:
        """Return the position for the next process: it reads a waiting header again."""
        return self._unsettled[0][1] if self._unsettled else self._reached

    @property
    def _reached(self) -> Cursor:
        known = self._beginning.known
        return Cursor(self._boot_id, self._sequence, self._offset, self._inode, self._seconds, known)

    @property
    def holds_back(self) -> bool:
        """Return whether an event waits for its next line, and ``read_available`` must be called again."""
        return self._parser.holds_back

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._descriptor

    def read_available(self, now: Instant) -> list[Event]:
        """Return the events in all available records; *now* dates them. Raises KernelLogError where reading fails."""
        self._feed(now)
        settled = msgspec.structs.replace(now, boottime_ns=now.boottime_ns - SETTLE_NS)
        events = self._parser.take(settled)
        # A waiting event is of its own read or an earlier record: a record is never younger than its read.
        held = self._parser.held_since(settled)
        self._unsettled = [] if held is None else [(read, place) for read, place in self._unsettled if read >= held]
        return events

    def read_to_end(self, now: Instant) -> list[Event]:
        """Return the events in the whole log, for a one-shot read: no event waits, and no limit per call ends it."""
        for _ in range(MAXIMUM_CALLS):
            before = self.statistics
            self._feed(now)
            if self.statistics == before:
                break
        self._unsettled = []
        return self._parser.take()

    def _feed(self, now: Instant) -> None:
        self._unsettled.append((now.boottime_ns, self._reached))
        offset_ns = now.boottime_ns - self._monotonic_ns()
        for line in self._lines():
            self._parser.feed(line, recorded(line, now, offset_ns))

    def take_notes(self) -> tuple[str, ...]:
        """Return sentences about lost or malformed records since the last call, for the agent's log."""
        notes = tuple(self._notes)
        self._notes.clear()
        return notes

    def close(self) -> None:
        """Close the descriptor. Harmless when called twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):  # a file server may refuse; the descriptor is free all the same (close(2))
                os.close(descriptor)

    def _resume(self, cursor: Cursor | None) -> None:
        self._sequence = cursor.sequence if cursor else None
        self._seconds = cursor.seconds if cursor else None
        self.missing: Missing | None = None
        """The records overwritten before the first read of this process: a journal may still have them."""
        self._has_read = False
        self._is_unproven = self._sequence is not None
        self._skipped = False
        self._offset, self._beginning = 0, Beginning()
        self._inode = os.fstat(self._descriptor).st_ino
        if cursor and stat.S_ISREG(self._kind) and cursor.inode in (0, self._inode):
            self._offset = cursor.offset
            self._beginning = Beginning(cursor.beginning)

    def _lines(self) -> Iterator[Line]:
        """Yield the available lines, at most MAXIMUM_RECORDS. Raises KernelLogError where reading fails."""
        try:
            yield from self._device_lines() if stat.S_ISCHR(self._kind) else self._stream_lines()
        except OSError as error:  # of its size or place: a file on a server is stale, or the server is gone
            raise KernelLogError(f"{self.path}: reading failed: {error.strerror}") from error

    def _device_lines(self) -> Iterator[Line]:
        for _ in range(MAXIMUM_RECORDS):
            data = self._read(RECORD_BYTES)
            if data is None:
                if self._is_unproven and self._skipped:
                    self._start_over("ends before the place that was kept")
                    continue
                self.was_at_end = True
                return
            line = self._record(data)
            if line is None:
                continue
            if self._is_unproven and not self._is_where_the_cursor_was(line):
                self._start_over("is not the one in which the place was kept")
                continue
            if line.sequence is None or self._advance(line.sequence, line.seconds):
                yield line

    def _is_where_the_cursor_was(self, line: Line) -> bool:
        """Return whether *line* can be of the log in which the cursor was taken.

        A virtual machine that is set back to a snapshot keeps its boot id, and numbers its records from an earlier
        number:
        the cursor then lies beyond the ring, or on another record with the same number.
        """
        kept, kept_seconds = self._sequence, self._seconds
        if line.sequence is None or kept is None:
            return True
        if line.sequence < kept:
            self._skipped = True
            return True
        self._is_unproven = False
        if kept_seconds is None or line.seconds is None:
            return True
        if line.sequence == kept:
            return line.seconds == kept_seconds
        return line.seconds > kept_seconds - STAMPS_APART_SECONDS

    def _start_over(self, why: str) -> None:
        """Read the ring from its start, because the cursor does not apply to it."""
        self._notes.append(f"{self.path}: the log {why}: it is read from its begin, as after a boot")
        self._is_unproven = False
        self._sequence, self._seconds = None, None
        self._unsettled = [(read, self._reached) for read, _ in self._unsettled]
        try:
            self._seek(self._descriptor, 0, os.SEEK_SET)
        except OSError as error:
            raise KernelLogError(f"{self.path}: cannot be read from its begin: {error.strerror}") from error

    def _stream_lines(self) -> Iterator[Line]:
        """Yield the complete lines of a FIFO or regular file; an unfinished one waits."""
        if not stat.S_ISREG(self._kind):
            yield from self._whole_lines()
            return
        was_replaced = self._was_replaced()
        self._go_on()
        yield from self._whole_lines()
        if was_replaced and self._is_at_end:
            self._change_over()
            self._go_on()
            yield from self._whole_lines()

    def _whole_lines(self) -> Iterator[Line]:
        budget = MAXIMUM_RECORDS * 128
        while budget > 0:
            data = self._read(1 << 16)
            if not data:
                self.was_at_end = True
                return
            budget -= len(data)
            *whole, self._partial = (self._partial + data).split(b"\n")
            if len(self._partial) > MAXIMUM_LINE:
                # No record is that long: it is no text, and waiting for its end would delay the lines after it.
                whole.append(self._partial)
                self._offset -= len(b"\n")
                self._partial = b""
            for raw in whole:
                # The cursor is after the last complete line, so that an unfinished one is read again after a restart.
                self._offset += len(raw) + 1
                line = self._record(raw)
                if line is not None:
                    yield line
            if stat.S_ISREG(self._kind):
                self._beginning.learn(self._descriptor, self._offset)

    def _was_replaced(self) -> bool:
        """Return whether another, non-empty file has replaced the one that is read.

        logrotate(8) renames the file, and its writer continues with the old one until it is notified: lines arrive at
        its end until the first one is in the new file.
        """
        try:
            status = Path(self.path).stat()
        except OSError:
            return False
        return status.st_ino != self._inode and (status.st_size > 0 or not stat.S_ISREG(status.st_mode))

    @property
    def _is_at_end(self) -> bool:
        return os.lseek(self._descriptor, 0, os.SEEK_CUR) >= os.fstat(self._descriptor).st_size

    def _change_over(self) -> None:
        """Open the file that replaced the one that was read to its end."""
        descriptor, kind = _open(self.path)
        if not stat.S_ISREG(kind):
            os.close(descriptor)
            raise KernelLogError(f"{self.path}: was a file and is now something else: it is opened anew")
        os.close(self._descriptor)
        self._descriptor, self._kind = descriptor, kind
        self._inode, self._offset, self._beginning = os.fstat(self._descriptor).st_ino, 0, Beginning()

    def _go_on(self) -> None:
        """Set the next read after the last complete line, or to the start of a file that was cut."""
        size = os.fstat(self._descriptor).st_size
        if size < self._offset or not self._beginning.is_of(self._descriptor):
            self._notes.append(
                f"{self.path}: was cut behind byte {self._offset}, up to which it was read: it is read from its begin; "
                "what was added just before is lost: have it renamed (logrotate without copytruncate)"
            )
            self._offset, self._beginning = 0, Beginning()
        self._partial = b""
        if size - self._offset > MOST_UNREAD_BYTES:
            self._pass_over(size - MOST_UNREAD_BYTES)
        os.lseek(self._descriptor, self._offset, os.SEEK_SET)

    def _pass_over(self, place: int) -> None:
        """Continue after the first line end from *place* on: a fault reported hours late is as good as hidden."""
        try:
            rest = os.pread(self._descriptor, MAXIMUM_LINE, place)
        except OSError as error:
            raise KernelLogError(f"{self.path}: reading failed: {error.strerror}") from error
        place += rest.find(b"\n") + 1 or len(rest)
        self._notes.append(
            f"{self.path}: {(place - self._offset) >> 20} MiB of it are passed over: of what is unread the last "
            f"{MOST_UNREAD_BYTES >> 20} MiB are read"
        )
        self.skipped_bytes += place - self._offset
        self._offset = place

    def _read(self, size: int) -> bytes | None:
        """Read once; None where nothing is available. Lost records are counted and reading continues after them."""
        for _ in range(MAXIMUM_OVERRUNS):
            try:
                return self._read_descriptor(self._descriptor, size)
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise KernelLogError(f"{self.path}: reading failed: {error.strerror}") from error
                # The ring overtook this read: the kernel has moved the position to its oldest record.
                self._count(overruns=1)
        return None

    def _record(self, data: bytes) -> Line | None:
        """Return the record in *data*; None for an empty one, or a malformed one, which is counted."""
        text = data.decode("utf-8", "replace").rstrip("\r\n")
        if not text or text.startswith(" "):
            return None
        self._count(records=1)
        if not stat.S_ISCHR(self._kind):
            line = split_line(text)
            return stand_in(line) if self._stands_for_kernel else line
        record = split_record(text)
        if record is None:
            self._count(malformed=1)
            self._note_malformed(text)
        elif not self.is_evidence:
            record = msgspec.structs.replace(record, provenance=Provenance.TEXT)
        return record

    def _note_malformed(self, text: str) -> None:
        """Report the first record without a header; the others are only counted, so that the log is not flooded."""
        if self.statistics.malformed == 1:
            self._notes.append(f"{self.path}: a record without its header was skipped: {text[:80]!r}; more are counted")

    def _advance(self, sequence: int, stamp: float | None) -> bool:
        """Move the cursor to *sequence*; return whether the record is new. A gap means records overwritten unread.

        Sequence numbers begin with 0 at boot, so the records before the oldest available one were overwritten too.
        """
        last = -1 if self._sequence is None else self._sequence
        if sequence <= last:
            return False
        seconds = (self._seconds or 0.0) if stamp is None else stamp
        if sequence > last + 1:
            lost = sequence - last - 1
            self._count(lost=lost)
            self._notes.append(
                f"{self.path}: {records_lost(lost)}; "
                f"if this repeats, enlarge the ring buffer with the kernel option log_buf_len"
            )
            if not self._has_read:
                self.missing = Missing(lost, BEFORE_BOOT if self._seconds is None else self._seconds, seconds)
        self._has_read = True
        self._sequence, self._seconds = sequence, seconds
        return True

    def _count(self, records: int = 0, malformed: int = 0, overruns: int = 0, lost: int = 0) -> None:
        now = self.statistics
        self.statistics = ReaderStatistics(
            now.records + records, now.malformed + malformed, now.overruns + overruns, now.lost + lost
        )


def is_kernel_device(descriptor: int) -> bool:
    """Return whether *descriptor* is the kernel's log device, opened under any name."""
    status = os.fstat(descriptor)
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == KERNEL_DEVICE


def events_from_file(path: str, standard_input: BinaryIO | None = None) -> list[Event]:
    """Return the events in the saved log *path*, where ``-`` is *standard_input*. Raises UsageError.

    Bytes that are no UTF-8 are replaced: one broken line must not hide the others. UTF-16 is read where the file begins
    with its byte order mark, as PowerShell writes it.
    """
    try:
        if path == "-":
            return _events_in(standard_input or sys.stdin.buffer, path)
        with Path(path).open("rb") as file:
            return _events_in(file, path)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read: {error.strerror}; give a saved kernel log, or - for standard input"
        ) from error


def _events_in(file: BinaryIO, name: str) -> list[Event]:
    """Return the events in *file*; the kernel's own log is read to its end, where a plain read would block for ever."""
    descriptor = file.fileno() if isinstance(file, io.BufferedReader | io.FileIO) else None
    if descriptor is None or not _has_no_end(descriptor):
        return events_from_lines(_decoded(file, name))
    # Reopened, because other processes may share the descriptor and expect it to block.
    anew = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with io.BufferedReader(_Ring(anew)) as ring:
        return events_from_lines(_decoded(ring, name))


def _has_no_end(descriptor: int) -> bool:
    """Return whether *descriptor* is the kernel's own log, opened under one of its two names."""
    try:
        return is_kernel_device(descriptor) or os.path.samestat(os.fstat(descriptor), os.stat(OLD_PATH))  # noqa: PTH116
    except OSError:
        return False


class _Ring(io.FileIO):
    """The kernel's own log: it ends where no record is available, and continues after overwritten records."""

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        for _ in range(MAXIMUM_OVERRUNS):
            try:
                return super().readinto(buffer)
            except BrokenPipeError:
                continue
        return None


def _decoded(file: BinaryIO, name: str) -> Iterator[str]:
    """Yield the lines of *file*, each cut at MAXIMUM_LINE: zeros are one line. Raises UsageError for a binary file."""
    buffered = file if isinstance(file, io.BufferedReader) else io.BufferedReader(file)  # type: ignore[type-var]
    unreadable = next((way for magic, way in _NO_TEXT.items() if buffered.peek(8).startswith(magic)), None)
    if unreadable:
        raise UsageError(f"{name}: {unreadable}")
    encoding = "utf-16" if _UTF_16.match(buffered.peek(4)) else "utf-8"
    text = io.TextIOWrapper(buffered, encoding, errors="replace", newline="\n")
    begins = True
    while piece := text.readline(MAXIMUM_LINE):
        if begins:
            yield piece.rstrip("\n")
        begins = piece.endswith("\n")
    text.detach()


def recorded(line: Line, now: Instant, offset_ns: int) -> Instant:
    """Return the time at which *line* was recorded: at most *now*, and *now* itself where it states no time.

    The kernel's time stamp does not count suspended time, *offset_ns* adds the suspended time until now. A record from
    before a suspend therefore seems younger than it is, never older than the boot.
    """
    if line.seconds is None:
        return now
    boottime_ns = min(int(line.seconds * 1e9) + offset_ns, now.boottime_ns)
    age_seconds = (now.boottime_ns - boottime_ns) / 1e9
    return Instant(now.boot_id, boottime_ns, now.wall_seconds - age_seconds)


def _open(path: str) -> tuple[int, int]:
    """Open *path* for reading without blocking; return the descriptor and the kind of file."""
    try:
        kind = os.stat(path).st_mode  # noqa: PTH116 -- beside os.open
        if stat.S_ISDIR(kind):
            raise KernelLogError(f"{path}: is a directory; name the device, a FIFO or a file")
        descriptor = _descriptor(path, kind)
    except FileNotFoundError as error:
        raise KernelLogError(
            f"{path}: does not exist: this container or system gives no kernel log; mount /dev/kmsg or name a file"
        ) from error
    except PermissionError as error:
        raise KernelLogError(
            f"{path}: not allowed: give the process CAP_SYSLOG (systemd: AmbientCapabilities=CAP_SYSLOG), or set the "
            f"sysctl kernel.dmesg_restrict to 0"
        ) from error
    except OSError as error:
        raise KernelLogError(f"{path}: cannot be opened: {error.strerror}") from error
    if stat.S_ISREG(kind) or stat.S_ISFIFO(kind) or is_kernel_device(descriptor) or os.isatty(descriptor):
        return descriptor, kind
    # Some containers have /dev/null there: it can be read and is always empty, whatever the kernel logs.
    os.close(descriptor)
    raise KernelLogError(
        f"{path}: is a device that holds no log, such as /dev/null: give this container the host's /dev/kmsg, or name "
        f"a FIFO or a file"
    )


def _descriptor(path: str, kind: int) -> int:
    flags = os.O_NONBLOCK | os.O_CLOEXEC
    if stat.S_ISFIFO(kind) and os.access(path, os.W_OK):
        # Opened for writing too, a FIFO never ends, so that a selector does not spin between two writers.
        return os.open(path, os.O_RDWR | flags)
    return os.open(path, os.O_RDONLY | flags)
