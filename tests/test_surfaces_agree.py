"""One Snapshot, all surfaces: the verdict that each of them tells is the verdict."""

from __future__ import annotations

import html
import http.client
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from fakes.nvml.scenario import FakeNvml, NvmlReturn, uuid
from fakes.reports import from_snapshot
from fakes.rig import Rig
from fakes.shell_gate import gate, on_this_boot, shell_examples
from fakes.snapshots import EVERY_STATE, cpu_node, gpu_node, starting_node
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from nodevet.checks.core.model import NODE, Metric, Result, ResultState, Snapshot
from nodevet.checks.engine.explanation import ACTIONS
from nodevet.checks.engine.modes import draining
from nodevet.exporters.documents.schema import burn_in_document, encode, status_document
from nodevet.exporters.metrics.prometheus import MetricsPage
from nodevet.exporters.report.render import render, render_file
from nodevet.exporters.slurm.rules import is_ours, reason_text
from nodevet.exporters.statefile.reader import StateFile, parse
from nodevet.exporters.statefile.writer import state_text, write_state
from nodevet.exporters.web.http import HttpServer

NODES: dict[str, Callable[[], Snapshot]] = {
    **{state.value: build for state, build in EVERY_STATE.items()},
    "cpu only": cpu_node,
    "starting": starting_node,
    "simulated": lambda: gpu_node(simulated=True),
}
LOOKS = 4
"""Intervals after which a finding that needs 3 of 5 looks has been confirmed."""

Verdicts = tuple[str, dict[str, str]]
"""Of the node, and by device id."""


def healthy(rig: Rig) -> Snapshot:
    """Eight devices and nothing wrong."""
    return rig.look(LOOKS)


def degraded(rig: Rig) -> Snapshot:
    """Slot 3 has half its PCIe lanes."""
    rig.machine.set("pcie_width.3", 8)
    return rig.look(LOOKS)


def failed(rig: Rig) -> Snapshot:
    """Slot 3 has had an uncorrected memory error."""
    rig.machine.set("ecc_uncorrected_volatile_dram.3", 1)
    return rig.look(LOOKS)


def unknown(rig: Rig) -> Snapshot:
    """Slot 3 does not tell its temperature, which its board must."""
    for name in ("Temperature", "TemperatureV", "MarginTemperature"):
        rig.machine.fail(f"nvmlDeviceGet{name}", NvmlReturn.NOT_SUPPORTED, 3)
    return rig.look(LOOKS)


def every_state_at_once(rig: Rig) -> Snapshot:
    """Slot 3 is unknown, slot 4 degraded, slot 5 failed, and the others are ok."""
    rig.machine.set("pcie_width.4", 8).set("remap_failed.5", 1)
    return unknown(rig)


def lost(rig: Rig) -> Snapshot:
    """Slot 3 fell off the bus."""
    rig.machine.fail_device(3)
    return rig.look(LOOKS)


def vanished(rig: Rig) -> Snapshot:
    """Slot 3 is not listed any more."""
    rig.machine.vanish(3)
    return rig.look(LOOKS)


def wrong_products(rig: Rig) -> Snapshot:
    """A verified load on slot 3 found wrong results."""
    figures = {"gemms_verified": 100, "mismatches": 2, "self_test_planted": 10, "self_test_found": 10}
    now = rig.clock.instant()
    rig.retest(
        Result(
            workload="gemm",
            devices=(uuid(3),),
            dtype="bf16",
            state=ResultState.FINISHED,
            started=now,
            ended=now,
            metrics=tuple(Metric(name, value, "count") for name, value in figures.items()),
        )
    )
    return rig.look(LOOKS)


def host_memory_error(rig: Rig) -> Snapshot:
    """The host's memory has had an uncorrected error: a fault of the node and of no device."""
    rig.kernel("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: be00000000800400")
    return rig.look(LOOKS)


STORIES: dict[str, tuple[Callable[[Rig], Snapshot], str, dict[int, str]]] = {
    "engine: ok": (healthy, "ok", {}),
    "engine: degraded": (degraded, "degraded", {3: "degraded"}),
    "engine: failed": (failed, "failed", {3: "failed"}),
    "engine: unknown": (unknown, "unknown", {3: "unknown"}),
    "engine: every state": (every_state_at_once, "failed", {3: "unknown", 4: "degraded", 5: "failed"}),
    "engine: lost": (lost, "failed", {3: "failed"}),
    "engine: vanished": (vanished, "failed", {3: "failed"}),
    "engine: wrong products": (wrong_products, "failed", {3: "failed"}),
    "engine: host memory": (host_memory_error, "failed", {}),
}
"""What happens to a fake machine that the real reader reads and the real engine judges; the verdict of the node, and of
each slot that is not ok."""


