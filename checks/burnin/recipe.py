"""The recipe of an operand: each integer entry follows from its position alone, on a device or on the host.

``make_integers`` makes whole blocks with tensors. ``entry`` makes one entry with Python's own integers: where the
processor is the suspect, its vector units are no witness.
"""

from __future__ import annotations

import msgspec

from .hashing import hash_32, hash_32_tensor
from .library import Tensor, torch

_SHORT = 1 << 24
"""Ranges up to here take their bits from one hash, wider ones from two."""

_SECOND_KEY = 0x5BD1E995


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of an integer matrix (rows, columns) and its scales.

    ``inner_axis`` is the axis along which the K index runs; the lines across it are rows of A and columns of B.
    ``exponent_sign`` is 1 for A and -1 for B. ``line_exponents`` is the range of the exponents of the lines.
    ``anchor`` is the K index of the anchor and its magnitude, 0 for none. A matrix that ``selects`` has one entry per
    line, and zeros elsewhere.
    """

    key: int
    rows: int
    columns: int
    low: int
    high: int
    exponent_key: int
    exponent_span: int
    inner_axis: int
    exponent_sign: int
    exponent_shift: int = 0
    line_key: int = 0
    line_exponents: tuple[int, int] = (0, 0)
    anchor: tuple[int, int] = (0, 0)
    selects: bool = False

    @property
    def inner(self) -> int:
        """Return K."""
        return self.columns if self.inner_axis == 1 else self.rows

    @property
    def lines(self) -> int:
        """Return the number of rows of A, or of columns of B."""
        return self.rows if self.inner_axis == 1 else self.columns


def make_integers(recipe: Recipe, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the integers at *rows* x *columns* (int64 index vectors) as int64 on the device of the indices."""
    hashes = (rows * recipe.columns).unsqueeze(1) + columns.unsqueeze(0)
    hash_32_tensor(hashes.bitwise_xor_(recipe.key))
    width = recipe.high - recipe.low + 1
    values = hashes >> 8
    if width > _SHORT:
        values = (values << 32).bitwise_or_(hash_32_tensor(hashes ^ _SECOND_KEY))
    values.remainder_(width).add_(recipe.low)
    across, inner = (rows, columns) if recipe.inner_axis == 1 else (columns, rows)
    place, magnitude = recipe.anchor
    if magnitude:
        at = torch.nonzero(inner == place).flatten()
        values.index_fill_(recipe.inner_axis, at, magnitude)
    values.mul_(hashes.bitwise_and_(1).mul_(-2).add_(1))
    if recipe.selects:
        chosen = _selected(recipe, across)
        if recipe.inner_axis == 1:
            values.mul_(chosen.unsqueeze(1) == inner.unsqueeze(0))
        else:
            values.mul_(inner.unsqueeze(1) == chosen.unsqueeze(0))
    return values


def entry(recipe: Recipe, row: int, column: int) -> int:
    """Return the integer at *row* and *column*, made without any tensor."""
    line, inner = (row, column) if recipe.inner_axis == 1 else (column, row)
    if recipe.selects and inner != _choice(recipe, line):
        return 0
    hashed = hash_32((row * recipe.columns + column) ^ recipe.key)
    width = recipe.high - recipe.low + 1
    value = hashed >> 8
    if width > _SHORT:
        value = (value << 32) | hash_32(hashed ^ _SECOND_KEY)
    place, magnitude = recipe.anchor
    value = magnitude if magnitude and inner == place else value % width + recipe.low
    return -value if hashed & 1 else value


def _selected(recipe: Recipe, lines: Tensor) -> Tensor:
    """Return the K index of the only entry of each of *lines*."""
    return hash_32_tensor(lines ^ (recipe.key ^ _SECOND_KEY)).remainder_(recipe.inner)


def _choice(recipe: Recipe, line: int) -> int:
    return hash_32(line ^ (recipe.key ^ _SECOND_KEY)) % recipe.inner
