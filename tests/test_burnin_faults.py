"""Planted faults are found, located and blamed rightly; healthy products raise no alarm."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from fakes.burnin import CPU_FORMATS, SEED, BatchClock, K, M, N, make_ring, make_stage, prepared
from torch.utils._python_dispatch import TorchDispatchMode

from nodevet.checks.burnin.certify import Golden, certify
from nodevet.checks.burnin.faults import STUCK_COLUMNS, Expected, OutputFault, Planted, slow_down
from nodevet.checks.burnin.library import Tensor, torch
from nodevet.checks.burnin.locate import Mismatch, locate
from nodevet.checks.burnin.multiply import Multiply
from nodevet.checks.burnin.operands import build_sets, make_sets
from nodevet.checks.burnin.ring import Checking, Product, Ring, checking_for, drawing
from nodevet.checks.burnin.scales import unit_exponents
from nodevet.checks.burnin.selftest import self_test
from nodevet.checks.burnin.sums import bit_view

WIDTH = {"fp32": 32, "bf16": 16, "int8": 32, "fp64": 64}
ALWAYS = {"every_bit", "opposite_pair", "stuck_lanes", "swapped_rows", "lost_tile", "skipped_product"}
OTHERS = {"wrong_element_of_a", "stuck_before_certification", "late_batch"}


def run_until_wrong(ring: Ring, dtype: str, products: int = 16) -> Mismatch | None:
    """Run single products until one is wrong and return what is told of it."""
    for _ in range(products):
        _checked, failed = ring.run_batch(1)()
        if failed:
            return locate(ring, failed[0], prepared(dtype).multiplication)
    return None


def flip(row: int, column: int, bit: int) -> OutputFault:
    """Return a fault that flips one bit of one result."""

    def spoil(out: Tensor, _before: Tensor, _key: int) -> Expected:
        bits = bit_view(out)
        size = 8 * out.element_size()
        bits[row, column] ^= (1 << bit) - ((1 << size) if bit == size - 1 else 0)
        return Expected(cells=frozenset({(row, column)}))

    return OutputFault(name="flip", spoil=spoil)


@pytest.mark.parametrize("kept", ["rows", "columns"])
def test_a_sum_that_went_bad_is_not_blamed_on_a_result(kept: str) -> None:
    """Where every cell is right, what the device keeps of their sums is wrong: no cell and no operand is named."""
    ready = prepared("fp32")
    ring = make_ring(ready)
    spoiled = getattr(ready.goldens[0], kept)
    place = tuple(0 for _ in spoiled.shape)
    before = spoiled[place].clone()
    spoiled[place] = before ^ 4
    try:
        found = run_until_wrong(ring, "fp32", products=400)
    finally:
        spoiled[place] = before
    assert found is not None
    assert (found.origin, found.cells, found.persistence, found.rows) == ("checksum", 0, "hard", ())


@pytest.mark.parametrize("checking", list(Checking))
@pytest.mark.parametrize("dtype", CPU_FORMATS)
def test_self_test_finds_and_locates_every_planted_fault(dtype: str, checking: Checking) -> None:
    """Each fault of the specification is found, in the right place and with the right blame, in every format."""
    plantings = self_test(make_stage(prepared(dtype), checking))
    assert [planting for planting in plantings if not planting.located] == []
    floating = {"not_a_number"} if dtype != "int8" else set()
    assert {planting.fault for planting in plantings} == ALWAYS | OTHERS | floating


def test_self_test_fails_where_the_golden_is_wrong() -> None:
    """A checker that alarms at everything locates nothing: no planted fault in a result counts as found."""
    ready = prepared("fp32")
    wrong = [Golden(golden.rows + 1, golden.columns + 1) for golden in ready.goldens]
    stage = msgspec.structs.replace(make_stage(ready, Checking.BOTH), goldens=wrong)
    located = {planting.fault for planting in self_test(stage) if planting.located}
    assert located == {"stuck_before_certification", "late_batch"}


@pytest.mark.parametrize("busy_batches", [0, 8, 16, 10**6])
def test_late_batch_is_found_on_a_busy_machine(busy_batches: int) -> None:
    """Neighbours that slow every batch twentyfold do not make a healthy device's self-test fail."""
    clock = BatchClock(busy_batches, slowness=20.0)
    plantings = self_test(make_stage(prepared("int8"), Checking.ALTERNATE, clock))
    assert [planting.located for planting in plantings if planting.fault == "late_batch"] == [True]


