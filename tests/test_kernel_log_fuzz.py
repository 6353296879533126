"""No bytes make the reading of a kernel log fail: a poison record costs itself, is counted, and is passed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodevet.checks.core.model import Event, Instant
from nodevet.checks.kernel_log.journal import entry_line
from nodevet.checks.kernel_log.lines import split_line, split_record
from nodevet.checks.kernel_log.parse import KernelLogParser, events_from_lines
from nodevet.checks.kernel_log.reader import KernelLogReader, events_from_file
from nodevet.checks.kernel_log.report import describe, to_json

NOW = Instant("boot", 10**12, 50_000.0)
GOOD = "4,{},1000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus.\n"
NINES = "9" * 320
LONG = "9" * 5_000
POISON = (
    f"4,7,{NINES},-;NVRM: Xid (PCI:0000:3b:00): 79",
    f"4,{NINES},7,-;NVRM: Xid (PCI:0000:3b:00): 79",
    f"{NINES},7,7,-;NVRM: Xid (PCI:0000:3b:00): 79",
    f"4,7,7,-;NVRM: Xid (PCI:0000:3b:00): {LONG}, pid={LONG}",
    f"[{NINES}.{NINES}] NVRM: Xid (PCI:0000:3b:00): 79",
    f"[ 1.5] NVRM: Xid (PCI:0000:3b:00): 45, pid={LONG}, name=x, Ch 1 caused by previous Xid {LONG}",
    f"[ 1.5] NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x{LONG} (x) to 0x{LONG} (y)",
    f"[ 1.5] nvidia-nvswitch{LONG}: SXid (PCI:0000:05:00.0): {LONG}, Fatal, Link {LONG}",
    f"[ 1.5] EDAC MC{LONG}: {LONG} UE memory read error on x",
    f"[ 1.5] Memory failure: 0x1: Killing x:{LONG} due to hardware memory corruption",
    f"9999-12-31T23:59:59.{NINES}-23:59 node kernel: NVRM: Xid (PCI:0000:3b:00): 79",
    "0001-01-01T00:00:00+23:59 node kernel: NVRM: Xid (PCI:0000:3b:00): 79",
    "[Fri Jan 01 00:00:00 0001] NVRM: Xid (PCI:0000:3b:00): 79",
    json.dumps({"MESSAGE": GOOD, "__REALTIME_TIMESTAMP": NINES, "__MONOTONIC_TIMESTAMP": NINES}),
    json.dumps({"MESSAGE": [300, -1], "_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0"}),
    "4,7,٣٣٣,-;NVRM: Xid (PCI:0000:3b:00): ٧٩",
    "4,7,1,-;\\xff\\x00\\x0a\\x",
    "\ud800",
    "{" * 5_000,
)

numbers = st.text("0123456789abcdefx.,:;-+[]()<> ", max_size=40) | st.sampled_from(["9" * 25, NINES, LONG, "-1", ""])
shapes = st.sampled_from(POISON) | st.builds(
    "{},{},{},{};NVRM: Xid (PCI:{}): {}, pid={}, name={}, {}".format, *[numbers | st.text(max_size=20)] * 9
)
lines = st.text(max_size=200) | shapes | st.builds("[{}] {}".format, numbers, shapes)


def encoded(events: list[Event]) -> None:
    """Encode *events* in every form in which they leave."""
    msgspec.msgpack.encode(events)
    msgspec.json.encode(to_json(events))
    for event in events:
        assert describe(event)


class Script:
    """A kernel's log of prepared records: one read gives one."""

    def __init__(self, *records: bytes) -> None:
        """Give *records* in this order."""
        self._records = list(records)

    def read(self, _descriptor: int, _size: int) -> bytes:
        """Return the next record; raise BlockingIOError where there is none."""
        if not self._records:
            raise BlockingIOError
        return self._records.pop(0)


@pytest.fixture(scope="module")
def terminal() -> Iterator[str]:
    """The path of a character device."""
    master, slave = os.openpty()
    yield os.ttyname(slave)
    os.close(master)
    os.close(slave)


def reader(path: str, *records: bytes, kernel: bool = True) -> KernelLogReader:
    """Return a reader of the kernel's log with *records*."""
    return KernelLogReader(
        path, boot_id="boot", monotonic_ns=lambda: 10**12, read=Script(*records).read, stands_for_kernel=kernel
    )


@pytest.mark.parametrize("poison", POISON, ids=range(len(POISON)))
def test_a_poison_record_costs_itself(terminal: str, tmp_path: Path, poison: str) -> None:
    """The records around it are told, the cursor stands behind them, and what was kept can be written."""
    data = [GOOD.format(6).encode(), f"{poison}\n".encode("utf-8", "surrogatepass"), GOOD.format(8).encode()]
    log = reader(terminal, *data)
    events = log.read_available(NOW)
    assert [event.sequence for event in events if event.code == "nvidia.xid.79"][-1:] == [8]
    assert len(events) >= 2
    assert log.cursor.sequence == 8
    encoded(events)
    msgspec.msgpack.encode(log.cursor)
    log.close()
    file = tmp_path / "kern.log"
    file.write_bytes(b"".join(data))
    encoded(events_from_file(str(file)))
    with_cursor = KernelLogReader(str(file), boot_id="boot", monotonic_ns=lambda: 10**12)
    encoded(with_cursor.read_available(NOW))
    assert with_cursor.cursor.offset == file.stat().st_size
    with_cursor.close()


