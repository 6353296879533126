"""NVIDIA devices through NVML.

Two groups. ``fast``: heat, power, clocks, throttling, memory errors, repairs that are pending or failed, links up,
load. ``slow``: thresholds and limits, counters of links and PCIe, repairs and errors over the device's life, fabric,
settings. XIDs come as events. A device that NVML counts but that no longer answers is listed with what is remembered
of it, and reading it raises BackendError(LOST).
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from nodevet.checks.backends.base import BackendError, Context
from nodevet.checks.backends.driver_errors import Asked
from nodevet.checks.backends.host.withheld import kept_away
from nodevet.checks.backends.pci import pci_accelerators
from nodevet.checks.backends.tree import Tree
from nodevet.checks.core.model import (
    Device,
    DeviceKind,
    Event,
    FailureKind,
    Firmware,
    Link,
    Part,
    PartKind,
    Provenance,
    Reading,
    ReadingStatus,
)
from nodevet.checks.reference.expected_links import expected_links
from nodevet.checks.topology.matrix import Topology

from .items import fast_items, slow_items
from .nvml import (
    SUCCESS,
    TIMEOUT,
    UNSUPPORTED,
    Call,
    Field,
    Item,
    Library,
    Plan,
    Target,
    describe,
    is_evidence,
    is_unsupported,
    load,
    may_answer_later,
    raise_if_gone,
    refused,
)
from .pcie import numa_node, slot
from .topology import read_topology

OF_ALL = frozenset({FailureKind.NO_DRIVER, FailureKind.VERSION_MISMATCH, FailureKind.READER})
"""With these failures of one device the whole library is unusable."""

XID_EVENT = 0x8
LINK_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
"""NVML's number of an NVLink version and the version it stands for."""
REMOTE_SWITCH = 2
VIRTUAL_GPU = 2
"""NVML's mode of a device in a virtual machine that shares its board with others; one handed on whole is as any."""
MAXIMUM_LINKS = 36

ARCHITECTURES = {5: "volta", 6: "turing", 7: "ampere", 8: "ada", 9: "hopper", 10: "blackwell", 13: "rubin"}
CORES_PER_MULTIPROCESSOR = {(7, 0): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128}
"""FP32 cores per multiprocessor by compute capability (CUDA programming guide, arithmetic throughput)."""

NUMA_WORDS = 16
"""Words of 64 NUMA nodes that NVML is given room for."""
SCOPE_NODE = 0

HEXADECIMAL = re.compile("[0-9a-f]{4,8}")
UNNAMED = "unknown"
NOT_LISTED = "Unknown"
"""What the page of the kernel driver calls each board that its list of names lacks, healthy or not; NVML names it."""

LINK_COUNT = Item("link_count", Part(PartKind.LINK), (Field(91),))
"""Not a quantity: only asked for while a device is identified."""


def open_backend(context: Context) -> NvidiaBackend:
    """Load NVML; raise BackendError where nvidia-ml-py, library or driver are missing or do not fit each other."""
    return NvidiaBackend(context, load(context.progress, context.root))


class _Gpu:
    """One device that was seen: its identity, its handle, and what is known about what it supports."""

    def __init__(self, index: int, target: Target, device: Device, *, told_share: bool = True) -> None:
        self.index = index
        self.told_share = told_share
        """Whether it said if it is a share of a board, which owes little: one that did not is asked again."""
        self.target = target
        self.device = device
        self.links = len(device.links)
        self.split: bool | None = None
        self.lost: BackendError | None = None
        self.plans: dict[str, Plan] = {}

    @property
    def complete(self) -> bool:
        """Whether it told who it is and every link its peer, which one does only while it is up: that takes a while."""
        device = self.device
        named = device.uuid is not None and device.model != UNNAMED and self.told_share
        linked = bool(device.links) or expected_links(device) is None
        return named and linked and all(link.peer is not None for link in device.links)


