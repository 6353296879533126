"""Prints how a vendor's devices are connected, as JSON: the short-lived child of ``nodevet topo``.

Started as ``python -I -m nodevet.checks.backends.topology NAME``, because a driver that hangs or crashes must not take
the command with it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from nodevet.checks.backends.base import Backend, BackendError
from nodevet.checks.clock import SystemClock
from nodevet.checks.model import Instant
from nodevet.checks.wire import Progress

__all__ = ["VENDORS", "main"]

VENDORS = ("nvidia",)
"""The backends that know how their devices are connected."""

NOT_READ = 3


class ConnectedBackend(Backend, Protocol):
    """A backend that knows how its devices are connected."""

    def topology(self) -> dict[str, Any]:
        """Return the matrix; raise BackendError when a device is lost meanwhile."""
        ...


class _Context:
    """What the backend is lent here: no agent listens, so its notes go to standard error."""

    root = "/"

    def __init__(self) -> None:
        self.options: dict[str, object] = {"skip": ()}
        self.progress, self._descriptor = Progress.create()

    def now(self) -> Instant:
        return SystemClock(self.root).instant()

    def note(self, level: str, event: str, **fields: str) -> None:
        sys.stderr.write(f"{level}: {event} {fields}\n")


def main(arguments: Sequence[str]) -> int:
    """Print the topology of the vendor that *arguments* name; 3 and one line where it cannot be read."""
    name = arguments[0]
    if name not in VENDORS:
        sys.stderr.write(f"no topology is known for {name!r}\n")
        return NOT_READ
    try:
        backend: ConnectedBackend = importlib.import_module(f"nodevet.checks.backends.{name}").open_backend(_Context())
        try:
            backend.devices()
            document = backend.topology()
        finally:
            backend.close()
    except BackendError as error:
        sys.stderr.write(f"{error}\n")
        return NOT_READ
    sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
