"""The metrics page: its names keep the rules, its series the budget, and absence is never a zero."""

from __future__ import annotations

import csv
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from fakes.snapshots import (
    EVERY_STATE,
    at,
    burn_in,
    cpu_node,
    degraded_node,
    eventful_node,
    failed_node,
    gpu_id,
    gpu_node,
    starting_node,
    unknown_node,
)
from fakes.whole_node import whole_node
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from nodevet.checks.core.errors import ModelError
from nodevet.checks.core.guard import Guard
from nodevet.checks.core.model import (
    NODE,
    Failure,
    FailureKind,
    Limit,
    ReaderState,
    Reading,
    ReadingStatus,
    Result,
    ResultState,
    Sample,
    Snapshot,
    State,
)
from nodevet.checks.core.quantities import QUANTITIES, QuantityKind
from nodevet.exporters.metrics.encoding import PageEncoder, encoded
from nodevet.exporters.metrics.family import Family
from nodevet.exporters.metrics.prometheus import MetricsPage, families

METRICS = Path(__file__).resolve().parent / "fixtures" / "metrics"
SERIES_BUDGET, SERIES_BUDGET_DETAIL = 140 + 8 * 40, 1600
UNITS = (
    "seconds", "celsius", "watts", "joules", "hertz", "bytes", "ratio", "flops_per_second", "bytes_per_second",
)  # fmt: skip
SPANS = ("_timestamp_seconds", "_duration_seconds", "_interval_seconds", "_limit_seconds")
"""A gauge in seconds is a moment, or a span that does not grow by itself."""

FOREIGN_UNITS = re.compile(
    r"_(ms|millis|milliseconds|minutes|hours|percent|pct|mhz|megahertz|ghz|gigahertz|mib|mebibytes|mb|gib|gibibytes|kb|"
    r"kilobytes|megabytes|milliwatts|fahrenheit|tflops)(_|$)"
)
FORBIDDEN_LABELS = {
    "pid", "job", "jobid", "job_id", "hostname", "host", "instance", "process", "user", "message",
    "type", "region", "zone", "cluster", "dc", "service", "env",
}  # fmt: skip
NODES: dict[str, Callable[[], Snapshot]] = {
    **{state.value: build for state, build in EVERY_STATE.items()},
    "cpu": cpu_node,
    "starting": starting_node,
    "eventful": eventful_node,
}
STATE_SETS = {
    *(f"nodevet_{of}_state" for of in ("node", "device", "reader")),
    *(f"nodevet_{key}" for key, quantity in QUANTITIES.items() if quantity.kind is QuantityKind.STATE),
}
"""Metrics of which exactly one series per thing is 1."""


def text(found: list[Family], *, openmetrics: bool = False) -> str:
    """Return *found* as a page; without a guard nothing is left out of it."""
    return encoded(found, openmetrics=openmetrics).decode()


def page(snapshot: Snapshot, *, detail: bool = False) -> str:
    """Return the page of *snapshot* as text."""
    return MetricsPage(detail=detail).render(snapshot).decode()


def values(snapshot: Snapshot, *, detail: bool = False) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return all samples of the page of *snapshot* by name and labels, as prometheus_client reads them."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in parse_text(page(snapshot, detail=detail)):
        for sample in family.samples:
            series = found.setdefault(sample.name, {})
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in series, f"{sample.name}{labels} is there twice"
            series[labels] = sample.value
    return found


def offences(metric: Metric) -> list[str]:
    """Return what is wrong with the name, help or labels of *metric*."""
    name = metric.name
    found = []
    if not re.fullmatch(r"nodevet_[a-z][a-z0-9_]*", name) or "__" in name:
        found.append("is no snake_case name with our prefix")
    if FOREIGN_UNITS.search(name):
        found.append("is not in a base unit")
    if (unit := next((unit for unit in UNITS if f"_{unit}_" in name), None)) and not name.endswith(UNITS):
        found.append(f"does not end in its unit {unit}")
    if name.endswith(("_count", "_sum", "_bucket", "_created")):
        found.append("ends in a word that is reserved for histograms")
    if (metric.type == "counter") is not (metric.samples[0].name == f"{name}_total"):
        found.append("is a counter without _total, or the other way round")
    if name.endswith("_seconds") and metric.type == "gauge" and not name.endswith(SPANS):
        found.append("is an age: export the time at which it began")
    if name.endswith("_info") and {sample.value for sample in metric.samples} != {1.0}:
        found.append("tells by its labels and is not 1")
    if not metric.documentation.endswith(".") or not metric.documentation[0].isupper():
        found.append("has a help text that is no sentence")
    labels = {label for sample in metric.samples for label in sample.labels}
    if labels & FORBIDDEN_LABELS:
        found.append(f"has labels that grow without bound or belong to the scraper: {labels & FORBIDDEN_LABELS}")
    return [f"{name} {offence}" for offence in found]


