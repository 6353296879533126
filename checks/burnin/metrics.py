"""The figures of a verified product workload, in ``figures.csv``: what report, exporters and health checks read.

``conditions`` of the result contain, besides the settings: ``verification``, one of ``verified`` (nothing wrong),
``mismatch``, ``unmeasured: self-test``, ``unmeasured: range or device`` (certification failed and no single cell
proves the device wrong), ``unmeasured: nothing verified``; ``mismatch_reports``, one per located fault; ``self_test``,
one per planted fault. ``refusal`` of a refused result names the cause: the ``format``, which the device lacks,
``untold`` (it is unknown whether the device has the format), its ``exactness`` at this K (others may run after each of
these), or the ``device`` (none will run). ``left_out`` names the part of the device that the load did not reach; then
nothing is proved of the device. ``checked_share`` is the share of the products that are checked, drawn at random.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from nodevet.checks.core.model import Metric
from nodevet.checks.core.tables import read_table


class _Figure(msgspec.Struct, frozen=True):
    """A row of ``figures.csv``."""

    name: str
    unit: str
    meaning: str


UNITS = {row.name: row.unit for row in read_table(Path(__file__).with_name("figures.csv"), _Figure)}
"""Every figure with its unit, in the order in which they are shown."""


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
