"""The figures of a verified product workload: their names and units, for report, exporters and health checks.

| name | unit | meaning |
|---|---|---|
| tflops_median | tflops | rate of the median batch, checking included (for int8: 1e12 operations per second) |
| tflops_p5 | tflops | rate that 95 % of the batches reached |
| tflops_spread | ratio | (95th - 5th percentile) / median of the batches' rates |
| peak_tflops | tflops | theoretical peak; None where it is not known |
| efficiency_ratio | ratio | tflops_median / peak_tflops; None without a peak |
| gemms_run | count | products in the measured time |
| gemms_verified | count | of those, checked against a certified golden; None: all right, but the self-test failed |
| gemms_checked | count | all compared products: those, and the products of preparation and warm-up |
| mismatches | count | of those checked, wrong in at least one bit; any is a fault |
| verified_fraction | ratio | gemms_verified / gemms_run |
| mismatch_rate_upper_bound_95 | ratio | 95 % upper bound of the rate of wrong products |
| flop_verified | flop | operations whose results were checked |
| bytes_verified | bytes | memory of the results that were read back and checked |
| checking_overhead_ratio | ratio | time of checked over unchecked batches, interleaved, less 1; noise may be negative |
| late_batches | count | batches that took more than twice the median |
| batches | count | measured batches |
| operand_sets_certified | count | of 3: sets whose product was proved exact on the host |
| self_test_planted | count | faults planted before the measurement |
| self_test_found | count | of those, found and located with the right blame |
| measured_seconds | seconds | device time of the measured batches |
| memory_bytes | bytes | operands and ring |

``conditions`` of the result contain, besides the settings: ``verification``, one of ``verified`` (nothing wrong),
``mismatch``, ``unmeasured: self-test``, ``unmeasured: range or device`` (certification failed and no single cell
proves the device wrong), ``unmeasured: nothing verified``; ``mismatch_reports``, one per located fault; ``self_test``,
one per planted fault. ``refusal`` of a refused result names the cause: the ``format``, which the device lacks,
``untold`` (it is unknown whether the device has the format), its ``exactness`` at this K (others may run after each of
these), or the ``device`` (none will run). ``left_out`` names the part of the device that the load did not reach; then
nothing is proved of the device.
"""

from __future__ import annotations

from nodevet.checks.core.model import Metric

UNITS: dict[str, str] = {
    "tflops_median": "tflops",
    "tflops_p5": "tflops",
    "tflops_spread": "ratio",
    "peak_tflops": "tflops",
    "efficiency_ratio": "ratio",
    "gemms_run": "count",
    "gemms_verified": "count",
    "gemms_checked": "count",
    "mismatches": "count",
    "verified_fraction": "ratio",
    "mismatch_rate_upper_bound_95": "ratio",
    "flop_verified": "flop",
    "bytes_verified": "bytes",
    "checking_overhead_ratio": "ratio",
    "late_batches": "count",
    "batches": "count",
    "operand_sets_certified": "count",
    "self_test_planted": "count",
    "self_test_found": "count",
    "measured_seconds": "seconds",
    "memory_bytes": "bytes",
}
"""Every figure with its unit, in display order."""


def figures(values: dict[str, float | int | None]) -> tuple[Metric, ...]:
    """Return *values* as metrics in the table's order. Raises KeyError for a name that is not in the table."""
    unknown = values.keys() - UNITS.keys()
    if unknown:
        raise KeyError(f"no such figure: {', '.join(sorted(unknown))}")
    return tuple(Metric(name, values[name], unit) for name, unit in UNITS.items() if name in values)


def verification_state(*, refuted: int, self_test_passed: bool, verified: int, mismatches: int) -> str:
    """Return the verification state: never ``verified`` where no product was verified."""
    if mismatches:
        return "mismatch"
    if refuted:
        return "unmeasured: range or device"
    if not verified:
        return "unmeasured: nothing verified"
    return "verified" if self_test_passed else "unmeasured: self-test"
