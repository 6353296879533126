"""Outgoing responses: each reports if its client keeps it waiting.

A client may leave a response unread, and it determines how little of it the kernel buffers: with small segments
(TCP_MAXSEG), a page of 50 KB does not fit.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable


class Departure(io.BufferedIOBase):
    """Writes to a connection; ``waits`` is called before a wait for the client."""

    def __init__(self, connection: socket.socket, waits: Callable[[], None]) -> None:
        """Write to *connection*, whose timeout bounds each wait."""
        self._connection = connection
        self._waits = waits

    def writable(self) -> bool:
        """Return True: the stream can be written to."""
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Send all of *data*."""
        sent = self._send_at_once(data)
        if sent < len(data):
            self._waits()
            self._connection.sendall(memoryview(data)[sent:])
        return len(data)

    def _send_at_once(self, data: bytes) -> int:
        """Return the number of bytes of *data* sent without a wait. With a timeout set, MSG_DONTWAIT waits anyway."""
        patience = self._connection.gettimeout()
        self._connection.settimeout(0.0)
        try:
            return self._connection.send(data)
        except BlockingIOError:
            return 0
        finally:
            self._connection.settimeout(patience)
