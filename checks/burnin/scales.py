"""The powers of two on operands and results, and the bits of an exact result.

They are built from their bits: a device's power function may be an ulp off, and then the operands are no integers.
"""

from __future__ import annotations

from .families import DataType
from .hashing import hash_32_tensor
from .library import Tensor, torch
from .recipe import Recipe
from .sums import bit_view


def inner_powers(recipe: Recipe, device: torch.device) -> Tensor:
    """Return 2**(sign * g + shift) for each k as float64: (K,)."""
    indices = torch.arange(recipe.inner, dtype=torch.int64, device=device)
    span = recipe.exponent_span
    exponents = _hashed(indices, recipe.exponent_key, (-span, span))
    return powers_of_two(exponents.mul_(recipe.exponent_sign).add_(recipe.exponent_shift))


def line_powers(recipe: Recipe, device: torch.device) -> Tensor:
    """Return 2**r for each row of A, or 2**c for each column of B, as float64: (lines,)."""
    return powers_of_two(_line_exponents(recipe, torch.arange(recipe.lines, dtype=torch.int64, device=device)))


def unit_exponents(a: Recipe, b: Recipe, data_type: DataType, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the exponent of the unit of the result at each of *rows* x *columns* (int64 indices)."""
    shared = data_type.a_exponent + data_type.output_exponent
    return (_line_exponents(a, rows) + shared).unsqueeze(1) + _line_exponents(b, columns).unsqueeze(0)


def powers_of_two(exponents: Tensor) -> Tensor:
    """Return 2**exponents as float64 for int64 *exponents* in -1022 .. 1023."""
    return ((exponents + 1023) << 52).view(torch.float64)


def result_bits(
    integers: Tensor, a: Recipe, b: Recipe, data_type: DataType, cells: tuple[Tensor, Tensor], output: torch.dtype
) -> Tensor:
    """Return the bits of a result in *output* whose exact sums at rows x columns of *cells* are *integers* (int64).

    An output narrower than the format's wide type is rounded to nearest even. The bits are integers of its size.
    """
    wide: torch.dtype = getattr(torch, data_type.wide)
    if wide is torch.int32:
        return bit_view(integers.to(output).contiguous())
    powers = powers_of_two(unit_exponents(a, b, data_type, *cells))
    exact = (integers.to(torch.float64) * data_type.output_factor(a.inner)).mul_(powers)
    return bit_view(exact.to(wide).to(output).contiguous())


def _line_exponents(recipe: Recipe, lines: Tensor) -> Tensor:
    return _hashed(lines.clone(), recipe.line_key, recipe.line_exponents)


def _hashed(indices: Tensor, key: int, bounds: tuple[int, int]) -> Tensor:
    """Replace *indices* in place by integers within *bounds*, both ends included, and return them."""
    low, high = bounds
    return (hash_32_tensor(indices.bitwise_xor_(key)) >> 8).remainder_(high - low + 1).add_(low)
