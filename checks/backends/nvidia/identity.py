"""The identity of an NVIDIA device, from NVML, or from the kernel driver's page if NVML does not answer."""

from __future__ import annotations

import re
from typing import Any

from nodevet.checks.core.model import Device, DeviceKind, Firmware, Link, Part, PartKind, ReadingStatus

from .nvml import Call, Field, Item, Library, Plan, Target, is_unsupported, may_answer_later
from .pcie import numa_node, slot

LINK_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
"""NVML's number of an NVLink version, and the version."""
REMOTE_SWITCH = 2
VIRTUAL_GPU = 2
"""NVML's mode of a device in a virtual machine that shares its board; a passthrough device is like any other."""
MAXIMUM_LINKS = 36

ARCHITECTURES = {5: "volta", 6: "turing", 7: "ampere", 8: "ada", 9: "hopper", 10: "blackwell", 13: "rubin"}
CORES_PER_MULTIPROCESSOR = {(7, 0): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128}
"""FP32 cores per multiprocessor by compute capability (CUDA programming guide, arithmetic throughput)."""

NUMA_WORDS = 16
"""Buffer size for NVML: number of 64-bit words for NUMA nodes."""
SCOPE_NODE = 0

HEXADECIMAL = re.compile("[0-9a-f]{4,8}")
UNNAMED = "unknown"
NOT_LISTED = "Unknown"
"""The model on the kernel driver's page for any board that its list of names lacks; NVML has the name."""

LINK_COUNT = Item("link_count", Part(PartKind.LINK), (Field(91),))
"""Not a quantity: read only for the identity of a device."""


def identify(
    library: Library,
    target: Target,
    uuid: str | None,
    pci: str | None,
    pci_info: Any,
    *,
    virtual: bool,
    driver: str | None,
    root: str,
) -> Device:
    """Return the identity of the device behind *target*; values that it does not report are None.

    *pci_info* is NVML's structure of that name, or None; *root* is the root of sysfs.
    """
    memory = library.optional(target, "nvmlDeviceGetMemoryInfo_v2")
    if memory is None:
        memory = library.optional(target, "nvmlDeviceGetMemoryInfo")
    clock = library.optional(target, "nvmlDeviceGetMaxClockInfo", 1)
    architecture = library.optional(target, "nvmlDeviceGetArchitecture")
    return Device(
        id=uuid or pci or "",
        kind=DeviceKind.ACCELERATOR,
        vendor="nvidia",
        model=library.optional(target, "nvmlDeviceGetName") or UNNAMED,
        backend="nvidia",
        uuid=uuid,
        serial=library.optional(target, "nvmlDeviceGetSerial"),
        pci=pci,
        pci_device_id=_pci_device_id(pci_info) if pci_info is not None else None,
        minor=library.optional(target, "nvmlDeviceGetMinorNumber"),
        numa_node=_numa_node(library, target, pci, root),
        driver=driver,
        firmware=_firmware(library, target),
        links=_links(library, target),
        memory_bytes=memory.total if memory is not None else None,
        compute_units=_multiprocessors(library, target),
        maximum_clock_hertz=clock * 1_000_000 if clock else None,
        architecture=ARCHITECTURES.get(architecture) if architecture is not None else None,
        virtual=virtual,
    )


def _numa_node(library: Library, target: Target, pci: str | None, root: str) -> int | None:
    """Return the NUMA node of the device, from NVML or else from the kernel."""
    nodes = library.optional(target, "nvmlDeviceGetMemoryAffinity", NUMA_WORDS, SCOPE_NODE)
    bits = [64 * word + bit for word, mask in enumerate(nodes or ()) for bit in range(64) if mask >> bit & 1]
    if len(bits) == 1:
        return bits[0]
    return numa_node(slot(pci, root))


