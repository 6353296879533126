"""What the machine may lack for the moment when a caller comes, and how long nobody is let in then."""

from __future__ import annotations

import errno
import os

__all__ = ["EXHAUSTED", "EXHAUSTED_SECONDS", "next_step"]

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What accept(2) says where the caller stays in the queue: no descriptor is free, or no memory."""

EXHAUSTED_SECONDS = 0.5
"""How long nobody is let in after that: who waits would wake the loop all the time."""


def next_step(error: str, otherwise: str) -> str:
    """Return what to do about *error* of something that is loaded: *otherwise*, unless the machine lacks room for it.

    The loader of libraries (dlopen(3)) tells the cause by its text alone.
    """
    lacks = next((number for number in EXHAUSTED if os.strerror(number) in error), None)
    if lacks is None:
        return otherwise
    return "free memory" if lacks == errno.ENOMEM else "close files, or raise fs.file-max or LimitNOFILE of the unit"
