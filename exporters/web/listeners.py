"""Who holds a TCP port of this machine."""

from __future__ import annotations

import psutil

from nodevet.checks.core.guard import one_line

SHOWN_CHARACTERS = 64
"""Whoever holds a port chose the name of the process: any bytes, and as many as a command line has."""


def holder_of(port: int) -> str | None:
    """Return name and pid of a process that listens on *port*, or None where this user may not see it."""
    try:
        listening = [
            connection.pid
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
        ]
    except (psutil.Error, OSError, RuntimeError):  # a page of /proc that cannot be read, or is not understood
        return None
    for pid in filter(None, listening):
        try:
            name = one_line(psutil.Process(pid).name())
        except (psutil.Error, OSError):
            continue  # it ended meanwhile
        return f"{name[:SHOWN_CHARACTERS] or 'a process without a name'} (pid {pid})"
    return None
