"""The report page: complete, self-contained, and safe whatever a device calls itself."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from fakes.reports import from_snapshot
from fakes.snapshots import (
    burn_in,
    cpu_node,
    degraded_node,
    failed_node,
    gpu,
    gpu_id,
    gpu_node,
    unknown_node,
)

from nodevet.checks.core.errors import UsageError
from nodevet.checks.core.model import ResultState, Snapshot
from nodevet.exporters.documents.schema import burn_in_document, encode, status_document
from nodevet.exporters.documents.types import SeriesDocument
from nodevet.exporters.report.document import read_document
from nodevet.exporters.report.plots import MAXIMUM_POINTS, Bar, Line, Plot, bar, line_plot
from nodevet.exporters.report.render import render, render_file

DASH, TIMES = "\u2013", "\u00d7"
VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """Reads a page: which tags it has, where it points, what it says, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        """Read *text*."""
        super().__init__()
        self.tags: list[str] = []
        self.targets: list[str] = []
        self.handlers: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.tags.append(tag)
        self.targets += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag that closes itself."""
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost tag, which must be of this name."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note what is shown."""
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        """All that is shown, with single spaces."""
        return " ".join(" ".join(self.words).split())


def curves(*devices: str) -> tuple[SeriesDocument, ...]:
    """Return a rate and a temperature over ten minutes for each of *devices*."""
    times = [10.0 * step for step in range(61)]
    return tuple(
        SeriesDocument(device, quantity, tuple((time, value + number) for time in times))
        for number, device in enumerate(devices)
        for quantity, value in (("tflops", 700.0), ("temperature_celsius", 60.0))
    )


def page_of(snapshot: Snapshot, **more: object) -> Page:
    """Return the report of *snapshot*, read."""
    return Page(render(from_snapshot(snapshot, **more)))  # type: ignore[arg-type]


@pytest.mark.parametrize("build", [gpu_node, degraded_node, failed_node, unknown_node, cpu_node])
def test_a_page_needs_nothing_else(build: Callable[[], Snapshot]) -> None:
    """No script, no address, no handler: the page can be mailed and opened without a network."""
    page = page_of(build(), series=curves(gpu_id(0), gpu_id(1)))
    assert page.open == []
    assert "script" not in page.tags
    assert page.targets == ["data:,"]
    assert page.handlers == []
    assert not re.search(r"url\(|@import|https?://", render(from_snapshot(build())))


def test_a_certificate_has_all_its_parts() -> None:
    """Verdict, figures, counts, bounds, inventory, conditions, provenance."""
    text = page_of(gpu_node(), plan="standard", series=curves(gpu_id(0))).text
    for words in (
        "Burn-in report n0042 2026-11-20 10:00:00 UTC ok all checks pass",
        "GEMMs verified 720,896 GEMMs wrong 0",
        "GPU 0 gemm bfloat16 712.0 702.7 1.1 % 988.9 72.0 %",
        "GPU 0 gemm bfloat16 90,112 90,112 0 1/30037 3 of 3 1.3 %",
        "GPU 7 ok NVIDIA H100 80GB HBM3",
        f"8192 {TIMES} 8192 {TIMES} 30720 bfloat16 2026-11-20 09:48:20 UTC",
        "temperature: 61.5 °C; clock: 1,755 MHz; power: 688 W",
        "plan standard seed 20261 nodevet 0.1.0 configuration digest 9f2c11d0 rules digest 51aa0b3e",
    ):
        assert words in text


def test_a_finding_says_what_to_do() -> None:
    """Code, device by the name people use, message, action, value and limit."""
    text = page_of(failed_node()).text
    assert "fail nvidia.xid.79 on GPU 5" in text
    assert "Action: drain and power-cycle the node" in text
    hot = page_of(degraded_node()).text
    assert "warn thermal.margin on GPU 2, sensor core" in hot
    assert "measured 3 °C, limit <= 5 °C (table limits.csv thermal.margin);" in hot


