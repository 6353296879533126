"""The rules for Prometheus: valid, tested, about metrics that exist, and each alert with its page."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes.metrics_reference import NODES

from nodevet.checks.core.quantities import QUANTITIES
from nodevet.checks.engine.registry import discover
from nodevet.exporters.metrics.prometheus import families

SEVERITIES = {"critical", "warning", "info"}
WORD = re.compile(r'"[^"]*"|\b(?:[a-z]+:)?nodevet_[a-z0-9_]+(?::[a-z0-9_]+)?|\bnode:up:named\b')
RUNBOOKS = "https://nodevet.example/runbooks/"
TEMPLATED = re.compile(r"\{\{")


@pytest.fixture(scope="session")
def folder(repository: Path) -> Path:
    """Where the files for Prometheus lie."""
    return repository / "deploy" / "prometheus"


@pytest.fixture(scope="session")
def groups(folder: Path) -> list[dict[str, Any]]:
    """The groups of rules."""
    found: list[dict[str, Any]] = yaml.safe_load((folder / "nodevet.rules.yml").read_text())["groups"]
    return found


def alerts(groups: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return every alert by its name."""
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def records(groups: list[dict[str, Any]]) -> dict[str, str]:
    """Return the expression of every recorded series by its name."""
    return {rule["record"]: rule["expr"] for group in groups for rule in group["rules"] if "record" in rule}


def named(expression: str) -> set[str]:
    """Return the metrics that *expression* reads; what stands between quotes is no metric."""
    return {word for word in WORD.findall(expression) if not word.startswith('"')}


def run(folder: Path, *command: str) -> str:
    """Run *command* in *folder*, which must succeed, and return what it said."""
    environment = {**os.environ, "GOGC": "400"}  # a quarter of the time of promtool went to its garbage collector
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_has_no_complaint_about_the_rules(folder: Path) -> None:
    """Syntax, types and all of its lint."""
    assert "SUCCESS" in run(folder, "promtool", "check", "rules", "--lint=all", "--lint-fatal", "nodevet.rules.yml")


def test_each_alert_fires_and_is_silent_as_its_cases_say(folder: Path) -> None:
    """The cases beside the rules, run by promtool."""
    assert "SUCCESS" in run(folder, "promtool", "test", "rules", "nodevet.rules.test.yml")


def test_each_alert_has_cases_of_both_kinds(folder: Path, groups: list[dict[str, Any]]) -> None:
    """One in which it fires with its labels and words, and one in which it is silent."""
    cases = yaml.safe_load((folder / "nodevet.rules.test.yml").read_text())["tests"]
    looks = [look for case in cases for look in case.get("alert_rule_test", ())]
    firing = {look["alertname"] for look in looks if look["exp_alerts"]}
    silent = {look["alertname"] for look in looks if not look["exp_alerts"]}
    assert firing == silent == set(alerts(groups))


@pytest.mark.parametrize(
    ("alert", "right", "wrong"),
    [
        ("NodevetNodeFailed", 'named{state="failed"} == 1', 'named{state="ok"} == 1'),
        ("NodevetNodeDegraded", "for: 15m", "for: 0m"),
        ("NodevetBurnInOutlier", "_per_second:nodes >= 5", "_per_second:nodes >= 4"),
    ],
)
def test_a_wrong_rule_is_noticed(folder: Path, tmp_path: Path, alert: str, right: str, wrong: str) -> None:
    """A verdict that is not looked at, a wait that is skipped, a fleet that is too small: each fails the cases."""
    rules = (folder / "nodevet.rules.yml").read_text()
    cases = yaml.safe_load((folder / "nodevet.rules.test.yml").read_text())
    cases["tests"] = [case for case in cases["tests"] if case["name"].startswith(alert)]
    (tmp_path / "cases.yml").write_text(yaml.safe_dump(cases))
    for text, code in ((rules, 0), (rules.replace(right, wrong), 1)):
        (tmp_path / "nodevet.rules.yml").write_text(text)
        command = ("promtool", "test", "rules", "cases.yml")
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, done.stdout + done.stderr


def test_rules_read_only_what_the_exporter_gives(groups: list[dict[str, Any]]) -> None:
    """Every metric is on a page of the exporter, or recorded by another rule; and every recorded one says its level."""
    shown = {
        f"{family.name}_total" if family.kind == "counter" else family.name
        for build in NODES
        for family in families(build())
    }
    known = shown | set(records(groups))
    for group in groups:
        for rule in group["rules"]:
            assert named(rule["expr"]) - known == set(), rule.get("alert") or rule.get("record")
    for name in records(groups):
        assert re.fullmatch(r"(node|device|model|fleet):[a-z0-9_]+:[a-z0-9_]+", name), name


