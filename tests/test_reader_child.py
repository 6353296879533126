"""The reader child's own errors: an exception of our code costs what was being read, and is no word of the driver's."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from fakes.views import gpu

from nodevet.checks.backends.base import MOST_EVENTS, BackendError
from nodevet.checks.backends.reader_main import ChildContext, ReaderServer
from nodevet.checks.backends.standstill import WAKE, end_at_crashes, stand_still_at_crashes
from nodevet.checks.core.model import Device, Event, FailureKind, Instant, Reading
from nodevet.checks.core.wire import (
    Channel,
    Decoder,
    EventMessage,
    Message,
    Note,
    Progress,
    Read,
    Ready,
    RoundDone,
    Sampled,
    Start,
    Stop,
    encode,
)
from nodevet.checks.ipc.worker import ChildEnd

DEVICES = (gpu("GPU-a", "0000:1b:00.0"), gpu("GPU-b", "0000:2b:00.0"))
HEAT = Reading("temperature_celsius", 40.0)
XID = Event(code="nvidia.xid.79", source="nvml", time=Instant("b", 1, 1e9), text="XID 79", device="GPU-a")


class Odd:
    """A backend of two devices, one function of which behaves as a test says."""

    groups: tuple[str, ...] = ("fast",)

    def __init__(self, **functions: Callable[..., Any]) -> None:
        """Replace *functions* of a healthy backend."""
        self.versions: dict[str, str] = {"driver": "\udcff"}
        self._functions = functions

    def devices(self) -> tuple[Device, ...]:
        """List two devices."""
        listed: tuple[Device, ...] = self._functions.get("devices", lambda: DEVICES)()
        return listed

    def read(self, group: str, device: Device) -> Any:
        """Read the heat."""
        read = self._functions.get("read")
        return read(group, device) if read else [HEAT]

    def events(self) -> Iterator[Event]:
        """Tell of nothing."""
        events = self._functions.get("events")
        return iter(events() if events else ())

    def close(self) -> None:
        """Hold nothing."""


def served(backend: Odd) -> list[Message]:
    """Return what a child says that reads *backend* for two rounds."""
    ours, theirs = socket.socketpair()
    progress, _ = Progress.create()
    with ours, theirs:
        end = ChildEnd(Channel(theirs), progress)
        start = Start("nvidia")
        reader = ReaderServer(end, ChildContext(end, start), backend, start)
        thread = threading.Thread(target=reader.serve)
        thread.start()
        messages: list[Message] = []
        decoder = Decoder()
        for request in (Read("fast", 1), Read("fast", 2)):
            ours.sendall(encode(request))
            while not any(isinstance(entry, RoundDone) and entry.round == request.round for entry in messages):
                messages += decoder.feed(ours.recv(1 << 16))
        ours.sendall(encode(Stop()))
        thread.join(5)
        assert not thread.is_alive()
        return messages


def raising(error: Exception, only: str = "") -> Callable[..., Any]:
    """Return a function that raises *error*, for the device *only* where one is named."""

    def work(*arguments: object) -> Any:
        if not only or any(isinstance(entry, Device) and entry.id == only for entry in arguments):
            raise error
        return [HEAT]

    return work


ERRORS = (
    ValueError("invalid literal for int() with base 16: ''"),
    KeyError("x"),
    RecursionError(),
    BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), "/sys/class/hwmon/hwmon0/temp1_input"),
)

WANTS = (
    (MemoryError(), "for lack of memory: see free -m"),
    (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "for lack of memory: see free -m"),
    (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/proc/cpuinfo"), "descriptors: raise LimitNOFILE of the agent"),
    (OSError(errno.ENFILE, os.strerror(errno.ENFILE), "/proc/cpuinfo"), "for lack of descriptors: raise fs.file-max"),
    (RuntimeError("can't start new thread"), "for lack of threads: raise TasksMax"),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/run/lock"), "for lack of space on a disk: see df -h and df -i"),
    (
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "/run/lock"),
        "space on a disk: see df -h and df -i, or its quota",
    ),
    (RuntimeError(f"x cannot be started: {os.strerror(errno.EAGAIN)}"), "for lack of processes: raise TasksMax"),
)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_exception_while_a_device_is_read_costs_that_device(error: Exception) -> None:
    """Its sample fails by a bug of ours, the sibling is measured, and the next round is served."""
    samples = [entry.sample for entry in served(Odd(read=raising(error, "GPU-a"))) if isinstance(entry, Sampled)]
    assert [(sample.device, sample.failure is None) for sample in samples] == [("GPU-a", False), ("GPU-b", True)] * 2
    failure = samples[0].failure
    assert failure is not None
    assert failure.kind is FailureKind.READER
    assert type(error).__name__ in failure.detail
    assert "please report this" in failure.detail


@pytest.mark.parametrize(("error", "words"), WANTS, ids=[type(error).__name__ + words[-8:] for error, words in WANTS])
@pytest.mark.parametrize("told", ["raised", "given up"])
def test_what_was_refused_to_a_reader_is_no_bug_and_says_what_to_do(error: Exception, words: str, told: str) -> None:
    """It costs what was read meanwhile; whether the backend knows of it or not, the want is named."""
    raised = error if told == "raised" else BackendError(FailureKind.ERROR, f"cannot be listed: {error!r} {error}")
    samples = [entry.sample for entry in served(Odd(read=raising(raised, "GPU-a"))) if isinstance(entry, Sampled)]
    assert [sample.failure is None for sample in samples] == [False, True] * 2
    failure = samples[0].failure
    assert failure is not None
    assert (failure.kind, failure.of_driver) == (FailureKind.READER, False)
    assert words in failure.detail
    assert "please report this" not in failure.detail


def test_what_a_driver_says_of_a_want_stays_its_own() -> None:
    """It is weighed by the agent, which sees the machine."""
    error = BackendError(FailureKind.ERROR, "too many open files", of_driver=True)
    samples = [entry.sample for entry in served(Odd(read=raising(error, "GPU-a"))) if isinstance(entry, Sampled)]
    assert samples[0].failure == error.failure


def test_a_drivers_own_words_stay_its_own() -> None:
    """What the backend says of the driver is passed on as it is."""
    error = BackendError(FailureKind.LOST, "gone")
    samples = [entry.sample for entry in served(Odd(read=raising(error, "GPU-b"))) if isinstance(entry, Sampled)]
    assert [sample.failure.kind for sample in samples if sample.failure] == [FailureKind.LOST] * 2


def test_values_that_cannot_be_sent_cost_themselves() -> None:
    """Bytes that are no text, a number of 80 bits, an object: three errors beside one measured heat."""
    odd = [Reading("temperature_celsius", value) for value in ("\udcff", 2**80, object())]  # type: ignore[arg-type]
    samples = [entry.sample for entry in served(Odd(read=lambda *_: [HEAT, *odd])) if isinstance(entry, Sampled)]
    assert [reading.value for reading in samples[0].readings if reading.value == 40.0] == [40.0]
    assert len(samples[0].readings) == 4
    assert samples[0].failure is None


@pytest.mark.parametrize("odd", [("\x1b[2J", "GPU-b"), ("\t", "\r"), ("\u202e", "unknown"), ("", "")], ids=ascii)
def test_a_device_whose_name_is_nonsense_is_read_under_a_name_of_its_own(odd: tuple[str, str]) -> None:
    """The backend is asked for the device as it lists it; its samples and events have the name that the agent knows."""
    listed = tuple(
        msgspec.structs.replace(device, id=name, uuid=name) for device, name in zip(DEVICES, odd, strict=True)
    )
    asked: list[Device] = []

    def read(_group: str, device: Device) -> list[Reading]:
        asked.append(device)
        return [HEAT]

    event = Event(code="x.y", source="nvidia", time=Instant("boot", 1, 1.0), text="x", device=odd[0])
    messages = served(Odd(devices=lambda: listed, read=read, events=lambda: (event,)))
    assert asked == [*listed, *listed]
    ready = next(entry for entry in messages if isinstance(entry, Ready))
    names = [device.id for device in ready.devices]
    assert len(set(names)) == 2
    assert all(name.isprintable() for name in names)
    samples = [entry.sample for entry in messages if isinstance(entry, Sampled)]
    assert [(sample.device, sample.failure) for sample in samples] == [(name, None) for name in names] * 2
    if odd[0] != odd[1]:
        assert {entry.event.device for entry in messages if isinstance(entry, EventMessage)} == {names[0]}


@pytest.mark.parametrize("function", ["events", "devices"])
def test_what_fails_beside_the_readings_is_told_once_and_costs_no_reading(function: str) -> None:
    """Events that cannot be had, and a list that cannot be recreated, leave every device measured."""
    calls = 0

    def later(*_: object) -> Any:
        nonlocal calls
        calls += 1
        if function == "devices" and calls == 1:
            return DEVICES
        raise ValueError("odd")

    messages = served(Odd(**{function: later}))
    assert sum(isinstance(entry, Sampled) and entry.sample.failure is None for entry in messages) == 4
    assert len([entry for entry in messages if isinstance(entry, Note)]) == 1
    ready = next(entry for entry in messages if isinstance(entry, Ready))
    assert [device.id for device in ready.devices] == ["GPU-a", "GPU-b"]
    assert ready.versions["driver"].isprintable()
    assert not [entry for entry in messages if isinstance(entry, EventMessage)]


def test_events_are_told_as_they_come() -> None:
    """One that cannot be had takes none with it that came before."""

    def events() -> Iterator[Event]:
        yield XID
        raise ValueError("odd")

    messages = served(Odd(events=events))
    assert [entry.event.code for entry in messages if isinstance(entry, EventMessage)] == [XID.code] * 4
    assert len([entry for entry in messages if isinstance(entry, Note)]) == 1


@pytest.mark.parametrize(("count", "seconds"), [(MOST_EVENTS, 0.1), (MOST_EVENTS - 1, 2.0)], ids=["more", "all"])
def test_after_a_look_that_left_events_the_next_one_comes_soon(count: int, seconds: float) -> None:
    """A storm is told while it lasts, and a driver whose events never end takes no processor."""
    waited: list[float] = []
    ours, theirs = socket.socketpair()
    progress, _ = Progress.create()
    with ours, theirs:
        end = ChildEnd(Channel(theirs), progress)
        start = Start("nvidia")
        reader = ReaderServer(end, ChildContext(end, start), Odd(events=lambda: [XID] * count), start)
        thread = threading.Thread(target=reader.serve)
        thread.start()
        decoder = Decoder()
        told = 0
        while told < 2 * count:
            told += sum(isinstance(entry, EventMessage) for entry in decoder.feed(ours.recv(1 << 16)))
            if told:
                waited.append(time.monotonic())
        ours.sendall(encode(Stop()))
        thread.join(5)
    assert max(after - before for before, after in pairwise(waited)) == pytest.approx(seconds, abs=0.5)


def test_the_number_before_the_line_is_odd_inside_a_call_alone() -> None:
    """It differs from call to call, and a step of our own is none."""
    progress, _ = Progress.create()
    numbers = []
    for step in ("write", "call", "returned", "call", "call", "write", "returned", "call"):
        if step == "returned":
            progress.returned()
        else:
            getattr(progress, step)(f"{step} now")
            assert progress.read() == f"{step} now"
        numbers.append(progress.number)
        assert progress.number % 2 == (step == "call")
    called = [number for number in numbers if number % 2]
    assert len(set(called)) == len(called)
    progress.call("x" * 10_000)
    assert len(progress.read()) == Progress.SIZE - 5
    progress.close()


@pytest.fixture
def handlers() -> Iterator[Callable[[], bytes]]:
    """What SIGBUS calls in this process, which has its own handlers back afterwards (those of pytest)."""
    libc, size = ctypes.CDLL(None), 160  # struct sigaction has 152 bytes

    def current(number: int = signal.SIGBUS) -> ctypes.Array[ctypes.c_char]:
        action = ctypes.create_string_buffer(size)
        libc.sigaction(number, None, action)
        return action

    kept = {number: current(number) for number in (WAKE, signal.SIGBUS)}
    yield lambda: current().raw[:8]
    for number, action in kept.items():
        libc.sigaction(number, action, None)


def test_a_reader_that_serves_stands_still_at_no_bus_error(handlers: Callable[[], bytes]) -> None:
    """A call that sleeps in a handler of ours for seven seconds is past its deadline: a hang of the driver."""
    stand_still_at_crashes()
    assert handlers() != bytes(8)
    served(Odd())
    assert handlers() == bytes(8)  # SIG_DFL


def test_a_handler_of_a_library_for_bus_errors_stays_its_own(handlers: Callable[[], bytes]) -> None:
    """One that looks whether an address can be served would end its process otherwise."""
    stand_still_at_crashes()
    signal.signal(signal.SIGBUS, lambda _number, _frame: None)
    own = handlers()
    end_at_crashes()
    assert handlers() == own
    signal.signal(signal.SIGBUS, signal.SIG_DFL)
