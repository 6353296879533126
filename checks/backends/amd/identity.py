"""The identity of an AMD device, and whether it is still present: from AMD SMI, and from sysfs where that has it."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from nodevet.checks.backends.nvidia.pcie import numa_node, slot
from nodevet.checks.backends.tree import Tree
from nodevet.checks.core.model import Device, DeviceKind, Firmware, Link
from nodevet.checks.reference.tables import load_table

from .amdsmi import DENIED, SUCCESS, UNSUPPORTED, Library, Target, number

FIRMWARES = {
    "PM": "power_management",
    "PSP_SOSDRV": "security_processor",
    "TA_RAS": "ras",
    "TA_XGMI": "xgmi",
    "RLC": "rlc",
    "CP_MEC1": "compute_microcode",
    "SDMA0": "sdma",
}
"""Firmware whose version is stored: the end of its name in AMD SMI, and its name here."""

DEVICES = "sys/bus/pci/devices"
NO_ADDRESS = "0000:00:00.0"
GUEST, VIRTUAL_FUNCTION = 3, " VF"
"""AMD SMI's mode of a device that its host shares (since ROCm 6.4), and the suffix of the names of such devices; a
passthrough device is like any other."""
PORTS = 8
"""The largest number of xGMI ports of a device (amdsmi.h AMDSMI_MAX_NUM_XGMI_LINKS)."""

LOST_CONFIGURATION = "ff" * 4
"""The configuration space of a device that does not answer on the bus."""

SAYS_MODEL = re.compile(r"MI\d")
"""Part of the name of every Instinct GPU."""


class AmdBoard(msgspec.Struct, frozen=True):
    """A row of reference/amd_boards.csv: the name of a PCI device; that of a shared device ends in VIRTUAL_FUNCTION."""

    device_id: str
    name: str
    source: str


def identify(library: Library, tree: Tree, target: Target, pci: str, name: str | None, driver: str | None) -> Device:
    """Return the identity of the device at *pci* with the id *name*; values that it does not report are None.

    ``id`` is the UUID that AMD's tools show, ``uuid`` the name by which ROCm selects a device
    (``ROCR_VISIBLE_DEVICES``), ``minor`` the number of its render node (``/dev/dri/renderD128``), which schedulers use.
    """
    asic = library.optional(target, "amdsmi_get_gpu_asic_info") or {}
    failures = library.failures
    board = library.optional(target, "amdsmi_get_gpu_board_info") or {}
    is_answered = library.failures == failures  # else the chip number would be stored as the board serial
    place = library.optional(target, "amdsmi_get_gpu_enumeration_info") or {}
    own_driver = _text_of(library.optional(target, "amdsmi_get_gpu_driver_info"), "driver_version")
    chip = _text_of(asic, "asic_serial")
    uuid = _text_of(place, "hip_uuid") or _unique(chip)
    device_id = _text_of(asic, "device_id")
    memory = library.optional(target, "amdsmi_get_gpu_memory_total", "AmdSmiMemoryType.VRAM")
    clock = number((library.optional(target, "amdsmi_get_clock_info", "AmdSmiClkType.GFX") or {}).get("max_clk"))
    units = number(asic.get("num_compute_units"))
    model = _model(_text_of(asic, "market_name"), _board_of(device_id), _text_of(board, "product_name"))
    return Device(
        id=name or uuid or pci,
        kind=DeviceKind.ACCELERATOR,
        vendor="amd",
        model=model,
        backend="amd",
        uuid=uuid,
        serial=_text_of(board, "product_serial") or (chip if is_answered else None),
        pci=pci,
        pci_device_id=f"1002:{int(device_id, 16):04x}" if device_id else None,
        minor=_render_node(tree, place, pci),
        numa_node=_numa_node(library, tree, target, pci),
        driver=own_driver or driver,
        firmware=_firmware(library, target),
        links=_links(library, target),
        memory_bytes=int(memory) if memory else None,
        compute_units=int(units) if units else None,
        maximum_clock_hertz=int(clock) * 1_000_000 if clock else None,
        architecture=_text_of(asic, "target_graphics_version"),
        virtual=is_virtual(library, target, model),
    )


def _board_of(device_id: str | None) -> AmdBoard | None:
    """Return the row of the PCI device that AMD SMI writes as ``0x74a1``."""
    wanted = f"{int(device_id, 16):04x}" if device_id else None
    return next((row for row in load_table("amd_boards.csv", AmdBoard) if row.device_id == wanted), None)


def _model(reported: str | None, known: AmdBoard | None, product: str | None) -> str:
    """Return the name of the model. libdrm's list of names may lack the GPU, and then calls it a graphics card."""
    name = known.name if known is not None else None
    # libdrm lists some shares under the name of the whole device.
    is_share = name is not None and name.endswith(VIRTUAL_FUNCTION)
    if reported is not None and SAYS_MODEL.search(reported) and not is_share:
        return reported
    return name or product or reported or "unknown"


