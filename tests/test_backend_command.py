"""Commands of a site behind the real reader child: whatever they do is told, and nothing of them is left behind."""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest
from fakes.clocks import SteppedClock
from fakes.freezer import Freeze
from fakes.heard import Heard
from fakes.site_tool import SettableTool, device, document, program, reading, temperature
from fakes.views import at, healthy

from nodevet.agent.config.command_specs import command_plan
from nodevet.agent.config.settings import AgentSettings, CommandSettings, Group
from nodevet.agent.readers.supervisor import Supervisor
from nodevet.checks.backends.base import BackendError, Context
from nodevet.checks.backends.command.backend import CommandBackend, CommandSpec
from nodevet.checks.core.model import FailureKind, Outcome, ReaderState, ReaderStatus, ReadingStatus, Sample
from nodevet.checks.engine.view import Cadence
from nodevet.checks.health.freshness import Freshness, judge

REAL_SECONDS = 20.0
INTERVAL_SECONDS = 10.0
RUN_SECONDS = 0.5
GOOD = json.dumps(document(device("a")))


class Tools:
    """The real readers of some commands, with a clock that the test moves."""

    def __init__(self, selector: selectors.BaseSelector, *commands: CommandSettings) -> None:
        """Prepare a reader for each of *commands*."""
        rates = {"fast": Cadence(INTERVAL_SECONDS, 5.0), "slow": Cadence(3 * INTERVAL_SECONDS, 5.0)}
        plans = [command_plan(command, AgentSettings(), rates) for command in commands]
        self.clock = SteppedClock()
        self.heard = Heard()
        self._selector = selector
        self.supervisor = Supervisor(plans, self.clock, selector, self.heard.take)
        self.samples: dict[tuple[str, str], Sample] = {}

    def until(self, done: Callable[[], bool]) -> None:
        """Run the readers until *done*."""
        end = time.monotonic() + REAL_SECONDS
        while not done():
            assert time.monotonic() < end, (self.supervisor.statuses, self.samples)
            self.supervisor.tick()
            for key, mask in self._selector.select(0.02):
                self.supervisor.handle(key, mask)
            self.samples.update({(sample.device, sample.group): sample for sample in self.heard.samples})
            self.heard.samples.clear()

    @property
    def lines(self) -> list[str]:
        """Return the lines that commands printed."""
        return [note.fields["line"] for note in self.heard.notes if "line" in note.fields]

    def round(self) -> dict[tuple[str, str], Sample]:
        """Let an interval pass, wait until all is answered, and return what came by device and group."""
        self.clock.advance(INTERVAL_SECONDS)
        self.samples = {}
        self.until(lambda: bool(self.samples) and self.supervisor.settled)
        return self.samples

    def status(self, name: str) -> ReaderStatus:
        """Return how the reader of the command *name* does."""
        return next(status for status in self.supervisor.statuses if status.backend == f"command.{name}")

    def stop(self) -> None:
        """End every reader, as the agent does."""
        self.supervisor.stop()
        end = time.monotonic() + REAL_SECONDS
        while not self.supervisor.at_rest and time.monotonic() < end:
            self.clock.advance(0.02)
            for key, mask in self._selector.select(0.02):
                self.supervisor.handle(key, mask)
            self.supervisor.tick()


@pytest.fixture
def open_tools() -> Iterator[Callable[..., Tools]]:
    """Return a function that starts readers for commands; they end with the test."""
    opened: list[Tools] = []
    with selectors.DefaultSelector() as selector:

        def start(*commands: CommandSettings) -> Tools:
            opened.append(Tools(selector, *commands))
            return opened[-1]

        yield start
        for tools in opened:
            tools.stop()


def command(path: Path, name: str = "acme", groups: tuple[Group, ...] = ("fast",)) -> CommandSettings:
    """Return the settings of a command."""
    return CommandSettings(name=name, argv=(str(path),), timeout_seconds=RUN_SECONDS, groups=groups)


