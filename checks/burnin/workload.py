"""The verified product workload: prepare, certify, prove the checking, measure, report. Imports torch."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgspec

from nodevet.checks.core.clock import Clock
from nodevet.checks.core.model import Result, ResultState
from nodevet.checks.engine.retest import LEFT_OUT

from . import rates
from .certify import Certificate, Golden, certify
from .device import ComputeDevice, open_device
from .errors import BurninError, FormatError, InterruptionError, NotExactError, UntoldFormatError
from .flags import apply_flags, relevant_variables, require_clean_environment
from .host import has_bf16_units
from .layout import EXTRA_ROWS, WORKSPACE_BYTES, Layout, fit_memory, fit_shape, lay_out
from .library import torch
from .locate import ChangedOperand, Mismatch, changed_operands, locate
from .metrics import figures, verification_state
from .multiply import Multiplication, choose_multiplication
from .operands import OperandSet, build_sets, make_sets
from .peak import theoretical_peak
from .plan import WORKLOAD, GemmRequest, planned_shape
from .ring import Product, Ring, checked_share, checking_for, drawing
from .selftest import Planting, Stage, self_test
from .shipped import first_sums, shipped_digest, sums_digest, wrong_rows
from .stops import Stops
from .witness import Witness

LOCATED_AT_MOST = 4
"""Maximum of diagnosed mismatches; the others are counted. One is enough to fail a device."""

Take = Callable[[Ring, list[Product], list[Product]], None]
"""Takes the compared products of a ring, and the wrong ones of them."""

ChooseMultiplication = Callable[[str, str, str | None], Multiplication]
"""Returns the multiplication for a format, a kind of device and an architecture."""

SETUP_SHARE = 0.2
_OVERHEAD_SHARE, _OVERHEAD_SECONDS = 0.2, 10.0


class Control(Protocol):
    """The callbacks of a workload to its caller."""

    def pause(self) -> None:
        """Return at once, or raise InterruptionError where the workload must end; called about every 0.1 s."""
        ...

    def tick(self, ratio: float, phase: str, shown: dict[str, float | int]) -> None:
        """Show progress: the share done, the phase, the figures so far."""
        ...

    def known(self, result: Result) -> None:
        """Take the result so far once a wrong result was found: the workload may never end."""
        ...


class Run:
    """One workload in progress: collects its data, so that a result can be returned at any moment."""

    def __init__(
        self,
        request: GemmRequest,
        clock: Clock,
        began: float | None = None,
        shipped: Callable[[Multiplication, tuple[int, int, int], int, int], str | None] = shipped_digest,
    ) -> None:
        """Start the record of *request*, whose set-up *began* at this moment of *clock* (default: now).

        *shipped* returns the digest of the sums of a known product.
        """
        self.shipped = shipped
        self.request = request
        self.conditions: dict[str, Any] = {"plan": request.plan, "torch": str(torch.__version__)}
        self.layout: Layout | None = None
        self.peak: float | None = None
        self.certificates: list[Certificate] = []
        self.plantings: list[Planting] = []
        self.batch_seconds: list[float] = []
        self.batch_gemms: list[int] = []
        self.verified = 0
        self.checked = 0
        self.mismatches = 0
        self.reports: list[Mismatch] = []
        self.changed: list[ChangedOperand] = []
        self.first_wrong: list[dict[str, Any]] = []
        self.by_shipped_sums = 0
        self.overhead: float | None = None
        self.output_bytes = 0
        self._clock = clock
        self._started = clock.instant()
        self._began = clock.monotonic() if began is None else began

    @property
    def load_seconds(self) -> float:
        """Return the seconds of load that are left: those of the request, or what the set-up left of its duration."""
        request = self.request
        left = request.duration_seconds - (self._clock.monotonic() - self._began)
        return max(request.seconds, left) if request.duration_seconds else request.seconds

    def result(self, state: ResultState, detail: str = "") -> Result:
        """Return the data so far as a result in *state*."""
        shape = self.layout.shape if self.layout else self.request.shape or ()
        return Result(
            workload=WORKLOAD,
            devices=(self.request.device,),
            state=state,
            started=self._started,
            ended=self._clock.instant(),
            dtype=self.request.dtype,
            shape=shape,
            seed=self.request.seed,
            pattern="exact_integers",
            detail=detail,
            conditions=self.conditions | self._findings(),
            metrics=figures(self._values()) if self.layout else (),
        )

    @property
    def self_test_passed(self) -> bool:
        """Return whether every planted fault was found and located; False where none was planted."""
        return bool(self.plantings) and all(planting.located for planting in self.plantings)

    @property
    def _witnesses(self) -> list[Witness]:
        return [certificate.witness for certificate in self.certificates if certificate.witness is not None]

    def _findings(self) -> dict[str, Any]:
        return {
            "verification": verification_state(
                refuted=sum(certificate.golden is None for certificate in self.certificates),
                self_test_passed=self.self_test_passed,
                verified=self.verified,
                mismatches=self.mismatches,
            ),
            "mismatch_reports": [
                *(witness.facts() for witness in self._witnesses),
                *self.first_wrong,
                *(report.facts() for report in self.reports),
                *(operand.facts() for operand in self.changed),
            ],
            "certified_by_shipped_sums": self.by_shipped_sums,
            "self_test": msgspec.to_builtins(self.plantings),
            "refuted_certificates": [
                {
                    "operand_set": index,
                    "reason": certificate.reason,
                    "bad_rows": list(certificate.bad_rows),
                    "bad_columns": list(certificate.bad_columns),
                    "wrong_share": certificate.wrong_share,
                }
                for index, certificate in enumerate(self.certificates)
                if certificate.golden is None
            ],
        }

    def _values(self) -> dict[str, float | int | None]:
        layout = self.layout
        if layout is None:
            return {}
        flop = 2 * math.prod(layout.shape)
        run = sum(self.batch_gemms)
        # A mismatch is evidence in any case; an absence of mismatches counts only from a checker that was proved.
        trusted = self.verified if self.self_test_passed or self.mismatches else None
        return self._speed(flop) | {
            "gemms_run": run,
            "gemms_verified": trusted,
            "gemms_checked": self.checked,
            "mismatches": self.mismatches,
            "verified_fraction": None if trusted is None or not run else trusted / run,
            "mismatch_rate_upper_bound_95": self._upper_bound(trusted),
            "flop_verified": None if trusted is None else trusted * flop,
            "bytes_verified": (
                None if trusted is None else trusted * layout.shape[0] * layout.shape[1] * self.output_bytes
            ),
            "checking_overhead_ratio": self.overhead,
            "operand_sets_certified": sum(each.golden is not None for each in self.certificates),
            "self_test_planted": len(self.plantings),
            "self_test_found": sum(planting.located for planting in self.plantings),
            "memory_bytes": layout.bytes,
        }

    def _upper_bound(self, trusted: int | None) -> float | None:
        """Return the bound of the rate of wrong products; where some were wrong, over all compared ones."""
        if self.mismatches:
            return rates.upper_bound_95(self.mismatches, self.checked)
        return None if trusted is None else rates.upper_bound_95(0, trusted)

    def _speed(self, flop: int) -> dict[str, float | int | None]:
        tflops = [
            flop * count / seconds / 1e12 for count, seconds in zip(self.batch_gemms, self.batch_seconds, strict=True)
        ]
        median = rates.percentile(tflops, 0.5) if tflops else None
        peak = None if self.peak is None else self.peak / 1e12
        return {
            "tflops_median": median,
            "tflops_p5": rates.percentile(tflops, 0.05) if tflops else None,
            "tflops_spread": (
                (rates.percentile(tflops, 0.95) - rates.percentile(tflops, 0.05)) / median if median else None
            ),
            "peak_tflops": peak,
            "efficiency_ratio": median / peak if median is not None and peak else None,
            "late_batches": len(rates.late_batches(self.batch_seconds)),
            "batches": len(self.batch_seconds),
            "measured_seconds": math.fsum(self.batch_seconds),
        }


def run_gemm(run: Run, control: Control, choose: ChooseMultiplication = choose_multiplication) -> Result:
    """Run the workload and return its result; a request that cannot be met is a result in state ``refused``.

    *choose* selects the multiplication: a broken one simulates broken hardware.
    """
    device: ComputeDevice | None = None
    try:
        require_clean_environment(os.environ)
        device = open_device(run.request.device, run.request.pci_device_id)
        _carry_out(run, control, device, choose)
    except InterruptionError as error:
        return run.result(ResultState.INTERRUPTED, str(error))
    except BurninError as error:
        run.conditions["refusal"] = _refusal_of(error)
        return run.result(ResultState.REFUSED, str(error))
    except torch.OutOfMemoryError as error:
        return run.result(ResultState.REFUSED, f"out of memory: {_first_line(error)}; choose a smaller memory_ratio")
    except (RuntimeError, OSError) as error:  # torch's errors for a device, a driver or a system that failed under it
        state = ResultState.REFUSED if "DefaultCPUAllocator" in str(error) else ResultState.DIED
        return run.result(state, _first_line(error))
    finally:
        if device is not None:
            device.release()
    return run.result(ResultState.FINISHED, _summary(run))


def _refusal_of(error: BurninError) -> str:
    """Return the cause of *error*, as in the condition ``refusal``."""
    if isinstance(error, UntoldFormatError):
        return "untold"
    if isinstance(error, FormatError):
        return "format"
    return "exactness" if isinstance(error, NotExactError) else "device"


def _require_bf16_units(has_units: bool | None) -> None:
    if has_units is None:
        raise UntoldFormatError("bf16 on cpu: /proc/cpuinfo cannot be read, so nothing tells whether it has such units")
    if not has_units:
        raise FormatError("bf16 on cpu: this processor has no such units, libraries emulate it; use fp32")


def _carry_out(run: Run, control: Control, device: ComputeDevice, choose: ChooseMultiplication) -> None:
    request = run.request
    control.tick(0.0, "preparing", {})
    if device.kind == "cpu" and request.dtype == "bf16":
        _require_bf16_units(has_bf16_units())
    multiplication = choose(request.dtype, device.kind, device.facts.architecture)
    run.conditions |= _describe(device, multiplication) | {
        "flags": apply_flags(request.dtype),
        "environment": relevant_variables(os.environ),
    }
    layout = _choose_layout(run, device, multiplication, control)
    sets = _build(run, device, multiplication, layout)
    goldens = _certify(run, control, multiplication, sets, layout)
    if len(goldens) < len(sets):
        return
    m, n, _k = layout.shape
    slots = [torch.zeros(m, n, dtype=multiplication.output, device=device.torch_device) for _ in range(layout.slots)]
    checking = checking_for(device.kind, request.dtype)
    run.conditions["checking"] = checking.value
    make_ring = partial(Ring, multiplication.run, sets, goldens, slots)
    make_ring = partial(make_ring, lag=layout.lag, seed=request.seed, checking=checking)

    def take(ring: Ring, checked: list[Product], failed: list[Product]) -> None:
        _account(run, control, ring, multiplication, checked, failed)

    if request.self_test:
        control.tick(SETUP_SHARE / 2, "self-test", {})
        run.plantings = self_test(
            Stage(
                sets=sets,
                goldens=goldens,
                slots=slots,
                multiplication=multiplication,
                checking=checking,
                seed=request.seed,
                pause=control.pause,
                time_batch=lambda ring, count: device.timed(lambda: ring.run_batch(count)),
                take=take,
            )
        )
    _measure_overhead(run, control, device, make_ring(), layout, take)
    share = checked_share(run.overhead, device.kind)
    run.conditions["checked_share"] = share
    ring = make_ring(draw=drawing(share))
    try:
        with Stops() as stops:
            measure(run, control, device, ring, layout, take, stops)
    except InterruptionError:
        _finish(run, control, ring, take)
        raise
    _finish(run, control, ring, take)  # not after an error of the device: it cannot check


def _finish(run: Run, control: Control, ring: Ring, take: Take) -> None:
    """Check the products that wait, and hash the operands again: also where the load was interrupted."""
    checked, failed = ring.drain()
    run.verified += len(checked)
    take(ring, checked, failed)
    if run.reports:
        return  # the diagnosis of a wrong product has hashed its operands
    run.changed = changed_operands(ring.sets)
    if run.changed:
        run.mismatches += len(run.changed)
        run.checked += len(run.changed)
        control.known(run.result(ResultState.DIED, _summary(run)))


def _describe(device: ComputeDevice, multiplication: Multiplication) -> dict[str, Any]:
    partly = {LEFT_OUT: device.left_out} if device.left_out else {}
    return partly | {
        "kind": device.kind,
        "device_name": device.facts.name,
        "architecture": device.facts.architecture,
        "compute_units": device.facts.compute_units,
        "maximum_clock_hertz": device.facts.maximum_clock_hertz,
        "threads": device.threads,
        "cache_bytes": device.cache_bytes,
        "output": str(multiplication.output).removeprefix("torch."),
        "output_variant": "narrow" if multiplication.narrow else "wide",
        "exponent_span": multiplication.data_type.exponent_span,
    }


def _choose_layout(run: Run, device: ComputeDevice, multiplication: Multiplication, control: Control) -> Layout:
    request = run.request
    wanted = request.shape or planned_shape(request.plan, device.kind, device.facts.compute_units, request.dtype)

    free = device.free_bytes()
    budget = free if device.kind == "cpu" else int(free * request.memory_ratio) - WORKSPACE_BYTES
    if request.maximum_memory_bytes:
        budget = min(budget, request.maximum_memory_bytes)
    data_type, run.output_bytes = multiplication.data_type, multiplication.output.itemsize

    def measure(shape: tuple[int, int, int]) -> float:
        control.pause()
        return _one_product_seconds(shape, device, multiplication)

    if request.shape is None and request.call_limit_seconds:
        affordable = fit_memory(wanted, data_type, run.output_bytes, budget)
        shape, gemm_seconds = fit_shape(affordable, data_type.maximum_k, request.call_limit_seconds, measure)
    else:  # a re-test must have exactly this shape; one that does not fit is refused
        shape, gemm_seconds = wanted, measure(wanted)
    layout = lay_out(
        shape,
        data_type,
        run.output_bytes,
        budget_bytes=budget,
        cache_bytes=device.cache_bytes,
        gemm_seconds=gemm_seconds,
        seconds=run.load_seconds,
    )
    peak = theoretical_peak(device.facts, request.dtype)
    run.layout, run.peak = layout, None if peak is None else peak.operations_per_second
    run.conditions |= {
        "planned_shape": list(wanted),
        "peak_source": None if peak is None else peak.source,
        "slots": layout.slots,
        "lag": layout.lag,
        "batch": layout.batch,
        "lag_covers_cache": layout.covers_cache,
        "row_offsets": EXTRA_ROWS,
    }
    return layout


def _one_product_seconds(shape: tuple[int, int, int], device: ComputeDevice, multiplication: Multiplication) -> float:
    """Return the seconds of the fastest of four products of zeros: the first ones start threads and load kernels."""
    m, n, k = shape
    a = torch.zeros(m, k, dtype=multiplication.element, device=device.torch_device)
    b = torch.zeros(n, k, dtype=multiplication.element, device=device.torch_device).t()
    b = b if multiplication.transpose_b else b.contiguous()
    out = torch.zeros(m, n, dtype=multiplication.output, device=device.torch_device)

    def start() -> Callable[[], float]:
        multiplication.run(a, b, out)
        return lambda: float(out[0, 0])

    return min(device.timed(start)[0] for _ in range(4))


def _build(run: Run, device: ComputeDevice, multiplication: Multiplication, layout: Layout) -> list[OperandSet]:
    recipes = make_sets(
        multiplication.data_type, *layout.shape, EXTRA_ROWS, run.request.seed, narrow=multiplication.narrow
    )
    sets = build_sets(recipes, multiplication.element, device.torch_device, transpose_b=multiplication.transpose_b)
    run.conditions["families"] = [str(each.family) for each in sets]
    run.conditions["operand_digests"] = [
        f"{operand.digest.number():016x}" for each in sets for operand in (each.a, each.b)
    ]
    return sets


def _certify(
    run: Run, control: Control, multiplication: Multiplication, sets: list[OperandSet], layout: Layout
) -> list[Golden]:
    goldens = []
    for each in sets:
        control.tick(SETUP_SHARE * (0.1 + 0.1 * each.index), "certifying", {})
        certificate = _first_product(run, control, multiplication, each, layout)
        run.certificates.append(certificate)
        run.checked += 1
        if certificate.golden is not None:
            goldens.append(certificate.golden)
        elif certificate.witness is not None:
            run.mismatches += 1
            control.known(run.result(ResultState.DIED, "a wrong result was found while certifying"))
    return goldens


def _first_product(
    run: Run, control: Control, multiplication: Multiplication, operands: OperandSet, layout: Layout
) -> Certificate:
    """Prove the first product by shipped sums where they are known and agree, else on the host.

    A wrong one that the host finds right the next time was wrong all the same, if the shipped sums are right.
    """
    m, seed = layout.shape[0], run.request.seed
    digest = run.shipped(multiplication, layout.shape, seed, operands.index)
    first = None if digest is None else first_sums(operands, multiplication, m, control.pause)
    if first is not None and sums_digest(first) == digest:
        run.by_shipped_sums += 1
        return Certificate(golden=first)
    certificate = certify(operands, multiplication, m, seed, pause=control.pause)
    if digest is None or certificate.golden is None:
        return certificate
    if sums_digest(certificate.golden) != digest:  # the host's own proof counts: the table is of other operands
        run.conditions["shipped_sums"] = "out of date: this product has others"
        return certificate
    rows = () if first is None else wrong_rows(first, certificate.golden)
    run.first_wrong.append(
        {"operand_set": operands.index, "origin": "first_product", "persistence": "transient", "rows": list(rows)}
    )
    run.mismatches += 1
    run.checked += 1
    control.known(run.result(ResultState.DIED, "a wrong result was found while certifying"))
    return certificate


def _measure_overhead(
    run: Run, control: Control, device: ComputeDevice, ring: Ring, layout: Layout, take: Take
) -> None:
    """Time checked and unchecked batches in the order A B B A, so that a drift affects both alike. Warms up, too.

    The products of unchecked batches are checked afterwards: a wrong one counts whenever it is found.
    """
    planned, count = run.load_seconds, layout.batch
    control.tick(SETUP_SHARE * 0.8, "measuring the cost of checking", {})
    for _ in range(math.ceil(layout.lag / count)):
        control.pause()
        take(ring, *ring.run_batch(count)())

    def unchecked() -> Callable[[], None]:
        ring.run_ahead(count)
        return lambda: None

    checked_seconds: list[float] = []
    unchecked_seconds: list[float] = []
    budget = max(run.request.warmup_seconds, min(_OVERHEAD_SHARE * planned, _OVERHEAD_SECONDS))
    if run.request.duration_seconds:
        budget = min(budget, planned / 2)
    while sum(checked_seconds) + sum(unchecked_seconds) < budget:
        for is_checked in (True, False, False, True):
            control.pause()
            if is_checked:
                seconds, outcome = device.timed(lambda: ring.run_batch(count))
                checked_seconds.append(seconds)
            else:
                unchecked_seconds.append(device.timed(unchecked)[0])
                outcome = ring.catch_up()
            take(ring, *outcome)
    take(ring, *ring.drain())
    run.overhead = rates.overhead_ratio(checked_seconds, unchecked_seconds)


def measure(
    run: Run, control: Control, device: ComputeDevice, ring: Ring, layout: Layout, take: Take, stops: Stops
) -> None:
    """Load the device for what is left of the request's time; time in which this process was stopped does not count."""
    control.tick(SETUP_SHARE, "measuring", {})
    done, planned = 0.0, run.load_seconds
    while done < planned:
        control.pause()
        before = stops.seconds
        seconds, (checked, failed) = device.timed(lambda: ring.run_batch(layout.batch))
        if stops.seconds > before:
            seconds = rates.usual(run.batch_seconds, seconds)
        done += seconds
        run.batch_seconds.append(seconds)
        run.batch_gemms.append(layout.batch)
        run.verified += len(checked)
        take(ring, checked, failed)
        share = SETUP_SHARE + (1 - SETUP_SHARE) * min(1.0, done / planned)
        control.tick(
            share,
            "measuring",
            {
                "tflops": 2 * math.prod(layout.shape) * layout.batch / seconds / 1e12,
                "gemms_verified": run.verified if run.self_test_passed or run.mismatches else 0,
                "gemms_checked": run.checked,
                "measured_seconds": done,
                "mismatches": run.mismatches,
            }
            | ({} if run.peak is None else {"peak_tflops": run.peak / 1e12}),
        )


