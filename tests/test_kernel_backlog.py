"""Where the ring was overwritten before the start, the journal is asked, or the number of lost records is told."""

from __future__ import annotations

import errno
import json
import os
import selectors
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes.views import judge

from nodevet.agent.config.load import load_configuration
from nodevet.agent.once import run as oneshot
from nodevet.agent.readers.kernel_backlog import Output, journal_output
from nodevet.agent.readers.kernel_watch import PIECE_EVENTS, KernelWatch
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.errors import NodevetError
from nodevet.checks.core.model import Event, Provenance
from nodevet.checks.engine.registry import installed
from nodevet.checks.engine.view import View
from nodevet.checks.kernel_log.journal import ARGUMENTS, Span
from nodevet.checks.kernel_log.lines import Line
from nodevet.checks.system.process import RunError, Runner

XID = "NVRM: Xid (PCI:0000:3b:00): {}, pid=1, name=x, words"


def record(sequence: int, seconds: float, text: str = "x") -> bytes:
    """Return a record of /dev/kmsg."""
    return f"4,{sequence},{int(seconds * 1e6)},-;{text}\n".encode()


def entry(seconds: float, text: str, **changes: str | None) -> str:
    """Return an entry of the journal as journalctl prints it; None takes a field away."""
    fields = {
        "MESSAGE": text,
        "_TRANSPORT": "kernel",
        "SYSLOG_FACILITY": "0",
        "_SOURCE_MONOTONIC_TIMESTAMP": str(int(seconds * 1e6)),
        **changes,
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None})


def output(*entries: str) -> bytes:
    """Return what journalctl prints."""
    return "".join(f"{line}\n" for line in entries).encode()


class Watch:
    """A watch of a kernel's log that holds these records."""

    def __init__(self, terminal: str, journal: Callable[[], bytes]) -> None:
        """Follow it at *terminal*, a character device, beside *journal*."""
        self.notes: list[str] = []
        self.records: list[bytes] = []
        self.journal = journal
        self.terminal = terminal
        self.selector = selectors.DefaultSelector()

    def start(
        self,
        memory: bytes | None = None,
        output: Output | None = None,
        read: Callable[[int, int], bytes] | None = None,
    ) -> KernelWatch:
        """Begin, from *memory*; *output* stands for journalctl, *read* for what reads the log."""
        return KernelWatch(
            self.terminal,
            SystemClock(),
            self.selector,
            memory=memory,
            log=self.notes.append,
            stands_for_kernel=True,
            journal=output or self._print,
            read=read or self.read,
        )

    def _print(self, take: Callable[[bytes], object]) -> None:
        take(self.journal())

    def read(self, _descriptor: int, _size: int) -> bytes:
        """Return the next record."""
        if not self.records:
            raise BlockingIOError
        return self.records.pop(0)


@pytest.fixture
def terminal() -> Iterator[str]:
    """The path of a character device."""
    master, slave = os.openpty()
    yield os.ttyname(slave)
    os.close(master)
    os.close(slave)


def codes(events: list[Event]) -> list[str]:
    """Return the codes without their family."""
    return [event.code.removeprefix("nvidia.xid.") for event in events]


def test_the_first_records_of_the_kernel_are_not_lost_where_the_journal_has_them(terminal: str) -> None:
    """They have the stamp 0: counted as lost, they would stand with the notices of each node with a small ring."""
    rig = Watch(terminal, lambda: output(entry(0.0, "Linux version"), entry(0.0, XID.format(62)), entry(1.0, "x")))
    rig.records = [record(3, 10.0)]
    watch = rig.start()
    assert codes([*watch.read(), *watch.settle()]) == ["62"]
    assert (watch.state.lost_records, watch.trouble) == (0, "")
    watch.close()


def test_what_was_overwritten_before_the_start_is_read_from_the_journal(terminal: str) -> None:
    """A board lost an hour before the agent's first start is found though the ring has forgotten it."""
    journal = output(
        entry(1.0, "Linux version"),
        entry(2.0, XID.format(79)),
        entry(3.0, XID.format(48), SYSLOG_FACILITY="1"),
        entry(9.0, XID.format(62)),
    )
    rig = Watch(terminal, lambda: journal)
    rig.records = [record(3, 9.0, XID.format(62)), record(4, 10.0)]
    watch = rig.start()
    assert codes(watch.read() + watch.settle()) in (["62", "79"], ["79", "62"])
    assert watch.read() == watch.settle() == []
    assert watch.state.lost_records == 0
    assert any("the journal has 3 of 3 overwritten records" in note for note in rig.notes)
    watch.close()


