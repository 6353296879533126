"""Operand matrices: integers from the hash, scaled by powers of two (``scales.py``), cast without loss.

A has ``rows`` = M + extra rows, so that a row offset gives the same compute unit other numbers each time; B is
(K, N). Any entry can be recomputed from its index, so a suspect cell is checked without a stored copy.
"""

from __future__ import annotations

import msgspec

from .errors import NotExactError
from .families import DataType, Family, operand_families
from .hashing import make_key
from .library import Tensor, torch
from .recipe import Recipe, make_integers
from .scales import inner_powers, line_powers
from .sums import column_sums, row_sums

_HOST_CHUNK = 1 << 15  # elements that stay in a core's cache, below what torch splits over threads
_DEVICE_CHUNK = 1 << 24


class Digest(msgspec.Struct, frozen=True):
    """Row and column sums of an operand's bits, on its device: ``rows`` (rows,), ``columns`` (words,)."""

    rows: Tensor
    columns: Tensor

    def number(self) -> int:
        """Return one 64-bit number for both."""
        weights = torch.arange(1, 2 * self.rows.numel(), 2, dtype=torch.int64)
        total = int((self.rows.cpu() * weights).sum())
        return (total ^ (int(self.columns.cpu().sum()) << 1)) & 0xFFFFFFFFFFFFFFFF


class Operand(msgspec.Struct, frozen=True):
    """A matrix on the device: ``matrix`` is the operand, ``stored`` its contiguous memory."""

    recipe: Recipe
    matrix: Tensor
    stored: Tensor
    digest: Digest


class OperandSet(msgspec.Struct, frozen=True):
    """One pair of operands: A (M + extra, K) and B (K, N) with their family."""

    index: int
    family: Family
    a: Operand
    b: Operand


def make_sets(
    data_type: DataType, m: int, n: int, k: int, extra_rows: int, seed: int, *, narrow: bool = False
) -> list[tuple[Family, Recipe, Recipe]]:
    """Return family and recipes of A and B for each operand set; *narrow*: the result has the format itself.

    Raises NotExactError.
    """
    scales = data_type.scales_of(narrow=narrow)
    recipes = []
    for index, family in enumerate(operand_families(data_type, k, narrow=narrow)):
        exponent_key = make_key(seed, index, 2)
        anchored = make_key(seed, index, 3) % k
        a = Recipe(
            key=make_key(seed, index, 0),
            rows=m + extra_rows,
            columns=k,
            low=family.a_low,
            high=family.a_high,
            exponent_key=exponent_key,
            exponent_span=data_type.exponent_span,
            inner_axis=1,
            exponent_sign=1,
            exponent_shift=data_type.a_exponent,
            line_key=make_key(seed, index, 4),
            line_exponents=(scales.row_low, scales.row_high),
            anchor=(anchored, family.anchor[0]),
            selects=family.selector == "a",
        )
        b = Recipe(
            key=make_key(seed, index, 1),
            rows=k,
            columns=n,
            low=family.b_low,
            high=family.b_high,
            exponent_key=exponent_key,
            exponent_span=data_type.exponent_span,
            inner_axis=0,
            exponent_sign=-1,
            line_key=make_key(seed, index, 5),
            line_exponents=(scales.column_low, scales.column_high),
            anchor=(anchored, family.anchor[1]),
            selects=family.selector == "b",
        )
        recipes.append((family, a, b))
    return recipes


def build_sets(
    recipes: list[tuple[Family, Recipe, Recipe]],
    element: torch.dtype,
    device: torch.device,
    *,
    transpose_b: bool = False,
) -> list[OperandSet]:
    """Make the operands on *device* as *element*; B is stored transposed where the multiplication needs it."""
    return [
        OperandSet(index, family, _build(a, element, device, False), _build(b, element, device, transpose_b))
        for index, (family, a, b) in enumerate(recipes)
    ]


def digest(stored: Tensor) -> Digest:
    """Return the digest of the contiguous matrix *stored*."""
    return Digest(row_sums(stored), column_sums(stored))


def _build(recipe: Recipe, element: torch.dtype, device: torch.device, transpose: bool) -> Operand:
    matrix = torch.empty(recipe.rows, recipe.columns, dtype=element, device=device)
    inner, lines = inner_powers(recipe, device), line_powers(recipe, device)
    of_rows, of_columns = (lines, inner) if recipe.inner_axis == 1 else (inner, lines)
    columns = torch.arange(recipe.columns, dtype=torch.int64, device=device)
    chunk = max(1, (_HOST_CHUNK if device.type == "cpu" else _DEVICE_CHUNK) // recipe.columns)
    for start in range(0, recipe.rows, chunk):
        stop = min(start + chunk, recipe.rows)
        rows = torch.arange(start, stop, dtype=torch.int64, device=device)
        exact = make_integers(recipe, rows, columns).to(torch.float64)
        exact.mul_(of_rows[start:stop].unsqueeze(1)).mul_(of_columns.unsqueeze(0))
        matrix[start:stop] = exact.to(element)
        if not torch.equal(matrix[start:stop].to(torch.float64), exact):
            raise NotExactError(f"the cast to {element} loses bits of {recipe.low}..{recipe.high}")
    stored = matrix.t().contiguous() if transpose else matrix
    return Operand(recipe, stored.t() if transpose else matrix, stored, digest(stored))
