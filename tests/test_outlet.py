"""Lines on their way out: nothing waits for whoever should read them, and what is dropped is counted."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import msgspec
import pytest
from fakes.snapshots import failed_node

from nodevet.agent.daemon.event_log import EventLog
from nodevet.agent.daemon.log import make_logger
from nodevet.agent.daemon.notify import Notifier
from nodevet.agent.terminal.outlet import Outlet
from nodevet.checks.core.wire import Note

LINE = "x" * 999 + "\n"


class Pipe:
    """A pipe whose reader may stop."""

    def __init__(self) -> None:
        """Open it."""
        self.reader, self.writer = os.pipe()

    def fill(self) -> int:
        """Write until nothing more goes in, as a reader that has stopped leaves it; return how much that was."""
        os.set_blocking(self.writer, False)
        size = 0
        for piece in (4096, 1):
            try:
                while True:
                    size += os.write(self.writer, b"." * piece)
            except BlockingIOError:
                pass
        os.set_blocking(self.writer, True)
        return size

    def drain(self, size: int) -> bytes:
        """Read *size* bytes."""
        data = b""
        while len(data) < size:
            data += os.read(self.reader, size - len(data))
        return data

    def close(self) -> None:
        """Close both ends."""
        os.close(self.reader)
        os.close(self.writer)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A pipe with room."""
    opened = Pipe()
    yield opened
    opened.close()


def test_lines_come_in_order_and_whole(pipe: Pipe) -> None:
    """Several writers of one outlet do not mix."""
    outlet = Outlet()
    for number in range(50):
        outlet.put(pipe.writer, f"line {number}\n")
    assert outlet.close(5)
    assert os.read(pipe.reader, 4096).decode().splitlines() == [f"line {number}" for number in range(50)]
    assert outlet.dropped == 0


def test_a_reader_that_stops_holds_nobody_up_and_what_finds_no_room_is_counted(pipe: Pipe) -> None:
    """The bound is in bytes; what waits is written once the reader goes on."""
    outlet = Outlet(limit_bytes=10 * len(LINE))
    filled = pipe.fill()
    for _ in range(25):
        outlet.put(pipe.writer, LINE)
    assert outlet.dropped == 15
    assert not outlet.close(0.05)
    pipe.drain(filled)
    assert pipe.drain(10 * len(LINE)) == LINE.encode() * 10


def test_a_reader_that_went_away_costs_its_lines_only(pipe: Pipe) -> None:
    """A closed pipe, and a full disk, end neither the thread nor the agent."""
    outlet = Outlet()
    full = os.open("/dev/full", os.O_WRONLY)
    for descriptor in (full, 10_000):
        outlet.put(descriptor, LINE)
    outlet.put(pipe.writer, "still here\n")
    assert outlet.flush(1)
    os.close(full)
    assert os.read(pipe.reader, 100) == b"still here\n"


def test_a_pipe_that_another_process_made_non_blocking_loses_nothing(pipe: Pipe) -> None:
    """Terminals and journald hand such descriptors on."""
    filled = pipe.fill()
    os.set_blocking(pipe.writer, False)
    outlet = Outlet()
    outlet.put(pipe.writer, LINE)
    assert not outlet.close(0.05)
    pipe.drain(filled)
    assert pipe.drain(len(LINE)) == LINE.encode()


def teller_into(pipe: Pipe, outlet: Outlet, seconds: list[float]) -> EventLog:
    """Return a teller that logs into *pipe* through *outlet*, by the clock *seconds*."""
    log = make_logger("info", os.fdopen(pipe.writer, "w", closefd=False), {}, outlet)
    return EventLog(log, Notifier(None), monotonic=lambda: seconds[-1], outlet=outlet)


def test_dropped_lines_are_told_once_the_reader_goes_on(pipe: Pipe) -> None:
    """With their number; and not again."""
    seconds = [0.0]
    outlet = Outlet(limit_bytes=4096)
    event_log = teller_into(pipe, outlet, seconds)
    filled = pipe.fill()
    for number in range(100):
        event_log.trouble(f"line {number:3}")
    dropped = event_log.dropped_lines
    assert 0 < dropped < 100
    event_log.tick()  # there is no room for this line either
    assert event_log.dropped_lines == dropped + 1
    pipe.drain(filled)
    assert outlet.flush(5)
    event_log.tick()
    event_log.tick()
    assert outlet.close(5)
    text = os.read(pipe.reader, 1 << 16).decode()
    assert text.count("log lines dropped") == 1
    assert f"count={dropped + 1}" in text


def test_a_child_that_floods_hides_no_finding(pipe: Pipe) -> None:
    """Lines of each source are folded by themselves."""
    seconds = [0.0]
    outlet = Outlet()
    event_log = teller_into(pipe, outlet, seconds)
    for number in range(10_000):
        event_log.note(Note("info", "collector output", {"line": f"debug {number}"}))
    failed = failed_node()
    event_log.changes(None, failed, failed.episodes)
    seconds.append(60.0)
    event_log.tick()
    assert outlet.close(5)
    lines = os.read(pipe.reader, 1 << 16).decode().splitlines()
    assert len(lines) < 70
    assert sum("finding open" in line and "nvidia.xid.79" in line for line in lines) == 1
    assert any("repeated" in line and "count=9936" in line for line in lines)


def test_a_trouble_that_comes_again_and_again_is_folded(pipe: Pipe) -> None:
    """Said from whichever thread, and one that is over again each time too."""
    seconds = [0.0]
    outlet = Outlet()
    event_log = teller_into(pipe, outlet, seconds)
    calm = failed_node()
    torn = msgspec.structs.replace(calm, agent=msgspec.structs.replace(calm.agent, notices=("the disk is full",)))
    threads = [threading.Thread(target=event_log.trouble, args=("no thread can be started",)) for _ in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(1_000):
        event_log.changes(calm, torn, ())
        event_log.changes(torn, calm, ())
    seconds.append(60.0)
    event_log.tick()
    assert outlet.close(5)
    lines = os.read(pipe.reader, 1 << 16).decode().splitlines()
    assert len(lines) == 3 * 5 + 3
    assert any("count=195" in line and "no thread can be started" in line for line in lines)
    assert sum("count=995" in line for line in lines) == 2


def test_more_troubles_than_a_person_reads_are_one_storm(pipe: Pipe) -> None:
    """What names an address or a number in each line fills no log either; a finding is still written."""
    seconds = [0.0]
    outlet = Outlet()
    event_log = teller_into(pipe, outlet, seconds)
    for number in range(10_000):
        event_log.trouble(f"http: request failed: {number}")
    failed = failed_node()
    event_log.changes(None, failed, failed.episodes)
    seconds.append(60.0)
    event_log.tick()
    assert outlet.close(5)
    lines = os.read(pipe.reader, 1 << 16).decode().splitlines()
    assert len(lines) < 70
    assert any("repeated" in line and "count=9936" in line for line in lines)
    assert any("finding open" in line for line in lines)
