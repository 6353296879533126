"""The reader child: loads one backend and reads its devices on request of the agent.

Started as ``python -I -m nodevet.checks.backends.reader_main --descriptor N --progress M``. It has a single thread, so
the progress line always names the one call that may hang; between rounds it asks the backend for events about once a
second. A driver that hangs or crashes affects only this process: an undocumented error of the backend ends it, and the
agent reports the last call and the last line of standard error.
"""

from __future__ import annotations

from nodevet.checks.core import lean  # noqa: F401 (before the libraries that it keeps small)

# isort: split

import contextlib
import importlib
import select
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.errors import Closed, WireError
from nodevet.checks.core.guard import Bug, attempt
from nodevet.checks.core.model import Device, Failure, FailureKind, Instant, Reading, Sample
from nodevet.checks.core.wire import (
    PROTOCOL,
    EventMessage,
    Failed,
    Message,
    Note,
    Progress,
    Read,
    Ready,
    RoundDone,
    Sampled,
    Start,
    Stop,
)
from nodevet.checks.ipc.worker import ChildEnd, become_child
from nodevet.checks.reference.vendors import backend_names, vendor_of
from nodevet.checks.system.exhaustion import for_want

from .base import MOST_EVENTS, Backend, BackendError, BackendFactory, imported
from .device_nodes import SAID_WITHOUT_ASKING, refused_nodes
from .sound import Checked, sound_device, sound_text, told_apart
from .standstill import end_at_crashes, stand_still_at_crashes


class BackendModule(msgspec.Struct, frozen=True):
    """An existing backend: the module whose ``open_backend`` loads it, and its polling interval for events.

    An event must reach the state file within a second. Readings of a ``simulated`` backend are marked as simulated.
    """

    module: str
    event_poll_seconds: float | None
    simulated: bool = False


SIMULATED = BackendModule("nodevet.checks.simulation.backend", None, simulated=True)
"""The backend of a simulated node."""

COMMAND = BackendModule("nodevet.checks.backends.command.backend", None)
"""The backend of every ``command.NAME``; its options contain the command."""

WAITING = "waiting for the agent"

CHUNK_BYTES = 1 << 20

REST_SECONDS = 0.1
"""Until the next look for events if the last one took as many as it may: a storm is told while it lasts."""


class ChildContext:
    """The services of the child for its backend."""

    def __init__(self, end: ChildEnd, start: Start) -> None:
        """Take the root and the options of *start*; the option ``skip`` lists devices that must not be accessed.

        The option ``leave_out`` lists functions that must not be called.
        """
        self.root = start.root
        self.options: dict[str, object] = {**start.options, "skip": start.skip, "leave_out": start.leave_out}
        self.progress: Progress = end.progress
        self._channel = end.channel
        self._clock = SystemClock(start.root)

    def now(self) -> Instant:
        """Return the present time."""
        return self._clock.instant()

    def note(self, level: str, event: str, **fields: str) -> None:
        """Send a line to the agent's log."""
        self._channel.send(Note(level, event, fields))


