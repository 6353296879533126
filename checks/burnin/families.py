"""Operands whose products sum without rounding, so that every correct device returns the same bits.

A matrix product accumulates in a format of ``accumulator_bits``. While every partial sum stays an integer (times
one power of two) below that, no addition rounds, and the order of summation, the tiling and the library do not
matter. Entries are integers with a random sign, of a range given per operand; one range fills the significand, the
other is small, and both orders are used so that every bit of an operand path toggles. Column k of A is scaled by 2**g
and row k of B by 2**-g: exponent bits toggle while every product keeps its unit.
"""

from __future__ import annotations

import functools
import math
import re

import msgspec

from nodevet.checks.core.documents import copied
from nodevet.checks.core.errors import ReferenceDataError
from nodevet.checks.reference.tables import load_table

from .errors import NotExactError

HEADROOM_SIGMAS = 7.0
"""Standard deviations that must fit below the accumulator's limit: with 7, one overflow in 4e11 sums."""


class Family(msgspec.Struct, frozen=True):
    """The ranges of the magnitudes of A and B, both ends included."""

    a_low: int
    a_high: int
    b_low: int
    b_high: int

    def __str__(self) -> str:
        """Return ``128..255 x 8..15``."""
        return f"{self.a_low}..{self.a_high} x {self.b_low}..{self.b_high}"


class DataType(msgspec.Struct, frozen=True, kw_only=True):
    """A number format of the operands, with the conditions for exact products.

    ``wide`` is the torch type of the exact result, ``exponent_span`` the largest g, ``a_exponent`` a further
    power of two on A alone. ``exponents`` are the least and largest exponents of normal numbers of the format.
    """

    name: str
    torch_name: str
    wide: str
    significand_bits: int
    exponents: tuple[int, int]
    accumulator_bits: int
    exponent_span: int
    maximum_k: int
    families: tuple[Family, Family, Family]
    a_exponent: int
    bytes_per_element: int


class FormatRow(msgspec.Struct, frozen=True):
    """A row of reference/number_formats.csv; ``families`` are three ranges such as ``128..255 x 8..15``."""

    name: str
    torch_name: str
    wide: str
    significand_bits: int
    exponent_low: int
    exponent_high: int
    accumulator_bits: int
    exponent_span: int
    maximum_k: int
    families: tuple[str, ...]
    a_exponent: int
    bytes_per_element: int
    source: str

    def data_type(self) -> DataType:
        """Return the row as the format that it describes. Raises ReferenceDataError where a range is malformed."""
        first, second, third = (_family(self.name, text) for text in self.families)
        exponents = (self.exponent_low, self.exponent_high)
        return copied(DataType, self, exponents=exponents, families=(first, second, third))


@functools.lru_cache(maxsize=1)
def data_types() -> dict[str, DataType]:
    """Return the formats available for a burn-in, by name."""
    return {row.name: row.data_type() for row in load_table("number_formats.csv", FormatRow)}


def _family(name: str, text: str) -> Family:
    found = re.fullmatch(r"(\d+)\.\.(\d+) x (\d+)\.\.(\d+)", text)
    if found is None:
        raise ReferenceDataError(f"number_formats.csv, {name}: {text!r} is no family such as 128..255 x 8..15")
    return Family(*map(int, found.groups()))


def headroom_sigmas(family: Family, accumulator_bits: int, k: int) -> float:
    """Return the number of standard deviations of a sum of *k* products that fit below 2**accumulator_bits.

    Infinite where even the largest sum fits. The signs are random and independent, so a partial sum of any
    subset in any order is a random walk that is no wider than the whole sum.
    """
    limit = 1 << accumulator_bits
    if k * family.a_high * family.b_high < limit:
        return math.inf
    variance = _mean_square(family.a_low, family.a_high) * _mean_square(family.b_low, family.b_high)
    return limit / math.sqrt(k * variance)


def operand_families(data_type: DataType, k: int) -> tuple[Family, Family, Family]:
    """Return the families of the three operand sets for an inner dimension of *k*.

    Raises NotExactError where *k* is too large for a family: a range is never narrowed to make it fit. Only the
    third family, a variant for smaller k, is replaced by the first.
    """
    if k > data_type.maximum_k:
        raise NotExactError(f"{data_type.name}: K of {k} is above {data_type.maximum_k}; choose a smaller K")
    first, second, third = data_type.families
    for family in (first, second):
        _require_exact(data_type, family, k)
    third_fits = headroom_sigmas(third, data_type.accumulator_bits, k) >= HEADROOM_SIGMAS
    return (first, second, third if third_fits else first)


def _require_exact(data_type: DataType, family: Family, k: int) -> None:
    sigmas = headroom_sigmas(family, data_type.accumulator_bits, k)
    if sigmas < HEADROOM_SIGMAS:
        raise NotExactError(
            f"{data_type.name}: {family} with K of {k} leaves {sigmas:.1f} standard deviations below "
            f"2**{data_type.accumulator_bits}, {HEADROOM_SIGMAS:.0f} are needed; choose a smaller K"
        )
    span, least = data_type.exponent_span, data_type.exponents[0]
    if min(0, data_type.a_exponent) - span < least:
        raise NotExactError(f"{data_type.name}: a unit of 2**{data_type.a_exponent - span} is subnormal")
    highest = max(family.a_high << max(0, data_type.a_exponent), family.b_high) << span
    if highest.bit_length() - 1 > data_type.exponents[1]:
        raise NotExactError(f"{data_type.name}: {highest} is above the largest number of the format")


def _mean_square(low: int, high: int) -> float:
    def sum_of_squares(n: int) -> int:
        return n * (n + 1) * (2 * n + 1) // 6

    below = sum_of_squares(low - 1) if low > 0 else 0
    return (sum_of_squares(high) - below) / (high - low + 1)
