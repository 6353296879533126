"""The last burn-in of each device: rate, verified GEMMs and time."""

from __future__ import annotations

import msgspec

from nodevet.checks.core.model import Result, ResultState, Snapshot
from nodevet.checks.engine.completeness import last_proof
from nodevet.exporters.format import ABSENT, age, bar_length, counted, moment, number, percent, rate_unit

MAXIMUM_RESULTS = 128


class ResultRow(msgspec.Struct, frozen=True, kw_only=True):
    """The last result of a workload; ``state`` and ``problem`` are those of one that did not finish."""

    devices: str
    workload: str
    ended: str
    age: str
    state: str = ""
    problem: str = ""
    rate: str = ABSENT
    share: str = ABSENT
    bar: str = ""
    verified: str = ABSENT
    wrong: str = ABSENT
    is_wrong: bool = False


class LoadSection(msgspec.Struct, frozen=True):
    """The section of the last load: whether it is a proof, and its rows."""

    state: str
    proof: str
    rows: tuple[ResultRow, ...]
    hidden: str


def load_section(snapshot: Snapshot, names: dict[str, str]) -> LoadSection | None:
    """Return the section of the last results in the order of workloads and devices; None if no load has run."""
    if not snapshot.results:
        return None
    unit, scale = rate_unit(result.metric("tflops_median") for result in snapshot.results)
    order = {device.id: place for place, device in enumerate(snapshot.devices)}
    results = sorted(snapshot.results, key=lambda result: (result.workload, result.dtype or "", _place(result, order)))
    hidden = len(results) - MAXIMUM_RESULTS
    load = last_proof(snapshot.results, snapshot.episodes)
    said = load.reason(names) or f"{load.verified} of {load.verified} {load.counted} verified to the end"
    return LoadSection(
        load.state.value,
        said,
        tuple(_row(result, snapshot, names, scale, unit) for result in results[:MAXIMUM_RESULTS]),
        counted(hidden, "result") if hidden > 0 else "",
    )


def _place(result: Result, order: dict[str, int]) -> int:
    return order.get(result.devices[0], len(order)) if result.devices else len(order)


def _row(result: Result, snapshot: Snapshot, names: dict[str, str], scale: float, unit: str) -> ResultRow:
    rate, efficiency = result.metric("tflops_median"), result.metric("efficiency_ratio")
    verified, wrong = result.metric("gemms_verified"), result.metric("mismatches")
    row = ResultRow(
        devices=", ".join(names.get(device, device) for device in result.devices[:8]),
        workload=f"{result.workload} {result.dtype or ''}".rstrip(),
        ended=moment(result.ended),
        age=age(snapshot.time, result.ended),
        is_wrong=bool(wrong),
    )
    if result.state is not ResultState.FINISHED:
        detail = f"{result.state.value}: {result.detail}" if result.detail else result.state.value
        found = f"{number(int(wrong))} wrong; {detail}" if wrong else detail
        return msgspec.structs.replace(row, state="failed" if wrong else "unknown", problem=found)
    return msgspec.structs.replace(
        row,
        rate=ABSENT if rate is None else _rate(rate * scale, unit),
        share=ABSENT if efficiency is None else percent(efficiency, 1),
        bar="" if efficiency is None else bar_length(efficiency),
        verified=ABSENT if verified is None else number(int(verified)),
        wrong=ABSENT if wrong is None else number(int(wrong)),
    )


def _rate(rate: float, unit: str) -> str:
    return f"{rate:,.0f} {unit}" if rate >= 1000 else f"{rate:#.4g} {unit}"