SCRIPTS = {
    "hangs": (
        "echo looking for cards >&2; sleep 60",
        "did not end within 0.5 s, it printed nothing; its last line on standard error: looking for cards",
    ),
    "hangs half way": (f"printf '{GOOD[:20]}'; sleep 60", "did not end within 0.5 s, it printed 20 bytes so far"),
    "hangs and will not be told": ("trap '' TERM; sleep 60", "did not end within 0.5 s, it printed nothing"),
    "floods its output": ("exec yes", "printed more than 4 MiB, beginning with 'y\\ny"),
    "floods its standard error": ("yes >&2", "did not end within 0.5 s, it printed nothing; its last line on"),
    "leaves a grandchild that holds the pipe": (
        f"sleep 60 & printf '{GOOD}'",
        "ended with status 0 and left a process behind that holds its output open",
    ),
    "fails after a good document": (
        f"printf '{GOOD}'; echo driver not loaded >&2; exit 3",
        "ended with status 3; its last line on standard error: driver not loaded",
    ),
    "crashes": ("kill -SEGV $$", "was killed by SIGSEGV"),
    "prints nothing": ("exit 0", "printed no proper document: output: is empty: print one JSON document"),
    "prints text": (
        "echo hl-smi: not found",
        "printed no proper document (it begins with 'hl-smi: not found\\n'): line 1, column 1: no JSON",
    ),
    "breaks off": (f"printf '{GOOD[:-3]}'", "the document breaks off here: print it whole"),
    "prints two documents": (f"printf '{GOOD}{GOOD}'", "something follows the document: print exactly one"),
    "prints bytes that are no text": (r"printf '{\377}'", "byte 1: is not UTF-8"),
    "prints NaN": (
        """printf '{"schema": "nodevet.readings/1", "devices": [NaN]}'""",
        "line 1, column 46: no JSON: invalid character",
    ),
    "prints five mistakes": (
        f"printf '{json.dumps(document(*(device(str(number), vendor='X') for number in range(5))))}'",
        "devices[0].vendor: expected `str` matching regex",
    ),
    "prints a part of no device": (
        f"printf '{json.dumps(document(device('a'), device('a/0', parent='b')))}'",
        "devices[1].parent: 'b' is no other device of this document",
    ),
}
"""What a command does instead of printing a document, and how that is told."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_command_that_misbehaves_is_told_by_name(tmp_path: Path, open_tools: Callable[..., Tools], name: str) -> None:
    """The reader fails with the command, what it did and the next step, and no process of the command is left."""
    script, expected = SCRIPTS[name]
    path = program(tmp_path / "tool", f"#!/bin/sh\necho $$ > {tmp_path}/pid\n{script}\n")
    tools = open_tools(command(path))
    tools.until(lambda: tools.status("acme").state is ReaderState.FAILED or tools.status("acme").crashes > 0)
    failure = tools.status("acme").failure
    assert failure is not None
    assert failure.kind is FailureKind.ERROR
    assert failure.detail.startswith(f"command.acme ({path}) ")
    assert expected in failure.detail
    assert failure.detail.endswith("; next: nodevet readings check --command acme")
    tools.until(lambda: _group_of(tmp_path / "pid") == [])


def _group_of(file: Path, line: int = 0) -> list[int]:
    """Return the processes of the group that the command in *line* of *file* led."""
    leader = int(file.read_text().splitlines()[line])
    return [pid for pid in psutil.pids() if _group(pid) == leader]


def _group(pid: int) -> int | None:
    try:
        return None if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE else os.getpgid(pid)
    except (ProcessLookupError, psutil.NoSuchProcess):
        return None


def test_a_program_that_cannot_run_is_told(tmp_path: Path, open_tools: Callable[..., Tools]) -> None:
    """Absent, not executable, no program, or open to everybody: each is a failure of its own, none is a crash."""
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    garbage = program(tmp_path / "garbage", "\x7fELF")
    shared = program(tmp_path / "shared", "#!/bin/sh\n")
    shared.chmod(0o777)
    old = program(tmp_path / "old", "#!/usr/bin/python2.6\n")
    tools = open_tools(
        command(old, "old"),
        command(tmp_path / "absent", "absent"),
        command(plain, "plain"),
        command(garbage, "garbage"),
        command(shared, "shared"),
    )
    tools.until(lambda: all(status.failure for status in tools.supervisor.statuses))
    told = {status.backend: status.failure.detail for status in tools.supervisor.statuses if status.failure}
    assert f"{tmp_path}/absent cannot be started: No such file or directory" in told["command.absent"]
    assert f"{plain} cannot be started: Permission denied" in told["command.plain"]
    assert f"{garbage} cannot be started: Exec format error" in told["command.garbage"]
    assert f"{shared} can be written by everybody: chmod o-w {shared}" in told["command.shared"]
    assert f"{old} cannot be started: the interpreter in its first line (#!) or" in told["command.old"]
    assert {status.crashes for status in tools.supervisor.statuses} == {0}


def test_a_failed_run_leaves_no_device_looking_healthy(tmp_path: Path, open_tools: Callable[..., Tools]) -> None:
    """Every device of a bad round is unread with the reason, and the next good one is read again."""
    tool = SettableTool(tmp_path)
    tool.print(device("a"), device("b"))
    tools = open_tools(command(tool.program))
    assert {sample.failure for sample in tools.round().values()} == {None}

    tool.print(device("a"), device("b", temperature(45), colour="red"))
    for sample in tools.round().values():
        assert sample.readings == ()
        assert sample.failure is not None
        assert "devices[1]: object contains unknown field `colour`" in sample.failure.detail
    assert [entry.id for entry in tools.supervisor.devices] == ["acme:a", "acme:b"]

    tool.print(device("a"), device("b"))
    assert {sample.failure for sample in tools.round().values()} == {None}
    assert tools.status("acme").crashes == 0


def test_one_value_that_cannot_be_taken_costs_its_reading_alone(
    tmp_path: Path, open_tools: Callable[..., Tools]
) -> None:
    """What JSON or 64 bits cannot hold, and what is no value of its quantity: the rest of the round is judged."""
    tool = SettableTool(tmp_path)
    milliwatts = reading("power_watts", 90, part={"kind": "power_scope", "name": "device"})
    odd = (10**30, 10**4000, float("nan"), float("inf"), "N/A", None, [1], "\ud800")
    tool.print(device("a"), device("b", temperature(45), milliwatts))
    tools = open_tools(command(tool.program))
    tools.round()
    for value in odd:
        tool.print(device("a"), device("b", temperature(value), milliwatts))
        found = tools.round()
        assert {sample.failure for sample in found.values()} == {None}, value
        bad, good = found["acme:b", "fast"].readings
        assert (bad.status, good.value) == (ReadingStatus.ERROR, 90)
        assert bad.detail.startswith("no value: temperature_celsius ")
        assert len(bad.detail) < 200
    tool.print(device("a"), device("b", temperature(float("nan"))))
    failure = tools.round()["acme:b", "fast"].failure
    assert failure is not None
    assert failure.detail == (
        "command.acme measured nothing of it: temperature_celsius is error "
        "(no value: temperature_celsius is no number that a device has, found NaN)"
    )


def test_a_device_that_is_not_listed_any_more_is_unread_then_gone(
    tmp_path: Path, open_tools: Callable[..., Tools]
) -> None:
    """In the round in which it is missing it is unread; after that round it is no device of the node."""
    tool = SettableTool(tmp_path)
    tool.print(device("a"), device("b"))
    tools = open_tools(command(tool.program))
    tools.round()
    tool.print(device("a"))
    failure = tools.round()["acme:b", "fast"].failure
    assert failure is not None
    told = (FailureKind.ERROR, False, "command.acme does not list it any more")
    assert (failure.kind, failure.of_driver, failure.detail) == told
    assert [entry.id for entry in tools.supervisor.devices] == ["acme:a"]


@pytest.mark.parametrize("cards", ["a", "ab"])
def test_a_list_that_is_empty_all_at_once_loses_no_device(
    tmp_path: Path, open_tools: Callable[..., Tools], cards: str
) -> None:
    """A script whose tool was killed for want of memory prints that: nobody vouches for a loss."""
    tool = SettableTool(tmp_path)
    tool.print(*map(device, cards))
    tools = open_tools(command(tool.program))
    tools.round()
    tool.print()
    tools.samples = {}
    tools.clock.advance(INTERVAL_SECONDS)
    tools.until(lambda: len(tools.samples) == len(cards))
    for sample in tools.samples.values():
        assert sample.failure is not None
        assert (sample.failure.kind, sample.failure.of_driver) == (FailureKind.NO_DEVICES, False)
        assert "lists no device" in sample.failure.detail


def test_a_backend_whose_list_is_empty_says_so_of_each_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost is what is not in a list of others."""
    monkeypatch.setattr("nodevet.checks.backends.command.backend.LIFELINE", None)
    tool = SettableTool(tmp_path)
    tool.print(device("a"), device("b"))
    context = SimpleNamespace(root="/", progress=SimpleNamespace(write=lambda _: None))
    settings = CommandSpec(name="acme", argv=(str(tool.program),), timeout_seconds=REAL_SECONDS, groups=("fast",))
    backend = CommandBackend(settings, cast(Context, context))
    listed = backend.devices()
    tool.print()
    for card in listed:
        with pytest.raises(BackendError, match="lists no device") as found:
            backend.read("fast", card)
        assert found.value.failure.kind is FailureKind.NO_DEVICES