@pytest.mark.parametrize("detail", [False, True], ids=["default", "detail"])
@pytest.mark.parametrize("node", NODES)
def test_names_helps_and_labels_keep_the_rules(node: str, detail: bool) -> None:
    """Every metric of every node passes the lint."""
    for metric in parse_text(page(NODES[node](), detail=detail)):
        assert offences(metric) == []


@pytest.mark.parametrize(
    ("family", "offence"),
    [
        (Family("nodevet_power_milliwatts", "gauge", "Power.", (), {(): 1}), "base unit"),
        (Family("nodevet_busy_percent", "gauge", "Busy.", (), {(): 1}), "base unit"),
        (Family("nodevet_temperature_celsius_maximum", "gauge", "Heat.", (), {(): 1}), "does not end in its unit"),
        (Family("nodevet_errors_count", "gauge", "Errors.", (), {(): 1}), "reserved"),
        (Family("nodevet_errors", "gauge", "errors", (), {(): 1}), "no sentence"),
        (Family("nodevet_snapshot_age_seconds", "gauge", "Age.", (), {(): 1}), "is an age"),
        (Family("nodevet_node_info", "gauge", "Name.", ("node",), {("a",): 0}), "is not 1"),
        (Family("nodevet_errors", "gauge", "Errors.", ("pid",), {("1",): 1}), "without bound"),
        (Family("errors", "gauge", "Errors.", (), {(): 1}), "prefix"),
    ],
)
def test_the_lint_finds_each_fault(family: Family, offence: str) -> None:
    """A rule that never fires guards nothing."""
    (metric,) = parse_text(text([family]))
    assert any(offence in found for found in offences(metric)), offences(metric)


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "openmetrics"])
@pytest.mark.parametrize("node", NODES)
def test_independent_parsers_read_what_was_meant(node: str, openmetrics: bool) -> None:
    """prometheus_client finds every family with its kind, help, labels and values in both formats."""
    snapshot = NODES[node]()
    body = MetricsPage().render(snapshot, openmetrics).decode()
    read = {family.name: family for family in (parse_openmetrics if openmetrics else parse_text)(body)}
    meant = families(snapshot)
    assert set(read) == {family.name for family in meant}
    for family in meant:
        metric = read[family.name]
        assert (metric.type, metric.documentation) == (family.kind, family.help)
        rendered = [(sample.labels, sample.value) for sample in metric.samples]
        assert rendered == [
            (dict(zip(family.labels, labels, strict=True)), float(value)) for labels, value in family.samples.items()
        ]


def test_odd_values_and_labels_survive() -> None:
    """Quotes, backslashes, newlines and letters of any script come back; so do infinities, NaN and large numbers."""
    odd = 'a"b\\c\nd{e}=,f é 温'
    samples: dict[tuple[str, ...], float | int | bool] = {
        (odd,): 1.5,
        ("inf",): float("inf"),
        ("minus",): float("-inf"),
        ("nan",): float("nan"),
        ("large",): 2**60,
        ("small",): 1e-9,
        ("true",): True,
    }
    family = Family("nodevet_odd", "gauge", 'Odd "things" \\ and\nmore.', ("case",), samples)
    for parse, openmetrics in ((parse_text, False), (parse_openmetrics, True)):
        (metric,) = parse(text([family], openmetrics=openmetrics))
        found = {sample.labels["case"]: sample.value for sample in metric.samples}
        assert metric.documentation == family.help
        assert (found[odd], found["inf"], found["minus"]) == (1.5, float("inf"), float("-inf"))
        assert found["nan"] != found["nan"]
        assert (found["large"], found["small"], found["true"]) == (2.0**60, 1e-9, 1.0)


