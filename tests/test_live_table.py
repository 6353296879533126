"""The live table of a load: in place on a terminal of 80 columns, plain lines elsewhere."""

from __future__ import annotations

import io
import os
import pty
import struct
import sys
import termios
from collections.abc import Iterator
from fcntl import ioctl
from typing import TextIO

import msgspec
import pytest
from fakes.screen import Screen

from nodevet.agent.load.conditions import Conditions, throttle_word
from nodevet.agent.load.rows import live_rows, short_names
from nodevet.agent.load.run import DeviceProgress
from nodevet.agent.terminal.live import LiveRow, LiveTable, clock_words, count, figure, plain_line, table_lines
from nodevet.agent.terminal.output import tell
from nodevet.checks.core.model import Device, DeviceKind, ResultState

HEADING = "DEVICE  PHASE        TFLOPS %PEAK degC     W  MHz THROTTLE VERIFIED WRONG   ETA"
ROWS = {
    "ok": LiveRow(
        device="gpu0",
        phase="bf16 load",
        tflops=640.2,
        peak_ratio=0.647,
        temperature_celsius=64.4,
        power_watts=697.9,
        clock_hertz=1.755e9,
        throttle="no",
        verified=12345,
        left_seconds=25200.0,
    ),
    "slow": LiveRow(device="gpu1", phase="bf16 load", tflops=402.0, peak_ratio=0.41, throttle="no", verified=7000),
    "wrong": LiveRow(device="gpu2", phase="bf16 load", tflops=640.0, verified=12000, wrong=3, left_seconds=59.0),
    "throttled": LiveRow(
        device="gpu3", phase="bf16 load", tflops=500.0, temperature_celsius=89.0, throttle="thermal+", verified=9
    ),
    "interrupted": LiveRow(device="gpu4", phase="interrupted", verified=999_950),
    "largest": LiveRow(
        device="7d:00.0",
        phase="fp8 warm-up",
        tflops=12345.6,
        peak_ratio=1.234,
        temperature_celsius=105.0,
        power_watts=23000.0,
        clock_hertz=5.7e9,
        throttle="hardware",
        verified=10**12,
        wrong=10**9,
        left_seconds=31 * 86400.0,
    ),
}


class Terminal:
    """A pseudo terminal of a size, and the screen of what is written to it."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        """Open it."""
        self._ours, theirs = pty.openpty()
        self.stream: TextIO = os.fdopen(theirs, "w")
        self.screen = Screen(columns, rows)
        self.resize(columns, rows)
        self.sent = ""

    def resize(self, columns: int, rows: int = 24) -> None:
        """Change the size that a program is told."""
        ioctl(self.stream.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def shown(self) -> list[str]:
        """Return the lines of the screen."""
        os.set_blocking(self._ours, False)
        data = b""
        try:
            while piece := os.read(self._ours, 65536):
                data += piece
        except BlockingIOError:
            pass
        text = data.decode()
        self.sent += text
        self.screen.feed(text)
        return self.screen.lines

    def close(self) -> None:
        """Close both ends."""
        self.stream.close()
        os.close(self._ours)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A terminal of 80 columns and 24 lines."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    opened = Terminal()
    yield opened
    opened.close()


def test_the_table_shows_each_state_within_80_columns(terminal: Terminal) -> None:
    """Healthy, slow, wrong, throttled, interrupted, and the longest figures; what is not read is a dash."""
    LiveTable(terminal.stream).show("burn-in, plan soak: 12%", 0.12, list(ROWS.values()))
    lines = terminal.shown()
    assert lines == [
        "burn-in, plan soak: 12%",
        HEADING,
        "gpu0    bf16 load       640    65   64   698 1755 no          12345     0 7h00m",
        "gpu1    bf16 load       402    41    -     -    - no           7000     0     -",
        "gpu2    bf16 load       640     -    -     -    - -           12000     3  0:59",
        "gpu3    bf16 load       500     -   89     -    - thermal+        9     0     -",
        "gpu4    interrupted       -     -    -     -    - -           1000k     0     -",
        "7d:00.0 fp8 warm-up   12346   123  105 23000 5700 hardware    1000G    1G   31d",
    ]
    assert terminal.screen.widest < 80


@pytest.mark.parametrize("width", [20, 40, 60, 79, 80, 200])
def test_a_line_is_never_longer_than_the_terminal(width: int) -> None:
    """A narrow terminal gets fewer columns, whole ones; a wide one no more than 80."""
    lines = table_lines(list(ROWS.values()), width)
    assert max(map(len, lines)) < min(width, 80)
    assert lines[0].split()[:2] == ["DEVICE", "PHASE"] if width > 20 else lines[0].startswith("DEVICE")
    assert set(lines[0].split()) <= set(HEADING.split())


def test_a_redraw_leaves_no_remains(terminal: Terminal) -> None:
    """Shorter lines, fewer rows, the end: the screen has what was shown last and nothing else."""
    table = LiveTable(terminal.stream)
    tell_to(terminal, "before")
    table.show("a title that is much longer than the next one", 0.1, list(ROWS.values()))
    table.show("short", 0.2, [ROWS["wrong"], ROWS["interrupted"]])
    lines = terminal.shown()
    assert lines[:3] == ["before", "short", HEADING]
    assert [line.split()[0] for line in lines[3:]] == ["gpu2", "gpu4"]
    table.done()
    assert terminal.shown() == ["before"]
    assert terminal.screen.scrolled == 0


def tell_to(terminal: Terminal, line: str) -> None:
    """Write *line* to the terminal."""
    terminal.stream.write(f"{line}\n")
    terminal.stream.flush()


def test_what_did_not_change_is_not_written_again(terminal: Terminal) -> None:
    """A load turns ten times a second; a slow line gets what is new."""
    table = LiveTable(terminal.stream)
    table.show("title", 0.1, [ROWS["ok"]])
    terminal.shown()
    sent = len(terminal.sent)
    table.show("title", 0.1, [ROWS["ok"]])
    terminal.shown()
    assert len(terminal.sent) == sent
    table.erase()
    table.show("title", 0.1, [ROWS["ok"]])
    assert terminal.shown()[0] == "title"


def test_at_the_bottom_of_the_screen_the_table_scrolls_once(terminal: Terminal) -> None:
    """The table is drawn again at the place where it stands then."""
    for number in range(30):
        tell_to(terminal, f"line {number}")
    table = LiveTable(terminal.stream)
    for number in range(5):
        table.show(f"frame {number}", 0.1, [ROWS["ok"]])
    lines = terminal.shown()
    assert lines[-4:-1] == ["line 29", "frame 4", HEADING]
    assert sum("frame" in line for line in lines) == 1


def test_a_line_of_others_stands_above_the_table(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told while a load runs is not overwritten, and does not break the table."""
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    table = LiveTable()
    with table.above():
        table.show("first", 0.1, [ROWS["ok"]])
        tell("nodevet burn-in: the agent is gone")
        table.show("second", 0.2, [ROWS["ok"]])
        lines = terminal.shown()
        assert lines[:3] == ["nodevet burn-in: the agent is gone", "second", HEADING]
        assert len(lines) == 4
    assert terminal.shown() == ["nodevet burn-in: the agent is gone"]