def test_what_a_command_says_of_a_device_is_passed_on(tmp_path: Path, open_tools: Callable[..., Tools]) -> None:
    """A failure of one device is its own; a value in the wrong unit is an error; a device without a value is unread."""
    tool = SettableTool(tmp_path)
    milliwatts = reading("power_watts", 90_000, part={"kind": "power_scope", "name": "device"})
    tool.print(
        device("lost", failure={"kind": "lost", "detail": "off the bus"}),
        device("wrong unit", temperature(45), milliwatts) | {"id": "unit"},
        device("dark", {**temperature(None), "status": "denied", "detail": "not root"}),
    )
    found = open_tools(command(tool.program)).round()
    lost, unit, dark = (found[f"acme:{name}", "fast"] for name in ("lost", "unit", "dark"))
    assert lost.failure is not None and lost.failure.kind is FailureKind.LOST
    assert lost.failure.detail == "command.acme says: off the bus"
    assert [entry.status for entry in unit.readings] == [ReadingStatus.OK, ReadingStatus.ERROR]
    assert dark.failure is not None
    assert dark.failure.detail == "command.acme measured nothing of it: temperature_celsius is denied (not root)"


def test_identity_is_the_uuid_then_the_address_then_the_name(tmp_path: Path, open_tools: Callable[..., Tools]) -> None:
    """Devices are called as on every other surface, and what refers to them within the document follows."""
    tool = SettableTool(tmp_path)
    links = [{"port": 0, "peer": "b"}, {"port": 1, "peer": "switch"}]
    tool.print(
        device("a", uuid="ACME-0000-0001", pci="0000:04:00.0", links=links, minor=3),
        device("b", pci="0000:05:00.0"),
        device("c"),
        device("part", pci="0000:04:00.0", parent="a"),
    )
    tools = open_tools(command(tool.program))
    tools.round()
    first, *others = tools.supervisor.devices
    assert (first.id, first.minor, first.backend) == ("ACME-0000-0001", 3, "command.acme")
    assert [link.peer for link in first.links] == ["0000:05:00.0", "switch"]
    assert [(entry.id, entry.parent) for entry in others] == [
        ("0000:05:00.0", None),
        ("acme:c", None),
        ("acme:part", "ACME-0000-0001"),
    ]


