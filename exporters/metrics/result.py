"""The last burn-in on the metrics page: its figures, when it ended, and what it proved."""

from __future__ import annotations

from collections.abc import Iterator

from nodevet.checks.core.model import NODE, Result, ResultState, Snapshot, State
from nodevet.checks.engine.completeness import last_proof, standing_wrong
from nodevet.checks.engine.retest import is_passed_retest

from .family import Family, LabelValues, gauge

_FIGURES = (
    ("tflops_median", 1e12, "flops_per_second", True, "Median rate of the last finished burn-in of this workload."),
    ("efficiency_ratio", 1, "efficiency_ratio", True, "Rate of the last finished burn-in over the theoretical peak."),
    (
        "mismatches",
        1,
        "mismatches",
        True,
        "Wrong matrix products of the last finished burn-in, or of one before that no re-test has disproved.",
    ),
    ("gemms_verified", 1, "gemms_verified", False, "Matrix products of the last finished burn-in that were verified."),
)
"""Figure of a result, what brings it to a base unit, its name here, whether a default page has it, and its help."""


_LABELS = ("workload", "device", "dtype")


def result_metrics(snapshot: Snapshot, *, detail: bool) -> Iterator[Family]:
    """Yield the last burn-in of each workload, device and number format."""
    standing = _standing(snapshot)
    newest = snapshot.results  # in the order in which they came, whatever the wall clock says
    yield gauge(
        "burnin_passed",
        "Whether the last burn-in finished, found its planted faults and nothing wrong, and disproved what was before.",
        _LABELS,
        {_labels(result): is_passed_retest(result) for result in newest} | dict.fromkeys(standing, False),
    )
    if newest:
        yield gauge(
            "burnin_complete",
            "Whether the last burn-in verified all of its plan to the end, and no wrong result stands undisproved.",
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
        "When the last finished burn-in of this workload ended.",
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
