"""Cost of a scrape: the page of a healthy node with eight accelerators, beside the same page by prometheus_client.

Prints medians and 95th percentiles in milliseconds. Run: python benchmarks/scrape.py
"""

from __future__ import annotations

import http.client
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import msgspec
from fakes.snapshots import gpu_node
from prometheus_client import CollectorRegistry, Gauge, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from nodevet.checks.model import Snapshot
from nodevet.exporters.exposition import text
from nodevet.exporters.http import HttpServer
from nodevet.exporters.prometheus import MetricsPage, families

ROUNDS = 300


def main() -> None:
    """Measure and print."""
    snapshot = gpu_node()
    for detail in (False, True):
        page = text(families(snapshot, detail=detail)).decode()
        series = sum(not line.startswith("#") for line in page.splitlines())
        registry, plain = _prometheus_client_twins(page)
        say(f"{'with links in detail' if detail else 'default'}: {series} series, {len(page)} bytes")
        report("nodevet: page from a Snapshot", timed(partial(_page, snapshot, detail)))
        report("prometheus_client: write families that are ready", timed(partial(generate_latest, registry)))
        report("prometheus_client: write its own gauges", timed(partial(generate_latest, plain)))
        _over_http(snapshot, detail=detail)


def _page(snapshot: Snapshot, detail: bool) -> bytes:
    return text(families(snapshot, detail=detail))


def _over_http(snapshot: Snapshot, *, detail: bool) -> None:
    """Time whole requests, connection included: a new Snapshot each time, then the same one again."""
    current = [snapshot]
    server = HttpServer("127.0.0.1:0", lambda: current[0], lambda: None, page=MetricsPage(detail=detail))
    server.start()
    try:

        def first() -> None:
            current[0] = msgspec.structs.replace(snapshot, generation=current[0].generation + 1)
            _get(server.address)

        report("nodevet over HTTP: first scrape of a generation", timed(first))
        report("nodevet over HTTP: repeated scrape", timed(lambda: _get(server.address)))
    finally:
        server.stop()


def _get(address: tuple[str, int]) -> None:
    connection = http.client.HTTPConnection(*address, timeout=5)
    connection.request("GET", "/metrics")
    connection.getresponse().read()
    connection.close()


class _Ready:
    """A collector whose families were made before: the cost of prometheus_client's writer alone."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def collect(self) -> Iterable[Metric]:
        return self._found


def _prometheus_client_twins(page: str) -> tuple[CollectorRegistry, CollectorRegistry]:
    """Return registries that show what *page* shows: one of ready families, one of ordinary gauges."""
    found = list(text_string_to_metric_families(page))
    ready, plain = CollectorRegistry(auto_describe=False), CollectorRegistry()
    ready.register(_Ready(found))
    for metric in found:
        names = list(metric.samples[0].labels)
        gauge = Gauge(metric.name, metric.documentation, names, registry=plain)
        for sample in metric.samples:
            (gauge.labels(**sample.labels) if names else gauge).set(sample.value)
    return ready, plain


def timed(act: Callable[[], object]) -> list[float]:
    """Return the seconds that *act* took in each of ROUNDS rounds, after warming up."""
    for _ in range(20):
        act()
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - start)
    return seconds


def report(what: str, seconds: list[float]) -> None:
    """Print median and 95th percentile of *seconds*."""
    median, high = statistics.median(seconds) * 1e3, statistics.quantiles(seconds, n=20)[-1] * 1e3
    say(f"  {what:<52} median {median:6.2f} ms, p95 {high:6.2f} ms")


def say(line: str) -> None:
    """Print *line*."""
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
