"""Positions of devices in sysfs and the PCIe connection of two: the path of a device contains every bridge above it.

Terms of ``nvidia-smi topo -m``: ``PIX`` one PCIe switch, ``PXB`` several, ``PHB`` a host bridge, ``NODE`` another host
bridge of the same NUMA node, ``SYS`` the link between processors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

from nodevet.checks.core.model import Device
from nodevet.checks.topology.matrix import Topology

BELOW_ONE_SWITCH = 2
"""Path components below the common ancestor of two devices at one switch: its downstream port and the device."""


def topology(
    devices: Sequence[Device],
    root: str,
    *,
    matrix: tuple[tuple[str | None, ...], ...],
    cpu_affinity: tuple[str | None, ...],
) -> Topology:
    """Return the connections of *devices* and the adapters under *root*; *matrix* is between devices, row by row.

    *cpu_affinity* lists the processors next to each device.
    """
    adapters = sorted(Path(root, "sys/class/infiniband").glob("*"), key=_natural)
    names = tuple(f"NIC{number}" for number in range(len(adapters)))
    return Topology(
        gpus=tuple(f"GPU{row}" for row in range(len(devices))),
        matrix=matrix,
        nics=names,
        nic_to_gpu=tuple(
            tuple(between(adapter / "device", device, root) for device in devices) for adapter in adapters
        ),
        nic_legend=dict(zip(names, (adapter.name for adapter in adapters), strict=True)),
        cpu_affinity=cpu_affinity,
        numa_affinity=tuple(None if device.numa_node is None else str(device.numa_node) for device in devices),
    )


def slot(pci: str | None, root: str) -> Path:
    """Return the sysfs path of the device at PCI address *pci* under *root*."""
    return Path(root, f"sys/bus/pci/devices/{pci}")


def between(place: Path, device: Device, root: str) -> str | None:
    """Return the connection between the device at *place* and *device*; None if sysfs does not show it."""
    other = slot(device.pci, root)
    if device.pci is None or not place.exists() or not other.exists():
        return None
    ours, theirs = place.resolve().parts, other.resolve().parts
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
    nearest = ours[common - 1]
    if nearest.startswith("pci"):
        return "PHB"
    if nearest == "devices":
        node = numa_node(place)
        return None if node is None or device.numa_node is None else "NODE" if node == device.numa_node else "SYS"
    return "PIX" if max(len(ours), len(theirs)) - common <= BELOW_ONE_SWITCH else "PXB"


def numa_node(place: Path) -> int | None:
    """Return the NUMA node of the device at *place*; None if the firmware reports none (-1 in the kernel)."""
    try:
        node = int((place / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def ranges(numbers: Iterable[int]) -> str:
    """Return increasing *numbers* as ranges, such as ``0-55,112-167``."""
    spans: list[list[int]] = []
    for entry in numbers:
        if spans and spans[-1][1] == entry - 1:
            spans[-1][1] = entry
        else:
            spans.append([entry, entry])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def _natural(path: Path) -> tuple[str, int]:
    stem = path.name.rstrip("0123456789")
    return stem, int(path.name[len(stem) :] or 0)
