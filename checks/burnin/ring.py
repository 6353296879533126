"""The ring of result slots: multiply into one slot, check an older one, keep the verdict on the device.

The verdict on a product is its own number, which the device writes where its sums agree. A device that accepts work and
does none leaves the old number there, and none of its products counts as right.

A slot is checked ``lag`` products after it was written, when the caches hold newer data, so that the memory itself is
tested. No slot gets the same operand set twice in a row (``rotation.py``): a write that never happened leaves the
result of another operand set behind. Each product takes its rows of A at another offset.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from enum import StrEnum

import msgspec

from nodevet.checks.reference.limits import from_table

from .certify import OFFSET_STEP, Golden
from .hashing import make_key
from .library import Tensor, torch
from .multiply import Multiply
from .operands import OperandSet
from .rotation import keeps_operand_set, operand_set_of
from .sums import column_sums, row_sums


class Checking(StrEnum):
    """The sums compared per product: both, or rows and columns in turn at half the memory traffic."""

    BOTH = "both"
    ALTERNATE = "alternate"


def checking_for(kind: str, data_type: str) -> Checking:
    """Return the sums compared per product: both where that costs about 2 % of the product's time.

    Relative to their products, processors read a result back faster than accelerators; only their int8
    products are too fast for both.
    """
    return Checking.BOTH if kind == "cpu" and data_type != "int8" else Checking.ALTERNATE


def checked_share(overhead: float | None, kind: str) -> float:
    """Return the share of products to check on a device of *kind* on which checking each costs *overhead*, a ratio.

    On accelerators K is limited, so that checking can cost more than 2 %: then a part is drawn. Processors check all.
    """
    limit = from_table("burnin.checking_overhead")
    if kind == "cpu" or overhead is None or not limit.holds(overhead):
        return 1.0
    return limit.value / overhead


def drawing(share: float) -> Callable[[], bool]:
    """Return a function that is true with the probability *share*.

    It asks the system for randomness: a product is drawn after it was written, and neither the device nor a library
    can know which.
    """
    if share >= 1.0:
        return lambda: True
    source = random.SystemRandom()
    return lambda: source.random() < share


class Product(msgspec.Struct, frozen=True):
    """One product: its number, slot, operand set and row offset, and the previous content of the slot."""

    number: int
    slot: int
    operand_set: int
    offset: int
    before: tuple[int, int] | None


class Ring:
    """A sequence of products into *slots* (each (M, N)), checked *lag* products later against the *goldens*.

    ``run`` is the multiplication under test. Not thread-safe. Products are numbered from 0.
    """

    def __init__(
        self,
        run: Multiply,
        sets: list[OperandSet],
        goldens: list[Golden],
        slots: list[Tensor],
        *,
        lag: int,
        seed: int,
        checking: Checking,
        draw: Callable[[], bool] = lambda: True,
    ) -> None:
        """Prepare the ring; a number of slots in which one keeps its operand set would hide lost writes.

        *draw* returns whether the next product is checked.
        """
        if keeps_operand_set(len(slots), len(sets)) or lag >= len(slots):
            raise ValueError(f"{len(slots)} slots with lag {lag} for {len(sets)} operand sets")
        self.slots = slots
        self.sets = sets
        self._run = run
        self._goldens = goldens
        self._lag = lag
        self._seed = seed
        self._checking = checking
        self._draw = draw
        self._m = slots[0].shape[0]
        self._offsets = (sets[0].a.matrix.shape[0] - self._m) // OFFSET_STEP + 1
        self._products: list[Product | None] = [None] * len(slots)
        self._unchecked: list[Product] = []
        self._number = 0

    @property
    def longest_batch(self) -> int:
        """Return the largest number of products before a slot that was found wrong is written again."""
        return len(self.slots) - self._lag

    def run_batch(self, count: int) -> Callable[[], tuple[list[Product], list[Product]]]:
        """Start *count* products, each followed by the check of the one *lag* before.

        Returns a function that waits for the device and returns (checked, failed) products. Call it before the
        next batch, and keep *count* within ``longest_batch``, so that a failed slot is still unchanged.
        """
        proofs = self._proofs(count)
        checked: list[Product | None] = []
        for position in range(count):
            self._multiply()
            checked.append(self._check_if_drawn(proofs[position]) if len(self._unchecked) > self._lag else None)
        return lambda: _outcome(checked, proofs)

    def run_unchecked(self, count: int) -> None:
        """Start *count* products without checks, as the baseline for the cost of checking."""
        for _ in range(count):
            self._multiply()
            if len(self._unchecked) > self._lag:
                self._unchecked.pop(0)

    def run_ahead(self, count: int) -> None:
        """Start *count* products, at most ``longest_batch``, whose checks ``catch_up`` runs later."""
        for _ in range(count):
            self._multiply()

    def catch_up(self) -> tuple[list[Product], list[Product]]:
        """Check the products of ``run_ahead`` beyond the lag; return (checked, failed) products."""
        return self._check_oldest(max(0, len(self._unchecked) - self._lag))

    def drain(self) -> tuple[list[Product], list[Product]]:
        """Check all unchecked products; return (checked, failed) products."""
        return self._check_oldest(len(self._unchecked))

    def _check_oldest(self, count: int) -> tuple[list[Product], list[Product]]:
        proofs = self._proofs(count)
        checked = [self._check_if_drawn(proofs[position]) for position in range(len(proofs))]
        return _outcome(checked, proofs)

    def operands_of(self, product: Product) -> tuple[Tensor, Tensor]:
        """Return the matrices that *product* multiplied: (M, K) and (K, N)."""
        chosen = self.sets[product.operand_set]
        return chosen.a.matrix[product.offset : product.offset + self._m], chosen.b.matrix

    def recompute(self, product: Product, out: Tensor) -> None:
        """Multiply the operands of *product* again into *out*."""
        self._run(*self.operands_of(product), out)

    def wrong_sums(self, product: Product, result: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices of the rows and of the 64-bit columns of *result* that disagree with the golden sums."""
        rows, columns = self._expected(product)
        return (
            torch.nonzero(row_sums(result) != rows).flatten().cpu(),
            torch.nonzero(column_sums(result) != columns).flatten().cpu(),
        )

    def _multiply(self) -> None:
        number, slot = self._number, self._number % len(self.slots)
        earlier = self._products[slot]
        product = Product(
            number,
            slot,
            operand_set_of(number, len(self.sets)),
            OFFSET_STEP * (make_key(self._seed, number) % self._offsets),
            None if earlier is None else (earlier.operand_set, earlier.offset),
        )
        self._run(*self.operands_of(product), self.slots[slot])
        self._products[slot] = product
        self._unchecked.append(product)
        self._number += 1

    def _check_if_drawn(self, proof: Tensor) -> Product | None:
        if self._draw():
            return self._check(proof)
        self._unchecked.pop(0)
        return None

    def _check(self, proof: Tensor) -> Product:
        product = self._unchecked.pop(0)
        result = self.slots[product.slot]
        rows, columns = self._expected(product)
        visit = product.number // len(self.slots)
        agree = []
        if self._checking is Checking.BOTH or visit % 2 == 0:
            agree.append((row_sums(result) == rows).all())
        if self._checking is Checking.BOTH or visit % 2 == 1:
            agree.append((column_sums(result) == columns).all())
        torch.mul(functools.reduce(torch.logical_and, agree), _proof_of(product), out=proof)
        return product

    def _expected(self, product: Product) -> tuple[Tensor, Tensor]:
        golden = self._goldens[product.operand_set]
        rows = golden.rows[product.offset : product.offset + self._m]
        return rows, golden.columns[product.offset // OFFSET_STEP]

    def _proofs(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int64, device=self.slots[0].device)


def _proof_of(product: Product) -> int:
    """Return the number that the device writes where *product* is right, different for every product of this ring."""
    return product.number + 1


def _outcome(checked: list[Product | None], proofs: Tensor) -> tuple[list[Product], list[Product]]:
    """Read the proofs from the device once; a single copy covers the whole batch."""
    values = proofs.tolist()
    done = [product for product in checked if product is not None]
    pairs = zip(checked, values, strict=True)
    return done, [product for product, proof in pairs if product is not None and proof != _proof_of(product)]