def test_a_storm_in_the_journal_is_taken_in_pieces(terminal: str) -> None:
    """300,000 XIDs of before the start kept the loop from SIGTERM for half a minute; half of that again, its watchdog.

    Until all of them were taken, another agent would begin where this one did.
    """
    storm = output(*(entry(2.0 + number / 1e3, XID.format(31)) for number in range(2 * PIECE_EVENTS + 1)))
    rig = Watch(terminal, lambda: storm)
    rig.records = [record(5, 99.0)]
    watch = rig.start()
    found = [watch.read()]
    assert watch._backlog is not None
    watch._backlog.wait()
    while watch.memory is None:
        found.append(watch.read())
        assert watch.memory or watch.next_deadline <= time.monotonic(), "the next piece is due at once"
    assert max(map(len, found)) == PIECE_EVENTS
    assert sum(map(len, found)) == 2 * PIECE_EVENTS + 1
    assert sum("of 5 overwritten records" in note for note in rig.notes) == 1
    assert watch.read() == []
    watch.close()


def test_a_single_look_takes_all_of_a_storm_in_the_journal(terminal: str) -> None:
    """Nobody comes back for the rest."""
    rig = Watch(terminal, lambda: output(*(entry(2.0, XID.format(31)) for _ in range(PIECE_EVENTS + 1))))
    rig.records = [record(5, 99.0)]
    watch = rig.start()
    assert len(watch.read() + watch.settle()) == PIECE_EVENTS + 1
    watch.close()


def test_events_of_the_journal_are_the_kernels_own_word(terminal: str) -> None:
    """They are as old as the kernel says, and evidence."""
    rig = Watch(terminal, lambda: output(entry(2.0, XID.format(79))))
    rig.records = [record(1, 9.0)]
    watch = rig.start()
    (found,) = watch.read() + watch.settle()
    assert (found.provenance, found.pci) == (Provenance.KERNEL, "0000:3b:00")
    watch.close()


def refused() -> bytes:
    """Stand for a journal that cannot be read."""
    raise NodevetError("no rights to the journal")


def denied(_take: Callable[[bytes], object]) -> None:
    """Stand for one that is refused before it prints anything."""
    refused()


@pytest.mark.parametrize(
    ("journal", "lost", "words"),
    [
        (refused, 40, "no rights to the journal"),
        (lambda: b"", 40, "the journal has 0"),
        (lambda: b"\xff{", 40, "has 0"),
    ],
)
def test_without_the_journal_the_number_of_lost_records_is_told(
    terminal: str, journal: Callable[[], bytes], lost: int, words: str
) -> None:
    """Nobody may believe that all was seen."""
    rig = Watch(terminal, journal)
    rig.records = [record(40, 9.0, XID.format(62))]
    watch = rig.start()
    assert codes(watch.read() + watch.settle()) == ["62"]
    assert watch.state.lost_records == lost
    assert any(words in note for note in rig.notes), rig.notes
    watch.close()


def test_a_ring_that_was_not_overwritten_asks_no_journal(terminal: str) -> None:
    """Most starts: the first record is the boot's."""
    rig = Watch(terminal, refused)
    rig.records = [record(0, 0.0), record(1, 1.0)]
    watch = rig.start()
    assert watch.read() + watch.settle() == []
    assert rig.notes == []
    watch.close()


def test_a_restart_asks_for_what_lies_behind_its_cursor_alone(terminal: str) -> None:
    """What was read before the stop is not told again, what was overwritten during it is."""
    journal = output(entry(2.0, XID.format(79)), entry(5.0, XID.format(48)), entry(9.0, XID.format(62)))
    rig = Watch(terminal, lambda: journal)
    rig.records = [record(0, 1.0), record(1, 2.0, XID.format(79))]
    first = rig.start()
    assert codes(first.read()) == ["79"]
    memory = first.memory
    first.close()
    rig.records = [record(7, 9.0)]
    second = rig.start(memory)
    assert codes(second.read() + second.settle()) == ["48"]
    assert second.state.lost_records == 4
    second.close()