def test_escaping_is_that_of_the_format() -> None:
    """The three characters that the format escapes, and no other."""
    family = Family("nodevet_odd", "gauge", "Odd.", ("case",), {('\\ " \n é',): 1})
    for openmetrics in (False, True):
        assert '{case="\\\\ \\" \\n é"} 1.0\n' in text([family], openmetrics=openmetrics)


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "openmetrics"])
def test_a_metric_that_cannot_be_shown_costs_itself(openmetrics: bool) -> None:
    """A number that no page can hold: every other family is as it was, it is told once, and over when it is right."""
    told: list[str] = []
    guard = Guard(told.append)
    metrics, healthy = MetricsPage(guard=guard), gpu_node()
    agent = msgspec.structs.replace(healthy.agent, dropped_log_lines=10**400)
    parse = parse_openmetrics if openmetrics else parse_text
    whole = list(parse(metrics.render(healthy, openmetrics).decode()))
    for generation in (1, 2):
        odd = msgspec.structs.replace(healthy, agent=agent, generation=generation)
        assert {family.name for family in parse(metrics.render(odd, openmetrics).decode())} == {
            family.name for family in whole
        } - {"nodevet_log_dropped_lines"}
    (line,) = told
    assert line.startswith("metric nodevet_log_dropped_lines failed: OverflowError")
    assert list(parse(metrics.render(healthy, openmetrics).decode())) == whole
    assert told[1:] == ["metric nodevet_log_dropped_lines works again"]


def one(name: str = "x", **samples: float) -> Family:
    """Return a family with a label."""
    return Family(f"nodevet_{name}", "counter", "Help.", ("a",), {(label,): value for label, value in samples.items()})


@pytest.mark.parametrize("openmetrics", [False, True])
def test_a_page_is_the_same_whatever_page_was_before(openmetrics: bool) -> None:
    """Families that come, go, change a value, their help, or only the order of their series, and nodes one by one."""
    pages = [
        [one(p=1.0, q=2.0)],
        [one(p=1.0, q=2.0), one("y", p=1.0)],
        [one(p=1.0, q=3.0), one("y", p=1.0)],
        [one(q=3.0, p=1.0)],
        [msgspec.structs.replace(one(q=3.0, p=1.0), help="Another.")],
        [],
        [one("x", p=1.0), one("x", p=2.0)],
        *(families(build()) for build in NODES.values()),
    ]
    encoder = PageEncoder(openmetrics=openmetrics)
    for found in (*pages, *reversed(pages)):
        assert encoder.page(found) == encoded(found, openmetrics=openmetrics)


