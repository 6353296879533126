"""The connections of the HTTP server: few, each with a deadline, and complete requests before incomplete ones.

Any local user can open connections without sending a request. Such a connection ends after two seconds. If too many are
open, the oldest incomplete one is closed, then the one whose client has left its response unread for longest. So a
scraper, which sends its request at once and reads the response, is always served.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import msgspec

MAXIMUM_CONNECTIONS = 16

REQUEST_SECONDS = 2.0
"""Time limit (s) of a complete request. Over loopback, a request takes less than a millisecond."""

CONNECTION_SECONDS = 10.0
"""Time limit (s) of a connection. A page takes milliseconds; a client slower than this does not read."""


class _Connection(msgspec.Struct):
    """Opening and deadline of a connection, and since when its client leaves the response unread (monotonic seconds).

    ``complete`` is set once its request has arrived.
    """

    opened: float
    ends: float
    complete: bool = False
    waits_since: float | None = None


class Connections:
    """The open connections. Used by the accepting thread and by those that respond."""

    def __init__(
        self,
        *,
        most: int = MAXIMUM_CONNECTIONS,
        request_seconds: float = REQUEST_SECONDS,
        connection_seconds: float = CONNECTION_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep at most *most* connections; each has *request_seconds* for its request, *connection_seconds* in all."""
        self._most = most
        self._request_seconds = min(request_seconds, connection_seconds)
        self._connection_seconds = connection_seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._open: dict[socket.socket, _Connection] = {}
        self._refused = 0

    @property
    def refused(self) -> int:
        """Return the number of connections that were closed without a response."""
        with self._lock:
            return self._refused

    @property
    def any(self) -> bool:
        """Return whether a connection is open."""
        return bool(self._open)

    @property
    def has_room(self) -> bool:
        """Return whether one more connection can be admitted now, perhaps in place of another."""
        now = self._monotonic()
        with self._lock:
            return len(self._open) < self._most or self._victim(now) is not None

    def admit(self, connection: socket.socket) -> bool:
        """Admit *connection*, in place of another if too many are open; return False if none may be closed for it."""
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
        """Note that the request of *connection* is complete: the rest of its time is for the response.

        Return False if the connection was closed before.
        """
        with self._lock:
            if (entry := self._open.get(connection)) is None:
                return False
            entry.complete = True
            entry.ends = entry.opened + self._connection_seconds
            return True

    def waits(self, connection: socket.socket) -> None:
        """Note that the client of *connection* leaves its response unread: it may be closed for a new one."""
        now = self._monotonic()
        with self._lock:
            if (entry := self._open.get(connection)) is not None:
                entry.waits_since = now

    def forget(self, connection: socket.socket) -> None:
        """Note that *connection* ended."""
        with self._lock:
            self._open.pop(connection, None)

    def end_overdue(self) -> None:
        """Close each connection past its deadline."""
        now = self._monotonic()
        with self._lock:
            overdue = [connection for connection, entry in self._open.items() if entry.ends < now]
            self._refused += sum(not self._open[connection].complete for connection in overdue)
            for connection in overdue:
                del self._open[connection]
        for connection in overdue:
            hang_up(connection)

    def end_all(self) -> None:
        """Close every connection."""
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            hang_up(connection)

    def _victim(self, now: float) -> socket.socket | None:
        """Return the connection to close for a new one: the oldest incomplete, else the longest unread one, else None.

        Connections arrive as fast as the kernel accepts them: if unread ones had time, a few a second would take all
        places, and those in the kernel's queue would wait for ever. A response slow for another cause has its time.
        """
        oldest = sorted(self._open.items(), key=lambda item: _standing(item[1]))
        for connection, entry in oldest:
            if not entry.complete or entry.waits_since is not None or now - entry.opened >= self._request_seconds:
                return connection
        return None


def _standing(entry: _Connection) -> tuple[int, float]:
    """Return the sort key of a connection: the greater it is, the later the connection is closed."""
    if not entry.complete:
        return (0, entry.opened)
    return (2, entry.opened) if entry.waits_since is None else (1, entry.waits_since)


def hang_up(connection: socket.socket) -> None:
    """Shut down *connection*, also while a thread waits for it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended already
