"""Planted faults: each corrupts a product as broken hardware does, after the real multiplication.

A planted fault replaces the multiplication, so everything after it is the path of a real fault.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from .hashing import make_key
from .library import Tensor, torch
from .multiply import Multiply
from .sums import bit_view

_TILE = 128


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """The place where a planted fault must be found: exactly these cells, or wrong cells within rows and columns."""

    cells: frozenset[tuple[int, int]] | None = None
    rows: frozenset[int] | None = None
    columns: frozenset[int] | None = None


Spoil = Callable[[Tensor, Tensor, int], Expected]
"""Changes a result (first) in place, given the slot's content before the product (second) and a key."""


class OutputFault(msgspec.Struct, frozen=True, kw_only=True):
    """A way to corrupt a result. ``lasting`` faults hit every product from the first on; others one product.

    ``origin`` is the expected diagnosis; ``skips`` omits the product altogether.
    """

    name: str
    spoil: Spoil
    origin: str = "output"
    lasting: bool = False
    skips: bool = False
    floating_only: bool = False


class Planted:
    """A multiplication with a fault, from product *first* on (counted by calls)."""

    def __init__(self, run: Multiply, fault: OutputFault, *, first: int, key: int) -> None:
        """Wrap *run*."""
        self.expected: Expected | None = None
        self._run = run
        self._fault = fault
        self._first = first
        self._key = key
        self._calls = 0

    def __call__(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Multiply, and corrupt the result where the fault is due."""
        number = self._calls
        self._calls += 1
        if number < self._first or (number > self._first and not self._fault.lasting):
            self._run(a, b, out)
            return
        before = out.clone()
        if not self._fault.skips:
            self._run(a, b, out)
        expected = self._fault.spoil(out, before, self._key)
        if number == self._first:
            self.expected = expected


class SpoiledOperand:
    """A multiplication in which one element of A changes in memory before call *call*, permanently."""

    def __init__(self, run: Multiply, *, call: int, key: int) -> None:
        """Wrap *run*."""
        self.row: int | None = None
        self._run = run
        self._call = call
        self._key = key
        self._calls = 0
        self._element: Tensor | None = None

    def __call__(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Multiply with the present A."""
        if self._calls == self._call:
            self.row = self._key % a.shape[0]
            column = make_key(self._key) % a.shape[1]
            self._element = a[self.row : self.row + 1, column : column + 1]
            self._flip_sign()
        self._calls += 1
        self._run(a, b, out)

    def restore(self) -> None:
        """Restore the original element of A."""
        if self._element is not None:
            self._flip_sign()
            self._element = None

    def _flip_sign(self) -> None:
        if self._element is not None:
            bits = bit_view(self._element)
            _flip(bits, 0, 0, 8 * bits.element_size() - 1)


def slow_down(run: Multiply, *, call: int, hold: Callable[[], None]) -> Multiply:
    """Return *run* with *hold* called before its call *call*."""
    calls = iter(range(1 << 62))

    def slowed(a: Tensor, b: Tensor, out: Tensor) -> None:
        if next(calls) == call:
            hold()
        run(a, b, out)

    return slowed


def _flip(bits: Tensor, row: int, column: int, bit: int) -> None:
    bits[row, column] ^= _bit(bits, bit)


def _bit(bits: Tensor, bit: int) -> int:
    """Return 1 << bit as a signed number of the element's size."""
    size = 8 * bits.element_size()
    return (1 << bit) - ((1 << size) if bit == size - 1 else 0)


def _every_bit(out: Tensor, _before: Tensor, key: int) -> Expected:
    bits = bit_view(out)
    rows, columns = out.shape
    cells = set()
    for bit in range(8 * out.element_size()):
        cell = ((key + 3 * bit) % rows, (key // 7 + 5 * bit) % columns)
        _flip(bits, *cell, bit)
        cells.add(cell)
    return Expected(cells=frozenset(cells))


def _opposite_pair(out: Tensor, _before: Tensor, key: int) -> Expected:
    """Flip the same bit up in one cell and down in another of the row, in the same lane: the row sum is unchanged."""
    bits = bit_view(out)
    lanes = 8 // out.element_size()
    for attempt in range(key, key + out.shape[0]):
        row, bit = attempt % out.shape[0], make_key(attempt) % (8 * out.element_size() - 1)
        values = (bits[row, ::lanes] >> bit) & 1
        high, low = torch.nonzero(values == 1).flatten(), torch.nonzero(values == 0).flatten()
        if len(high) and len(low):
            columns = (int(high[0]) * lanes, int(low[0]) * lanes)
            for column in columns:
                _flip(bits, row, column, bit)
            return Expected(cells=frozenset((row, column) for column in columns))
    return Expected(cells=frozenset())


def _stuck_lanes(out: Tensor, _before: Tensor, key: int) -> Expected:
    """Set one bit of 32 neighbouring cells to 1, like a stuck line of one warp."""
    bits = bit_view(out)
    row, left = key % out.shape[0], 32 * (make_key(key) % (out.shape[1] // 32))
    lanes = bits[row, left : left + 32]
    for bit in range(4, 8 * out.element_size() - 1):
        changed = torch.nonzero(((lanes >> bit) & 1) == 0).flatten().tolist()
        if changed:
            lanes |= _bit(bits, bit)
            return Expected(cells=frozenset((row, left + lane) for lane in changed))
    return Expected(cells=frozenset())


def _stuck_columns(out: Tensor, _before: Tensor, key: int) -> Expected:
    """Flip a bit of 32 neighbouring columns in every row: a lane that is always wrong in the same way."""
    bits = bit_view(out)
    left = 32 * (key % (out.shape[1] // 32))
    bits[:, left : left + 32] ^= _bit(bits, 8 * out.element_size() - 2)
    return Expected(columns=frozenset(range(left, left + 32)))


def _swapped_rows(out: Tensor, _before: Tensor, key: int) -> Expected:
    rows = [key % out.shape[0], (key + 1 + make_key(key) % (out.shape[0] - 1)) % out.shape[0]]
    out[rows] = out[rows[::-1]]
    return Expected(rows=frozenset(rows))


def _lost_tile(out: Tensor, before: Tensor, key: int) -> Expected:
    """Leave one 128 x 128 tile as the previous lap wrote it."""
    top, left = (_TILE * (make_key(key, axis) % (out.shape[axis] // _TILE)) for axis in (0, 1))
    part = (slice(top, top + _TILE), slice(left, left + _TILE))
    out[part] = before[part]
    return Expected(rows=frozenset(range(top, top + _TILE)), columns=frozenset(range(left, left + _TILE)))


def _not_a_number(out: Tensor, _before: Tensor, key: int) -> Expected:
    cell = (key % out.shape[0], make_key(key) % out.shape[1])
    out[cell] = torch.nan
    return Expected(cells=frozenset({cell}))


def _skipped(out: Tensor, _before: Tensor, _key: int) -> Expected:
    return Expected(rows=frozenset(range(out.shape[0])))


OUTPUT_FAULTS: tuple[OutputFault, ...] = (
    OutputFault(name="every_bit", spoil=_every_bit),
    OutputFault(name="opposite_pair", spoil=_opposite_pair, lasting=True),
    OutputFault(name="stuck_lanes", spoil=_stuck_lanes),
    OutputFault(name="swapped_rows", spoil=_swapped_rows, lasting=True),
    OutputFault(name="lost_tile", spoil=_lost_tile, origin="lost_write"),
    OutputFault(name="not_a_number", spoil=_not_a_number, floating_only=True),
    OutputFault(name="skipped_product", spoil=_skipped, origin="lost_write", skips=True),
)
"""Faults in a result, each detectable in the ring. Lasting ones cancel in one direction and need a second visit."""

STUCK_COLUMNS = OutputFault(name="stuck_before_certification", spoil=_stuck_columns, lasting=True)
"""A fault present from the first product on: certification must refuse it."""
