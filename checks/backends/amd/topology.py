"""The connections between AMD devices and network adapters.

``XGMI`` is a direct link, ``XGMI2`` a path of two. Without xGMI the cell names the farthest bridge between
two devices on the PCI tree, in the terms of ``nvidia-smi topo -m``; ``PCIE`` where sysfs does not show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nodevet.checks.backends.nvidia.pcie import between, slot, topology
from nodevet.checks.core.model import Device
from nodevet.checks.topology.matrix import SELF, Topology

from .amdsmi import Library, Target, raise_if_gone

PCIE_LINK, XGMI_LINK = 1, 2
"""The values of ``amdsmi_topo_get_link_type`` in every release. The wrapper's ``AmdSmiLinkType`` is another enum,
whose numbers changed twice: with its names this answer would be inverted on ROCm 6.3 and 6.4."""

Gpu = tuple[Target, Device]


def read_topology(library: Library, gpus: Sequence[Gpu], root: str) -> Topology:
    """Return the connections of *gpus* and the adapters under *root*; an unreadable cell is None.

    Raises BackendError when the driver disappears meanwhile.
    """
    devices = [device for _, device in gpus]
    rows = range(len(gpus))
    return topology(
        devices,
        root,
        matrix=tuple(tuple(_cell(library, gpus, row, column, root) for column in rows) for row in rows),
        cpu_affinity=tuple(_cpus(device, root) for device in devices),
    )


def _cell(library: Library, gpus: Sequence[Gpu], row: int, column: int, root: str) -> str | None:
    if row == column:
        return SELF
    (first, device), (second, other) = gpus[row], gpus[column]
    symbol = "amdsmi_topo_get_link_type"
    text = f"{first.text(symbol)} and {second.label}"
    code, link = library.attempt(text, symbol, first.handle, second.handle)
    raise_if_gone(code, text)
    return None if code else _named(link, device, other, root)


def _named(link: Any, device: Device, other: Device, root: str) -> str | None:
    kind, hops = link["type"], int(link["hops"])
    if kind == XGMI_LINK:
        return "XGMI" if hops <= 1 else f"XGMI{hops}"
    if kind == PCIE_LINK:
        return between(slot(device.pci, root), other, root) or "PCIE"
    return None


def _cpus(device: Device, root: str) -> str | None:
    """Return the processors next to the device as ranges, such as ``0-55,112-167``."""
    try:
        return (slot(device.pci, root) / "local_cpulist").read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
