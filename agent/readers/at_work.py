"""The device that a reader was reading when it ended or hung: the one that its driver call names."""

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
        """The driver call that is in progress or was last, with the device where the call names one."""
        ...

    @property
    def in_call(self) -> bool:
        """Whether the call is in progress."""
        ...


def device_at_work(child: AtWork, devices: Sequence[Device], following: str | None) -> str | None:
    """Return which of *devices* the *child* was reading: the one that its call names, else *following* in its round.

    A call that names no device of the list, such as one for the events of all devices, is not charged to a device that
    other calls name. A call that names the address of an unlisted device returns that address.
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
    """Return whether *call* contains *name* as a whole word: 10000:01:00.0 and MIG-GPU-<uuid>/1/0 are other devices."""
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", call) is not None
