"""Operand matrices: integers from the hash, scaled by powers of two, cast without loss.

A has ``rows`` = M + extra rows, so that a row offset gives the same compute unit other numbers each time; B is
(K, N). Any entry can be recomputed from its index, so a suspect cell is checked without a stored copy.
"""

from __future__ import annotations

import msgspec

from .errors import NotExactError
from .families import DataType, Family, operand_families
from .hashing import hash_32_tensor, make_key
from .library import Tensor, torch
from .sums import column_sums, row_sums

_HOST_CHUNK = 1 << 15  # elements that stay in a core's cache, below what torch splits over threads
_DEVICE_CHUNK = 1 << 24


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of an integer matrix (rows, columns) and its scale.

    ``exponent_axis`` is the axis along which the K index runs; ``exponent_sign`` is 1 for A and -1 for B.
    """

    key: int
    rows: int
    columns: int
    low: int
    high: int
    exponent_key: int
    exponent_span: int
    exponent_axis: int
    exponent_sign: int
    exponent_shift: int = 0


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
    data_type: DataType, m: int, n: int, k: int, extra_rows: int, seed: int
) -> list[tuple[Family, Recipe, Recipe]]:
    """Return family and recipes of A and B for the three operand sets. Raises NotExactError."""
    recipes = []
    for index, family in enumerate(operand_families(data_type, k)):
        exponent_key = make_key(seed, index, 2)
        a = Recipe(
            key=make_key(seed, index, 0),
            rows=m + extra_rows,
            columns=k,
            low=family.a_low,
            high=family.a_high,
            exponent_key=exponent_key,
            exponent_span=data_type.exponent_span,
            exponent_axis=1,
            exponent_sign=1,
            exponent_shift=data_type.a_exponent,
        )
        b = Recipe(
            key=make_key(seed, index, 1),
            rows=k,
            columns=n,
            low=family.b_low,
            high=family.b_high,
            exponent_key=exponent_key,
            exponent_span=data_type.exponent_span,
            exponent_axis=0,
            exponent_sign=-1,
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


def make_integers(recipe: Recipe, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the integers at *rows* x *columns* (int64 index vectors) as int64 on the device of the indices."""
    hashes = (rows * recipe.columns).unsqueeze(1) + columns.unsqueeze(0)
    hash_32_tensor(hashes.bitwise_xor_(recipe.key))
    values = (hashes >> 8).remainder_(recipe.high - recipe.low + 1).add_(recipe.low)
    signs = hashes.bitwise_and_(1).mul_(-2).add_(1)
    return values.mul_(signs)


def digest(stored: Tensor) -> Digest:
    """Return the digest of the contiguous matrix *stored*."""
    return Digest(row_sums(stored), column_sums(stored))


def _exponents(recipe: Recipe, device: torch.device) -> Tensor:
    """Return 2**(sign * g + shift) for each k as float64: (K,)."""
    count = recipe.columns if recipe.exponent_axis == 1 else recipe.rows
    hashes = torch.arange(count, dtype=torch.int64, device=device).bitwise_xor_(recipe.exponent_key)
    hash_32_tensor(hashes)
    exponents = (hashes >> 8).remainder_(2 * recipe.exponent_span + 1).sub_(recipe.exponent_span)
    # Built from its bits: a device's power function may be an ulp off, and then the operands are no integers.
    biased = exponents.mul_(recipe.exponent_sign).add_(recipe.exponent_shift + 1023)
    return (biased << 52).view(torch.float64)


def _build(recipe: Recipe, element: torch.dtype, device: torch.device, transpose: bool) -> Operand:
    matrix = torch.empty(recipe.rows, recipe.columns, dtype=element, device=device)
    scale = _exponents(recipe, device)
    columns = torch.arange(recipe.columns, dtype=torch.int64, device=device)
    chunk = max(1, (_HOST_CHUNK if device.type == "cpu" else _DEVICE_CHUNK) // recipe.columns)
    for start in range(0, recipe.rows, chunk):
        stop = min(start + chunk, recipe.rows)
        rows = torch.arange(start, stop, dtype=torch.int64, device=device)
        exact = make_integers(recipe, rows, columns).to(torch.float64)
        exact *= scale.unsqueeze(0) if recipe.exponent_axis == 1 else scale[start:stop].unsqueeze(1)
        matrix[start:stop] = exact.to(element)
        if not torch.equal(matrix[start:stop].to(torch.float64), exact):
            raise NotExactError(f"the cast to {element} loses bits of {recipe.low}..{recipe.high}")
    stored = matrix.t().contiguous() if transpose else matrix
    return Operand(recipe, stored.t() if transpose else matrix, stored, digest(stored))