def test_only_what_changed_is_encoded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape of a node on which little changed costs little."""
    asked: list[str] = []

    def noting(found: tuple[Family, ...], guard: Guard | None, *, openmetrics: bool) -> bytes:
        asked.extend(family.name for family in found)
        return encoded(found, guard, openmetrics=openmetrics)

    monkeypatch.setattr("nodevet.exporters.metrics.encoding.encoded", noting)
    encoder = PageEncoder(openmetrics=False)
    for value in (1.0, 2.0, 2.0):
        encoder.page([one("still", p=1.0), one("moves", p=value)])
    assert asked == ["nodevet_still", "nodevet_moves", "nodevet_moves"]


@pytest.mark.parametrize(
    ("broken", "part", "lost"),
    [
        ("node.closing", "metrics: verdicts", "nodevet_gate_closed"),
        ("node.is_word", "metrics: acknowledgements", "nodevet_acknowledged_episodes"),
        ("quantity._sums", "metrics: link_crc_errors", "nodevet_link_crc_errors"),
        ("quantity.Counter", "metrics: links", "nodevet_links"),
        ("prometheus.quantity_makers", "metrics: readings", "nodevet_temperature_celsius"),
        ("prometheus.scheduler_metrics", "metrics: scheduler", "nodevet_slurm_writer_info"),
        ("result.standing_wrong", "metrics: burn-in", "nodevet_burnin_passed"),
    ],
)
def test_what_makes_metrics_and_raises_costs_what_it_had_not_made(
    monkeypatch: pytest.MonkeyPatch, broken: str, part: str, lost: str
) -> None:
    """A bug of ours in one of them: the page keeps the verdict and all that the others make, and the part is told."""

    def raises(*_arguments: object, **_named: object) -> NoReturn:
        raise RuntimeError("a bug")

    snapshot = eventful_node()
    if lost == "nodevet_acknowledged_episodes":
        snapshot = failed_node()
    whole = {family.name for family in families(snapshot)}
    monkeypatch.setattr(f"nodevet.exporters.metrics.{broken}", raises)
    with pytest.raises(RuntimeError):
        families(snapshot)
    guard = Guard(lambda _line: None)
    body = MetricsPage(guard=guard).render(snapshot).decode()
    shown = {family.name for family in parse_text(body)}
    assert lost not in shown
    assert shown >= {"nodevet_node_state", "nodevet_device_state", "nodevet_reader_up"}
    assert shown < whole | {lost}
    assert part in {fault.part for fault in guard.faults}


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "openmetrics"])
def test_a_label_without_a_value_and_a_value_that_is_none_are_refused(openmetrics: bool) -> None:
    """prometheus_client drops the one and shows the other without a number: neither reaches a page."""
    for labels in ((), ("a",), ("a", "b", "c")):
        with pytest.raises(ModelError, match=r"nodevet_odd has the labels \('one', 'two'\) and was given"):
            text([Family("nodevet_odd", "gauge", "Odd.", ("one", "two"), {labels: 1})], openmetrics=openmetrics)
    nothing: Any = None
    with pytest.raises(TypeError):
        text([Family("nodevet_odd", "gauge", "Odd.", (), {(): nothing})], openmetrics=openmetrics)


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "openmetrics"])
def test_half_a_letter_in_a_label_costs_nothing(openmetrics: bool) -> None:
    """A name of bytes that are no text, as a file system may give it: two that differ still do."""
    halves: dict[tuple[str, ...], float | int | bool] = {
        (label,): number for number, label in enumerate(("a\udcff", "a\udcfe", "é"))
    }
    body = text([Family("nodevet_odd", "gauge", "Odd.", ("case",), halves)], openmetrics=openmetrics)
    (metric,) = (parse_openmetrics if openmetrics else parse_text)(body)
    assert {sample.labels["case"]: sample.value for sample in metric.samples} == {
        "a\\udcff": 0.0, "a\\udcfe": 1.0, "é": 2.0,
    }  # fmt: skip


def test_no_page_tells_of_the_interpreter_or_has_times_of_creation() -> None:
    """What the library registers by itself stays there; a counter is one series and no unit is declared."""
    for openmetrics in (False, True):
        body = MetricsPage(detail=True).render(gpu_node(), openmetrics).decode()
        assert set(re.findall(r"^# TYPE (\w+?)_", body, flags=re.M)) == {"nodevet"}
        assert not re.search(r"_created\b|^# UNIT", body, flags=re.M)


@pytest.mark.parametrize("profile", ["dgx-h100", "mi300x-8"])
def test_a_node_of_eight_accelerators_stays_within_the_budget(profile: str) -> None:
    """All that a real node of either vendor has, the default page and the detailed one, with writer and gate."""
    snapshot = whole_node(profile)
    assert snapshot.verdict.state is State.OK
    counts = [sum(map(len, values(snapshot, detail=detail).values())) for detail in (False, True)]
    assert counts[0] <= SERIES_BUDGET
    assert counts[1] <= SERIES_BUDGET_DETAIL


def test_each_check_has_two_series() -> None:
    """Whether it came to its end, and how long it took: a page does not grow by more with a check that is added."""
    snapshot = whole_node("dgx-h100")
    found = Counter(
        dict(labels)["check"]
        for name, series in values(snapshot).items()
        for labels in series
        if name.startswith("nodevet_check_")
    )
    assert found == {run.check: 2 for run in snapshot.checks}


@pytest.mark.parametrize("profile", ["dgx-h100", "mi300x-8", "cpu-node"])
def test_each_kind_of_node_has_the_series_that_it_should(golden: Callable[[Path, str], None], profile: str) -> None:
    """Every metric with its labels and how often it is there: a vendor that loses one is noticed."""
    lines = []
    for name, series in sorted(values(whole_node(profile)).items()):
        labels = sorted({label for found in series for label, _ in found})
        lines.append(f"{name}{{{', '.join(labels)}}} {len(series)}\n")
    golden(METRICS / f"{profile}.txt", "".join(lines))


@pytest.mark.parametrize("state", EVERY_STATE, ids=lambda state: state.value)
def test_exactly_one_state_is_set(state: State) -> None:
    """Node and devices: all four states are there, one of them is 1, and it is the verdict."""
    snapshot = EVERY_STATE[state]()
    series = values(snapshot)
    node = {dict(labels)["state"]: value for labels, value in series["nodevet_node_state"].items()}
    assert node == {word.value: float(word is state) for word in State}
    for device, verdict in snapshot.device_verdicts.items():
        of_device = {
            dict(labels)["state"]: value
            for labels, value in series["nodevet_device_state"].items()
            if dict(labels)["device"] == device
        }
        assert of_device == {word.value: float(word is verdict.state) for word in State}


@pytest.mark.parametrize("detail", [False, True], ids=["default", "detail"])
@pytest.mark.parametrize("node", NODES)
def test_every_state_set_has_exactly_one_state(node: str, detail: bool) -> None:
    """Whatever is labelled by state and is no count: all its words are there, and one of them is 1."""
    for name, series in values(NODES[node](), detail=detail).items():
        if not any("state" in dict(labels) for labels in series) or name.startswith("nodevet_episode"):
            continue
        things: dict[tuple[tuple[str, str], ...], list[float]] = {}
        words: dict[tuple[tuple[str, str], ...], set[str]] = {}
        for labels, value in series.items():
            thing = tuple(label for label in labels if label[0] != "state")
            things.setdefault(thing, []).append(value)
            words.setdefault(thing, set()).add(dict(labels)["state"])
        assert name in STATE_SETS, f"{name} is labelled by state: is it a set of states?"
        assert {tuple(sorted(set(of))) for of in things.values()} == {(0.0, 1.0)}, name
        assert {sum(of) for of in things.values()} == {1.0}, name
        assert len({frozenset(of) for of in words.values()}) == 1, name


def of_device(snapshot: Snapshot, device: str) -> set[str]:
    """Return the names of the quantities that the page shows of *device*."""
    judged = {
        "nodevet_device_state",
        "nodevet_device_info",
        "nodevet_episode_active",
        "nodevet_episode_occurrences_total",
        "nodevet_episode_opened_timestamp_seconds",
    }
    return {
        name
        for name, series in values(snapshot).items()
        if any(("device", device) in labels for labels in series) and not name.startswith("nodevet_burnin")
    } - judged


def test_a_lost_device_has_no_readings() -> None:
    """The series of a device that fell off the bus end; those of its siblings go on."""
    assert of_device(failed_node(), gpu_id(5)) == set()
    assert "nodevet_temperature_celsius" in of_device(failed_node(), gpu_id(4))


def test_denied_readings_are_no_series_but_are_counted() -> None:
    """Where nothing could be read nothing is shown, and the count of denied readings says why."""
    assert of_device(unknown_node(), gpu_id(0)) == set()
    statuses = {dict(labels)["status"]: value for labels, value in values(unknown_node())["nodevet_readings"].items()}
    assert statuses["denied"] > 500
    assert statuses["error"] == 0


def test_old_readings_are_not_the_present() -> None:
    """When the rounds stop, series end after three minutes instead of showing the last value for ever."""
    fresh = gpu_node()
    assert "nodevet_power_watts" in of_device(msgspec.structs.replace(fresh, time=at(-120)), gpu_id(0))
    assert of_device(msgspec.structs.replace(fresh, time=at(-240)), gpu_id(0)) == set()


def with_link(status: ReadingStatus, value: int | None, active: bool | None) -> Snapshot:
    """Return the node with link 3 of accelerator 0 changed."""
    healthy = gpu_node()

    def changed(reading: Reading) -> Reading:
        if reading.part.index != 3 or reading.quantity not in ("link_crc_errors", "link_active"):
            return reading
        new = active if reading.quantity == "link_active" else value
        return Reading(reading.quantity, new, reading.part, ReadingStatus.OK if new is not None else status)

    samples = tuple(
        msgspec.structs.replace(sample, readings=tuple(map(changed, sample.readings)))
        if sample.device == gpu_id(0)
        else sample
        for sample in healthy.samples
    )
    return msgspec.structs.replace(healthy, samples=samples)


@pytest.mark.parametrize(
    ("snapshot", "errors", "links", "up"),
    [
        (gpu_node(), 0.0, 18.0, 18.0),
        (with_link(ReadingStatus.OK, 7, False), 7.0, 18.0, 17.0),
        (with_link(ReadingStatus.ERROR, None, None), None, None, None),
        (with_link(ReadingStatus.UNSUPPORTED, None, None), 0.0, 17.0, 17.0),
    ],
    ids=["healthy", "down with errors", "unreadable", "not there"],
)
def test_links_are_summed_per_device(
    snapshot: Snapshot, errors: float | None, links: float | None, up: float | None
) -> None:
    """A sum is shown when all of it was read; nothing is claimed of links that could not be read."""
    series = values(snapshot)
    device = (("device", gpu_id(0)),)
    assert series["nodevet_link_crc_errors_total"].get(device) == errors
    assert (series["nodevet_links"].get(device), series["nodevet_links_up"].get(device)) == (links, up)


def test_sums_are_the_same_with_detail() -> None:
    """A dashboard that sums over a device shows the same whether links are listed or not."""
    snapshot = with_link(ReadingStatus.OK, 7, False)
    for name in ("nodevet_link_crc_errors_total", "nodevet_ecc_corrected_errors_total"):
        plain, detailed = values(snapshot)[name], values(snapshot, detail=True)[name]
        assert sum(plain.values()) == sum(detailed.values())
        assert len(detailed) > len(plain)


def test_an_open_episode_is_a_series_while_it_lasts() -> None:
    """Code, device, class, action and state are labels of bounded sets; the count is a counter."""
    series = values(failed_node())
    (labels,) = series["nodevet_episode_active"]
    assert dict(labels) == {
        "check": "kernel-log",
        "code": "nvidia.xid.79",
        "device": gpu_id(5),
        "fault_class": "hardware",
        "outcome": "fail",
        "action": "power_cycle",
        "state": "open",
    }
    assert series["nodevet_episodes"][(("state", "open"),)] == 1
    assert list(series["nodevet_episode_occurrences_total"].values()) == [3.0]
    assert list(series["nodevet_episode_opened_timestamp_seconds"].values()) == [at(30).wall_seconds]
    assert "nodevet_episode_active" not in values(gpu_node())


def test_what_is_known_in_advance_starts_at_zero() -> None:
    """Alerts on checks, findings and hangs have a series to look at before anything went wrong."""
    series = values(gpu_node())
    assert series["nodevet_findings"][(("outcome", "fail"),)] == 0
    assert series["nodevet_findings"][(("outcome", "unmeasured"),)] == 0
    assert series["nodevet_reader_hangs_total"][(("backend", "nvidia"),)] == 0
    assert series["nodevet_episodes"][(("state", "pending"),)] == 0


@pytest.mark.parametrize(
    ("state", "up"),
    [
        (ReaderState.RUNNING, 1.0),
        (ReaderState.HUNG, 0.0),
        (ReaderState.STUCK, 0.0),
        (ReaderState.RELEASED, 0.0),
        (ReaderState.ABSENT, None),
    ],
)
def test_a_reader_is_up_when_it_answers(state: ReaderState, up: float | None) -> None:
    """A vendor whose devices are not in the machine has no series, so that its absence raises no alert."""
    readers = tuple(msgspec.structs.replace(reader, state=state) for reader in gpu_node().readers)
    series = values(gpu_node(readers=readers)).get("nodevet_reader_up", {})
    assert series.get((("backend", "nvidia"),)) == up


def test_burn_in_results_are_metrics_with_their_time() -> None:
    """Rate, efficiency, verified count, mismatches and when it ended, per workload and device."""
    series = values(cpu_node())
    labels = (("device", "cpu-0"), ("dtype", "bfloat16"), ("workload", "gemm"))
    assert series["nodevet_burnin_flops_per_second"][labels] == 1.41e12
    assert series["nodevet_burnin_efficiency_ratio"][labels] == 0.71
    assert series["nodevet_burnin_mismatches"][labels] == 0
    assert values(cpu_node(), detail=True)["nodevet_burnin_gemms_verified"][labels] == 90_112
    assert series["nodevet_burnin_finished_timestamp_seconds"][labels] == at(100).wall_seconds


@pytest.mark.parametrize(
    ("result", "passed", "mismatches"),
    [
        (burn_in("cpu-0", 1.4, 0.7), 1, 0),
        (burn_in("cpu-0", 1.4, 0.7, wrong=3), 0, 3),
        (msgspec.structs.replace(burn_in("cpu-0", 1.4, 0.7), state=ResultState.INTERRUPTED), 0, None),
        (msgspec.structs.replace(burn_in("cpu-0", 1.4, 0.7), metrics=()), 0, None),
    ],
    ids=["right", "wrong", "stopped", "nothing verified"],
)
def test_only_a_burn_in_that_proved_something_passed(result: Result, passed: int, mismatches: int | None) -> None:
    """To be stopped proves nothing; a wrong result has its count beside."""
    series = values(msgspec.structs.replace(cpu_node(), results=(result,)))
    assert list(series["nodevet_burnin_passed"].values()) == [passed]
    assert list(series.get("nodevet_burnin_mismatches", {}).values()) == ([] if mismatches is None else [mismatches])


def test_limits_in_force_are_listed() -> None:
    """A threshold is a metric of its own in its unit, so that no dashboard repeats the number; the strictest counts."""
    series = values(eventful_node(), detail=True)
    model = ("model", "NVIDIA H100 80GB HBM3")
    celsius = {dict(labels)["code"]: value for labels, value in series["nodevet_limit_celsius"].items()}
    assert celsius == {"thermal.margin": 5.0, "thermal.celsius": 84.0}
    assert list(series["nodevet_limit_ratio"]) == [
        (("check", "thermal"), ("code", "thermal.ratio"), model, ("op", ">"))
    ]


@pytest.mark.parametrize(("op", "strictest"), [(">=", 84.0), (">", 84.0), ("<=", 90.0), ("<", 90.0)])
def test_of_two_limits_the_one_is_shown_that_is_broken_first(op: str, strictest: float) -> None:
    """An upper limit is strict when it is low, a lower limit when it is high; the order of devices does not matter."""
    hot = degraded_node()
    finding = next(finding for finding in hot.findings if finding.limit)
    pair = [
        msgspec.structs.replace(finding, device=gpu_id(n), limit=Limit(op, value, "celsius", "table"))
        for n, value in enumerate((90.0, 84.0))
    ]
    for findings in (pair, pair[::-1]):
        series = values(msgspec.structs.replace(hot, findings=tuple(findings)))["nodevet_limit_celsius"]
        assert list(series.values()) == [strictest]


def test_events_are_counted_with_the_time_of_the_last() -> None:
    """A user's XID has its own class, so that alerts tell it from the hardware's."""
    series = values(eventful_node())
    labels = (("code", "nvidia.xid.31"), ("device", gpu_id(1)), ("fault_class", "application"))
    assert series["nodevet_events_total"][labels] == 2
    assert series["nodevet_event_last_timestamp_seconds"][labels] == at(40).wall_seconds


@pytest.mark.parametrize(
    ("changes", "store", "state_file"),
    [({}, 1, 1), ({"store": "disk full"}, 0, 1), ({"state_file": "read-only"}, 1, 0)],
    ids=["well", "store", "state file"],
)
def test_trouble_with_what_the_agent_writes_is_told(changes: dict[str, str], store: int, state_file: int) -> None:
    """Store and state file are known in advance and so always there."""
    healthy = gpu_node()
    troubled = msgspec.structs.replace(healthy, agent=msgspec.structs.replace(healthy.agent, **changes))
    series = values(troubled)["nodevet_output_success"]
    assert {dict(labels)["output"]: value for labels, value in series.items()} == {
        "store": store, "state_file": state_file,
    }  # fmt: skip


def test_the_node_is_named_once_and_says_whether_it_is_simulated() -> None:
    """The name is a label of one series, to be joined; rules carry it and `simulated` to every alert."""
    for simulated in (False, True):
        ((labels, value),) = values(gpu_node(simulated=simulated))["nodevet_node_info"].items()
        assert dict(labels) == {"node": "n0042", "scope": "node", "simulated": str(simulated).lower()}
        assert value == 1


def test_a_state_quantity_lists_all_its_words() -> None:
    """recovery_action: one series per word, one of them 1."""
    series = values(gpu_node(), detail=True)["nodevet_recovery_action"]
    words = {dict(labels)["state"]: value for labels, value in series.items() if dict(labels)["device"] == gpu_id(0)}
    assert len(words) == 9
    assert [word for word, value in words.items() if value] == ["none"]


def test_what_is_not_exported_stays_here() -> None:
    """Process ids are read for judging and never shown."""
    assert "31337" not in page(gpu_node(), detail=True)
    assert "process_ids" not in page(gpu_node(), detail=True)


def test_the_newest_of_two_readings_is_shown_once() -> None:
    """Two groups that read the same quantity give one series, not an invalid page."""
    healthy = gpu_node()
    later = Sample("host", "slow", NODE, 9, at(0), 0.1, (Reading("memory_available_bytes", 5),))
    series = values(msgspec.structs.replace(healthy, samples=(later, *healthy.samples)))
    assert series["nodevet_memory_available_bytes"][(("device", NODE),)] == 5


def test_a_failed_sample_is_no_reading() -> None:
    """A sample that carries a failure adds nothing to the page."""
    failed = Sample(
        "nvidia",
        "fast",
        gpu_id(0),
        1,
        at(),
        1.0,
        failure=Failure(FailureKind.HUNG, "nvmlDeviceGetPower", of_driver=True),
    )
    assert of_device(gpu_node(samples=(failed,)), gpu_id(0)) == set()


def test_a_page_is_made_once_per_snapshot_and_format() -> None:
    """The same bytes are handed out until another Snapshot comes, in each format and encoding."""
    metrics, first, second = MetricsPage(), gpu_node(), gpu_node(generation=43)
    assert metrics.render(first) is metrics.render(first)
    assert metrics.render(first, True) is metrics.render(first, True)
    assert metrics.render(first, compressed=True) is metrics.render(first, compressed=True)
    assert metrics.render(first) != metrics.render(first, True)
    assert b"nodevet_snapshot_generation 43.0\n" in metrics.render(second)


def test_the_page_of_a_healthy_node_is_the_golden_one(golden: Callable[[Path, str], None]) -> None:
    """Names, labels, order and numbers change only on purpose."""
    golden(METRICS / "eight_accelerators.prom", page(gpu_node()))


@pytest.mark.parametrize("detail", [False, True], ids=["default", "detail"])
@pytest.mark.parametrize("node", NODES)
def test_promtool_has_no_complaint(node: str, detail: bool) -> None:
    """Prometheus' own lint agrees with ours on every node, with and without detail."""
    body = page(NODES[node](), detail=detail)
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("node", NODES)
def test_every_metric_is_in_the_reference_page(repository: Path, node: str) -> None:
    """A name that a page can show is documented with its kind and its help."""
    reference = (repository / "docs" / "reference" / "metrics.md").read_text()
    for family in families(NODES[node](), detail=True):
        name = f"{family.name}_total" if family.kind == "counter" else family.name
        if family.name.startswith("nodevet_limit_"):
            assert f"`{family.name.removeprefix('nodevet_limit_')}`" in reference
        else:
            row = next(
                (line for line in reference.splitlines() if line.startswith(f"| `{name}` | {family.kind} |")), ""
            )
            assert family.help in row, f"{name} is not in docs/reference/metrics.md, or with another help"


@pytest.mark.parametrize("key", [key for key, quantity in QUANTITIES.items() if quantity.exported])
def test_every_quantity_is_in_the_reference_page(repository: Path, key: str) -> None:
    """A new quantity gets its line in the table of metrics."""
    reference = (repository / "docs" / "reference" / "metrics.md").read_text()
    assert re.search(rf"`nodevet_{key}(_total)?`", reference)


def test_every_declared_metric_is_in_the_reference_page(repository: Path) -> None:
    """A row that no page shows is one that nobody makes."""
    reference = (repository / "docs" / "reference" / "metrics.md").read_text()
    rows = csv.DictReader((repository / "exporters" / "metrics" / "families.csv").read_text().splitlines())
    assert [row["name"] for row in rows if f"| `nodevet_{row['name']}" not in reference] == []
