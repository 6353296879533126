"""Which device a reader was busy with when it fell: the one that its call names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from nodevet.checks.core.model import Device

PCI_ADDRESS = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b")


class AtWork(Protocol):
    """A process whose last call into a driver is known."""

    @property
    def call(self) -> str:
        """What it called, with the device where the call names one."""
        ...

    @property
    def in_call(self) -> bool:
        """Whether it is inside that call."""
        ...


def device_at_work(child: AtWork, devices: Sequence[Device], following: str | None) -> str | None:
    """Return which of *devices* the *child* was busy with: the one that its call names, else *following* of its round.

    A call that names none, such as one for the events of all, is no doing of a device that others name. An address of
    one that was never listed stands for it.
    """
    first = [device for device in devices if device.id == following]
    for device in (*first, *devices):
        if any(_is_named(name, child.call) for name in (device.uuid, device.pci) if name):
            return device.id
    if address := PCI_ADDRESS.search(child.call):
        return address.group()
    others_name_it = any(device.uuid or device.pci for device in first)
    return None if child.in_call and others_name_it else following


def _is_named(name: str, call: str) -> bool:
    """Return whether *call* has *name* as a whole: 10000:01:00.0 and MIG-GPU-<uuid>/1/0 name other devices."""
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", call) is not None
