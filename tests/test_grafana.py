"""The dashboards for Grafana: their form, that they ask for what there is, and that they get an answer."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes.metrics_reference import NODES
from fakes.prometheus_stack import PrometheusStack
from fakes.running_agent import RunningAgent

from nodevet.exporters.metrics.family import Family
from nodevet.exporters.metrics.prometheus import families

NAMES = ("fleet.json", "node.json", "burn-in.json")
ROWS = "row"
METRIC = re.compile(r'"[^"]*"|\b(?:nodevet_\w+|up)\b')
COUNTER = re.compile(r"(\w+\()?nodevet_\w+_total\b")

SCENARIO = """
title = "something on every panel"

[[fault]]
kind = "xid"
code = 31
device = 4
text = "MMU fault"
at = "1s"

[[fault]]
kind = "overheat"
device = 3
at = "1s"

[[fault]]
kind = "link_down"
device = 1
link = 4
at = "1s"
"""

Json = dict[str, Any]


@pytest.fixture(scope="session")
def folder(repository: Path) -> Path:
    """Where the files for Grafana lie."""
    return repository / "deploy" / "grafana"


@pytest.fixture(params=NAMES)
def dashboard(request: pytest.FixtureRequest, folder: Path) -> Json:
    """Each dashboard as Grafana reads it."""
    return load(folder / request.param)


def load(file: Path) -> Json:
    """Return the dashboard in *file*."""
    found: Json = json.loads(file.read_text())
    return found


def panels(dashboard: Json) -> list[Json]:
    """Return the panels of *dashboard* without its rows."""
    return [panel for panel in dashboard["panels"] if panel["type"] != ROWS]


def targets(dashboard: Json) -> Iterator[tuple[str, str]]:
    """Yield the title of a panel and each of its queries."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]


def concrete(expression: str) -> str:
    """Return *expression* as Grafana sends it when everything is chosen."""
    chosen = {"$job": "nodevet", "$instance": ".+", "$__rate_interval": "1m"}
    for name, value in chosen.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


@pytest.mark.golden
def test_the_files_are_what_the_maker_makes(folder: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A dashboard is changed in dashboards.py, never in its file; `make golden` writes the files."""
    if request.config.getoption("--update-golden"):
        subprocess.run([sys.executable, str(folder / "dashboards.py")], check=True, timeout=60)
    for script in folder.glob("*.py"):
        shutil.copy(script, tmp_path)
    subprocess.run([sys.executable, str(tmp_path / "dashboards.py")], check=True, timeout=60)
    assert sorted(path.name for path in folder.glob("*.json")) == sorted(NAMES)
    for name in NAMES:
        assert (tmp_path / name).read_text() == (folder / name).read_text(), f"{name} is old: run dashboards.py"


def test_a_dashboard_can_be_provisioned(dashboard: Json) -> None:
    """No id, a fixed uid, no inputs to be asked for, not to be edited, tagged, with a description."""
    assert "id" not in dashboard
    assert re.fullmatch(r"nodevet-[a-z-]+", dashboard["uid"])
    assert dashboard["editable"] is False
    assert not [key for key in dashboard if key.startswith("__")]
    assert dashboard["tags"] == ["nodevet"]
    assert dashboard["title"].startswith("nodevet: ")
    assert dashboard["description"].endswith(".")
    assert dashboard["schemaVersion"] >= 39


def test_variables_choose_source_job_and_node(dashboard: Json) -> None:
    """In this order, refreshed with the time range; one node at a time where the dashboard is of a node."""
    source, job, instance = dashboard["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert (job["name"], instance["name"]) == ("job", "instance")
    for variable in (job, instance):
        assert variable["refresh"] == 2
        assert variable["datasource"]["uid"] == "${datasource}"
    assert job["multi"] is job["includeAll"] is True
    assert "allValue" not in job, "all jobs are those of agents: a job of something else is no silent node"
    many = dashboard["uid"] != "nodevet-node"
    assert instance["multi"] is instance["includeAll"] is many
    assert instance.get("allValue") == (".+" if many else None)


def test_every_panel_says_what_it_shows_in_which_unit(dashboard: Json) -> None:
    """Title, description that is a sentence, unit, the chosen source, and no panel per node."""
    for panel in panels(dashboard):
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert "repeat" not in panel
        for place in (panel, *panel["targets"]):
            assert place["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_curves_are_named_in_a_legend(dashboard: Json) -> None:
    """Grafana's builder hides a legend that is not told to show itself."""
    assert all(panel["options"]["legend"]["showLegend"] for panel in panels(dashboard) if panel["type"] == "timeseries")


def test_panels_stand_beside_each_other(dashboard: Json) -> None:
    """Within the width of 24, none over another, no id and no title twice."""
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in dashboard["panels"]]
    titles = [panel["title"] for panel in panels(dashboard)]
    assert len(ids) == len(set(ids))
    assert len(titles) == len(set(titles))


