"""The parts of a device: the sensor, link, memory or throttle reason that a reading or finding is about."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

import msgspec

from .errors import ModelError
from .tables import read_table


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


class _Names(msgspec.Struct, frozen=True):
    """A row of ``parts.csv``: what parts of a kind may be called."""

    kind: PartKind
    names: tuple[str, ...]


PART_NAMES: dict[PartKind, frozenset[str]] = dict.fromkeys(PartKind, frozenset({""})) | {
    row.kind: frozenset(row.names) for row in read_table(Path(__file__).with_name("parts.csv"), _Names)
}
"""The closed set of names per kind. ``vendor:xyz`` is open, and so is any PCI Express address."""

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?")


UNIT_FIELDS = ("unit", "dimm", "interface")
"""Fields of an event that name its unit without an address: a numbered device, a processor, a memory module."""


class Part(msgspec.Struct, frozen=True, order=True):
    """A part of a device, such as ``link 17`` or ``sensor memory 2``."""

    kind: PartKind = PartKind.DEVICE
    name: str = ""
    index: int | None = None

    def __post_init__(self) -> None:
        """Refuse names outside the closed set of the part's kind."""
        if self.name in PART_NAMES[self.kind] or self.name.startswith("vendor:"):
            return
        if self.kind is not PartKind.PCIE or not _ADDRESS.fullmatch(self.name):
            raise ModelError(f"part {self.kind.value} has no name {self.name!r}: use one of PART_NAMES or vendor:NAME")

    def __str__(self) -> str:
        """Return the text for display and labels: ``link 17``, ``sensor memory 2``."""
        return _text(self)


@lru_cache(maxsize=1024)
def _text(part: Part) -> str:
    # Each round asks for the texts of some hundred ports.
    name = f" {part.name}" if part.name else ""
    index = "" if part.index is None else f" {part.index}"
    return f"{part.kind.value}{name}{index}"


WHOLE = Part()
"""The device itself."""

OFF_CHIP = frozenset({"dram", "controller"})
"""Memory beside the processor, such as HBM. All other blocks are on the chip: their failure modes and rates differ."""


def are_alike(one: Part, other: Part) -> bool:
    """Return whether a result for one part holds for the other: of memories only if both or neither are on the chip."""
    if PartKind.MEMORY_BLOCK not in (one.kind, other.kind):
        return True
    return one.kind is other.kind and (one.name in OFF_CHIP) is (other.name in OFF_CHIP)


def at_address(name: str) -> Part:
    """Return the part of a node for a device that no reader lists, by its PCI address or its driver's name for it."""
    return Part(PartKind.PCIE, name if _ADDRESS.fullmatch(name) else f"vendor:{name}")


def of_memory(name: str) -> Part:
    """Return the part of a node for a processor or memory module, by the kernel's name for it."""
    return Part(PartKind.MEMORY_BLOCK, f"vendor:{name}")


def of_reader(backend: str) -> Part:
    """Return the part of a node for the reader of *backend*."""
    return Part(PartKind.DEVICE, f"vendor:{backend}")


def reader_of(part: Part) -> str:
    """Return the backend of the reader that *part* names."""
    return part.name.removeprefix("vendor:")


def unit_of(fields: Mapping[str, str]) -> str:
    """Return the kernel's name for the unit of an event with *fields*, or "" where there is none."""
    return next((fields[name] for name in UNIT_FIELDS if fields.get(name)), "")
