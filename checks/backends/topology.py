"""Writes the connections of a vendor's devices as JSON: the short-lived child of ``nodevet topo``.

Started as ``python -I -m nodevet.checks.backends.topology NAME [ROOT]``, because a driver that hangs or crashes must
not take the command with it. Standard output carries only the Topology. After a failure, the last line of standard
error has the reason, and the exit status distinguishes an absent vendor from an unreadable one.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Protocol

import msgspec

from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.model import FailureKind, Instant
from nodevet.checks.core.wire import Progress
from nodevet.checks.reference.vendors import vendors
from nodevet.checks.topology.matrix import Topology

from .base import Backend, BackendError

NOT_READ, ABSENT, WRONG_USAGE = 3, 4, 64
"""Exit statuses: the devices cannot be read, the vendor has none here, the arguments are wrong."""
NOT_HERE = frozenset({FailureKind.NO_DEVICES, FailureKind.NO_DRIVER, FailureKind.NO_LIBRARY})
STANDARD_OUTPUT, STANDARD_ERROR = 1, 2


class ConnectedBackend(Backend, Protocol):
    """A backend that can report the connections of its devices."""

    def topology(self) -> Topology:
        """Return the connections. Raises BackendError when a device is lost meanwhile."""
        ...


class _Context:
    """The services of this child for the backend: no agent listens, so its notes go to standard error."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.options: dict[str, object] = {"skip": ()}
        self.progress, self._descriptor = Progress.create()

    def now(self) -> Instant:
        return SystemClock(self.root).instant()

    def note(self, level: str, event: str, **fields: str) -> None:
        sys.stderr.write(f"{level}: {event} {fields}\n")


def connected_vendors() -> tuple[str, ...]:
    """Return the backends that can report the connections of their devices."""
    return tuple(row.vendor for row in vendors() if row.topology)


def main(arguments: Sequence[str]) -> int:
    """Write the topology of the vendor in *arguments*, or one line with the error; return the exit status."""
    names = connected_vendors()
    if not arguments or arguments[0] not in names or len(arguments) > 2:
        sys.stderr.write(f"usage: topology NAME [ROOT]; NAME is one of {', '.join(names)}\n")
        return WRONG_USAGE
    # Vendors' libraries print anywhere; the document must stay valid.
    answer = os.dup(STANDARD_OUTPUT)
    os.dup2(STANDARD_ERROR, STANDARD_OUTPUT)
    try:
        topology = _read(arguments[0], arguments[1] if len(arguments) == 2 else "/")
    except BackendError as error:
        sys.stderr.write(f"{error}\n")
        return ABSENT if error.failure.kind in NOT_HERE else NOT_READ
    with os.fdopen(answer, "wb") as output:
        output.write(msgspec.json.encode(topology) + b"\n")
    return 0


def _read(name: str, root: str) -> Topology:
    module = importlib.import_module(f"nodevet.checks.backends.{name}.backend")
    backend: ConnectedBackend = module.open_backend(_Context(root))
    with closing(backend):
        backend.devices()
        return backend.topology()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