def test_the_search_for_metrics_finds_them() -> None:
    """A pattern that found nothing would let everything pass."""
    assert named('nodevet_a{b="nodevet_c"} > device:nodevet_d_total:rate5m and node:up:named') == {
        "nodevet_a",
        "device:nodevet_d_total:rate5m",
        "node:up:named",
    }


def test_alerts_keep_the_conventions(groups: list[dict[str, Any]]) -> None:
    """Names, severities, a constant summary, a description with its place, and the address of the page."""
    for name, rule in alerts(groups).items():
        assert re.fullmatch(r"Nodevet([A-Z][a-z]+)+", name)
        assert set(rule["labels"]) == {"severity"}
        assert rule["labels"]["severity"] in SEVERITIES
        notes = rule["annotations"]
        assert set(notes) == {"summary", "description", "runbook_url"}
        assert not TEMPLATED.search(notes["summary"]), name
        assert notes["summary"].endswith(".")
        assert TEMPLATED.search(notes["description"]) or name == "NodevetNoTargets"
        assert notes["runbook_url"] == RUNBOOKS + name


def test_every_check_has_an_alert(groups: list[dict[str, Any]]) -> None:
    """The one that catches the rest names exactly the checks that have an alert of their own."""
    expressions = {name: rule["expr"] for name, rule in alerts(groups).items()}
    own = {
        found
        for name, text in expressions.items()
        for found in re.findall(r'device:nodevet_episode_active:open\{check="([^"]+)"', text)
    }
    others = re.search(r'check!~"([^"]+)"', expressions["NodevetOtherFault"])
    assert others is not None
    assert set(others[1].split("|")) == own
    assert own <= {declared.name for declared in discover()}


def test_every_alert_has_its_page_and_every_page_its_alert(repository: Path, groups: list[dict[str, Any]]) -> None:
    """The index of the runbooks says of each what the rule says."""
    runbooks = repository / "docs" / "runbooks"
    index = (runbooks / "README.md").read_text()
    assert {page.stem for page in runbooks.glob("Nodevet*.md")} == set(alerts(groups))
    for name, rule in alerts(groups).items():
        row = f"| [{name}]({name}.md) | {rule['labels']['severity']} | {rule['annotations']['summary']} |"
        assert row in index.splitlines()


SECTIONS = ("## How to look", "## What to do", "## When it clears", "## False alarms")


def documented_metrics(repository: Path) -> Iterator[tuple[str, str]]:
    """Yield every metric that a page names in code, with the name of the page."""
    for page in (repository / "README.md", *sorted((repository / "docs").rglob("*.md"))):
        for code in re.findall(r"`([^`]+)`", page.read_text()):
            yield from ((page.name, metric) for metric in named(code))


def test_pages_of_alerts_answer_the_same_questions(repository: Path, groups: list[dict[str, Any]]) -> None:
    """What it means, how to look, what to do, when it clears, false alarms."""
    for name in alerts(groups):
        lines = (repository / "docs" / "runbooks" / f"{name}.md").read_text().splitlines()
        assert lines[0] == f"# {name}"
        assert tuple(line for line in lines if line.startswith("## ")) == SECTIONS


def test_every_command_of_a_page_can_be_typed_as_it_stands(repository: Path) -> None:
    """Nobody looks up what a command needs at three in the morning."""
    found = set()
    for page in (repository / "docs" / "runbooks").glob("*.md"):
        for words in re.findall(r"`nodevet ([^`]+)`", page.read_text()):
            name, *rest = shlex.split(words)
            module = importlib.import_module(f"nodevet.agent.commands.{name.replace('-', '_')}")
            parser = argparse.ArgumentParser(prog=f"{page.name}: nodevet {name}", exit_on_error=False)
            module.configure(parser)
            parser.parse_args(rest)
            found.add(name)
    assert found >= {"status", "burn-in", "ack", "explain"}


