"""Operands whose products sum without rounding, so that every correct device returns the same bits.

A matrix product accumulates in a format of ``accumulator_bits``. While every partial sum stays an integer (times
one power of two) below that, no addition rounds, and the order of summation, the tiling and the library do not
matter. Entries are integers with a random sign, of a range given per operand; one range fills the significand, the
other is small, and both orders are used. No bit of an operand or of a result stays the same over the sets of a format:

- Column k of A is scaled by 2**g and row k of B by 2**-g: exponents of operands toggle, every product keeps its unit.
- Row i of A is scaled by 2**r and column j of B by 2**c: the exponent of the result toggles, too.
- One index k, the anchor, holds +-2**12 in A and +-2**11 in B (fp64: 2**26 twice): the result lies near +-2**23, so
  that the lowest bit of its significand is the unit of the sum.
- The ranges of fp32 and fp64 leave significand bits unused, because products of full significands need twice as many.
  Two more sets select instead of adding: each column of B has one entry, a power of two, and A is of full
  significands, and the other way round.
- fp8 is summed in 14 bits. An odd factor on the finished sum moves the low bits of its fp32 result.
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

_FACTOR_SIGMAS = 8.0
HEADROOM_SIGMAS = 7.0
"""Standard deviations that must fit below the accumulator's limit: with 7, one overflow in 4e11 sums."""


class Family(msgspec.Struct, frozen=True):
    """The ranges of the magnitudes of A and B, both ends included.

    ``anchor``: the magnitudes of A and of B at the anchor, 0 without one. ``selector``: the operand (``a`` or ``b``)
    that has one entry per row or column, empty where both are full.
    """

    a_low: int
    a_high: int
    b_low: int
    b_high: int
    anchor: tuple[int, int] = (0, 0)
    selector: str = ""

    def __str__(self) -> str:
        """Return ``128..255 x 8..15``, followed by the anchor or the operand that selects."""
        ranges = f"{self.a_low}..{self.a_high} x {self.b_low}..{self.b_high}"
        if self.selector:
            return f"{ranges}, {self.selector.upper()} selects"
        return f"{ranges}, anchor {self.anchor[0]} x {self.anchor[1]}" if any(self.anchor) else ranges


class Scales(msgspec.Struct, frozen=True):
    """The ranges of the exponents r of the rows of A and c of the columns of B, both ends included."""

    row_low: int
    row_high: int
    column_low: int
    column_high: int


