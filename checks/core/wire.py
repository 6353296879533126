"""The protocol between the agent and its children: length-prefixed MessagePack on a descriptor of its own.

Standard output and standard error of a child belong to the libraries that print there; standard input is the
lifeline: it closes when the parent ends, and then the child ends. ``Request`` messages go from parent to child,
``Reply`` messages from child to parent. Nothing here opens a file: callers pass sockets.

A driver call may never return. Therefore the child writes the name of the next call to a small shared memory file
(``Progress``), where the parent reads which call hung.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from .errors import Closed, ModelError, WireError
from .model import Device, Event, Failure, Result, Sample
from .salvage import salvaged

PROTOCOL = 3
MAXIMUM_FRAME_BYTES = 64 << 20
MAXIMUM_WORDS = 1000
PROGRESS_NAME = "nodevet-progress"
_HEADER = struct.Struct(">I")


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


class Start(_Message, frozen=True):
    """Parent: load the backend. ``root`` is the prefix of /proc and /sys.

    ``skip`` names quarantined devices, by id and by PCI address: they are not touched. ``last`` names devices to read
    after all others, because an earlier child hung or crashed there. ``prove`` names files to read through before
    anything is loaded: an earlier child accessed an address that could not be served. ``stand_still``: a crash there
    pauses the child until its files were inspected. ``leave_out`` names functions of the library that are not called.
    """

    backend: str
    root: str = "/"
    skip: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    prove: tuple[str, ...] = ()
    stand_still: bool = False
    options: dict[str, Any] = {}
    protocol: int = PROTOCOL


class Read(_Message, frozen=True):
    """Parent: read *group* of every device once; answers are ``Sampled`` per device, then ``RoundDone``."""

    group: str
    round: int


class Burn(_Message, frozen=True):
    """Parent: run one workload with *parameters*; replies are progress, wrong results and one result."""

    workload: str
    parameters: dict[str, Any] = {}


class Stop(_Message, frozen=True):
    """Parent: close the library and exit."""


class Ready(_Message, frozen=True):
    """Child: the backend is loaded; ``devices`` are its devices, ``groups`` the readable groups."""

    devices: tuple[Device, ...]
    groups: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    protocol: int = PROTOCOL


class Failed(_Message, frozen=True):
    """Child: the backend cannot be loaded or lost its library."""

    failure: Failure


class Sampled(_Message, frozen=True):
    """Child: one device was read, or reading it failed."""

    sample: Sample


class RoundDone(_Message, frozen=True):
    """Child: every device of the round was attempted. ``devices`` is set when the inventory changed."""

    group: str
    round: int
    devices: tuple[Device, ...] | None = None


class EventMessage(_Message, frozen=True):
    """Child: the vendor's interface reported an event."""

    event: Event


class Note(_Message, frozen=True):
    """Child: a line for the log."""

    level: str
    event: str
    fields: dict[str, str] = {}


class ProgressMessage(_Message, frozen=True):
    """Child: progress of a workload, as the share of its time from 0 to 1, and the figures so far."""

    ratio: float
    phase: str = ""
    figures: dict[str, Any] = {}


class Found(_Message, frozen=True):
    """Child: the running workload found a wrong result; sent at once, because the workload may never end."""

    result: Result


class ResultMessage(_Message, frozen=True):
    """Child: a workload ended with this result."""

    result: Result


