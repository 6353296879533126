"""What the result of a load proves of its devices, and whether that ends an episode. Pure.

reference/clearing.csv says for each class which proof ends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from nodevet.checks.model import Action, Clearing, Episode, Instant, Result, ResultState
from nodevet.checks.reference.tables import load_table

__all__ = ["ClearingRow", "clearing_table", "is_later", "is_passed_retest", "retest_proof"]


class ClearingRow(msgspec.Struct, frozen=True):
    """What ends an episode of one class, and whether one that comes and goes is held open for a while.

    An acknowledgement stops any episode from counting.
    """

    clearing: Clearing
    good_samples: int | None
    passed_retest: bool
    other_serial: bool
    job_ended: bool
    retest_needs_reboot: tuple[Action, ...]
    damped: bool
    source: str


@lru_cache(maxsize=1)
def clearing_table() -> dict[Clearing, ClearingRow]:
    """Return the rows of reference/clearing.csv by class."""
    return {row.clearing: row for row in load_table("clearing.csv", ClearingRow)}


def is_passed_retest(result: Result) -> bool:
    """Return whether *result* proves its devices: it finished, verified something, found nothing wrong.

    A load that did not first find every fault that it planted in its own results proves nothing.
    """
    return (
        result.state is ResultState.FINISHED
        and (result.metric("gemms_verified") or 0) > 0
        and result.metric("mismatches") == 0
        and (result.metric("self_test_planted") or 0) > 0
        and result.metric("self_test_found") == result.metric("self_test_planted")
    )


def retest_proof(device: str, episode: Episode, row: ClearingRow, loads: Iterable[Result], now: Instant) -> str | None:
    """Return which of *loads* proves *device* after the episode was last seen, or None.

    Boots have no order but that the present one is the last: wall clocks may be wrong. While a wrong result of another
    workload or number format stands, no passed one proves the device.
    """
    results = [result for result in loads if device in result.devices]
    if any(result.metric("mismatches") for result in results):
        return None
    for result in filter(is_passed_retest, results):
        same_boot = result.started.boot_id == episode.last_seen.boot_id
        if same_boot and episode.finding.action in row.retest_needs_reboot:
            continue
        this_boot = result.started.boot_id == now.boot_id
        if is_later(result.started, episode.last_seen) if same_boot else this_boot:
            return f"passed re-test ({result.workload}, {result.metric('gemms_verified')} verified)"
    return None


def is_later(moment: Instant, other: Instant) -> bool:
    """Return whether *moment* is after *other* in the same boot."""
    return moment.boot_id == other.boot_id and moment.boottime_ns > other.boottime_ns
