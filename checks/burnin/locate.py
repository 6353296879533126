"""Diagnosis of a wrong result: the cells, the bits, the origin, and whether it repeats.

The true value of a suspect cell is computed on the host from the hash, so that the suspected device is not its own
witness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from .library import Tensor, torch
from .multiply import Multiplication
from .operands import Operand, OperandSet, digest
from .ring import Product, Ring
from .sums import bit_view
from .witness import spread, true_bits

Origin = str
"""``output``, ``operand_a``, ``operand_b``; ``lost_write``: the slot, or part of it, was never written; ``checksum``:
every cell is right, and the device's copy or calculation of their sums is wrong."""

_SUSPECTS = 256
_ELEMENTS = 1 << 27
"""Elements of an operand that a diagnosis makes on the host, which takes a few seconds."""

_EXAMPLES = 64
_RERUNS = 3
_TILE = 128


class Cell(msgspec.Struct, frozen=True):
    """One wrong cell of the result with its bits: expected, found, and their difference."""

    row: int
    column: int
    want: str
    got: str
    xor: str


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """One product whose bits are wrong.

    ``rows`` and ``columns`` are those with a wrong cell (up to 256 of each were checked, ``complete`` says
    whether that was all); ``flipped_bits`` counts cells by the number of different bits; ``tiles`` are 128 x 128.
    ``reruns_wrong`` of ``reruns`` repetitions were wrong again: none indicates a transient fault, all a
    hard one. ``operand_rows`` are the corrupted rows of the blamed operand.
    """

    product: int
    slot: int
    operand_set: int
    offset: int
    origin: Origin
    cells: int
    complete: bool
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    tiles: tuple[tuple[int, int], ...]
    flipped_bits: dict[str, int]
    not_a_number: int
    reruns: int
    reruns_wrong: int
    operand_rows: tuple[int, ...] = ()
    examples: tuple[Cell, ...] = ()

    @property
    def persistence(self) -> str:
        """Return ``transient``, ``intermittent`` or ``hard``."""
        if self.reruns_wrong == 0:
            return "transient"
        return "hard" if self.reruns_wrong == self.reruns else "intermittent"

    def facts(self) -> dict[str, object]:
        """Return all fields and the persistence as plain values for the wire and for a result's conditions."""
        plain: dict[str, object] = msgspec.json.decode(msgspec.json.encode(self))
        return plain | {"persistence": self.persistence}


