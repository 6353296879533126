"""The agent's Unix socket: one JSON object per line each way, served by the main loop without a thread.

Every registration in the selector carries a callable as its data; the loop calls ``key.data(events)``. Who is at
the other end is told by the kernel (SO_PEERCRED, unix(7)): verbs that change something are for root and for the
agent's own user, all others for anyone whom the socket's mode lets in.

A handler that raises a NodevetError answers with its text. Whatever else it raises is a bug: it costs this one call.
"""

from __future__ import annotations

import os
import selectors
import socket
import stat
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from nodevet.agent.config.decoding import suggestion
from nodevet.agent.services.protocol import Service
from nodevet.checks.core.errors import BusyError, ConfigurationError, NodevetError, StoreError, UsageError
from nodevet.checks.core.guard import Bug, Guard, attempt
from nodevet.checks.system.exhaustion import EXHAUSTED, EXHAUSTED_SECONDS
from nodevet.checks.system.files import file_identity

SOCKET_NAME = "control.socket"

LONGEST_RELEASE_SECONDS = 86400.0
"""A node that nobody reads for longer is out of service: stop the agent instead."""

MAXIMUM_PATH_BYTES = 107
"""What sun_path holds beside its closing zero, unix(7)."""

_CREDENTIALS = struct.Struct("3i")


class Peer(msgspec.Struct, frozen=True):
    """Who connected, as the kernel saw it at that moment."""

    pid: int
    uid: int
    gid: int


class NoArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of a verb that takes none."""


class Verb(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be asked for.

    ``handler`` receives a Call and returns the answer, or None when it will answer later through the call.
    ``changes`` keeps out everyone but root and the agent's own user. ``streams`` keeps the caller subscribed to what
    is published under the verb's name, after a first answer if the handler gives one.
    """

    handler: Callable[[Call], Mapping[str, Any] | None]
    arguments: type[msgspec.Struct] = NoArguments
    changes: bool = False
    streams: bool = False


class Limits(msgspec.Struct, frozen=True):
    """What one caller, and all together, may take."""

    request_bytes: int = 64 << 10
    trusted_request_bytes: int = 16 << 20
    """Of those who may change something: the results of a load on eight devices, with their curves, take a megabyte."""

    clients: int = 64
    backlog: int = 64


class Call:
    """One request: its decoded ``arguments``, who asks, and the way back to them."""

    def __init__(self, verb: str, arguments: Any, connection: _Connection) -> None:
        """Belong to *connection*."""
        self.verb = verb
        self.arguments = arguments
        self.peer = connection.peer
        self.answered = False
        self._connection = connection

    def answer(self, message: Mapping[str, Any]) -> None:
        """Send *message*; nothing happens where the caller is gone."""
        self.answered = True
        self._connection.awaited.discard(id(self))
        self._connection.answer(message)

    def refuse(self, reason: str) -> None:
        """Send the error that a refusal at once would have been."""
        self.answer(_error("refused", reason))

    def when_gone(self, callback: Callable[[], None]) -> None:
        """Call *callback* once, when the caller disconnects or dies: how a lease ends with its holder."""
        self._connection.farewells.append(callback)


