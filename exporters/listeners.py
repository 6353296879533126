"""Who holds a TCP port of this machine."""

from __future__ import annotations

__all__ = ["holder_of"]


def holder_of(port: int) -> str | None:
    """Return name and pid of a process that listens on *port*, or None where this user may not see it."""
    import psutil  # only a refusal needs it: the agent's memory is counted in MiB

    try:
        listening = [
            connection.pid
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
        ]
    except psutil.Error:
        return None
    for pid in filter(None, listening):
        try:
            return f"{psutil.Process(pid).name()} (pid {pid})"
        except psutil.Error:
            continue  # it ended meanwhile
    return None
