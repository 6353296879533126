"""The result of a burn-in as text: verdict, a table of its formats, and the reasons of what is not verified."""

from __future__ import annotations

from nodevet.agent.terminal.output import say, table
from nodevet.agent.terminal.text import verdict_words
from nodevet.exporters.documents.types import BurnInDocument
from nodevet.exporters.format import one_in


def show(document: BurnInDocument, *, self_test: bool) -> None:
    say(f"{document.node}: {verdict_words(document.verdict, document.reason)}")
    runs: dict[tuple[str, str], dict[str, float | int | None]] = {}
    states: dict[tuple[str, str], tuple[str, str]] = {}
    for result in document.results:
        key = (result.device, result.dtype or "")
        runs.setdefault(key, {})[result.metric] = result.value
        states[key] = (result.state, result.detail or str(result.conditions.get("verification", "")))
        if self_test and result.metric == "self_test_found":
            _show_self_test(result.device, result.dtype or "", result.conditions.get("self_test", []))
    rows = [
        (device, dtype, *states[device, dtype], *(_number(figures.get(name)) for name in _COLUMNS))
        for (device, dtype), figures in runs.items()
    ]
    if rows:
        say(table(rows, ("DEVICE", "FORMAT", "STATE", "RESULTS", *_COLUMNS.values())))
    verified = document.verified
    bounds = [figures.get("mismatch_rate_upper_bound_95") for figures in runs.values()]
    worst = max((bound for bound in bounds if bound), default=None)
    rate = f", error rate below {one_in(worst)} per device and format (95 % confidence)" if worst else ""
    say(f"{verified.gemms} GEMMs verified, {verified.mismatches} wrong{rate}")


_COLUMNS = {
    "tflops_median": "TFLOPS",
    "tflops_p5": "P5",
    "peak_tflops": "PEAK",
    "efficiency_ratio": "EFFICIENCY",
    "gemms_verified": "VERIFIED",
    "mismatches": "WRONG",
}


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


def _number(value: float | int | None) -> str:
    if value is None:
        return "unknown"
    return str(value) if isinstance(value, int) else f"{value:.3g}"
