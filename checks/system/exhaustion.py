"""Resources that the machine may lack for a connection, a library or a reader, with the remedy for each."""

from __future__ import annotations

import errno
import re

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of accept(2) that leave the client in the queue: no descriptor is free, or no memory."""

EXHAUSTED_SECONDS = 0.5
"""Pause in accepting after such an error: a waiting client would wake the loop all the time."""

_WANTS = (
    ("too many open files in system", "descriptors", "raise fs.file-max"),
    ("too many open files", "descriptors", "raise LimitNOFILE of the agent's unit, or ulimit -n of the shell"),
    ("memoryerror|cannot allocate memory|no buffer space available", "memory", "see free -m and journalctl -k"),
    ("can't start new thread", "threads", "raise TasksMax of the agent's unit"),
    ("cannot be started: resource temporarily unavailable", "processes", "raise TasksMax of the agent's unit"),
    ("no space left on device|disk quota exceeded", "space on a disk", "see df -h and df -i, or its quota"),
)
"""Error texts of errno(3) and of Python, the missing resource, and the remedy. The loader of libraries (dlopen(3))
reports the cause only in its text."""


def next_step(error: str, otherwise: str) -> str:
    """Return the remedy for *error* of a load: *otherwise*, unless the machine lacks a resource for it."""
    return next((step for _, step in _matching_wants(error)), otherwise)


def for_want(error: str) -> str:
    """Return the missing resource that the *error* of a reader's work reports, with the remedy; empty without one.

    Such an error is no bug, and no driver fault.
    """
    return next((f"for lack of {lacks}: {step}" for lacks, step in _matching_wants(error)), "")


def _matching_wants(error: str) -> list[tuple[str, str]]:
    return [(lacks, step) for pattern, lacks, step in _WANTS if re.search(pattern, error, re.IGNORECASE)]
