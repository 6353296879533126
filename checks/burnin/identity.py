"""Whether the device that torch sees is the one that was asked for: compared before any load. Pure, no torch.

The parent chooses by environment; a wrapper, a container or a library that ignores it would load another device, and
the result would stand for one that never ran.
"""

from __future__ import annotations

import binascii

import msgspec

from .errors import RefusedError

_PREFIXES = ("GPU-", "MIG-")


class Visible(msgspec.Struct, frozen=True, kw_only=True):
    """The first device that torch sees; its UUID and address are None where this release of torch tells none.

    ``is_instance``: an instance of a board that is split, whose UUID is not that of the board.
    """

    count: int
    name: str
    uuid: str | None = None
    pci: str | None = None
    is_instance: bool = False


def address_of(properties: object) -> str | None:
    """Return the PCI address of torch's device *properties* without its function, or None where it tells none."""
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        return None
    domain, bus, device = numbers
    return f"{domain:04x}:{bus:02x}:{device:02x}"


def compared(uuid: str | None, pci: str | None, visible: Visible) -> str:
    """Return what shows that *visible* is the device asked for by *uuid* and *pci*: ``uuid``, ``pci``, or empty.

    Either is enough: two devices of a node share neither, and a UUID may be written in an unknown way. Raises
    RefusedError where both differ or cannot be compared although several devices are visible.
    """
    same_uuid = None if visible.is_instance else _same(_digits(uuid), visible.uuid)
    asked_slot, shown_slot = _slot(pci), _slot(visible.pci)
    same_pci = None if asked_slot is None or shown_slot is None else asked_slot == shown_slot
    if same_uuid:
        return "uuid"
    if same_pci:
        return "pci"
    if same_uuid is None and same_pci is None and (visible.count == 1 or visible.is_instance):
        return ""
    seen = " at ".join(part for part in (visible.uuid or visible.name, visible.pci) if part)
    asked = " at ".join(part for part in (uuid, pci) if part)
    raise RefusedError(
        f"another device is visible: {seen}, the first of {visible.count}; asked for {asked}; nothing was loaded; look "
        "for a wrapper or container that sets CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES"
    )


def _same(wanted: str, shown: str | None) -> bool | None:
    """Return whether *shown* is the UUID *wanted*, or None where one of them is not told.

    torch prints the bytes of a UUID; those of ROCm are the characters of the name, not its value.
    """
    digits = _digits(shown)
    if not wanted or not digits.strip("0"):
        return None
    return wanted in (digits, _characters(digits))


def _digits(uuid: str | None) -> str:
    text = uuid or ""
    for prefix in _PREFIXES:
        text = text.removeprefix(prefix)
    return text.replace("-", "").lower()


def _characters(digits: str) -> str:
    try:
        return binascii.unhexlify(digits).decode("ascii").strip("\0").lower()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _slot(address: str | None) -> tuple[int, ...] | None:
    """Return domain, bus and device of a PCI address; its function tells partitions of one board apart."""
    try:
        return tuple(int(part, 16) for part in (address or "").partition(".")[0].split(":"))
    except ValueError:
        return None
