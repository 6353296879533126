"""Names of devices on the command line: one grammar for every command, which accepts any printed name. Pure.

A device is named by its id, UUID, serial number or PCI address, or by its device node as outputs print it: ``GPU 5``,
``gpu5``, ``5``, ``GPU renderD131``. In ``GPU 5 (0000:1b:00.0)`` both must agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nodevet.checks.core.errors import UsageError
from nodevet.checks.core.model import Device, DeviceKind

from .view import device_node_name

_PLACE = re.compile(r"(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<slot>[0-9a-f]{2}:[0-9a-f]{2})\.(?P<function>[0-7])", re.ASCII)
_NODE = re.compile(r"(?:(?:gpu|accelerator)[ -]?)?(?:(?P<render>renderd)?(?P<number>\d{1,4}))", re.ASCII)
_PRINTED = re.compile(r"(?P<name>[^()]+?) \((?P<place>[^()]+)\)")


def are_called(devices: Iterable[Device], text: str) -> tuple[Device, ...]:
    """Return those of *devices* that *text* names: several if it is ambiguous, none if it is unknown.

    Unique identifiers take precedence over the number of the device node, which a reboot may change.
    """
    known, wanted = tuple(devices), text.strip().casefold()
    printed = _PRINTED.fullmatch(wanted)
    if printed is not None:
        named = are_called(known, printed["name"])
        return tuple(device for device in are_called(known, printed["place"]) if device in named)
    same = tuple(device for device in known if is_place(wanted, device.id, device.uuid, device.serial, device.pci))
    numbered = () if same else tuple(device for device in known if _is_node(device, wanted))
    return same or tuple(device for device in numbered if device.parent is None) or numbered


def chosen(targets: Iterable[Device], names: Iterable[str], verb: str) -> tuple[Device, ...]:
    """Return those of *targets* that *names* select. Raises UsageError for an unknown or ambiguous name."""
    known = tuple(targets)
    found = {name: are_called(known, name) for name in names}
    listed = ", ".join(device.pci or device.id for device in known)
    absent = [name for name, devices in found.items() if not devices]
    if absent:
        raise UsageError(f"{verb}: unknown device: {', '.join(absent)}; a load can use: {listed}")
    for name, devices in found.items():
        if len({device.pci or device.id for device in devices}) > 1:
            raise UsageError(f"{verb}: {name} stands for several devices: choose by address among {listed}")
    ids = {device.id for devices in found.values() for device in devices}
    return tuple(device for device in known if device.id in ids)


def is_place(text: str, *names: str | None) -> bool:
    """Return whether *text* is one of *names*, in any case, with a PCI address in any of its forms."""
    wanted = short(text)
    return any(name is not None and short(name) == wanted for name in names)


def short(text: str) -> str:
    """Return *text* in the form for comparison: lower case, a PCI address as ``0000:1b:00.0``."""
    wanted = text.strip().casefold()
    place = _PLACE.fullmatch(wanted)
    return wanted if place is None else f"{int(place['domain'] or '0', 16):04x}:{place['slot']}.{place['function']}"


def _is_node(device: Device, wanted: str) -> bool:
    """Return whether outputs print the device node of *device*, an accelerator, as *wanted*."""
    found = _NODE.fullmatch(wanted)
    if found is None or device.kind is not DeviceKind.ACCELERATOR or device.minor is None:
        return False
    number = int(found["number"])
    is_render = found["render"] is not None
    return device.minor == number and is_render is (device_node_name(number) != str(number))
