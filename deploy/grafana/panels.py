"""What dashboards are made of: panels of each kind, variables and links. ``dashboards.py`` says what they show.

Each panel is a builder of Grafana's own, so a dashboard can set more of it. In a query ``<M>`` stands for the matchers
of job and instance. Nothing here is a limit of its own: a line that a value must not cross is drawn from the metric
that holds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from grafana_foundation_sdk.builders.bargauge import Panel as BarGauge
from grafana_foundation_sdk.builders.common import (
    ReduceDataOptions,
    StackingConfig,
    TableSortByFieldState,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    FieldColor,
    QueryVariable,
    Row,
    ThresholdsConfig,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.statetimeline import Panel as StateTimeline
from grafana_foundation_sdk.builders.table import Panel as Table
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, units
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

Panels = Iterable[Builder[models.Panel]]
AnyPanel = TypeVar("AnyPanel", BarGauge, Stat, StateTimeline, Table, TimeSeries)

MATCHERS = 'job=~"$job", instance=~"$instance"'
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")

COLOURS = {"ok": "green", "degraded": "orange", "unknown": "text", "failed": "red"}
STATE_RANK = (
    'sum without (state) ({metric}{{<M>, state="degraded"}})'
    ' + 2 * sum without (state) ({metric}{{<M>, state="unknown"}})'
    ' + 3 * sum without (state) ({metric}{{<M>, state="failed"}})'
)
"""A verdict as a number, from 0 for ok to 3 for failed, which panels show as its word."""

WORDS: list[models.ValueMapping] = [
    models.ValueMap(
        options={
            str(rank): models.ValueMappingResult(text=state, color=colour, index=rank)
            for rank, (state, colour) in enumerate(COLOURS.items())
        }
    )
]
"""What turns the rank of a verdict into its word and colour."""

IDENTITY = ("Time", "__name__", "job", "instance", "device", "pci", "model", "check", "state", "fault_class")
"""Columns that a table leaves out unless it asks for them."""

TO_NODE = {
    "title": "Show this node",
    "url": "/d/nodevet-node?${__url_time_range}&${datasource:queryparam}"
    "&var-job=${__data.fields.job}&var-instance=${__value.raw}",
}
EVERYTHING = models.VariableOption(text="All", value="$__all")
LATEST = ReduceDataOptions().calcs(["lastNotNull"])
BY_THRESHOLDS = FieldColor().mode(models.FieldColorModeId.THRESHOLDS)


def state_rank(metric: str) -> str:
    """Return the expression of the verdict that *metric* holds, as its rank."""
    return STATE_RANK.format(metric=metric)


def of_accelerators(expression: str, labels: str = "pci") -> str:
    """Return *expression* for accelerators alone, with *labels* of their identity."""
    identity = f'max by (job, instance, device, {labels}) (nodevet_device_info{{<M>, kind="accelerator"}})'
    return f"{expression} * on (job, instance, device) group_left ({labels}) {identity}"


def target(expression: str, legend: str = "__auto") -> Dataquery:
    """Return a query over time, as series."""
    query = Dataquery().datasource(SOURCE).expr(expression.replace("<M>", MATCHERS)).legend_format(legend)
    return query.range().format(PromQueryFormat.TIME_SERIES)


def number(
    title: str, description: str, expression: str, *, unit: str = units.NoUnit, colour: str = "text", bad: str = ""
) -> Stat:
    """Return one figure of the last moment, in *colour*, or in the colour *bad* as soon as it is one or more."""
    steps = [models.Threshold(color=colour)] + ([models.Threshold(value=1, color=bad)] if bad else [])
    return (
        _panel(Stat(), title, description, target(expression).instant(), unit=unit)
        .span(3)
        .height(4)
        .color_scheme(BY_THRESHOLDS)
        .thresholds(ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(LATEST)
    )


def curves(
    title: str,
    description: str,
    *targets: Dataquery,
    unit: str,
    limits: Sequence[str] = (),
    stacked: bool = False,
) -> TimeSeries:
    """Return curves over time; those whose names begin with one of *limits* are dashed red lines.

    A curve that is called as a verdict has the colour of that verdict.
    """
    panel = _panel(TimeSeries(), title, description, *targets, unit=unit).line_width(1).fill_opacity(0)
    panel.show_points(common.VisibilityMode.NEVER).legend(VizLegendOptions().show_legend(True))
    panel.tooltip(VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING))
    if stacked:
        panel.stacking(StackingConfig().mode(common.StackingMode.NORMAL)).fill_opacity(60)
    dashed = models.DynamicConfigValue("custom.lineStyle", common.LineStyle(fill="dash", dash=[10, 6]))
    for name in limits:
        panel.override_by_regexp(f"/^{name}/", [_fixed("red"), dashed])
    for state, colour in COLOURS.items():
        panel.override_by_name(state, [_fixed(colour)])
    return panel


def table(
    title: str,
    description: str,
    expression: str,
    columns: Mapping[str, str],
    *,
    unit: str,
    lowest_first: bool = False,
    states: bool = False,
) -> Table:
    """Return the rows of one query of the last moment; *columns* are labels and ``Value`` with their headings.

    With *states* the value is the rank of a verdict, shown as its word.
    """
    value, shown = columns["Value"], {*columns, "job"}  # the link to the node needs the job, which its column hides
    organize = {
        "excludeByName": {name: True for name in IDENTITY if name not in shown},
        "indexByName": {name: place for place, name in enumerate(columns)},
        "renameByName": dict(columns),
    }
    properties = [models.DynamicConfigValue("unit", unit)]
    if states:
        properties.append(models.DynamicConfigValue("mappings", WORDS))
        properties.append(models.DynamicConfigValue("custom.cellOptions", common.TableColorTextCellOptions()))
    query = target(expression).instant().format(PromQueryFormat.TABLE)
    panel = _panel(Table(), title, description, query, unit=unit).height(10).override_by_name(value, properties)
    panel.sort_by([TableSortByFieldState().display_name(value).desc(not lowest_first)])
    panel.with_transformation(models.DataTransformerConfig("organize", options=organize))
    if "instance" in columns:
        panel.override_by_name(columns["instance"], [models.DynamicConfigValue("links", [TO_NODE])])
    return panel.override_by_name("job", [models.DynamicConfigValue("custom.hidden", True)])


def bars(title: str, description: str, expression: str, legend: str) -> BarGauge:
    """Return a bar for each series of the last moment, as long as what it counts."""
    return (
        _panel(BarGauge(), title, description, target(expression, legend).instant(), unit=units.NoUnit)
        .color_scheme(FieldColor().mode(models.FieldColorModeId.FIXED).fixed_color("blue"))
        .min(0)
        .orientation(common.VizOrientation.HORIZONTAL)
        .display_mode(common.BarGaugeDisplayMode.BASIC)
        .reduce_options(LATEST)
    )


def verdicts(title: str, description: str, expression: str, legend: str) -> StateTimeline:
    """Return verdicts over time, a band each."""
    return (
        _panel(StateTimeline(), title, description, target(expression, legend), unit=units.NoUnit)
        .height(10)
        .mappings(WORDS)
        .color_scheme(BY_THRESHOLDS)
        .fill_opacity(80)
        .line_width(0)
        .merge_values(True)
        .show_value(common.VisibilityMode.NEVER)
        .row_height(0.85)
        .legend(VizLegendOptions().display_mode(common.LegendDisplayMode.HIDDEN))
    )


def dashboard(
    uid: str, title: str, description: str, rows: Mapping[str, Panels], *, single: bool = False
) -> models.Dashboard:
    """Return a dashboard of *rows* of panels by their headings; a *single* one shows one node at a time."""
    board = Dashboard(title).uid(uid).description(description).tags(["nodevet"]).readonly().version(1).refresh("1m")
    board.tooltip(models.DashboardCursorSync.CROSSHAIR).time("now-6h", "now").timezone(common.TimeZoneBrowser)
    board.links(_links(uid)).variables(_variables(single=single)).annotations([])
    for heading, panels in rows.items():
        board.with_row(Row(heading))
        for panel in panels:
            board.with_panel(panel)
    made = board.build()
    for place, member in enumerate(made.panels or (), 1):
        member.id_val = place
    return made


def text(made: models.Dashboard) -> str:
    """Return a dashboard as its file holds it."""
    return json.dumps(made, cls=JSONEncoder, indent=1, ensure_ascii=False) + "\n"


def _panel(panel: AnyPanel, title: str, description: str, *targets: Dataquery, unit: str) -> AnyPanel:
    """Return *panel* with what each has: a third of the width unless it is given another."""
    panel.title(title).description(description).datasource(SOURCE).unit(unit).span(8).height(8)
    return panel.targets([query.ref_id(chr(ord("A") + place)) for place, query in enumerate(targets)])


def _fixed(colour: str) -> models.DynamicConfigValue:
    return models.DynamicConfigValue("color", models.FieldColor(models.FieldColorModeId.FIXED, colour))


def _links(uid: str) -> list[Builder[models.DashboardLink]]:
    pages = {"nodevet-fleet": "Fleet", "nodevet-node": "Node", "nodevet-burn-in": "Burn-in"}
    return [
        DashboardLink(title).url(f"/d/{other}").icon("dashboard").include_vars(other != "nodevet-node").keep_time(True)
        for other, title in pages.items()
        if other != uid
    ]


def _variables(*, single: bool) -> list[Builder[models.VariableModel]]:
    job = _labels("job", "Job", "label_values(nodevet_node_info, job)")
    node = _labels("instance", "Node", 'label_values(nodevet_node_info{job=~"$job"}, instance)')
    # All jobs are those that scrape agents: a job of something else is no silent node.
    job.multi(True).include_all(True).current(EVERYTHING)
    if not single:
        # All nodes are whatever those jobs scrape: a list of a thousand would be sent with every query.
        node.multi(True).include_all(True).current(EVERYTHING).all_value(".+")
    return [DatasourceVariable("datasource").label("Data source").type("prometheus"), job, node]


def _labels(name: str, label: str, query: str) -> QueryVariable:
    """Return a variable over the values of a label, asked for anew with each change of the time range."""
    variable = QueryVariable(name).label(label).datasource(SOURCE).query({"query": query, "refId": "variable"})
    variable.sort(models.VariableSort.ALPHABETICAL_CASE_INSENSITIVE_ASC)
    return variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
