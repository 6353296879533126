"""Which connections the HTTP server keeps: few, none for long, and a complete request before an incomplete one.

Any local user can open connections and say nothing. Such a connection ends after two seconds, and where there are too
many the oldest incomplete one makes room, then the one that has left its answer lying longest. So a scraper, which
sends its request at once and takes the answer, is always served.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import msgspec

MAXIMUM_CONNECTIONS = 16

REQUEST_SECONDS = 2.0
"""How long a request may take to arrive whole. Over loopback it takes less than a millisecond."""

CONNECTION_SECONDS = 10.0
"""Whole life of a connection. A page takes milliseconds; what is slower than this does not read."""


class _Connection(msgspec.Struct):
    """When it was opened, when it ends, and since when its reader does not take the answer, in monotonic seconds.

    ``complete`` where its request is here.
    """

    opened: float
    ends: float
    complete: bool = False
    waits_since: float | None = None


class Connections:
    """The open connections. Used by the thread that accepts and by those that answer."""

    def __init__(
        self,
        *,
        most: int = MAXIMUM_CONNECTIONS,
        request_seconds: float = REQUEST_SECONDS,
        connection_seconds: float = CONNECTION_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep at most *most*; each has *request_seconds* for its request and *connection_seconds* in all."""
        self._most = most
        self._request_seconds = min(request_seconds, connection_seconds)
        self._connection_seconds = connection_seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._open: dict[socket.socket, _Connection] = {}
        self._refused = 0

    @property
    def refused(self) -> int:
        """Return how many were closed unanswered."""
        with self._lock:
            return self._refused

    @property
    def any(self) -> bool:
        """Return whether one is open."""
        return bool(self._open)

    @property
    def has_room(self) -> bool:
        """Return whether one more can be let in now, be it in the place of another."""
        now = self._monotonic()
        with self._lock:
            return len(self._open) < self._most or self._victim(now) is not None

    def admit(self, connection: socket.socket) -> bool:
        """Keep *connection*, in the place of another where there are too many; False where it must go itself."""
        now = self._monotonic()
        with self._lock:
            victim = self._victim(now) if len(self._open) >= self._most else None
            self._refused += len(self._open) >= self._most
            if victim is not None:
                del self._open[victim]
            elif len(self._open) >= self._most:
                return False
            self._open[connection] = _Connection(now, now + self._request_seconds)
        if victim is not None:
            hang_up(victim)
        return True

    def complete(self, connection: socket.socket) -> bool:
        """Note that the request of *connection* is here: it has the rest of its life for the answer.

        False where it was hung up on before.
        """
        with self._lock:
            if (entry := self._open.get(connection)) is None:
                return False
            entry.complete = True
            entry.ends = entry.opened + self._connection_seconds
            return True

    def waits(self, connection: socket.socket) -> None:
        """Note that the answer to *connection* has to wait for its reader: it makes room for whoever comes."""
        now = self._monotonic()
        with self._lock:
            if (entry := self._open.get(connection)) is not None:
                entry.waits_since = now

    def forget(self, connection: socket.socket) -> None:
        """Note that *connection* ended."""
        with self._lock:
            self._open.pop(connection, None)

    def end_overdue(self) -> None:
        """End each connection whose time is over."""
        now = self._monotonic()
        with self._lock:
            overdue = [connection for connection, entry in self._open.items() if entry.ends < now]
            self._refused += sum(not self._open[connection].complete for connection in overdue)
            for connection in overdue:
                del self._open[connection]
        for connection in overdue:
            hang_up(connection)

    def end_all(self) -> None:
        """End every connection."""
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            hang_up(connection)

    def _victim(self, now: float) -> socket.socket | None:
        """Return the oldest incomplete connection, else the one whose reader has let it wait longest, else None.

        So many come as the kernel lets in: were each such reader given time, a few a second would hold all places, and
        who waits in the kernel's queue would wait for ever. One that is answered slowly for another cause has its time.
        """
        oldest = sorted(self._open.items(), key=lambda item: _standing(item[1]))
        for connection, entry in oldest:
            if not entry.complete or entry.waits_since is not None or now - entry.opened >= self._request_seconds:
                return connection
        return None


def _standing(entry: _Connection) -> tuple[int, float]:
    """Return what is greater for a connection that goes later."""
    if not entry.complete:
        return (0, entry.opened)
    return (2, entry.opened) if entry.waits_since is None else (1, entry.waits_since)


def hang_up(connection: socket.socket) -> None:
    """End *connection*, whoever waits for it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it ended by itself meanwhile
