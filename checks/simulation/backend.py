"""The backend of a simulated node: devices and readings come from a profile and a scenario.

The agent writes the simulation into a file, and replaces it when the scenario changes; the file is checked before
every reading. A simulated hang or crash really hangs or crashes this process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from nodevet.checks.backends.base import BackendError, Context, names_in
from nodevet.checks.core.documents import decoded
from nodevet.checks.core.errors import ModelError, NodevetError
from nodevet.checks.core.model import Device, Event, FailureKind, Reading
from nodevet.checks.core.quantities import measured

from .node import Simulation, Trouble, World


class SimulatedBackend:
    """One backend of the simulated node, for its host or its accelerators."""

    groups = ("fast", "slow")

    def __init__(self, context: Context) -> None:
        """Read the file and the name of the simulated backend from the options of *context*."""
        self._context = context
        self._path = Path(str(context.options.get("simulation")))
        self._name = str(context.options.get("stands_for"))
        self._skipped = names_in(context, "skip")
        self._seen: tuple[int, int] | None = None
        self._world = self._load_world()
        self.versions: dict[str, str] = {**self._world.versions, "simulated": self._world.profile}

    def devices(self) -> tuple[Device, ...]:
        """Return the devices that are enumerated now."""
        return self._load_world().devices(self._name, self._context.now())

    def read(self, group: str, device: Device) -> Iterable[Reading]:
        """Return the readings of *group*; lose the device, hang or crash where the scenario says so."""
        world, now = self._load_world(), self._context.now()
        match world.trouble(device.id, now):
            case Trouble.LOST | Trouble.MISSING:
                raise BackendError(FailureKind.LOST, "simulated: the device does not answer", of_driver=True)
            case Trouble.HANG:
                self._hang(device)
            case Trouble.CRASH:
                self._call(device)
                os.abort()
        return map(measured, world.readings(device.id, group, now))

    def events(self) -> Iterator[Event]:
        """Yield nothing: the simulated kernel log reports the events."""
        return iter(())

    def close(self) -> None:
        """Do nothing: no handle is held."""

    def _hang(self, device: Device) -> None:
        """Never return, like a driver that waits for a device."""
        self._call(device)
        while True:
            signal.pause()

    def _call(self, device: Device) -> None:
        self._context.progress.call(f"simulated call into the driver of {device.id} (PCI {device.pci})")

    def _load_world(self) -> World:
        """Return the world as the agent last wrote it. Raises BackendError where the file cannot be used."""
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_ino)
            if seen != self._seen:
                self._world = World(decoded(self._path.read_bytes(), Simulation))
                self._seen = seen
        except (OSError, msgspec.MsgspecError, ModelError, NodevetError) as error:
            raise BackendError(FailureKind.ERROR, f"{self._path}: no simulation: {error}") from error
        return self._world


def open_backend(context: Context) -> SimulatedBackend:
    """Return the backend of the node that the agent simulates."""
    return SimulatedBackend(context)
