"""The table of the calls of torch that multiply each format. It is read without torch, for the documentation too."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from nodevet.checks.reference.tables import load_table


class OperandLayout(StrEnum):
    """How B lies in memory: by rows, or by columns, so that each sum reads both operands along memory."""

    ROWS = "NN"
    COLUMNS = "TN"


class TorchCall(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``torch_calls.csv``. ``library`` is ``lt`` where torch has no choice of the BLAS library."""

    formats: tuple[str, ...]
    kinds: tuple[str, ...]
    call: str
    layout: OperandLayout
    result: str
    oldest_cuda: str
    oldest_rocm: str
    library: str
    where_it_raises: str
    evidence: str
    source: str

    @property
    def narrow(self) -> bool:
        """Return whether the result is rounded to the format of the operands."""
        return self.result == "narrow"


def calls_of(name: str, kind: str) -> tuple[TorchCall, ...]:
    """Return the calls for the format *name* on *kind*, in the order in which they are tried."""
    rows: Iterable[TorchCall] = load_table("torch_calls.csv", TorchCall)
    return tuple(row for row in rows if name in row.formats and kind in row.kinds)
