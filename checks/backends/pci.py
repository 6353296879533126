"""Accelerators on the PCI bus: the bus lists hardware also without its driver."""

from __future__ import annotations

import msgspec

from nodevet.checks.core.model import Device, DeviceKind, Part, PartKind, Reading, ReadingStatus
from nodevet.checks.reference.tables import load_table

from .tree import Tree, explain, status_of

_DEVICES = "sys/bus/pci/devices"
_ERRORS = {
    "pcie_correctable_errors": ("aer_dev_correctable", "TOTAL_ERR_COR"),
    "pcie_nonfatal_errors": ("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"),
    "pcie_fatal_errors": ("aer_dev_fatal", "TOTAL_ERR_FATAL"),
}
"""Advanced error reporting of the kernel (Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats)."""


class PciAccelerator(msgspec.Struct, frozen=True):
    """A row of reference/pci_accelerators.csv: which vendor's devices of which class are accelerators."""

    vendor_id: str
    class_id: str
    vendor: str
    note: str
    source: str


def pci_accelerators(tree: Tree, backend: str = "host") -> tuple[Device, ...]:
    """Return the accelerators on the PCI bus with the driver bound to each, in order of address.

    Virtual functions are omitted: they are parts of a listed device. A device that disappears during the enumeration is
    omitted too.
    """
    known = {(row.vendor_id, row.class_id): row.vendor for row in load_table("pci_accelerators.csv", PciAccelerator)}
    devices = (_device(tree, address, known, backend) for address in tree.names(_DEVICES))
    return tuple(device for device in devices if device is not None)


def error_readings(tree: Tree, device: Device) -> list[Reading]:
    """Return the kernel's error counts of the PCIe link of *device*; unsupported if the kernel counts none."""
    return [_error_reading(tree, device, quantity, *place) for quantity, place in _ERRORS.items()]


def _error_reading(tree: Tree, device: Device, quantity: str, file: str, total: str) -> Reading:
    part = Part(PartKind.PCIE)
    relative = f"{_DEVICES}/{device.pci}/{file}"
    try:
        counts = dict(line.rsplit(maxsplit=1) for line in tree.text(relative).splitlines())
        return Reading(quantity, int(counts[total]), part)
    except (OSError, ValueError) as error:
        return Reading(quantity, None, part, status_of(error), explain(error, relative))
    except KeyError:
        return Reading(quantity, None, part, ReadingStatus.ERROR, f"/{relative} has no {total}")


def _device(tree: Tree, address: str, known: dict[tuple[str, str], str], backend: str) -> Device | None:
    folder = f"{_DEVICES}/{address}"
    vendor_id, class_code = tree.integer_or_none(f"{folder}/vendor"), tree.integer_or_none(f"{folder}/class")
    if vendor_id is None or class_code is None or tree.exists(f"{folder}/physfn"):
        return None
    vendor = known.get((f"{vendor_id:04x}", f"{class_code >> 8:04x}"))
    if vendor is None:
        return None
    device_id = tree.integer_or_none(f"{folder}/device")
    identity = f"{vendor_id:04x}:" + ("????" if device_id is None else f"{device_id:04x}")
    node = tree.integer_or_none(f"{folder}/numa_node")
    return Device(
        id=f"pci-{address.lower()}",
        kind=DeviceKind.ACCELERATOR,
        vendor=vendor,
        model=f"PCI device {identity}",
        backend=backend,
        pci=address.lower(),
        pci_device_id=identity,
        numa_node=node if node is not None and node >= 0 else None,
        driver=tree.link_name(f"{folder}/driver"),
    )
