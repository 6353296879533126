"""A file that can be looked at, but whoever opens it waits: so is one on a server that has stopped answering.

The kernel does it for a file that another process has on lease (fcntl(2), F_SETLEASE), for 45 seconds at most.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["NO_LEASES", "silent"]

NO_LEASES = "no file may be leased here"


@contextmanager
def silent(path: Path) -> Iterator[None]:
    """Let nobody open *path* meanwhile; who waits for it at the end goes on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # What tells the holder that somebody waits would end it; this one ends nobody.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        os.close(descriptor)
        pytest.skip(NO_LEASES)
    try:
        yield
    finally:
        os.close(descriptor)
