"""Whether this program may open what a driver's library opens: where it may not, the library cannot ask the driver.

Libraries tell that in the words of a dead driver: NVML as an unknown error, AMD SMI as a failed initialization. The
group of devices of a unit that started before the driver was loaded refuses, that of a container after a
daemon-reload, a mode, or nobody made the node. Nothing is opened here, because to open a board takes time and may hang.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import msgspec

from nodevet.checks.reference.tables import load_table

__all__ = ["NodeRow", "closed_nodes"]

STEP = (
    "the driver was not asked. Look at its mode; at DeviceAllow= of the unit, which counts for drivers that are loaded "
    "when it starts (systemctl restart nodevet); in a container at what it was given, and start it anew"
)


class NodeRow(msgspec.Struct, frozen=True):
    """Device nodes of which the library of a backend needs one; with its kernel ``module`` they are there at all."""

    backend: str
    nodes: str
    module: str
    source: str


def closed_nodes(backend: str, devices: Path, modules: Path) -> str:
    """Return which nodes below *devices* the library of *backend* needs and this program may not open; else empty."""
    for row in _rows():
        if row.backend != backend:
            continue
        there = _found(devices, row.nodes)
        if there and not any(os.access(path, os.R_OK | os.W_OK, effective_ids=True) for path in there):
            return f"this program may not open {there[0]}: {STEP}"
        if not there and row.module and (modules / row.module).exists():
            return f"{devices / row.nodes} is missing, although the module {row.module} is loaded: {STEP}"
    return ""


def _found(devices: Path, nodes: str) -> list[Path]:
    """Return what is there of *nodes*; nothing where the agent has no descriptor left to look."""
    try:
        return sorted(devices.glob(nodes))
    except OSError:
        return []


@lru_cache(maxsize=1)
def _rows() -> tuple[NodeRow, ...]:
    return load_table("device_nodes.csv", NodeRow)
