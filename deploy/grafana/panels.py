"""What dashboards are made of: panels of each kind, variables, links and places. ``dashboards.py`` says what they show.

In a query ``<M>`` stands for the matchers of job and instance. Nothing here is a limit of its own: a line that a value
must not cross is drawn from the metric that holds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Json = dict[str, Any]

MATCHERS = 'job=~"$job", instance=~"$instance"'
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA_VERSION = 42
WIDTH = 24

COLOURS = {"ok": "green", "degraded": "orange", "unknown": "text", "failed": "red"}
RANKS = ("ok", "degraded", "unknown", "failed")
STATE_RANK = (
    'sum without (state) ({metric}{{<M>, state="degraded"}})'
    ' + 2 * sum without (state) ({metric}{{<M>, state="unknown"}})'
    ' + 3 * sum without (state) ({metric}{{<M>, state="failed"}})'
)
"""A verdict as a number, from 0 for ok to 3 for failed, which panels show as its word."""

EVERY_NODE = {"multi": True, "includeAll": True, "allValue": ".+", "current": {"text": "All", "value": "$__all"}}

IDENTITY = ("Time", "__name__", "job", "instance", "device", "pci", "model", "check", "state", "fault_class")
"""Columns that a table leaves out unless it asks for them."""

TO_NODE = {
    "title": "Show this node",
    "url": "/d/nodevet-node?${__url_time_range}&${datasource:queryparam}"
    "&var-job=${__data.fields.job}&var-instance=${__value.raw}",
}


def state_rank(metric: str) -> str:
    """Return the expression of the verdict that *metric* holds, as its rank."""
    return STATE_RANK.format(metric=metric)


def of_accelerators(expression: str, labels: str = "pci") -> str:
    """Return *expression* for accelerators alone, with *labels* of their identity."""
    identity = f'max by (job, instance, device, {labels}) (nodevet_device_info{{<M>, kind="accelerator"}})'
    return f"{expression} * on (job, instance, device) group_left ({labels}) {identity}"


def target(expression: str, legend: str = "", *, instant: bool = False, table: bool = False) -> Json:
    """Return a query: over time, or of the last moment, as series or as a table."""
    return {
        "datasource": SOURCE,
        "expr": expression.replace("<M>", MATCHERS),
        "legendFormat": legend or "__auto",
        "instant": instant,
        "range": not instant,
        "format": "table" if table else "time_series",
    }


def panel(
    kind: str,
    title: str,
    description: str,
    targets: Sequence[Json],
    *,
    unit: str,
    width: int = 8,
    height: int = 8,
    defaults: Mapping[str, Any] = {},
    overrides: Sequence[Json] = (),
    options: Mapping[str, Any] = {},
    transformations: Sequence[Json] = (),
) -> Json:
    """Return a panel; place and ids are given by ``dashboard``."""
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "gridPos": {"w": width, "h": height},
        "targets": [{**entry, "refId": chr(ord("A") + place)} for place, entry in enumerate(targets)],
        "fieldConfig": {"defaults": {"unit": unit, **defaults}, "overrides": list(overrides)},
        "options": dict(options),
        "transformations": list(transformations),
    }


def number(
    title: str,
    description: str,
    expression: str,
    *,
    unit: str = "none",
    colour: str = "text",
    bad: str = "",
    states: bool = False,
) -> Json:
    """Return one figure of the last moment, in *colour*, or in the colour *bad* as soon as it is one or more.

    With *states* it is the rank of a verdict, shown as its word.
    """
    steps = [{"color": colour, "value": None}] + ([{"color": bad, "value": 1}] if bad else [])
    return panel(
        "stat",
        title,
        description,
        [target(expression, instant=True)],
        unit=unit,
        width=3,
        height=4,
        defaults={
            "color": {"mode": "thresholds"},
            "thresholds": {"mode": "absolute", "steps": steps},
            "mappings": _mappings() if states else [],
        },
        options={"colorMode": "value", "graphMode": "none", "reduceOptions": {"calcs": ["lastNotNull"]}},
    )


def curves(
    title: str,
    description: str,
    targets: Sequence[Json],
    *,
    unit: str,
    limits: Sequence[str] = (),
    stacked: bool = False,
    width: int = 8,
    defaults: Mapping[str, Any] = {},
) -> Json:
    """Return curves over time; those whose names begin with one of *limits* are dashed red lines.

    A curve that is called as a verdict has the colour of that verdict.
    """
    custom: Json = {"lineWidth": 1, "fillOpacity": 60 if stacked else 0, "showPoints": "never"}
    if stacked:
        custom["stacking"] = {"mode": "normal"}
    overrides = [
        _override(
            "byRegexp", f"/^{name}/", ("color", _fixed("red")), ("custom.lineStyle", {"fill": "dash", "dash": [10, 6]})
        )
        for name in limits
    ]
    overrides += [_override("byName", state, ("color", _fixed(colour))) for state, colour in COLOURS.items()]
    return panel(
        "timeseries",
        title,
        description,
        targets,
        unit=unit,
        width=width,
        defaults={"custom": custom, **defaults},
        overrides=overrides,
        options={
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    )


def table(
    title: str,
    description: str,
    expression: str,
    columns: Mapping[str, str],
    *,
    unit: str,
    width: int = 24,
    height: int = 10,
    lowest_first: bool = False,
    states: bool = False,
) -> Json:
    """Return the rows of one query of the last moment; *columns* are labels and ``Value`` with their headings.

    With *states* the value is the rank of a verdict, shown as its word.
    """
    order = {name: place for place, name in enumerate(columns)}
    shown = {*columns, "job"}  # the link to the node needs the job, which its column hides
    excluded = {name: True for name in IDENTITY if name not in shown}
    value = [("mappings", _mappings()), ("custom.cellOptions", {"type": "color-text"})] if states else []
    overrides = [_override("byName", columns["Value"], ("unit", unit), *value)]
    if "instance" in columns:
        overrides.append(_override("byName", columns["instance"], ("links", [TO_NODE])))
    overrides.append(_override("byName", "job", ("custom.hidden", True)))
    return panel(
        "table",
        title,
        description,
        [target(expression, instant=True, table=True)],
        unit=unit,
        width=width,
        height=height,
        overrides=overrides,
        options={"sortBy": [{"displayName": columns["Value"], "desc": not lowest_first}]},
        transformations=[
            {
                "id": "organize",
                "options": {"excludeByName": excluded, "indexByName": order, "renameByName": dict(columns)},
            }
        ],
    )


def bars(title: str, description: str, expression: str, legend: str, *, width: int = 8, height: int = 8) -> Json:
    """Return a bar for each series of the last moment, as long as what it counts."""
    return panel(
        "bargauge",
        title,
        description,
        [target(expression, legend, instant=True)],
        unit="none",
        width=width,
        height=height,
        defaults={"color": {"mode": "fixed", "fixedColor": "blue"}, "min": 0},
        options={"orientation": "horizontal", "displayMode": "basic", "reduceOptions": {"calcs": ["lastNotNull"]}},
    )


def verdicts(title: str, description: str, expression: str, legend: str, *, width: int = 24, height: int = 8) -> Json:
    """Return verdicts over time, a band each."""
    return panel(
        "state-timeline",
        title,
        description,
        [target(expression, legend)],
        unit="none",
        width=width,
        height=height,
        defaults={
            "mappings": _mappings(),
            "color": {"mode": "thresholds"},
            "custom": {"fillOpacity": 80, "lineWidth": 0},
        },
        options={"mergeValues": True, "showValue": "never", "rowHeight": 0.85, "legend": {"displayMode": "hidden"}},
    )


def dashboard(
    uid: str, title: str, description: str, rows: Mapping[str, Iterable[Json]], *, single: bool = False
) -> Json:
    """Return a dashboard of *rows* of panels by their headings; a *single* one shows one node at a time."""
    panels: list[Json] = []
    top = 0
    for heading, members in rows.items():
        panels.append(
            {"type": "row", "title": heading, "collapsed": False, "gridPos": _place(0, top, WIDTH, 1), "panels": []}
        )
        top, left, tallest = top + 1, 0, 0
        for member in members:
            width, height = member["gridPos"]["w"], member["gridPos"]["h"]
            if left + width > WIDTH:
                top, left, tallest = top + tallest, 0, 0
            panels.append({**member, "gridPos": _place(left, top, width, height)})
            left, tallest = left + width, max(tallest, height)
        top += tallest
    return {
        "id": None,
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["nodevet"],
        "editable": False,
        "graphTooltip": 1,
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": _links(uid),
        "templating": {"list": _variables(single=single)},
        "panels": [{**member, "id": place} for place, member in enumerate(panels, 1)],
    }


def _place(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _fixed(colour: str) -> Json:
    return {"mode": "fixed", "fixedColor": colour}


def _override(matcher: str, name: str, *properties: tuple[str, Any]) -> Json:
    return {
        "matcher": {"id": matcher, "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties],
    }


def _mappings() -> list[Json]:
    """Return what turns the rank of a verdict into its word and colour."""
    options = {str(rank): {"text": state, "color": COLOURS[state], "index": rank} for rank, state in enumerate(RANKS)}
    return [{"type": "value", "options": options}]


def _links(uid: str) -> list[Json]:
    pages = {"nodevet-fleet": "Fleet", "nodevet-node": "Node", "nodevet-burn-in": "Burn-in"}
    return [
        {
            "title": title,
            "type": "link",
            "url": f"/d/{other}",
            "includeVars": other != "nodevet-node",
            "keepTime": True,
            "asDropdown": False,
            "targetBlank": False,
            "tooltip": "",
            "icon": "dashboard",
            "tags": [],
        }
        for other, title in pages.items()
        if other != uid
    ]


def _variables(*, single: bool) -> list[Json]:
    datasource = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
    }
    jobs, nodes = "label_values(nodevet_node_info, job)", 'label_values(nodevet_node_info{job=~"$job"}, instance)'
    return [
        datasource,
        # All jobs are those that scrape agents: a job of something else is no silent node.
        _labels("job", "Job", jobs, {"multi": True, "includeAll": True, "current": {"text": "All", "value": "$__all"}}),
        # All nodes are whatever those jobs scrape: a list of a thousand would be sent with every query.
        _labels("instance", "Node", nodes, {"multi": False, "includeAll": False} if single else EVERY_NODE),
    ]


def _labels(name: str, label: str, query: str, choice: Json) -> Json:
    """Return a variable over the values of a label, asked for anew with each change of the time range."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "variable"},
        "refresh": 2,
        "sort": 5,
        **choice,
    }


def text(made: Json) -> str:
    """Return a dashboard as its file holds it."""
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"
