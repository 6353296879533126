"""The last burn-in on the metrics page: figures, end time and verification."""

from __future__ import annotations

from collections.abc import Iterator

from nodevet.checks.core.model import NODE, Result, ResultState, Snapshot, State
from nodevet.checks.engine.completeness import last_proof, standing_wrong
from nodevet.checks.engine.retest import is_passed_retest

from .family import Family, LabelValues, family

_FIGURES = (
    ("tflops_median", 1e12, "burnin_flops_per_second", True),
    ("efficiency_ratio", 1, "burnin_efficiency_ratio", True),
    ("efficiency_held_ratio", 1, "burnin_efficiency_held_ratio", True),
    ("clock_fraction_ratio", 1, "burnin_clock_fraction_ratio", True),
    ("mismatches", 1, "burnin_mismatches", True),
    ("gemms_verified", 1, "burnin_gemms_verified", False),
)
"""Figure of a result, factor to the base unit, metric, and whether a default page shows it."""


def result_metrics(snapshot: Snapshot, *, detail: bool) -> Iterator[Family]:
    """Yield the last burn-in of each workload, device and number format."""
    standing = _standing(snapshot)
    newest = snapshot.results  # in order of arrival, independent of the wall clock
    yield family(
        "burnin_passed",
        {_labels(result): is_passed_retest(result) for result in newest} | dict.fromkeys(standing, False),
    )
    if newest:
        yield family("burnin_complete", {(): last_proof(newest, snapshot.episodes).state is State.OK})
    finished = {_labels(result): result for result in newest if result.state is ResultState.FINISHED}
    # A wrong result counts even if its load was stopped or died.
    last = finished | {_labels(result): result for result in newest if result.metric("mismatches")}
    for figure, scale, name, by_default in _FIGURES:
        if by_default or detail:
            found = {labels: result.metric(figure) for labels, result in last.items()}
            if figure == "mismatches":
                found |= {labels: wrong for labels, wrong in standing.items() if not found.get(labels)}
            yield family(name, {labels: value * scale for labels, value in found.items() if value is not None})
    yield family(
        "burnin_finished_timestamp_seconds", {labels: result.ended.wall_seconds for labels, result in finished.items()}
    )


def _standing(snapshot: Snapshot) -> dict[LabelValues, int]:
    """Return the wrong results that still count: no later burn-in was a proof against them."""
    return {
        (shown.workload, device, shown.dtype or ""): shown.wrong for device, shown in standing_wrong(snapshot.episodes)
    }


def _labels(result: Result) -> LabelValues:
    device = result.devices[0] if len(result.devices) == 1 else NODE
    return result.workload, device, result.dtype or ""
