"""File descriptors: enough of them at the start, and a warning before they run out.

Whatever fails for want of a descriptor fails with words of its own (a database, a port, a child); this module names the
cause. A service of systemd has 1024 of them unless LimitNOFILE says otherwise (systemd.exec(5)).
"""

from __future__ import annotations

import errno
import resource
from pathlib import Path

from nodevet.checks.core.errors import ConfigurationError

NEEDED = 64
"""With fewer the agent does not start: six for each reader, sixteen connections, database, log and sockets."""

WANTED = 1024
"""A load takes six for each device, and callers of the socket one each."""

SPARE = 8
"""With fewer free ones the next child or connection may fail: a reader that starts takes eight for a moment."""


def raise_descriptor_limit() -> None:
    """Raise the soft limit of this process as far as it needs and may. Raises ConfigurationError where that is too low.

    Children inherit it; only ``select`` cannot count above 1024, and nothing of ours uses it on many files.
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
    """Return what to do about descriptors that are about to run out; empty while there are enough."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return ""
    try:
        used = sum(1 for _ in root.iterdir()) - 1  # without the one that lists them
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            return ""  # without /proc nobody can tell
        used = limit
    if limit - used >= SPARE:
        return ""
    return f"{used} of {limit} file descriptors are in use: raise LimitNOFILE of the unit"