def test_a_flag_is_no_measured_number() -> None:
    """That a link is down is in the message; a number has its unit and no digits that nobody measured."""
    snapshot = degraded_node()
    down = msgspec.structs.replace(snapshot.episodes[0].finding, value=False, unit="", limit=None)
    episode = msgspec.structs.replace(snapshot.episodes[0], finding=down)
    text = page_of(msgspec.structs.replace(snapshot, episodes=(episode,))).text
    assert "measured" not in text and "action: " in text


def test_without_a_verified_load_the_page_says_so() -> None:
    """A healthy report without a load does not look like a proof."""
    idle = page_of(gpu_node(results=())).text
    assert "Health report" in idle
    assert "No result was verified under load" in idle
    assert f"GEMMs wrong {DASH}" in idle
    assert "No result was verified" not in page_of(gpu_node()).text


def test_a_load_that_died_is_shown() -> None:
    """Its state and why stand where its figures would."""
    died = msgspec.structs.replace(burn_in(gpu_id(0), 1, 1), state=ResultState.DIED, metrics=(), detail="signal 9")
    text = page_of(gpu_node(results=(died,))).text
    assert "GPU 0 gemm bfloat16 died : signal 9 " + " ".join([DASH] * 5) in text


def test_unknown_figures_are_dashes_not_zeros() -> None:
    """A device whose peak is not known has no efficiency and no bar."""
    known = burn_in("cpu-0", 1.4, 0.7)
    metrics = tuple(
        msgspec.structs.replace(metric, value=None) if metric.name in ("peak_tflops", "efficiency_ratio") else metric
        for metric in known.metrics
    )
    unknown = msgspec.structs.replace(known, metrics=metrics)
    page = page_of(msgspec.structs.replace(cpu_node(), results=(unknown,)))
    assert f"cpu-0 gemm bfloat16 1.400 1.382 1.1 % {DASH} {DASH}" in page.text
    assert "rect" not in page.tags


def test_slow_devices_are_told_in_a_smaller_unit() -> None:
    """A processor that reaches a hundredth of a TFLOPS is read in GFLOPS, in table and curve."""
    slow = cpu_node()
    slow = msgspec.structs.replace(slow, results=(burn_in("cpu-0", 0.0154, 0.5),))
    series = (SeriesDocument("cpu-0", "tflops", ((0.0, 0.015), (60.0, 0.0154))),)
    text = page_of(slow, series=series).text
    assert "cpu-0 gemm bfloat16 15.40 15.20 1.1 % 30.80 50.0 %" in text
    assert "Rate GFLOPS" in text
    assert "TFLOPS" not in text


def test_wrong_results_are_located() -> None:
    """Where the wrong cells lie, what differs and whether it repeats are on the page."""
    wrong = burn_in(gpu_id(5), 690, 0.7, wrong=1)
    located = {
        "product": 17, "origin": "operand_a", "persistence": "transient", "reruns": 3, "reruns_wrong": 0, "cells": 12,
        "tiles": [[3, 4], [3, 5]], "flipped_bits": {"1": 11, "2": 1},
    }  # fmt: skip
    wrong = msgspec.structs.replace(wrong, conditions={**wrong.conditions, "mismatch_reports": [located]})
    text = page_of(gpu_node(results=(wrong,))).text
    assert "GPU 5 17 operand a transient: 0 of 3 again 12 3, 4; 3, 5 1 in 11; 2 in 1" in text
    assert "Wrong results" not in page_of(gpu_node()).text


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "</style><script>alert(1)</script>",
        "{{ 7 * 7 }}{% raw %}",
        "</title></svg><svg onload=alert(1)>",
        "' onmouseover='alert(1)",
    ],
)
def test_names_cannot_become_markup(name: str) -> None:
    """Whatever stands in a model, an id, a serial, a reason, a condition or a curve's name is shown, never run."""
    evil = gpu(0, id=name, model=name, serial=name, pci=name, driver=name, vendor=name)
    healthy = failed_node()
    result = msgspec.structs.replace(
        burn_in(name, 1, 1), detail=name, pattern=name, conditions={name: name, "mismatch_reports": [{"origin": name}]}
    )
    finding = msgspec.structs.replace(healthy.episodes[0].finding, message=name)
    snapshot = msgspec.structs.replace(
        healthy,
        node=name,
        verdict=msgspec.structs.replace(healthy.verdict, reason=name),
        devices=(evil,),
        results=(result,),
        episodes=(msgspec.structs.replace(healthy.episodes[0], finding=finding),),
    )
    harmless = page_of(failed_node(), series=curves(gpu_id(5)))
    page = page_of(snapshot, plan=name, series=curves(name))
    assert page.open == []
    assert set(page.tags) <= set(harmless.tags) | {"rect", "strong"}
    assert (page.targets, page.handlers) == (["data:,"], [])
    assert " ".join(name.split()) in page.text
    assert "49" not in page.text.replace(name, "").split("Provenance")[0].split("Inventory")[1]


