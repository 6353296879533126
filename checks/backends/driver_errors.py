"""Which error codes of a vendor's library are evidence against its driver or a device, and of what. Pure.

What counts is listed in reference/driver_errors.csv. A code that is not listed proves nothing: a library also fails
where the machine refuses it memory, where another user holds a device, or where this program asks for nonsense, and
a later release has codes that nobody here knows.
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
    """In which calls a code is evidence: in any, only in those about one device, or only in that which opens it."""

    ANY = "any"
    DEVICE = "device"
    OPEN = "open"


COUNTING = {
    Asked.ANY: (Asked.ANY,),
    Asked.DEVICE: (Asked.ANY, Asked.DEVICE),
    Asked.OPEN: (Asked.ANY, Asked.DEVICE, Asked.OPEN),
}
"""Which rows count in a call: each that counts in a wider one does."""


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
    """Return in words what the codes of *library* say."""
    return {row.code: row.name for row in load_table("code_names.csv", CodeName) if row.library == library}


def evidence(library: str, code: int, asked: Asked) -> ErrorRow | None:
    """Return what *code* of *library* is evidence for, in a call that *asked* so; None: for nothing."""
    row = _rows(library).get(code)
    return row if row is not None and row.asked in COUNTING[asked] else None


def of_kind(library: str, *kinds: FailureKind, asked: Asked | None = None) -> frozenset[int]:
    """Return the codes of *library* that are evidence for one of *kinds*, of calls *asked* so if that is given."""
    return frozenset(
        code for code, row in _rows(library).items() if row.kind in kinds and (asked is None or row.asked is asked)
    )


def failed(library: str, code: int, text: str, *, asked: Asked, denied: frozenset[int]) -> BackendError:
    """Return the failure of a call that ended with *code*, told as *text*; *denied* are codes of a lacking permission.

    Of a code that is not listed nobody knows what it means: it is an error that blames nobody.
    """
    row = evidence(library, code, asked)
    if row is not None:
        return BackendError(row.kind, text, of_driver=True)
    return BackendError(FailureKind.DENIED if code in denied else FailureKind.ERROR, text)
