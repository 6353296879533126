"""The last load of each device: its rate, what of it was verified, and when."""

from __future__ import annotations

from collections.abc import Sequence

from nodevet.checks.core.model import Result, ResultState, Snapshot
from nodevet.checks.engine.completeness import last_proof
from nodevet.exporters.format import ABSENT, age, counted, moment, number, percent

from .markup import Html, element
from .shapes import badge, bar

__all__ = ["burn_in_section"]

MAXIMUM_RESULTS = 128

_HEADS = ("device", "workload", "rate", "of the peak", "verified", "wrong", "ended")


def burn_in_section(snapshot: Snapshot, names: dict[str, str], *, report: bool) -> Html:
    """Return the section of the last results in the order of workloads and devices, with a link to the *report*."""
    name = element("h2", "Last burn-in", id="burn-in-name")
    if not snapshot.results:
        said = "No load has run under this agent: what is read is judged, and nothing is proven about work."
        return element("section", name, element("p", said, class_="soft quiet"), aria_labelledby="burn-in-name")
    scale, unit = _unit(snapshot.results)
    order = {device.id: place for place, device in enumerate(snapshot.devices)}
    results = sorted(snapshot.results, key=lambda result: (result.workload, result.dtype or "", _place(result, order)))
    rows = [_row(result, snapshot, names, scale, unit) for result in results[:MAXIMUM_RESULTS]]
    head = element("tr", *(element("th", text, scope="col", class_=_class(text)) for text in _HEADS))
    table = element("table", element("thead", head), element("tbody", *rows), class_="figures")
    hidden = len(results) - MAXIMUM_RESULTS
    more = element("p", f"and {counted(hidden, 'result')} more", class_="soft") if hidden > 0 else None
    link = element("p", element("a", "The report of the last load", href="/report"), class_="soft") if report else None
    load = last_proof(snapshot.results, snapshot.episodes)
    said = load.reason(names) or f"{load.verified} of {load.verified} planned formats verified to the end of their load"
    proof = element("p", badge(load.state.value), " ", said)
    wide = element("div", table, class_="wide")
    return element("section", name, proof, wide, more, link, aria_labelledby="burn-in-name")


def _place(result: Result, order: dict[str, int]) -> int:
    return order.get(result.devices[0], len(order)) if result.devices else len(order)


def _class(head: str) -> str | None:
    return "n" if head in ("rate", "verified", "wrong") else None


def _row(result: Result, snapshot: Snapshot, names: dict[str, str], scale: float, unit: str) -> Html:
    shown = ", ".join(names.get(device, device) for device in result.devices[:8])
    rate, efficiency = result.metric("tflops_median"), result.metric("efficiency_ratio")
    verified, wrong = result.metric("gemms_verified"), result.metric("mismatches")
    workload = f"{result.workload} {result.dtype or ''}".rstrip()
    ended = element("td", f"{age(snapshot.time, result.ended)} ", element("small", moment(result.ended)))
    if result.state is not ResultState.FINISHED:
        detail = f"{result.state.value}: {result.detail}" if result.detail else result.state.value
        found = f"{number(int(wrong))} wrong; {detail}" if wrong else detail
        said = element("td", badge("failed" if wrong else "unknown"), " ", found, colspan=4)
        return element("tr", element("th", shown, scope="row"), element("td", workload), said, ended)
    of_peak = element("td", ABSENT) if efficiency is None else element(
        "td", element("span", percent(efficiency, 1), class_="beside"), bar(efficiency), class_="share"
    )  # fmt: skip
    return element(
        "tr",
        element("th", shown, scope="row"),
        element("td", workload),
        element("td", ABSENT if rate is None else _rate(rate * scale, unit), class_="n"),
        of_peak,
        element("td", ABSENT if verified is None else number(int(verified)), class_="n"),
        element("td", ABSENT if wrong is None else number(int(wrong)), class_="n bad" if wrong else "n"),
        ended,
    )


def _rate(rate: float, unit: str) -> str:
    return f"{rate:,.0f} {unit}" if rate >= 1000 else f"{rate:#.4g} {unit}"


def _unit(results: Sequence[Result]) -> tuple[float, str]:
    """Return the unit in which the rates are easily read, and what brings TFLOPS to it."""
    known = [rate for rate in (result.metric("tflops_median") for result in results) if rate is not None]
    return (1000.0, "GFLOPS") if known and max(known) < 1 else (1.0, "TFLOPS")
