"""The multiplication for one kind of device and one number format.

The result needs a format that holds the exact sum: a narrow one hides half of all wrong bits. Where the
library has no such product (bf16 on a CPU, older torch) the narrow result is checked against the exact one rounded
to nearest even, which every correct device returns.
"""

from __future__ import annotations

from functools import partial

import msgspec

from .call_table import OperandLayout, TorchCall
from .calls import Chosen, Library, Multiply, choose_call
from .families import DataType, data_types
from .library import Tensor, torch
from .units import require_units

__all__ = ["Multiplication", "Multiply", "choose_multiplication"]


class Multiplication(msgspec.Struct, frozen=True, kw_only=True):
    """One way to multiply: ``run`` is measured and checked; ``exact`` writes the exact sum.

    ``narrow``: ``run`` rounds to ``output``; else ``run`` and ``exact`` are the same.
    """

    data_type: DataType
    element: torch.dtype
    output: torch.dtype
    wide: torch.dtype
    run: Multiply
    exact: Multiply
    chosen: Chosen
    narrow: bool = False
    transpose_b: bool = False


def choose_multiplication(
    name: str, kind: str, architecture: str | None = None, library: Library | None = None
) -> Multiplication:
    """Return the multiplication for the format *name* on *kind* (``cpu``, ``cuda``, ``rocm``).

    The calls of *library* (default: torch) are tried on the device. Raises FormatError with the reason where the
    device lacks the format, and UntoldFormatError where that is unknown or no call works.
    """
    require_units(name, kind, architecture)
    library = library or Library()
    data_type = data_types()[name]
    element: torch.dtype = getattr(torch, data_type.torch_name)
    wide: torch.dtype = getattr(torch, data_type.wide)

    def result_of(row: TorchCall) -> torch.dtype:
        return element if row.narrow else wide

    chosen = choose_call(data_type, kind, result_of, library)
    narrow = chosen.row.narrow
    return Multiplication(
        data_type=data_type,
        element=element,
        output=result_of(chosen.row),
        wide=wide,
        run=chosen.run,
        exact=partial(_widened_operands, library) if narrow else chosen.run,
        chosen=chosen,
        narrow=narrow,
        transpose_b=chosen.row.layout is OperandLayout.COLUMNS,
    )


def _widened_operands(library: Library, a: Tensor, b: Tensor, out: Tensor) -> None:
    library.mm(a.to(out.dtype), b.to(out.dtype), out)
