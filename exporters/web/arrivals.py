"""Incoming requests, collected by the accepting thread: an incomplete request occupies no other thread.

No other thread reads a connection before its request is complete. So the state of each request is known at any moment,
however busy the threads are that respond.
"""

from __future__ import annotations

import selectors
import socket

import msgspec

LARGEST_REQUEST_BYTES = 1 << 17
"""A request line has at most 64 KiB (http.server), and a client that requests a page sends less than 1 KiB."""

_PIECE_BYTES = 1 << 16
_ENDS = (b"\r\n\r\n", b"\n\n")
_LONGEST_END = 4


class Request(msgspec.Struct, frozen=True):
    """The data that a client sent; ``whole`` is set if it is a complete request."""

    data: bytes
    whole: bool


class Arrivals:
    """Connections whose request is incomplete. For one thread."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        """Register the connections with *selector*."""
        self._selector = selector
        self._received: dict[socket.socket, bytearray] = {}

    def expect(self, connection: socket.socket) -> None:
        """Wait for the request of *connection*."""
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ)
        self._received[connection] = bytearray()

    def take(self, connection: socket.socket) -> Request | None:
        """Return the request of *connection* once no more data is awaited, or None while it is incomplete."""
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
        # Other data is not HTTP, such as TLS: it is rejected at once, without waiting for its end.
        is_nonsense = bool(received) and not received[:1].isalpha()
        if piece and not whole and not is_nonsense and len(received) <= LARGEST_REQUEST_BYTES:
            return None
        self.forget(connection)
        return Request(bytes(received), whole)

    def forget(self, connection: socket.socket) -> None:
        """Stop waiting for *connection*. Must be called before it is closed."""
        if self._received.pop(connection, None) is not None:
            self._selector.unregister(connection)

    def forget_all(self) -> tuple[socket.socket, ...]:
        """Stop waiting for all connections, and return them."""
        left = tuple(self._received)
        for connection in left:
            self.forget(connection)
        return left