def test_a_kill_before_the_journal_answered_loses_nothing(terminal: str) -> None:
    """Until then the agent remembers where it was before, so that the next one asks again."""
    may_answer = threading.Event()

    def journal() -> bytes:
        assert may_answer.wait(10)
        return output(entry(2.0, XID.format(79)))

    rig = Watch(terminal, journal)
    rig.records = [record(1, 9.0)]
    watch = rig.start()
    assert watch.read() == []
    assert watch.memory is None
    may_answer.set()
    assert codes(watch.settle()) == ["79"]
    assert watch.memory is not None
    watch.close()


@pytest.mark.parametrize("name", ["kernel.log", "fifo"])
def test_a_file_or_a_fifo_never_asks_the_journal(tmp_path: Path, name: str) -> None:
    """They are texts, with sequence numbers that anybody may have written."""
    path = tmp_path / name
    if name == "fifo":
        os.mkfifo(path)
    else:
        path.write_bytes(record(40, 9.0, XID.format(79)))
    with selectors.DefaultSelector() as selector:
        watch = KernelWatch(str(path), SystemClock(), selector, log=lambda _line: None, journal=denied)
        watch.read()
        if name == "fifo":
            with path.open("wb") as file:
                file.write(record(40, 9.0, XID.format(79)))
            watch.wake(0)
            events = watch.read()
        else:
            watch.close()
            watch = KernelWatch(str(path), SystemClock(), selector, log=lambda _line: None, journal=denied)
            events = watch.read()
        assert [event.provenance for event in events] == [Provenance.TEXT]
        assert watch.settle() == []
        watch.close()


def test_device_that_is_not_the_kernels_own_log_is_text(terminal: str) -> None:
    """A terminal or a serial console gives what anybody writes there."""
    with selectors.DefaultSelector() as selector:
        lines = [record(0, 9.0, XID.format(79))]

        def read(_descriptor: int, _size: int) -> bytes:
            if not lines:
                raise BlockingIOError
            return lines.pop()

        watch = KernelWatch(terminal, SystemClock(), selector, log=lambda _line: None, read=read, journal=denied)
        assert [event.provenance for event in watch.read()] == [Provenance.TEXT]
        watch.close()


def test_journalctl_is_ended_at_its_deadline(tmp_path: Path) -> None:
    """It runs as every program of the site does: alone, with a deadline and bounded output."""
    program = tmp_path / "journalctl"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(stat.S_IRWXU)
    with pytest.raises(RunError):
        Runner().run((str(program), *ARGUMENTS), 0.1, {"PATH": "/usr/bin:/bin"})


def test_journalctl_of_this_machine_says_or_refuses() -> None:
    """The real program, where there is one."""
    span = Span(0.0, 1e9, lambda _line: None)
    try:
        journal_output(span.feed)
    except (NodevetError, OSError) as error:
        assert str(error)
    assert span.records >= 0


def test_a_journal_of_any_length_is_read(tmp_path: Path) -> None:
    """A ring that was overwritten means a long journal: 20,000 records are more than is kept of other programs."""
    program = tmp_path / "journalctl"
    long = entry(1.5, "y" * 600)
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{entry(2.0, XID.format(79))}\nEND\nyes '{long}' | head -n 20000\n")
    program.chmod(stat.S_IRWXU)
    lines: list[Line] = []
    span = Span(0.0, 9.0, lambda line: lines.append(line) if "Xid" in line.text else None)
    Runner(take=span.feed).run((str(program),), 20.0, {"PATH": "/usr/bin:/bin"})
    assert (len(lines), span.records) == (1, 20_001)


