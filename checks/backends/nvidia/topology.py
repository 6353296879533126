"""The connections between NVIDIA devices and network adapters, in the terms of ``nvidia-smi topo -m``.

``NV18`` means 18 active NVLinks to the peer. Without NVLink the cell names the farthest bridge between two devices:
``PIX`` one PCIe switch, ``PXB`` several, ``PHB`` a host bridge, ``NODE`` another host bridge of the same NUMA node,
``SYS`` the link between processors. NVML reports the GPUs; adapters are found in sysfs, where the path of a device
contains every bridge above it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from nodevet.checks.core.model import Device
from nodevet.checks.topology.matrix import SELF, Topology

from .nvml import SUCCESS, Call, Library, Target, raise_if_gone
from .pcie import ranges, topology

ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""NVML's level of the common ancestor; 0 is two devices on one board."""

PEER_NVLINK, PEER_OK = 2, 0

Gpu = tuple[Target, Device]
Peers = Sequence[str | None]


def read_topology(library: Library, gpus: Sequence[Gpu], root: str) -> Topology:
    """Return the connections of *gpus* and the adapters under *root*; an unreadable cell is None.

    Raises BackendError when a device is lost meanwhile.
    """
    active = [_active_peers(library, gpu) for gpu in gpus]
    devices = [device for _, device in gpus]
    rows = range(len(gpus))
    return topology(
        devices,
        root,
        matrix=tuple(tuple(_cell(library, gpus, active, row, column) for column in rows) for row in rows),
        cpu_affinity=tuple(_cpus(library, target) for target, _ in gpus),
    )


# ---- GPU to GPU -------------------------------------------------------------------------------------------------


def _active_peers(library: Library, gpu: Gpu) -> list[str | None]:
    """Return the peer of every link that is up."""
    target, device = gpu
    states = {link.port: library.on(target, Call("nvmlDeviceGetNvLinkState", (link.port,))) for link in device.links}
    return [link.peer for link in device.links if states[link.port] == (SUCCESS, 1)]


def _cell(library: Library, gpus: Sequence[Gpu], active: Sequence[Peers], row: int, column: int) -> str | None:
    if row == column:
        return SELF
    links = _links_between(gpus, active, row, column)
    if links and _ask(library, gpus[row], gpus[column], "nvmlDeviceGetP2PStatus", PEER_NVLINK) == PEER_OK:
        return f"NV{links}"
    level = _ask(library, gpus[row], gpus[column], "nvmlDeviceGetTopologyCommonAncestor")
    return ANCESTORS.get(level)


def _links_between(gpus: Sequence[Gpu], active: Sequence[Peers], row: int, column: int) -> int:
    """Return the number of links between two devices: direct ones, else the smaller of their numbers into switches."""
    peer = gpus[column][1]
    direct = sum(1 for name in active[row] if name is not None and name in (peer.pci, peer.id))
    return direct or min(list(active[row]).count("switch"), list(active[column]).count("switch"))


def _ask(library: Library, first: Gpu, second: Gpu, symbol: str, *arguments: int) -> Any:
    """Return the result of a function of two devices, or None if there is none."""
    text = f"{first[0].text(symbol)} and {second[0].label}"
    code, value = library.attempt(text, symbol, first[0].handle, second[0].handle, *arguments)
    if code:
        raise_if_gone(code, text)
        return None
    return value


def _cpus(library: Library, target: Target) -> str | None:
    """Return the processors next to the device as ranges, such as ``0-55,112-167``."""
    words = (os.cpu_count() or 1) // 64 + 16  # more than this machine has now: NVML also counts offline ones
    masks = library.optional(target, "nvmlDeviceGetCpuAffinity", words)
    if masks is None:
        return None
    return ranges(64 * word + bit for word, mask in enumerate(masks) for bit in range(64) if mask >> bit & 1)
