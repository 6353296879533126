"""Writes the dashboards that lie beside this file: ``python deploy/grafana/dashboards.py``.

A dashboard is rows of panels; where a panel stands, its id and its targets' ids follow from the order.
"""

from __future__ import annotations

from pathlib import Path

from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard
from panels import (
    COLOURS,
    WORDS,
    Panels,
    bars,
    curves,
    dashboard,
    number,
    of_accelerators,
    state_rank,
    table,
    target,
    text,
    verdicts,
)

DEVICES = "by (job, instance, device)"
ACCELERATORS = 'nodevet_device_info{<M>, kind="accelerator"}'
FINDING = "max by (job, instance, device, check, code, fault_class, outcome, action, state) (nodevet_episode_active{})"
OPEN_FOR = "* on (job, instance, device, code) group_left () (time() - nodevet_episode_opened_timestamp_seconds{<M>})"
SLOWDOWN = (
    "(nodevet_temperature_celsius{<M>} + nodevet_temperature_margin_celsius{<M>}"
    " or nodevet_temperature_slowdown_celsius{<M>})"
)
"""The temperature at which a sensor's device slows itself down: by its own margin, else as it reports it."""

THROTTLED = "sum by (job, instance, device, reason) (rate(nodevet_throttle_seconds_total{<M>}[$__rate_interval]))"
LAST_PROOF = "nodevet_burnin_finished_timestamp_seconds{<M>}"
RATE = of_accelerators("nodevet_burnin_flops_per_second{<M>}", "model, pci")
EFFICIENCY = of_accelerators("nodevet_burnin_efficiency_ratio{<M>}", "model, pci")
WHERE = {"instance": "address", "pci": "slot", "model": "model"}
LOAD = {"instance": "address", "pci": "slot", "workload": "workload", "dtype": "format"}


def fleet() -> Dashboard:
    """Return the dashboard of all nodes: how many are fit, which are not, and what is found."""
    rows = {
        "Now": _fleet_now(),
        "What needs somebody": _fleet_attention(),
        "Over time": _fleet_curves(),
        "Jobs and the gate": _fleet_jobs(),
        "Devices": _fleet_devices(),
    }
    return dashboard(
        "nodevet-fleet", "nodevet: fleet", "Which nodes are fit to run a job, which are not, and why.", rows
    )


def _fleet_now() -> Panels:
    yield number("Nodes", "Nodes whose agents were scraped lately.", "count(nodevet_node_info{<M>})")
    for word, colour in COLOURS.items():
        usual, bad = (colour, "") if word == "ok" else ("text", colour)
        expression = f'sum(nodevet_node_state{{<M>, state="{word}"}})'
        yield number(word, f"Nodes whose verdict is {word}.", expression, colour=usual, bad=bad)
    silent = "count(up{<M>} == 0) or vector(0)"
    yield number("silent", "Targets that do not answer a scrape.", silent, bad="red")
    closed = "sum(nodevet_gate_closed{<M>})"
    yield number("gates closed", "Nodes whose faults close the gate: a prolog keeps jobs away.", closed, bad="red")
    age = "time() - nodevet_snapshot_timestamp_seconds{<M>}"
    idle = f"count({age} > 3 * nodevet_agent_interval_seconds{{<M>}} + 30) or vector(0)"
    said = "Agents that answer, and whose verdict is older than three rounds and half a minute."
    yield number("not judging", said, idle, bad="red")


def _fleet_attention() -> Panels:
    yield table(
        "Nodes that are not ok",
        "Gravest first, at most fifty. The address leads to the node.",
        f"topk(50, ({state_rank('nodevet_node_state')})"
        " * on (job, instance) group_left (node, simulated) nodevet_node_info{<M>} > 0)",
        {"Value": "verdict", "node": "node", "instance": "address", "simulated": "simulated"},
        unit=units.NoUnit,
        states=True,
    ).span(10)
    opened = FINDING.format('{<M>, state="open"}')
    columns = {"code": "code", "outcome": "outcome", "instance": "address", "device": "device", "action": "action"}
    yield table(
        "Open findings",
        "Oldest first, at most a hundred. What to do stands beside each.",
        f"topk(100, {opened} {OPEN_FOR})",
        {**columns, "fault_class": "fault of", "check": "check", "Value": "open for"},
        unit=units.Seconds,
    ).span(14)