def meant(snapshot: Snapshot) -> Verdicts:
    """Return what the engine said."""
    devices = {device: verdict.state.value for device, verdict in snapshot.device_verdicts.items()}
    return snapshot.verdict.state.value, devices


def from_metrics(body: str, *, openmetrics: bool) -> Verdicts:
    """Return what a scraper reads."""
    node, devices = [], {}
    for family in (parse_openmetrics if openmetrics else parse_text)(body):
        for sample in family.samples:
            if sample.value == 1 and family.name == "nodevet_node_state":
                node.append(sample.labels["state"])
            if sample.value == 1 and family.name == "nodevet_device_state":
                devices[sample.labels["device"]] = sample.labels["state"]
    (verdict,) = node
    return verdict, devices


def from_json(body: bytes) -> Verdicts:
    """Return what a reader of either JSON document reads."""
    document = json.loads(body)
    return document["verdict"], {device["id"]: device["verdict"] for device in document["devices"]}


def from_state(text: str) -> Verdicts:
    """Return what a prolog reads."""
    file = parse(text)
    assert isinstance(file, StateFile), file
    return file.state, {device.id: device.state for device in file.devices if device.kind != "node"}


def from_page(page: str) -> Verdicts:
    """Return what a person reads on the report: the large word, and the word in each device's row."""
    (verdict,) = re.findall(r'id="verdict">(\w+)<', page)
    inventory = page.split("<h2>Inventory</h2>")[1].split("</table>")[0]
    rows = re.findall(
        r'<th scope="row">([^<]+)</th>\s*<td class="state (\w+)">(\w+)</td>.*?</tr>', inventory, re.DOTALL
    )
    assert all(shown == word for _, shown, word in rows)
    return verdict, {html.unescape(label): word for label, _, word in rows}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory, fake_nvml_library: Path) -> dict[str, Snapshot]:
    """The last snapshot of each story, as the engine made it."""
    snapshots = {}
    for name, (story, _, _) in STORIES.items():
        machine = FakeNvml(tmp_path_factory.mktemp("story") / "nvml.scenario", fake_nvml_library)
        with Rig(machine) as rig:
            rig.look(2)
            snapshots[name] = story(rig)
    return snapshots


@pytest.fixture(params=[*NODES, *STORIES])
def snapshot(request: pytest.FixtureRequest, judged: dict[str, Snapshot]) -> Snapshot:
    """A node in each state, built by hand or judged by the engine."""
    return NODES[request.param]() if request.param in NODES else judged[request.param]


@pytest.fixture
def server(snapshot: Snapshot) -> Iterator[HttpServer]:
    """The HTTP surface of that node."""
    running = HttpServer("127.0.0.1:0", lambda: snapshot, lambda: None, now=lambda: snapshot.time)
    running.start()
    yield running
    running.stop()


def fetch(server: HttpServer, path: str) -> bytes:
    """Return the body at *path*."""
    connection = http.client.HTTPConnection(*server.address, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


@pytest.mark.parametrize("name", STORIES)
def test_the_engine_makes_the_states_that_are_compared(judged: dict[str, Snapshot], name: str) -> None:
    """Every story ends in its state, on its devices alone: the comparisons below are of something."""
    _, node, slots = STORIES[name]
    assert meant(judged[name]) == (node, {uuid(slot): slots.get(slot, "ok") for slot in range(8)})


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "openmetrics"])
def test_metrics_tell_the_verdict(snapshot: Snapshot, openmetrics: bool) -> None:
    """Node and every device, in both formats."""
    assert from_metrics(MetricsPage().render(snapshot, openmetrics).decode(), openmetrics=openmetrics) == meant(
        snapshot
    )


def test_http_tells_the_verdict(snapshot: Snapshot, server: HttpServer) -> None:
    """API, metrics and landing page, over the wire."""
    assert from_json(fetch(server, "/api/v1/status")) == meant(snapshot)
    assert from_metrics(fetch(server, "/metrics").decode(), openmetrics=False) == meant(snapshot)
    landing = fetch(server, "/").decode()
    assert re.findall(r'id="verdict">(\w+)<', landing) == [meant(snapshot)[0]]
    assert snapshot.verdict.reason in html.unescape(landing)


def test_the_state_file_tells_the_verdict(snapshot: Snapshot) -> None:
    """Python's reader of the state file."""
    assert from_state(state_text(snapshot, ttl_seconds=60)) == meant(snapshot)


def test_a_shell_reads_the_same_from_the_state_file(snapshot: Snapshot, tmp_path: Path) -> None:
    """The two lines that a shell needs."""
    write_state(tmp_path / "state", snapshot, ttl_seconds=60)
    script = 'read -r verdict expires generation reason <"$1"; printf "%s|%s" "$verdict" "$reason"'
    command = ["sh", "-c", script, "sh", str(tmp_path / "state")]
    done = subprocess.run(command, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True)
    assert done.stdout == f"{snapshot.verdict.state.value}|{snapshot.verdict.reason}"


