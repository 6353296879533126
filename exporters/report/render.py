"""A ReportDocument as one HTML page."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from nodevet.checks.engine.explanation import ACTIONS
from nodevet.exporters.documents.types import FindingDocument, SeriesDocument
from nodevet.exporters.format import ABSENT, amount, one_in, rate_unit, words
from nodevet.exporters.templates import Templates, Verbatim

from .document import ReportDocument, Workload, read_document
from .plots import COLOURS, FRAME, Bar, Line, Plot, bar, line_plot

_CURVES = {
    "tflops": ("Rate", "TFLOPS", 1.0),
    "temperature_celsius": ("Temperature", "°C", 1.0),
    "clock_hertz": ("Clock", "MHz", 1e-6),
    "power_watts": ("Power", "W", 1.0),
}
"""Title, unit and scale of each quantity that may be plotted, in the order of the page."""


def render(document: ReportDocument) -> str:
    """Return *document* as an HTML page. Raises PageError if jinja2 cannot be imported."""
    folder = Path(__file__).parent
    unit = rate_unit(workload.figure("tflops_median") for workload in document.workloads)
    filters: dict[str, Callable[..., object]] = {
        "number": _number, "rate": _rate, "percent": _percent, "amount": amount, "words": words, "remedy": _remedy,
        "moment": _moment, "one_in": one_in, "added": _added, "measured": _measured, "bar": _efficiency_bar,
    }  # fmt: skip
    return Templates(folder, filters=filters).render(
        "page.html",
        report=document,
        style=Verbatim((folder / "page.css").read_text(encoding="utf-8")),
        plots=_plots(document, unit),
        frame=FRAME,
        legend=[(index % COLOURS, name) for index, name in enumerate(_drawn(document))],
        unit=unit,
    )


def render_file(content: bytes, *, name: str = "document") -> str:
    """Return the page of the JSON in *content*, called *name* in errors. Raises UsageError or PageError."""
    return render(read_document(content, name))


def _drawn(document: ReportDocument) -> list[str]:
    """Return the labels of the devices with curves, in the order of the inventory."""
    drawn = {series.device for series in document.series}
    known = [label for device, label in document.labels.items() if device in drawn]
    return known + sorted(drawn - document.labels.keys())


def _plots(document: ReportDocument, rate: tuple[str, float]) -> list[Plot]:
    """Return a plot per quantity and number format, with the devices in the same order in each."""
    names = _drawn(document)
    groups: dict[tuple[str, str | None], dict[str, SeriesDocument]] = {}
    for series in document.series:
        name = document.labels.get(series.device, series.device)
        groups.setdefault((series.quantity, series.dtype), {})[name] = series
    found = []
    for quantity, (title, unit, scale) in {**_CURVES, "tflops": ("Rate", *rate)}.items():
        for (drawn, dtype), curves in groups.items():
            if drawn != quantity:
                continue
            lines = [Line(name, _scaled(curves[name], scale) if name in curves else ()) for name in names]
            plot = line_plot(f"{title}, {dtype}" if dtype else title, unit, lines)
            found += [plot] if plot else []
    return found


def _scaled(series: SeriesDocument, scale: float) -> tuple[tuple[float, float], ...]:
    return tuple((time, value * scale) for time, value in series.points)


def _efficiency_bar(workload: Workload) -> Bar | None:
    """Return the reached share of the peak, with a tick at the rate that 95 % of the batches reached."""
    efficiency, peak = workload.figure("efficiency_ratio"), workload.figure("peak_tflops")
    low = workload.figure("tflops_p5")
    if efficiency is None:
        return None
    return bar(efficiency, low / peak if low is not None and peak else None)


def _number(value: float | int | None, digits: int = 3) -> str:
    """Return *value* with *digits* significant digits and commas, or a dash if it was not measured."""
    if value is None:
        return ABSENT
    if isinstance(value, int) or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}"


def _rate(tflops: float | None, scale: float = 1.0) -> str:
    return ABSENT if tflops is None else _number(tflops * scale, 4)


def _percent(value: float | None, digits: int = 1) -> str:
    return ABSENT if value is None else f"{100 * value:.{digits}f} %"


def _added(overhead: float | None) -> str:
    """Return the time added by checking; a figure of zero or less is below the noise of its measurement."""
    return "not measurable" if overhead is not None and overhead <= 0 else _percent(overhead)


def _measured(finding: FindingDocument) -> str:
    """Return the measured value of *finding* with its limit, as ``measured 3 °C, limit <= 5 °C (table);``."""
    if finding.value is None or isinstance(finding.value, bool | str):
        return ""
    limit = finding.limit
    beside = f", limit {limit.op} {amount(limit.value, finding.unit)} ({limit.source})" if limit else ""
    return f"measured {amount(finding.value, finding.unit)}{beside};"


def _remedy(action: str) -> str:
    """Return *action* as an instruction; an action of a newer nodevet by its name."""
    return ACTIONS.get(action, words(action))


def _moment(text: str | None) -> str:
    """Return a time stamp for people: ``2026-11-20 10:00:00 UTC``; other text is returned unchanged."""
    if not text:
        return ABSENT
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%S UTC")
    except ValueError:
        return text
