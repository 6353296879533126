"""Certification: the device's first result is proved exact on the host before its sums become the golden sums.

For exact integers C = A B holds precisely when C v = A (B v) for every v; with hashed 20-bit v and u on both sides
a wrong entry survives with a probability below 1e-6 per vector. That costs matrix-vector products instead of a
reference product. Random 64 x 64 tiles in fp64 are a second, direct witness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from .families import DataType
from .hashing import hash_32, hash_32_tensor, make_key
from .library import Tensor, torch
from .multiply import Multiplication, Multiply
from .operands import Operand, OperandSet
from .recipe import Recipe, make_integers
from .scales import powers_of_two, unit_exponents
from .sums import bit_view, column_sums, row_sums
from .witness import Witness, find_witness, spread, true_bits, true_block

OFFSET_STEP = 128
_VECTOR_BITS = 20
_TILE = 64
_TILES = 4
_SUSPECT_ROWS, _SUSPECT_COLUMNS = 16, 64
_ROWS_PER_CHUNK = 256
_DISPUTED = 16
_CHUNK = 1 << 15  # elements: torch splits larger operations over threads of its own, here the pool does that


class Golden(msgspec.Struct, frozen=True):
    """The sums of a correct result: ``rows`` (M + extra,), ``columns`` (offsets, words), on the device."""

    rows: Tensor
    columns: Tensor


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one operand set: golden sums, or the places where the device's result is wrong.

    ``bad_rows`` are rows of the extended A, ``bad_columns`` columns of the result. ``reason`` is empty when
    certified. ``wrong_share`` is the share of rows or columns that disagree: near 1 indicates a range
    or a library, near 0 a fault. ``witness`` is the cell that proves the device wrong, None without one.
    """

    golden: Golden | None
    reason: str = ""
    bad_rows: tuple[int, ...] = ()
    bad_columns: tuple[int, ...] = ()
    wrong_share: float = 0.0
    witness: Witness | None = None


def certify(
    operands: OperandSet,
    multiplication: Multiplication,
    m: int,
    seed: int,
    run: Multiply | None = None,
    pause: Callable[[], None] = lambda: None,
) -> Certificate:
    """Compute the product of all rows on the device in pieces of *m* rows and prove it on the host.

    *run* replaces ``multiplication.run`` (a planted fault); *pause* is called between pieces.
    """
    measured = run or multiplication.run
    exact = multiplication.exact if multiplication.narrow else measured
    product = _compute(operands, multiplication, m, exact, measured, pause)
    result, narrow = product.exact, product.narrow
    data_type = multiplication.data_type
    if len(product.disputed):
        rows, columns = product.disputed[:, 0], product.disputed[:, 1]
        return _refuted("two products of the same rows differ", rows, columns, operands, data_type, result)
    certificate = _prove(operands, multiplication, result, seed, pause)
    if certificate.reason:
        return certificate
    if narrow is not None:
        rounded = result.to(multiplication.output)
        wrong = torch.nonzero(bit_view(narrow) != bit_view(rounded))
        if len(wrong):
            reason = "the narrow result is not the exact one rounded to nearest even"
            return _refuted(reason, wrong[:, 0], wrong[:, 1], operands, data_type, narrow)
        result = rounded
    return Certificate(golden=golden_of(result, m, operands.a.matrix.device))


class _Product(msgspec.Struct):
    """All rows on the host: the exact result, the narrow one if any, and cells in which two products differ."""

    exact: Tensor
    narrow: Tensor | None
    disputed: Tensor


def _compute(
    operands: OperandSet,
    multiplication: Multiplication,
    m: int,
    exact: Multiply,
    measured: Multiply,
    pause: Callable[[], None],
) -> _Product:
    """Compute all rows in pieces; overlapping pieces must agree. Of a disputed cell the wrong value is kept."""
    total, n = operands.a.recipe.rows, operands.b.recipe.columns
    device = operands.a.matrix.device
    result = torch.empty(total, n, dtype=multiplication.wide)
    narrow = torch.empty(total, n, dtype=multiplication.output) if multiplication.narrow else None
    out = torch.empty(m, n, dtype=multiplication.wide, device=device)
    out_narrow = torch.empty(m, n, dtype=multiplication.output, device=device) if multiplication.narrow else None
    disputed, done = torch.empty(0, 2, dtype=torch.int64), 0
    for start in _piece_starts(total, m):
        pause()
        rows = operands.a.matrix[start : start + m]
        exact(rows, operands.b.matrix, out)
        piece = out.cpu()
        overlap = max(0, done - start)
        cells = torch.nonzero(bit_view(piece)[:overlap] != bit_view(result)[start : start + overlap])
        for row, column in cells[:_DISPUTED].tolist():
            place = torch.tensor([start + row]), torch.tensor([column])
            truth = true_bits(operands, multiplication.data_type, *place, multiplication.wide)
            if torch.equal(truth[0], bit_view(piece)[row, column : column + 1]):
                piece[row, column] = result[start + row, column]
        disputed = torch.cat([disputed, cells + torch.tensor([start, 0])])
        result[start : start + m] = piece
        if narrow is not None and out_narrow is not None:
            measured(rows, operands.b.matrix, out_narrow)
            narrow[start : start + m] = out_narrow.cpu()
        done = start + m
    return _Product(result, narrow, disputed)


