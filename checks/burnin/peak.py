"""Theoretical peaks of a device: at the clock of its specification, and at the highest clock that it reports.

Both are units x operations per clock and unit x a clock. The published peak is the one at the clock of the
specification, which lies below the highest clock of most parts: 989 and 1070 TFLOPS in bf16 for an H100. Where the
clock of the specification is unknown, the published figure itself is the first peak. The third peak, at the clock held
in a run, needs readings of that run (held_clock.py).

A name alone misleads: parts of one name differ in their units, and some parts of one architecture have reduced
matrix units. So the PCI id is looked up first; a part or format that the table marks as reduced has the published
figure or none. A share of a part (MIG, a partition) has the peak of its own units or none. Otherwise unknown.

A processor has no peak here: its width per clock is known, but neither the clock of all cores under wide
vectors nor, in a virtual machine, any clock can be read. None is better than a figure 30 % off.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from nodevet.checks.reference.tables import load_table


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The device's own properties. ``architecture`` is ``sm90``, ``gfx942`` or a family; PCI ids are ``10de:2330``."""

    vendor: str
    name: str
    architecture: str | None = None
    pci_device_id: str | None = None
    compute_units: int | None = None
    maximum_clock_hertz: float | None = None


class Peaks(msgspec.Struct, frozen=True, kw_only=True):
    """The peaks of one number format in operations per second; None where unknown.

    ``source`` of the specification's peak is ``specification clock`` (units x that clock) or ``published``.
    ``operations_per_clock`` is that of the whole device. ``confidence`` is that of the table's row.
    """

    specification: float | None = None
    highest: float | None = None
    specification_clock_hertz: float | None = None
    operations_per_clock: float | None = None
    source: str | None = None
    confidence: str | None = None

    def at(self, clock_hertz: float) -> float | None:
        """Return the peak at a clock, None where the operations per clock are unknown."""
        return None if self.operations_per_clock is None else self.operations_per_clock * clock_hertz


class Accelerator(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``accelerators.csv``: a part with its vendor's figures; dense rates in 1e12 operations per second.

    ``derive`` says whether units x clock gives its real rates, except of the ``reduced_formats``. Its figures are of
    one device as the driver lists them, of which a board may have several (``devices_per_board``); power is of the
    board. The fp32 and fp64 figures of some parts are at the ``vector_clock``, the others at the
    ``specification_clock``. Links count per direction. ``confidence`` is ``published`` for figures of the vendor's own
    tables, found by ``source``, and ``recalled`` for those that nobody compared with one. An empty cell is unknown.
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    architecture: str
    pci_device_ids: tuple[str, ...]
    derive: bool
    reduced_formats: tuple[str, ...] = ()
    devices_per_board: int = 1
    compute_units: int | None = None
    specification_clock_megahertz: float | None = None
    vector_clock_megahertz: float | None = None
    maximum_clock_megahertz: float | None = None
    fp64_tflops: float | None = None
    fp32_tflops: float | None = None
    tf32_tflops: float | None = None
    fp16_tflops: float | None = None
    bf16_tflops: float | None = None
    fp8_tflops: float | None = None
    int8_tops: float | None = None
    fp4_tflops: float | None = None
    memory_gigabytes: float | None = None
    memory_type: str = ""
    memory_terabytes_per_second: float | None = None
    power_watts: float | None = None
    link_type: str = ""
    link_count: int | None = None
    link_gigabytes_per_second: float | None = None
    confidence: Literal["published", "recalled"] = "recalled"
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
    fp4: int | None = None
    cache_mebibytes: int | None = None
    evidence: str = ""
    source: str = ""


FORMATS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")
"""Number formats with a peak, as the columns of the tables name them."""

_VECTOR_FORMATS = ("fp64", "fp32")


def peaks_of(facts: DeviceFacts, data_type: str) -> Peaks:
    """Return the peaks of *data_type* (``bf16``, ``fp8_e4m3`` ...) on the device; each is None where unknown."""
    column = "fp8" if data_type.startswith("fp8") else data_type
    part = find_accelerator(facts)
    is_reduced = part is not None and (not part.derive or column in part.reduced_formats)
    per_unit = None if is_reduced else _operations_per_clock(facts, part, column)
    per_clock = float(per_unit * facts.compute_units) if per_unit and facts.compute_units else None
    clock, published = _clock_of(part, column), _published(part, facts, column)
    specification, source = published, None if published is None else "published"
    if per_clock is not None and clock is not None:
        specification, source = per_clock * clock, "specification clock"
    elif published is not None and clock is not None:
        per_clock = published / clock
    highest = facts.maximum_clock_hertz
    return Peaks(
        specification=specification,
        highest=None if per_clock is None or highest is None else per_clock * highest,
        specification_clock_hertz=clock,
        operations_per_clock=per_clock,
        source=source,
        confidence=part.confidence if part is not None and specification is not None else None,
    )


def _clock_of(part: Accelerator | None, column: str) -> float | None:
    """Return the clock in hertz to which the published figure of *column* refers."""
    if part is None:
        return None
    of_vectors = part.vector_clock_megahertz if column in _VECTOR_FORMATS else None
    megahertz = of_vectors or part.specification_clock_megahertz
    return None if megahertz is None else megahertz * 1e6


def _published(part: Accelerator | None, facts: DeviceFacts, column: str) -> float | None:
    """Return the published figure; None for a share of a part, which has the name of the whole."""
    if part is None or "MIG" in facts.name:
        return None
    if part.compute_units and facts.compute_units and part.compute_units != facts.compute_units:
        return None
    tera: float | None = getattr(part, "int8_tops" if column == "int8" else f"{column}_tflops", None)
    return None if tera is None else tera * 1e12


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


def _operations_per_clock(facts: DeviceFacts, part: Accelerator | None, column: str) -> int | None:
    """Return the operations per clock of one unit; a library may name a family alone, and the row of the part more."""
    row = _find_architecture(facts.architecture)
    if row is None and part is not None:
        row = _find_architecture(part.architecture)
    value: int | None = getattr(row, column, None)
    return value


def _find_architecture(architecture: str | None) -> Architecture | None:
    table: tuple[Architecture, ...] = load_table("arch_flops.csv", Architecture)
    return next((row for row in table if row.architecture == architecture), None)