def _fleet_curves() -> Panels:
    yield curves(
        "Nodes by verdict",
        "A fleet that loses nodes slowly shows it here first.",
        target("sum by (state) (nodevet_node_state{<M>})", "{{state}}"),
        unit=units.NoUnit,
        stacked=True,
    ).span(12)
    yield curves(
        "Open findings by code",
        "The ten most frequent. One code on many nodes at once is a rollout, not bad hardware.",
        target('topk(10, sum by (code) (nodevet_episode_active{<M>, state="open"}))', "{{code}}"),
        unit=units.NoUnit,
    ).span(12)
    power = 'sum(nodevet_power_watts{<M>, scope="device"})'
    yield curves("Power", "Power draw of all accelerators.", target(power, "power"), unit=units.Watt)
    busy = 'nodevet_utilization_ratio{<M>, engine="compute"}'
    mean, least = target(f"avg({busy})", "mean"), target(f"quantile(0.1, {busy})", "lowest tenth")
    said = "Utilization of the accelerators: mean, and the lowest tenth."
    yield curves("Utilization", said, mean, least, unit=units.PercentUnit).min(0).max(1)
    events = "topk(10, 60 * sum by (code) (rate(nodevet_events_total{<M>}[$__rate_interval])))"
    said = "Events of kernel logs and drivers: the ten most frequent codes."
    yield curves("Events", said, target(events, "{{code}}"), unit=units.CountsPerMinute).min(0)


def _fleet_jobs() -> Panels:
    jobs = target("sum(nodevet_jobs{<M>})", "jobs")
    said = "Jobs with a claim: prolog run, epilog not yet run."
    yield curves("Jobs", said, jobs, unit=units.NoUnit).span(12).min(0)
    decided = "60 * sum by (decision) (rate(nodevet_gate_decisions_total{<M>}[$__rate_interval]))"
    said = "Decisions of the prologs per minute."
    yield curves("Gate", said, target(decided, "{{decision}}"), unit=units.CountsPerMinute).span(12).min(0)


def _fleet_devices() -> Panels:
    heat = of_accelerators(f"max {DEVICES} (nodevet_temperature_celsius{{<M>}} / {SLOWDOWN})", "pci, model")
    yield table(
        "Closest to the temperature limit",
        "Temperature over the one at which the device slows itself down, which is 100 %.",
        f"topk(20, {heat})",
        {**WHERE, "Value": "of its limit"},
        unit=units.PercentUnit,
    )
    yield table(
        "Throttled most",
        "Share of time for which a reason throttled the clock.",
        f"topk(20, {of_accelerators(THROTTLED, 'pci, model')})",
        {**WHERE, "reason": "reason", "Value": "of the time"},
        unit=units.PercentUnit,
    )
    yield table(
        "Links missing",
        "Links of the device that are not up.",
        f"topk(20, {of_accelerators('(nodevet_links{<M>} - nodevet_links_up{<M>})', 'pci, model')})",
        {**WHERE, "Value": "links down"},
        unit=units.NoUnit,
    )
    versions = "count by (version) (nodevet_build_info{<M>})"
    yield bars("Agents by version", "A rollout is complete when one version is left.", versions, "{{version}}").span(12)
    rules = "topk(20, count by (configuration, rules) (nodevet_agent_configuration_info{<M>}))"
    said = "Nodes of one kind with another digest use other limits."
    legend = "configuration {{configuration}}, rules {{rules}}"
    yield bars("Agents by configuration and rules", said, rules, legend).span(12)


