"""Theoretical peak of a device: units x operations per clock and unit x highest clock, as the device reports them.

A name alone misleads: parts of one name differ in their units, and some parts of one architecture have reduced
matrix units. So the PCI id is looked up first; a part that the table marks as not derivable has the
published figure or none. Without properties, the published figure of the table applies. Otherwise unknown.

A processor has no peak here: its width per clock is known, but neither the clock of all cores under wide
vectors nor, in a virtual machine, any clock can be read. None is better than a figure 30 % off.
"""

from __future__ import annotations

import msgspec

from nodevet.checks.reference.tables import load_table


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The device's own properties. ``architecture`` is ``sm90`` or ``gfx942``; PCI ids are ``10de:2330``."""

    vendor: str
    name: str
    architecture: str | None = None
    pci_device_id: str | None = None
    compute_units: int | None = None
    maximum_clock_hertz: float | None = None


class Peak(msgspec.Struct, frozen=True):
    """A peak rate in operations per second and its source: ``properties`` or ``table``."""

    operations_per_second: float
    source: str


class Accelerator(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``accelerators.csv``: a part with its vendor's figures; dense rates in 1e12 operations per second.

    ``derive`` says whether units x clock gives its real rates. An empty cell is unknown.
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    architecture: str
    pci_device_ids: tuple[str, ...]
    derive: bool
    compute_units: int | None = None
    specification_clock_megahertz: float | None = None
    maximum_clock_megahertz: float | None = None
    fp32_tflops: float | None = None
    tf32_tflops: float | None = None
    fp16_tflops: float | None = None
    bf16_tflops: float | None = None
    fp8_tflops: float | None = None
    int8_tops: float | None = None
    memory_gigabytes: float | None = None
    memory_type: str = ""
    memory_terabytes_per_second: float | None = None
    power_watts: float | None = None
    link_type: str = ""
    link_count: int | None = None
    link_gigabytes_per_second: float | None = None
    evidence: str = ""
    source: str = ""


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``arch_flops.csv``: dense operations per clock and compute unit, by format. Empty is unknown or none.

    ``cache_mebibytes`` is a last-level cache that the driver's L2 figure omits.
    """

    architecture: str
    example: str
    fp64: int | None = None
    fp32: int | None = None
    tf32: int | None = None
    fp16: int | None = None
    bf16: int | None = None
    fp8: int | None = None
    int8: int | None = None
    cache_mebibytes: int | None = None
    evidence: str = ""
    source: str = ""


def theoretical_peak(facts: DeviceFacts, data_type: str) -> Peak | None:
    """Return the peak of *data_type* (``bf16``, ``fp8_e4m3`` ...) on the device, or None where unknown."""
    column = "fp8" if data_type.startswith("fp8") else data_type
    part = find_accelerator(facts)
    if part is None or part.derive:
        per_clock = _operations_per_clock(facts.architecture, column)
        if per_clock and facts.compute_units and facts.maximum_clock_hertz:
            return Peak(facts.compute_units * per_clock * facts.maximum_clock_hertz, "properties")
    # A slice of a device has its parent's name: the published figure of the whole would be wrong for it.
    if part is None or "MIG" in facts.name:
        return None
    published = getattr(part, "int8_tops" if column == "int8" else f"{column}_tflops", None)
    return None if published is None else Peak(published * 1e12, "table")


def find_accelerator(facts: DeviceFacts) -> Accelerator | None:
    """Return the row of the device: by PCI id, else by exact name, else by the longest alias in its name."""
    table: tuple[Accelerator, ...] = load_table("accelerators.csv", Accelerator)
    rows = [row for row in table if row.vendor == facts.vendor]
    for row in rows:
        if facts.pci_device_id is not None and facts.pci_device_id.lower() in row.pci_device_ids:
            return row
    for row in rows:
        if row.name == facts.name:
            return row
    known = f" {facts.name} "
    matches = [(len(alias), index) for index, row in enumerate(rows) for alias in row.aliases if f" {alias} " in known]
    return rows[max(matches)[1]] if matches else None


def table_cache_bytes(architecture: str) -> int | None:
    """Return the last-level cache of *architecture* in bytes where the driver's own figure omits it."""
    row = _find_architecture(architecture)
    return None if row is None or row.cache_mebibytes is None else row.cache_mebibytes << 20


def _operations_per_clock(architecture: str | None, column: str) -> int | None:
    row = _find_architecture(architecture)
    value: int | None = getattr(row, column, None)
    return value


def _find_architecture(architecture: str | None) -> Architecture | None:
    table: tuple[Architecture, ...] = load_table("arch_flops.csv", Architecture)
    return next((row for row in table if row.architecture == architecture), None)
