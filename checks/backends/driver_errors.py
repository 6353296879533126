"""The error codes of a vendor's library that are evidence against its driver or a device. Pure.

They are listed in reference/driver_errors.csv. An unlisted code proves nothing: a library also fails if the machine
refuses it memory, another user holds a device or this program passes invalid arguments, and later releases have unknown
codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache

import msgspec

from nodevet.checks.core.model import FailureKind
from nodevet.checks.reference.tables import load_table

from .base import BackendError


class Asked(StrEnum):
    """Calls in which a code is evidence: any call, calls for one device, or only the call that opens a device."""

    ANY = "any"
    DEVICE = "device"
    OPEN = "open"


COUNTING = {
    Asked.ANY: (Asked.ANY,),
    Asked.DEVICE: (Asked.ANY, Asked.DEVICE),
    Asked.OPEN: (Asked.ANY, Asked.DEVICE, Asked.OPEN),
}
"""The rows that count in a call: those of a wider set of calls count in a narrower one too."""


class ErrorRow(msgspec.Struct, frozen=True):
    """A row of reference/driver_errors.csv."""

    library: str
    code: int
    name: str
    kind: FailureKind
    asked: Asked
    meaning: str
    source: str


@lru_cache(maxsize=4)
def _rows(library: str) -> Mapping[int, ErrorRow]:
    return {row.code: row for row in load_table("driver_errors.csv", ErrorRow) if row.library == library}


class CodeName(msgspec.Struct, frozen=True):
    """A row of reference/code_names.csv; codes below zero are our own."""

    library: str
    code: int
    name: str


@lru_cache(maxsize=4)
def code_names(library: str) -> Mapping[int, str]:
    """Return the meaning of each code of *library*."""
    return {row.code: row.name for row in load_table("code_names.csv", CodeName) if row.library == library}


def evidence(library: str, code: int, asked: Asked) -> ErrorRow | None:
    """Return the evidence of *code* of *library* in a call of kind *asked*; None if it is no evidence."""
    row = _rows(library).get(code)
    return row if row is not None and row.asked in COUNTING[asked] else None


def of_kind(library: str, *kinds: FailureKind, asked: Asked | None = None) -> frozenset[int]:
    """Return the codes of *library* that are evidence for one of *kinds*, only those of calls *asked* if given."""
    return frozenset(
        code for code, row in _rows(library).items() if row.kind in kinds and (asked is None or row.asked is asked)
    )


def failed(library: str, code: int, text: str, *, asked: Asked, denied: frozenset[int]) -> BackendError:
    """Return the failure of a call that returned *code* with message *text*; *denied* are codes of missing permissions.

    An unlisted code has an unknown meaning: it is an error that blames nobody.
    """
    row = evidence(library, code, asked)
    if row is not None:
        return BackendError(row.kind, text, of_driver=True)
    return BackendError(FailureKind.DENIED if code in denied else FailureKind.ERROR, text)