def node() -> Dashboard:
    """Return the dashboard of one node: its verdict, its devices, and the agent itself."""
    rows = {
        "Now": _node_now(),
        "Verdicts and findings": _node_found(),
        "Temperature, power and clocks": _node_heat(),
        "Errors": _node_errors(),
        "Host": _node_host(),
        "Agent": _node_agent(),
    }
    said = "One node: verdict, readings of each device, and state of the agent."
    return dashboard("nodevet-node", "nodevet: node", said, rows, single=True)


def _node_now() -> Panels:
    yield number("Verdict", "Verdict of the node.", state_rank("nodevet_node_state")).mappings(WORDS)
    judged = "time() - max(nodevet_snapshot_timestamp_seconds{<M>})"
    yield number("Judged", "Age of the last verdict.", judged, unit=units.Seconds)
    oldest = "time() - max(nodevet_node_oldest_evidence_timestamp_seconds{<M>})"
    yield number("Oldest evidence", "Age of the oldest sample behind the verdict.", oldest, unit=units.Seconds)
    closed = "max(nodevet_gate_closed{<M>})"
    yield number("Gate closed", "Whether the gate keeps jobs off this node: 1 is closed.", closed, bad="red")
    opened = 'sum(nodevet_episodes{<M>, state="open"})'
    yield number("Open findings", "Confirmed findings that are not cleared.", opened, bad="orange")
    unread = 'sum(nodevet_readings{<M>, status=~"unavailable|denied|error"})'
    yield number("Unread", "Readings that could not be read.", unread, bad="orange")
    started = "time() - max(nodevet_agent_start_timestamp_seconds{<M>})"
    yield number("Agent up", "Uptime of the agent.", started, unit=units.Seconds)
    simulated = "max(nodevet_simulated{<M>})"
    yield number("Simulated", "1 for a simulated node: no value was measured on hardware.", simulated, bad="orange")


def _node_found() -> Panels:
    itself = f'label_replace({state_rank("nodevet_node_state")}, "device", "the node", "", "")'
    judged = f"{itself} or {state_rank('nodevet_device_state')}"
    yield verdicts("Verdicts", "Of the node and of each device, over time.", judged, "{{device}}").span(12)
    columns = {"code": "code", "outcome": "outcome", "device": "device", "action": "action", "state": "state"}
    yield table(
        "Findings that are not cleared",
        "With what to do; nodevet explain CODE says more.",
        f"{FINDING.format('{<M>}')} {OPEN_FOR}",
        {**columns, "Value": "since"},
        unit=units.Seconds,
    ).span(12)


def _node_heat() -> Panels:
    hottest = of_accelerators(f"max {DEVICES} (nodevet_temperature_celsius{{<M>}})")
    yield curves(
        "Temperature",
        "Hottest sensor of each accelerator; dashed where the first of them slows itself down.",
        target(hottest, "{{pci}}"),
        target(f"min({SLOWDOWN})", "limit"),
        unit=units.Celsius,
        limits=("limit",),
    )
    power = of_accelerators(f'sum {DEVICES} (nodevet_power_watts{{<M>, scope="device"}})')
    yield curves(
        "Power",
        "Of each accelerator; dashed the lowest cap in force (scraped with detail).",
        target(power, "{{pci}}"),
        target('min(nodevet_power_limit_watts{<M>, scope="device"})', "cap"),
        unit=units.Watt,
        limits=("cap",),
    ).min(0)
    margin = of_accelerators(f"min {DEVICES} (nodevet_temperature_margin_celsius{{<M>}})")
    yield curves(
        "Margin",
        "Degrees left before each accelerator slows itself down; dashed the agent's own limits (scraped with detail).",
        target(margin, "{{pci}}"),
        target('nodevet_limit_celsius{<M>, check="thermal", op=~"<.*"}', "limit {{code}}"),
        unit=units.Celsius,
        limits=("limit",),
    )
    clock = f'max {DEVICES} (nodevet_clock_hertz{{<M>, clock=~"sm|core|graphics"}})'
    said = "Of the compute units of each accelerator."
    yield curves("Clock", said, target(of_accelerators(clock), "{{pci}}"), unit=units.Hertz).min(0)
    held = target(of_accelerators(THROTTLED), "{{pci}} {{reason}}")
    said = "Share of time for which a reason throttled the clock."
    yield curves("Throttled", said, held, unit=units.PercentUnit).min(0)
    busy = of_accelerators(f'max {DEVICES} (nodevet_utilization_ratio{{<M>, engine="compute"}})')
    said = "Utilization of each accelerator."
    yield curves("Utilization", said, target(busy, "{{pci}}"), unit=units.PercentUnit).min(0).max(1)


