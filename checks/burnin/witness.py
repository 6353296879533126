"""Proof that the device, and not the range or a library, made a first product wrong: one cell, computed on the host.

A format with too wide a range for a device, or a library that rounds, corrupts large sums on every device. That did not
corrupt a cell whose exact sum stays within the range in every step, beside correct cells of larger sums. The sum is
made of Python's own integers from the hash alone: where the processor is the suspect, its vector units are no
witness.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import msgspec

from .families import DataType
from .library import Tensor, torch
from .operands import OperandSet
from .recipe import entry, make_integers
from .scales import result_bits
from .sums import bit_view

_PIECE = 1 << 22
"""Elements of an operand that are made at once on the host: five copies of 64 bits take 160 MB."""

_SUSPECTS = 16
_BESIDE = 512
"""Number of cells of the same row, and of the same column, that are searched for larger correct ones."""

_LINES = 32
"""Number of rows, searched in the same way, where the row and column themselves are not enough."""

_LARGE_AND_RIGHT = 4
_SPOILED_SHARE, _SPOILED_FACTOR = 0.25, 1.5
"""At least this many of the larger cells of a line must be correct, and at most this share wrong, or this many times
the share of all: a dead tile corrupts large and small cells alike."""

_TILE = 128


class Witness(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of a first product that the device computed wrongly: its bits, and the host's largest partial sum.

    ``row`` is a row of the extended A. ``limit_bits``: partial sums below 2**limit_bits are exact in this format.
    """

    operand_set: int
    row: int
    column: int
    want: str
    got: str
    xor: str
    largest_partial_sum: int
    limit_bits: int
    bad_rows: int
    bad_columns: int

    def facts(self) -> dict[str, object]:
        """Return its facts as plain values, under the names of a located mismatch."""
        cell = {"row": self.row, "column": self.column, "want": self.want, "got": self.got, "xor": self.xor}
        return {
            "operand_set": self.operand_set,
            "origin": "first_product",
            "cells": self.bad_rows * self.bad_columns,
            "complete": False,
            "rows": [self.row],
            "columns": [self.column],
            "tiles": [[self.row // _TILE, self.column // _TILE]],
            "examples": [cell],
            "largest_partial_sum": self.largest_partial_sum,
            "limit_bits": self.limit_bits,
        }


def exact_terms(operands: OperandSet, row: int, column: int) -> list[int]:
    """Return the products whose sum is the cell, in the order of K, without any tensor."""
    a, b = operands.a.recipe, operands.b.recipe
    return [entry(a, row, k) * entry(b, k, column) for k in range(a.columns)]


def true_block(operands: OperandSet, rows: Tensor, columns: Tensor, pause: Callable[[], None] = lambda: None) -> Tensor:
    """Return the true integers at *rows* of the extended A and *columns* of B, from the hash alone, on the host.

    All partial sums stay below 2**53, so the fp64 product is exact in any order. Works in pieces and calls *pause*
    before each: the columns of a whole row of a large product would take 8 GiB.
    """
    inner = torch.arange(operands.a.recipe.inner, dtype=torch.int64)
    lines = max(1, _PIECE // len(inner))
    block = torch.empty(len(rows), len(columns), dtype=torch.int64)
    for top in range(0, len(rows), lines):
        a = make_integers(operands.a.recipe, rows[top : top + lines], inner).to(torch.float64)
        for left in range(0, len(columns), lines):
            pause()
            b = make_integers(operands.b.recipe, inner, columns[left : left + lines]).to(torch.float64)
            block[top : top + lines, left : left + lines] = torch.mm(a, b).to(torch.int64)
    return block


def true_bits(
    operands: OperandSet,
    data_type: DataType,
    rows: Tensor,
    columns: Tensor,
    output: torch.dtype,
    pause: Callable[[], None] = lambda: None,
) -> Tensor:
    """Return the bits of the true result in *output* at *rows* of the extended A and *columns* of B, on the host."""
    return _bits(true_block(operands, rows, columns, pause), operands, data_type, (rows, columns), output)


def _bits(
    exact: Tensor, operands: OperandSet, data_type: DataType, cells: tuple[Tensor, Tensor], output: torch.dtype
) -> Tensor:
    return result_bits(exact, operands.a.recipe, operands.b.recipe, data_type, cells, output)


def spread(lines: Tensor, count: int) -> Tensor:
    """Return at most *count* of *lines*, evenly spread: lines wrong at both ends may be right where they cross."""
    return lines if len(lines) <= count else lines[torch.arange(count) * len(lines) // count]


def find_witness(
    operands: OperandSet,
    data_type: DataType,
    result: Tensor,
    suspects: tuple[Tensor, Tensor],
    bad: tuple[Tensor, Tensor],
) -> Witness | None:
    """Return the cell of *result* (host) that only the device can have corrupted, or None.

    *suspects* are rows and columns of cells to check; *bad* all rows and columns that disagree. Where every row and
    every column disagrees, the cause may be common to all devices.
    """
    rows, columns = bad
    if len(rows) == result.shape[0] and len(columns) == result.shape[1]:
        return None
    for row, column in zip(suspects[0].tolist()[:_SUSPECTS], suspects[1].tolist()[:_SUSPECTS], strict=True):
        terms = exact_terms(operands, row, column)
        steps = (0, *accumulate(terms))
        partial = max(map(abs, steps))
        got = int(bit_view(result)[row, column])
        cell, exact = (torch.tensor([row]), torch.tensor([column])), torch.tensor([[sum(terms)]], dtype=torch.int64)
        want = int(_bits(exact, operands, data_type, cell, result.dtype))
        if got == want or partial >> data_type.accumulator_bits:
            continue
        # Over any range of K a device's partial sum is at most the difference between the highest and lowest step.
        if not _is_size_no_excuse(operands, data_type, result, (row, column), max(steps) - min(steps)):
            continue
        width, digits = (1 << (8 * result.element_size())) - 1, 2 * result.element_size()
        return Witness(
            operand_set=operands.index,
            row=row,
            column=column,
            want=f"0x{want & width:0{digits}x}",
            got=f"0x{got & width:0{digits}x}",
            xor=f"0x{(want ^ got) & width:0{digits}x}",
            largest_partial_sum=partial,
            limit_bits=data_type.accumulator_bits,
            bad_rows=len(rows),
            bad_columns=len(columns),
        )
    return None


def _is_size_no_excuse(
    operands: OperandSet, data_type: DataType, result: Tensor, cell: tuple[int, int], swing: int
) -> bool:
    """Return whether sums of at least *swing* are right in the row or column of *cell*, or in many lines.

    An accumulator that is too narrow corrupts most of them, and a few are right by chance. So all of them count, also
    those in rows and columns that disagree: they may be wrong no more often than the smaller ones. Where few final sums
    are as large as the swing, the cell's own lines hold no larger ones.
    """
    row, column = torch.tensor([cell[0]]), torch.tensor([cell[1]])
    rows, columns = _spread(result.shape[0], cell[0]), _spread(result.shape[1], cell[1])
    few = rows[:: max(1, len(rows) // _LINES)][:_LINES]
    verdicts = [_are_large_right(operands, data_type, result, line, swing) for line in ((row, columns), (rows, column))]
    if any(verdicts) or False in verdicts:
        return any(verdicts)
    return bool(_are_large_right(operands, data_type, result, (few, columns), swing))


def _are_large_right(
    operands: OperandSet, data_type: DataType, result: Tensor, part: tuple[Tensor, Tensor], swing: int
) -> bool | None:
    """Return whether the sums of *part* of at least *swing* are right; None where it has too few."""
    exact = true_block(operands, *part)
    bits = _bits(exact, operands, data_type, part, result.dtype)
    wrong = (bit_view(result)[part[0]][:, part[1]] != bits).flatten()
    truth = exact.flatten()
    large = truth.abs() >= swing
    count, spoiled = int(large.sum()), int((wrong & large).sum())
    if count < _LARGE_AND_RIGHT:
        return None
    usual = float(wrong.to(torch.float64).mean())
    return count - spoiled >= _LARGE_AND_RIGHT and spoiled <= count * max(_SPOILED_SHARE, _SPOILED_FACTOR * usual)


def _spread(count: int, without: int) -> Tensor:
    """Return up to 512 evenly spread indices below *count*, except *without*."""
    indices = torch.arange(count)
    indices = indices[indices != without]
    return indices[:: max(1, len(indices) // _BESIDE)][:_BESIDE]
