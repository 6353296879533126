"""The workload as a whole, in this process: its figures, its verification, and broken hardware behind it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, product
from pathlib import Path

import msgspec
import pytest
from fakes.burnin import NO_TORCH, make_ring, prepared  # skips this file where torch is not installed
from fakes.clocks import SteppedClock

from nodevet.checks.burnin.certify import certify
from nodevet.checks.burnin.device import open_device
from nodevet.checks.burnin.errors import FormatError, InterruptionError, RefusedError, UntoldFormatError
from nodevet.checks.burnin.families import Scales, data_types
from nodevet.checks.burnin.faults import STUCK_COLUMNS, Planted
from nodevet.checks.burnin.flags import apply_flags, forbidden_variables, relevant_variables, require_clean_environment
from nodevet.checks.burnin.host import has_bf16_units, online_processors
from nodevet.checks.burnin.layout import EXTRA_ROWS
from nodevet.checks.burnin.library import Tensor, torch
from nodevet.checks.burnin.multiply import Multiplication, choose_multiplication
from nodevet.checks.burnin.operands import build_sets, make_sets
from nodevet.checks.burnin.peak import Architecture
from nodevet.checks.burnin.plan import DEFAULT_SEED, GemmRequest, load_plans, planned_shape, requests_for
from nodevet.checks.burnin.ring import checked_share
from nodevet.checks.burnin.selftest import Planting
from nodevet.checks.burnin.shipped import shipped_digest, sums_digest
from nodevet.checks.burnin.sums import bit_view
from nodevet.checks.burnin.witness import exact_terms, find_witness, true_block
from nodevet.checks.burnin.workload import ChooseMultiplication, Run, run_gemm
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.conditions import sound_conditions
from nodevet.checks.core.model import Result, ResultState, State
from nodevet.checks.engine.completeness import Standing, account
from nodevet.checks.engine.retest import is_passed_retest
from nodevet.checks.reference.tables import load_table

REQUEST = GemmRequest(device="cpu-0", dtype="fp32", seconds=0.15, shape=(256, 256, 512), maximum_memory_bytes=64 << 20)

SETS = data_types()["fp32"].set_count


@pytest.fixture(autouse=True)
def one_processor() -> Iterator[None]:
    """Each workload binds this process to a socket; here it gets one processor, and all are given back."""
    assert NO_TORCH
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)


class Watcher:
    """Takes the progress, and may raise an interruption in a phase."""

    def __init__(self, interrupt_in: str = "") -> None:
        """Interrupt in the phase named."""
        self.phase = ""
        self.told: list[Result] = []
        self._interrupt_in = interrupt_in

    def known(self, result: Result) -> None:
        """Keep what was told of a wrong result."""
        self.told.append(result)

    def pause(self) -> None:
        """Let the workload go on."""

    def tick(self, ratio: float, phase: str, shown: dict[str, float | int]) -> None:
        """Note the phase."""
        assert 0 <= ratio <= 1
        self.phase = phase
        if phase == self._interrupt_in:
            raise InterruptionError("asked to stop")


class Hardware:
    """A multiplication that breaks once the watcher sees the measurement: one bit of one result per *every* calls."""

    def __init__(self, watcher: Watcher, *, every: int) -> None:
        """Break in the phase that is measured."""
        self._watcher = watcher
        self._every = every
        self._calls = 0

    def choose(self, name: str, kind: str, architecture: str | None) -> Multiplication:
        """Return the real multiplication with the fault behind it."""
        real = choose_multiplication(name, kind, architecture)

        def broken(a: Tensor, b: Tensor, out: Tensor) -> None:
            real.run(a, b, out)
            if self._watcher.phase == "measuring":
                self._calls += 1
                if self._calls == 3 or self._calls % self._every == 0:
                    bit_view(out)[9, 8] ^= 1 << 20

        return msgspec.structs.replace(real, run=broken)


def test_healthy_run_is_verified() -> None:
    """A healthy processor gives figures, all of its products verified, and a bound on what may have been missed."""
    os.sched_setaffinity(0, os.sched_getaffinity(1))  # all of the socket: a part of it proves nothing
    result = run_gemm(Run(REQUEST, SystemClock()), Watcher())
    assert (result.state, result.detail) == (ResultState.FINISHED, "")
    assert account((), (result,)).state is State.OK
    assert result.conditions["verification"] == "verified"
    run = result.metric("gemms_run")
    assert run
    assert result.metric("gemms_verified") == run
    assert result.metric("flop_verified") == run * 2 * 256 * 256 * 512
    assert result.metric("bytes_verified") == run * 256 * 256 * 4
    assert result.metric("mismatch_rate_upper_bound_95") == pytest.approx(1 - 0.05 ** (1 / run))
    assert result.metric("operand_sets_certified") == SETS
    p5, median = result.metric("tflops_p5"), result.metric("tflops_median")
    assert p5 is not None and median is not None and 0 < p5 <= median


def test_broken_bit_in_the_measurement_is_a_mismatch() -> None:
    """A single flipped bit while measuring is counted, located and told in one line; nothing else is blamed."""
    watcher = Watcher()
    result = run_gemm(Run(REQUEST, SystemClock()), watcher, Hardware(watcher, every=10**9).choose)
    assert result.state is ResultState.FINISHED
    assert result.conditions["verification"] == "mismatch"
    assert result.metric("mismatches") == 1
    (report,) = result.conditions["mismatch_reports"]
    assert (report["rows"], report["columns"], report["origin"]) == ([9], [8], "output")
    assert report["examples"][0]["xor"] == "0x00100000"
    assert report["persistence"] == "transient"
    assert "1 of" in result.detail and "transient" in result.detail
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=type(result)) == result


def test_many_mismatches_are_all_counted_and_a_few_examined() -> None:
    """A device that is wrong again and again is not examined for ever: four reports, and the full count."""
    watcher = Watcher()
    result = run_gemm(Run(REQUEST, SystemClock()), watcher, Hardware(watcher, every=2).choose)
    mismatches = result.metric("mismatches")
    assert mismatches is not None and mismatches > 4
    assert len(result.conditions["mismatch_reports"]) == 4


def test_fault_from_the_start_is_never_verified() -> None:
    """Where the first product is already wrong nothing is measured as right: the certificate is refused."""

    def choose(name: str, kind: str, architecture: str | None) -> Multiplication:
        real = choose_multiplication(name, kind, architecture)
        broken = Planted(real.run, STUCK_COLUMNS, first=0, key=1)
        return msgspec.structs.replace(real, run=broken, exact=broken)

    watcher = Watcher()
    result = run_gemm(Run(REQUEST, SystemClock()), watcher, choose)
    assert result.conditions["verification"] == "mismatch"
    assert (result.metric("mismatches"), result.metric("gemms_checked")) == (SETS, SETS)
    assert [told.metric("mismatches") for told in watcher.told] == list(range(1, SETS + 1))
    assert result.metric("operand_sets_certified") == 0
    assert result.metric("gemms_run") == 0
    assert [each["bad_columns"] for each in result.conditions["refuted_certificates"]] == [list(range(32, 64))] * SETS
    assert f"{SETS} of {SETS} products wrong from the first on" in result.detail


def broken_from_the_start(cells: Sequence[tuple[int, int]], bit: int) -> ChooseMultiplication:
    """Return a multiplication with one bit of some cells always wrong, from the first product on."""

    def choose(name: str, kind: str, architecture: str | None) -> Multiplication:
        real = choose_multiplication(name, kind, architecture)

        def broken(a: Tensor, b: Tensor, out: Tensor) -> None:
            real.run(a, b, out)
            for row, column in cells:
                bit_view(out)[row, column] ^= 1 << bit

        return msgspec.structs.replace(real, run=broken, exact=real.exact if real.narrow else broken)

    return choose


def shipped(multiplication: Multiplication, shape: tuple[int, int, int], seed: int, operand_set: int) -> str | None:
    """Return the digest of the sums as ``checks/burnin/golden_sums.py`` makes it."""
    m, n, k = shape
    (family, a, b) = make_sets(multiplication.data_type, m, n, k, EXTRA_ROWS, seed)[operand_set]
    real = choose_multiplication(multiplication.data_type.name, "cpu")
    (operands,) = build_sets([(family, a, b)], real.element, torch.device("cpu"))
    golden = certify(msgspec.structs.replace(operands, index=operand_set), real, m, seed).golden
    assert golden is not None
    return sums_digest(golden)


def test_a_product_with_its_known_sums_is_proved_by_them() -> None:
    """No arithmetic of this host takes part; all else is as in every load."""
    result = run_gemm(Run(REQUEST, SystemClock(), shipped=shipped), Watcher())
    assert (result.state, result.conditions["verification"]) == (ResultState.FINISHED, "verified")
    assert result.conditions["certified_by_shipped_sums"] == SETS
    assert result.metric("operand_sets_certified") == SETS
    assert run_gemm(Run(REQUEST, SystemClock()), Watcher()).conditions["certified_by_shipped_sums"] == 0


def test_one_cell_wrong_from_the_first_product_on_has_not_its_known_sums() -> None:
    """Then the host computes the cell by itself, as without known sums."""
    run = Run(REQUEST, SystemClock(), shipped=shipped)
    result = run_gemm(run, Watcher(), broken_from_the_start([(7, 9)], 20))
    assert result.conditions["verification"] == "mismatch"
    report = result.conditions["mismatch_reports"][0]
    assert (report["rows"], report["columns"], report["origin"]) == ([7], [9], "first_product")


def test_a_first_product_that_is_wrong_once_is_wrong() -> None:
    """The host finds it right when it is computed again: the known sums alone show that it was not."""

    def choose(name: str, kind: str, architecture: str | None) -> Multiplication:
        real = choose_multiplication(name, kind, architecture)
        spoiled: list[bool] = []

        def broken(a: Tensor, b: Tensor, out: Tensor) -> None:
            real.run(a, b, out)
            if not spoiled and a.any():
                spoiled.append(True)
                bit_view(out)[7, 9] ^= 1 << 20

        return msgspec.structs.replace(real, run=broken)

    watcher = Watcher()
    result = run_gemm(Run(REQUEST, SystemClock(), shipped=shipped), watcher, choose)
    assert (result.conditions["verification"], result.metric("mismatches")) == ("mismatch", 1)
    report = result.conditions["mismatch_reports"][0]
    assert (report["origin"], report["persistence"], report["rows"]) == ("first_product", "transient", [7])
    assert "has not its known sums, and was right when it was computed again" in result.detail
    assert len(watcher.told) == 1


def test_a_table_that_is_out_of_date_blames_no_device() -> None:
    """The host proves the product, whose sums are none of the table: the table is ours."""
    result = run_gemm(Run(REQUEST, SystemClock(), shipped=lambda *_product: "0" * 32), Watcher())
    assert (result.conditions["verification"], result.metric("mismatches")) == ("verified", 0)
    assert "out of date" in result.conditions["shipped_sums"]


@pytest.mark.parametrize("operand_set", [0, 3])
def test_the_shipped_sums_are_those_of_the_probe(operand_set: int) -> None:
    """The smallest product of the plan, proved on this host; a change of operands makes the table anew."""
    shape = planned_shape("probe", "cpu", 1, "fp32")
    real = choose_multiplication("fp32", "cpu")
    assert shipped_digest(real, shape, DEFAULT_SEED, operand_set) == shipped(real, shape, DEFAULT_SEED, operand_set)


@pytest.mark.parametrize("kind", ["cpu", "cuda", "rocm"])
def test_each_product_of_the_probe_has_shipped_sums(kind: str) -> None:
    """Of each operand set, and of both results of a format that a library may give."""
    for cores in (1, 16, 48):
        (request,) = requests_for("probe", "any", kind)
        real = choose_multiplication(request.dtype, kind, "sm90" if kind == "cuda" else "gfx942")
        outputs = {real.output} if kind == "cpu" else {real.output, real.element}
        for output, number in product(outputs, range(real.data_type.set_count)):
            made = msgspec.structs.replace(real, output=output)
            assert shipped_digest(made, planned_shape("probe", kind, cores, request.dtype), request.seed, number)


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_one_cell_wrong_from_the_first_product_on_is_the_devices_fault(dtype: str) -> None:
    """The host computes that cell by itself: bit 20 of row 7, column 9 is laid to the device, without any sibling."""
    request = msgspec.structs.replace(REQUEST, dtype=dtype)
    watcher = Watcher()
    result = run_gemm(Run(request, SystemClock()), watcher, broken_from_the_start([(7, 9)], 20))
    assert (result.state, result.conditions["verification"]) == (ResultState.FINISHED, "mismatch")
    assert result.metric("mismatches") == data_types()[dtype].set_count
    report = result.conditions["mismatch_reports"][0]
    assert (report["rows"], report["columns"], report["origin"]) == ([7], [9], "first_product")
    assert report["examples"][0]["xor"] == "0x00100000"
    assert report["largest_partial_sum"] < 2 ** report["limit_bits"]
    assert account((), (result,)).state is State.FAILED
    assert account((), watcher.told[:1]).state is State.FAILED
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=Result) == result


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_dead_tiles_that_lie_apart_have_a_witness(dtype: str) -> None:
    """Two tiles that are never written: right is where the rows of the one cross the columns of the other."""

    def choose(name: str, kind: str, architecture: str | None) -> Multiplication:
        real = choose_multiplication(name, kind, architecture)

        def broken(a: Tensor, b: Tensor, out: Tensor) -> None:
            real.run(a, b, out)
            out[:128, 384:] = 0
            out[256:384, :128] = 0

        return msgspec.structs.replace(real, run=broken, exact=broken)

    request = msgspec.structs.replace(REQUEST, dtype=dtype, shape=(512, 512, 512))
    result = run_gemm(Run(request, SystemClock()), Watcher(), choose)
    assert account((), (result,)).state is State.FAILED, result.detail
    assert result.conditions["mismatch_reports"][0]["origin"] == "first_product"


def test_rows_that_are_wrong_in_one_column_of_many_have_a_witness() -> None:
    """Sixteen rows of those that disagree are looked at, in all columns that do: here the last one alone."""
    cells = [(row, 200) for row in range(100) if row != 7] + [(7, column) for column in range(64)]
    request = msgspec.structs.replace(REQUEST, dtype="int8")
    result = run_gemm(Run(request, SystemClock()), Watcher(), broken_from_the_start(cells, 10))
    assert account((), (result,)).state is State.FAILED, result.detail


def test_each_tick_of_the_measurement_tells_what_was_compared_so_far() -> None:
    """A wrong result of a child that dies later is one of as many products as that."""

    class Ticks(Watcher):
        """Keeps the figures."""

        def tick(self, ratio: float, phase: str, shown: dict[str, float | int]) -> None:
            """Keep them."""
            super().tick(ratio, phase, shown)
            figures.update(shown)

    figures: dict[str, float | int] = {}
    result = run_gemm(Run(REQUEST, SystemClock()), Ticks())
    checked, verified = result.metric("gemms_checked"), result.metric("gemms_verified")
    assert checked is not None and verified is not None
    # The last few are compared behind the last tick.
    assert checked - (verified - figures["gemms_verified"]) == figures["gemms_checked"] > 0
    assert figures["measured_seconds"] == pytest.approx(result.metric("measured_seconds"))


SPOILED: dict[str, Callable[[Tensor], object]] = {
    "nan in one cell": lambda out: out[7, 9].fill_(float("nan")),
    "infinity in one cell": lambda out: out[7, 9].fill_(float("inf")),
    "minus infinity in one cell": lambda out: out[7, 9].fill_(float("-inf")),
    "nan in one row": lambda out: out[7].fill_(float("nan")),
    "a row that is zero": lambda out: out[7].zero_(),
    "a column that is zero": lambda out: out[:, 9].zero_(),
    "minus zero for a sum": lambda out: out[7, 9].fill_(-0.0),
}


@pytest.mark.parametrize("first", [0, 40])
@pytest.mark.parametrize("name", SPOILED)
def test_no_number_that_is_none_passes_for_a_result(name: str, first: int) -> None:
    """NaN, infinities and zeros, from the first product on or from a later one: the device is at fault."""

    def choose(dtype: str, kind: str, architecture: str | None) -> Multiplication:
        real = choose_multiplication(dtype, kind, architecture)
        calls = iter(range(10**9))

        def broken(a: Tensor, b: Tensor, out: Tensor) -> None:
            real.run(a, b, out)
            if next(calls) >= first:
                SPOILED[name](out)

        return msgspec.structs.replace(real, run=broken, exact=broken)

    result = run_gemm(Run(REQUEST, SystemClock()), Watcher(), choose)
    assert account((), (result,)).state is State.FAILED, (result.detail, result.conditions["refuted_certificates"])


def test_two_products_of_the_same_rows_that_differ_are_the_devices_fault() -> None:
    """A flip in one product alone shows where pieces overlap, and the host says which of the two is wrong."""

    def choose(name: str, kind: str, architecture: str | None) -> Multiplication:
        real = choose_multiplication(name, kind, architecture)
        calls = iter(range(10**9))

        def broken(a: Tensor, b: Tensor, out: Tensor) -> None:
            real.run(a, b, out)
            if next(calls) == 9:
                bit_view(out)[3, 5] ^= 1 << 22

        return msgspec.structs.replace(real, run=broken, exact=broken)

    request = msgspec.structs.replace(REQUEST, shape=(384, 256, 512))
    result = run_gemm(Run(request, SystemClock()), Watcher(), choose)
    assert result.metric("mismatches")


def test_a_range_or_library_that_spoils_everything_is_nobodys_fault() -> None:
    """Where every row and column is wrong, nothing speaks for this one device: unknown, not failed."""

    def choose(name: str, kind: str, architecture: str | None) -> Multiplication:
        real = choose_multiplication(name, kind, architecture)

        def rounding(a: Tensor, b: Tensor, out: Tensor) -> None:
            real.run(a, b, out)
            out.copy_(out.to(torch.bfloat16).to(out.dtype))

        return msgspec.structs.replace(real, run=rounding, exact=rounding)

    result = run_gemm(Run(REQUEST, SystemClock()), Watcher(), choose)
    assert result.conditions["verification"] == "unmeasured: range or device"
    assert result.metric("mismatches") == 0
    assert account((), (result,)).state is State.UNKNOWN


def test_sums_that_are_too_large_for_the_format_are_nobodys_fault() -> None:
    """An accumulator that saturates spoils the largest sums and no other: the size is their excuse."""

    def choose(name: str, kind: str, architecture: str | None) -> Multiplication:
        real = choose_multiplication(name, kind, architecture)
        alike = Scales(0, 0, 0, 0)  # so that one limit is that of every sum
        plain = msgspec.structs.replace(real.data_type, scales=alike, anchor=(0, 0), full_significands=False)

        def saturating(a: Tensor, b: Tensor, out: Tensor) -> None:
            real.run(a, b, out)
            out.clamp_(-600_000.0, 600_000.0)

        return msgspec.structs.replace(real, data_type=plain, run=saturating, exact=saturating)

    result = run_gemm(Run(REQUEST, SystemClock()), Watcher(), choose)
    assert result.conditions["refuted_certificates"]
    assert result.conditions["verification"] == "unmeasured: range or device"


def narrow_accumulator(bits: float, step: int, *, saturates: bool, plain: bool) -> ChooseMultiplication:
    """Return a multiplication whose sums keep so many *bits* after each *step*, cut off or held at the largest.

    *plain*: the operands have neither an anchor nor scales per line, so that small sums are exact.
    """

    def multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
        total = torch.zeros(out.shape, dtype=torch.float64)
        for start in range(0, a.shape[1], step):
            total += a[:, start : start + step].to(torch.float64) @ b[start : start + step].to(torch.float64)
            if saturates:
                total.clamp_(-(2.0**bits), 2.0**bits)
                continue
            unit = torch.exp2(torch.log2(total.abs()).floor() + 1 - bits)
            total = torch.where(total == 0, total, torch.trunc(total / unit) * unit)
        out.copy_(total)

    def choose(name: str, kind: str, architecture: str | None) -> Multiplication:
        real = choose_multiplication(name, kind, architecture)
        data_type = real.data_type
        if plain:
            alike = Scales(0, 0, 0, 0)
            data_type = msgspec.structs.replace(data_type, scales=alike, anchor=(0, 0), full_significands=False)
        return msgspec.structs.replace(real, data_type=data_type, run=multiply, exact=multiply)

    return choose


@pytest.mark.parametrize(
    ("bits", "step", "saturates", "plain", "refuted"),
    [
        (21, 64, False, True, 3),
        (21, 64, True, True, 3),
        (20.5, 64, True, True, 3),
        (20.5, 512, False, True, 3),
        (21, 64, False, False, 5),
        (23, 64, False, False, 4),
    ],
)
def test_an_accumulator_that_is_narrower_than_said_fails_no_device(
    bits: float, step: int, saturates: bool, plain: bool, refuted: int
) -> None:
    """Sums that passed its range on their way are wrong, also where they end small: every board of a model has that."""
    shape = (256, 256, 2048) if bits < 21 else (512, 512, 4096)
    request = msgspec.structs.replace(REQUEST, shape=shape, maximum_memory_bytes=512 << 20)
    choose = narrow_accumulator(bits, step, saturates=saturates, plain=plain)
    result = run_gemm(Run(request, SystemClock()), Watcher(), choose)
    assert len(result.conditions["refuted_certificates"]) == refuted
    assert (result.conditions["verification"], result.metric("mismatches")) == ("unmeasured: range or device", 0)
    assert account((), (result,)).state is State.UNKNOWN


@pytest.mark.parametrize("phase", ["self-test", "measuring the cost of checking"])
@pytest.mark.parametrize("call", [0, 3])
def test_flip_outside_the_measurement_counts(phase: str, call: int) -> None:
    """A transient flip in warm-up, in the timing of the self-test or in the measured overhead is a wrong result."""
    watcher = Watcher()
    calls = iter(range(10**9))

    def choose(name: str, kind: str, architecture: str | None) -> Multiplication:
        real = choose_multiplication(name, kind, architecture)

        def broken(a: Tensor, b: Tensor, out: Tensor) -> None:
            real.run(a, b, out)
            if watcher.phase == phase and next(calls) == call:
                bit_view(out)[9, 8] ^= 1 << 20

        return msgspec.structs.replace(real, run=broken)

    result = run_gemm(Run(REQUEST, SystemClock()), watcher, choose)
    assert result.metric("mismatches") == 1
    assert result.conditions["verification"] == "mismatch"
    assert result.conditions["mismatch_reports"][0]["rows"] == [9]


@pytest.mark.parametrize("batch", range(8))
def test_flip_in_any_batch_of_the_measured_overhead_counts(batch: int) -> None:
    """Whether a batch was checked while it was timed or afterwards, each of its products is checked."""
    ready = prepared("fp32")
    calls = iter(range(10**9))

    def broken(a: Tensor, b: Tensor, out: Tensor) -> None:
        ready.multiplication.run(a, b, out)
        if next(calls) == 2 * batch:
            bit_view(out)[9, 8] ^= 1 << 20

    ring = make_ring(ready, broken, slots=5, lag=2)
    found = []
    for is_checked in (True, False, False, True) * 2:
        if is_checked:
            outcome = ring.run_batch(2)()
        else:
            ring.run_ahead(2)
            outcome = ring.catch_up()
        found += outcome[1]
    found += ring.drain()[1]
    assert [product.number for product in found] == [2 * batch]


def test_what_was_wrong_is_told_before_it_is_examined() -> None:
    """A device that dies while its wrong result is located leaves the count behind."""

    class Dying(Watcher):
        def known(self, result: Result) -> None:
            super().known(result)
            raise InterruptionError("the device died")

    watcher = Dying()
    result = run_gemm(Run(REQUEST, SystemClock()), watcher, Hardware(watcher, every=2).choose)
    first, last = watcher.told[0], watcher.told[-1]  # the last: products that waited are still checked
    assert first.metric("mismatches")
    assert (first.conditions["mismatch_reports"], last.conditions["mismatch_reports"]) == ([], [])
    assert (result.state, result.metric("mismatches")) == (ResultState.INTERRUPTED, last.metric("mismatches"))


@pytest.mark.parametrize("self_test", [True, False])
def test_the_live_table_counts_what_a_proved_checker_verified(self_test: bool) -> None:
    """Without a self-test nothing is verified, at no moment of the load."""
    told: list[dict[str, float | int]] = []

    class Shown(Watcher):
        def tick(self, ratio: float, phase: str, shown: dict[str, float | int]) -> None:
            super().tick(ratio, phase, shown)
            told.append(shown)

    run_gemm(Run(msgspec.structs.replace(REQUEST, self_test=self_test), SystemClock()), Shown())
    assert (told[-1]["gemms_verified"] > 0) is self_test
    assert told[-1]["gemms_checked"] > 0


def test_missed_fault_in_the_self_test_leaves_results_unmeasured() -> None:
    """What was verified by a checker that overlooks a planted fault is not called verified."""
    run = Run(REQUEST, SystemClock())
    run_gemm(run, Watcher())
    run.plantings[0] = Planting(run.plantings[0].fault, True, False, "blamed another row")
    result = run.result(ResultState.FINISHED)
    assert result.conditions["verification"] == "unmeasured: self-test"
    assert result.metric("gemms_verified") is None
    assert result.metric("verified_fraction") is None
    assert result.metric("gemms_run") != 0


def test_run_without_self_test_is_not_verified() -> None:
    """Who leaves out the self-test gets speed, but no word about correctness."""
    request = msgspec.structs.replace(REQUEST, self_test=False)
    result = run_gemm(Run(request, SystemClock()), Watcher())
    assert result.conditions["verification"] == "unmeasured: self-test"


def test_interruption_keeps_what_is_known() -> None:
    """An interrupted run says so and never claims to have verified anything it did not reach."""
    result = run_gemm(Run(REQUEST, SystemClock()), Watcher(interrupt_in="self-test"))
    assert (result.state, result.detail) == (ResultState.INTERRUPTED, "asked to stop")
    assert result.conditions["verification"] == "unmeasured: nothing verified"
    assert result.metric("operand_sets_certified") == SETS


class LateWatcher(Watcher):
    """Calls *late* at the tick of *ratio* while measuring."""

    def __init__(self, ratio: float, late: Callable[[], None]) -> None:
        """Wait for the tick."""
        super().__init__()
        self._ratio = ratio
        self._late = late

    def tick(self, ratio: float, phase: str, shown: dict[str, float | int]) -> None:
        """Call once the ratio is reached."""
        super().tick(ratio, phase, shown)
        if phase == "measuring" and shown and ratio >= self._ratio:
            self._late()


def test_interrupted_load_checks_the_products_that_wait() -> None:
    """Of what was multiplied before the interruption nothing is given away."""

    def stop() -> None:
        raise InterruptionError("asked to stop")

    result = run_gemm(Run(REQUEST, SystemClock()), LateWatcher(0.5, stop))
    assert result.state is ResultState.INTERRUPTED
    assert result.metric("gemms_run")
    assert result.metric("gemms_verified") == result.metric("gemms_run")


@pytest.mark.parametrize("operand", ["a", "b"])
def test_operand_that_changed_after_the_last_product_is_told(operand: str) -> None:
    """No product shows it; the operands are hashed again at the end."""
    seen: dict[str, Tensor] = {}

    def choose(name: str, kind: str, architecture: str | None) -> Multiplication:
        real = choose_multiplication(name, kind, architecture)

        def keep(a: Tensor, b: Tensor, out: Tensor) -> None:
            seen.update(a=a, b=b)
            real.run(a, b, out)

        return msgspec.structs.replace(real, run=keep)

    def flip() -> None:
        bit_view(seen[operand])[3, 5] ^= 1

    watcher = LateWatcher(1.0, flip)
    result = run_gemm(Run(REQUEST, SystemClock()), watcher, choose)
    assert (result.conditions["verification"], result.metric("mismatches")) == ("mismatch", 1)
    (report,) = result.conditions["mismatch_reports"]
    assert report["origin"] == f"operand_{operand}"
    assert "changed in memory during the load" in result.detail
    assert account((), (result,)).state is State.FAILED
    assert watcher.told[-1].metric("mismatches") == 1
    assert sound_conditions(result.conditions) == result.conditions


def test_operand_whose_changes_cancel_in_a_row_is_told() -> None:
    """One bit up and the same bit down in one row: the sums of the columns differ, and no row is named."""
    seen: dict[str, Tensor] = {}

    def choose(name: str, kind: str, architecture: str | None) -> Multiplication:
        real = choose_multiplication(name, kind, architecture)

        def keep(a: Tensor, b: Tensor, out: Tensor) -> None:
            if a.count_nonzero() == a.numel():  # no set that selects
                seen.update(a=a)
            real.run(a, b, out)

        return msgspec.structs.replace(real, run=keep)

    def flip() -> None:
        bits = bit_view(seen["a"])[3, ::2]  # every other one: the same half of its word
        ones = (bits >> 23) & 1
        for place in (int(ones.argmax()), int(ones.argmin())):
            bits[place] ^= 1 << 23

    result = run_gemm(Run(REQUEST, SystemClock()), LateWatcher(1.0, flip), choose)
    (report,) = result.conditions["mismatch_reports"]
    assert (report["origin"], report["operand_rows"]) == ("operand_a", [])
    assert "changed in memory during the load; no product" in result.detail


def test_an_accelerator_checks_the_share_that_costs_two_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where checking each product would cost 8 %, a quarter is drawn, and the result says so."""
    monkeypatch.setattr(
        "nodevet.checks.burnin.workload.checked_share", lambda _overhead, _kind: checked_share(0.08, "cuda")
    )
    result = run_gemm(Run(msgspec.structs.replace(REQUEST, seconds=1.0), SystemClock()), Watcher())
    assert result.conditions["checked_share"] == 0.25
    fraction = result.metric("verified_fraction")
    assert fraction is not None and 0.1 < fraction < 0.4
    assert "25 % of the products were checked, drawn at random" in result.detail
    assert result.metric("bytes_verified") == (result.metric("gemms_verified") or 0) * 256 * 256 * 4