class Control(Service):
    """The listening socket and everyone connected to it."""

    name = "socket"

    def __init__(
        self,
        path: Path,
        verbs: Mapping[str, Verb],
        selector: selectors.BaseSelector,
        *,
        trusted_uids: frozenset[int] | None = None,
        limits: Limits | None = None,
        guard: Guard | None = None,
    ) -> None:
        """Listen at *path* and register with *selector*. A socket file that nobody listens on is replaced.

        *trusted_uids* may use verbs that change something (default: root and the user we run as). Raises BusyError
        when another process listens there, ConfigurationError when the path is no place for a socket, StoreError
        when it cannot be written.
        """
        self.path = path
        self._verbs = dict(verbs)
        self._selector = selector
        self._trusted = frozenset({0, os.geteuid()}) if trusted_uids is None else trusted_uids
        self._limits = limits or Limits()
        self._guard = guard or Guard()
        # In the order in which they were last heard of: the first is the one to give up when it gets crowded.
        self._connections: dict[int, _Connection] = {}
        self._listener = _listen(path, self._limits.backlog)
        self._identity = file_identity(path)
        self._open_at: float | None = None
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    @property
    def next_deadline(self) -> float | None:
        """Return when ``tick`` must be called next, in monotonic seconds."""
        return self._open_at

    def tick(self) -> None:
        """Let callers in again, where there was no descriptor for one a moment ago."""
        if self._open_at is not None and time.monotonic() >= self._open_at:
            self._open_at = None
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def publish(self, verb: str, message: Mapping[str, Any]) -> None:
        """Send *message* to all who subscribed to *verb*; one who is slow to read gets only the newest."""
        line: bytes | None = None
        for connection in tuple(self._connections.values()):
            if connection.subscription == verb:
                line = _encode(message) if line is None else line
                connection.offer(line)

    def watched(self, verb: str) -> bool:
        """Return whether anyone is subscribed to *verb*."""
        return any(connection.subscription == verb for connection in self._connections.values())

    def restore(self) -> None:
        """Listen anew where the socket file was removed or replaced; who is connected stays so.

        Raises BusyError, ConfigurationError and StoreError as at the start.
        """
        if file_identity(self.path) == self._identity:
            return
        fresh = _listen(self.path, self._limits.backlog)
        with suppress(KeyError):
            self._selector.unregister(self._listener)
        self._listener.close()
        self._listener, self._identity, self._open_at = fresh, file_identity(self.path), None
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Say good-bye to everyone and remove the socket file, unless it is no longer ours."""
        for connection in tuple(self._connections.values()):
            connection.close()
        with suppress(KeyError):
            self._selector.unregister(self._listener)
        self._listener.close()
        if file_identity(self.path) == self._identity:
            self.path.unlink(missing_ok=True)

    def _accept(self, _events: int) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            # Gone before it was served: the next event asks again.
            if error.errno in EXHAUSTED:
                self._selector.unregister(self._listener)
                self._open_at = time.monotonic() + EXHAUSTED_SECONDS
            return
        accepted.setblocking(False)
        self._make_room(_peer(accepted).uid)
        connection = _Connection(self, accepted)
        self._connections[accepted.fileno()] = connection
        if len(self._connections) > self._limits.clients:
            connection.dismiss(_error("busy", f"{self._limits.clients} clients are connected: try again later"))

    def _make_room(self, uid: int) -> None:
        """Give up a caller for one of *uid* when all places are taken, so that nobody keeps root or others out.

        That is the one that has been silent longest with nothing under way, else the oldest of the user that holds
        most places. Whoever may change something makes room for nobody else.
        """
        if len(self._connections) < self._limits.clients:
            return
        everyone, is_trusted = tuple(self._connections.values()), uid in self._trusted
        others = [entry for entry in everyone if entry.peer.uid not in self._trusted]
        held = Counter(entry.peer.uid for entry in others)
        crowd = max(held, key=held.__getitem__, default=uid)
        victims = [entry for entry in others if entry.idle]
        victims += [entry for entry in everyone if entry.idle and is_trusted]
        if is_trusted or held[crowd] > held[uid] + 1:
            victims += [entry for entry in others if entry.peer.uid == crowd]
        if victims:
            victims[0].close()

    def _serve(self, connection: _Connection, line: bytes) -> None:
        """Answer one request."""
        answer = self._answer(connection, line)
        if answer is not None:
            connection.answer(answer)

    def _answer(self, connection: _Connection, line: bytes) -> Mapping[str, Any] | None:
        try:
            request = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            # The decoder leaves text that is not UTF-8, and nesting without end, to Python's own errors.
            return _error("bad_request", f"not valid JSON: {error}")
        if not isinstance(request, dict) or not isinstance(request.get("verb"), str):
            return _error("bad_request", 'expected {"verb": "...", ...}')
        name = request.pop("verb")
        verb = self._verbs.get(name)
        if verb is None:
            return _error("unknown_verb", f"no verb {name!r}, {suggestion(name, self._verbs)}")
        if verb.changes and connection.peer.uid not in self._trusted:
            return _error("denied", f"{name} changes the node: run it as root, or as the user of the agent")
        unknown = [key for key in request if key not in verb.arguments.__struct_fields__]
        if unknown:
            hint = suggestion(unknown[0], verb.arguments.__struct_fields__)
            return _error("bad_request", f"{name}: unknown argument {unknown[0]!r}, {hint}")
        try:
            arguments = msgspec.convert(request, verb.arguments)
        except (msgspec.ValidationError, NodevetError) as error:
            return _error("bad_request", f"{name}: {error}")
        call = Call(name, arguments, connection)
        done = attempt(partial(_handled, verb, call))
        if isinstance(done, Bug):
            self._guard.failed(f"verb {name}", done)
            return _error("failed", f"{name}: nodevet's own error, please report it: {done}")
        self._guard.works(f"verb {name}")
        answer, is_error = done
        if is_error:
            return answer
        if verb.streams:
            connection.subscription = name
        if answer is None and not verb.streams and not call.answered:
            connection.awaited.add(id(call))
        return answer


def _handled(verb: Verb, call: Call) -> tuple[Mapping[str, Any] | None, bool]:
    """Return the answer of the verb's handler as it goes over the wire, and whether it is a refusal."""
    try:
        answer = verb.handler(call)
    except UsageError as error:
        return _error("bad_request", str(error)), True
    except NodevetError as error:
        return _error("refused", str(error)), True
    if answer is not None:
        _encode(answer)  # an answer that cannot be sent is the handler's bug, not the connection's
    return answer, False


