"""A real Prometheus scrapes three simulated nodes; a fault in one comes to a receiver of alerts, and so its end."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from fakes.prometheus_stack import PrometheusStack, hurried
from fakes.running_agent import RunningAgent

PROFILES = {"sim-1": "dgx-h100", "sim-2": "dgx-h100", "sim-3": "mi300x-8"}
CONFIGURATION = """
[agent]
interval_seconds = 1
slow_interval_seconds = 1
[load]
probe = "off"
"""
HEALTHY = 'title = "nothing happens"\n'
BROKEN = """
title = "link 4 of GPU 2 fails"
[[fault]]
kind = "link_down"
device = 2
link = 4
at = "0s"
"""
HOT = """
title = "GPU 1 overheats"
[[fault]]
kind = "overheat"
device = 1
at = "0s"
"""


class SimulatedNode(RunningAgent):
    """An agent that stands for a node of *profile*, whose scenario the test writes."""

    def __init__(self, directory: Path, name: str, profile: str) -> None:
        """Prepare a healthy node."""
        directory.mkdir()
        self._scenario = directory / "scenario.toml"
        self._scenario.write_text(HEALTHY)
        words = ("--node-name", name, "--simulate", profile, "--scenario", str(self._scenario))
        super().__init__(directory, CONFIGURATION, arguments=words)

    def play(self, scenario: str) -> None:
        """Have the node go on by *scenario*."""
        assert self.process is not None
        self._scenario.write_text(scenario)
        self.process.send_signal(signal.SIGHUP)

    @property
    def address(self) -> str:
        """Return host and port of its pages."""
        return self.url.removeprefix("http://")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, SimulatedNode]]:
    """Three healthy simulated nodes by their names."""
    with ExitStack() as cleanup:
        found = {name: SimulatedNode(tmp_path / name, name, profile) for name, profile in PROFILES.items()}
        for node in found.values():
            cleanup.enter_context(node)
        for node in found.values():
            node.wait_for_verdict("ok", 30.0)
        yield found


@pytest.fixture
def stack(tmp_path: Path, repository: Path, nodes: dict[str, SimulatedNode]) -> Iterator[PrometheusStack]:
    """Prometheus and Alertmanager that scrape the three."""
    directory = tmp_path / "prometheus"
    directory.mkdir()
    targets = {name: node.address for name, node in nodes.items()}
    with PrometheusStack(directory, repository / "deploy" / "prometheus", targets) as running:
        running.wait_until_scraped()
        yield running


def test_a_fault_reaches_the_receiver_and_its_repair_too(
    stack: PrometheusStack, nodes: dict[str, SimulatedNode]
) -> None:
    """The alert says which node, device and fault, goes where simulated nodes go, and is resolved after the repair.

    So is the heat of another vendor's device. Then an agent is killed: its name is still known to the alert.
    """
    states = stack.wait_for('fleet:nodevet_node_state:count{state="ok"} == 3')
    assert states[0]["metric"]["simulated"] == "true"
    assert stack.messages == []
    assert stack.rule_errors() == {}

    nodes["sim-2"].play(BROKEN)
    nodes["sim-3"].play(HOT)
    fault = stack.wait_for_message("firing", alertname="NodevetLinkFault", node="sim-2")
    verdict = stack.wait_for_message("firing", alertname="NodevetNodeFailed", node="sim-2")

    finding = nodes["sim-2"].wait_for_finding("link.down")
    device = next(entry for entry in nodes["sim-2"].status()["devices"] if entry["id"] == finding["device"])
    assert fault["labels"] == {
        "alertname": "NodevetLinkFault",
        "severity": "warning",
        "job": "nodevet",
        "instance": nodes["sim-2"].address,
        "node": "sim-2",
        "simulated": "true",
        "check": "links",
        "code": "link.down",
        "outcome": "fail",
        "fault_class": "hardware",
        "device": device["id"],
        "model": device["model"],
        "pci": device["pci"],
        "serial": device["serial"],
    }
    assert (verdict["labels"]["severity"], verdict["labels"]["state"]) == ("critical", "failed")
    assert fault["annotations"]["runbook_url"].endswith("/NodevetLinkFault")
    assert device["pci"] in fault["annotations"]["description"]

    heat = stack.wait_for_message("firing", alertname="NodevetHeat", node="sim-3")
    assert heat["labels"]["model"] == "AMD Instinct MI300X"
    assert stack.rule_errors() == {}

    for name in ("sim-2", "sim-3"):
        nodes[name].play(HEALTHY)
    for name, alert in (("sim-2", "NodevetLinkFault"), ("sim-2", "NodevetNodeFailed"), ("sim-3", "NodevetHeat")):
        stack.wait_for_message("resolved", alertname=alert, node=name)
    assert {message["labels"]["node"] for message in stack.messages} == {"sim-2", "sim-3"}
    assert {message["path"] for message in stack.messages} == {"/fire-drills"}

    nodes["sim-1"].kill()
    stack.wait_for_message("firing", alertname="NodevetAgentDown", node="sim-1", simulated="true")


def test_the_hurried_rules_differ_from_the_shipped_in_their_waits_only(repository: Path) -> None:
    """What the real Prometheus is tested with is what is shipped."""
    shipped = (repository / "deploy" / "prometheus" / "nodevet.rules.yml").read_text()
    quick = hurried(shipped)
    assert set(re.findall(r"(?m)^ +for: (\S+)$", quick)) == {"1s"}
    slow, fast = yaml.safe_load(shipped)["groups"], yaml.safe_load(quick)["groups"]
    for group in (*slow, *fast):
        group.pop("interval", None)
        for rule in group["rules"]:
            rule.pop("for", None)
    assert slow == fast