@pytest.mark.parametrize(
    ("overhead", "kind", "share"),
    [(None, "cuda", 1.0), (-0.01, "cuda", 1.0), (0.02, "cuda", 1.0), (0.04, "rocm", 0.5), (0.3, "cpu", 1.0)],
)
def test_share_of_checked_products(overhead: float | None, kind: str, share: float) -> None:
    """Processors check each product; accelerators as many as fit into 2 % of the time."""
    assert checked_share(overhead, kind) == share


def test_too_little_memory_is_refused_with_both_figures() -> None:
    """Where the smallest ring does not fit, the line names what is needed and what may be taken."""
    request = msgspec.structs.replace(REQUEST, maximum_memory_bytes=1 << 20)
    result = run_gemm(Run(request, SystemClock()), Watcher())
    assert result.state is ResultState.REFUSED
    assert "may be taken" in result.detail
    assert result.metrics == ()


def test_failing_device_is_told_as_died() -> None:
    """A device that fails under torch gives a result that says what torch said, not a traceback."""

    def choose(name: str, kind: str, architecture: str | None) -> Multiplication:
        def lost(_a: Tensor, _b: Tensor, _out: Tensor) -> None:
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered\nmore lines")

        return msgspec.structs.replace(choose_multiplication(name, kind, architecture), run=lost, exact=lost)

    result = run_gemm(Run(REQUEST, SystemClock()), Watcher(), choose)
    assert result.state is ResultState.DIED
    assert result.detail == "CUDA error: uncorrectable ECC error encountered"