def test_a_burn_in_document_is_a_report() -> None:
    """JSON in, the same page out as from the Snapshot."""
    snapshot = gpu_node()
    content = encode(burn_in_document(snapshot, plan="standard", series=curves(gpu_id(0))))
    assert render_file(content) == render(from_snapshot(snapshot, plan="standard", series=curves(gpu_id(0))))


def test_the_least_that_the_schema_promises_is_enough() -> None:
    """A document of another writer, with the promised fields only and one that is not known, can be rendered."""
    content = b"""{"schema": "nodevet.burn-in/1", "plan": "p", "verdict": "ok", "later": 1,
        "devices": [{"id": "GPU-1", "vendor": "nvidia", "kind": "accelerator", "model": "M", "pci": null,
                     "serial": null, "verdict": "ok"}],
        "results": [{"workload": "gemm", "device": "GPU-1", "dtype": "bfloat16", "shape": [1, 2, 3],
                     "metric": "tflops_median", "value": 5, "unit": "tflops", "conditions": {}, "verdict": null}],
        "verified": {"gemms": 0, "mismatches": 0}}"""
    text = Page(render_file(content)).text
    assert "unnamed node" in text
    assert "GPU-1 gemm bfloat16 5.000" in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a report document"),
        (b"not json", "is not a report document"),
        (b"[]", "is not a report document"),
        (b'{"schema": "nodevet.topo/1"}', r"has schema 'nodevet.topo/1': a report is made from nodevet.burn-in/1 or"),
        (b'{"schema": "nodevet.burn-in/1", "plan": 5}', r"\$\.plan"),
        (b'{"schema": "nodevet.status/1"}', "missing required field"),
    ],
)
def test_other_files_are_refused_in_one_line(content: bytes, words: str) -> None:
    """The message names the file, what is wrong and where a document comes from."""
    with pytest.raises(UsageError, match=words) as caught:
        read_document(content, "node.json")
    assert str(caught.value).startswith("node.json ")
    assert "\n" not in str(caught.value)


def test_a_status_document_is_a_report_without_curves() -> None:
    """What `nodevet status --json` wrote can be rendered."""
    page = Page(render_file(encode(status_document(gpu_node()))))
    assert "ok all checks pass" in page.text
    assert "Over time" not in page.text