def test_every_selector_keeps_to_the_chosen_job_and_nodes(dashboard: Json) -> None:
    """Each metric is followed by both matchers."""
    for title, expression in targets(dashboard):
        bare = re.findall(r'\b(nodevet_\w+|up)\b(?!\{job=~"\$job", instance=~"\$instance")', strip(expression))
        assert not bare, f"{title}: {bare}"


def strip(expression: str) -> str:
    """Return *expression* without the lists of labels, whose names are no metrics."""
    return re.sub(r"\b(by|on|without|group_left|group_right) \([^)]*\)", "", expression)


def test_counters_are_read_by_their_growth(dashboard: Json) -> None:
    """A counter alone says how long something has been running; its window is Grafana's own."""
    for title, expression in targets(dashboard):
        for wrapper in COUNTER.findall(expression):
            assert wrapper in ("rate(", "increase("), title
        assert not re.findall(r"\[(?!\$__rate_interval\])", expression), title


def test_lists_of_a_fleet_are_bounded(folder: Path) -> None:
    """A thousand nodes fill no table: each asks for so many."""
    for name in ("fleet.json", "burn-in.json"):
        for panel in panels(load(folder / name)):
            if panel["type"] == "table":
                assert re.match(r"(topk|bottomk)\(\d+, ", panel["targets"][0]["expr"]), panel["title"]


def series(family: Family) -> str:
    """Return the name under which the values of *family* are served."""
    return f"{family.name}_total" if family.kind == "counter" else family.name


def test_every_metric_is_one_that_the_agent_serves(dashboard: Json, repository: Path) -> None:
    """On the default page, or on the one with detail where the panel says so."""
    default = {series(found) for make in NODES for found in families(make())}
    golden = (repository / "tests/fixtures/metrics/eight_accelerators.prom").read_text()
    default |= set(re.findall(r"^(nodevet_\w+)", golden, flags=re.M)) | {"up"}
    detail = {series(found) for make in NODES for found in families(make(), detail=True)}
    for panel in panels(dashboard):
        for target in panel["targets"]:
            named = {word for word in METRIC.findall(target["expr"]) if not word.startswith('"')}
            assert named <= default | detail, panel["title"]
            only_in_detail = named - default - {"nodevet_temperature_slowdown_celsius"}  # beside the margin
            assert not only_in_detail or "detail" in panel["description"], (panel["title"], only_in_detail)


def test_links_lead_to_the_other_dashboards(folder: Path) -> None:
    """From each to both others, and from the rows of a table to the node."""
    known = {load(folder / name)["uid"] for name in NAMES}
    for name in NAMES:
        dashboard = load(folder / name)
        assert {link["url"].removeprefix("/d/") for link in dashboard["links"]} == known - {dashboard["uid"]}
        for url in re.findall(r'"url": "/d/([\w-]+)', json.dumps(dashboard)):
            assert url in known
    fleet = json.dumps(load(folder / "fleet.json"))
    assert "/d/nodevet-node?${__url_time_range}" in fleet
    assert "var-instance=${__value.raw}" in fleet