@pytest.mark.parametrize(
    ("name", "kind", "architecture", "why"),
    [
        ("fp16", "cpu", None, "hundreds of times slower"),
        ("tf32", "cpu", None, "no such format"),
        ("fp8_e4m3", "cpu", None, "no such product"),
        ("fp8_e4m3", "cuda", "sm80", "sm80 has no such units"),
        ("bf16", "cuda", "sm75", "sm75 has no such units"),
        ("fp8_e4m3", "rocm", "gfx90a", "gfx90a has no such units"),
        ("tf32", "rocm", "gfx942", "decides by itself"),
        ("fp4", "cuda", "sm100", "unknown"),
    ],
)
def test_format_that_a_device_lacks_is_refused(name: str, kind: str, architecture: str | None, why: str) -> None:
    """Each format that cannot be run says why, and what to use."""
    with pytest.raises(RefusedError, match=why):
        choose_multiplication(name, kind, architecture)


@pytest.mark.parametrize("architecture", ["gfx9999", "gfx1300", None])
def test_a_format_that_nothing_tells_of_is_not_excused(architecture: str | None) -> None:
    """A newer accelerator: a plan that left its fp8 out as lacking was complete without it."""
    with pytest.raises(UntoldFormatError, match="nothing tells whether architecture"):
        choose_multiplication("fp8_e4m3", "rocm", architecture)


