"""The command that starts the load child for a device. For the parent: imports no torch, directly or indirectly."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

import msgspec

from nodevet.checks.core.model import Device, DeviceKind
from nodevet.checks.reference.vendors import vendor_of

from .environment import split

_NAMES = ("GPU-", "MIG-")
"""Prefixes of names in CUDA_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES. CUDA takes leading digits of any other value as
an index: a PCI address would select the first GPU."""

_SELECTORS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class Launch(msgspec.Struct, frozen=True):
    """Program and environment of a load child; the parent appends ``--descriptor N --progress M``.

    ``removed``: what the child does not get of the site's environment, for its results.
    """

    argv: tuple[str, ...]
    environment: dict[str, str]
    removed: dict[str, str] = {}


def compute_kind(device: Device) -> str | None:
    """Return ``cpu``, ``cuda`` or ``rocm``, or None for a device without a workload."""
    if device.kind is DeviceKind.CPU:
        return "cpu"
    return vendor_of(device.vendor).compute if device.kind is DeviceKind.ACCELERATOR else None


def chosen_by(device: Device) -> str:
    """Return the name by which a load selects *device*."""
    return device.uuid or device.id


def why_not_chosen(device: Device, among: Iterable[Device] = ()) -> str | None:
    """Return why no load can select *device* *among* those of its node, or None where one can.

    Partitions of the same GPU may share its name: the scope of a load's proof on one of them is judged elsewhere.
    """
    if device.kind is not DeviceKind.ACCELERATOR:
        return None
    name = chosen_by(device)
    if device.shares_uuid or any(chosen_by(other) == name and _board(other) != _board(device) for other in among):
        return "its UUID is also that of another board, so a load cannot choose it: the other one may be loaded"
    is_named = name.startswith(_NAMES)
    return None if is_named else "it reports no UUID of its own, so a load could run on another device"


def _board(device: Device) -> str:
    return device.parent or device.id


def burn_command(device: Device, environment: Mapping[str, str]) -> Launch:
    """Return the command of the load child for *device*, which it sees as the only one.

    The device is selected by UUID before the program starts: an index would depend on devices hidden by others.
    """
    kind = compute_kind(device)
    chosen = chosen_by(device)
    own, removed = split(environment)
    match kind:
        case "cuda":
            own["CUDA_VISIBLE_DEVICES"] = chosen
        case "rocm":
            own["ROCR_VISIBLE_DEVICES"] = chosen
        case _:
            own |= dict.fromkeys(_SELECTORS, "")
    return Launch((sys.executable, "-I", "-m", "nodevet.checks.burnin.main"), own, removed)