def test_promtool_reads_every_query(dashboard: Json, tmp_path: Path) -> None:
    """Syntax and types, as the expressions of a rules file."""
    rules = [{"record": f"query:{n}", "expr": concrete(query)} for n, (_, query) in enumerate(targets(dashboard))]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


def test_provisioning_finds_source_and_dashboards(folder: Path) -> None:
    """The source is a Prometheus that takes long queries; dashboards come from files and stay as they are."""
    (source,) = yaml.safe_load((folder / "provisioning" / "datasources.yml").read_text())["datasources"]
    assert (source["type"], source["access"], source["jsonData"]["httpMethod"]) == ("prometheus", "proxy", "POST")
    (provider,) = yaml.safe_load((folder / "provisioning" / "dashboards.yml").read_text())["providers"]
    assert (provider["type"], provider["allowUiUpdates"]) == ("file", False)
    assert provider["options"]["path"].startswith("/var/lib/grafana/")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[PrometheusStack]:
    """A real Prometheus that scrapes simulated nodes of both vendors, with detail, by the shipped configuration."""
    root = tmp_path_factory.mktemp("grafana")
    scenario = root / "scenario.toml"
    scenario.write_text(SCENARIO)
    nodes = {"gpu": ("--simulate", "dgx-h100", "--scenario", str(scenario)), "amd": ("--simulate", "mi300x-8")}
    shipped = root / "prometheus"
    shutil.copytree(repository / "deploy" / "prometheus", shipped)
    scrape = yaml.safe_load((shipped / "scrape.yml").read_text())
    scrape["scrape_configs"][0]["params"] = {"detail": ["yes"]}
    (shipped / "scrape.yml").write_text(yaml.safe_dump(scrape))
    with ExitStack() as cleanup:
        addresses = {}
        for name, arguments in nodes.items():
            directory = root / name
            directory.mkdir()
            agent = cleanup.enter_context(RunningAgent(directory, arguments=arguments))
            addresses[name] = agent.url.removeprefix("http://")
        running = root / "stack"
        running.mkdir()
        found = cleanup.enter_context(PrometheusStack(running, shipped, addresses))
        found.wait_for('nodevet_node_state{state="failed"} == 1', 60)
        found.wait_for("rate(nodevet_events_total[1m])", 30)
        found.wait_for("count(nodevet_burnin_flops_per_second) >= 13", 30)
        yield found


@pytest.mark.parametrize("name", NAMES)
def test_every_query_has_an_answer(name: str, folder: Path, stack: PrometheusStack) -> None:
    """No panel is empty while nodes of both vendors are scraped, one of them ill."""
    empty = [title for title, query in targets(load(folder / name)) if not stack.query(concrete(query))]
    assert empty == []


def test_the_variables_find_jobs_and_nodes(folder: Path, stack: PrometheusStack) -> None:
    """What the lists are filled from has job and instance."""
    for variable in load(folder / "fleet.json")["templating"]["list"][1:]:
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert found
        assert all(entry["metric"][found[2]] for entry in stack.query(concrete(found[1])))


def test_figures_are_those_of_the_nodes(folder: Path, stack: PrometheusStack) -> None:
    """Two nodes, one failed with a link down; of sixteen devices the three with faults were not proven."""
    figures = dict(targets(load(folder / "fleet.json"))) | dict(targets(load(folder / "burn-in.json")))

    def value(title: str) -> float:
        return float(stack.query(concrete(figures[f"{title} A"]))[0]["value"][1])

    assert (value("Nodes"), value("failed"), value("ok"), value("silent")) == (2, 1, 1, 0)
    assert (value("Devices"), value("never proven"), value("wrong products")) == (16, 3, 0)
    codes = {row["metric"]["code"] for row in stack.query(concrete(figures["Open findings A"]))}
    assert "link.down" in codes
    (ill,) = stack.query(concrete(figures["Nodes that are not ok A"]))
    assert (ill["value"][1], ill["metric"]["simulated"]) == ("3", "true")
    (worst, *_) = stack.query(concrete(figures["Links missing A"]))
    assert worst["value"][1] == "1"
