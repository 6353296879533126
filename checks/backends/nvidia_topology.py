"""How NVIDIA devices are connected, in the words of ``nvidia-smi topo -m``.

``NV18`` stands for 18 active NVLinks to the peer. Without NVLink the cell names the farthest thing between two
devices: ``PIX`` one PCIe bridge, ``PXB`` several, ``PHB`` a host bridge, ``NODE`` another host bridge of the same NUMA
node, ``SYS`` the link between processors.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from nodevet.checks.backends.nvml import SUCCESS, Call, Library, Target, raise_if_gone
from nodevet.checks.model import Device

__all__ = ["UNREADABLE", "read_topology"]

ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""NVML's level of the common ancestor; 0 is two devices on one board."""

UNREADABLE = "N/A"
PEER_NVLINK, PEER_OK = 2, 0

Gpu = tuple[Target, Device]


def read_topology(library: Library, gpus: Sequence[Gpu]) -> dict[str, Any]:
    """Return ``gpus`` (names by index), ``devices`` (ids), ``matrix``, ``cpu_affinity`` and ``numa_affinity``.

    Raises BackendError when a device is lost meanwhile. What cannot be read is ``N/A``, never a guess.
    """
    active = [_active_peers(library, gpu) for gpu in gpus]
    rows = range(len(gpus))
    return {
        "gpus": [f"GPU{row}" for row in rows],
        "devices": [device.id for _, device in gpus],
        "matrix": [[_cell(library, gpus, active, row, column) for column in rows] for row in rows],
        "cpu_affinity": [_cpus(library, target) for target, _ in gpus],
        "numa_affinity": [UNREADABLE if device.numa_node is None else str(device.numa_node) for _, device in gpus],
    }


def _active_peers(library: Library, gpu: Gpu) -> list[str | None]:
    """Return the peer of every link that is up now."""
    target, device = gpu
    states = {link.port: library.on(target, Call("nvmlDeviceGetNvLinkState", (link.port,))) for link in device.links}
    return [link.peer for link in device.links if states[link.port] == (SUCCESS, 1)]


def _cell(library: Library, gpus: Sequence[Gpu], active: Sequence[Sequence[str | None]], row: int, column: int) -> str:
    if row == column:
        return "X"
    links = _links_between(gpus, active, row, column)
    if links and _ask(library, gpus[row], gpus[column], "nvmlDeviceGetP2PStatus", PEER_NVLINK) == PEER_OK:
        return f"NV{links}"
    level = _ask(library, gpus[row], gpus[column], "nvmlDeviceGetTopologyCommonAncestor")
    return UNREADABLE if level is None else ANCESTORS.get(level, UNREADABLE)


def _links_between(gpus: Sequence[Gpu], active: Sequence[Sequence[str | None]], row: int, column: int) -> int:
    """Return the links that carry traffic between two devices: straight ones, else what both have into the switches."""
    peer = gpus[column][1]
    direct = sum(1 for name in active[row] if name is not None and name in (peer.pci, peer.id))
    return direct or min(active[row].count("switch"), active[column].count("switch"))


def _ask(library: Library, first: Gpu, second: Gpu, symbol: str, *arguments: int) -> Any:
    """Return the result of a function of two devices, or None where there is none to be had."""
    text = f"{first[0].text(symbol)} and {second[0].label}"
    code, value = library.attempt(text, symbol, first[0].handle, second[0].handle, *arguments)
    if code:
        raise_if_gone(code, text)
        return None
    return value


def _cpus(library: Library, target: Target) -> str:
    """Return the processors next to the device as ranges, such as ``0-55,112-167``."""
    words = (os.cpu_count() or 1) // 64 + 16  # more than this machine has now: NVML also counts those offline
    masks = library.optional(target, "nvmlDeviceGetCpuAffinity", words)
    if masks is None:
        return UNREADABLE
    return _ranges(64 * word + bit for word, mask in enumerate(masks) for bit in range(64) if mask >> bit & 1)


def _ranges(numbers: Iterable[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
