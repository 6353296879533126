"""Proof that a fault would be detected: plant each one after the real multiplication, require that it is located.

A run whose self-test misses a fault, or locates it wrongly, verifies nothing: its figures stay, its
verification is ``unmeasured``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import msgspec

from .certify import Golden, certify
from .faults import OUTPUT_FAULTS, STUCK_COLUMNS, Expected, OutputFault, Planted, SpoiledOperand, slow_down
from .hashing import make_key
from .library import Tensor
from .locate import Mismatch, locate
from .multiply import Multiplication, Multiply
from .operands import OperandSet, digest
from .rates import late_batches
from .ring import Checking, Product, Ring

_SLOTS = 4
_LAG = 1
_FIRST = _SLOTS + 1
"""The first corrupted product is in the second lap, so that its slot holds a result of another operand set."""
_LAST = _FIRST + 2 * _SLOTS
_LATE_ATTEMPTS = 4


class Planting(msgspec.Struct, frozen=True):
    """One planted fault: whether it was found, and in the right place with the right origin."""

    fault: str
    found: bool
    located: bool
    detail: str = ""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """The shared objects of self-test and run: operands, goldens, slots and the multiplication."""

    sets: list[OperandSet]
    goldens: list[Golden]
    slots: list[Tensor]
    multiplication: Multiplication
    checking: Checking
    seed: int
    pause: Callable[[], None]
    time_batch: Callable[[Ring, int], tuple[float, tuple[list[Product], list[Product]]]]
    """Runs one batch of a ring and returns its seconds, and its compared and wrong products."""
    take: Callable[[Ring, list[Product], list[Product]], None] = lambda _ring, _checked, _failed: None
    """Takes products without a planted fault: a wrong one of them is the device's own."""
    sleep: Callable[[float], None] = time.sleep
    """Waits for seconds of the time that *time_batch* counts."""


def self_test(stage: Stage) -> list[Planting]:
    """Plant every fault that the format can have and return the result of each."""
    floating = stage.multiplication.output.is_floating_point
    plantings = []
    for number, fault in enumerate(OUTPUT_FAULTS):
        if fault.floating_only and not floating:
            continue
        stage.pause()
        plantings.append(_spoiled_output(stage, fault, make_key(stage.seed, 20, number)))
    for plant in (_spoiled_operand, _spoiled_from_the_start, _late):
        stage.pause()
        plantings.append(plant(stage))
    return plantings


def _ring(stage: Stage, run: Multiply) -> Ring:
    return Ring(
        run, stage.sets, stage.goldens, stage.slots[:_SLOTS], lag=_LAG, seed=stage.seed, checking=stage.checking
    )


def _spoiled_output(stage: Stage, fault: OutputFault, key: int) -> Planting:
    planted = Planted(stage.multiplication.run, fault, first=_FIRST, key=key)
    mismatch = _first_mismatch(stage, _ring(stage, planted))
    if mismatch is None or planted.expected is None:
        return Planting(fault.name, False, False)
    located = _agrees(mismatch, planted.expected) and mismatch.origin == fault.origin
    if not fault.lasting:
        located &= mismatch.product == _FIRST and mismatch.persistence == "transient"
    return Planting(fault.name, True, located, "" if located else _describe(mismatch))


def _spoiled_operand(stage: Stage) -> Planting:
    name = "wrong_element_of_a"
    spoiled = SpoiledOperand(stage.multiplication.run, call=_FIRST, key=make_key(stage.seed, 21))
    try:
        mismatch = _first_mismatch(stage, _ring(stage, spoiled))
    finally:
        spoiled.restore()
    if any(digest(each.a.stored).number() != each.a.digest.number() for each in stage.sets):
        return Planting(name, False, False, "the operand could not be restored")
    if mismatch is None or spoiled.row is None:
        return Planting(name, False, False)
    located = mismatch.product == _FIRST and mismatch.origin == "operand_a"
    located &= mismatch.rows == (spoiled.row,) and mismatch.operand_rows == (spoiled.row + mismatch.offset,)
    return Planting(name, True, located, "" if located else _describe(mismatch))


def _spoiled_from_the_start(stage: Stage) -> Planting:
    m = stage.slots[0].shape[0]
    planted = Planted(stage.multiplication.run, STUCK_COLUMNS, first=0, key=make_key(stage.seed, 22))
    certificate = certify(stage.sets[0], stage.multiplication, m, stage.seed, run=planted, pause=stage.pause)
    if certificate.golden is not None or planted.expected is None:
        return Planting(STUCK_COLUMNS.name, False, False)
    located = frozenset(certificate.bad_columns) == planted.expected.columns and certificate.witness is not None
    return Planting(STUCK_COLUMNS.name, True, located, "" if located else certificate.reason)


def _late(stage: Stage) -> Planting:
    """Delay one batch among eight for four times the slowest one so far.

    On a shared machine every batch may be slower than the ones before: then the delay is increased.
    """
    late, count = 5, 8
    ring = _ring(stage, stage.multiplication.run)
    seconds = [_timed(stage, ring) for _ in range(3)]
    stage.take(ring, *ring.drain())
    for _ in range(_LATE_ATTEMPTS):
        stage.pause()
        hold = partial(stage.sleep, 4 * max(seconds))
        ring = _ring(stage, slow_down(stage.multiplication.run, call=late, hold=hold))
        seconds = [_timed(stage, ring) for _ in range(count)]
        stage.take(ring, *ring.drain())
        if late in late_batches(seconds):
            return Planting("late_batch", True, True)
        del seconds[late]
    return Planting("late_batch", False, False, f"seconds per batch: {seconds}")


def _timed(stage: Stage, ring: Ring) -> float:
    """Return the seconds of one batch, and count its wrong products: no fault is planted in its results."""
    seconds, outcome = stage.time_batch(ring, 1)
    stage.take(ring, *outcome)
    return seconds


def _first_mismatch(stage: Stage, ring: Ring) -> Mismatch | None:
    """Return the first mismatch after the planted fault.

    A wrong cell before the fault was planted is the device's own; an alarm without one is the checker's.
    """
    for _ in range(_LAST):
        stage.pause()
        checked, failed = ring.run_batch(1)()
        for product in failed:
            mismatch = locate(ring, product, stage.multiplication)
            if product.number >= _FIRST or not mismatch.cells:
                return mismatch
        own = [product for product in checked if product.number < _FIRST]
        stage.take(ring, own, [product for product in own if product in failed])
    return None


def _agrees(mismatch: Mismatch, expected: Expected) -> bool:
    """Return whether the wrong cells are the planted ones. By chance a corrupted cell may keep its value."""
    if expected.cells is not None:
        found = {(cell.row, cell.column) for cell in mismatch.examples}
        return bool(expected.cells) and mismatch.cells == len(expected.cells) and found == expected.cells
    rows, columns = set(mismatch.rows), set(mismatch.columns)
    inside = (expected.rows is None or rows <= expected.rows) and (
        expected.columns is None or columns <= expected.columns
    )
    wanted = len(expected.rows or ())
    return inside and mismatch.cells > 0 and (len(rows) >= min(wanted, 256) // 2)


def _describe(mismatch: Mismatch) -> str:
    return (
        f"blamed {mismatch.origin}, {mismatch.persistence}, product {mismatch.product}, {mismatch.cells} cells, "
        f"rows {mismatch.rows[:4]}, columns {mismatch.columns[:4]}"
    )
