"""Operands whose products sum without rounding, so that every correct device gives the same bits.

A matrix product accumulates in a format of ``accumulator_bits``. While every partial sum stays an integer (times
one power of two) below that, no addition rounds and the order of summation, the tiling and the library do not
matter. Entries are integers with a random sign, of a range given per operand; one range fills the significand, the
other is small, and both orders are used so that no operand path keeps dead bits. Column k of A is scaled by 2**g
and row k of B by 2**-g: exponent bits toggle while every product keeps its unit.
"""

from __future__ import annotations

import math

import msgspec

from .errors import NotExactError

__all__ = ["DATA_TYPES", "HEADROOM_SIGMAS", "DataType", "Family", "headroom_sigmas", "operand_families"]

HEADROOM_SIGMAS = 7.0
"""Standard deviations that must fit below the accumulator's limit: at 7, one overflow in 4e11 sums."""


class Family(msgspec.Struct, frozen=True):
    """The ranges of the magnitudes of A and B, both ends included."""

    a_low: int
    a_high: int
    b_low: int
    b_high: int

    def __str__(self) -> str:
        """Return ``128..255 x 8..15``."""
        return f"{self.a_low}..{self.a_high} x {self.b_low}..{self.b_high}"

    def swapped(self) -> Family:
        """Return the family with the ranges of A and B exchanged."""
        return Family(self.b_low, self.b_high, self.a_low, self.a_high)


class DataType(msgspec.Struct, frozen=True, kw_only=True):
    """A number format of the operands, and what keeps its products exact.

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
    a_exponent: int = 0
    bytes_per_element: int = 4


def _both_orders(full: Family) -> tuple[Family, Family, Family]:
    return (full, full.swapped(), full)


_ELEVEN_BITS = _both_orders(Family(1024, 2047, 4, 7))

DATA_TYPES: dict[str, DataType] = {
    entry.name: entry
    for entry in (
        DataType(
            name="fp64",
            torch_name="float64",
            wide="float64",
            significand_bits=53,
            exponents=(-1022, 1023),
            accumulator_bits=53,
            exponent_span=20,
            maximum_k=32768,
            families=_both_orders(Family(1, 1 << 20, 1, 1 << 20)),
            bytes_per_element=8,
        ),
        DataType(
            name="fp32",
            torch_name="float32",
            wide="float32",
            significand_bits=24,
            exponents=(-126, 127),
            accumulator_bits=24,
            exponent_span=20,
            maximum_k=32768,
            families=_ELEVEN_BITS,
        ),
        DataType(
            name="tf32",
            torch_name="float32",
            wide="float32",
            significand_bits=11,
            exponents=(-126, 127),
            accumulator_bits=24,
            exponent_span=20,
            maximum_k=32768,
            families=_ELEVEN_BITS,
        ),
        DataType(
            name="bf16",
            torch_name="bfloat16",
            wide="float32",
            significand_bits=8,
            exponents=(-126, 127),
            accumulator_bits=24,
            exponent_span=20,
            maximum_k=65536,
            families=(Family(128, 255, 8, 15), Family(8, 15, 128, 255), Family(64, 127, 64, 127)),
            bytes_per_element=2,
        ),
        # Scaling both operands by 2**-8 would give subnormals, which some matrix units flush: A alone is scaled.
        DataType(
            name="fp16",
            torch_name="float16",
            wide="float32",
            significand_bits=11,
            exponents=(-14, 15),
            accumulator_bits=24,
            exponent_span=2,
            maximum_k=32768,
            families=_ELEVEN_BITS,
            a_exponent=-8,
            bytes_per_element=2,
        ),
        # Hopper keeps about 14 bits while it accumulates fp8 (DeepSeek-V3 report, arXiv 2412.19437).
        DataType(
            name="fp8_e4m3",
            torch_name="float8_e4m3fn",
            wide="float32",
            significand_bits=4,
            exponents=(-6, 7),
            accumulator_bits=14,
            exponent_span=3,
            maximum_k=32768,
            families=_both_orders(Family(8, 15, 1, 1)),
            bytes_per_element=1,
        ),
        # Without VNNI, x86 adds pairs of 8-bit products in 16 bits and saturates: B stays within +-64.
        DataType(
            name="int8",
            torch_name="int8",
            wide="int32",
            significand_bits=7,
            exponents=(0, 6),
            accumulator_bits=31,
            exponent_span=0,
            maximum_k=65536,
            families=(Family(0, 127, 0, 63), Family(64, 127, 32, 63), Family(0, 127, 0, 63)),
            bytes_per_element=1,
        ),
    )
}
"""The formats that can be burnt in, by name."""


def headroom_sigmas(family: Family, accumulator_bits: int, k: int) -> float:
    """Return how many standard deviations of a sum of *k* products fit below 2**accumulator_bits.

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

    Raises NotExactError where *k* is too large for a family: a range is never narrowed to make it fit. The
    third family alone, a variant for smaller k, gives way to the first.
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
