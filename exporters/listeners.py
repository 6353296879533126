"""Who holds a TCP port of this machine, as /proc tells it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["holder_of"]

_LISTEN = "0A"


def holder_of(port: int, proc: Path = Path("/proc")) -> str | None:
    """Return name and pid of a process that listens on *port*, or None where this user may not see it."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port, proc)}
    if not sockets:
        return None
    for process in proc.iterdir():
        if process.name.isdigit() and _holds(process, sockets):
            return f"{_name(process)} (pid {process.name})"
    return None


def _listening_inodes(port: int, proc: Path) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _holds(process: Path, sockets: set[str]) -> bool:
    try:
        return any(str(entry.readlink()) in sockets for entry in (process / "fd").iterdir())
    except OSError:
        return False  # it ended, or belongs to another user


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "a process"