def name_of(device: Device) -> str:
    """Return the name of a device in messages and in the progress line of a call."""
    return f"{device.uuid or device.model} (PCI {device.pci})"


def listed(tree: Tree, device: Device) -> bool:
    """Return whether the kernel lists *device* on the PCI bus."""
    return tree.exists(f"{DEVICES}/{device.pci}")


def gone(tree: Tree, device: Device) -> str | None:
    """Return why *device* is no longer on its bus, or None where it is.

    Only for a device that stopped answering: reading its configuration space would wake a suspended one.
    """
    if not listed(tree, device):
        return "the kernel no longer lists it on the PCI bus"
    try:
        with open(tree.path(f"{DEVICES}/{device.pci}/config"), "rb", buffering=0) as configuration:  # noqa: PTH123
            head = configuration.read(4)
    except OSError:
        return None
    return "its configuration space reads all ones: it fell off the bus" if head.hex() == LOST_CONFIGURATION else None


def asleep(tree: Tree, pci: str | None) -> bool:
    """Return whether the kernel suspended the device at *pci*; reading it would wake it, or return nonsense."""
    return tree.text_or_none(f"{DEVICES}/{pci}/power/runtime_status") == "suspended"


def _text_of(answer: Any, key: str) -> str | None:
    """Return the text under *key*, or None where the device has none."""
    value = answer.get(key) if isinstance(answer, dict) else None
    return value.strip() if isinstance(value, str) and value.strip() not in ("", "N/A") else None


def is_virtual(library: Library, target: Target, model: str) -> bool:
    """Return whether a host shares the device with this machine; older releases show it only in the name."""
    mode = (library.optional(target, "amdsmi_get_gpu_virtualization_mode") or {}).get("mode")
    return mode == GUEST or model.endswith(VIRTUAL_FUNCTION)


def _unique(chip: str | None) -> str | None:
    """Return ROCm's name of the device, made from its chip number: ``0x`` and sixteen digits."""
    return f"GPU-{int(chip, 16):016x}" if chip else None


def _render_node(tree: Tree, place: dict[str, Any], pci: str) -> int | None:
    reported = number(place.get("drm_render"))
    if reported is not None:
        return int(reported)
    nodes = tree.names(f"{DEVICES}/{pci}/drm", r"renderD\d+")
    return int(nodes[0].removeprefix("renderD")) if len(nodes) == 1 else None


def _numa_node(library: Library, tree: Tree, target: Target, pci: str) -> int | None:
    """Return the NUMA node next to the device as the kernel reports it, else as AMD SMI does."""
    node = numa_node(slot(pci, tree.root))
    if node is not None:
        return node
    reported = number(library.optional(target, "amdsmi_topo_get_numa_node_number"))
    return int(reported) if reported is not None and reported >= 0 else None


def _firmware(library: Library, target: Target) -> tuple[Firmware, ...]:
    vbios = library.optional(target, "amdsmi_get_gpu_vbios_info")
    version = _text_of(vbios, "part_number") or _text_of(vbios, "version")
    found = [Firmware("vbios", version)] if version else []
    reported = (library.optional(target, "amdsmi_get_fw_info") or {}).get("fw_list", ())
    names = {str(getattr(entry["fw_name"], "name", entry["fw_name"])): str(entry["fw_version"]) for entry in reported}
    for end, component in FIRMWARES.items():
        version = next((text for name, text in names.items() if name.endswith(f"FW_ID_{end}")), None)
        if version:
            found.append(Firmware(component, version))
    return tuple(found)


def _links(library: Library, target: Target) -> tuple[Link, ...]:
    """Return a link per port, with the PCI address of its peer where AMD SMI reports it (since ROCm 7.0).

    Where the ports do not answer this time, the largest number of ports is assumed: none would mean that all are down.
    """
    code, answer = library.on(target, "amdsmi_get_gpu_xgmi_link_status")
    reported, is_answered = answer or {}, code == SUCCESS or code in UNSUPPORTED
    library.failures += not is_answered and code not in DENIED
    ways = (library.optional(target, "amdsmi_get_link_metrics") or {}).get("links", ())
    xgmi = library.member("AmdSmiLinkType.AMDSMI_LINK_TYPE_XGMI")
    peers = [way["bdf"] if way["link_type"] == xgmi and way["bdf"] != NO_ADDRESS else None for way in ways]
    ports = range(len(reported.get("status", ())) if is_answered else PORTS)
    return tuple(Link(port, peers[port] if port < len(peers) else None, "xGMI") for port in ports)