def _node_errors() -> Panels:
    yield curves(
        "Memory errors",
        "New errors of device memory, corrected and not.",
        target(_grown("nodevet_ecc_corrected_errors_total"), "{{pci}} corrected"),
        target(_grown("nodevet_ecc_uncorrected_errors_total"), "{{pci}} uncorrected"),
        unit=units.NoUnit,
    ).min(0)
    yield curves(
        "Links up",
        "Of each accelerator; dashed how many it has.",
        target(of_accelerators("nodevet_links_up{<M>}"), "{{pci}}"),
        target("max(nodevet_links{<M>})", "links"),
        unit=units.NoUnit,
        limits=("links",),
    ).min(0)
    replays = target(_grown("nodevet_pcie_replays_total"), "{{pci}}")
    said = "New replays of each accelerator (scraped with detail)."
    yield curves("PCIe replays", said, replays, unit=units.NoUnit).min(0)
    events = target("sum by (code) (increase(nodevet_events_total{<M>}[$__rate_interval]))", "{{code}}")
    said = "Events of the kernel log and the drivers, by code."
    yield curves("Events", said, events, unit=units.NoUnit).span(12).min(0)
    used = of_accelerators("(nodevet_memory_used_bytes{<M>} / nodevet_memory_total_bytes{<M>})")
    said = "Of each accelerator."
    yield curves("Memory in use", said, target(used, "{{pci}}"), unit=units.PercentUnit).span(12).min(0).max(1)


def _node_host() -> Panels:
    load = target("nodevet_load_average_ratio{<M>}", "load")
    said = "One-minute load average per logical processor."
    yield curves("Load", said, load, unit=units.PercentUnit).min(0)
    available = target("nodevet_memory_available_bytes{<M>}", "available")
    total = target('nodevet_memory_total_bytes{<M>, device="node"}', "total")
    said = "Memory available to new processes; dashed: total."
    yield curves("Memory", said, available, total, unit=units.BytesIEC, limits=("total",)).min(0)
    heat = 'max by (device) (nodevet_temperature_celsius{<M>, device=~"cpu-.*"})'
    yield curves("Processors", "Temperature of each socket.", target(heat, "{{device}}"), unit=units.Celsius)


def _node_agent() -> Panels:
    slowest = target("topk(5, nodevet_check_duration_seconds{<M>})", "{{check}}")
    said = "The five slowest checks; each takes milliseconds."
    yield curves("Duration of checks", said, slowest, unit=units.Seconds).min(0)
    answers = target("nodevet_reader_up{<M>}", "{{backend}} answers")
    hung = target("increase(nodevet_reader_hangs_total{<M>}[$__rate_interval])", "{{backend}} hung")
    said = "Whether the collector of a backend answers, and how often it hung."
    yield curves("Collectors", said, answers, hung, unit=units.NoUnit).min(0)
    readings = target("sum by (status) (nodevet_readings{<M>})", "{{status}}")
    yield curves("Readings", "Readings of the last rounds by status.", readings, unit=units.NoUnit, stacked=True)


def burn_in() -> Dashboard:
    """Return the dashboard of loads: what was proven, when, and which devices fall behind their model."""
    rows = {"Now": _burn_in_now(), "Devices": _burn_in_devices(), "Over time": _burn_in_curves()}
    said = "Verified burn-ins, their times, and devices below the median of their model."
    return dashboard("nodevet-burn-in", "nodevet: burn-in", said, rows)


