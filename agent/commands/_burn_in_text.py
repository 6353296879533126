"""The result of a burn-in as text: verdict, a table of its formats, and the reasons of what is not verified."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodevet.agent.load.conditions import throttle_word
from nodevet.agent.load.rows import short_names
from nodevet.agent.terminal.live import count, figure, whole
from nodevet.agent.terminal.output import say, table
from nodevet.agent.terminal.text import verdict_words
from nodevet.exporters.documents.types import BurnInDocument
from nodevet.exporters.format import one_in

from ._burn_in_plan import listed

HEADINGS = ("DEVICE", "FORMAT", "RESULT", "TFLOPS", "%PEAK", "degC", "W", "MHz", "THROTTLE", "VERIFIED", "WRONG")
"""The columns of the final table; with the longest usual texts they fit 80 cells."""

Figures = Mapping[str, float | int | None]


class _Run:
    """One format on one device: its figures, what it ran under, and how it ended."""

    def __init__(self, state: str, detail: str, conditions: Mapping[str, Any]) -> None:
        self.figures: dict[str, float | int | None] = {}
        self.conditions = conditions
        self.result, self.reason = _ended(state, detail, str(conditions.get("verification", "")))


def show(document: BurnInDocument, *, self_test: bool) -> None:
    """Print *document*: the verdict, a row for each format of each device, and why one is not verified."""
    say(f"{document.node}: {verdict_words(document.verdict, document.reason)}")
    runs: dict[tuple[str, str], _Run] = {}
    for result in document.results:
        key = (result.device, result.dtype or "")
        run = runs.setdefault(key, _Run(result.state, result.detail, result.conditions))
        run.figures[result.metric] = result.value
        if self_test and result.metric == "self_test_found":
            _show_self_test(*key, result.conditions.get("self_test", []))
    known = {device.id: device for device in listed(document.devices)}
    names = short_names(known[device] for device in dict.fromkeys(device for device, _ in runs) if device in known)
    if runs:
        rows = [(names.get(device, device), *_cells(dtype, run)) for (device, dtype), run in runs.items()]
        say(table(rows, HEADINGS, gap=1))
    for (device, dtype), run in runs.items():
        if run.reason:
            say(f"{names.get(device, device)} {dtype}: {run.reason}")
    verified = document.verified
    bounds = [run.figures.get("mismatch_rate_upper_bound_95") for run in runs.values()]
    worst = max((bound for bound in bounds if bound), default=None)
    rate = f", error rate below {one_in(worst)} per device and format (95 % confidence)" if worst else ""
    say(f"{verified.gemms} GEMMs verified, {verified.mismatches} wrong{rate}")


def _ended(state: str, detail: str, verification: str) -> tuple[str, str]:
    """Return the result in a word, and its reason where it is not that all was verified."""
    if verification == "mismatch":
        return "wrong", detail or state
    if state != "finished":
        return state, detail or verification
    if verification in ("verified", ""):
        return verification or state, detail
    return "unverified", detail or verification


def _cells(dtype: str, run: _Run) -> tuple[str, ...]:
    figures, conditions = run.figures, run.conditions
    throttle = conditions.get("throttle")
    return (
        dtype.partition("_")[0],
        run.result,
        figure(figures.get("tflops_median")),
        whole(figures.get("efficiency_ratio"), 100),
        whole(conditions.get("temperature_celsius")),
        whole(conditions.get("power_watts")),
        whole(conditions.get("clock_hertz"), 1e-6),
        throttle_word(throttle) if isinstance(throttle, dict) else "-",
        _count(figures.get("gemms_verified")),
        _count(figures.get("mismatches")),
    )


def _count(value: float | None) -> str:
    return "-" if value is None else count(int(value))


def _show_self_test(device: str, dtype: str, planted: object) -> None:
    rows = [
        (
            str(fault.get("fault", "")),
            _yes(fault.get("found")),
            _yes(fault.get("located")),
            str(fault.get("detail", "")),
        )
        for fault in (planted if isinstance(planted, (list, tuple)) else ())
    ]
    say(f"self-test of {device}, {dtype}:")
    say(table(rows, ("INJECTED FAULT", "FOUND", "LOCATED", "DETAIL")))


def _yes(value: object) -> str:
    return "yes" if value else "no"