Message = (
    Start
    | Read
    | Burn
    | Stop
    | Ready
    | Failed
    | Sampled
    | RoundDone
    | EventMessage
    | Note
    | ProgressMessage
    | Found
    | ResultMessage
)
_DECODER = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Return *message* as one frame."""
    body = msgspec.msgpack.encode(message)
    return _HEADER.pack(len(body)) + body


class Decoder:
    """Collects bytes and yields whole messages. One per connection."""

    def __init__(self, unreadable: Callable[[str], None] | None = None) -> None:
        """Start with an empty buffer. *unreadable* receives the reason for an unreadable message; None raises instead.

        A message with unknown values is returned without them, after a note that names them.
        """
        self._buffer = bytearray()
        self._unreadable = unreadable

    def feed(self, data: bytes) -> Iterator[Message]:
        """Add *data* and yield every complete message. Raises WireError for malformed data."""
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer)
            if length > MAXIMUM_FRAME_BYTES:
                raise WireError(f"frame of {length} bytes exceeds {MAXIMUM_FRAME_BYTES}")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            try:
                message = _DECODER.decode(body)
            except (msgspec.DecodeError, ModelError, UnicodeDecodeError) as error:
                reason = f"message of {length} bytes cannot be read: {error}"
                if self._unreadable is None:
                    raise WireError(reason) from error
                rest = _rest(body)
                if not rest:
                    self._unreadable(reason)
                yield from rest
                continue
            yield message


def _rest(body: bytes) -> tuple[Message, ...]:
    """Return the readable part of an unreadable message, after a note; nothing where no part is readable.

    The sender is a program of another release, or of our own with a bug.
    """
    try:
        raw = msgspec.msgpack.decode(body)
        repaired, left_out = salvaged(raw) if isinstance(raw, dict) else (raw, ())
        message = msgspec.convert(repaired, Message)
    except (msgspec.MsgspecError, ModelError, UnicodeDecodeError):
        return ()
    return (Note("warning", "words left out", {"detail": "; ".join(left_out)[:MAXIMUM_WORDS]}), message)


class Channel:
    """The child's blocking end of the protocol over *connection*."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over *connection*."""
        self._connection = connection
        self._decoder = Decoder()
        self._waiting: list[Message] = []

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Send *message*; raise Closed when the parent is gone."""
        try:
            self._connection.sendall(encode(message))
        except OSError as error:
            raise Closed("the parent closed the channel") from error

    def receive(self) -> Message:
        """Wait for the next message; raise Closed when the parent is gone."""
        while not self._waiting:
            try:
                data = self._connection.recv(1 << 16)
            except OSError as error:
                raise Closed("the parent closed the channel") from error
            if not data:
                raise Closed("the parent closed the channel")
            self._waiting.extend(self._decoder.feed(data))
        return self._waiting.pop(0)

    def pending(self) -> bool:
        """Return whether a received message is waiting to be taken."""
        return bool(self._waiting)


class Progress:
    """A line of text in shared memory: the child's next step. Written in a microsecond, read at any time.

    Before the line stands a number that grows with each driver call and each return: odd while the child is inside one.
    Only a hang or crash inside a call can be the driver's fault.
    """

    SIZE = 256
    _NUMBER = struct.Struct("=I")

    def __init__(self, descriptor: int) -> None:
        """Map the shared file behind *descriptor*, of at least SIZE bytes."""
        self._map = mmap.mmap(descriptor, self.SIZE)
        self._number = 0

    @classmethod
    def create(cls) -> tuple[Progress, int]:
        """Return a new progress line and the descriptor to pass to the child."""
        descriptor = os.memfd_create(PROGRESS_NAME, 0)
        os.ftruncate(descriptor, cls.SIZE)
        return cls(descriptor), descriptor

    def write(self, text: str) -> None:
        """Replace the line with *text*, a step of nodevet itself, cut to the size."""
        self._step(text, self._number + (self._number & 1))

    def call(self, text: str) -> None:
        """Replace the line with *text*, a driver call that begins now."""
        self._step(text, self._number + 1 + (self._number & 1))

    def returned(self) -> None:
        """Record that the call returned; the line stays, because it shows people the last call."""
        self._number += self._number & 1
        self._NUMBER.pack_into(self._map, 0, self._number & 0xFFFFFFFF)

    def read(self) -> str:
        """Return the line."""
        return bytes(self._map[self._NUMBER.size :]).split(b"\0", 1)[0].decode("utf-8", "replace")

    @property
    def number(self) -> int:
        """Return the number before the line: odd inside a call, and different for each call."""
        return int(self._NUMBER.unpack_from(self._map, 0)[0])

    def _step(self, text: str, number: int) -> None:
        # The text first: a reader that sees the number of a call must see its text.
        data = text.encode("utf-8", "replace")[: self.SIZE - self._NUMBER.size - 1]
        end = self._NUMBER.size + len(data) + 1
        if not number & 1:
            self._NUMBER.pack_into(self._map, 0, number & 0xFFFFFFFF)
        self._map[self._NUMBER.size : end] = data + b"\0"
        self._number = number
        self._NUMBER.pack_into(self._map, 0, number & 0xFFFFFFFF)

    def close(self) -> None:
        """Unmap the line."""
        self._map.close()
