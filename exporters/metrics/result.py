"""The last burn-in on the metrics page: figures, end time and verification."""

from __future__ import annotations

from collections.abc import Iterator

from nodevet.checks.core.model import NODE, Result, ResultState, Snapshot, State
from nodevet.checks.engine.completeness import last_proof, standing_wrong
from nodevet.checks.engine.retest import is_passed_retest

from .family import Family, LabelValues, gauge

_FIGURES = (
    ("tflops_median", 1e12, "flops_per_second", True, "Median rate of the last finished burn-in of this workload."),
    (
        "efficiency_ratio",
        1,
        "efficiency_ratio",
        True,
        "Median rate of the last finished burn-in as a share of the theoretical peak.",
    ),
    (
        "mismatches",
        1,
        "mismatches",
        True,
        "Wrong GEMMs of the last finished burn-in, or of an earlier one that no re-test has cleared.",
    ),
    ("gemms_verified", 1, "gemms_verified", False, "Verified GEMMs of the last finished burn-in."),
)
"""Figure of a result, factor to the base unit, metric name, whether the default page has it, and help."""


_LABELS = ("workload", "device", "dtype")


def result_metrics(snapshot: Snapshot, *, detail: bool) -> Iterator[Family]:
    """Yield the last burn-in of each workload, device and number format."""
    standing = _standing(snapshot)
    newest = snapshot.results  # in the order in which they came, whatever the wall clock says
    yield gauge(
        "burnin_passed",
        "Whether the last burn-in finished, passed its self-test, found no wrong GEMM, and cleared earlier ones.",
        _LABELS,
        {_labels(result): is_passed_retest(result) for result in newest} | dict.fromkeys(standing, False),
    )
    if newest:
        yield gauge(
            "burnin_complete",
            "Whether the last burn-in verified its whole plan, and no wrong result remains uncleared.",
            (),
            {(): last_proof(newest, snapshot.episodes).state is State.OK},
        )
    finished = {_labels(result): result for result in newest if result.state is ResultState.FINISHED}
    # Found is found: a wrong result counts although its load was stopped or died.
    last = finished | {_labels(result): result for result in newest if result.metric("mismatches")}
    for figure, scale, name, by_default, description in _FIGURES:
        if by_default or detail:
            found = {labels: result.metric(figure) for labels, result in last.items()}
            if figure == "mismatches":
                found |= {labels: wrong for labels, wrong in standing.items() if not found.get(labels)}
            yield gauge(
                f"burnin_{name}",
                description,
                _LABELS,
                {labels: value * scale for labels, value in found.items() if value is not None},
            )
    yield gauge(
        "burnin_finished_timestamp_seconds",
        "End time of the last finished burn-in of this workload.",
        _LABELS,
        {labels: result.ended.wall_seconds for labels, result in finished.items()},
    )


def _standing(snapshot: Snapshot) -> dict[LabelValues, int]:
    """Return the wrong results that stand: a burn-in that found none since was no proof against them."""
    return {
        (shown.workload, device, shown.dtype or ""): shown.wrong for device, shown in standing_wrong(snapshot.episodes)
    }


def _labels(result: Result) -> LabelValues:
    device = result.devices[0] if len(result.devices) == 1 else NODE
    return result.workload, device, result.dtype or ""