def test_an_address_is_the_same_however_wide_its_domain_is_printed(
    tmp_path: Path, open_tools: Callable[..., Tools]
) -> None:
    """Vendors' tools print eight digits, the kernel four: the board on the bus must be the board of the command."""
    tool = SettableTool(tmp_path)
    links = [{"port": 0, "peer": "0000000a:05:00.0"}]
    tool.print(device("a", pci="00000000:04:00.0", links=links), device("b", pci="10000:05:00.0"))
    tools = open_tools(command(tool.program))
    tools.round()
    first, second = tools.supervisor.devices
    assert (first.id, first.pci, first.links[0].peer) == ("0000:04:00.0", "0000:04:00.0", "000a:05:00.0")
    assert (second.id, second.pci) == ("10000:05:00.0", "10000:05:00.0")


def test_one_command_that_hangs_holds_up_no_other(tmp_path: Path, open_tools: Callable[..., Tools]) -> None:
    """A command in a child of its own is read while another one hangs."""
    tool = SettableTool(tmp_path)
    tool.print(device("a"))
    hang = program(tmp_path / "hang", "#!/bin/sh\nsleep 60\n")
    patient = CommandSettings(name="slow", argv=(str(hang),), timeout_seconds=4.0)
    tools = open_tools(patient, command(tool.program))
    assert tools.clock.monotonic() >= 0
    tools.until(lambda: ("acme:a", "fast") in tools.samples)
    assert tools.status("slow").state is ReaderState.STARTING
    assert tools.status("acme").state is ReaderState.RUNNING


