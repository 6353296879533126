"""What the machine may lack when a caller comes, a library is loaded or a reader works, and what to do about it."""

from __future__ import annotations

import errno
import re

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What accept(2) says where the caller stays in the queue: no descriptor is free, or no memory."""

EXHAUSTED_SECONDS = 0.5
"""How long nobody is let in after that: who waits would wake the loop all the time."""

_WANTS = (
    ("too many open files in system", "descriptors", "raise fs.file-max"),
    ("too many open files", "descriptors", "raise LimitNOFILE of the agent's unit, or ulimit -n of the shell"),
    ("memoryerror|cannot allocate memory|no buffer space available", "memory", "see free -m and journalctl -k"),
    ("can't start new thread", "threads", "raise TasksMax of the agent's unit"),
    ("cannot be started: resource temporarily unavailable", "processes", "raise TasksMax of the agent's unit"),
    ("no space left on device|disk quota exceeded", "room on a disk", "see df -h and df -i, or its quota"),
)
"""The words of errno(3) and of Python for a want, what is wanted, and what to do. The loader of libraries (dlopen(3))
tells the cause by its text alone."""


def next_step(error: str, otherwise: str) -> str:
    """Return what to do about *error* of what is loaded: *otherwise*, unless the machine lacks room for it."""
    return next((step for _, step in _told(error)), otherwise)


def for_want(error: str) -> str:
    """Return what the *error* of a reader's work tells a want of, and what to do; empty where it tells of none.

    Such an error is no bug, and no fault of a driver.
    """
    return next((f"for want of {lacks}: {step}" for lacks, step in _told(error)), "")


def _told(error: str) -> list[tuple[str, str]]:
    return [(lacks, step) for words, lacks, step in _WANTS if re.search(words, error, re.IGNORECASE)]
