"""Shapes that are worth timing when the fastest product of a device is looked for. Pure.

A device computes tiles of the result on its units, all units at once: a result whose tiles fill the units for a whole
number of waves leaves none idle (AMD's guide to achievable FLOPS factors the number of units for that reason). Long K
hides the start and the end of a tile; a K that is a power of two meets the same memory channels again and again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

import msgspec

Shape = tuple[int, int, int]
"""M, N and K of a product."""

STEP = 128
"""Every side is a multiple of this: vector units and caches want it, and the checker's operands do."""

TILES = ((128, 128), (128, 192), (128, 256), (192, 192), (256, 128), (256, 192), (256, 256))
"""Tiles of the result that the libraries of the vendors use for large products."""

WAVES = (1, 2, 3, 4, 6)
IDLE_UNITS = (0, 1, 2, 4)
"""Numbers of units that a library may leave idle, so that the others form a better rectangle."""

DEPTHS = (4096, 8192, 8192 + STEP, 16384, 16384 + STEP, 32768 + STEP)
SIDES = (1024, 2048, 3072, 4096, 5120, 6144, 8192, 10240, 12288, 16384, 19456)
"""Sides of squares, and of oblongs of two neighbours, that are fast on most devices."""

SMALL_SIDES = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
SMALL_DEPTHS = (256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)
"""For processors, whose caches are small: their number of units says little."""

LONGEST_RATIO = 6.0
"""A result with a longer ratio of its sides reads more operands than it computes."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What limits a shape: the number of ``units`` (None for a processor), the longest K, bytes and operations.

    ``maximum_operations`` is M x N x K, so that one product does not take too long; ``element_bytes`` and
    ``output_bytes`` are of one value of an operand and of the result.
    """

    units: int | None
    maximum_k: int
    maximum_bytes: int
    maximum_operations: float = math.inf
    element_bytes: int
    output_bytes: int

    def fit(self, shape: Shape) -> bool:
        """Return whether *shape* keeps within them."""
        m, n, k = shape
        size = (m * k + k * n) * self.element_bytes + m * n * self.output_bytes
        return (
            min(shape) >= STEP
            and all(side % STEP == 0 for side in shape)
            and k <= self.maximum_k
            and size <= self.maximum_bytes
            and math.prod(shape) <= self.maximum_operations
        )


def candidates(bounds: Bounds, known: Iterable[Shape] = ()) -> tuple[Shape, ...]:
    """Return the shapes within *bounds* that are worth timing, *known* ones first, each once."""
    found = itertools.chain(known, _squares(bounds), _wholly_used(bounds))
    return tuple(dict.fromkeys(shape for shape in found if bounds.fit(shape)))


def neighbours(shape: Shape, bounds: Bounds) -> tuple[Shape, ...]:
    """Return the shapes within *bounds* that differ from *shape* by one step of a side, or by a depth."""
    m, n, k = shape
    depths = {*_depths(bounds), max(STEP, k // 2 // STEP * STEP), k + STEP, k - STEP, k * 3 // 2 // STEP * STEP}
    sides = [(m + a, n + b) for a in (-256, -STEP, 0, STEP, 256) for b in (-256, -STEP, 0, STEP, 256)]
    found = [(*pair, k) for pair in sides] + [(m, n, depth) for depth in sorted(depths)] + [(n, m, k)]
    return tuple(dict.fromkeys(other for other in found if other != shape and bounds.fit(other)))


def _depths(bounds: Bounds) -> tuple[int, ...]:
    wanted = SMALL_DEPTHS if bounds.units is None else DEPTHS
    longest = bounds.maximum_k // STEP * STEP
    return tuple(dict.fromkeys(min(depth, longest) for depth in wanted))


def _squares(bounds: Bounds) -> Iterator[Shape]:
    sides = SMALL_SIDES if bounds.units is None else SIDES
    pairs = [(side, side) for side in sides]
    for one, other in itertools.pairwise(sides):
        pairs += [(one, other), (other, one)]
    for depth in _depths(bounds):
        yield from ((m, n, depth) for m, n in pairs)


def _wholly_used(bounds: Bounds) -> Iterator[Shape]:
    """Yield the shapes whose tiles are a whole number of waves of all units, or of nearly all."""
    for idle in IDLE_UNITS if bounds.units is not None else ():
        for rows, columns in _pairs((bounds.units or 0) - idle):
            for (tall, wide), waves in itertools.product(TILES, WAVES):
                for a, b in _pairs(waves):
                    m, n = rows * tall * a, columns * wide * b
                    if max(m, n) <= LONGEST_RATIO * min(m, n):
                        yield from ((m, n, depth) for depth in _depths(bounds))


def _pairs(number: int) -> Iterator[tuple[int, int]]:
    """Yield each pair of factors of *number*, none if it is not positive."""
    for factor in range(1, number + 1):
        if number % factor == 0:
            yield factor, number // factor
