"""File descriptors: a sufficient number at the start, and a warning before they run out.

Every part that lacks a descriptor fails with its own message (a database, a port, a child); this module names the
cause. systemd gives a service 1024 of them unless LimitNOFILE is set (systemd.exec(5)).
"""

from __future__ import annotations

import errno
import resource
from pathlib import Path

from nodevet.checks.core.errors import ConfigurationError

NEEDED = 64
"""Minimum for a start: six for each reader, sixteen connections, database, log and sockets."""

WANTED = 1024
"""The soft limit to raise to: a load takes six for each device, and each client of the socket takes one."""

SPARE = 8
"""Minimum of free ones, below which the next child or connection may fail: a starting reader takes eight briefly."""


def raise_descriptor_limit() -> None:
    """Raise the soft limit of this process up to WANTED. Raises ConfigurationError where the limit is below NEEDED.

    Children inherit it; only ``select`` fails above 1024, and nodevet uses it on few files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ceiling = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < ceiling:
        resource.setrlimit(resource.RLIMIT_NOFILE, (ceiling, hard))
        soft = ceiling
    if soft != resource.RLIM_INFINITY and soft < NEEDED:
        raise ConfigurationError(
            f"this process may open {soft} files, and the agent needs {NEEDED}: raise LimitNOFILE of the unit, "
            "or ulimit -Hn of the shell"
        )


def descriptor_trouble(root: Path = Path("/proc/self/fd")) -> str:
    """Return the remedy where descriptors are about to run out; empty while there are enough."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return ""
    try:
        used = sum(1 for _ in root.iterdir()) - 1  # without the descriptor that lists them
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            return ""  # unknown without /proc
        used = limit
    if limit - used >= SPARE:
        return ""
    return f"{used} of {limit} file descriptors are in use: raise LimitNOFILE of the unit"
