"""Answers on their way out: it is known of each whether its reader keeps it waiting.

Whoever asks may take nothing of the answer, and a client chooses how little waits for it in the kernel: with small
segments (TCP_MAXSEG) a page of 50 KB finds no room.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable


class Departure(io.BufferedIOBase):
    """Writes to a connection; ``waits`` is called before it has to wait for the reader."""

    def __init__(self, connection: socket.socket, waits: Callable[[], None]) -> None:
        """Write to *connection*, whose time-out bounds each wait."""
        self._connection = connection
        self._waits = waits

    def writable(self) -> bool:
        """Return that it is written to."""
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Send all of *data*."""
        sent = self._send_at_once(data)
        if sent < len(data):
            self._waits()
            self._connection.sendall(memoryview(data)[sent:])
        return len(data)

    def _send_at_once(self, data: bytes) -> int:
        """Return how much of *data* there was room for. Beside a time-out MSG_DONTWAIT waits all the same."""
        patience = self._connection.gettimeout()
        self._connection.settimeout(0.0)
        try:
            return self._connection.send(data)
        except BlockingIOError:
            return 0
        finally:
            self._connection.settimeout(patience)