def test_a_terminal_that_became_narrower_has_no_remains(terminal: Terminal) -> None:
    """Its lines have wrapped: the table begins above all of them."""
    table = LiveTable(terminal.stream)
    table.show("wide", 0.1, [ROWS["ok"]])
    assert len(terminal.shown()) == 3
    terminal.resize(40)
    table.show("narrow", 0.2, [ROWS["ok"]])
    terminal.shown()
    assert "\r\x1b[5A" in terminal.sent  # heading and row have two lines each now
    assert len(terminal.screen.lines[0]) <= 40


def test_more_devices_than_lines_show_the_bad_ones(terminal: Terminal) -> None:
    """The table never scrolls itself away, and never hides a wrong device."""
    terminal.resize(80, 10)
    rows = [msgspec.structs.replace(ROWS["ok"], device=f"gpu{number}") for number in range(16)]
    rows[15] = msgspec.structs.replace(rows[15], wrong=1)
    LiveTable(terminal.stream).show("title", 0.1, rows)
    lines = terminal.shown()
    assert len(lines) < 10
    assert any(line.startswith("gpu15") for line in lines)
    assert lines[-1] == "and 11 more"


def test_colour_marks_wrong_and_throttled_rows_and_no_color_is_honoured(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red and yellow; with NO_COLOR the table is redrawn in place without any."""
    LiveTable(terminal.stream).show("title", 0.1, list(ROWS.values()))
    terminal.shown()
    assert "\x1b[31mgpu2" in terminal.sent
    assert "\x1b[33mgpu3" in terminal.sent
    assert "\x1b[31mgpu0" not in terminal.sent
    monkeypatch.setenv("NO_COLOR", "1")
    terminal.sent = ""
    LiveTable(terminal.stream).show("title", 0.1, list(ROWS.values()))
    terminal.shown()
    assert "\x1b[31m" not in terminal.sent
    assert "\x1b[K" in terminal.sent


@pytest.mark.parametrize("dumb", [True, False])
def test_plain_output_has_no_escape_bytes(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, dumb: bool) -> None:
    """A log, a pipe, and a terminal that can only print."""
    stream = terminal.stream if dumb else io.StringIO()
    monkeypatch.setenv("TERM", "dumb" if dumb else "xterm")
    table = LiveTable(stream)
    with table.above():
        table.show("title", 0.1, [ROWS["ok"], ROWS["wrong"]])
    terminal.shown()
    said = terminal.sent if dumb else stream.getvalue()  # type: ignore[attr-defined]
    assert "gpu" in said or "2 devices" in said
    assert not {letter for letter in said if letter != "\n" and letter != "\r" and not letter.isprintable()}


def test_a_log_gets_a_line_a_minute_and_one_for_each_change() -> None:
    """Eight hours are some five hundred lines; another format, and a wrong result, are told at once."""
    seconds, log = [0.0], io.StringIO()
    table = LiveTable(log, lambda: seconds[0])
    for _ in range(600):
        table.show("title", 0.1, [ROWS["ok"]])
        seconds[0] += 0.5
    assert len(log.getvalue().splitlines()) == 5
    table.show("title", 0.1, [msgspec.structs.replace(ROWS["ok"], wrong=1)])
    table.show("title", 0.1, [msgspec.structs.replace(ROWS["ok"], wrong=2)])
    table.show("title", 0.1, [msgspec.structs.replace(ROWS["ok"], wrong=2, phase="fp16 load")])
    lines = log.getvalue().splitlines()
    assert lines[0] == " 10%  gpu0: bf16 load, 0 wrong, 12345 verified, 640 TFLOPS, 64 degC, 698 W"
    assert ["1 wrong" in lines[5], "fp16 load" in lines[6], len(lines)] == [True, True, 7]
    assert max(map(len, lines)) <= 80


def test_a_plain_line_of_many_devices_names_the_throttled_one() -> None:
    """The range of the rates shows a slow device."""
    rows = [ROWS["ok"], ROWS["slow"], ROWS["throttled"]]
    line = plain_line(0.5, rows, 120)
    told = " 50%  3 devices: bf16 load, 0 wrong, 19354 verified, 402 to 640 TFLOPS, 89 degC, 698 W"
    assert line == f"{told}, throttled: gpu3 thermal+"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "-"),
        (-5, "0:00"),
        (42, "0:42"),
        (725, "12:05"),
        (28740, "7h59m"),
        (86399, "24.0h"),
        (800000, "9d06h"),
        (900000, "10d"),
    ],
)
def test_what_is_left_is_short(seconds: float | None, words: str) -> None:
    """It fits its column of five."""
    assert clock_words(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"), [(None, "-"), (0.0, "0"), (0.0523, "0.0523"), (1.5, "1.5"), (99.96, "100"), (640.2, "640")]
)
def test_figures_have_three_digits(value: float | None, words: str) -> None:
    """From a core of a processor to the largest accelerator."""
    assert figure(value) == words


@pytest.mark.parametrize(("number", "words"), [(0, "0"), (99_999, "99999"), (123_456, "123.5k"), (5_000_000, "5M")])
def test_counts_are_short(number: int, words: str) -> None:
    """At most seven characters."""
    assert count(number) == words


def test_the_worst_reason_is_shown_first() -> None:
    """A power cap is usual under full load, heat is not."""
    assert throttle_word(()) == "no"
    assert throttle_word(("power_cap",)) == "power"
    assert throttle_word(("power_cap", "hardware_thermal")) == "thermal+"
    assert throttle_word(("hardware_thermal", "software_thermal")) == "thermal"


def device(number: int, *, minor: int | None = None, pci: str | None = None) -> Device:
    """Return an accelerator."""
    return Device(
        id=f"GPU-{number}", kind=DeviceKind.ACCELERATOR, vendor="any", model="any", backend="any", minor=minor, pci=pci
    )


def test_devices_have_short_names_of_their_own() -> None:
    """By the node of the device, else by its address; two of one address in two domains are not one."""
    devices = [
        device(0, minor=3),
        device(1, minor=131, pci="0000:1b:00.0"),
        device(2, pci="0001:1b:00.0"),
        device(3),
        Device(id="cpu-0", kind=DeviceKind.CPU, vendor="any", model="any", backend="host"),
    ]
    assert list(short_names(devices).values()) == ["gpu3", "1b:00.0", "GPU-2", "GPU-3", "cpu-0"]


def test_a_row_has_what_is_done_and_what_is_read() -> None:
    """The share of the peak, the conditions, and how a device ended, by the worst of its formats."""
    running = DeviceProgress(
        device=device(0, minor=0),
        dtype="fp8_e4m3",
        phase="measuring the cost of checking",
        ratio=0.5,
        figures={"tflops": 400.0, "peak_tflops": 800.0},
        verified=7,
        wrong=1,
        left_seconds=10.0,
    )
    ended = (ResultState.FINISHED, ResultState.INTERRUPTED)
    done = DeviceProgress(device=device(1, minor=1), phase="", ratio=1.0, ended=ended)
    read = {"GPU-0": Conditions(temperature_celsius=70.0, throttle=())}
    first, second = live_rows((running, done), read)
    assert first == LiveRow(
        device="gpu0",
        phase="fp8 warm-up",
        tflops=400.0,
        peak_ratio=0.5,
        temperature_celsius=70.0,
        throttle="no",
        verified=7,
        wrong=1,
        left_seconds=10.0,
    )
    assert (second.phase, second.throttle, second.temperature_celsius) == ("interrupted", None, None)
