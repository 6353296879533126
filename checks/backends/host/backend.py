"""The host itself: processors, memory, the node, and the accelerators on its PCI bus.

Everything is read from /proc and /sys under a settable root. A machine that lacks a feature (a virtual one has no
temperature, no throttle counters, no memory controller) reports it as unsupported, never as zero.

psutil reads the memory. The rest is parsed here, because psutil takes /sys and the number of processors from the
running machine, wherever PROCFS_PATH points, and knows no sockets, throttling, EDAC or PCI bus.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import msgspec

from nodevet.checks.backends.base import BackendError, Context
from nodevet.checks.backends.pci import pci_accelerators
from nodevet.checks.backends.tree import Tree, explain, number_reading, status_of
from nodevet.checks.core.guard import one_line
from nodevet.checks.core.model import (
    NODE,
    Device,
    DeviceKind,
    Event,
    FailureKind,
    Firmware,
    Part,
    PartKind,
    Reading,
    ReadingStatus,
)
from nodevet.checks.core.parts import of_memory

from .memory import MEMINFO, available_bytes, look_below, total_bytes
from .processors import (
    Socket,
    are_offline,
    clock_readings,
    find_sockets,
    heat_readings,
    package_sensors,
    socket_device,
    throttle_readings,
)
from .withheld import excluded, is_denied, is_there, not_given, read_pages, withheld

NAME = "host"
MEMORY = "memory"
"""The device id of the main memory."""

FAST, SLOW = "fast", "slow"
_CONTROLLERS = "sys/devices/system/edac/mc"
_BOARD = "sys/class/dmi/id"
GUEST_BOARD = re.compile(
    r"(?i)\b(?:KVM|QEMU|KubeVirt|OpenStack|VMware|VirtualBox|Xen|Bochs|Parallels|BHYVE|Amazon EC2|"
    r"Google Compute Engine|Virtual Machine|HVM domU|Nutanix AHV)\b"
)
"""Vendor and product of virtual machines (systemd, src/basic/virt.c); bare metal of Amazon matches METAL_BOARD."""
METAL_BOARD = re.compile(r"\.metal(?:-|$)")
"""Product names such as ``i3.metal`` and ``c7i.metal-24xl`` (Amazon EC2, list of instance types)."""


class HostBackend:
    """The machine's own devices: one per socket, the memory, the node, and accelerators on the PCI bus."""

    groups = (FAST, SLOW)

    def __init__(
        self, tree: Tree, denied: Callable[[str], bool] = is_denied, there: Callable[[str], bool] = is_there
    ) -> None:
        """Read below the root of *tree*; *denied* returns whether the cgroup of this process denies it a device node,
        *there* whether this process has the node."""
        self._tree = tree
        self._is_denied = denied
        self._is_there = there
        self._pages: dict[str, str | None] = {}
        self._sockets: tuple[Socket, ...] = ()
        self._sensors: dict[int, tuple[str, ...]] = {}
        kernel = tree.text_or_none("proc/sys/kernel/osrelease")
        self.versions: dict[str, str] = {"kernel": kernel} if kernel else {}

    def devices(self) -> tuple[Device, ...]:
        """Enumerate processors, memory, node and PCI accelerators. Raises BackendError where /proc is no /proc."""
        try:
            self._sockets = find_sockets(self._tree)
            self._sensors = {
                socket.index: package_sensors(self._tree, socket, self._sockets) for socket in self._sockets
            }
            boards = pci_accelerators(self._tree, NAME)
            pages = self._pages = self._read_pages()
            denied = withheld(self._tree, boards, pages, self._is_denied)
            left_out = excluded(pages)
            others = not_given(self._tree, boards, pages, self._is_there)
            accelerators = [board for board in boards if board.pci not in (*denied, *left_out)]
        except (OSError, ValueError) as error:
            raise BackendError(FailureKind.ERROR, f"the host cannot be listed: {error}") from error
        if not self._sockets:
            raise BackendError(FailureKind.NO_DEVICES, f"no processor in {self._tree.path('proc/cpuinfo')}")
        processors = tuple(socket_device(self._tree, socket, NAME) for socket in self._sockets)
        unread = tuple(address for address, page in pages.items() if page is None)
        node = msgspec.structs.replace(
            self._node(), withheld=denied, excluded=left_out, not_given=others, unread_pages=unread
        )
        return (node, self._memory(), *processors, *accelerators)

    def read(self, group: str, device: Device) -> Iterable[Reading]:
        """Return the readings of *group*. An unreadable file becomes an error in its reading; nothing is raised."""
        match device.kind:
            case DeviceKind.NODE:
                return self._read_node(group)
            case DeviceKind.MEMORY:
                return self._read_memory(group)
            case DeviceKind.CPU:
                return self._read_socket(group, device)
        return ()  # the PCI bus gives identity only; the vendor's backend reads the rest

    def events(self) -> Iterator[Event]:
        """Yield nothing: the kernel log reports the events of a host."""
        return iter(())

    def close(self) -> None:
        """Do nothing: no handle is held between readings."""

    def _read_pages(self) -> dict[str, str | None]:
        """Return the driver's pages about GPUs; the last content of a page that cannot be read now.

        The values used from it, the minor number and whether the GPU is excluded, are constant while the driver is
        loaded.
        """
        pages = read_pages(self._tree)
        return {address: self._pages.get(address) if page is None else page for address, page in pages.items()}

    def _node(self) -> Device:
        board = {
            name: self._tree.text_or_none(f"{_BOARD}/{name}")
            for name in ("sys_vendor", "product_name", "product_serial", "bios_version")
        }
        bios = board["bios_version"]
        return Device(
            id=NODE,
            kind=DeviceKind.NODE,
            vendor=board["sys_vendor"] or "unknown",
            model=board["product_name"] or "unknown",
            backend=NAME,
            serial=board["product_serial"],
            firmware=(Firmware("bios", bios),) if bios else (),
            virtual=self._is_guest(f"{board['sys_vendor'] or ''} {board['product_name'] or ''}"),
            offline=are_offline(self._tree, self._sockets),
        )

    def _is_guest(self, board: str) -> bool:
        """Return whether this is a virtual machine, by its processor flags (x86) or the name of its *board*."""
        flags = re.search(r"^flags\s*:(.*)$", self._tree.text_or_none("proc/cpuinfo") or "", re.MULTILINE)
        if flags is not None and "hypervisor" in flags[1].split():
            return True
        hypervisor = self._tree.text_or_none("sys/hypervisor/type") is not None
        return hypervisor or (GUEST_BOARD.search(board) is not None and METAL_BOARD.search(board) is None)

    def _memory(self) -> Device:
        try:
            total = total_bytes(self._tree)
        except (OSError, ValueError):
            total = None  # read again, and reported, with the fast group
        name = self._tree.text_or_none(f"{_CONTROLLERS}/mc0/mc_name")
        return Device(
            id=MEMORY,
            kind=DeviceKind.MEMORY,
            vendor="unknown",
            model=name or "main memory",
            backend=NAME,
            memory_bytes=total,
        )

    def _read_node(self, group: str) -> Iterator[Reading]:
        if group == FAST:
            yield self._first_number("load_average_ratio", "proc/loadavg", self._online())
            yield self._memory_reading("memory_total_bytes", total_bytes)
            yield self._memory_reading("memory_available_bytes", available_bytes)
            return
        yield self._first_number("uptime_seconds", "proc/uptime", 1)
        yield Reading("logical_processors", self._online())
        yield Reading("physical_cores", sum(len(socket.first_threads) for socket in self._sockets))

    def _read_memory(self, group: str) -> Iterator[Reading]:
        if group == FAST:
            yield self._memory_reading("memory_total_bytes", total_bytes)
            return
        controllers = self._tree.names(_CONTROLLERS, r"mc\d+")
        for name in controllers:
            part = Part(PartKind.MEMORY_BLOCK, "controller", int(name.removeprefix("mc")))
            yield number_reading(self._tree, "ecc_corrected_errors", f"{_CONTROLLERS}/{name}/ce_count", part=part)
            yield from self._uncorrected(name, part)
        if not controllers:
            part = Part(PartKind.MEMORY_BLOCK, "controller")
            for quantity in ("ecc_corrected_errors", "ecc_uncorrected_errors"):
                detail = f"no memory controller in /{_CONTROLLERS}: no EDAC driver is loaded"
                yield Reading(quantity, None, part, ReadingStatus.UNSUPPORTED, detail)

    def _uncorrected(self, name: str, controller: Part) -> Iterator[Reading]:
        """Yield the uncorrected errors of each memory module, then those of no known module.

        Where the firmware reports errors (ghes_edac), one controller covers all memory of the machine. Where the kernel
        knows the channel of an error but not the slot, only the controller's sum may count it: the excess of the sum
        over its modules is of no known one. The sum is read first: an error meanwhile is then not counted twice.
        """
        quantity = "ecc_uncorrected_errors"
        place = f"{_CONTROLLERS}/{name}"
        modules = self._tree.names(place, r"(?:dimm|rank)\d+")
        counted = [module for module in modules if self._tree.exists(f"{place}/{module}/dimm_ue_count")]
        rest = f"{place}/ue_noinfo_count"
        if not counted or not self._tree.exists(rest):
            yield number_reading(self._tree, quantity, f"{place}/ue_count", part=controller)
            return
        every = number_reading(self._tree, quantity, f"{place}/ue_count", part=controller)
        known = 0.0
        for module in counted:
            label = self._tree.text_or_none(f"{place}/{module}/dimm_label") or ""
            words = one_line(label)
            unit = of_memory(f"{name} {module} {words}".strip())
            reading = number_reading(self._tree, quantity, f"{place}/{module}/dimm_ue_count", part=unit)
            known += _number(reading)
            yield reading
        unknown = number_reading(self._tree, quantity, rest, part=controller)
        beyond = max(_number(unknown), _number(every) - known)
        yield unknown if unknown.value is None else msgspec.structs.replace(unknown, value=int(beyond))

    def _read_socket(self, group: str, device: Device) -> Iterator[Reading]:
        socket = next((entry for entry in self._sockets if f"cpu-{entry.index}" == device.id), None)
        if socket is None:
            raise BackendError(FailureKind.ERROR, f"{device.id} has no processor online any more")
        if group == FAST:
            yield from heat_readings(self._tree, self._sensors[socket.index])
            yield from clock_readings(self._tree, socket)
            yield from throttle_readings(self._tree, socket)
            return
        yield Reading("logical_processors", len(socket.processors))
        yield Reading("physical_cores", len(socket.first_threads))

    def _online(self) -> int:
        return sum(len(socket.processors) for socket in self._sockets)

    def _first_number(self, quantity: str, relative: str, divisor: float) -> Reading:
        """Return the first word of a file as a number divided by *divisor*."""
        try:
            value = float(self._tree.text(relative).split(maxsplit=1)[0]) / divisor
        except (OSError, ValueError) as error:
            return _unread(quantity, error, relative)
        except IndexError:
            return Reading(quantity, None, status=ReadingStatus.ERROR, detail=f"/{relative} is empty")
        return Reading(quantity, value)

    def _memory_reading(self, quantity: str, read: Callable[[Tree], int]) -> Reading:
        try:
            return Reading(quantity, read(self._tree))
        except (OSError, ValueError) as error:
            return _unread(quantity, error, MEMINFO)


def open_backend(context: Context) -> HostBackend:
    """Return the backend that reads the host under the root of *context*."""
    look_below(context.root)
    return HostBackend(Tree(context.root, context.progress))


def _number(reading: Reading) -> float:
    """Return the number of *reading*; 0 where it has none: *reading* itself reports the reason."""
    return reading.value if isinstance(reading.value, int | float) else 0.0


def _unread(quantity: str, error: OSError | ValueError, relative: str) -> Reading:
    """Return a reading of a file that every Linux has: its absence is an error, not a missing feature."""
    status = status_of(error)
    if status is ReadingStatus.UNSUPPORTED:
        status = ReadingStatus.ERROR
    detail = explain(error, relative) if isinstance(error, OSError) else f"/{relative} holds nonsense: {error}"
    return Reading(quantity, None, status=status, detail=detail)