def locate(
    ring: Ring, product: Product, multiplication: Multiplication, pause: Callable[[], None] = lambda: None
) -> Mismatch:
    """Diagnose the slot of *product*, which must not have been written since; runs three more products.

    *pause* is called at least every second.
    """
    frozen = ring.slots[product.slot].clone()
    rows, words = ring.wrong_sums(product, frozen)
    operands = ring.sets[product.operand_set]
    suspects, complete = _suspects(rows, words, frozen, operands.a.recipe.inner)
    data_type, output = multiplication.data_type, multiplication.output
    want = true_bits(operands, data_type, suspects[0] + product.offset, suspects[1], output, pause)
    device = frozen.device
    got = bit_view(frozen)[suspects[0].to(device)][:, suspects[1].to(device)].cpu()
    wrong = torch.nonzero(want != got)
    origin, operand_rows = _origin(ring, product, multiplication, suspects, want != got, got, pause)
    if origin == "output" and complete and not len(wrong):
        origin = "checksum"
    wrong_again = _rerun(ring, product, frozen)
    row_numbers, column_numbers = suspects[0][wrong[:, 0]], suspects[1][wrong[:, 1]]
    values = frozen[row_numbers.to(device), column_numbers.to(device)]
    cells = [
        _cell(int(suspects[0][i]), int(suspects[1][j]), int(want[i, j]), int(got[i, j]), got.element_size())
        for i, j in wrong[:_EXAMPLES].tolist()
    ]
    tiles = torch.unique(torch.stack([row_numbers // _TILE, column_numbers // _TILE], 1), dim=0)
    return Mismatch(
        product=product.number,
        slot=product.slot,
        operand_set=product.operand_set,
        offset=product.offset,
        origin=origin,
        cells=len(wrong),
        complete=complete,
        rows=tuple(torch.unique(row_numbers).tolist()),
        columns=tuple(torch.unique(column_numbers).tolist()),
        tiles=tuple((int(i), int(j)) for i, j in tiles[:_EXAMPLES].tolist()),
        flipped_bits=_flipped_bits(want, got, wrong),
        not_a_number=int(torch.isnan(values).sum()) if values.is_floating_point() else 0,
        reruns=_RERUNS,
        reruns_wrong=wrong_again,
        operand_rows=operand_rows,
        examples=tuple(cells),
    )


def _suspects(rows: Tensor, words: Tensor, result: Tensor, inner: int) -> tuple[tuple[Tensor, Tensor], bool]:
    """Return the rows and columns to check, and whether these are all that disagree.

    A change that cancels in one direction leaves only the other. *inner* is K: so many elements of an operand are made
    for each row and column.
    """
    per_word = 8 // result.element_size()
    columns = (words.unsqueeze(1) * per_word + torch.arange(per_word)).flatten()
    every_row, every_column = torch.arange(result.shape[0]), torch.arange(result.shape[1])
    if len(rows) == 0:
        rows = every_row
    elif len(columns) == 0:
        columns = every_column
    one_long = len(rows) <= _SUSPECTS or len(columns) <= _SUSPECTS
    limit = max(_SUSPECTS, _ELEMENTS // inner) if one_long else _SUSPECTS
    complete = len(rows) <= limit and len(columns) <= limit
    return (spread(rows, limit), spread(columns, limit)), complete


def _origin(
    ring: Ring,
    product: Product,
    multiplication: Multiplication,
    suspects: tuple[Tensor, Tensor],
    wrong: Tensor,
    got: Tensor,
    pause: Callable[[], None],
) -> tuple[Origin, tuple[int, ...]]:
    """Return the origin: the operands where their bits changed, a lost write where the old result is still there."""
    operands = ring.sets[product.operand_set]
    for name, operand in (("operand_a", operands.a), ("operand_b", operands.b)):
        changed = _changed_rows(operand)
        if changed is not None:
            return name, changed
    if product.before is not None:
        earlier_set, earlier_offset = product.before
        earlier = true_bits(
            ring.sets[earlier_set],
            multiplication.data_type,
            suspects[0] + earlier_offset,
            suspects[1],
            multiplication.output,
            pause,
        )
        if wrong.any() and torch.equal(earlier[wrong], got[wrong]):
            return "lost_write", ()
    return "output", ()


class ChangedOperand(msgspec.Struct, frozen=True, kw_only=True):
    """An operand whose bits differ from those at the start of the run, although no product showed it."""

    operand_set: int
    origin: Origin
    operand_rows: tuple[int, ...]
    cells: int = 0
    complete: bool = False

    def facts(self) -> dict[str, object]:
        """Return its facts as plain values, under the names of a located mismatch."""
        plain: dict[str, object] = msgspec.json.decode(msgspec.json.encode(self))
        return plain


def changed_operands(sets: list[OperandSet]) -> list[ChangedOperand]:
    """Return the operands of *sets* whose bits have changed since they were made, with their rows in memory."""
    changed = []
    for each in sets:
        for name, operand in (("operand_a", each.a), ("operand_b", each.b)):
            rows = _changed_rows(operand)
            if rows is not None:
                changed.append(ChangedOperand(operand_set=each.index, origin=name, operand_rows=rows))
    return changed


def _changed_rows(operand: Operand) -> tuple[int, ...] | None:
    """Return the rows whose bits have changed, None if none has; empty where the changes cancel in each row."""
    now = digest(operand.stored)
    rows = torch.nonzero(now.rows != operand.digest.rows).flatten()
    if not len(rows) and torch.equal(now.columns, operand.digest.columns):
        return None
    return tuple(rows[:_EXAMPLES].tolist())


def _rerun(ring: Ring, product: Product, frozen: Tensor) -> int:
    wrong = 0
    for _ in range(_RERUNS):
        again = frozen.clone()
        ring.recompute(product, again)
        rows, words = ring.wrong_sums(product, again)
        wrong += bool(len(rows) or len(words))
    return wrong


def _flipped_bits(want: Tensor, got: Tensor, wrong: Tensor) -> dict[str, int]:
    mask = (1 << (8 * got.element_size())) - 1
    differences = (want ^ got)[wrong[:, 0], wrong[:, 1]].tolist()
    counts = Counter((difference & mask).bit_count() for difference in differences)
    return {str(bits): counts[bits] for bits in sorted(counts)}


def _cell(row: int, column: int, want: int, got: int, size: int) -> Cell:
    mask, digits = (1 << (8 * size)) - 1, 2 * size
    return Cell(row, column, *(f"0x{value & mask:0{digits}x}" for value in (want, got, want ^ got)))