def test_the_documented_gate_tells_the_verdict(snapshot: Snapshot, tmp_path: Path, repository: Path) -> None:
    """The program of the reference page closes for a hard failure, and finds no verdict in unknown and in a drill."""
    write_state(tmp_path / "state", on_this_boot(snapshot), ttl_seconds=60)
    state, hard = snapshot.verdict.state.value, snapshot.verdict.hard
    absent = snapshot.simulated or state == "unknown"
    done = gate("sh", shell_examples(repository)[0], tmp_path / "state")
    assert done.returncode == (3 if absent else 1 if state == "failed" and hard else 0), done.stderr


def test_the_documented_loop_reads_every_verdict(snapshot: Snapshot, tmp_path: Path, repository: Path) -> None:
    """The page's loop over the file, with another body: each device's line splits into the fields that it names."""
    write_state(tmp_path / "state", snapshot, ttl_seconds=60)
    loop = re.sub(
        r"(?<=; do\n).*(?=\ndone)", 'echo "$kind|$id|$verdict"', shell_examples(repository)[1], flags=re.DOTALL
    )
    lines = [line.split("|") for line in gate("sh", loop, tmp_path / "state").stdout.splitlines()]
    assert {identity: state for kind, identity, state in lines[2:-1] if kind != "node"} == meant(snapshot)[1]
    kind, identity, own = lines[2]
    assert (kind, identity) == ("node", NODE)
    assert own in ("ok", meant(snapshot)[0])


def test_reports_tell_the_verdict(snapshot: Snapshot) -> None:
    """The page made from the Snapshot, and those made from either JSON document."""
    labels = from_snapshot(snapshot).labels
    node, devices = meant(snapshot)
    expected = node, {labels[device]: word for device, word in devices.items()}
    # A load that verified nothing proves nothing, whatever the node's verdict is.
    load = node if snapshot.results or node == "failed" else "unknown"
    pages = (
        (render(from_snapshot(snapshot)), node),
        (render_file(encode(status_document(snapshot))), node),
        (render_file(encode(burn_in_document(snapshot, plan="probe"))), load),
    )
    for page, word in pages:
        assert from_page(page) == (word, expected[1])
        reason = html.escape(snapshot.verdict.reason, quote=False)
        assert word != node or reason in html.unescape(page).replace("&", "&amp;")


def test_json_documents_tell_the_verdict(snapshot: Snapshot) -> None:
    """Status and burn-in."""
    assert from_json(encode(status_document(snapshot))) == meant(snapshot)
    assert from_json(encode(burn_in_document(snapshot, plan="probe"))) == meant(snapshot)


def test_every_surface_says_that_a_node_is_simulated(tmp_path: Path) -> None:
    """A drill is told from the real thing everywhere, and the state file of a drill is never a verdict."""
    drill = gpu_node(simulated=True)
    assert b"\nnodevet_simulated 1.0\n" in MetricsPage().render(drill)
    assert json.loads(encode(status_document(drill)))["simulated"] is True
    assert "Simulated node" in render(from_snapshot(drill))
    file = parse(state_text(drill, ttl_seconds=60))
    assert isinstance(file, StateFile)
    assert file.simulated


def test_the_action_is_the_same_everywhere(snapshot: Snapshot) -> None:
    """The action does not depend on the surface."""
    action = snapshot.verdict.action.value
    file = parse(state_text(snapshot, ttl_seconds=60))
    assert isinstance(file, StateFile)
    assert file.action == status_document(snapshot).action == action
    said = re.findall(r"Action: <strong>(.+?)</strong>", render(from_snapshot(snapshot)))
    assert said == ([] if action == "none" else [ACTIONS[action]])


def test_slurm_would_be_told_of_hard_failures_alone(snapshot: Snapshot) -> None:
    """The reason of a drain names a fault of the verdict and what to do about it; every other node has none."""
    due = draining(snapshot)
    state = snapshot.verdict.state.value
    assert bool(due) is (state == "failed" and snapshot.verdict.hard and not snapshot.simulated)
    if due:
        reason = reason_text(due, "nodevet")
        assert is_ours(reason, "nodevet")
        actions = {episode.finding.action.value for episode in due if f" {episode.check}: " in reason}
        assert reason.rpartition("[")[2].rstrip("]") in actions
        assert {episode.key for episode in due} <= set(snapshot.verdict.episodes)


def test_a_disagreement_would_be_seen(snapshot: Snapshot) -> None:
    """The comparison itself fails when one surface is fed another verdict."""
    other = "failed" if snapshot.verdict.state.value != "failed" else "ok"
    changed = msgspec.structs.replace(status_document(snapshot), verdict=other)
    assert from_json(encode(changed)) != meant(snapshot)
