"""The real reader child of a backend on a fake machine, driven by a test over the real protocol."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from fakes.amdsmi.scenario import FakeAmdSmi
from fakes.nvml.scenario import FakeNvml

from nodevet.checks.core.model import Device, Event, Failure, Part, Reading, Sample
from nodevet.checks.core.wire import (
    Decoder,
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
    encode,
)

__all__ = ["ReaderProcess"]

PATIENCE_SECONDS = 20.0
CHILD = (sys.executable, "-I", "-m", "nodevet.checks.backends.reader_main")

UUIDS = {machine.backend: machine.uuid for machine in (FakeNvml, FakeAmdSmi)}

Kind = TypeVar("Kind", bound=Message)


class ReaderProcess:
    """A reader child from its start to its end. Leave it as a context manager, which kills what is left."""

    def __init__(
        self, environment: Mapping[str, str], backend: str = "nvidia", *, root: str = "/", skip: Sequence[str] = ()
    ) -> None:
        """Start the child of *backend* in *environment*; ``ready`` or ``failed`` waits until it has loaded it."""
        self._backend = backend
        self._own, other = socket.socketpair()
        self.progress, shared = Progress.create()
        self._decoder = Decoder()
        self._waiting: list[Message] = []
        self._round = 0
        self.notes: list[Note] = []
        self.events: list[Event] = []
        self.devices: tuple[Device, ...] = ()
        self.process = subprocess.Popen(
            [*CHILD, "--descriptor", str(other.fileno()), "--progress", str(shared)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
            pass_fds=(other.fileno(), shared),
        )
        other.close()
        os.close(shared)
        self.send(Start(backend, root=root, skip=tuple(skip)))

    def __enter__(self) -> ReaderProcess:
        """Return self."""
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Kill the child if it is still there, and close every descriptor."""
        self.process.kill()
        self.process.communicate()
        self._own.close()
        self.progress.close()

    def send(self, message: Message) -> None:
        """Send *message* to the child."""
        self._own.sendall(encode(message))

    def ready(self) -> Ready:
        """Wait until the backend is loaded."""
        ready = self.expect(Ready)
        self.devices = ready.devices
        return ready

    def failed(self) -> Failure:
        """Wait until the backend is refused, and return why."""
        return self.expect(Failed).failure

    def round(self, group: str) -> dict[str, Sample]:
        """Read *group* of every device and return the samples by device id."""
        self._round += 1
        self.send(Read(group, self._round))
        samples: dict[str, Sample] = {}
        while not isinstance(message := self._next(), RoundDone):
            assert isinstance(message, Sampled), message
            samples[message.sample.device] = message.sample
        if message.devices is not None:
            self.devices = message.devices
        return samples

    def request(self, group: str) -> None:
        """Ask for a round and return at once, because the child will not survive it."""
        self._round += 1
        self.send(Read(group, self._round))

    def enumerate_again(self) -> tuple[Device, ...]:
        """Let the child list its devices anew, as it does after each slow round."""
        self.round("slow")
        return self.devices

    def readings(self, slot: int, group: str) -> dict[tuple[str, Part], Reading]:
        """Read *group* and return what the device of *slot* answered; a failure of the device fails the test."""
        sample = self.sample(slot, group)
        assert sample.failure is None, sample.failure
        return {(reading.quantity, reading.part): reading for reading in sample.readings}

    def sample(self, slot: int, group: str) -> Sample:
        """Read *group* and return the sample of the device of *slot*."""
        return self.round(group)[UUIDS[self._backend](slot)]

    def wait_for_event(self) -> Event:
        """Wait for the next event that the child tells."""
        while not self.events:
            self._receive()
        return self.events.pop(0)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Watch the line of progress, which nobody announces, until *condition* holds."""
        poll = select.poll()
        for _ in range(int(PATIENCE_SECONDS * 100)):
            if condition():
                return
            poll.poll(10)
        raise AssertionError(f"the child is still in: {self.progress.read()}")

    def stop(self) -> int:
        """Ask the child to end and return its status."""
        self.send(Stop())
        return self.process.wait(PATIENCE_SECONDS)

    def expect(self, kind: type[Kind]) -> Kind:
        """Return the next message, which must be of *kind*."""
        message = self._next()
        assert isinstance(message, kind), message
        return message

    def _next(self) -> Message:
        while not self._waiting:
            self._receive()
        return self._waiting.pop(0)

    def _receive(self) -> None:
        """Take what the child sends; notes and events are kept aside."""
        self._own.settimeout(PATIENCE_SECONDS)
        data = self._own.recv(1 << 16)
        assert data, f"the child ended in: {self.progress.read()}"
        for message in self._decoder.feed(data):
            if isinstance(message, Note):
                self.notes.append(message)
            elif isinstance(message, EventMessage):
                self.events.append(message.event)
            else:
                self._waiting.append(message)