def test_what_the_journal_told_before_it_stopped_counts(terminal: str) -> None:
    """journalctl is ended at its deadline, or fails at a damaged file: its oldest entries were told before."""
    rig = Watch(terminal, lambda: b"")
    rig.records = [record(40, 9.0)]

    def breaks_off(take: Callable[[bytes], object]) -> None:
        take(output(entry(2.0, XID.format(79)), entry(3.0, "x")))
        take(entry(4.0, XID.format(48)).encode())
        raise NodevetError("did not end within 20 s")

    watch = rig.start(output=breaks_off)
    assert codes(watch.read() + watch.settle()) == ["79"]
    assert watch.state.lost_records == 38
    assert any(
        "has 2 of 40 overwritten records; the others cannot be read: did not end" in note for note in rig.notes
    ), rig.notes
    watch.close()


def test_an_entry_without_end_costs_itself() -> None:
    """Whatever journalctl prints, no more than one entry of it is in memory, and those behind it are read."""
    lines: list[Line] = []
    span = Span(0.0, 9.0, lines.append)
    for _ in range(41):
        span.feed(b'{"MESSAGE":"' + b"x" * 65_536)
    assert sys.getsizeof(span._rest) < 1 << 19
    for piece in (entry(2.0, XID.format(79)) + "\n", entry(3.0, "x")[:40], entry(3.0, "x")[40:] + "\n"):
        span.feed(piece.encode())
    assert [line.text for line in lines] == ["x"]


def spanned(*entries: str, boot_id: str = "") -> list[Line]:
    """Return the lines of the kernel in *entries*."""
    lines: list[Line] = []
    Span(0.0, 1e6, lines.append, boot_id).feed(output(*entries))
    return lines


def test_the_journal_of_another_boot_is_none() -> None:
    """Its stamps begin with 0 too, and what it tells is of a machine that was repaired since."""
    boot, other = "0a1b2c3d-0000-4000-8000-000000000001", "f" * 32
    entries = (entry(2.0, "x", _BOOT_ID=other), entry(3.0, "y", _BOOT_ID=boot.replace("-", "")), entry(4.0, "z"))
    assert [line.text for line in spanned(*entries, boot_id=boot)] == ["y", "z"]


def test_a_piece_of_a_line_that_the_journal_shows_as_a_line_proves_nothing() -> None:
    """journald drops the mark of a piece: what comes behind an unfinished line may be its rest."""
    oom = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)"
    lost = "amdgpu 0000:3b:00.0: amdgpu: device lost from bus!"
    lines = spanned(
        entry(1.0, XID.format(62)),
        entry(2.0, f"{oom},cpuset="),
        entry(2.0, "other[1]: segfault at 0"),
        entry(2.1, XID.format(79)),
        entry(2.2, lost, _KERNEL_DEVICE="+pci:0000:3b:00.0"),
        entry(12.5, XID.format(48)),
        entry(13.0, f"{oom},cpuset=x,mems_allowed=0"),
        entry(13.1, "usb 1-2: SerialNumber: 3q2+7w==", _KERNEL_DEVICE="+usb:1-2"),
        entry(13.2, XID.format(95)),
    )
    proven = [line.text for line in lines if line.provenance is Provenance.KERNEL]
    assert [text for text in proven if "Xid" in text] == [XID.format(62), XID.format(48), XID.format(95)]
    assert lost in proven


@pytest.mark.parametrize(
    "changes",
    [
        {"_TRANSPORT": None}, {"_TRANSPORT": "syslog"}, {"_TRANSPORT": "stdout"}, {"_TRANSPORT": "journal"},
        {"SYSLOG_FACILITY": None}, {"SYSLOG_FACILITY": "1"}, {"SYSLOG_FACILITY": "00"}, {"SYSLOG_FACILITY": " 0"},
        {"MESSAGE": None},
    ],
)  # fmt: skip
def test_an_entry_that_lacks_a_field_is_none_of_the_kernel(changes: dict[str, str | None]) -> None:
    """Who wrote it must be said, by journald itself."""
    assert spanned(entry(2.0, XID.format(79), **changes)) == []


@pytest.mark.parametrize("number", [-1, 256, 1 << 40])
def test_a_message_of_bytes_is_read_and_numbers_that_are_none_change_nothing(number: int) -> None:
    """journalctl prints what is not UTF-8 as a list of bytes."""
    text = XID.format(79)
    raw = json.loads(entry(2.0, "")) | {"MESSAGE": [*text.encode(), number]}
    (line,) = spanned(json.dumps(raw))
    assert line.text.startswith(text)
    assert line.provenance is Provenance.KERNEL


