"""The devices of a node: what each is, and how it is known again.

The names are those of checks.model, from which everything else imports them.
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

NODE = "node"
"""The device id of the node itself, for findings that no single device owns."""


class DeviceKind(StrEnum):
    """What a device is."""

    ACCELERATOR = "accelerator"
    CPU = "cpu"
    NIC = "nic"
    MEMORY = "memory"
    DISK = "disk"
    NODE = "node"


class Link(msgspec.Struct, frozen=True):
    """One link port of a device: its peer (a device id, a PCI address, or ``switch``) and its generation."""

    port: int
    peer: str | None = None
    generation: str | None = None


class Firmware(msgspec.Struct, frozen=True):
    """One firmware component and its version, such as ``vbios 96.00.89.00.01``."""

    component: str
    version: str


def told_serial(serial: str | None) -> str | None:
    """Return *serial*, or None where it is none: zeros, and words for none such as ``N/A``."""
    text = serial or ""
    return None if re.fullmatch(r"(?i)[\s0.-]*(?:n/?a|none|unknown)?[\s0.-]*", text) else text


def compared_serial(serial: str | None) -> str | None:
    """Return *serial* as it is compared: zeros, ``0x`` and blanks before it and capitals make no other board."""
    told = told_serial(serial)
    return None if told is None else told.strip().lower().removeprefix("0x").lstrip("0")


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A device by its identity (UUID, PCI address, serial), never by an index that a reboot may change.

    ``id`` is the UUID where there is one; else PCI address or a stable name such as ``cpu-0``.
    ``minor`` is the number of the device node (``/dev/nvidia3``, ``/dev/dri/renderD128``), which schedulers use.
    ``virtual``: a share of a device that another machine, its host, reads and judges; the node itself where it is a
    virtual machine. ``withheld``: of the node, addresses of boards that the cgroup of its reader (a job's) denies it.
    ``excluded``: those that an option of their driver keeps out of use; ``unread_pages``: those of which the driver's
    page does not tell that now. ``not_given``: those that the container of its reader was not given, as it was others.
    ``offline``: of the node, whether its kernel knows processors that it does not use.
    ``called``: what its command calls it now, where it goes by the name that it had first.
    ``shares_uuid``: its driver gives another board the same UUID, which tells neither from the other.
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
    shares_uuid: bool = False
    offline: bool = False
    called: str | None = None

    def is_chip_number(self, *serials: str | None) -> bool:
        """Return whether one of *serials* is the number in the UUID, as where the board's own could not be read."""
        name = (self.uuid or "").lower().removeprefix("gpu-").lstrip("0")
        return bool(name) and any((text or "").lower().removeprefix("0x").lstrip("0") == name for text in serials)
