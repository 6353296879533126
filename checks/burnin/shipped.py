"""Sums of known products, shipped with nodevet: exact integers have the same bits on every correct device.

A first product whose sums are the shipped ones is proved without any arithmetic of this host. Sums that differ prove
nothing yet: the product is certified on the host, which tells a wrong product from a table that is out of date.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Callable

import msgspec

from nodevet.checks.reference.tables import load_table

from .certify import Golden, golden_of
from .library import Tensor, torch
from .multiply import Multiplication
from .operands import OperandSet
from .sums import bit_view


class GoldenRow(msgspec.Struct, frozen=True):
    """A row of ``golden_sums.csv``: a product of one operand set, and the digest of its sums in the type ``output``."""

    dtype: str
    output: str
    m: int
    n: int
    k: int
    seed: int
    operand_set: int
    digest: str
    source: str


@functools.lru_cache(maxsize=1)
def _table() -> dict[tuple[object, ...], str]:
    rows = load_table("golden_sums.csv", GoldenRow)
    return {(row.dtype, row.output, row.m, row.n, row.k, row.seed, row.operand_set): row.digest for row in rows}


def shipped_digest(
    multiplication: Multiplication, shape: tuple[int, int, int], seed: int, operand_set: int
) -> str | None:
    """Return the digest of the sums of this product, or None where it is not a known one."""
    output = str(multiplication.output).removeprefix("torch.")
    return _table().get((multiplication.data_type.name, output, *shape, seed, operand_set))


def sums_digest(golden: Golden) -> str:
    """Return 32 hexadecimal digits over the sums of *golden*."""
    digest = hashlib.sha256()
    for sums in (golden.rows, golden.columns):
        values = sums.flatten().tolist()
        digest.update(struct.pack(f"<{len(values)}q", *values))
    return digest.hexdigest()[:32]


def first_sums(
    operands: OperandSet, multiplication: Multiplication, m: int, pause: Callable[[], None] = lambda: None
) -> Golden | None:
    """Return the sums of the first product of all rows, in pieces of *m*; None where two pieces disagree."""
    total, n = operands.a.recipe.rows, operands.b.recipe.columns
    device = operands.a.matrix.device
    result = torch.empty(total, n, dtype=multiplication.output)
    out = torch.empty(m, n, dtype=multiplication.output, device=device)
    done = 0
    for start in (*range(0, total - m, m), total - m):
        pause()
        multiplication.run(operands.a.matrix[start : start + m], operands.b.matrix, out)
        piece = out.cpu()
        if not _agree(piece[: done - start], result[start:done]):
            return None
        result[start : start + m] = piece
        done = start + m
    return golden_of(result, m, device)


def _agree(one: Tensor, other: Tensor) -> bool:
    return torch.equal(bit_view(one), bit_view(other))


def wrong_rows(first: Golden, right: Golden) -> tuple[int, ...]:
    """Return the rows in which the sums of the *first* product are not the *right* ones, at most 256."""
    return tuple(torch.nonzero(first.rows != right.rows).flatten()[:256].tolist())