def _account(
    run: Run,
    control: Control,
    ring: Ring,
    multiplication: Multiplication,
    checked: list[Product],
    failed: list[Product],
) -> None:
    """Count the compared products, and report wrong ones at once: a device that computes wrongly may fail soon."""
    run.checked += len(checked)
    if not failed:
        return
    run.mismatches += len(failed)
    control.known(run.result(ResultState.DIED, "a wrong result was found"))
    for product in failed[: LOCATED_AT_MOST - len(run.reports)]:
        run.reports.append(locate(ring, product, multiplication, control.pause))
        control.known(run.result(ResultState.DIED, _summary(run)))


def _summary(run: Run) -> str:
    """Return one line for display, empty where all is well."""
    if run.reports:
        worst = run.reports[0]
        return (
            f"{run.mismatches} of {run.checked} products wrong; first: product {worst.product}, {worst.cells} cells, "
            f"blamed {worst.origin}, {worst.persistence}"
        )
    if run.changed:
        changed = run.changed[0]
        return (
            f"{changed.origin.replace('_', ' ')} of set {changed.operand_set} changed in memory during the load"
            f"{_rows_of(changed)}; no product that was checked showed it"
        )
    if run.first_wrong:
        return (
            f"{run.mismatches} of {run.checked} products wrong: the first product of operand set "
            f"{run.first_wrong[0]['operand_set']} has not its known sums, and was right when it was computed again"
        )
    wrong = [certificate.witness for certificate in run.certificates if certificate.witness is not None]
    if wrong:
        first = wrong[0]
        return (
            f"{run.mismatches} of {run.checked} products wrong from the first on: row {first.row}, column "
            f"{first.column} is {first.got}, the host's own arithmetic gives {first.want}"
        )
    refuted = [certificate.reason for certificate in run.certificates if certificate.golden is None]
    if refuted:
        return f"the product could not be certified: {refuted[0]}"
    missed = [planting.fault for planting in run.plantings if not planting.located]
    if missed:
        return f"the self-test missed {', '.join(missed)}: nothing is verified"
    share = run.conditions.get("checked_share", 1.0)
    drawn = f"{100 * share:.0f} % of the products were checked, drawn at random" if share < 1.0 else ""
    in_part = f"in part: {run.conditions[LEFT_OUT]}" if LEFT_OUT in run.conditions else ""
    return "; ".join(part for part in (in_part, drawn) if part)


def _rows_of(operand: ChangedOperand) -> str:
    rows = operand.operand_rows
    return f", row{'' if len(rows) == 1 else 's'} {', '.join(map(str, rows[:4]))}" if rows else ""


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