class DataType(msgspec.Struct, frozen=True, kw_only=True):
    """A number format of the operands, with the conditions for exact products.

    ``wide`` is the torch type of the exact result, ``exponent_span`` the largest g, ``a_exponent`` a further
    power of two on A alone. ``exponents`` are the least and largest exponents of normal numbers of the format.
    ``scales`` are those of a wide result, ``narrow_scales`` those of a result in the format itself. Where
    ``output_bits`` is not 0, the finished sum is multiplied by an odd factor that fills so many bits, and by
    2**``output_exponent``. ``full_significands``: two more sets.
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
    scales: Scales
    narrow_scales: Scales
    anchor: tuple[int, int]
    full_significands: bool
    output_bits: int
    output_exponent: int
    bytes_per_element: int

    @property
    def set_count(self) -> int:
        """Return the number of operand sets."""
        return 5 if self.full_significands else 3

    def output_factor(self, k: int) -> int:
        """Return the odd factor on sums of *k* products: the largest that keeps eight standard deviations exact."""
        if not self.output_bits:
            return 1
        variance = max(k * _variance(family) for family in self.families)
        largest = min(1 << self.accumulator_bits, math.ceil(_FACTOR_SIGMAS * math.sqrt(variance)))
        return (((1 << self.output_bits) // largest) - 1) | 1

    def scales_of(self, *, narrow: bool) -> Scales:
        """Return the scales for a result in the wide type, or in the format itself."""
        return self.narrow_scales if narrow else self.scales


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
    scales: str
    narrow_scales: str
    anchor_a: int
    anchor_b: int
    full_significands: bool
    output_bits: int
    output_exponent: int
    bytes_per_element: int
    source: str

    def data_type(self) -> DataType:
        """Return the row as the format that it describes. Raises ReferenceDataError where a range is malformed."""
        first, second, third = (Family(*_ranges(self.name, text)) for text in self.families)
        return copied(
            DataType,
            self,
            exponents=(self.exponent_low, self.exponent_high),
            families=(first, second, third),
            scales=Scales(*_ranges(self.name, self.scales)),
            narrow_scales=Scales(*_ranges(self.name, self.narrow_scales)),
            anchor=(self.anchor_a, self.anchor_b),
        )


@functools.lru_cache(maxsize=1)
def data_types() -> dict[str, DataType]:
    """Return the formats available for a burn-in, by name."""
    return {row.name: row.data_type() for row in load_table("number_formats.csv", FormatRow)}


def _ranges(name: str, text: str) -> tuple[int, int, int, int]:
    found = re.fullmatch(r"(-?\d+)\.\.(-?\d+) x (-?\d+)\.\.(-?\d+)", text)
    if found is None:
        raise ReferenceDataError(f"number_formats.csv, {name}: {text!r} is no pair of ranges such as 128..255 x 8..15")
    a_low, a_high, b_low, b_high = map(int, found.groups())
    return a_low, a_high, b_low, b_high


def headroom_sigmas(family: Family, accumulator_bits: int, k: int) -> float:
    """Return the number of standard deviations of a sum of *k* products that fit below 2**accumulator_bits.

    The anchor's product takes its part of the range. Infinite where even the largest sum fits. The signs are random
    and independent, so a partial sum of any subset in any order is a random walk that is no wider than the whole sum.
    """
    limit = (1 << accumulator_bits) - family.anchor[0] * family.anchor[1]
    if family.selector:
        return math.inf if family.a_high * family.b_high <= limit else 0.0
    if k * family.a_high * family.b_high < limit:
        return math.inf
    return limit / math.sqrt(k * _variance(family))


def operand_families(data_type: DataType, k: int, *, narrow: bool = False) -> tuple[Family, ...]:
    """Return the families of the operand sets for an inner dimension of *k*.

    *narrow*: the result has the format itself. Near an anchor it would lose the bits that show a wrong product, so it
    has none. Raises NotExactError where *k* is too large for a family: a range is never narrowed to make it fit. Only
    the third family, a variant for smaller k, is replaced by the first.
    """
    if k > data_type.maximum_k:
        raise NotExactError(f"{data_type.name}: K of {k} is above {data_type.maximum_k}; choose a smaller K")
    first, second, third = data_type.families
    anchor = (0, 0) if narrow else data_type.anchor
    anchored = [msgspec.structs.replace(family, anchor=anchor) for family in (first, second)]
    scales = data_type.scales_of(narrow=narrow)
    for family in anchored:
        _require_exact(data_type, family, scales, k)
    third_fits = headroom_sigmas(third, data_type.accumulator_bits, k) >= HEADROOM_SIGMAS
    families = (*anchored, third if third_fits else first)
    if not data_type.full_significands:
        return families
    low, high = 1 << (data_type.significand_bits - 1), (1 << data_type.significand_bits) - 1
    selecting = (Family(low, high, 1, 1, selector="b"), Family(1, 1, low, high, selector="a"))
    for family in selecting:
        _require_exact(data_type, family, scales, k)
    return (*families, *selecting)


def _require_exact(data_type: DataType, family: Family, scales: Scales, k: int) -> None:
    sigmas = headroom_sigmas(family, data_type.accumulator_bits, k)
    if sigmas < HEADROOM_SIGMAS:
        raise NotExactError(
            f"{data_type.name}: {family} with K of {k} leaves {sigmas:.1f} standard deviations below "
            f"2**{data_type.accumulator_bits}, {HEADROOM_SIGMAS:.0f} are needed; choose a smaller K"
        )
    span, (least, largest) = data_type.exponent_span, data_type.exponents
    unit = min(data_type.a_exponent + scales.row_low, scales.column_low) - span
    if unit < least:
        raise NotExactError(f"{data_type.name}: a unit of 2**{unit} is subnormal")
    highest_a = max(family.a_high, family.anchor[0]).bit_length() + data_type.a_exponent + scales.row_high
    highest_b = max(family.b_high, family.anchor[1]).bit_length() + scales.column_high
    highest = max(highest_a, highest_b) + span - 1
    if highest > largest:
        raise NotExactError(f"{data_type.name}: 2**{highest} is above the largest number of the format")


def _variance(family: Family) -> float:
    """Return the mean square of a product of two entries."""
    return _mean_square(family.a_low, family.a_high) * _mean_square(family.b_low, family.b_high)


def _mean_square(low: int, high: int) -> float:
    def sum_of_squares(n: int) -> int:
        return n * (n + 1) * (2 * n + 1) // 6

    below = sum_of_squares(low - 1) if low > 0 else 0
    return (sum_of_squares(high) - below) / (high - low + 1)
