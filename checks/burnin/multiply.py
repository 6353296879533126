"""The multiplication for one kind of device and one number format.

The result needs a format that holds the exact sum: a narrow one hides half of all wrong bits. Where the
library has no such product (bf16 on a CPU, older torch) the narrow result is checked against the exact one rounded
to nearest even, which every correct device returns.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable

import msgspec

from nodevet.checks.reference.tables import load_table

from .errors import FormatError, UntoldFormatError
from .families import DataType, data_types
from .library import Tensor, torch

Multiply = Callable[[Tensor, Tensor, Tensor], None]
"""Computes A (M, K) times B (K, N) into the third tensor (M, N)."""


_LEAST_COMPUTE_CAPABILITY = {"bf16": 80, "tf32": 80, "fp8_e4m3": 89, "int8": 75}
_FNUZ = ("gfx940", "gfx941", "gfx942")


class AmdFormat(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``amd_formats.csv``: whether architectures (a pattern) have a number format that not all have."""

    format: str
    architecture: str
    has: bool
    evidence: str
    source: str


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
    narrow: bool = False
    transpose_b: bool = False


def choose_multiplication(name: str, kind: str, architecture: str | None = None) -> Multiplication:
    """Return the multiplication for the format *name* on *kind* (``cpu``, ``cuda``, ``rocm``).

    Raises FormatError with the reason where the device lacks the format, and UntoldFormatError where that is unknown.
    """
    data_type = data_types().get(name)
    if data_type is None:
        raise FormatError(f"dtype {name!r} is unknown; choose one of {', '.join(data_types())}")
    reason = _refusal(name, kind, architecture)
    if reason:
        raise FormatError(f"{name} on {kind}: {reason}")
    element = element_type(name, architecture)
    wide: torch.dtype = getattr(torch, data_type.wide)
    if name == "int8":
        return _same(data_type, element, wide, _int8)
    if name == "fp8_e4m3":
        run = functools.partial(_fp8, data_type)
        return msgspec.structs.replace(_same(data_type, element, wide, run), transpose_b=True)
    if element is wide:
        return _same(data_type, element, wide, _plain)
    if kind != "cpu" and hasattr(torch.ops.aten.mm, "dtype_out"):
        return _same(data_type, element, wide, _widening)
    return Multiplication(
        data_type=data_type,
        element=element,
        output=element,
        wide=wide,
        run=_plain,
        exact=_widened_operands,
        narrow=True,
    )


def element_type(name: str, architecture: str | None = None) -> torch.dtype:
    """Return the torch type of the operands of *name*; gfx940 to gfx942 have their own fp8."""
    if name == "fp8_e4m3" and architecture in _FNUZ:
        return torch.float8_e4m3fnuz
    element: torch.dtype = getattr(torch, data_types()[name].torch_name)
    return element


def _refusal(name: str, kind: str, architecture: str | None) -> str | None:
    if kind == "cpu":
        return {
            "fp16": "processors convert it element by element, hundreds of times slower; use bf16 or fp32",
            "tf32": "processors have no such format; use fp32",
            "fp8_e4m3": "processors have no such product; use int8 or bf16",
        }.get(name)
    if name == "tf32" and kind == "rocm":
        return "the library decides by itself whether to use it; use fp32 or bf16"
    has_units = _has_units(name, architecture or "")
    if has_units is None:
        raise UntoldFormatError(
            f"{name} on {kind}: nothing tells whether architecture {architecture or 'unknown'} has such units; "
            "name the formats that it has with --dtype"
        )
    return None if has_units else f"architecture {architecture} has no such units"


def _has_units(name: str, architecture: str) -> bool | None:
    """Return whether *architecture* has units for *name*, or None where unknown."""
    if architecture.startswith("sm"):
        return int(architecture[2:]) >= _LEAST_COMPUTE_CAPABILITY.get(name, 0)
    rows = [row for row in load_table("amd_formats.csv", AmdFormat) if row.format == name]
    answers = (row.has for row in rows if fnmatch.fnmatchcase(architecture, row.architecture))
    return next(answers, None) if rows else True


def _same(data_type: DataType, element: torch.dtype, wide: torch.dtype, run: Multiply) -> Multiplication:
    return Multiplication(data_type=data_type, element=element, output=wide, wide=wide, run=run, exact=run)


def _plain(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.mm(a, b, out=out)


def _int8(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.ops.aten._int_mm.out(a, b, out=out)


def _widening(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.ops.aten.mm.dtype_out(a, b, out.dtype, out=out)


def _widened_operands(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.mm(a.to(out.dtype), b.to(out.dtype), out=out)


def _fp8(data_type: DataType, a: Tensor, b: Tensor, out: Tensor) -> None:
    # Fast accumulation keeps sums in the unit's 14 bits for the whole K; without it they are promoted in between.
    scales = _output_scale(data_type, a.shape[1], a.device), _output_scale(None, 0, a.device)
    torch.ops.aten._scaled_mm.out(a, b, *scales, out_dtype=out.dtype, use_fast_accum=False, out=out)


@functools.lru_cache(maxsize=8)
def _output_scale(data_type: DataType | None, k: int, device: torch.device) -> Tensor:
    """Return the factor on a finished sum, 1 without *data_type*, created once: a product must not allocate."""
    factor = 1.0 if data_type is None else data_type.output_factor(k) * 2.0**data_type.output_exponent
    return torch.full((), factor, device=device)