class NvidiaBackend:
    """The devices of one node as NVML shows them."""

    groups = ("fast", "slow")

    def __init__(self, context: Context, library: Library) -> None:
        """Take over the loaded *library*; devices are enumerated by ``devices``."""
        self._context = context
        self._library = library
        self._gpus: dict[str, _Gpu] = {}
        self._remembered: dict[str, _Gpu] = {}
        self._drained: dict[str, Device] = {}
        self._by_handle: dict[int, Device] = {}
        self._event_set: Any = None
        self._event_trouble_noted = False
        skip = context.options.get("skip", ())
        self._skipped = frozenset(map(str, skip)) if isinstance(skip, (list, tuple)) else frozenset()
        self.versions = self._read_versions()

    def devices(self) -> tuple[Device, ...]:
        """Enumerate again; what was found unsupported is tried anew. Raise BackendError where there is no device."""
        count = self._library.system("nvmlDeviceGetCount")
        self._drained = self._read_drained(count)
        if not count and not self._drained:
            raise BackendError(
                FailureKind.NO_DEVICES,
                "the NVIDIA driver is loaded and lists no device: see lspci and the kernel log",
                of_driver=True,
            )
        found: dict[str, _Gpu] = {}
        shared: set[str] = set()
        silent: list[tuple[int, BackendError]] = []
        for index, place in self._places(count):
            try:
                gpu = self._open(index, place)
            except BackendError as error:
                if error.failure.kind in OF_ALL:
                    raise
                silent.append((index, error))
            else:
                if gpu is not None and gpu.device.id in found:
                    shared.add(gpu.device.id)
                    gpu = _Gpu(index, gpu.target, _by_address(gpu.device))
                if gpu is not None:
                    found[gpu.device.id] = gpu
        for name, gpu in found.items():
            if gpu.device.uuid is not None:
                gpu.device = msgspec.structs.replace(gpu.device, shares_uuid=name in shared)
        for index, why in silent:
            gpu = self._recall(index, why, found)
            found[gpu.device.id] = gpu
        self._gpus = found
        self._remembered |= found
        self._watch_events()
        return (*(gpu.device for gpu in sorted(found.values(), key=lambda gpu: gpu.index)), *self._drained.values())

    def read(self, group: str, device: Device) -> list[Reading]:
        """Return the readings of *group*; raise BackendError when the device is lost or answers nothing at all."""
        if device.drained:
            return []
        gpu = self._gpus.get(device.id)
        if gpu is None:
            raise BackendError(FailureKind.LOST, f"the NVIDIA driver no longer lists {_label(device)}", of_driver=True)
        if gpu.lost is not None:
            raise gpu.lost
        readings = self._read(group, gpu)
        split = next((reading.value for reading in readings if reading.quantity == "partitioned"), None)
        if isinstance(split, bool):
            if gpu.split not in (None, split):  # what it tells, and of which links, is not what it told until now
                gpu.plans.clear()
                gpu.links = max(gpu.links, self._link_count(gpu.target))
                readings = self._read(group, gpu)
            gpu.split = split
        _refuse_silence(readings, device, gpu.plans[group].codes)
        return readings

    def _read(self, group: str, gpu: _Gpu) -> list[Reading]:
        if group not in gpu.plans:
            gpu.plans[group] = Plan(self._library, gpu.target, self._items(group, gpu))
        try:
            return gpu.plans[group].read()
        except BackendError:
            gpu.plans.clear()
            raise

    def events(self) -> Iterator[Event]:
        """Yield the XIDs that NVML reported, without waiting for one."""
        while self._event_set is not None:
            symbol = "nvmlEventSetWait_v2"
            code, data = self._library.attempt(symbol, symbol, self._event_set, 0)
            if code:
                self._note_event_failure(code)
                return
            yield self._event(data)

    def topology(self) -> Topology:
        """Return how the devices that answer are connected; each keeps its number, and one that is silent is told."""
        known = sorted(self._gpus.values(), key=lambda gpu: gpu.index)
        present = [gpu for gpu in known if gpu.lost is None]
        found = read_topology(self._library, [(gpu.target, gpu.device) for gpu in present], self._context.root)
        return msgspec.structs.replace(
            found,
            gpus=tuple(f"GPU{gpu.index}" for gpu in present),
            problems=tuple(f"GPU{gpu.index} is left out: {gpu.lost}" for gpu in known if gpu.lost is not None),
        )

    def close(self) -> None:
        """Let go of the event set and of the library."""
        if self._event_set is not None:
            self._library.attempt("nvmlEventSetFree", "nvmlEventSetFree", self._event_set)
            self._event_set = None
        self._library.attempt("nvmlShutdown", "nvmlShutdown")

    # ---- Enumeration ------------------------------------------------------------------------------------------

    def _read_versions(self) -> dict[str, str]:
        """Return the versions that the library tells; one that cannot be had costs no reading of a device."""
        symbols = {
            "driver": "nvmlSystemGetDriverVersion",
            "nvml": "nvmlSystemGetNVMLVersion",
            "cuda": "nvmlSystemGetCudaDriverVersion",
        }
        versions = {}
        for name, symbol in symbols.items():
            code, found = self._library.attempt(symbol, symbol)
            if code == SUCCESS:
                versions[name] = found if isinstance(found, str) else f"{found // 1000}.{found % 1000 // 10}"
            else:
                raise_if_gone(code, symbol)
        return versions

    def _places(self, count: int) -> list[tuple[int, int | str]]:
        """Return index and place of every device to open: its PCI address where the kernel lists it, else the index.

        Even to open a device may hang. Under its address everybody sees which one it was, and it can be left alone.
        """
        pages = self._pages()
        listed = [path.parent.name for path in (pages if len(pages) == count else self._used(pages))]
        if len(listed) != count and not (listed and self._skipped):
            return [(index, index) for index in range(count)]
        return [(index, address) for index, address in enumerate(listed) if address not in self._skipped]

    def _pages(self) -> list[Path]:
        """Return what the kernel driver says about each of its devices, in the order of PCI addresses."""
        return sorted(Path(self._context.root, "proc/driver/nvidia/gpus").glob("*/information"))

    def _used(self, pages: list[Path]) -> list[Path]:
        """Return those of *pages* whose board NVML counts: no option excludes it, and this process may open it.

        The page of a board that is left alone is not read either.
        """
        texts = {
            page.parent.name: None if page.parent.name in self._skipped else self._read_page(page) for page in pages
        }
        tree = Tree(self._context.root, self._context.progress)
        others = kept_away(tree, self._on_bus(), texts) | self._drained.keys()
        return [page for page in pages if page.parent.name not in others]

    def _read_drained(self, count: int) -> dict[str, Device]:
        """Return, by address, the boards that ``nvidia-smi drain`` keeps new processes from, where NVML counts fewer
        boards than the kernel driver has. A refused question (virtual machines, old drivers) drains none.
        """
        self._drained = {}
        pages = self._pages()
        used = self._used(pages) if len(pages) > count else []
        asked = [page for page in used if page.parent.name not in self._skipped]
        if len(used) <= count:
            return {}
        drained = [page for page in asked if self._library.is_drained(page.parent.name)]
        return {page.parent.name: msgspec.structs.replace(self._page_device(page), drained=True) for page in drained}

    def _page_device(self, page: Path) -> Device:
        """Return what the kernel driver's *page* tells of its board."""
        return _unknown(page.parent.name, page.parent.name, _information(self._read_page(page)))

    def _read_page(self, path: Path) -> str:
        """Return a page of the kernel driver, empty where unreadable; it waits for the board as any call does."""
        self._context.progress.call(f"read {path}")
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        finally:
            self._context.progress.returned()

    def _open(self, index: int, place: int | str) -> _Gpu | None:
        """Return the device at *place*, known or new; None where it must not be touched."""
        symbol = "nvmlDeviceGetHandleByIndex" if isinstance(place, int) else "nvmlDeviceGetHandleByPciBusId"
        label = self._label_at(index, place)
        code, handle = self._library.attempt(f"{symbol} of {label}", symbol, place)
        if code:
            raise refused(code, f"{symbol} of {label}", Asked.OPEN)
        target = Target(handle, label)
        address_code, pci_info = self._library.on(target, Call("nvmlDeviceGetPciInfo_v3"))
        name_code, uuid = self._library.on(target, Call("nvmlDeviceGetUUID"))
        pci = _pci(pci_info) if pci_info is not None else None
        if uuid is None and pci is None:
            code = next((code for code in (name_code, address_code) if is_evidence((code,))), name_code)
            raise refused(code, f"{label} tells neither its UUID nor its PCI address", Asked.DEVICE)
        if self._skipped & {uuid, pci}:
            return None
        if uuid is None:  # not told this time: what sits there kept its name
            uuid = next((gpu.device.uuid for gpu in self._gpus.values() if gpu.device.pci == pci), None)
        elif pci is not None:
            self._remembered.pop(pci, None)  # it had no other name so far
        known = self._remembered.get(uuid or pci or "")
        if known is not None and known.lost is None and known.device.pci == pci and known.complete:
            known.index, known.target.handle = index, handle
            known.plans.clear()
            return known
        target = Target(handle, f"{uuid or 'GPU'} (PCI {pci})")
        code, mode = self._library.on(target, Call("nvmlDeviceGetVirtualizationMode"))
        device = self._identify(target, uuid, pci, pci_info, virtual=mode == VIRTUAL_GPU)
        gpu = _Gpu(index, target, device, told_share=code == SUCCESS or is_unsupported(code))
        gpu.split = known.split if known is not None else None
        return gpu

    def _label_at(self, index: int, place: int | str) -> str:
        known = next((gpu for gpu in self._gpus.values() if gpu.index == index), None)
        if known is not None:
            return known.target.label
        return f"index {place}" if isinstance(place, int) else f"PCI {place}"

    def _identify(self, target: Target, uuid: str | None, pci: str | None, pci_info: Any, *, virtual: bool) -> Device:
        """Return the identity of a device; what it does not tell stays None."""
        library = self._library
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
            numa_node=self._numa_node(target, pci),
            driver=self.versions.get("driver"),
            firmware=self._firmware(target),
            links=self._links(target),
            memory_bytes=memory.total if memory is not None else None,
            compute_units=self._multiprocessors(target),
            maximum_clock_hertz=clock * 1_000_000 if clock else None,
            architecture=ARCHITECTURES.get(architecture) if architecture is not None else None,
            virtual=virtual,
        )

    def _numa_node(self, target: Target, pci: str | None) -> int | None:
        """Return the NUMA node next to the device, as NVML sees it or else as the kernel does."""
        nodes = self._library.optional(target, "nvmlDeviceGetMemoryAffinity", NUMA_WORDS, SCOPE_NODE)
        bits = [64 * word + bit for word, mask in enumerate(nodes or ()) for bit in range(64) if mask >> bit & 1]
        if len(bits) == 1:
            return bits[0]
        return numa_node(slot(pci, self._context.root))

    def _firmware(self, target: Target) -> tuple[Firmware, ...]:
        symbols = {
            "vbios": "nvmlDeviceGetVbiosVersion",
            "inforom": "nvmlDeviceGetInforomImageVersion",
            "gsp": "nvmlDeviceGetGspFirmwareVersion",
        }
        versions = {name: self._library.optional(target, symbol) for name, symbol in symbols.items()}
        return tuple(Firmware(name, _text(version)) for name, version in versions.items() if version)

    def _multiprocessors(self, target: Target) -> int | None:
        cores = self._library.optional(target, "nvmlDeviceGetNumGpuCores")
        capability = self._library.optional(target, "nvmlDeviceGetCudaComputeCapability")
        per = CORES_PER_MULTIPROCESSOR.get(tuple(capability)) if capability else None
        return cores // per if cores and per else None

    def _links(self, target: Target) -> tuple[Link, ...]:
        """Return every link port with its peer and generation, where the port tells them."""
        links = []
        for port in range(self._link_count(target)):
            version = self._library.optional(target, "nvmlDeviceGetNvLinkVersion", port)
            generation = LINK_VERSIONS.get(version) if version is not None else None
            links.append(Link(port, self._peer(target, port), f"NVLink {generation}" if generation else None))
        return tuple(links)

    def _link_count(self, target: Target) -> int:
        """Return how many ports there are. What the driver counts is where they begin to be asked: it may count none.

        One that does not answer this time is there until it says that it is not: to count none would be all links down.
        Beyond what the driver counts any refusal may say so; where it counts none, only that there is no such port.
        """
        count = Plan(self._library, target, [LINK_COUNT]).read()[0]
        counted = int(count.value or 0) if count.status is ReadingStatus.OK else 0
        has_answered = counted > 0
        for port in range(counted, MAXIMUM_LINKS):
            code, _ = self._library.on(target, Call("nvmlDeviceGetNvLinkState", (port,)))
            if is_unsupported(code) or (code and has_answered and not may_answer_later(code)):
                return port
            has_answered = has_answered or not code
        return MAXIMUM_LINKS

    def _peer(self, target: Target, port: int) -> str | None:
        if self._library.optional(target, "nvmlDeviceGetNvLinkRemoteDeviceType", port) == REMOTE_SWITCH:
            return "switch"
        remote = self._library.optional(target, "nvmlDeviceGetNvLinkRemotePciInfo", port)
        return _address(remote.busId) if remote is not None else None

    def _recall(self, index: int, error: BackendError, found: dict[str, _Gpu]) -> _Gpu:
        """Return what is known of a device that is counted and does not answer."""
        missing = [gpu for gpu in self._remembered.values() if gpu.device.id not in found]
        gpu = next((gpu for gpu in missing if gpu.index == index), missing[0] if missing else None)
        if gpu is None:
            gpu = _Gpu(index, Target(None, f"index {index}"), self._stranger(index, found))
        gpu.index, gpu.lost = index, error
        gpu.plans.clear()
        return gpu

    def _stranger(self, index: int, found: dict[str, _Gpu]) -> Device:
        """Return what the kernel driver's own list, or else the PCI bus, says of a device that never answered."""
        answering = {gpu.device.pci for gpu in found.values()}
        silent = [path for path in self._used(self._pages()) if path.parent.name not in answering | self._skipped]
        if silent:
            return self._page_device(silent[0])
        bound = self._bound()
        address = bound[index] if index < len(bound) and bound[index] not in answering | self._skipped else None
        return _unknown(address or f"nvidia-{index}", address, {})

    def _bound(self) -> list[str]:
        """Return the addresses on the PCI bus that the NVIDIA driver is bound to, in the order of NVML's indexes."""
        return sorted(board.pci for board in self._on_bus() if board.pci and board.driver == "nvidia")

    def _on_bus(self) -> tuple[Device, ...]:
        """Return the accelerators on the PCI bus; none where that cannot be read."""
        try:
            return pci_accelerators(Tree(self._context.root, self._context.progress))
        except OSError:
            return ()

    # ---- Rounds and events ------------------------------------------------------------------------------------

    def _items(self, group: str, gpu: _Gpu) -> tuple[Item, ...]:
        if group == "fast":
            known_reasons = self._library.optional(gpu.target, "nvmlDeviceGetSupportedClocksEventReasons")
            return fast_items(gpu.links, self.versions.get("nvml", ""), known_reasons)
        if group == "slow":
            return slow_items(gpu.links)
        raise BackendError(FailureKind.ERROR, f"no group {group!r}: there are {', '.join(self.groups)}")

    def _watch_events(self) -> None:
        """Register every device that answers; its handle is noted, since a lost device cannot tell who it is."""
        if self._event_set is None and not self._event_trouble_noted:
            code, self._event_set = self._library.attempt("nvmlEventSetCreate", "nvmlEventSetCreate")
            if code:
                self._note_event_failure(code)
        for gpu in self._gpus.values():
            handle = _handle(gpu.target)
            if gpu.lost is None and self._event_set is not None and handle not in self._by_handle:
                self._by_handle[handle] = gpu.device
                self._register(gpu)

    def _register(self, gpu: _Gpu) -> None:
        symbol = "nvmlDeviceRegisterEvents"
        arguments = (gpu.target.handle, XID_EVENT, self._event_set)
        code, _ = self._library.attempt(gpu.target.text(symbol), symbol, *arguments)
        if code:
            self._context.note("warning", "no XIDs from NVML", device=gpu.device.id, reason=describe(code))

    def _event(self, data: Any) -> Event:
        device = self._by_handle.get(ctypes.cast(data.device, ctypes.c_void_p).value or 0)
        instances = {"gpu_instance": data.gpuInstanceId, "compute_instance": data.computeInstanceId}
        return Event(
            code=f"nvidia.xid.{data.eventData}",
            source="nvml",
            time=self._context.now(),
            text=f"NVML reports XID {data.eventData} of {_label(device) if device else 'an unknown device'}",
            device=device.id if device else None,
            pci=device.pci if device else None,
            provenance=Provenance.DRIVER,
            fields={name: str(number) for name, number in instances.items() if number != 0xFFFFFFFF},
        )

    def _note_event_failure(self, code: int) -> None:
        """Say once that events cannot be had; that none came in time is the normal end of waiting."""
        if code == TIMEOUT:
            return
        if not self._event_trouble_noted:
            self._context.note("warning", "NVML events cannot be read", reason=describe(code))
        self._event_trouble_noted = True
        if code in UNSUPPORTED:
            self._event_set = None