class _Connection:
    """One caller. Requests are answered in turn, one in each turn of the loop, so that many at once hold up nobody.

    While an answer is being written, or requests wait, nothing more is read.
    """

    def __init__(self, control: Control, accepted: socket.socket) -> None:
        self.peer = _peer(accepted)
        self.subscription: str | None = None
        self.awaited: set[int] = set()
        self.leaving = False
        self.farewells: list[Callable[[], None]] = []
        self._control = control
        self._socket = accepted
        self._received = bytearray()
        self._sending = bytearray()
        self._newest: bytes | None = None
        self._descriptor = accepted.fileno()
        self._events = selectors.EVENT_READ
        control._selector.register(accepted, self._events, self._ready)

    @property
    def idle(self) -> bool:
        """Whether nothing is promised to this caller: no answer, no subscription, no farewell, no request waits."""
        return not (self._sending or self.subscription or self.awaited or self.farewells or self._waits)

    @property
    def _waits(self) -> bool:
        """Whether a whole request is here and not answered yet."""
        return b"\n" in self._received and not self.leaving

    def answer(self, message: Mapping[str, Any]) -> None:
        """Queue *message* and write what the socket takes."""
        if self._descriptor >= 0:
            self._sending += _encode(message)
            self._write()

    def dismiss(self, message: Mapping[str, Any]) -> None:
        """Answer with *message* and disconnect once it is written."""
        self.leaving = True
        self.answer(message)

    def offer(self, line: bytes) -> None:
        """Queue *line*, instead of any earlier one that was not begun."""
        if self._sending:
            self._newest = line
        else:
            self._sending += line
            self._write()

    def close(self) -> None:
        """Disconnect, and tell those who wanted to know."""
        if self._descriptor < 0:
            return
        self._control._selector.unregister(self._socket)
        self._control._connections.pop(self._descriptor, None)
        self._descriptor = -1
        self._socket.close()
        farewells, self.farewells = self.farewells, []
        for farewell in farewells:
            self._control._guard.run("end of a call", farewell)

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._write()
            self._serve_next()
        if events & selectors.EVENT_READ and self._descriptor >= 0:
            self._read()

    def _read(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not data:
            # Half closed (`printf ... | nc -N -U`): what is being written may still be read.
            self.leaving = True
            if not self._sending:
                self.close()
            else:
                self._watch()
            return
        connections = self._control._connections
        connections[self._descriptor] = connections.pop(self._descriptor)
        if not self.leaving:
            self._received += data
            self._serve_next()

    def _serve_next(self) -> None:
        """Answer the next request, where there is one whole and the answer before it was taken."""
        limits, trusted = self._control._limits, self.peer.uid in self._control._trusted
        limit = limits.trusted_request_bytes if trusted else limits.request_bytes
        while self._descriptor >= 0 and not self._sending and not self.leaving:
            end = self._received.find(b"\n")
            if max(end, len(self._received) * (end < 0)) > limit:
                self._received.clear()
                self.dismiss(_error("bad_request", f"a request has at most {limit} bytes"))
                return
            if end < 0:
                break
            line = bytes(self._received[:end])
            del self._received[: end + 1]  # from the front, which moves nothing: 64 KiB of empty lines cost little
            if line.strip():
                self._control._serve(self, line)
                break
        if self._descriptor >= 0:
            self._watch()

    def _write(self) -> None:
        try:
            while self._sending:
                del self._sending[: self._socket.send(self._sending)]
                if not self._sending and self._newest is not None:
                    self._sending += self._newest
                    self._newest = None
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        if self.leaving and not self._sending:
            self.close()
        else:
            self._watch()

    def _watch(self) -> None:
        """Ask the selector for what can be done now: read when nothing is being written and no request waits."""
        events = selectors.EVENT_WRITE if self._sending or self._waits else selectors.EVENT_READ
        if events != self._events:
            self._events = events
            self._control._selector.modify(self._socket, events, self._ready)


def _listen(path: Path, backlog: int) -> socket.socket:
    if len(os.fsencode(path)) > MAXIMUM_PATH_BYTES:
        raise ConfigurationError(
            f"{path}: a socket's path has at most {MAXIMUM_PATH_BYTES} bytes: choose a shorter runtime_dir"
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        _remove_unheard(path)
        # The mode of the descriptor is that of the file from its first moment, so nobody slips in; umask may only
        # narrow it, which is undone after.
        os.fchmod(listener.fileno(), 0o660)
        listener.bind(os.fspath(path))
        path.chmod(0o660)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise StoreError(f"{path}: cannot listen ({error.strerror}): choose another runtime_dir") from error
    except NodevetError:
        listener.close()
        raise
    return listener


def _remove_unheard(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(f"{path}: exists and is not a socket: move it away, or choose another runtime_dir")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            # Its queue of callers is full, so there is one who listens.
            pass
    raise BusyError(f"{path}: another agent listens there: ask it with `nodevet status`, or stop it first")


def _peer(accepted: socket.socket) -> Peer:
    data = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(data))


def _encode(message: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def _error(kind: str, text: str) -> dict[str, str]:
    return {"error": text, "kind": kind}
