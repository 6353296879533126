"""NVIDIA devices through NVML.

Two groups. ``fast``: temperatures, power, clocks, throttling, memory errors, pending or failed repairs, link states,
load. ``slow``: thresholds and limits, counters of links and PCIe, repairs and errors over the device's life, fabric,
settings. XIDs are events. A device that NVML counts but that no longer answers is listed with its remembered identity,
and reading it raises BackendError(LOST).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from nodevet.checks.backends.alike import by_address, mark_alike, of_each
from nodevet.checks.backends.base import BackendError, Context, names_in
from nodevet.checks.backends.driver_errors import Asked
from nodevet.checks.backends.host.withheld import kept_away
from nodevet.checks.backends.pci import pci_accelerators
from nodevet.checks.backends.tree import Tree
from nodevet.checks.core.model import Device, Event, FailureKind, Reading, ReadingStatus
from nodevet.checks.reference.expected_links import expected_links
from nodevet.checks.topology.matrix import Topology

from .identity import UNNAMED, VIRTUAL_GPU, address_of, from_page, identify, label_of, link_count
from .items import fast_items, slow_items
from .nvml import SUCCESS, Call, Item, Library, Plan, Target, is_evidence, is_unsupported, load, raise_if_gone, refused
from .topology import read_topology
from .xids import XidEvents

MOST_BOARDS = 1024
"""More boards than any machine has (``expected_accelerators`` allows as many): such a count is an error of the call."""


def open_backend(context: Context) -> NvidiaBackend:
    """Load NVML. Raises BackendError if nvidia-ml-py, library or driver are missing or do not fit each other."""
    return NvidiaBackend(context, load(context.progress, context.root))


class _Gpu:
    """One known device: its identity, its handle, and the calls that it supports."""

    def __init__(
        self, index: int, target: Target, device: Device, name: str | None = None, *, told_share: bool = True
    ) -> None:
        self.index = index
        self.name = name
        self.told_share = told_share
        """Whether it reported if it is a share of a board, of which few readings are required; else it is asked later.
        """
        self.target = target
        self.device = device
        self.links = len(device.links)
        self.split: bool | None = None
        self.lost: BackendError | None = None
        self.plans: dict[str, Plan] = {}

    @property
    def complete(self) -> bool:
        """Whether it reported its identity and the peer of every link; a link reports its peer only while it is up."""
        device = self.device
        named = device.uuid is not None and device.model != UNNAMED and self.told_share
        linked = bool(device.links) or expected_links(device) is None
        return named and linked and all(link.peer is not None for link in device.links)


class NvidiaBackend:
    """The NVIDIA devices of one node."""

    groups = ("fast", "slow")

    def __init__(self, context: Context, library: Library) -> None:
        """Take over the loaded *library*; devices are enumerated by ``devices``."""
        self._context = context
        self._library = library
        self._gpus: dict[str, _Gpu] = {}
        self._remembered: dict[str, _Gpu] = {}
        self._drained: dict[str, Device] = {}
        self._xids = XidEvents(library, context)
        self._skipped = names_in(context, "skip")
        self.versions = self._read_versions()

    def devices(self) -> tuple[Device, ...]:
        """Enumerate again; unsupported values are retried. Raises BackendError if there is no device."""
        count = self._library.system("nvmlDeviceGetCount")
        if not 0 <= count <= MOST_BOARDS:
            raise BackendError(
                FailureKind.ERROR, f"nvmlDeviceGetCount: {count} boards, and at most {MOST_BOARDS} are read"
            )
        self._drained = self._read_drained(count)
        if not count and not self._drained:
            raise BackendError(
                FailureKind.NO_DEVICES,
                "the NVIDIA driver is loaded and lists no device: see lspci and the kernel log",
                of_driver=True,
            )
        found: dict[str, _Gpu] = {}
        silent: list[tuple[int, BackendError]] = []
        for index, place in self._places(count):
            try:
                gpu = self._open(index, place)
            except BackendError as error:
                if error.failure.kind is FailureKind.READER:
                    raise
                silent.append((index, error))
            else:
                if gpu is not None and gpu.device.id in found:
                    gpu = _Gpu(index, gpu.target, by_address(gpu.device), gpu.name)
                if gpu is not None:
                    found[gpu.device.id] = gpu
        mark_alike(found.values())
        for index, why in of_each(silent, alone=not found):
            gpu = self._recall(index, why, found)
            found[gpu.device.id] = gpu
        self._gpus = found
        self._remembered |= found
        self._xids.watch((gpu.device, gpu.target) for gpu in found.values() if gpu.lost is None)
        return (*(gpu.device for gpu in sorted(found.values(), key=lambda gpu: gpu.index)), *self._drained.values())

    def read(self, group: str, device: Device) -> list[Reading]:
        """Return the readings of *group*. Raises BackendError when the device is lost or answers no call."""
        if device.drained:
            return []
        gpu = self._gpus.get(device.id)
        if gpu is None:
            raise BackendError(
                FailureKind.LOST, f"the NVIDIA driver no longer lists {label_of(device)}", of_driver=True
            )
        if gpu.lost is not None:
            raise gpu.lost
        readings = self._read(group, gpu)
        split = next((reading.value for reading in readings if reading.quantity == "partitioned"), None)
        if isinstance(split, bool):
            if gpu.split not in (None, split):  # its links and supported values may have changed
                gpu.plans.clear()
                gpu.links = max(gpu.links, link_count(self._library, gpu.target))
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
        return self._xids.read()

    def topology(self) -> Topology:
        """Return the connections of the devices that answer; each keeps its number, and a silent one is reported."""
        known = sorted(self._gpus.values(), key=lambda gpu: gpu.index)
        present = [gpu for gpu in known if gpu.lost is None]
        found = read_topology(self._library, [(gpu.target, gpu.device) for gpu in present], self._context.root)
        return msgspec.structs.replace(
            found,
            gpus=tuple(f"GPU{gpu.index}" for gpu in present),
            problems=tuple(f"GPU{gpu.index} is left out: {gpu.lost}" for gpu in known if gpu.lost is not None),
        )

    def close(self) -> None:
        """Release the event set and the library."""
        self._xids.close()
        self._library.attempt("nvmlShutdown", "nvmlShutdown")

    # ---- Enumeration ------------------------------------------------------------------------------------------

    def _read_versions(self) -> dict[str, str]:
        """Return the versions that the library reports; an unreadable one costs no reading of a device."""
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
        """Return index and place of every device to open: its PCI address if the kernel lists it, else the index.

        Opening a device may hang. The progress line then names its address, by which it can be quarantined.
        """
        pages = self._pages()
        listed = [path.parent.name for path in (pages if len(pages) == count else self._used(pages))]
        if len(listed) != count and not (listed and self._skipped):
            return [(index, index) for index in range(count)]
        return [(index, address) for index, address in enumerate(listed) if address not in self._skipped]

    def _pages(self) -> list[Path]:
        """Return the kernel driver's pages about its devices, in the order of PCI addresses."""
        return sorted(Path(self._context.root, "proc/driver/nvidia/gpus").glob("*/information"))

    def _used(self, pages: list[Path]) -> list[Path]:
        """Return those of *pages* whose board NVML counts: no option excludes it, and this process may open it.

        The page of a quarantined board is not read either.
        """
        texts = {
            page.parent.name: None if page.parent.name in self._skipped else self._read_page(page) for page in pages
        }
        tree = Tree(self._context.root, self._context.progress)
        others = kept_away(tree, self._on_bus(), texts) | self._drained.keys()
        return [page for page in pages if page.parent.name not in others]

    def _read_drained(self, count: int) -> dict[str, Device]:
        """Return, by address, the drained boards, if NVML counts fewer boards than the kernel driver.

        ``nvidia-smi drain`` keeps new processes from them. If the query is refused (virtual machines, old drivers),
        none is drained.
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
        """Return the board as the kernel driver's *page* reports it."""
        return from_page(page.parent.name, page.parent.name, self._read_page(page))

    def _read_page(self, path: Path) -> str:
        """Return a page of the kernel driver, empty if unreadable; the read waits for the board as any call does."""
        self._context.progress.call(f"read {path}")
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        finally:
            self._context.progress.returned()

    def _open(self, index: int, place: int | str) -> _Gpu | None:
        """Return the device at *place*, known or new; None if it must not be accessed."""
        symbol = "nvmlDeviceGetHandleByIndex" if isinstance(place, int) else "nvmlDeviceGetHandleByPciBusId"
        label = self._label_at(index, place)
        code, handle = self._library.attempt(f"{symbol} of {label}", symbol, place)
        if code:
            raise refused(code, f"{symbol} of {label}", Asked.OPEN)
        target = Target(handle, label)
        address_code, pci_info = self._library.on(target, Call("nvmlDeviceGetPciInfo_v3"))
        name_code, uuid = self._library.on(target, Call("nvmlDeviceGetUUID"))
        told = address_of(pci_info) if pci_info is not None else None
        pci = told or (place if isinstance(place, str) else None)  # NVML found it under that address
        if uuid is None and pci is None:
            code = next((code for code in (name_code, address_code) if is_evidence((code,))), name_code)
            raise refused(code, f"{label} tells neither its UUID nor its PCI address", Asked.DEVICE)
        if self._skipped & {uuid, pci}:
            return None
        if uuid is None:  # not reported this time: the device there keeps its name
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
        virtual, driver, root = mode == VIRTUAL_GPU, self.versions.get("driver"), self._context.root
        device = identify(self._library, target, uuid, pci, pci_info, virtual=virtual, driver=driver, root=root)
        gpu = _Gpu(index, target, device, uuid, told_share=code == SUCCESS or is_unsupported(code))
        gpu.split = known.split if known is not None else None
        return gpu

    def _label_at(self, index: int, place: int | str) -> str:
        known = next((gpu for gpu in self._gpus.values() if gpu.index == index), None)
        if known is not None:
            return known.target.label
        return f"index {place}" if isinstance(place, int) else f"PCI {place}"

    def _recall(self, index: int, error: BackendError, found: dict[str, _Gpu]) -> _Gpu:
        """Return the device of the last list for one that is counted and does not answer."""
        missing = [gpu for gpu in self._gpus.values() if gpu.device.id not in found]
        gpu = next((gpu for gpu in missing if gpu.index == index), missing[0] if missing else None)
        if gpu is None:
            gpu = _Gpu(index, Target(None, f"index {index}"), self._stranger(index, found))
        gpu.index, gpu.lost = index, error
        gpu.plans.clear()
        return gpu

    def _stranger(self, index: int, found: dict[str, _Gpu]) -> Device:
        """Return a device that never answered, as the kernel driver's list or else the PCI bus shows it."""
        answering = {gpu.device.pci for gpu in found.values()}
        silent = [path for path in self._used(self._pages()) if path.parent.name not in answering | self._skipped]
        if silent:
            return self._page_device(silent[0])
        bound = self._bound()
        address = bound[index] if index < len(bound) and bound[index] not in answering | self._skipped else None
        return from_page(address or f"nvidia-{index}", address, "")

    def _bound(self) -> list[str]:
        """Return the addresses on the PCI bus that the NVIDIA driver is bound to, in the order of NVML's indexes."""
        return sorted(board.pci for board in self._on_bus() if board.pci and board.driver == "nvidia")

    def _on_bus(self) -> tuple[Device, ...]:
        """Return the accelerators on the PCI bus; none if it cannot be read."""
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


def _refuse_silence(readings: list[Reading], device: Device, codes: set[int]) -> None:
    """Raise BackendError if no value at all could be read from a device that is present.

    In a virtual machine that shares a board, the host may deny a whole group; a device without any value is judged.
    """
    if any(reading.status is ReadingStatus.OK for reading in readings):
        return
    for status, kind in ((ReadingStatus.ERROR, FailureKind.ERROR), (ReadingStatus.DENIED, FailureKind.DENIED)):
        if device.virtual and status is ReadingStatus.DENIED:
            continue
        failed = next((reading for reading in readings if reading.status is status), None)
        if failed is not None:
            why = f"{label_of(device)} answers no question: {failed.detail}"
            raise BackendError(kind, why, of_driver=is_evidence(codes))
