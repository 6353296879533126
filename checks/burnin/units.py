"""The number formats that an architecture has, and those that are not offered yet: a table. Imports no torch."""

from __future__ import annotations

import fnmatch
from enum import StrEnum

import msgspec

from nodevet.checks.reference.tables import load_table

from .errors import FormatError, UntoldFormatError


class Offered(StrEnum):
    """Whether a load runs a format: ``unproven`` ones are refused until a GPU has shown that their sums are exact."""

    YES = "yes"
    NO = "no"
    UNPROVEN = "unproven"


class FormatUnits(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``format_units.csv``: a format on architectures (a pattern: ``sm90``, ``gfx942``, ``cpu``)."""

    format: str
    architecture: str
    offered: Offered
    why: str
    evidence: str
    source: str


def known_formats() -> tuple[str, ...]:
    """Return the names of all formats of the table, also of those that are offered nowhere."""
    return tuple(dict.fromkeys(row.format for row in load_table("format_units.csv", FormatUnits)))


def require_units(name: str, kind: str, architecture: str | None) -> None:
    """Raise FormatError with the reason where *name* is not run on *architecture*, or UntoldFormatError.

    The first row that matches decides. *kind* is ``cpu``, ``cuda`` or ``rocm``; a processor has no architecture here.
    """
    if name not in known_formats():
        raise FormatError(f"dtype {name!r} is unknown; choose one of {', '.join(known_formats())}")
    asked = "cpu" if kind == "cpu" else architecture or ""
    rows = (row for row in load_table("format_units.csv", FormatUnits) if row.format == name)
    row = next((row for row in rows if fnmatch.fnmatchcase(asked, row.architecture)), None)
    if row is None:
        raise UntoldFormatError(
            f"{name} on {kind}: nothing tells whether architecture {architecture or 'unknown'} has such units; "
            "name the formats that it has with --dtype"
        )
    if row.offered is not Offered.YES:
        where = kind if kind == "cpu" or not architecture else f"{kind}, architecture {architecture}"
        raise FormatError(f"{name} on {where}: {row.why}")