@pytest.mark.parametrize(("journal", "told"), [(refused, True), (lambda: output(entry(1.0, "Linux version")), False)])
def test_records_that_nobody_read_are_told_on_every_surface(
    terminal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: Callable[[], bytes], told: bool
) -> None:
    """With the agent's notices, and in a single look, which has no log: green says less there."""
    rig = Watch(terminal, journal)
    rig.records = [record(1, 9.0)]
    watch = rig.start()
    assert watch.trouble == ""  # nothing is known before the first look
    watch.read()
    watch.settle()
    assert ("1 record was overwritten" in watch.trouble) is told
    assert ("enlarge the ring buffer with the kernel option log_buf_len" in watch.trouble) is told
    watch.close()

    (tmp_path / "nodevet.toml").write_text('[agent.backends]\nenabled = ["host"]\n')
    places = {"agent.state_dir": str(tmp_path / "state"), "agent.runtime_dir": str(tmp_path / "run")}
    configuration = load_configuration(tmp_path / "nodevet.toml", installed(), overrides=places)
    rig.records = [record(1, 9.0)]
    monkeypatch.setattr(oneshot, "KernelWatch", lambda *_, **__: rig.start())
    snapshot = oneshot.look(configuration, names=["kernel-log"], confirmed=False)
    assert any("1 record was overwritten" in notice for notice in snapshot.agent.notices) is told


class Failing:
    """Reads of a log of which one fails."""

    def __init__(self, rig: Watch) -> None:
        """Read what *rig* holds, as long as nothing fails."""
        self.rig = rig
        self.fails = False

    def __call__(self, descriptor: int, size: int) -> bytes:
        """Fail once where that is wanted."""
        if self.fails:
            self.fails = False
            raise OSError(errno.EIO, "Input/output error")
        return self.rig.read(descriptor, size)


@pytest.mark.parametrize("told", [2, 3])
def test_the_number_of_lost_records_outlives_a_failure_to_read(terminal: str, told: int) -> None:
    """The log is opened anew, and what was lost before stays lost; what the journal told is not taken off twice."""
    rig = Watch(terminal, lambda: output(*(entry(number + 1.0, "x") for number in range(told))))
    rig.records = [record(3, 9.0)]
    failing = Failing(rig)
    watch = rig.start(read=failing)
    watch.read()
    watch.settle()
    failing.fails = True
    watch.read()
    assert not watch.state.readable
    rig.records = [record(4, 10.0)]
    watch.wake(0)
    watch.read()
    assert watch.state.readable
    assert (watch.state.lost_records, bool(watch.trouble)) == (3 - told, told < 3)
    watch.close()


def test_a_failure_to_read_while_the_journal_is_asked_loses_nothing_at_a_kill(terminal: str) -> None:
    """Whoever starts next asks the journal again: nobody heard what it tells."""
    answer = threading.Event()
    rig = Watch(terminal, lambda: output(entry(2.0, XID.format(79))))

    def slow(take: Callable[[bytes], object]) -> None:
        answer.wait(20.0)
        take(rig.journal())

    rig.records = [record(3, 9.0)]
    failing = Failing(rig)
    watch = rig.start(output=slow, read=failing)
    watch.read()
    failing.fails = True
    watch.read()
    assert watch.memory is None
    answer.set()
    assert codes(watch.settle()) == ["79"]
    watch.close()


def test_an_event_is_the_same_in_ring_and_journal_however_often_it_is_read(terminal: str) -> None:
    """A place that cannot be read has all of the log read again, when the ring may have forgotten the event."""
    event = XID.format(48)
    seen: set[str | None] = set()
    for records in ([record(0, 1.0), record(1, 2.0, event)], [record(2, 9.0)], [record(2, 9.0)]):
        rig = Watch(terminal, lambda: output(entry(1.0, "x"), entry(2.0, event)))
        rig.records = records
        watch = rig.start()
        told = [*watch.read(), *watch.settle()]
        seen.update(finding.occurrence for finding in judge("kernel-log", View(now=told[0].time, events=tuple(told))))
        watch.close()
    assert len(seen - {None}) == 1