def test_pages_name_only_metrics_that_exist(repository: Path, groups: list[dict[str, Any]]) -> None:
    """On a page of the exporter, with detail too, or recorded by a rule."""
    shown = {
        f"{family.name}_total" if family.kind == "counter" else family.name
        for build in NODES
        for family in families(build(), detail=True)
    }
    quantities = {f"nodevet_{key}{end}" for key in QUANTITIES for end in ("", "_total")}
    known = shown | quantities | set(records(groups))
    pages = set(documented_metrics(repository))
    assert {page for page, _ in pages} >= {"metrics.md", "prometheus.md", "NodevetHeat.md"}
    assert {entry for entry in pages if entry[1] not in known and not entry[1].endswith("_")} == set()


def test_the_examples_are_valid(folder: Path) -> None:
    """Prometheus and Alertmanager accept the scrape and the routes that a site begins with."""
    assert "valid" in run(folder, "promtool", "check", "config", "--syntax-only", "scrape.yml")
    assert "SUCCESS" in run(folder, "amtool", "check-config", "alertmanager.yml")


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ({"alertname": "NodevetNodeFailed", "severity": "critical", "simulated": "false"}, "on-call"),
        ({"alertname": "NodevetNodeFailed", "severity": "critical", "simulated": "true"}, "fire-drills"),
        ({"alertname": "NodevetHeat", "severity": "warning", "simulated": "false"}, "operators"),
        ({"alertname": "NodevetNoTargets", "severity": "warning"}, "on-call"),
        ({"alertname": "NodevetDrainLimitReached", "severity": "critical", "simulated": "false"}, "on-call"),
        ({"alertname": "NodevetTargetVanished", "severity": "warning", "simulated": "false"}, "operators"),
        ({"alertname": "NodevetHeatOutlier", "severity": "info", "simulated": "false"}, "log"),
    ],
)
def test_alerts_go_where_the_example_sends_them(folder: Path, labels: dict[str, str], receiver: str) -> None:
    """A failed node calls somebody, a simulated one nobody."""
    words = [f"{name}={value}" for name, value in labels.items()]
    command = ("amtool", "config", "routes", "test", "--config.file=alertmanager.yml", *words)
    assert run(folder, *command).splitlines()[0] == receiver


@pytest.mark.parametrize(
    ("address", "node"),
    [
        ("gpu-07:10917", "gpu-07"),
        ("gpu-07.cluster.example:10917", "gpu-07"),
        ("7-gpu_a:10917", "7-gpu_a"),
        ("10.0.0.7:10917", None),
        ("[fd00::7]:10917", None),
    ],
)
def test_a_node_is_named_by_its_address_where_that_is_a_name(folder: Path, address: str, node: str | None) -> None:
    """A number names nobody: its first part is the same for every node."""
    (rule,) = yaml.safe_load((folder / "scrape.yml").read_text())["scrape_configs"][0]["relabel_configs"]
    found = re.fullmatch(rule["regex"], address, re.ASCII)
    assert (found[1] if found else None) == node
    assert rule["target_label"] == "node"


SECONDS = {"s": 1, "m": 60, "h": 3600}


def seconds(span: str) -> int:
    """Return the seconds of a span such as ``30s`` or ``0``."""
    return int(span[:-1]) * SECONDS[span[-1]] if span[-1] in SECONDS else int(span)


def test_an_alert_that_holds_others_back_comes_before_them(folder: Path, groups: list[dict[str, Any]]) -> None:
    """Else fifty nodes have called somebody before it is told that it is fifty; its rules take three evaluations."""
    configuration = yaml.safe_load((folder / "alertmanager.yml").read_text())
    told_after = seconds(configuration["route"]["group_wait"])
    interval = seconds(yaml.safe_load((folder / "scrape.yml").read_text())["global"]["evaluation_interval"])
    known = {name: seconds(rule.get("for", "0")) for name, rule in alerts(groups).items()}
    for inhibition in configuration["inhibit_rules"]:
        source, target = (
            re.compile(inhibition[key][0].split('"')[1]) for key in ("source_matchers", "target_matchers")
        )
        latest = max(known[name] for name in known if source.fullmatch(name)) + 3 * interval
        held = {name: wait for name, wait in known.items() if target.fullmatch(name)}
        assert held
        for name, wait in held.items():
            assert latest < wait + told_after, (source.pattern, name)


def test_the_scrape_calls_its_job_as_the_rules_do(folder: Path) -> None:
    """Rules that ask for another job would never notice a silent node."""
    jobs = [job["job_name"] for job in yaml.safe_load((folder / "scrape.yml").read_text())["scrape_configs"]]
    assert jobs == ["nodevet"]
    asked = re.findall(r'job="([^"]+)"', (folder / "nodevet.rules.yml").read_text())
    assert set(asked) == {"nodevet"}
