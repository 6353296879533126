"""The first bytes of a file that grows: one that was cut and written anew begins otherwise, however long it is."""

from __future__ import annotations

import os
from contextlib import suppress

KNOWN_BYTES = 128
"""So many bytes are compared: the first line with its time stamp, which no later file repeats."""


class Beginning:
    """Knows how a file begins, as far as it was read."""

    def __init__(self, known: bytes = b"") -> None:
        """Begin with what is *known* from before."""
        self.known = known

    def is_of(self, descriptor: int) -> bool:
        """Return whether the file of *descriptor* still begins so; one that cannot be read is told by who reads on."""
        try:
            return os.pread(descriptor, len(self.known), 0) == self.known
        except OSError:
            return True

    def learn(self, descriptor: int, end: int) -> None:
        """Learn how the file of *descriptor* begins, which was read up to *end*."""
        if len(self.known) < min(end, KNOWN_BYTES):
            with suppress(OSError):
                self.known = os.pread(descriptor, min(end, KNOWN_BYTES), 0)