def test_a_processor_of_which_nothing_tells_is_not_excused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where /proc/cpuinfo cannot be read, the load of bf16 did not run, and is not complete by that."""
    assert has_bf16_units(str(tmp_path)) is None
    monkeypatch.setattr("nodevet.checks.burnin.workload.has_bf16_units", lambda: None)
    result = run_gemm(Run(msgspec.structs.replace(REQUEST, dtype="bf16"), SystemClock()), Watcher())
    assert (result.state, result.conditions["refusal"]) == (ResultState.REFUSED, "untold")
    (entry,) = account((), (result,)).accounts
    assert entry.standing is Standing.UNPROVEN


@pytest.mark.parametrize(
    ("name", "kind", "architecture", "element", "output"),
    [
        ("bf16", "cpu", None, torch.bfloat16, torch.bfloat16),
        ("bf16", "cuda", "sm90", torch.bfloat16, torch.float32),
        ("fp16", "rocm", "gfx942", torch.float16, torch.float32),
        ("tf32", "cuda", "sm90", torch.float32, torch.float32),
        ("fp8_e4m3", "cuda", "sm90", torch.float8_e4m3fn, torch.float32),
        ("fp8_e4m3", "cuda", "sm100", torch.float8_e4m3fn, torch.float32),
        ("fp8_e4m3", "rocm", "gfx942", torch.float8_e4m3fnuz, torch.float32),
        ("fp8_e4m3", "rocm", "gfx950", torch.float8_e4m3fn, torch.float32),
        ("int8", "cpu", None, torch.int8, torch.int32),
    ],
)
def test_result_is_checked_in_the_widest_format_there_is(
    name: str, kind: str, architecture: str | None, element: torch.dtype, output: torch.dtype
) -> None:
    """Only bf16 on a processor is checked after rounding, and is told to be narrow."""
    chosen = choose_multiplication(name, kind, architecture)
    assert (chosen.element, chosen.output) == (element, output)
    assert chosen.narrow is (output is torch.bfloat16)


def test_flags_are_set_and_read_back() -> None:
    """Every flag that could round is off and stands in the result as read back."""
    flags = apply_flags("fp32")
    assert flags["cuda.matmul.allow_fp16_reduced_precision_reduction"] == "False"
    assert set(flags.values()) <= {"False", "ieee"}


def test_variables_that_change_arithmetic_are_named() -> None:
    """Each of them is found, and no other."""
    names = ["CUBLAS_EMULATE_DOUBLE_PRECISION", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"]
    assert forbidden_variables(dict.fromkeys([*names, "CUBLAS_WORKSPACE_CONFIG", "PATH"], "1")) == names
    require_clean_environment({"PATH": "/bin", "OMP_NUM_THREADS": "2"})
    with pytest.raises(RefusedError, match="NVIDIA_TF32_OVERRIDE changes the arithmetic of products; unset it"):
        require_clean_environment({"NVIDIA_TF32_OVERRIDE": "0"})
    assert relevant_variables({"PATH": "/bin", "OMP_NUM_THREADS": "2"}) == {"OMP_NUM_THREADS": "2"}


def test_a_load_that_does_not_reach_all_of_a_socket_proves_nothing_of_it(one_processor: None) -> None:
    """Under taskset, in a job of one core, in a service with CPUAffinity=: it says so, and the load is incomplete."""
    assert one_processor is None
    told = open_device("cpu-0").left_out
    result = run_gemm(Run(REQUEST, SystemClock()), Watcher())
    if len(online_processors() | os.sched_getaffinity(1)) == 1:
        assert not told
        return
    assert "processors are not for this process" in told
    assert (result.conditions["left_out"], result.detail) == (told, f"in part: {told}")
    assert not is_passed_retest(result)
    load = account((), (result,))
    assert load.state is State.UNKNOWN
    assert told in load.reason()


def test_a_load_leaves_no_processor_out_that_all_processes_are_kept_from(
    one_processor: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPUAffinity= in system.conf, or isolcpus=: the first process has no more than the load, which could have all."""
    assert one_processor is None
    real, own = os.sched_getaffinity, os.sched_getaffinity(0)
    there = len(real(1))
    monkeypatch.setattr("nodevet.checks.burnin.device.online_processors", lambda: own)  # a sysfs that tells no others
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: own if pid == 1 else real(pid))
    told = open_device("cpu-0").left_out
    assert told.startswith(f"{there - 1} of {there} processors") is (there > 1)
    assert real(0) == own


