"""The child that asks a driver once how its devices are connected, and ends.

Started as ``python -I -m nodevet.checks.backends.topology_child [ROOT]`` by whoever waits for it with a deadline. The
last line of standard output is the document of schema ``nodevet.topo/1``, or ``{"failure": {"kind", "detail"}}``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from nodevet.checks.backends.base import BackendError
from nodevet.checks.backends.nvidia import open_backend
from nodevet.checks.clock import SystemClock
from nodevet.checks.model import Instant
from nodevet.checks.topology import to_json
from nodevet.checks.wire import Progress

__all__ = ["main"]


class OneShotContext:
    """What a backend needs that is asked once; its notes go to standard error."""

    def __init__(self, root: str) -> None:
        """Keep *root*, which stands before every path."""
        self.root = root
        self.options: dict[str, object] = {}
        self.progress, _ = Progress.create()

    def now(self) -> Instant:
        """Return the present moment."""
        return SystemClock(self.root).instant()

    def note(self, level: str, event: str, **fields: str) -> None:
        """Write the line for people."""
        sys.stderr.write(f"{level}: {event} {fields}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the topology and return 0, or the failure and return 1."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        backend = open_backend(OneShotContext(words[0] if words else "/"))
        try:
            backend.devices()
            document = to_json(backend.topology())
        finally:
            backend.close()
    except BackendError as error:
        document = {"failure": msgspec.to_builtins(error.failure)}
    sys.stdout.write("\n" + msgspec.json.encode(document).decode() + "\n")
    return 1 if "failure" in document else 0


if __name__ == "__main__":
    sys.exit(main())