def test_a_command_that_runs_ends_with_the_agent(tmp_path: Path, open_tools: Callable[..., Tools]) -> None:
    """Stopping the readers ends a command in the middle of its run, with everything that it started."""
    path = program(
        tmp_path / "tool", f"#!/bin/sh\necho $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid\nsleep 60\n"
    )
    tools = open_tools(CommandSettings(name="acme", argv=(str(path),), timeout_seconds=4.0))
    tools.until((tmp_path / "pid").exists)
    assert _group_of(tmp_path / "pid") != []
    tools.stop()
    tools.until(lambda: _group_of(tmp_path / "pid") == [])


def test_a_signal_that_ends_the_reader_of_a_command_is_told_as_that(
    tmp_path: Path, open_tools: Callable[..., Tools]
) -> None:
    """Tools against want of memory send SIGTERM: the program that runs is ended first, and it is no bug of ours."""
    started = tmp_path / "started"
    text = f"#!/bin/sh\necho $$ > {started}.new; mv {started}.new {started}\nexec sleep 60\n"
    path = program(tmp_path / "tool", text)
    tools = open_tools(CommandSettings(name="acme", argv=(str(path),), timeout_seconds=20.0))
    tools.until(started.exists)
    (status,) = tools.supervisor.statuses
    assert status.pid is not None
    os.kill(status.pid, signal.SIGTERM)
    tools.until(lambda: tools.supervisor.statuses[0].state is ReaderState.CRASHED)
    words = tools.supervisor.statuses[0].detail
    assert "was killed by SIGTERM" in words
    assert words.endswith("not sent by the agent")
    assert not psutil.pid_exists(int(started.read_text()))


def test_groups_are_printed_apart_and_told_apart(tmp_path: Path, open_tools: Callable[..., Tools]) -> None:
    """With two groups the command runs for each, and the group is in its environment."""
    tool = SettableTool(tmp_path)
    tool.print(device("a"), group="fast")
    tool.print(device("a", reading("memory_total_bytes", 1 << 30)), group="slow")
    tools = open_tools(command(tool.program, groups=("slow", "fast")))
    found = tools.round()
    assert [entry.quantity for entry in found["acme:a", "fast"].readings] == ["temperature_celsius"]
    assert [entry.quantity for entry in found["acme:a", "slow"].readings] == ["memory_total_bytes"]

    tool.print(device("a", temperature(46)), group="fast")
    found = tools.round()
    assert list(found) == [("acme:a", "fast")]
    assert [entry.value for entry in found["acme:a", "fast"].readings] == [46]


def test_a_reading_in_two_groups_is_refused(tmp_path: Path, open_tools: Callable[..., Tools]) -> None:
    """A counter that two groups print would be counted twice: the second one is refused with its name."""
    tool = SettableTool(tmp_path)
    tool.print(device("a"))
    failures = [
        sample.failure for sample in open_tools(command(tool.program, groups=("fast", "slow"))).round().values()
    ]
    assert any(
        failure is not None and "prints temperature_celsius of sensor core of acme:a for group" in failure.detail
        for failure in failures
    )


def test_events_are_told_once_under_the_name_of_the_command(tmp_path: Path, open_tools: Callable[..., Tools]) -> None:
    """An event that is printed again is the same one; its code can be none of ours."""
    tool = SettableTool(tmp_path)
    flap = {"code": "flap", "sequence": 7, "text": "link 3 went down", "severity": "warning", "device": "a"}
    tool.print(device("a"), events=[flap])
    tools = open_tools(command(tool.program))
    tools.round()
    tools.round()
    tool.print(device("a"), events=[flap, {**flap, "sequence": 8}])
    tools.round()
    assert [(event.code, event.device, event.sequence) for event in tools.heard.events] == [
        ("command.acme.flap", "acme:a", 7),
        ("command.acme.flap", "acme:a", 8),
    ]


def test_events_of_a_program_that_counts_anew_are_not_swallowed(
    tmp_path: Path, open_tools: Callable[..., Tools]
) -> None:
    """What is told of restarted and numbers from one again: another event under a lower number is another event."""
    tool = SettableTool(tmp_path)
    flap = {"code": "flap", "sequence": 17, "text": "link 3 went down", "device": "a"}
    tool.print(device("a"), events=[flap])
    tools = open_tools(command(tool.program))
    tools.round()
    tool.print(device("a"), events=[{**flap, "sequence": 1, "text": "link 4 went down"}, flap])
    tools.round()
    assert [(event.sequence, event.text) for event in tools.heard.events] == [
        (17, "link 3 went down"),
        (1, "link 4 went down"),
    ]