def test_a_single_wrong_cell_of_a_first_product_has_a_witness_wherever_it_is() -> None:
    """Also where its sum swung farther on its way than those of its own row and column end."""
    data_type = data_types()["fp32"]
    (operands, *_) = build_sets(make_sets(data_type, 128, 128, 256, 0, 1), torch.float32, torch.device("cpu"))
    right = (operands.a.matrix.to(torch.float64) @ operands.b.matrix.to(torch.float64)).to(torch.float32)
    for column in range(128):
        wrong, cell = right.clone(), (torch.tensor([7]), torch.tensor([column]))
        bit_view(wrong)[7, column] ^= 1
        assert find_witness(operands, data_type, wrong, cell, cell), column


def test_a_large_sum_that_is_right_by_chance_is_no_proof() -> None:
    """All larger sums are wrong but one: the range may be the cause, and the small wrong cell proves nothing."""
    alike = Scales(0, 0, 0, 0)
    data_type = msgspec.structs.replace(
        data_types()["fp32"], scales=alike, anchor=(0, 0), full_significands=False, exponent_span=0
    )
    (operands, *_) = build_sets(make_sets(data_type, 128, 128, 256, 0, 1), torch.float32, torch.device("cpu"))
    every = torch.arange(128)
    truth = true_block(operands, every, every)
    swings = []
    for column in range(128):
        steps = (0, *accumulate(exact_terms(operands, 7, column)))
        swings.append(max(steps) - min(steps))
    column = swings.index(min(swings))
    large = truth.abs() >= swings[column]
    large[7, column] = True  # the cell itself is wrong, too
    chance = next(place for place in torch.nonzero(large[7]).flatten().tolist() if place != column)
    large[7, chance] = False
    assert int(large[7].sum()) >= 4
    bits = bit_view(truth.to(torch.float32))
    wrong = torch.where(large, bits ^ 1, bits).view(torch.float32)
    cell = (torch.tensor([7]), torch.tensor([column]))
    assert find_witness(operands, data_type, wrong, cell, cell) is None
    bits[7, column] ^= 1
    assert find_witness(operands, data_type, bits.view(torch.float32), cell, cell)