def _piece_starts(total: int, m: int) -> list[int]:
    starts = list(range(0, total - m + 1, m))
    return starts if starts[-1] + m == total else [*starts, total - m]


def _prove(
    operands: OperandSet, multiplication: Multiplication, result: Tensor, seed: int, pause: Callable[[], None]
) -> Certificate:
    integers = torch.empty(result.shape, dtype=torch.int32 if result.element_size() == 4 else torch.int64)
    data_type = multiplication.data_type
    rows, columns = (torch.arange(count, dtype=torch.int64) for count in result.shape)
    cells: list[Tensor] = []
    for start in range(0, len(result), _ROWS_PER_CHUNK):
        pause()
        stop = min(start + _ROWS_PER_CHUNK, len(result))
        chunk = result[start:stop]
        if chunk.is_floating_point():
            units = unit_exponents(operands.a.recipe, operands.b.recipe, data_type, rows[start:stop], columns)
            unscaled = (
                chunk.to(torch.float64) * powers_of_two(-units) / data_type.output_factor(operands.a.recipe.inner)
            )
            broken = ~torch.isfinite(unscaled) | (unscaled != unscaled.round()) | (unscaled.abs() > 2.0**53)
            broken |= (unscaled == 0) & (chunk != 0)  # far below the unit of the cell
            if broken.any():
                cells.append(_corners(broken) + torch.tensor([start, 0]))
                continue
            chunk = unscaled
        integers[start:stop] = chunk.to(integers.dtype)
    if cells:
        found = torch.cat(cells)
        return _refuted("results are no integers", found[:, 0], found[:, 1], operands, data_type, result)
    u = _vector(make_key(seed, operands.index, 10), result.shape[0])
    v = _vector(make_key(seed, operands.index, 11), result.shape[1])
    pause()
    a_bv = _times_vector(_entries(operands.a), _times_vector(_entries(operands.b), v))
    cv = _times_vector(_rows_of(integers), v)
    pause()
    ua_b = _vector_times(_vector_times(u, _entries(operands.a)), _entries(operands.b))
    uc = _vector_times(u, _rows_of(integers))
    bad_rows, bad_columns = torch.nonzero(cv != a_bv).flatten(), torch.nonzero(uc != ua_b).flatten()
    if len(bad_rows) or len(bad_columns):
        suspects = _suspects(operands, multiplication, result, bad_rows, bad_columns, pause)
        return _refuted(
            "C v = A (B v) does not hold", bad_rows, bad_columns, operands, data_type, result, suspects=suspects
        )
    return _tiles(operands, data_type, result, integers, seed)


def _corners(broken: Tensor) -> Tensor:
    """Return broken cells that cover every broken row and column of the chunk once: (cells, 2)."""
    rows, columns = torch.nonzero(broken.any(1)).flatten(), torch.nonzero(broken.any(0)).flatten()
    in_rows = torch.stack([rows, broken[rows].to(torch.uint8).argmax(1)], 1)
    return torch.cat([in_rows, torch.stack([broken[:, columns].to(torch.uint8).argmax(0), columns], 1)])