def test_what_a_command_complains_of_is_logged_once(tmp_path: Path, open_tools: Callable[..., Tools]) -> None:
    """The last line on standard error of a good run is a line of the log, until it changes."""
    path = program(tmp_path / "tool", f"#!/bin/sh\necho first >&2\necho card 3 is slow >&2\nprintf '{GOOD}'\n")
    tools = open_tools(command(path))
    tools.round()
    tools.round()
    assert tools.lines == ["card 3 is slow"]


def test_a_command_sees_no_more_of_the_environment_than_is_promised(
    tmp_path: Path, open_tools: Callable[..., Tools], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PATH, HOME, LC_ALL, root and group, and what was configured: nothing else of the agent's environment."""
    monkeypatch.setenv("TOKEN_OF_THE_AGENT", "secret")
    path = program(tmp_path / "tool", f"#!/bin/sh\nenv > {tmp_path}/seen\nprintf '{GOOD}'\n")
    settings = CommandSettings(name="acme", argv=(str(path),), environment={"HABANA_LOGS": "/var/log/habana"})
    open_tools(settings).round()
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines())
    of_the_shell = {"PWD", "OLDPWD", "SHLVL", "_"}
    assert seen.keys() - of_the_shell == {"PATH", "HOME", "LC_ALL", "NODEVET_ROOT", "NODEVET_GROUP", "HABANA_LOGS"}
    assert (seen["NODEVET_GROUP"], seen["NODEVET_ROOT"], seen["HABANA_LOGS"]) == ("fast", "/", "/var/log/habana")


def test_a_command_that_lists_nothing_is_absent(tmp_path: Path, open_tools: Callable[..., Tools]) -> None:
    """No device is a state of its own; whether that is in order is for the settings to say, and is passed on."""
    tool = SettableTool(tmp_path)
    tool.print()
    tools = open_tools(command(tool.program))
    tools.until(lambda: tools.status("acme").state is ReaderState.ABSENT)
    assert tools.status("acme").required
    assert "lists no device" in tools.status("acme").detail


def test_a_command_that_cannot_be_killed_is_not_doubled(
    tmp_path: Path, open_tools: Callable[..., Tools], freeze: Freeze
) -> None:
    """One in state D is told, blames no hardware and is not doubled; when it is gone the command runs again."""
    tool = SettableTool(tmp_path)
    tool.print(device("a"))
    gate = tmp_path / "gate"
    path = program(
        tmp_path / "wedged",
        f"#!/bin/sh\necho $$ >> {tmp_path}/pids\nwhile [ -e {gate} ]; do sleep 0.01; done\nexec {tool.program}\n",
    )
    settings = CommandSettings(name="acme", argv=(str(path),), timeout_seconds=1.0)
    tools = open_tools(settings)
    tools.round()
    gate.touch()
    runs = len((tmp_path / "pids").read_text().split())
    tools.clock.advance(INTERVAL_SECONDS)
    tools.until(lambda: len((tmp_path / "pids").read_text().split()) > runs)
    thaw = freeze(int((tmp_path / "pids").read_text().split()[-1]))
    tools.samples = {}
    tools.until(lambda: bool(tools.samples) and tools.supervisor.settled)

    (sample,) = tools.round().values()
    assert sample.failure is not None
    assert sample.failure.kind is FailureKind.READER
    view = healthy(
        readers=(tools.status("acme"),),
        devices=tools.supervisor.devices,
        samples={(sample.device, sample.group): sample},
        now=at(),
        cadences={},
    )
    told = [finding for finding in judge(view, Freshness()) if finding.required]
    assert [finding.outcome for finding in told] == [Outcome.UNMEASURED]
    assert "cannot be killed" in told[0].message
    assert "cannot be killed, and no second one is started beside it" in sample.failure.detail
    assert len((tmp_path / "pids").read_text().split()) == runs + 1

    gate.unlink()
    thaw()
    tools.until(lambda: _group_of(tmp_path / "pids", -1) == [])
    assert [sample.failure for sample in tools.round().values()] == [None]
