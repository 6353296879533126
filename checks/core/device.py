"""The devices of a node: attributes and identity.

Other rooms import these names from checks.core.model.
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

NODE = "node"
"""The device id of the node itself, for findings that belong to no single device."""


class DeviceKind(StrEnum):
    """The kind of a device."""

    ACCELERATOR = "accelerator"
    CPU = "cpu"
    NIC = "nic"
    MEMORY = "memory"
    DISK = "disk"
    NODE = "node"


class Link(msgspec.Struct, frozen=True):
    """One link port of a device: its peer (a device id, a PCI address or ``switch``) and its generation."""

    port: int
    peer: str | None = None
    generation: str | None = None


class Firmware(msgspec.Struct, frozen=True):
    """One firmware component and its version, such as ``vbios 96.00.89.00.01``."""

    component: str
    version: str


def told_serial(serial: str | None) -> str | None:
    """Return *serial*, or None where it is a placeholder: zeros, ``N/A``, ``none`` or ``unknown``."""
    text = serial or ""
    return None if re.fullmatch(r"(?i)[\s0.-]*(?:n/?a|none|unknown)?[\s0.-]*", text) else text


def compared_serial(serial: str | None) -> str | None:
    """Return *serial* normalised for comparison: lower case, without blanks, ``0x`` and leading zeros."""
    reported = told_serial(serial)
    return None if reported is None else reported.strip().lower().removeprefix("0x").lstrip("0")


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A device, identified by UUID, PCI address or serial, never by an index that a reboot may change.

    ``id`` is the UUID if there is one, else the PCI address or a stable name such as ``cpu-0``.
    ``minor`` is the number of the device node (``/dev/nvidia3``, ``/dev/dri/renderD128``), which schedulers use.
    ``virtual``: a share of a device that its host reads and judges; for the node: it is a virtual machine.
    ``withheld``: for the node, PCI addresses of GPUs that the cgroup of its reader (a job's) denies.
    ``excluded``: GPUs that a driver option excludes; ``unread_pages``: GPUs whose driver page does not report that now.
    ``not_given``: GPUs that the container of its reader was not given, although it was given others.
    ``drained``: ``nvidia-smi drain`` keeps new processes from it, so its driver neither lists nor reads it.
    ``offline``: for the node, whether its kernel lists processors that are not in use.
    ``called``: the id that its command reports now, where the device keeps its first one.
    ``shares_uuid``: its driver reports the same UUID for another GPU, so the UUID identifies neither.
    """

    id: str
    kind: DeviceKind
    vendor: str
    model: str
    backend: str
    uuid: str | None = None
    serial: str | None = None
    pci: str | None = None
    pci_device_id: str | None = None
    minor: int | None = None
    parent: str | None = None
    numa_node: int | None = None
    driver: str | None = None
    firmware: tuple[Firmware, ...] = ()
    links: tuple[Link, ...] = ()
    memory_bytes: int | None = None
    compute_units: int | None = None
    maximum_clock_hertz: int | None = None
    architecture: str | None = None
    virtual: bool = False
    withheld: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    unread_pages: tuple[str, ...] = ()
    not_given: tuple[str, ...] = ()
    drained: bool = False
    shares_uuid: bool = False
    offline: bool = False
    called: str | None = None

    def is_chip_number(self, *serials: str | None) -> bool:
        """Return whether one of *serials* is the number in the UUID, which stands in for an unreadable serial."""
        name = (self.uuid or "").lower().removeprefix("gpu-").lstrip("0")
        return bool(name) and any((text or "").lower().removeprefix("0x").lstrip("0") == name for text in serials)


def slot_of(device: Device) -> str:
    """Return the PCI address of *device* without its function; empty if it has none."""
    return (device.pci or "").split(".")[0]
