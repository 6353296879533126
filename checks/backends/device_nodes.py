"""Checks whether this process may open a driver's device nodes: if not, its library cannot call the driver.

Libraries report this as if the driver were dead: NVML as an unknown error, AMD SMI as a failed initialization. Causes
are the device cgroup of a unit that started before the driver was loaded, that of a container after a daemon-reload,
file permissions, a security profile, or a missing node (a container without GPUs, a unit with its own /dev). The agent
itself opens no node, because that takes time and may hang. A library that finds no driver although the kernel has
loaded it has not called the driver either: it is a stub, or searches elsewhere.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import msgspec

from nodevet.checks.core.model import FailureKind
from nodevet.checks.reference.tables import load_table
from nodevet.checks.reference.vendors import vendor_of

SAID_WITHOUT_ASKING = frozenset({FailureKind.ERROR, FailureKind.NO_DRIVER, FailureKind.NO_DEVICES})
"""Failures that a library also reports if it could not call its driver; a lost board only the driver reports."""

STEP = (
    "the driver was not asked. Look at its mode; at DeviceAllow= of the unit, which counts for drivers that are loaded "
    "when it starts (systemctl restart nodevet); in a container at what it was given, and start it anew"
)

MISSING_STEP = (
    "the driver was not asked. Look whether the host has it: if so, at PrivateDevices= of the unit, or at what the "
    "container was given, and start it anew; if not, have it made (nvidia-modprobe, udev)"
)

PROFILE_STEP = (
    "the driver was not asked. Look for a profile that refuses it (AppArmor; journalctl -k), and for nodev where /dev "
    "is mounted"
)

STUB_STEP = (
    "its library did not ask it. See whether that is the driver's own (ldconfig -p), or a stub of a toolkit or the "
    "library of an image in its place"
)


class NodeRow(msgspec.Struct, frozen=True):
    """Device nodes of which the library of a backend needs one; they exist only if the kernel ``module`` is loaded.

    ``boards``, below the module's folder in sysfs, are the boards of these nodes; empty for the driver's own node.
    """

    backend: str
    nodes: str
    module: str
    boards: str
    source: str


def closed_nodes(backend: str, devices: Path, modules: Path) -> str:
    """Return the nodes below *devices* that the library of *backend* needs and this process may not open."""
    for row in _rows():
        if row.backend != backend:
            continue
        there = _found(devices, row.nodes)
        if there and not any(os.access(path, os.R_OK | os.W_OK, effective_ids=True) for path in there):
            return f"this program may not open {there[0]}: {STEP}"
        module = modules / row.module
        boards = _found(module, row.boards) if not there and row.boards else []
        if not there and (boards or not row.boards) and module.exists():
            has = f"drives {len(boards)} board{'s' * (len(boards) > 1)}" if row.boards else "is loaded"
            return f"{devices / row.nodes} is missing, although the module {row.module} {has}: {MISSING_STEP}"
    return ""


def refused_nodes(backend: str, devices: Path) -> str:
    """Return that open(2) denies this process the first node that the library of *backend* opens; empty if it does not.

    A security profile (AppArmor, Landlock) or a file system without devices (nodev) can deny what access(2) allows.
    Only the reader child calls this, after its library opened the same node: the first open of a board may take long.
    """
    for row in _rows():
        if row.backend == backend:
            there = _found(devices, row.nodes)
            if not there or not all(map(_is_refused, there)):
                return ""
            return f"this program may not open {there[0]}, whatever its mode says: {PROFILE_STEP}"
    return ""


def _is_refused(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def driver_at_work(backend: str, modules: Path) -> str:
    """Return that the kernel has loaded the driver of *backend*, which its library did not find; empty if not."""
    module = vendor_of(backend).kernel_module
    if module is None or not _is_at_work(modules / module):
        return ""
    return f"yet the kernel has the module {module} at work: {STUB_STEP}"


def _is_at_work(module: Path) -> bool:
    """Return whether *module* is live or built in: only a loadable module has a state file."""
    try:
        return (module / "initstate").read_text(encoding="ascii").strip() == "live"
    except FileNotFoundError:
        return module.is_dir()
    except (OSError, UnicodeDecodeError):
        return False


def _found(devices: Path, nodes: str) -> list[Path]:
    """Return the existing *nodes*; empty if the agent has no file descriptor left."""
    try:
        return sorted(devices.glob(nodes))
    except OSError:
        return []


@lru_cache(maxsize=1)
def _rows() -> tuple[NodeRow, ...]:
    return load_table("device_nodes.csv", NodeRow)
