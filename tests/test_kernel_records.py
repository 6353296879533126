"""A record of the firmware is one, in however many reads of the log its lines come."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.views import at, healthy, judge

from nodevet.checks.core.model import NODE, Event, Finding, Instant
from nodevet.checks.core.parts import unit_of
from nodevet.checks.kernel_log.lines import split_record
from nodevet.checks.kernel_log.parse import ECHO_SECONDS, SETTLE_SECONDS, KernelLogParser
from nodevet.checks.kernel_log.reader import KernelLogReader

HEAD = "{7}[Hardware Error]:"
BOARD = "0000:1b:00.0"
RECORDS = {
    "PCIe": (f"{HEAD}   section_type: PCIe error", f"{HEAD}   port_type: 0, endpoint", f"{HEAD}   device_id: {BOARD}"),
    "memory": (f"{HEAD}   section_type: memory error", f"{HEAD}   error_status: 0", f"{HEAD}   DIMM location: P0 A1"),
}


def lines(kind: str, severity: str = "fatal") -> tuple[str, ...]:
    """Return a record as the kernel prints it."""
    source = f"{HEAD} Hardware error from APEI Generic Hardware Error Source: 2"
    return (source, f"{HEAD} event severity: {severity}", f"{HEAD}  Error 0, type: {severity}", *RECORDS[kind])


class Log:
    """A log that is read ten times a second."""

    def __init__(self) -> None:
        """Begin at a moment of this boot."""
        self._parser = KernelLogParser()
        self._seconds = 100.0
        self.events: list[Event] = []

    def write(self, *texts: str) -> None:
        """Have the kernel print *texts*, and read them."""
        for text in texts:
            line = split_record(f"2,1,{int(self._seconds * 1e6)},-;{text}\n")
            assert line is not None
            self._parser.feed(line, at(self._seconds))
        self.wait(0.0)

    def wait(self, seconds: float) -> None:
        """Let *seconds* go by."""
        end = self._seconds + seconds
        while True:
            self.events += self._parser.take(at(self._seconds - SETTLE_SECONDS))
            if self._seconds >= end:
                return
            self._seconds = min(self._seconds + 0.1, end)


def finding(event: Event) -> Finding:
    """Return what *event* counts as on a node with one board."""
    (found,) = [one for one in judge("kernel-log", healthy(events=(event,))) if one.key.code == event.code]
    return found


@pytest.mark.parametrize("foreign", [0, 40])
@pytest.mark.parametrize("pause", [0.2, 2.0, 4.0])
@pytest.mark.parametrize("kind", list(RECORDS))
def test_a_record_that_comes_in_two_pieces_is_judged_as_one(kind: str, pause: float, foreign: int) -> None:
    """Wherever a read ends in it: nothing is told of the first piece, and the board or module is blamed, not the node.

    A slow console, and lines that users have the kernel print, may part it.
    """
    record = lines(kind)
    for cut in range(1, len(record)):
        log = Log()
        log.write(*record[:cut])
        log.write(*["x (pid 7) is no fault"] * foreign)
        log.wait(pause)
        assert log.events == []
        log.write(*record[cut:])
        (event,) = log.events
        assert (event.severity, event.pci or unit_of(event.fields)) == ("fatal", BOARD if kind == "PCIe" else "P0 A1")
        if kind == "PCIe":
            assert finding(event).gates and finding(event).device != NODE


def test_other_records_of_one_family_part_no_record() -> None:
    """Corrected errors of another board, each a record of its own number, stand between the lines of a fatal one."""
    record, log = lines("PCIe"), Log()
    log.write(*record[:-1])
    for number in range(10, 30):
        source, *others = (line.replace("{7}", f"{{{number}}}") for line in lines("PCIe", "corrected"))
        log.write(source, *(line.replace(BOARD, "0000:2b:00.0") for line in others))
    log.wait(0.2)
    log.write(record[-1])
    assert [event.pci for event in log.events if event.severity == "fatal"] == [BOARD]


def test_a_record_that_names_no_device_is_told_all_the_same() -> None:
    """The firmware need not know which one it was; the node is to blame then, after a while."""
    log = Log()
    log.write(*lines("PCIe")[:-1])
    log.wait(ECHO_SECONDS - 0.2)
    assert log.events == []
    log.wait(0.4)
    (event,) = log.events
    assert (finding(event).device, finding(event).gates) == (NODE, True)


def test_a_line_of_another_record_names_no_device_of_this_one() -> None:
    """Two processors print in turn."""
    log = Log()
    log.write(*lines("PCIe")[:-1], "{8}[Hardware Error]:   device_id: 0000:5e:00.0", lines("PCIe")[-1])
    assert [event.pci for event in log.events] == [BOARD]


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5])
def test_a_record_that_waits_is_read_again_after_a_restart(tmp_path: Path, cut: int) -> None:
    """Its place in the log is kept until it is told: how grave it is stands in its first lines."""
    path = tmp_path / "kernel.log"
    path.touch()
    begin = 100_000_000_000
    place = None
    found: list[Event] = []
    for life in (range(cut), range(cut, 6)):
        reader = KernelLogReader(str(path), place, boot_id="b", monotonic_ns=lambda: begin)
        for number in life:
            with path.open("a") as log:
                log.write(f"[  {100 + number * 0.7:.6f}] {lines('PCIe')[number]}\n")
            moment = begin + number * 700_000_000
            found = reader.read_available(Instant("b", moment, 1e9))
            place = reader.cursor
        reader.close()
    (event,) = found
    assert (event.severity, event.pci) == ("fatal", BOARD)


def test_what_nothing_follows_keeps_no_place(tmp_path: Path) -> None:
    """The first lines of a record whose section says nothing are read once."""
    path = tmp_path / "kernel.log"
    path.write_text("".join(f"[  100.000000] {text}\n" for text in lines("PCIe")[:3]))
    reader = KernelLogReader(str(path), None, boot_id="b", monotonic_ns=lambda: 100_000_000_000)
    places = []
    for second in (0, 3, 6):
        reader.read_available(Instant("b", (100 + second) * 1_000_000_000, 1e9))
        places.append(reader.cursor.offset)
    reader.close()
    assert places == [0, 0, path.stat().st_size]