def _suspects(
    operands: OperandSet,
    multiplication: Multiplication,
    result: Tensor,
    bad_rows: Tensor,
    bad_columns: Tensor,
    pause: Callable[[], None],
) -> tuple[Tensor, Tensor]:
    """Return rows and columns of wrong cells among those that disagree. A change may cancel in one direction.

    Each disagreeing row is wrong in one of the disagreeing columns, but not in each: dead tiles are apart.
    """
    rows = spread(bad_rows if len(bad_rows) else torch.arange(result.shape[0]), _SUSPECT_ROWS)
    columns = bad_columns if len(bad_columns) else torch.arange(result.shape[1])
    for start in range(0, len(columns), _SUSPECT_COLUMNS):
        pause()
        some = columns[start : start + _SUSPECT_COLUMNS]
        want = true_bits(operands, multiplication.data_type, rows, some, multiplication.wide)
        wrong = torch.nonzero(want != bit_view(result)[rows][:, some])
        if len(wrong):
            return rows[wrong[:, 0]], some[wrong[:, 1]]
    return rows[:0], columns[:0]


def _tiles(operands: OperandSet, data_type: DataType, result: Tensor, integers: Tensor, seed: int) -> Certificate:
    for number in range(_TILES):
        key = make_key(seed, operands.index, 12, number)
        top = key % (integers.shape[0] - _TILE + 1)
        left = hash_32(key) % (integers.shape[1] - _TILE + 1)
        rows, columns = torch.arange(top, top + _TILE), torch.arange(left, left + _TILE)
        wrong = torch.nonzero(true_block(operands, rows, columns) != integers[top : top + _TILE, left : left + _TILE])
        if len(wrong):
            rows, columns = wrong[:, 0] + top, wrong[:, 1] + left
            return _refuted("a tile differs from fp64", rows, columns, operands, data_type, result)
    return Certificate(golden=None)


def golden_of(result: Tensor, m: int, device: torch.device) -> Golden:
    """Return the sums of *result*, all rows of it, for products of *m* rows."""
    offsets = range(0, len(result) - m + 1, OFFSET_STEP)
    columns = torch.stack([column_sums(result[offset : offset + m]) for offset in offsets])
    return Golden(row_sums(result).to(device), columns.to(device))


def _refuted(
    reason: str,
    rows: Tensor,
    columns: Tensor,
    operands: OperandSet,
    data_type: DataType,
    result: Tensor,
    *,
    suspects: tuple[Tensor, Tensor] | None = None,
) -> Certificate:
    """Return the certificate of a refuted product. *rows*, *columns* are the wrong cells unless *suspects* is given."""
    bad_rows, bad_columns = torch.unique(rows), torch.unique(columns)
    share = max(len(bad_rows) / result.shape[0], len(bad_columns) / result.shape[1])
    return Certificate(
        golden=None,
        reason=reason,
        bad_rows=tuple(bad_rows[:256].tolist()),
        bad_columns=tuple(bad_columns[:256].tolist()),
        wrong_share=share,
        witness=find_witness(operands, data_type, result, suspects or (rows, columns), (bad_rows, bad_columns)),
    )


def _vector(key: int, length: int) -> Tensor:
    hashes = hash_32_tensor(torch.arange(length, dtype=torch.int64).bitwise_xor_(key))
    return hashes >> (32 - _VECTOR_BITS)


Chunks = Iterable[tuple[slice, Callable[[], Tensor]]]


def _entries(operand: Operand) -> Chunks:
    """Yield row ranges of *operand* and functions that make their integers: the host trusts no copy of the device."""
    recipe: Recipe = operand.recipe
    columns = torch.arange(recipe.columns, dtype=torch.int64)
    step = max(1, _CHUNK // recipe.columns)
    for start in range(0, recipe.rows, step):
        rows = torch.arange(start, min(start + step, recipe.rows), dtype=torch.int64)
        yield slice(start, start + len(rows)), partial(make_integers, recipe, rows, columns)


def _rows_of(integers: Tensor) -> Chunks:
    step = max(1, _CHUNK // integers.shape[1])
    for start in range(0, len(integers), step):
        part = slice(start, min(start + step, len(integers)))
        yield part, partial(integers[part].to, torch.int64)


def _times_vector(chunks: Chunks, vector: Tensor) -> Tensor:
    """Return matrix times *vector* modulo 2**64, row ranges in parallel."""
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return torch.cat(list(pool.map(lambda chunk: torch.mv(chunk[1](), vector), chunks)))


def _vector_times(vector: Tensor, chunks: Chunks) -> Tensor:
    """Return *vector* times matrix modulo 2**64, row ranges in parallel."""
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        parts = pool.map(lambda chunk: torch.mv(chunk[1]().t(), vector[chunk[0]]), chunks)
        return sum(parts, start=torch.zeros((), dtype=torch.int64))