def test_poison_records_are_counted_and_told_once(terminal: str) -> None:
    """A thousand of them are one line in the agent's log."""
    log = reader(terminal, *[f"4,7,{NINES},-;x\n".encode()] * 1000)
    assert log.read_available(NOW) == []
    assert log.statistics.malformed == 1000
    (note,) = log.take_notes()
    assert "more are counted" in note
    log.close()


@settings(max_examples=300, deadline=None)
@given(st.lists(lines, max_size=4))
def test_no_text_makes_a_saved_log_fail(texts: list[str]) -> None:
    """Whatever a line holds, it is read or passed, and what it gave can be written."""
    encoded(events_from_lines(texts))
    for text in texts:
        split_line(text)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=200) | lines.map(lambda text: text.encode("utf-8", "surrogatepass")), max_size=4))
def test_no_bytes_make_a_record_or_an_entry_fail(records: list[bytes]) -> None:
    """What a read of /dev/kmsg, or a line of journalctl, may give is taken or passed."""
    parser = KernelLogParser()
    for data in records:
        for line in (split_record(data.decode("utf-8", "replace")), entry_line(data)):
            if line is not None:
                parser.feed(line, NOW)
    encoded(parser.take())


@settings(max_examples=100, deadline=None)
@given(
    records=st.lists(
        st.binary(min_size=1, max_size=200) | lines.map(lambda text: text.encode("utf-8", "replace") or b"x"),
        max_size=6,
    )
)
def test_no_bytes_make_the_reader_fail(terminal: str, records: list[bytes]) -> None:
    """The reader goes on to the end of the log, and its cursor can be kept."""
    log = reader(terminal, *records)
    encoded(log.read_available(NOW))
    msgspec.msgpack.encode(log.cursor)
    log.close()


def test_a_storm_is_read_in_bounded_turns_and_little_memory(terminal: str) -> None:
    """A hundred thousand XIDs hold no caller for long and leave nothing behind."""
    text = "4,{},1000000,-;NVRM: Xid (PCI:0000:3b:00): 13, pid=1, name=x, Graphics Exception\n"
    log = reader(terminal, *(text.format(number).encode() for number in range(30_000)))
    told = [len(log.read_available(NOW)) for _ in range(4)]
    assert told == [10_000, 10_000, 10_000, 0]
    assert not log.holds_back
    log.close()


LOOK_SECONDS = 0.1
"""Of a processor. A look through the longest of these lines takes 2 ms, one from each of its places half a second."""

STAMPS = ("", "[ 1.5] ", "<4>", "4,7,7,-;", "kern  :err   : ", "Jan  1 00:00:00 n kernel: ", "Jan  1 00:00:00 n a: ")
BEGINS = (
    "[",
    '"msg": "x"',
    '"fac": "x"',
    "NVRM: Xid (PCI:0000:3b:00): 74, ",
    "NVRM: Xid (PCI:0000:3b:00): 145, ",
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, ",
    "amdgpu 0000:03:00.0: amdgpu: ",
    "Memory failure: 0x1: ",
    "EDAC MC0: ",
    "",
)
PIECES = (
    " ",
    "\t",
    "\xa0",
    "a",
    "1",
    "[",
    "(",
    ":",
    ", ",
    "x ",
    "1 ",
    "0:",
    "=2E",
    "^[[",
    "NVLink ",
    "pid=",
    "Xid ",
    "<",
    "- ",
)


def seconds_of(line: str) -> float:
    """Return how long *line* keeps a processor."""
    began = time.thread_time()
    events_from_lines([line])
    return time.thread_time() - began


LONGEST = {
    "brackets": f"[{' ' * 8_000}[[",
    "message": f'"msg": "x"{" " * 12_000}z',
    "facility": f'"fac": "x"{" " * 8_000}z',
}


@pytest.mark.parametrize("name", LONGEST)
def test_blanks_without_end_are_looked_through_once(name: str) -> None:
    """A user who can write the file that is read must not make one line hold up the loop."""
    seconds_of(GOOD)  # what is made ready once is no cost of a line
    assert seconds_of(LONGEST[name]) < LOOK_SECONDS


@pytest.mark.parametrize("begin", BEGINS)
def test_no_line_costs_more_than_a_look_through_it(begin: str) -> None:
    """Whatever is repeated in it, behind whichever stamp and words."""
    seconds_of(GOOD)
    for stamp in STAMPS:
        for piece in PIECES:
            line = f"{stamp}{begin}{piece * (8_000 // len(piece))}!"
            assert min(seconds_of(line) for _ in range(2)) < LOOK_SECONDS, (stamp, piece)
