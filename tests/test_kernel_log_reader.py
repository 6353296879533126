"""Reading the kernel's log as it grows: cursor, overrun, malformed records, and what stands in for the device."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pty
import selectors
import subprocess
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes.kernel import NO_KERNEL_LOG

from nodevet.checks.core.errors import NodevetError
from nodevet.checks.core.model import Event, Instant, Provenance
from nodevet.checks.kernel_log import reader as reader_module
from nodevet.checks.kernel_log.reader import DEFAULT_PATH, Cursor, KernelLogError, KernelLogReader, events_from_file

BOOT = "boot-a"
NOW = Instant(BOOT, 1_000_000_000_000, 50_000.0)


def monotonic_ns() -> int:
    """The kernel's clock at NOW: the machine slept for 100 seconds since boot."""
    return 900_000_000_000


def record(sequence: int, text: str, seconds: float = 890.0) -> str:
    """Return one raw record of /dev/kmsg."""
    return f"4,{sequence},{int(seconds * 1e6)},-;{text}\n"


def xid(sequence: int, number: int = 79, seconds: float = 890.0) -> str:
    """Return the record of one XID."""
    return record(sequence, f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=1", seconds)


def codes(events: list[Event]) -> list[str]:
    """Return the codes without their family."""
    return [event.code.removeprefix("nvidia.xid.") for event in events]


class Device:
    """A character device that gives one record per read: a terminal in line mode."""

    def __init__(self) -> None:
        """Open the terminal."""
        self._master, self._slave = pty.openpty()
        tty.setraw(self._slave)
        mode = termios.tcgetattr(self._slave)
        mode[3] |= termios.ICANON
        termios.tcsetattr(self._slave, termios.TCSANOW, mode)
        self.path = os.ttyname(self._slave)

    def write(self, *records: str) -> None:
        """Let the kernel tell *records*."""
        for text in records:
            os.write(self._master, text.encode())

    def close(self) -> None:
        """Close both ends."""
        os.close(self._master)
        os.close(self._slave)


@pytest.fixture
def device() -> Iterator[Device]:
    """A stand-in for /dev/kmsg."""
    device = Device()
    yield device
    device.close()


Open = Callable[..., KernelLogReader]

PLAIN = "[  880.000000] usb 1-1: new high-speed USB device number 2 using xhci_hcd\n"
XID_LINE = "[  890.000000] NVRM: Xid (PCI:0000:3b:00): 79, pid=1\n"


@pytest.fixture
def open_reader() -> Iterator[Open]:
    """Open readers that are closed when the test ends."""
    readers: list[KernelLogReader] = []

    def _open(path: str, cursor: Cursor | None = None, **options: object) -> KernelLogReader:
        boot_id = str(options.pop("boot_id", BOOT))
        reader = KernelLogReader(path, cursor, boot_id=boot_id, monotonic_ns=monotonic_ns, **options)  # type: ignore[arg-type]
        readers.append(reader)
        return reader

    yield _open
    for reader in readers:
        reader.close()


def test_first_start_reads_everything_since_boot(device: Device, open_reader: Open) -> None:
    """Without a cursor the log is read from its oldest record, and reading never blocks when nothing is there."""
    device.write(record(0, "Linux version"), xid(1), xid(2, 48))
    reader = open_reader(device.path)
    assert codes(reader.read_available(NOW)) == ["79", "48"]
    assert reader.read_available(NOW) == []
    assert reader.cursor == Cursor(BOOT, 2, 0, reader.cursor.inode, 890.0)


def test_restart_resumes_behind_the_cursor(device: Device, open_reader: Open) -> None:
    """Records up to the cursor are not told again, those behind it are."""
    device.write(xid(5), xid(6, 48), xid(7, 63))
    reader = open_reader(device.path, Cursor(BOOT, 6))
    assert codes(reader.read_available(NOW)) == ["63"]


def test_cursor_of_another_boot_starts_anew(device: Device, open_reader: Open) -> None:
    """Sequence numbers begin again with each boot, so an older cursor says nothing."""
    device.write(xid(0), xid(1, 48))
    assert codes(open_reader(device.path, Cursor("boot-before", 900)).read_available(NOW)) == ["79", "48"]


class Ring:
    """A ring of records that can be read from its begin again, as /dev/kmsg can; each reader has a place of its own."""

    def __init__(self, *records: str) -> None:
        """Hold *records*."""
        self.records = list(records)
        self.places: dict[int, int] = {}

    def read(self, descriptor: int, _size: int) -> bytes:
        """Return the next record of *descriptor*."""
        place = self.places.get(descriptor, 0)
        if place >= len(self.records):
            raise BlockingIOError
        self.places[descriptor] = place + 1
        return self.records[place].encode()

    def seek(self, descriptor: int, offset: int, whence: int) -> int:
        """Go back to the first record."""
        assert (offset, whence) == (0, os.SEEK_SET)
        self.places[descriptor] = 0
        return 0


@pytest.mark.parametrize(
    ("cursor", "words"),
    [
        (Cursor(BOOT, 900), "ends before the place"),
        (Cursor(BOOT, 900, seconds=880.0), "ends before the place"),
        (Cursor(BOOT, 1, seconds=880.0), "is not the one"),
        (Cursor(BOOT, 0, seconds=895.0), "is not the one"),
    ],
)
def test_a_cursor_of_another_course_of_this_boot_hides_nothing(
    device: Device, open_reader: Open, cursor: Cursor, words: str
) -> None:
    """A virtual machine that was set back to a snapshot counts from an earlier number: all of its log is read."""
    ring = Ring(xid(1), xid(2, 48))
    reader = open_reader(device.path, cursor, read=ring.read, seek=ring.seek)
    assert codes(reader.read_available(NOW)) == ["79", "48"]
    assert [words in note for note in reader.take_notes()] == [True, False]
    ring.records.append(xid(3, 63))
    assert codes(reader.read_available(NOW)) == ["63"]
    assert reader.cursor == Cursor(BOOT, 3, 0, reader.cursor.inode, 890.0)
    assert reader.take_notes() == ()


@pytest.mark.parametrize("cursor", [Cursor(BOOT, 2, seconds=890.0), Cursor(BOOT, 2), Cursor(BOOT, 1, seconds=890.9)])
def test_a_cursor_of_this_course_is_kept(device: Device, open_reader: Open, cursor: Cursor) -> None:
    """The record at the cursor has the stamp that was kept, or it was overwritten and the next ones are no older."""
    ring = Ring(xid(0), xid(2), xid(3, 48)) if cursor.sequence == 2 else Ring(xid(3, 48))
    reader = open_reader(device.path, cursor, read=ring.read, seek=ring.seek)
    assert codes(reader.read_available(NOW)) == ["48"]
    assert not [note for note in reader.take_notes() if "from its begin" in note]


def test_a_flood_does_not_end_the_search_for_the_cursor(device: Device, open_reader: Open) -> None:
    """A ring of more records than one call takes is read to its end before its cursor is given up."""
    ring = Ring(*(record(number, "x") for number in range(10_100)))
    reader = open_reader(device.path, Cursor(BOOT, 10_090, seconds=890.0), read=ring.read, seek=ring.seek)
    assert reader.read_available(NOW) == []
    ring.records.append(xid(10_100))
    assert codes(reader.read_available(NOW)) == ["79"]
    assert reader.take_notes() == ()


def test_two_readers_of_one_log_take_nothing_from_each_other(device: Device, open_reader: Open) -> None:
    """Each has a descriptor and a place of its own, also on the real device: an agent beside a one-shot check."""
    ring = Ring(*(xid(number) for number in range(50)))
    first, second = (open_reader(device.path, read=ring.read, seek=ring.seek) for _ in range(2))
    assert first.fileno() != second.fileno()
    assert len(first.read_available(NOW)) == 50
    ring.records += [xid(number, 48) for number in range(50, 60)]
    assert len(second.read_available(NOW)) == 60
    assert codes(first.read_available(NOW)) == ["48"] * 10
    assert second.read_available(NOW) == []
    assert (first.cursor.sequence, second.cursor.sequence) == (59, 59)


@pytest.fixture
def open_real() -> Iterator[Callable[..., KernelLogReader]]:
    """Open readers of the real kernel log, which are closed when the test ends."""
    readers: list[KernelLogReader] = []

    def _open(cursor: Cursor | None = None) -> KernelLogReader:
        try:
            readers.append(KernelLogReader(DEFAULT_PATH, cursor, boot_id=BOOT, monotonic_ns=monotonic_ns))
        except KernelLogError:
            pytest.skip(NO_KERNEL_LOG)
        return readers[-1]

    yield _open
    for reader in readers:
        reader.close()


def test_the_real_log_is_whole_for_each_of_two_readers(open_real: Callable[..., KernelLogReader]) -> None:
    """What one has read is still there for the other."""
    first, second = open_real(), open_real()
    for reader in (first, second):
        reader.read_to_end(NOW)
    assert first.statistics.records <= second.statistics.records
    assert first.statistics.records > 0 or second.cursor.sequence is None


def test_the_real_log_is_read_from_its_begin_where_the_cursor_lies_beyond_it(
    open_real: Callable[..., KernelLogReader],
) -> None:
    """The device itself goes back to its oldest record."""
    plain, late = open_real(), open_real(Cursor(BOOT, 1 << 60, seconds=1.0))
    for reader in (plain, late):
        reader.read_to_end(NOW)
    if plain.statistics.records == 0:
        pytest.skip(NO_KERNEL_LOG)
    assert late.cursor.sequence is not None and plain.cursor.sequence is not None
    assert plain.cursor.sequence <= late.cursor.sequence < 1 << 60
    assert any("from its begin" in note for note in late.take_notes())


def test_gap_in_the_sequence_is_lost_records_and_told(device: Device, open_reader: Open) -> None:
    """Records that were overwritten unread are counted and told, also those lost while nobody was reading."""
    device.write(xid(110), xid(121, 48))
    reader = open_reader(device.path, Cursor(BOOT, 99))
    assert codes(reader.read_available(NOW)) == ["79", "48"]
    assert reader.statistics.lost == 20
    notes = reader.take_notes()
    assert "10 records were overwritten" in notes[0] and "log_buf_len" in notes[0]
    assert reader.take_notes() == ()


def test_a_file_is_read_to_its_end_only_when_that_is_so(
    tmp_path: Path, open_reader: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call takes a piece; until the last of them nobody knows what the newest line tells."""
    monkeypatch.setattr(reader_module, "MAXIMUM_RECORDS", 1)
    path = tmp_path / "kern.log"
    path.write_text(PLAIN * 3000 + XID_LINE)
    reader = open_reader(str(path))
    assert reader.read_available(NOW) == []
    assert not reader.was_at_end
    told: list[str] = []
    while not reader.was_at_end:
        told += codes(reader.read_available(NOW))
    assert told == ["79"]
    assert reader.skipped_bytes == 0


@pytest.mark.parametrize("before", [PLAIN * 1000, "\0" * 60_000 + "\n", XID_LINE.replace("79", "48") * 1000])
def test_of_a_file_that_is_too_long_the_newest_part_is_read_and_the_rest_told(
    tmp_path: Path, open_reader: Open, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Before, its newest lines were read minutes late: a gigabyte takes that long, and a crash leaves holes."""
    monkeypatch.setattr(reader_module, "MOST_UNREAD_BYTES", 2 * len(XID_LINE) + 10)
    path = tmp_path / "kern.log"
    path.write_text(before + XID_LINE.replace("79", "63") + XID_LINE)
    reader = open_reader(str(path))
    assert codes(reader.read_available(NOW)) == ["63", "79"]
    assert reader.was_at_end
    assert reader.skipped_bytes == len(before)
    assert "are passed over" in reader.take_notes()[0]
    with path.open("a") as file:
        file.write(XID_LINE.replace("79", "94"))
    assert codes(reader.read_available(NOW)) == ["94"]
    assert reader.take_notes() == ()


def test_malformed_record_is_skipped_and_counted(device: Device, open_reader: Open) -> None:
    """One record without its header does not end reading, hides no other, and is told."""
    device.write(xid(1), "garbage NVRM: Xid (PCI:0000:3b:00): 48\n", xid(2, 63))
    reader = open_reader(device.path)
    assert codes(reader.read_available(NOW)) == ["79", "63"]
    assert reader.statistics.malformed == 1
    assert any("garbage" in note for note in reader.take_notes())


def test_overrun_is_counted_and_reading_goes_on(device: Device, open_reader: Open) -> None:
    """EPIPE means that the ring overtook the reader: it is counted, and the next record is read."""
    script: list[bytes | OSError] = [OSError(errno.EPIPE, "overrun"), xid(40).encode(), BlockingIOError()]
    answers = iter(script)

    def read(descriptor: int, size: int) -> bytes:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    reader = open_reader(device.path, Cursor(BOOT, 30), read=read)
    assert codes(reader.read_available(NOW)) == ["79"]
    assert (reader.statistics.overruns, reader.statistics.lost) == (1, 9)


def test_endless_overrun_and_other_errors_end_the_call(device: Device, open_reader: Open) -> None:
    """A ring that always overtakes gives the caller its turn; a read that fails otherwise is told with its path."""

    def overrun(descriptor: int, size: int) -> bytes:
        raise OSError(errno.EPIPE, "overrun")

    def broken(descriptor: int, size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    assert open_reader(device.path, read=overrun).read_available(NOW) == []
    with pytest.raises(KernelLogError, match=r"/dev/pts/.*Input/output error"):
        open_reader(device.path, read=broken).read_available(NOW)


def test_records_are_dated_by_their_own_stamp(device: Device, open_reader: Open) -> None:
    """The stamp, which does not count sleep, becomes time since boot; it is never later than now."""
    device.write(xid(1, seconds=890.0), xid(2, 48, seconds=5000.0))
    first, second = open_reader(device.path).read_available(NOW)
    assert (first.time.boot_id, first.time.boottime_ns, first.time.wall_seconds) == (BOOT, 990_000_000_000, 49_990.0)
    assert second.time == NOW
    assert (first.sequence, first.line) == (1, None)


def test_a_record_of_a_clock_below_zero_is_read(device: Device, open_reader: Open) -> None:
    """Such a clock stands near 2^64 ns at the boot of some virtual machines; the fault is as true, and is of now."""
    wrong = xid(2, 48).replace(",2,890000000,", ",2,18446744073709551,")
    device.write(xid(1, seconds=890.0), wrong)
    reader = open_reader(device.path)
    first, second = reader.read_available(NOW)
    assert (first.sequence, second.sequence, second.time) == (1, 2, NOW)
    assert (reader.statistics.malformed, reader.cursor.seconds) == (0, 890.0)
    device.write(xid(1, seconds=890.0), wrong, xid(3, 62, seconds=891.0))
    again = open_reader(device.path, reader.cursor)
    assert [event.sequence for event in again.read_available(NOW)] == [3]
    assert again.take_notes() == ()


def test_header_waits_a_moment_for_its_error(device: Device, open_reader: Open) -> None:
    """The announcement of an error that comes with the next read joins it; without one it is told a second later."""
    header = record(
        1, "pcieport 0000:c0:01.1: AER: Uncorrectable (Fatal) error message received from 0000:c1:00.0", 900
    )
    error = record(
        2, "nvidia 0000:c1:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer", 900
    )
    device.write(header)
    reader = open_reader(device.path)
    assert reader.read_available(NOW) == []
    device.write(error)
    (event,) = reader.read_available(NOW)
    assert event.fields["port"] == "0000:c0:01.1"
    device.write(header.replace("4,1,", "4,3,"))
    assert reader.read_available(NOW) == []
    later = Instant(BOOT, NOW.boottime_ns + 1_500_000_000, NOW.wall_seconds + 1.5)
    assert [event.pci for event in reader.read_available(later)] == ["0000:c1:00.0"]


def test_a_header_that_waits_is_read_again_after_a_restart(device: Device, open_reader: Open) -> None:
    """Until it is told the cursor stands before its read, so that no end of the agent loses it; it lags no more."""
    text = "pcieport 0000:c0:01.1: AER: Uncorrectable (Fatal) error message received from 0000:c1:00.0"
    reader = open_reader(device.path)
    device.write(xid(1))
    reader.read_available(NOW)
    assert reader.cursor.sequence == 1
    for step in range(1, 30):
        now = Instant(BOOT, NOW.boottime_ns + step * 100_000_000, NOW.wall_seconds)
        device.write(record(step + 1, text, seconds=900 + step / 10))
        told = reader.read_available(now)
        assert reader.cursor.sequence == max(1, step - 9)
        assert [event.sequence for event in told] == ([step - 9] if step > 10 else [])
    settled = Instant(BOOT, NOW.boottime_ns + 10_000_000_000, NOW.wall_seconds + 10)
    assert [event.sequence for event in reader.read_available(settled)] == list(range(21, 31))
    assert reader.cursor.sequence == 30


def test_a_single_look_reads_all_that_is_there(open_reader: Open, tmp_path: Path) -> None:
    """One call ends early, so that a flood cannot hold the agent; who looks once has no other."""
    path = tmp_path / "kernel.log"
    path.write_text(f"[ 1.0] {'x' * 4000}\n" * 800 + "[ 2.0] NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=x, words\n")
    reader = open_reader(str(path))
    assert reader.read_available(NOW) == []
    assert codes(reader.read_to_end(NOW)) == ["79"]
    path.write_text(
        "[ 3.0] pcieport 0000:c0:01.1: AER: Uncorrectable (Fatal) error message received from 0000:c1:00.0\n"
    )
    late = open_reader(str(path))
    assert codes(late.read_to_end(NOW)) == ["pcie.aer"]
    assert late.read_available(NOW) == []


def test_clean_up_after_an_earlier_read_names_its_cause(device: Device, open_reader: Open) -> None:
    """XID 45 follows the XID that an earlier read told, while that is near."""
    reader = open_reader(device.path)
    device.write(xid(1, 62, seconds=880))
    reader.read_available(NOW)
    device.write(xid(2, 45, seconds=885), xid(3, 45, seconds=899))
    near, _ = reader.read_available(NOW)
    assert near.fields["follows"] == "nvidia.xid.62"
    device.write(xid(4, 45, seconds=999))
    late = Instant(BOOT, NOW.boottime_ns + 120_000_000_000, NOW.wall_seconds + 120)
    (far,) = reader.read_available(late)
    assert "follows" not in far.fields


def test_selector_wakes_for_device_and_fifo(device: Device, open_reader: Open, tmp_path: Path) -> None:
    """The descriptor can be waited for; a FIFO without a writer is quiet instead of always ready."""
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    for path in (device.path, str(fifo)):
        reader = open_reader(path)
        assert reader.pollable
        with selectors.DefaultSelector() as selector:
            selector.register(reader, selectors.EVENT_READ)
            assert selector.select(0) == []
            if path == device.path:
                device.write(xid(1))
            else:
                fifo.write_text(xid(1)[:20])
                fifo.write_text(xid(1)[20:])
            assert len(selector.select(5)) == 1
        assert codes(reader.read_available(NOW)) == ["79"]


def test_file_is_followed_from_the_last_whole_line(tmp_path: Path, open_reader: Open) -> None:
    """What was appended is read, an unfinished line waits, and a restart goes on where the last one stopped."""
    path = tmp_path / "kern.log"
    path.write_text(xid(1))
    reader = open_reader(str(path))
    assert not reader.pollable
    assert codes(reader.read_available(NOW)) == ["79"]
    with path.open("a") as file:
        file.write(f"[ 12.0] NVRM: Xid (PCI:0000:3b:00): 48\n{xid(3, 63)[:25]}")
    assert codes(reader.read_available(NOW)) == ["48"]
    cursor = reader.cursor
    with path.open("a") as file:
        file.write(xid(3, 63)[25:])
    assert codes(open_reader(str(path), cursor).read_available(NOW)) == ["63"]
    assert codes(reader.read_available(NOW)) == ["63"]


def test_endless_line_does_not_hold_up_what_follows(tmp_path: Path, open_reader: Open) -> None:
    """A file that begins with megabytes without a line end is read through; the line behind it counts once."""
    path = tmp_path / "kmsg.log"
    path.write_bytes(b"\0" * 5_000_000)
    reader = open_reader(str(path))
    for _ in range(8):
        assert reader.read_available(NOW) == []
    with path.open("a") as file:
        file.write("\n" + xid(7))
    assert codes(reader.read_available(NOW)) == ["79"]
    assert codes(reader.read_available(NOW)) == []


def test_cut_or_replaced_file_is_read_from_its_start(tmp_path: Path, open_reader: Open) -> None:
    """A log that was rotated away or cut is read anew."""
    path = tmp_path / "kern.log"
    path.write_text(xid(1) * 3)
    reader = open_reader(str(path))
    assert len(reader.read_available(NOW)) == 3
    path.write_text(xid(9, 48))
    assert codes(reader.read_available(NOW)) == ["48"]
    assert "was cut" in reader.take_notes()[0]
    replacement = tmp_path / "new.log"
    replacement.write_text(xid(1, 63))
    cursor = reader.cursor
    replacement.replace(path)
    assert codes(reader.read_available(NOW)) == ["63"]
    assert codes(open_reader(str(path), cursor).read_available(NOW)) == ["63"]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("first", [xid(9, 48), "\0" * 400 + "\n" + xid(9, 48)])
def test_a_file_that_was_cut_and_has_grown_past_its_place_is_read_from_its_start(
    tmp_path: Path, open_reader: Open, restarts: bool, first: str
) -> None:
    """As with `copytruncate`: its length says nothing then, and the lines before the old place were never read."""
    path = tmp_path / "kern.log"
    path.write_text(xid(1))
    reader = open_reader(str(path))
    assert codes(reader.read_available(NOW)) == ["79"]
    with path.open("a") as writer:
        writer.write(xid(2, 63))
    assert codes(reader.read_available(NOW)) == ["63"], "one that only grew is read on"
    path.write_text(first + xid(10, 94) + xid(11, 95))
    reader = open_reader(str(path), reader.cursor) if restarts else reader
    assert codes(reader.read_available(NOW)) == ["48", "94", "95"]
    (note,) = reader.take_notes()
    assert "was cut" in note and "is lost" in note
    assert codes(reader.read_available(NOW)) == []


def test_nothing_is_lost_while_a_file_is_rotated(tmp_path: Path, open_reader: Open) -> None:
    """logrotate gives the file another name, and whoever writes it goes on with that until it is told."""
    path, old = tmp_path / "kern.log", tmp_path / "kern.log.1"
    path.write_text(xid(1))
    reader = open_reader(str(path))
    assert codes(reader.read_available(NOW)) == ["79"]
    with path.open("a") as writer:
        writer.write(xid(2, 48))
        writer.flush()
        path.rename(old)
        path.touch()
        assert codes(reader.read_available(NOW)) == ["48"]
        writer.write(xid(3, 63))
        writer.flush()
        assert codes(reader.read_available(NOW)) == ["63"], "the new file has nothing yet"
        writer.write(xid(4, 64))
    path.write_text(xid(5, 94))
    assert codes(reader.read_available(NOW)) == ["64", "94"]
    path.write_text(xid(5, 94) + xid(6, 95))
    assert codes(reader.read_available(NOW)) == ["95"]
    assert reader.cursor.inode == path.stat().st_ino


def test_more_than_one_look_takes_is_read_before_the_new_file(tmp_path: Path, open_reader: Open) -> None:
    """What is left of the old file is read first, however long it is."""
    path = tmp_path / "kern.log"
    path.write_text("")
    reader = open_reader(str(path))
    reader.read_available(NOW)
    path.write_text("[    1.000000] nothing of interest here\n" * 100_000 + xid(1))
    path.rename(tmp_path / "kern.log.1")
    path.write_text(xid(2, 48))
    found: list[str] = []
    for _ in range(20):
        found += codes(reader.read_available(NOW))
    assert found == ["79", "48"]


@pytest.mark.parametrize("name", ["absent", "directory"])
def test_log_that_cannot_be_opened_is_refused_with_a_way_out(name: str, tmp_path: Path) -> None:
    """The message names the path and what to do."""
    path = tmp_path / name
    if name == "directory":
        path.mkdir()
    with pytest.raises(NodevetError, match=rf"{path}: .*(name a file|a FIFO or a file)"):
        KernelLogReader(str(path), boot_id=BOOT)


def test_log_that_may_not_be_read_names_the_capability(tmp_path: Path) -> None:
    """A refused log names the capability and the setting that allow it."""
    path = tmp_path / "kmsg"
    path.write_text("")
    path.chmod(0)
    with as_ordinary_user(), pytest.raises(KernelLogError, match=r"CAP_SYSLOG.*dmesg_restrict"):
        KernelLogReader(str(path), boot_id=BOOT)


@contextlib.contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Give up root's rights for a moment, which would read everything."""
    mine = os.geteuid()
    if mine == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(mine)


@pytest.mark.parametrize("argument", [DEFAULT_PATH, "-"])
def test_the_real_log_that_is_given_as_a_saved_one_ends(argument: str) -> None:
    """A person asks what is in it now; nothing waits for what the kernel says next."""
    try:
        log = Path(DEFAULT_PATH).open("rb")  # noqa: SIM115 -- closed below
    except OSError:
        pytest.skip(NO_KERNEL_LOG)
    with log:
        command = [sys.executable, "-m", "nodevet.agent.cli", "check", "kernel-log", "--from", argument]
        done = subprocess.run(command, stdin=log, capture_output=True, timeout=60, check=False)
        assert done.returncode in (0, 1, 2), done.stderr
        assert os.get_blocking(log.fileno())  # whoever shares the descriptor reads as before


@pytest.mark.parametrize("through", ["path", "input"])
def test_a_log_that_never_ends_is_read_up_to_its_end(monkeypatch: pytest.MonkeyPatch, through: str) -> None:
    """Whoever writes it still has it open, as the kernel has its own, and overwrites what was not read."""

    class Ring(io.FileIO):
        overruns = 3

        def readinto(self, buffer: bytearray, /) -> int | None:  # type: ignore[override]
            if self.overruns:
                self.overruns -= 1
                raise BrokenPipeError(errno.EPIPE, "overwritten")
            return super().readinto(buffer)

    class Torn(reader_module._Ring, Ring):
        """Is overwritten three times before it gives anything."""

    monkeypatch.setattr(reader_module, "_Ring", Torn)
    monkeypatch.setattr(reader_module, "is_kernel_device", lambda _descriptor: True)
    end, writer = os.pipe()
    os.write(writer, xid(1).encode())
    with os.fdopen(end, "rb") as file:
        path = "-" if through == "input" else f"/proc/self/fd/{end}"
        (event,) = events_from_file(path, file)
    os.close(writer)
    assert (event.code, event.provenance) == ("nvidia.xid.79", Provenance.TEXT)
