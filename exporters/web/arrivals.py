"""Requests on their way in, collected by the thread that accepts: one that never comes costs no other thread.

Nobody else reads a connection before its request is whole, so it is known at each moment who has asked and who has not,
however busy the threads are that answer.
"""

from __future__ import annotations

import selectors
import socket

import msgspec

LARGEST_REQUEST_BYTES = 1 << 17
"""A line of a request has at most 64 KiB (http.server), and whoever asks for a page sends less than one."""

_PIECE_BYTES = 1 << 16
_ENDS = (b"\r\n\r\n", b"\n\n")
_LONGEST_END = 4


class Request(msgspec.Struct, frozen=True):
    """What a client sent; ``whole`` where it is all of a request."""

    data: bytes
    whole: bool


class Arrivals:
    """Connections whose request is not here yet. For one thread."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        """Register what is expected with *selector*."""
        self._selector = selector
        self._received: dict[socket.socket, bytearray] = {}

    def expect(self, connection: socket.socket) -> None:
        """Wait for the request of *connection*."""
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ)
        self._received[connection] = bytearray()

    def take(self, connection: socket.socket) -> Request | None:
        """Return what *connection* sent once nothing more is waited for, None while it is on its way."""
        received = self._received[connection]
        try:
            piece = connection.recv(_PIECE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            piece = b""
        looked_at = max(len(received) - _LONGEST_END, 0)
        received += piece
        whole = any(received.find(end, looked_at) >= 0 for end in _ENDS)
        # What begins otherwise is no HTTP, such as TLS: it is refused at once, and not waited for.
        is_nonsense = bool(received) and not received[:1].isalpha()
        if piece and not whole and not is_nonsense and len(received) <= LARGEST_REQUEST_BYTES:
            return None
        self.forget(connection)
        return Request(bytes(received), whole)

    def forget(self, connection: socket.socket) -> None:
        """Wait for *connection* no longer. Must be called before it is closed."""
        if self._received.pop(connection, None) is not None:
            self._selector.unregister(connection)

    def forget_all(self) -> tuple[socket.socket, ...]:
        """Wait for nobody any more; return the connections that were waited for."""
        left = tuple(self._received)
        for connection in left:
            self.forget(connection)
        return left