def test_self_test_fails_where_the_blame_is_not_the_planted_one() -> None:
    """Found is not enough: where another cell is wrong beside the planted ones, the fault counts as not located."""
    ready = prepared("fp32")
    stage = make_stage(ready, Checking.BOTH)

    def also_wrong(a: Tensor, b: Tensor, out: Tensor) -> None:
        ready.multiplication.run(a, b, out)
        # Only the first spoiled product writes this slot from this operand set.
        if out is stage.slots[1] and b is ready.sets[2].b.matrix:
            bit_view(out)[255, 1] ^= 1 << 22

    multiplication = msgspec.structs.replace(ready.multiplication, run=also_wrong, exact=also_wrong)
    plantings = self_test(msgspec.structs.replace(stage, multiplication=multiplication))
    assert all(planting.found for planting in plantings)
    located = {planting.fault for planting in plantings if planting.located}
    assert located <= {"stuck_before_certification", "late_batch", "skipped_product"}
    assert all(planting.detail for planting in plantings if not planting.located)


@pytest.mark.parametrize("dtype", CPU_FORMATS)
def test_every_single_bit_of_a_result_is_seen(dtype: str) -> None:
    """A flip of any one bit is found with its cell and its xor, whatever the bit is worth."""
    for bit in range(WIDTH[dtype]):
        row, column = (17 * bit) % M, (29 * bit + 5) % N
        planted = Planted(prepared(dtype).multiplication.run, flip(row, column, bit), first=1, key=0)
        mismatch = run_until_wrong(make_ring(prepared(dtype), planted), dtype, products=4)
        assert mismatch is not None, f"bit {bit} was not seen"
        assert (mismatch.product, mismatch.rows, mismatch.columns) == (1, (row,), (column,))
        assert int(mismatch.examples[0].xor, 16) == 1 << bit
        assert mismatch.flipped_bits == {"1": 1}
        assert mismatch.tiles == ((row // 128, column // 128),)
        assert mismatch.persistence == "transient"
        assert mismatch.complete


def test_report_tells_expected_and_found_bits() -> None:
    """The bits that the report expects are those that an untouched product has in that cell."""
    ready = prepared("fp32")
    planted = Planted(ready.multiplication.run, flip(3, 4, 30), first=0, key=0)
    ring = make_ring(ready, planted)
    mismatch = run_until_wrong(ring, "fp32")
    assert mismatch is not None
    cell = mismatch.examples[0]
    product = Product(mismatch.product, mismatch.slot, mismatch.operand_set, mismatch.offset, None)
    out = torch.zeros(M, N)
    ring.recompute(product, out)
    assert int(cell.want, 16) == int(bit_view(out)[3, 4]) & 0xFFFFFFFF
    assert int(cell.got, 16) == int(cell.want, 16) ^ (1 << 30)


def test_dead_tiles_that_lie_apart_are_located() -> None:
    """Of more lines than are looked at, not the first ones of both directions: these may cross where all is right."""
    ready, side = prepared("fp32"), 512
    recipes = make_sets(ready.multiplication.data_type, side, side, K, 256, SEED)
    sets = build_sets(recipes, ready.multiplication.element, torch.device("cpu"))
    certificates = [certify(each, ready.multiplication, side, SEED) for each in sets]
    goldens = [each.golden for each in certificates if each.golden is not None]

    def dead(a: Tensor, b: Tensor, out: Tensor) -> None:
        ready.multiplication.run(a, b, out)
        for tile in range(0, side, 128):
            out[tile : tile + 128, side - tile - 128 : side - tile] = 1

    slots = [torch.zeros(side, side) for _ in range(4)]
    ring = Ring(dead, sets, goldens, slots, lag=1, seed=SEED, checking=Checking.BOTH)
    found = run_until_wrong(ring, "fp32")
    assert found is not None
    assert (found.cells > 0, found.complete) == (True, False)
    assert found.tiles == ((0, 3), (1, 2), (2, 1), (3, 0))


def test_products_are_drawn_in_every_slot_and_only_these_count() -> None:
    """A quarter of the products is checked, the faults of the others pass, and no slot is favoured."""
    ready = prepared("fp32")
    ring = make_ring(ready, slots=7, lag=3, draw=drawing(0.25))
    checked: list[Product] = []
    for _ in range(700):
        done, failed = ring.run_batch(4)()
        assert failed == []
        checked += done
    assert 550 < len(checked) < 850
    slots = Counter(product.slot for product in checked)
    assert set(slots) == set(range(7))
    assert min(slots.values()) > 50


def test_a_fault_in_a_product_that_is_not_drawn_passes() -> None:
    """And one in a product that is drawn does not."""
    ready = prepared("fp32")
    for first, found in ((8, True), (9, False)):
        planted = Planted(ready.multiplication.run, flip(3, 4, 7), first=first, key=0)
        ring = make_ring(ready, planted, draw=itertools.cycle([True, False]).__next__)
        failed = [product.number for _ in range(20) for product in ring.run_batch(1)()[1]]
        assert failed == ([first] if found else [])


def test_a_wrong_row_of_a_large_product_is_located_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host makes few elements at a time and lets its caller breathe between; the answer is the same."""
    ready = prepared("fp32")

    def spoil(a: Tensor, b: Tensor, out: Tensor) -> None:
        ready.multiplication.run(a, b, out)
        bit_view(out)[7] ^= 1 << 20

    def found(pause: Callable[[], None]) -> Mismatch:
        ring = make_ring(ready, spoil)
        product = next(product for _ in range(9) for product in ring.run_batch(1)()[1])
        return locate(ring, product, ready.multiplication, pause)

    whole = found(lambda: None)
    pauses: list[None] = []
    monkeypatch.setattr("nodevet.checks.burnin.witness._PIECE", K * 32)
    assert found(lambda: pauses.append(None)) == whole
    assert (whole.rows, len(whole.columns), whole.complete) == ((7,), N, True)
    assert len(pauses) >= N // 32
    monkeypatch.setattr("nodevet.checks.burnin.locate._ELEMENTS", K)
    monkeypatch.setattr("nodevet.checks.burnin.locate._SUSPECTS", 16)
    limited = found(lambda: None)
    assert (limited.rows, len(limited.columns), limited.complete) == ((7,), 16, False)


def test_lasting_fault_is_hard() -> None:
    """A fault that comes again in all three repetitions is told as hard."""
    broken = Planted(prepared("fp32").multiplication.run, STUCK_COLUMNS, first=2, key=64)
    mismatch = run_until_wrong(make_ring(prepared("fp32"), broken), "fp32")
    assert mismatch is not None
    assert (mismatch.reruns, mismatch.reruns_wrong, mismatch.persistence) == (3, 3, "hard")
    left = 32 * (64 % (N // 32))
    assert mismatch.columns == tuple(range(left, left + 32))


@pytest.mark.parametrize("operand", ["a", "b"])
def test_corrupted_operand_is_blamed_before_the_result(operand: str) -> None:
    """A bit that changed in A or B is told as such with its row, and not as a fault of the arithmetic."""
    ready = prepared("bf16")
    ring = make_ring(ready)
    stored = getattr(ready.sets[0], operand).stored
    row = 130
    bit_view(stored)[row, 7] ^= -(2**15)
    try:
        mismatch = run_until_wrong(ring, "bf16")
    finally:
        bit_view(stored)[row, 7] ^= -(2**15)
    assert mismatch is not None
    assert (mismatch.origin, mismatch.operand_rows) == (f"operand_{operand}", (row,))
    assert mismatch.persistence == "hard"
    if operand == "a":
        assert mismatch.rows == (row - mismatch.offset,)
    else:
        assert len(mismatch.rows) > M // 2


@pytest.mark.parametrize("dtype", CPU_FORMATS)
def test_lane_that_is_always_wrong_is_refused_by_certification(dtype: str) -> None:
    """A fault that was there from the first product on never becomes the golden, and its columns are told."""
    ready = prepared(dtype)
    planted = Planted(ready.multiplication.run, STUCK_COLUMNS, first=0, key=3)
    certificate = certify(ready.sets[0], ready.multiplication, M, SEED, run=planted)
    assert certificate.golden is None
    assert certificate.bad_columns == tuple(range(96, 128))
    assert 0 < certificate.wrong_share <= 1


def test_single_wrong_cell_is_refused_by_certification() -> None:
    """Even a result that is off by one in one cell is no product of its operands."""

    def off_by_one(a: Tensor, b: Tensor, out: Tensor) -> None:
        torch.mm(a, b, out=out)
        bit_view(out)[100, 50] += 1

    ready = prepared("fp32")
    certificate = certify(ready.sets[1], ready.multiplication, M, SEED, run=off_by_one)
    assert certificate.golden is None
    assert 50 in certificate.bad_columns
    assert 100 in certificate.bad_rows
    assert certificate.wrong_share < 0.1


def test_a_first_result_far_below_its_unit_is_refused() -> None:
    """A cell that should be zero and holds a tiny number is wrong, although the number is lost when it is unscaled."""
    ready = prepared("fp64")
    operands = ready.sets[2]
    every = torch.arange(M), torch.arange(N)
    units = unit_exponents(operands.a.recipe, operands.b.recipe, ready.multiplication.data_type, *every)
    row, column = divmod(int(units.argmax()), N)

    def tiny(a: Tensor, b: Tensor, out: Tensor) -> None:
        torch.mm(a, b, out=out)
        out[row, column] = 5e-324

    certificate = certify(operands, ready.multiplication, M, SEED, run=tiny)
    assert certificate.reason == "results are no integers"
    assert (row, column) == (certificate.bad_rows[0], certificate.bad_columns[0])


def test_products_that_differ_from_each_other_are_refused_by_certification() -> None:
    """Where pieces overlap, the same rows must come out twice with the same bits."""
    ready = prepared("fp32")
    planted = Planted(ready.multiplication.run, flip(M - 1, 0, 20), first=1, key=0)
    certificate = certify(ready.sets[0], ready.multiplication, M, SEED, run=planted)
    assert certificate.golden is None


@pytest.mark.parametrize("dtype", CPU_FORMATS)
def test_healthy_products_raise_no_alarm(dtype: str) -> None:
    """Over 400 products with changing operands, offsets and slots nothing is reported, and each is checked once."""
    ring = make_ring(prepared(dtype), slots=7, lag=3)
    checked: list[Product] = []
    for _ in range(100):
        done, failed = ring.run_batch(4)()
        assert failed == []
        checked += done
    done, failed = ring.drain()
    assert failed == []
    assert [product.number for product in checked + done] == list(range(400))
    assert len({product.offset for product in checked}) == 3


def test_slot_keeps_no_operand_set() -> None:
    """Each slot meets each operand set in turn: a lost write leaves a result that belongs to another set."""
    ring = make_ring(prepared("fp32"), slots=5, lag=1)
    products = [product for _ in range(15) for product in ring.run_batch(1)()[0]]
    assert all(product.before is None or product.before[0] != product.operand_set for product in products)
    assert {product.operand_set for product in products if product.slot == 2} == {0, 1, 2}


def test_ring_that_would_hide_lost_writes_is_refused() -> None:
    """A ring length that the operand sets divide, or a lag as long as the ring, is a mistake of the caller."""
    with pytest.raises(ValueError, match="6 slots"):
        make_ring(prepared("fp32"), slots=6)
    with pytest.raises(ValueError, match="lag 4"):
        make_ring(prepared("fp32"), slots=4, lag=4)


def test_result_is_checked_when_newer_ones_filled_the_caches() -> None:
    """With a lag of three, a product is checked after three more, and the slot is whole until the batch is read."""
    ring = make_ring(prepared("fp32"), slots=7, lag=3)
    assert ring.longest_batch == 4
    assert [len(ring.run_batch(1)()[0]) for _ in range(4)] == [0, 0, 0, 1]


def test_unchecked_products_are_not_counted_as_checked() -> None:
    """A batch without checks leaves nothing behind that a later batch would count."""
    ring = make_ring(prepared("fp32"), slots=7, lag=3)
    ring.run_unchecked(10)
    done, failed = ring.run_batch(4)()
    assert [product.number for product in done] == [7, 8, 9, 10]
    assert failed == []


def test_slowed_call_is_held_up_once() -> None:
    """A planted delay holds up the named call and no other."""
    held: list[int] = []
    calls: list[int] = []
    run: Multiply = slow_down(lambda a, b, out: calls.append(0), call=2, hold=lambda: held.append(len(calls)))
    nothing = torch.empty(0)
    for _ in range(5):
        run(nothing, nothing, nothing)
    assert (held, len(calls)) == ([2], 5)


@pytest.mark.parametrize(
    ("kind", "dtype", "checking"),
    [
        ("cpu", "fp32", Checking.BOTH),
        ("cpu", "int8", Checking.ALTERNATE),
        ("cuda", "bf16", Checking.ALTERNATE),
    ],
)
def test_checking_is_chosen_by_its_cost(kind: str, dtype: str, checking: Checking) -> None:
    """Both directions of sums are compared only where that costs about 2 % of the product."""
    assert checking_for(kind, dtype) is checking


class NoWork(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A device that takes every piece of work, says that it is done, and does none: results are as the memory was."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Leave what *func* writes into as it is, and what it allocates at zero; a view is no work."""
        given = kwargs or {}
        if "out" in given:
            return given["out"]
        if func.is_view or func.overloadpacket is torch.ops.aten._local_scalar_dense:
            return func(*args, **given)
        if func._schema.is_mutable:
            return args[0]
        return torch.zeros_like(func(*args, **given))


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_a_device_that_does_no_work_verifies_nothing(dtype: str) -> None:
    """A product is right where the device says so of this very product, not where it says nothing."""
    ring = make_ring(prepared(dtype), checking=checking_for("cpu", dtype))
    checked, failed = ring.run_batch(3)()
    assert (len(checked), failed) == (2, [])
    with NoWork():  # type: ignore[no-untyped-call]
        for outcome in (ring.run_batch(3)(), ring.drain()):
            checked, failed = outcome
            assert checked
            assert failed == checked
