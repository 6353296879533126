"""The first bytes of a growing file: a file that was cut and rewritten begins differently, at any length."""

from __future__ import annotations

import os
from contextlib import suppress

KNOWN_BYTES = 128
"""Number of compared bytes: the first line with its time stamp, which no later file repeats."""


class Beginning:
    """The known first bytes of a file, as far as it was read."""

    def __init__(self, known: bytes = b"") -> None:
        """Start with the bytes *known* from before."""
        self.known = known

    def is_of(self, descriptor: int) -> bool:
        """Return whether the file of *descriptor* still begins so; True where that cannot be read."""
        try:
            return os.pread(descriptor, len(self.known), 0) == self.known
        except OSError:
            return True

    def learn(self, descriptor: int, end: int) -> None:
        """Store the first bytes of the file of *descriptor*, which was read up to *end*."""
        if len(self.known) < min(end, KNOWN_BYTES):
            with suppress(OSError):
                self.known = os.pread(descriptor, min(end, KNOWN_BYTES), 0)
