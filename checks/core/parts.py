"""The parts of a device: which sensor, link, memory or throttle reason a reading or finding is about."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from .errors import ModelError


class PartKind(StrEnum):
    """What kind of part of a device a reading or finding is about."""

    DEVICE = "device"
    SENSOR = "sensor"
    LINK = "link"
    MEMORY_BLOCK = "memory_block"
    CLOCK = "clock"
    REASON = "reason"
    PCIE = "pcie"
    POWER_SCOPE = "power_scope"
    ENGINE = "engine"

    __hash__ = str.__hash__  # that of an enumeration is Python, and findings are looked up by their part


PART_NAMES: dict[PartKind, frozenset[str]] = {
    PartKind.DEVICE: frozenset({""}),
    PartKind.SENSOR: frozenset({"core", "memory", "hotspot", "edge", "package", "inlet", "other"}),
    PartKind.LINK: frozenset({""}),
    PartKind.MEMORY_BLOCK: frozenset({"dram", "sram", "l1", "l2", "register", "texture", "cbu", "controller"}),
    PartKind.CLOCK: frozenset({"sm", "memory", "graphics", "video", "core"}),
    PartKind.REASON: frozenset(
        {
            "idle",
            "applications_clocks",
            "power_cap",
            "hardware_slowdown",
            "sync_boost",
            "software_thermal",
            "hardware_thermal",
            "power_brake",
            "display_clocks",
            "board_limit",
            "low_utilization",
            "reliability",
            "core",
            "package",
            "processor_hot",
            "socket_thermal",
            "memory_thermal",
            "regulator_thermal",
        }
    ),
    PartKind.PCIE: frozenset({""}),
    PartKind.POWER_SCOPE: frozenset({"device", "module", "memory"}),
    PartKind.ENGINE: frozenset({"compute", "copy", "video", "fabric"}),
}
"""The closed set of names per kind. ``vendor:xyz`` is open, and so is any address of PCI Express."""

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?")


UNIT_FIELDS = ("unit", "dimm", "interface")
"""Fields of an event that name what it is about without an address: a numbered board, a processor, a memory module."""


class Part(msgspec.Struct, frozen=True, order=True):
    """A part of a device, such as ``link 17`` or ``sensor memory 2``."""

    kind: PartKind = PartKind.DEVICE
    name: str = ""
    index: int | None = None

    def __post_init__(self) -> None:
        """Refuse names outside the closed set of the part's kind."""
        is_address = self.kind is PartKind.PCIE and _ADDRESS.fullmatch(self.name)
        if self.name not in PART_NAMES[self.kind] and not is_address and not self.name.startswith("vendor:"):
            raise ModelError(f"part {self.kind.value} has no name {self.name!r}: use one of PART_NAMES or vendor:NAME")

    def __str__(self) -> str:
        """Return the words that people and labels use: ``link 17``, ``sensor memory 2``."""
        name = f" {self.name}" if self.name else ""
        index = "" if self.index is None else f" {self.index}"
        return f"{self.kind.value}{name}{index}"


WHOLE = Part()
"""The device itself."""

OFF_CHIP = frozenset({"dram", "controller"})
"""Memory beside the processor, such as HBM. All other blocks are on its chip: what fails, and how often, is another."""


def are_alike(one: Part, other: Part) -> bool:
    """Return whether what one part tells stands for the other: of memories only if both are on the chip, or neither."""
    if PartKind.MEMORY_BLOCK not in (one.kind, other.kind):
        return True
    return one.kind is other.kind and (one.name in OFF_CHIP) is (other.name in OFF_CHIP)


def at_address(name: str) -> Part:
    """Return the part of a node that is a device which no reader lists, by its address or as its driver calls it."""
    return Part(PartKind.PCIE, name if _ADDRESS.fullmatch(name) else f"vendor:{name}")


def of_memory(name: str) -> Part:
    """Return the part of a node that is a processor or a module of its memory, by what the kernel calls it."""
    return Part(PartKind.MEMORY_BLOCK, f"vendor:{name}")


def of_reader(backend: str) -> Part:
    """Return the part of a node that is the reader of *backend*."""
    return Part(PartKind.DEVICE, f"vendor:{backend}")


def reader_of(part: Part) -> str:
    """Return the backend whose reader *part* is."""
    return part.name.removeprefix("vendor:")


def unit_of(fields: Mapping[str, str]) -> str:
    """Return what the kernel calls the unit that an event with *fields* is about, or "" where it names none."""
    return next((fields[name] for name in UNIT_FIELDS if fields.get(name)), "")