def _firmware(library: Library, target: Target) -> tuple[Firmware, ...]:
    symbols = {
        "vbios": "nvmlDeviceGetVbiosVersion",
        "inforom": "nvmlDeviceGetInforomImageVersion",
        "gsp": "nvmlDeviceGetGspFirmwareVersion",
    }
    versions = {name: library.optional(target, symbol) for name, symbol in symbols.items()}
    return tuple(Firmware(name, _text(version)) for name, version in versions.items() if version)


def _multiprocessors(library: Library, target: Target) -> int | None:
    cores = library.optional(target, "nvmlDeviceGetNumGpuCores")
    capability = library.optional(target, "nvmlDeviceGetCudaComputeCapability")
    per = CORES_PER_MULTIPROCESSOR.get(tuple(capability)) if capability else None
    return cores // per if cores and per else None


def _links(library: Library, target: Target) -> tuple[Link, ...]:
    """Return every link port with its peer and generation, if the port reports them."""
    links = []
    for port in range(link_count(library, target)):
        version = library.optional(target, "nvmlDeviceGetNvLinkVersion", port)
        generation = LINK_VERSIONS.get(version) if version is not None else None
        links.append(Link(port, _peer(library, target, port), f"NVLink {generation}" if generation else None))
    return tuple(links)


def link_count(library: Library, target: Target) -> int:
    """Return the number of ports. The driver's count, which may be 0, is only where the check of single ports starts.

    A port that does not answer this time exists until it reports otherwise: counting none would mean that all links are
    down. Beyond the driver's count any error may mean no port; if the count is 0, only the error for a missing port
    does.
    """
    count = Plan(library, target, [LINK_COUNT]).read()[0]
    counted = int(count.value or 0) if count.status is ReadingStatus.OK else 0
    has_answered = counted > 0
    for port in range(counted, MAXIMUM_LINKS):
        code, _ = library.on(target, Call("nvmlDeviceGetNvLinkState", (port,)))
        if is_unsupported(code) or (code and has_answered and not may_answer_later(code)):
            return port
        has_answered = has_answered or not code
    return MAXIMUM_LINKS


def _peer(library: Library, target: Target, port: int) -> str | None:
    if library.optional(target, "nvmlDeviceGetNvLinkRemoteDeviceType", port) == REMOTE_SWITCH:
        return "switch"
    remote = library.optional(target, "nvmlDeviceGetNvLinkRemotePciInfo", port)
    return _address(remote.busId) if remote is not None else None


def _information(page: str) -> dict[str, str]:
    """Return the lines ``Key: value`` of the kernel driver's *page* about one device."""
    pairs = (line.partition(":") for line in page.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def from_page(name: str, pci: str | None, page: str) -> Device:
    """Return the board at *pci* as the kernel driver's *page* reports it; its id is *name* if the page has none."""
    told = _information(page)
    uuid = told.get("GPU UUID", "?")
    minor = told.get("Device Minor", "")
    model = told.get("Model", NOT_LISTED)
    return Device(
        id=name if "?" in uuid else uuid,
        kind=DeviceKind.ACCELERATOR,
        vendor="nvidia",
        model=UNNAMED if model == NOT_LISTED else model,
        backend="nvidia",
        uuid=None if "?" in uuid else uuid,
        pci=pci,
        minor=int(minor) if minor.isdigit() else None,
    )


def address_of(info: Any) -> str:
    """Return the address in NVML's structure *info* in the kernel's spelling.

    That is lower case, with four digits of domain unless it needs more.
    """
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


def _address(text: str) -> str | None:
    """Return NVML's spelling of a PCI address, eight digits of domain and capitals, in the kernel's spelling.

    None for an invalid address: an unconnected port may return an empty one.
    """
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if HEXADECIMAL.fullmatch(domain) else None


def _pci_device_id(info: Any) -> str:
    return f"{info.pciDeviceId & 0xFFFF:04x}:{info.pciDeviceId >> 16:04x}"


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("ascii", "replace")


def label_of(device: Device) -> str:
    """Return the name of *device* in messages and calls."""
    return f"{device.uuid or device.model} (PCI {device.pci})"