@pytest.mark.parametrize(("setup", "seconds"), [(0.0, 20.0), (12.0, 8.0), (19.5, 2.0), (60.0, 2.0)])
def test_the_load_takes_what_the_set_up_left_of_its_time(setup: float, seconds: float) -> None:
    """A set-up that takes longer than planned shortens the load, down to its least seconds."""
    clock = SteppedClock()
    request = GemmRequest(device="cpu-0", dtype="fp32", seconds=2.0, duration_seconds=20.0)
    run = Run(request, clock, clock.monotonic())
    clock.advance(setup)
    assert run.load_seconds == seconds
    assert Run(msgspec.structs.replace(request, duration_seconds=0.0), clock).load_seconds == 2.0


@pytest.mark.parametrize("plan", list(load_plans()))
@pytest.mark.parametrize("row", load_table("arch_flops.csv", Architecture), ids=lambda row: row.architecture)
def test_each_plan_has_a_format_that_the_device_has(row: Architecture, plan: str) -> None:
    """Else no load of it can be complete: V100 has neither bf16 nor fp8 nor int8, and T4 no bf16."""
    kind = "cuda" if row.architecture.startswith("sm") else "rocm"

    def is_there(dtype: str) -> bool:
        try:
            choose_multiplication(dtype, kind, row.architecture)
        except FormatError:
            return False
        return True

    assert any(is_there(request.dtype) for request in requests_for(plan, "GPU-1", kind))
