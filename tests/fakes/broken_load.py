"""The real load child on hardware that flips one bit, and comes to an end while that is examined.

Run as ``python -I broken_load.py END --descriptor N --progress M``: ``abort``, ``kill``, ``hang`` or ``disk``.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time

import msgspec

from nodevet.checks.burnin.library import Tensor
from nodevet.checks.burnin.main import main
from nodevet.checks.burnin.multiply import Multiplication, choose_multiplication
from nodevet.checks.burnin.sums import bit_view

FLIPPED = 150
"""The product that is wrong: by then every slot of the ring was written, and the golden results are certified."""


class Broken:
    """A multiplication that flips a bit of one product, and ends as it was told at the first product elsewhere."""

    def __init__(self, end: str) -> None:
        """End the process by *end*."""
        self._end = end
        self._calls = 0
        self._slots: set[int] = set()

    def choose(self, name: str, kind: str, architecture: str | None) -> Multiplication:
        """Return the real multiplication with the fault behind it."""
        real = choose_multiplication(name, kind, architecture)

        def broken(a: Tensor, b: Tensor, out: Tensor) -> None:
            self._calls += 1
            if self._calls > FLIPPED and out.data_ptr() not in self._slots:
                self.finish()
            self._slots.add(out.data_ptr())
            real.run(a, b, out)
            if self._calls == FLIPPED:
                bit_view(out)[7, 9] ^= 1 << 20

        return msgspec.structs.replace(real, run=broken, exact=broken)

    def finish(self) -> None:
        """Come to an end in the middle of a product."""
        match self._end:
            case "abort":
                os.abort()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "disk":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case "hang":
                time.sleep(3600)


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], Broken(sys.argv[1]).choose))