def _by_address(device: Device) -> Device:
    """Return *device* under its address: the driver gave its name to another board, and neither may hide the other."""
    return msgspec.structs.replace(device, id=device.pci or device.id, uuid=None, shares_uuid=True)


def _handle(target: Target) -> int:
    return ctypes.cast(target.handle, ctypes.c_void_p).value or 0


def _label(device: Device) -> str:
    return f"{device.uuid or device.model} (PCI {device.pci})"


def _pci(info: Any) -> str:
    """Return the address as the kernel writes it: lower case, four digits of domain unless it needs more."""
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


def _address(text: str) -> str | None:
    """Return NVML's spelling of a PCI address, eight digits of domain and capitals, as the kernel writes it.

    None where it is no address: a port that is not wired up may tell an empty one.
    """
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if HEXADECIMAL.fullmatch(domain) else None


def _pci_device_id(info: Any) -> str:
    return f"{info.pciDeviceId & 0xFFFF:04x}:{info.pciDeviceId >> 16:04x}"


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("ascii", "replace")


def _refuse_silence(readings: list[Reading], device: Device, codes: set[int]) -> None:
    """Raise BackendError where not one value could be read: the device is there and tells nothing.

    To a virtual machine that shares a board its host may deny a whole group; that it tells nothing at all is judged.
    """
    if any(reading.status is ReadingStatus.OK for reading in readings):
        return
    for status, kind in ((ReadingStatus.ERROR, FailureKind.ERROR), (ReadingStatus.DENIED, FailureKind.DENIED)):
        if device.virtual and status is ReadingStatus.DENIED:
            continue
        failed = next((reading for reading in readings if reading.status is status), None)
        if failed is not None:
            why = f"{_label(device)} answers no question: {failed.detail}"
            raise BackendError(kind, why, of_driver=is_evidence(codes))


def _information(page: str) -> dict[str, str]:
    """Return the lines ``Key: value`` of the kernel driver's *page* about one device."""
    pairs = (line.partition(":") for line in page.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _unknown(name: str, pci: str | None, told: dict[str, str]) -> Device:
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
