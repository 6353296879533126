"""The page of the calls of torch, the formats by architecture and the environment of a load."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from nodevet.checks.burnin.call_table import TorchCall
from nodevet.checks.burnin.environment import Variable
from nodevet.checks.burnin.units import FormatUnits, Offered
from nodevet.checks.reference.tables import load_table

HEAD = """# What a load needs of torch

<!-- Written by make golden from torch_calls.csv, torch_interface.csv, format_units.csv and load_environment.csv in
checks/reference. Edit that, not this page. -->

**No GPU has run this path yet.** The tables follow from the documentation and the source of torch. Tests run each
fallback on a processor, with a stand-in that raises where real releases raise. nodevet supports torch 2.4 and newer;
"2.4" means that release or an older one. ROCm builds have the same names. A source marked "not read" was known, but not
looked up again for this table.

## Products

For each format the calls are tried once, in this order, on a product of 256 x 128 x 512. The first one that works is
loaded. The result names it (`call`, `layout`, `blas`), and why the calls before it did not work (`calls_refused`). An
error of the device is no refusal of a call: it ends the load. If no call works, the format is not verified, and the
load is incomplete. With a narrow result, half of all wrong bits are rounded away; see [verified
load](../explanation/verified-load.md#no-blind-bit). In the layout TN, B lies by columns.
"""

CALLS = ("Formats", "Call", "B", "Result", "CUDA since", "ROCm since", "Where it raises", "Source")
OTHERS = ("Name", "CUDA since", "ROCm since", "Without it", "Source")
UNITS = ("Format", "Architecture", "Loaded", "Why not", "Source")
VARIABLES = ("Variable", "Load has it", "Refused if set all the same", "Why", "Source")


class Name(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``torch_interface.csv``."""

    name: str
    oldest_cuda: str
    oldest_rocm: str
    without_it: str
    evidence: str
    source: str


def torch_page(_repository: Path) -> str:
    """Return the page."""
    products = load_table("torch_calls.csv", TorchCall)
    names = load_table("torch_interface.csv", Name)
    units = load_table("format_units.csv", FormatUnits)
    variables = load_table("load_environment.csv", Variable)
    lines = [
        *HEAD.splitlines(),
        "",
        *_table(CALLS, (_product(row) for row in products)),
        "",
        "## Other calls",
        "",
        *_table(OTHERS, (_name(row) for row in names)),
        "",
        "## Formats by architecture",
        "",
        "The first row that matches decides. If none matches, the format is not verified, and the load is incomplete.",
        "A format that is not loaded is listed in the result, and makes a load incomplete only if it was asked for by",
        "`--dtype`. A format is *unproven* until a GPU has shown that its sums are exact.",
        "",
        *_table(UNITS, (_units(row) for row in units)),
        "",
        "## Environment",
        "",
        "A load starts with the site's environment, without these variables. Its result lists what was removed",
        "(`environment_removed`) and which of them it has all the same (`environment`). Jobs of the site may compute",
        "at another rate or precision, because they have them. The first row that matches decides.",
        "",
        *_table(VARIABLES, (_variable(row) for row in variables)),
    ]
    return "\n".join(lines) + "\n"


def _product(row: TorchCall) -> tuple[str, ...]:
    where = row.where_it_raises or "-"
    processors = " (also on processors)" if "cpu" in row.kinds else ""
    return (
        f"{', '.join(row.formats)}{processors}",
        f"`{row.call}`",
        row.layout,
        row.result,
        row.oldest_cuda,
        row.oldest_rocm,
        where,
        _told(row.evidence, row.source),
    )


def _name(row: Name) -> tuple[str, ...]:
    return f"`{row.name}`", row.oldest_cuda, row.oldest_rocm, row.without_it or "-", _told(row.evidence, row.source)


def _units(row: FormatUnits) -> tuple[str, ...]:
    loaded = {Offered.YES: "yes", Offered.NO: "no", Offered.UNPROVEN: "unproven"}[row.offered]
    return row.format, f"`{row.architecture}`", loaded, row.why or "-", _told(row.evidence, row.source)


def _variable(row: Variable) -> tuple[str, ...]:
    return (
        f"`{row.variable}`",
        "yes" if row.kept else "no",
        "yes" if row.changes_arithmetic else "no",
        row.why,
        _told(row.evidence, row.source),
    )


def _told(evidence: str, source: str) -> str:
    """Return *source*, marked where nobody has read it."""
    return source if evidence != "recalled" else f"{source} (not read)"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [_line(head), _line(("---",) * len(head)), *(_line(row) for row in rows)]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
