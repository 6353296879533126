"""What the machine may lack for the moment when a caller comes, and how long nobody is let in then."""

from __future__ import annotations

import errno

__all__ = ["EXHAUSTED", "EXHAUSTED_SECONDS"]

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What accept(2) says where the caller stays in the queue: no descriptor is free, or no memory."""

EXHAUSTED_SECONDS = 0.5
"""How long nobody is let in after that: who waits would wake the loop all the time."""
