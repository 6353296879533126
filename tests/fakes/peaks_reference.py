"""The page of the peak rates by part, from the table of accelerators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from nodevet.checks.burnin.peak import FORMATS, Accelerator
from nodevet.checks.reference.tables import load_table

HEAD = """# Peak rates

<!-- Written by make golden from checks/reference/accelerators.csv. Edit that, not this page. -->

`nodevet devices --peaks` prints the peaks of the devices of a node, and `--mfu FLOPS,SECONDS` the share of each peak
that a step of a job reached (MFU, model FLOPS utilization). FLOPS are the operations of one device in this step. The
burn-in compares its rate with the same peaks; [verified load](../explanation/verified-load.md#figures) defines its
figures.

| Peak | At | Known if |
|---|---|---|
| specification | the clock of the vendor's specification, otherwise the vendor's figure | the table lists the part |
| highest | the highest clock that the device reports | the operations per clock are known |
| held | the clock held in a burn-in | the clock was read at least three times |

A peak at a clock is units x operations per clock and unit x this clock, with the units that the device itself reports.

All rates are dense. A vendor's figure for sparse operands is twice as high. Most vendors state the matrix formats at a
lower clock than the highest one: 989 TFLOPS in bf16 for an H100 are at 1830 MHz, although it may run at 1980 MHz.

*Confidence* is `published` if the figures are from a table of the vendor that the source names. It is `recalled` if
nobody has compared them with such a table. The figures are those of one device as the driver lists it. A board of
MI250X or MI250 has two devices, a board of A16 four. A part without figures has reduced units, and its rates are not
known; a format without a figure is not supported or not published.

## Rates

TFLOPS by number format; for int8, 1e12 operations per second. Clocks in MHz; a second one is that of fp64 and fp32.
"""

SECOND = """
## Memory, power and links

Bandwidth of a link in one direction. The power is that of the board.
"""

THIRD = """
## Sources
"""


def peaks_page(_repository: Path) -> str:
    """Each part with its rates, its memory and its source."""
    rows = load_table("accelerators.csv", Accelerator)
    lines = [HEAD.rstrip(), ""]
    lines += _table(("Part", "Units", "Clock", *FORMATS, "Confidence"), map(_rates, rows))
    lines += [SECOND.rstrip(), ""]
    lines += _table(("Part", "GB", "Type", "TB/s", "W", "Links", "GB/s per link"), map(_others, rows))
    lines += [THIRD.rstrip(), ""]
    lines += _table(("Part", "Source"), ((row.name, row.source) for row in rows))
    return "\n".join(lines) + "\n"


def _rates(row: Accelerator) -> tuple[str, ...]:
    clocks = (row.specification_clock_megahertz, row.vector_clock_megahertz)
    figures = (getattr(row, "int8_tops" if name == "int8" else f"{name}_tflops") for name in FORMATS)
    clock = ", ".join(_number(each) for each in clocks if each is not None)
    return (row.name, _number(row.compute_units), clock, *map(_number, figures), row.confidence)


def _others(row: Accelerator) -> tuple[str, ...]:
    links = f"{_number(row.link_count)} {row.link_type}".strip()
    return (
        row.name,
        _number(row.memory_gigabytes),
        row.memory_type,
        _number(row.memory_terabytes_per_second),
        _number(row.power_watts),
        "none" if row.link_count == 0 else links,
        _number(row.link_gigabytes_per_second),
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
