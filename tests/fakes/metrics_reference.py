"""The reference page of the metrics, made from what the exporter gives for nodes that show everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fakes.snapshots import acknowledged_node, cpu_node, eventful_node, failed_node, gpu_node, unknown_node

from nodevet.checks.core.model import PartKind, Snapshot
from nodevet.checks.core.quantities import QUANTITIES, QuantityKind
from nodevet.exporters.metrics.family import PREFIX, Family, Maker
from nodevet.exporters.metrics.node import node_makers
from nodevet.exporters.metrics.prometheus import families
from nodevet.exporters.metrics.quantity import PART_LABELS, summed_by_default
from nodevet.exporters.metrics.result import result_metrics
from nodevet.exporters.metrics.scheduler import scheduler_metrics

__all__ = ["metrics_page"]

NODES = (acknowledged_node, eventful_node, failed_node, gpu_node, cpu_node, unknown_node)
LIMIT = f"{PREFIX}limit_"

HEAD = """\
# Metrics

<!-- Written by make golden from exporters and checks/core/quantities.csv. -->

`GET /metrics` on the agent's address (127.0.0.1:10917 unless `--listen` sets another one) returns the Prometheus text
format 0.0.4, or OpenMetrics 1.0 if the scraper accepts it, with gzip if the scraper accepts it. All units are base
units. A page shows one judgement of the agent, and stays the same until the next judgement.
[Prometheus](../how-to/prometheus.md) describes the scrape job and the alerts, and lists the metrics that replace those
of dcgm-exporter.

- A reading has **no series**, never a zero, if it is unsupported, denied or failed, or if it is older than three rounds
  (at least three minutes). `nodevet_readings` counts the readings by status. A device that is no longer listed has no
  readings.
- A verdict, like any other state, has one series per state, with the value 0 or 1. Exactly one of them is 1.
- The label `device` is the UUID, or another stable name if there is none. Join `nodevet_device_info` for model, PCI
  address, serial and driver.
- A default page has at most 460 series for eight accelerators. `/metrics?detail=yes` has at most 1,600: it adds the
  metrics that are marked *detail*, and the metrics that are marked *summed* have one series per link or memory block.
  Sums over a device are the same on both pages.
- If a part of a sum could not be read, the sum has no series, because it would be too small.
- No metric contains a process id, a job or a message. An acknowledgement shows its user and its note.
  Times are seconds since 1970, not ages.
"""

RESULTS = """\
If the last run of a workload did not finish, its figures have no series, and `nodevet_burnin_passed` is 0. For a
workload on several devices, the label `device` is `node`.
"""

QUANTITY_TAIL = """\
Of these quantities, a default page shows the clocks `sm` and `core`, the power scope `device`, the engine `compute`,
and the throttle reasons of power, temperature and hardware slowdown.
"""


def metrics_page(_repository: Path) -> str:
    """Every metric with its kind, labels and meaning."""
    node = _merged(lambda build, detail: _made(node_makers(build(), detail=detail)))
    scheduler = _merged(lambda build, _: scheduler_metrics(build()))
    results = _merged(lambda build, detail: result_metrics(build(), detail=detail))
    plain = {family.name for build in NODES for family in families(build(), detail=False)}
    lines = [HEAD, "## The node, its findings and the agent", "", *_table(_rows(node, plain)), ""]
    lines += ["## The writer to SLURM", "", *_table(_rows(scheduler, plain)), ""]
    lines += ["## The last burn-in", "", *_table(_rows(results, plain)), "", RESULTS]
    lines += ["## Quantities", "", "The quantities of a node depend on its hardware and driver.", ""]
    lines += [*_table([*_link_rows(), *_quantity_rows()]), "", QUANTITY_TAIL]
    return "\n".join(lines).rstrip() + "\n"


def _merged(make: Callable[[Callable[[], Snapshot], bool], Iterable[Family]]) -> dict[str, Family]:
    """Return every family that any of the nodes has, with the samples of the first that has some."""
    found: dict[str, Family] = {}
    for build in NODES:
        for family in make(build, True):
            if family.name not in found or not found[family.name].samples:
                found[family.name] = family
    return {name: family for name, family in found.items() if family.samples or name.startswith(LIMIT)}


def _made(makers: Iterable[Maker]) -> Iterator[Family]:
    for _, make in makers:
        yield from make()


def _rows(found: dict[str, Family], plain: set[str]) -> Iterator[str]:
    units = [f"`{name.removeprefix(LIMIT)}`" for name in found if name.startswith(LIMIT)]
    for name, family in found.items():
        if not name.startswith(LIMIT):
            yield _row(name, family.kind, family.labels, family.help + ("" if name in plain else " *detail*"))
        elif units:
            shown = next(entry for key, entry in found.items() if key.startswith(LIMIT) and entry.samples)
            where = f"{family.help} Per model the strictest; `<unit>` is {', '.join(units[:-1])} or {units[-1]}."
            where += " All but celsius and watts *detail*."
            yield _row(f"{LIMIT}<unit>", family.kind, shown.labels, where)
            units = []


def _link_rows() -> Iterator[str]:
    for family in families(gpu_node()):
        if family.name in (f"{PREFIX}readings", f"{PREFIX}links", f"{PREFIX}links_up"):
            yield _row(family.name, family.kind, family.labels, family.help)


def _quantity_rows() -> Iterator[str]:
    for key, quantity in QUANTITIES.items():
        if not quantity.exported or quantity.kind is QuantityKind.TEXT:
            continue
        is_alone = quantity.part in (PartKind.DEVICE, PartKind.PCIE)
        second = None if is_alone else PART_LABELS[quantity.part]
        second = "state" if quantity.kind is QuantityKind.STATE else second
        labels = ["device", *([second] if second else [])]
        mark = "" if quantity.shown else " *detail*"
        mark = " *summed*" if not mark and summed_by_default(quantity) else mark
        kind = "counter" if quantity.kind is QuantityKind.COUNTER else "gauge"
        yield _row(f"{PREFIX}{key}", kind, labels, quantity.help + mark)


def _row(name: str, kind: str, labels: Iterable[str], meaning: str) -> str:
    series = f"{name}_total" if kind == "counter" else name
    return f"| `{series}` | {kind} | {', '.join(f'`{label}`' for label in labels) or 'none'} | {meaning} |"


def _table(rows: Iterable[str]) -> list[str]:
    return ["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows]