def test_without_jinja2_one_line_says_what_is_missing() -> None:
    """In a process in which it cannot be imported."""
    code = (
        "import sys\n"
        "sys.modules['jinja2'] = None\n"
        "from nodevet.exporters.report.render import render_file\n"
        "from nodevet.exporters.templates import PageError\n"
        "try:\n"
        '    render_file(b\'{"schema":"nodevet.burn-in/1","plan":"p","verdict":"ok","devices":[],"results":[],'
        '"verified":{"gemms":0,"mismatches":0}}\')\n'
        "except PageError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    why = "ModuleNotFoundError: import of jinja2 halted; None in sys.modules"
    assert (
        done.stdout
        == f"an HTML page needs jinja2, which cannot be imported ({why}): correct that, or install it anew\n"
    )


def test_curves_are_drawn_per_device() -> None:
    """One line per device in each plot, named in the legend in the order of the inventory."""
    document = from_snapshot(gpu_node(), series=curves(gpu_id(1), gpu_id(0)))
    page = Page(render(document))
    assert "GPU 0 GPU 1 Rate TFLOPS" in page.text
    assert page.tags.count("figure") == 2


def points_of(plot: Plot | None) -> list[tuple[float, ...]]:
    """Return where the only curve of *plot* goes, in pixels."""
    assert plot is not None
    (curve,) = plot.curves
    assert curve.path[0] == "M"
    return [tuple(map(float, pair.split())) for pair in curve.path[1:].split("L")]


def test_a_plot_keeps_a_short_dip() -> None:
    """Thinning a long curve keeps its lowest point."""
    points = tuple((float(second), 700.0 if second != 7777 else 300.0) for second in range(20_000))
    drawn = points_of(line_plot("Rate", "TFLOPS", [Line("a", points)]))
    assert len(drawn) <= MAXIMUM_POINTS
    lowest = max(drawn, key=lambda point: point[1])
    assert lowest[1] > 150
    assert drawn[0][0] < lowest[0] < drawn[-1][0]


@pytest.mark.parametrize(
    "points",
    [(), ((0.0, 1.0),), ((0.0, float("nan")), (1.0, float("inf")))],
    ids=["none", "one", "no number"],
)
def test_nothing_to_draw_is_no_plot(points: tuple[tuple[float, float], ...]) -> None:
    """A curve without two points is left out instead of drawn as a flat line."""
    assert line_plot("Rate", "TFLOPS", [Line("a", points)]) is None


@pytest.mark.parametrize(("seconds", "sign"), [(60.0, " s"), (600.0, " min"), (86_400.0, " h"), (0.0, " s")])
@pytest.mark.parametrize("value", [0.0, 1e-6, 1.5, 712.0, -40.0, 1.755e9])
def test_axes_fit_any_range(seconds: float, sign: str, value: float) -> None:
    """Short and long runs, constant and tiny values: every point lies inside the frame."""
    plot = line_plot("Any", "unit", [Line("a", ((0.0, value), (seconds, value * 1.01)))])
    assert plot is not None
    assert plot.columns[-1][1].endswith(sign)
    for x, y in points_of(plot):
        assert 46 <= x <= 470
        assert 10 <= y <= 184


@pytest.mark.parametrize(("ratio", "width"), [(0.5, "50.0"), (0.0, "0.0"), (1.2, "100.0"), (-1.0, "0.0")])
def test_a_bar_stays_in_its_track(ratio: float, width: str) -> None:
    """An efficiency above one is drawn full, never beyond."""
    assert bar(ratio, 0.4) == Bar(width, "39.4")


def test_each_number_format_has_its_own_plot() -> None:
    """Rates of two formats on one device are two plots, not one line that jumps."""
    series = tuple(
        SeriesDocument(gpu_id(0), "tflops", ((0.0, rate), (60.0, rate)), dtype)
        for dtype, rate in (("bf16", 700.0), ("fp32", 50.0))
    )
    page = page_of(gpu_node(), series=series)
    assert page.tags.count("figure") == 2
    assert "Rate, bf16 TFLOPS" in page.text
    assert "Rate, fp32 TFLOPS" in page.text


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    """`nodevet report render` reads a document, writes the page, and refuses anything else with exit code 64."""
    document, page = tmp_path / "burn-in.json", tmp_path / "page.html"
    document.write_bytes(encode(burn_in_document(cpu_node(), plan="probe")))
    command = [sys.executable, "-m", "nodevet.agent.cli", "report", "render", str(document), "-o", str(page)]
    subprocess.run(command, check=True, capture_output=True)
    assert "ok all checks pass" in Page(page.read_text()).text
    document.write_text('{"schema": "nodevet.topo/1"}')
    refused = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (refused.returncode, refused.stderr.count("\n")) == (64, 1)
