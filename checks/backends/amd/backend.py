"""AMD devices through AMD SMI.

Two groups. ``fast``: temperatures, power, clocks, throttling, load, link states. ``slow``: limits, error counts, bad
pages, PCIe, link rates, partition modes. sysfs is checked for devices before the wrapper is imported, so that a machine
of another vendor pays nothing for it.

A GPU that is split into partitions appears as several handles at one PCI address. The first of them is the
GPU; the others are devices below it with only their own load and memory. A GPU that no longer answers is
listed with its remembered identity, and reading it raises BackendError(LOST). A GPU that the kernel suspended is
not woken up.

The kernel log reports the events: AMD SMI has no event that is not also a line there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from nodevet.checks.backends.alike import by_address, mark_alike, of_each
from nodevet.checks.backends.base import BackendError, Context, names_in
from nodevet.checks.backends.driver_errors import Asked
from nodevet.checks.backends.host.withheld import kept_away
from nodevet.checks.backends.pci import error_readings, pci_accelerators
from nodevet.checks.backends.tree import Tree
from nodevet.checks.core.model import Device, DeviceKind, Event, FailureKind, Reading, ReadingStatus
from nodevet.checks.topology.matrix import Topology

from .amdsmi import (
    DENIED,
    GONE,
    SUCCESS,
    UNSUPPORTED,
    Item,
    Library,
    Plan,
    Target,
    is_evidence,
    load,
    raise_if_gone,
    refused,
)
from .identity import asleep, gone, identify, listed, name_of
from .items import BLOCKS, ThrottleClock, fast_items, partition_items, slow_items
from .topology import read_topology

MODULE = "sys/module/amdgpu"
GENERATION = "sys/class/kfd/kfd/topology/generation_id"
"""Increases when the driver gains or loses a device; the library lists the devices of its start for ever."""
VENDOR = "amd"
RESETTING = "amdgpu refuses every reading while it resets a board: search the kernel log for 'GPU reset begin'"


def open_backend(context: Context) -> AmdBackend:
    """Load AMD SMI. Raises BackendError where there is no AMD device, or wrapper, library or driver do not fit."""
    tree = Tree(context.root, context.progress, driver=True)
    if not tree.exists(MODULE) and not _boards(tree):
        raise BackendError(FailureKind.NO_DEVICES, "no AMD accelerator on the PCI bus, and amdgpu is not loaded")
    generation = tree.text_or_none(GENERATION)  # before the library enumerates: later changes are noticed
    library = load(context.progress)
    library.left_out = names_in(context, "leave_out")
    return AmdBackend(context, tree, library, generation)


class _Gpu:
    """One known device: its identity, its handle, and the calls that it supports."""

    def __init__(self, index: int, target: Target, device: Device, name: str | None = None) -> None:
        self.index = index
        self.name = name
        self.target = target
        self.device = device
        self.lost: BackendError | None = None
        self.in_tree = False
        self.answered = False
        self.complete = True
        """Whether every identity call was answered, or never will be."""
        self.throttle = ThrottleClock()
        self.blocks: list[str] = []
        self.plans: dict[str, Plan] = {}

    def stands_for(self, index: int, pci: str, name: str | None) -> bool:
        """Return whether this is the device at *index* and *pci*: another one may have replaced it there."""
        is_here = (self.index, self.device.pci) == (index, pci) and self.lost is None
        return is_here and name in (self.name, None)


class AmdBackend:
    """The AMD devices of one node."""

    groups = ("fast", "slow")

    def __init__(self, context: Context, tree: Tree, library: Library, generation: str | None) -> None:
        """Take over the *library*, loaded at the *generation* of devices; ``devices`` enumerates them."""
        self._context = context
        self._tree = tree
        self._library = library
        self._generation = generation
        self._gpus: dict[str, _Gpu] = {}
        self._remembered: dict[str, _Gpu] = {}
        self._skipped = names_in(context, "skip")
        self._listed = 0
        self._handles_at = Counter[str]()
        """How many handles this enumeration has met at each PCI address: the first is the board, the rest its parts."""
        self.versions = self._read_versions()

    def devices(self) -> tuple[Device, ...]:
        """Enumerate again; unsupported values are retried. Raises BackendError where there is no device."""
        self._refuse_old_list()
        handles = self._handles()
        if len(handles) != self._listed:  # a board has links to those that are listed
            self._listed = len(handles)
            for known in self._remembered.values():
                known.complete = False
        found: dict[str, _Gpu] = {}
        silent: list[tuple[int, BackendError]] = []
        self._handles_at.clear()
        for index, handle in enumerate(handles):
            try:
                gpu = self._open(index, handle, found)
            except BackendError as error:
                if error.failure.kind is FailureKind.READER:
                    raise
                silent.append((index, error))
            else:
                if gpu is not None and gpu.device.id in found:  # its name may be that of a chip without a number
                    gpu.device = by_address(gpu.device)
                if gpu is not None:
                    found[gpu.device.id] = gpu
        mark_alike(gpu for gpu in found.values() if gpu.device.parent is None)
        for index, why in of_each(silent, alone=not found):
            gpu = self._recall(index, why, found)
            found[gpu.device.id] = gpu
        self._gpus = found
        self._remembered |= found
        return tuple(gpu.device for gpu in sorted(found.values(), key=lambda gpu: gpu.index))

    def read(self, group: str, device: Device) -> list[Reading]:
        """Return the readings of *group*. Raises BackendError when the device is lost or answers no call."""
        gpu = self._gpus.get(device.id)
        if gpu is None:
            raise BackendError(FailureKind.LOST, f"the AMD driver no longer lists {name_of(device)}", of_driver=True)
        if gpu.lost is not None:
            raise gpu.lost
        if gpu.in_tree and not listed(self._tree, device):
            raise BackendError(FailureKind.LOST, f"{name_of(device)}: {gone(self._tree, device)}", of_driver=True)
        sleeping = asleep(self._tree, device.pci)
        if group not in gpu.plans:
            gpu.plans[group] = Plan(self._library, gpu.target, self._items(group, gpu, sleeping))
        plan = gpu.plans[group]
        if sleeping:
            return plan.unread(ReadingStatus.UNAVAILABLE, "the kernel suspended the device while nobody uses it")
        readings = plan.read()
        self._refuse_silence(readings, plan.codes, gpu)
        if group == "slow" and device.parent is None:
            readings += error_readings(self._tree, device)
        return readings

    def events(self) -> Iterator[Event]:
        """Yield nothing: the kernel log has every event of AMD SMI."""
        return iter(())

    def topology(self) -> Topology:
        """Return the connections of the GPUs that answer; each keeps its number, and a silent one is reported."""
        boards = sorted((gpu for gpu in self._gpus.values() if gpu.device.parent is None), key=lambda gpu: gpu.index)
        present = [gpu for gpu in boards if gpu.lost is None]
        found = read_topology(self._library, [(gpu.target, gpu.device) for gpu in present], self._context.root)
        return msgspec.structs.replace(
            found,
            gpus=tuple(f"GPU{gpu.index}" for gpu in present),
            problems=tuple(f"GPU{gpu.index} is left out: {gpu.lost}" for gpu in boards if gpu.lost is not None),
        )

    def close(self) -> None:
        """Shut the library down."""
        self._library.attempt("amdsmi_shut_down", "amdsmi_shut_down")

    # ---- Enumeration ------------------------------------------------------------------------------------------

    def _read_versions(self) -> dict[str, str]:
        code, library = self._library.attempt("amdsmi_get_lib_version", "amdsmi_get_lib_version")
        answer = library if code == 0 and isinstance(library, dict) else {}
        numbers = (answer[part] for part in ("major", "minor", "release") if part in answer)
        driver = self._tree.text_or_none(f"{MODULE}/version")
        versions = {"amdsmi": ".".join(str(number) for number in numbers), "driver": driver}
        return {name: version for name, version in versions.items() if version}

    def _refuse_old_list(self) -> None:
        """Raise BackendError where GPUs were added, removed or partitioned since the library enumerated them."""
        generation = self._tree.text_or_none(GENERATION)
        if generation != self._generation:
            raise BackendError(
                FailureKind.ERROR,
                "the devices of the AMD driver changed, and AMD SMI lists those that it found at its start: "
                "the collector restarts",
            )

    def _handles(self) -> list[Any]:
        symbol = "amdsmi_get_processor_handles"
        code, handles = self._library.attempt(symbol, symbol)
        raise_if_gone(code, symbol)
        if code:
            raise refused(code, symbol)
        if not handles:
            raise BackendError(
                FailureKind.NO_DEVICES,
                "AMD SMI lists no device: see lspci, and the kernel log for amdgpu",
                of_driver=True,
            )
        return list(handles)

    def _open(self, index: int, handle: Any, found: dict[str, _Gpu]) -> _Gpu | None:
        """Return the device of *handle*, known or new; None where it must not be touched."""
        target = Target(handle, f"index {index}")
        symbol = "amdsmi_get_gpu_device_bdf"
        code, pci = self._library.on(target, symbol)
        if code:
            raise refused(code, target.text(symbol), Asked.OPEN)
        target.label = f"PCI {pci}"
        sleeper = next((gpu for gpu in self._remembered.values() if gpu.stands_for(index, pci, None)), None)
        if sleeper is not None and asleep(self._tree, pci):
            return None if self._skipped & {pci, sleeper.name} else self._again(sleeper, handle)
        place = _place(pci)
        number = self._handles_at[place]
        self._handles_at[place] += 1
        board = _board_at(place, found)
        if number and board is not None and self._skipped & {_part_of(board, number)}:
            return None
        failures = self._library.failures
        name = self._library.optional(target, "amdsmi_get_gpu_device_uuid") or None
        if self._skipped & {pci, name}:
            return None
        known = next((gpu for gpu in self._remembered.values() if gpu.stands_for(index, pci, name)), None)
        if known is not None and known.complete:
            return self._again(known, handle)
        gpu = self._identified(index, target, pci, name or (known.name if known else None), found)
        gpu.complete = self._library.failures == failures
        if known is not None:
            gpu.throttle, gpu.blocks = known.throttle, known.blocks
            self._remembered.pop(known.device.id, None)
        return gpu

    def _again(self, gpu: _Gpu, handle: Any) -> _Gpu:
        """Return *gpu* with its present *handle*; its supported calls are learned again."""
        gpu.target.handle = handle
        gpu.plans.clear()
        return gpu

    def _identified(self, index: int, target: Target, pci: str, name: str | None, found: dict[str, _Gpu]) -> _Gpu:
        """Return a device with the identity that it reports. Raises BackendError where the answer is malformed."""
        try:
            device = identify(self._library, self._tree, target, pci, name, self.versions.get("driver"))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            text = f"{target.label}: its identity cannot be understood: {type(error).__name__} {error}"
            raise BackendError(FailureKind.ERROR, text) from error
        device = _below(device, found, self._handles_at[_place(pci)] - 1)
        target.label = name_of(device)
        gpu = _Gpu(index, target, device, name)
        gpu.in_tree = listed(self._tree, device)
        return gpu

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
        """Return a device that never answered, as far as the PCI bus shows it."""
        boards = _boards(self._tree)
        others = {gpu.device.pci for gpu in found.values()} | self._skipped | kept_away(self._tree, boards, {})
        board = next((board for board in boards if board.pci not in others), None)
        return Device(
            id=(board.pci if board else None) or f"amd-{index}",
            kind=DeviceKind.ACCELERATOR,
            vendor=VENDOR,
            model="unknown",
            backend=VENDOR,
            pci=board.pci if board else None,
        )

    # ---- Rounds -----------------------------------------------------------------------------------------------

    def _items(self, group: str, gpu: _Gpu, sleeping: bool) -> tuple[Item, ...]:
        if group not in self.groups:
            raise BackendError(FailureKind.ERROR, f"no group {group!r}: there are {', '.join(self.groups)}")
        if gpu.device.parent is not None:
            return partition_items() if group == "fast" else ()
        links = len(gpu.device.links)
        if group == "fast":
            return fast_items(links, gpu.throttle)
        return slow_items(links, ["UMC"] if sleeping else self._blocks(gpu))

    def _blocks(self, gpu: _Gpu) -> list[str]:
        """Return the blocks whose errors the device counts; the memory controllers are always included.

        Where the device does not report them this time, the blocks of its last report are read, or else all.
        """
        code, mask = self._library.on(gpu.target, "amdsmi_get_gpu_ecc_enabled")
        if code and (gpu.blocks or code not in UNSUPPORTED):
            return gpu.blocks or list(BLOCKS)
        members = {block: self._library.member(f"AmdSmiGpuBlock.{block}") for block in BLOCKS}
        counting = [block for block, member in members.items() if member is not None and int(mask or 0) & int(member)]
        gpu.blocks = counting if "UMC" in counting else ["UMC", *counting]
        return gpu.blocks

    def _refuse_silence(self, readings: list[Reading], codes: set[int], gpu: _Gpu) -> None:
        """Raise BackendError where the device is gone, or is present and answers no call."""
        why = gone(self._tree, gpu.device) if codes & GONE and gpu.in_tree else None
        if why is not None:
            gpu.plans.clear()
            raise BackendError(FailureKind.LOST, f"{gpu.target.label}: {why}", of_driver=True)
        is_read = any(reading.status is ReadingStatus.OK for reading in readings)
        gpu.answered |= is_read
        if is_read or not codes - {SUCCESS}:
            return
        failed = [reading for reading in readings if reading.status is not ReadingStatus.UNSUPPORTED]
        if gpu.device.virtual:  # its host may deny it a whole group; a device with no answer at all is judged
            failed = [reading for reading in failed if reading.status is not ReadingStatus.DENIED]
        if not failed:
            return
        self._refuse_old_list()  # a repartitioned device is not lost
        kind = FailureKind.LOST if codes & GONE else FailureKind.DENIED if codes & DENIED else FailureKind.ERROR
        gpu.plans.clear()
        why = f"{gpu.target.label} answers no question: {failed[0].detail}"
        if kind is FailureKind.DENIED and gpu.answered:
            kind, why = FailureKind.ERROR, f"{why}; this process was permitted to read it before: {RESETTING}"
        raise BackendError(kind, why, of_driver=is_evidence(codes))


def _boards(tree: Tree) -> list[Device]:
    """Return the AMD accelerators on the PCI bus, in order of address."""
    try:
        boards = pci_accelerators(tree)
    except OSError:
        return []
    return sorted(
        (board for board in boards if board.vendor == VENDOR and board.pci), key=lambda board: board.pci or ""
    )


def _below(device: Device, found: dict[str, _Gpu], number: int) -> Device:
    """Return *device*, the handle of that *number* at its place, as a part of the GPU there if there is one already."""
    board = _board_at(_place(device.pci), found)
    if board is None:
        return device
    own = device.id if device.id not in found else _part_of(board, number)
    return msgspec.structs.replace(device, id=own, parent=board.id, links=(), firmware=())


def _board_at(place: str, found: dict[str, _Gpu]) -> Device | None:
    boards = (gpu.device for gpu in found.values() if gpu.device.parent is None)
    return next((board for board in boards if _place(board.pci) == place), None)


def _part_of(board: Device, number: int) -> str:
    """Return the id of a part that has none of its own; a part that is skipped keeps its number."""
    return f"{board.id}/partition-{number}"


def _place(pci: str | None) -> str:
    return (pci or "").split(".")[0]
