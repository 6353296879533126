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

`GET /metrics` on the agent's address (127.0.0.1:10917 unless `--listen` says otherwise) gives Prometheus text 0.0.4, or
OpenMetrics 1.0 to a scraper that accepts it, gzipped where that is accepted. Units are base units. Every page shows one
judgement; it is rendered once and served again until the next. How to scrape it, which alerts there are and where the
names of other exporters went is told under [Prometheus](../how-to/prometheus.md).

- A reading that is unsupported, denied, failed, or older than three rounds and three minutes has **no series**, never a
  zero. `nodevet_readings` counts readings by how they went. A device that vanished has no readings.
- Verdicts and other states are one series per state with the value 0 or 1; exactly one is 1.
- `device` is the UUID, else a stable name; join `nodevet_device_info` for model, PCI address, serial and driver.
- A default page has at most 460 series for eight accelerators. On `/metrics?detail=yes` (at most 1,600) the metrics
  marked *summed* carry one series per link or memory block, and those marked *detail* appear. Sums over a device are
  the same on both.
- A sum of which a part could not be read is left out: it would be too small.
- No metric carries a process id, a job, a user or a message. Times are seconds since 1970, not ages.
"""

RESULTS = """\
A workload whose last run did not finish has no figures: their series end, and `nodevet_burnin_passed` is 0.
With several devices `device` is `node`.
"""

QUANTITY_TAIL = """\
Of these a default page shows the clocks `sm` and `core`, the power scope `device`, the engine `compute`, and only the
throttle reasons that hold a clock down against its wish.
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
    lines += ["## Quantities", "", "Which of them a machine has depends on its hardware and driver.", ""]
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