def _burn_in_now() -> Panels:
    yield number("Devices", "Accelerators of the chosen nodes.", f"count({ACCELERATORS})")
    unproven = f"count({ACCELERATORS} unless on (job, instance, device) {LAST_PROOF}) or vector(0)"
    yield number("never proven", "Accelerators without a finished load.", unproven, bad="orange")
    wrong = "sum(nodevet_burnin_mismatches{<M>})"
    yield number("wrong products", "Wrong matrix products of the last finished loads.", wrong, bad="red")
    yield number("oldest proof", "Age of the oldest last load.", f"time() - min({LAST_PROOF})", unit=units.Seconds)
    passed = "sum(nodevet_burnin_passed{<M>})"
    said = "Last burn-ins that finished, passed their self-test and found no wrong GEMM."
    yield number("passed", said, passed, colour="green")
    failed = "count(nodevet_burnin_passed{<M>} == 0) or vector(0)"
    yield number("not passed", "Last loads that proved nothing, or a fault.", failed, bad="orange")


def _burn_in_devices() -> Panels:
    median = f"quantile by (model, workload, dtype) (0.5, {RATE})"
    yield table(
        "Furthest below the median of their model",
        "Rate over the median of all devices of the model, workload and number format.",
        f"bottomk(50, {RATE} / on (model, workload, dtype) group_left () {median})",
        {**LOAD, "model": "model", "Value": "of the median"},
        unit=units.PercentUnit,
        lowest_first=True,
    ).span(12)
    yield table(
        "Longest without a verified burn-in",
        "Time since the last finished load.",
        f"topk(50, time() - max by (job, instance, device, workload, dtype) ({LAST_PROOF}))",
        {"instance": "address", "device": "device", "workload": "workload", "dtype": "format", "Value": "since"},
        unit=units.Seconds,
    ).span(12)
    yield table(
        "Wrong results",
        "Products that came out wrong in the last finished load; one is a fault.",
        f"topk(50, {of_accelerators('nodevet_burnin_mismatches{<M>}', 'model, pci')})",
        {**LOAD, "model": "model", "Value": "wrong"},
        unit=units.NoUnit,
    ).span(12)
    yield table(
        "Share of the theoretical peak",
        "Lowest first.",
        f"bottomk(50, {EFFICIENCY})",
        {**LOAD, "model": "model", "Value": "of the peak"},
        unit=units.PercentUnit,
        lowest_first=True,
    ).span(12)


def _burn_in_curves() -> Panels:
    of_model = "by (model, workload, dtype)"
    yield (
        curves(
            "Rate by model",
            "Median, slowest twentieth and slowest device of each model and number format.",
            target(f"quantile {of_model} (0.5, {RATE})", "{{model}} {{dtype}} median"),
            target(f"quantile {of_model} (0.05, {RATE})", "{{model}} {{dtype}} slowest 5 %"),
            target(f"min {of_model} ({RATE})", "{{model}} {{dtype}} slowest"),
            unit=units.FlopsPerSecond,
        )
        .span(12)
        .min(0)
    )
    yield (
        curves(
            "Share of the peak by model",
            "Median and lowest of each model and number format.",
            target(f"quantile {of_model} (0.5, {EFFICIENCY})", "{{model}} {{dtype}} median"),
            target(f"min {of_model} ({EFFICIENCY})", "{{model}} {{dtype}} lowest"),
            unit=units.PercentUnit,
        )
        .span(12)
        .min(0)
        .max(1)
    )


def _grown(metric: str) -> str:
    """Return by how much the counter *metric* of each accelerator grew between two points of a curve."""
    return of_accelerators(f"sum {DEVICES} (increase({metric}{{<M>}}[$__rate_interval]))")


DASHBOARDS = {"fleet.json": fleet, "node.json": node, "burn-in.json": burn_in}
"""What makes each file."""


def main() -> None:
    """Write every dashboard into the folder of this file."""
    for name, make in DASHBOARDS.items():
        Path(__file__).with_name(name).write_text(text(make()), encoding="utf-8")


if __name__ == "__main__":
    main()