class ReaderServer:
    """Serves the rounds of one loaded backend until the agent stops it."""

    def __init__(self, end: ChildEnd, context: ChildContext, backend: Backend, start: Start) -> None:
        """Store the state for rounds; nothing is read yet."""
        self._channel = end.channel
        self._progress = end.progress
        self._context = context
        self._backend = backend
        self._start = start
        self._module = backend_module(start.backend)
        self._devices: tuple[Device, ...] = ()
        self._own: dict[str, Device] = {}  # the backend's id of each device, by the id that the agent uses
        self._checked: dict[tuple[str, str], Checked] = {}
        self._queue: deque[Message] = deque()
        self._told: dict[str, str] = {}
        self._taken = 0  # events of the last look
        self._poll = select.poll()
        self._poll.register(end.channel.fileno(), select.POLLIN)

    def serve(self) -> None:
        """Answer with Ready, then read on request. Returns on Stop. Raises BackendError when the library is lost."""
        self._progress.write("list the devices")
        self._devices = self._listed()
        end_at_crashes()
        versions = {name: sound_text(version) for name, version in self._backend.versions.items()}
        self._channel.send(Ready(self._devices, self._backend.groups, versions))
        while True:
            message = self._next_message()
            if isinstance(message, Stop):
                return
            if not isinstance(message, Read):
                raise WireError(f"a reader cannot serve {type(message).__name__}")
            self._read_round(message)

    def _next_message(self) -> Message:
        """Wait for the agent, polling for events meanwhile."""
        self._progress.write(WAITING)
        while not self._receive(self._until_look()):
            self._send_events()
            self._progress.write(WAITING)
        return self._queue.popleft()

    def _until_look(self) -> float | None:
        """Return how long to wait for the agent before the next look for events; None where there is none."""
        usual = self._module.event_poll_seconds
        return usual if usual is None or self._taken < MOST_EVENTS else REST_SECONDS

    def _receive(self, timeout_seconds: float | None) -> bool:
        """Queue the messages that arrive within *timeout_seconds* (None: no limit); return whether any is queued."""
        timeout = None if timeout_seconds is None else timeout_seconds * 1000
        if not self._queue and (self._channel.pending() or self._poll.poll(timeout)):
            self._queue.append(self._channel.receive())
        return bool(self._queue)

    def _read_round(self, request: Read) -> None:
        for device in self._in_order():
            if self._receive(0) and isinstance(self._queue[0], Stop):
                return
            checked = self._checked.setdefault((request.group, device.id), Checked())
            self._channel.send(Sampled(checked.sample(self._sample(device, request, checked))))
            self._send_events()
        changed = None
        if request.group == self._backend.groups[-1]:
            changed = self._enumerate_again()
        self._channel.send(RoundDone(request.group, request.round, changed))

    def _in_order(self) -> list[Device]:
        """Return the devices to read: quarantined ones are omitted, suspects come last."""
        wanted = [device for device in self._devices if device.id not in self._start.skip]
        return sorted(wanted, key=lambda device: device.id in self._start.last)

    def _sample(self, device: Device, request: Read, checked: Checked) -> Sample:
        self._progress.write(f"read {request.group} of {device.id}")
        started, began = self._context.now(), time.perf_counter()
        readings: tuple[Reading, ...] = ()
        failure: Failure | None = None
        try:
            done = attempt(partial(self._readings, request.group, device, checked), let=(BackendError, Closed))
        except BackendError as error:
            failure = wanting(error.failure)
        else:
            failure = own_error("reading it", done) if isinstance(done, Bug) else None
            readings = () if isinstance(done, Bug) else done
        return Sample(
            backend=device.backend,
            group=request.group,
            device=device.id,
            sequence=request.round,
            time=started,
            duration_seconds=time.perf_counter() - began,
            readings=readings,
            failure=failure,
            simulated=self._module.simulated,
        )

    def _enumerate_again(self) -> tuple[Device, ...] | None:
        """Return the devices if they changed since the last enumeration, else None."""
        self._progress.write("list the devices")
        done = attempt(self._listed, let=(BackendError, Closed))
        devices = self._devices if isinstance(done, Bug) else done
        self._tell_once("devices cannot be listed anew", str(done) if isinstance(done, Bug) else "")
        if devices == self._devices:
            return None
        self._devices = devices
        return devices

    def _readings(self, group: str, device: Device, checked: Checked) -> tuple[Reading, ...]:
        return checked.readings(self._backend.read(group, self._own[device.id]))

    def _listed(self) -> tuple[Device, ...]:
        """Return the devices of the backend; an invalid value in a device's identity is omitted and reported."""
        listed = self._backend.devices()
        sound = [sound_device(device) for device in listed]
        complaints = "; ".join(complaint for _, found in sound for complaint in found)
        self._tell_once("a device tells nonsense of itself", complaints)
        devices = told_apart([device for device, _ in sound])
        self._own = {device.id: own for device, own in zip(devices, listed, strict=True)}
        self._checked.clear()
        return devices

    def _send_events(self) -> None:
        """Send the new events as they come; one that cannot be read or sent ends this look."""
        self._taken = 0
        sent = attempt(self._send_each, let=(BackendError, Closed))
        self._tell_once("events cannot be read", str(sent) if isinstance(sent, Bug) else "")

    def _send_each(self) -> None:
        names = {own.id: name for name, own in self._own.items()}
        for event in self._backend.events():
            self._taken += 1
            device = None if event.device is None else names.get(event.device, sound_text(event.device))
            self._channel.send(EventMessage(msgspec.structs.replace(event, text=sound_text(event.text), device=device)))

    def _tell_once(self, event: str, detail: str) -> None:
        """Send a line to the agent's log if *detail* is new."""
        if detail and self._told.get(event) != detail:
            self._context.note("warning", event, detail=detail)
        self._told[event] = detail


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the child with *arguments* (those of the process by default); return its exit status."""
    end = become_child(sys.argv[1:] if arguments is None else arguments)
    with contextlib.suppress(Closed):  # without an agent nobody reads a report, and no work is left
        _run(end)
    return 0


def _run(end: ChildEnd) -> None:
    start = end.channel.receive()
    if not isinstance(start, Start):
        raise WireError(f"the first message is {type(start).__name__}, not Start")
    try:
        done = attempt(partial(_load_and_serve, end, start), let=(BackendError, Closed, WireError))
    except BackendError as error:
        end.progress.write(f"look why {start.backend} failed")
        end.channel.send(Failed(unasked(start.backend, wanting(error.failure))))
    else:
        if isinstance(done, Bug):
            end.channel.send(Failed(own_error(f"in the {start.backend} collector", done)))


def own_error(doing: str, bug: Bug) -> Failure:
    """Return the failure for a bug of nodevet: it is no evidence against the driver. A refused resource is no bug."""
    if want := for_want(bug.error):
        return Failure(FailureKind.READER, f"{doing}: {bug.error}, {want}")
    return Failure(FailureKind.READER, f"nodevet's own error {doing}: {bug}: please report this")


def wanting(failure: Failure) -> Failure:
    """Return *failure* as one of the machine, if a refused resource made the backend give up."""
    want = "" if failure.of_driver else for_want(failure.detail)
    return Failure(FailureKind.READER, f"{failure.detail}, {want}") if want else failure


def unasked(backend: str, failure: Failure, devices: Path = Path("/dev")) -> Failure:
    """Return *failure* of the library of *backend*, without blame of its driver if the library could not call it."""
    may_be = failure.of_driver and failure.kind in SAID_WITHOUT_ASKING
    why = refused_nodes(backend, devices) if may_be else ""
    return Failure(FailureKind.ERROR, f"{failure.detail}; {why}") if why else failure


def prove_readable(files: Iterable[str], progress: Progress) -> None:
    """Read each of *files* to its end. Raises BackendError, which blames no driver, for an unreadable file.

    A disk error on a page of a library ends the calling process with SIGBUS, as a fault of the driver itself does.
    """
    for path in files:
        progress.write(f"read {path} through")
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (a Path would be made of each of hundreds)
                while file.read(CHUNK_BYTES):
                    pass
        except OSError as error:
            words = f"{path} cannot be read: {error.strerror}: see journalctl -k for its disk, and install it anew"
            raise BackendError(FailureKind.READER, words) from error


def _load_and_serve(end: ChildEnd, start: Start) -> None:
    prove_readable(start.prove, end.progress)
    if start.stand_still:
        stand_still_at_crashes()
    context = ChildContext(end, start)
    end.progress.write(f"load backend {start.backend}")
    backend = _factory(start)(context)
    try:
        ReaderServer(end, context, backend, start).serve()
    finally:
        end.progress.write(f"close backend {start.backend}")
        backend.close()


def _factory(start: Start) -> BackendFactory:
    if start.protocol != PROTOCOL:
        raise BackendError(
            FailureKind.READER,
            f"agent speaks protocol {start.protocol}, collector {PROTOCOL}: restart the agent after the upgrade",
        )
    module = backend_module(start.backend).module
    factory: BackendFactory = imported("nodevet", lambda: importlib.import_module(module).open_backend)
    return factory


def backend_module(backend: str) -> BackendModule:
    """Return the module of *backend*. Raises BackendError if no such backend exists."""
    if backend.startswith("command."):
        return COMMAND
    if backend == "simulated":
        return SIMULATED
    if backend not in backend_names():  # no other module is imported by name
        raise BackendError(FailureKind.READER, f"no backend {backend!r}: there are {', '.join(backend_names())}")
    return BackendModule(f"nodevet.checks.backends.{backend}.backend", vendor_of(backend).event_poll_seconds)


if __name__ == "__main__":
    sys.exit(main())
