"""Cost of a scrape: a healthy DGX H100, simulated, beside the same series by prometheus_client alone."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from functools import partial

import msgspec
from harness import Figure, Options, main, timed, timing

from fakes.whole_node import whole_node  # isort: skip - harness makes it importable
from prometheus_client import CollectorRegistry, Gauge, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from nodevet.checks.core.model import Snapshot
from nodevet.exporters.metrics.prometheus import MetricsPage
from nodevet.exporters.web.http import HttpServer

SERIES_BUDGET = {False: 140 + 8 * 40, True: 1600}
FIRST_BUDGET_MS = {False: 4.0, True: 12.0}
REPEAT_BUDGET_MS = 1.0
PAGE_BUDGET_MS = 20.0
ROUNDS = 300


def measure(options: Options) -> Iterator[Figure]:
    """Yield the figures of both kinds of page."""
    snapshot = whole_node("dgx-h100")
    for detail in (False, True):
        name = "links in detail" if detail else "default"
        page = MetricsPage(detail=detail).render(snapshot).decode()
        series = sum(not line.startswith("#") for line in page.splitlines())
        yield Figure(what=f"{name}: series", value=series, unit="series", budget=SERIES_BUDGET[detail])
        yield from _over_http(snapshot, detail, name, options)
        yield _by_prometheus_client(page, name, options)
    yield from _status_page(snapshot, options)


def _over_http(snapshot: Snapshot, detail: bool, name: str, options: Options) -> Iterator[Figure]:
    """Yield whole requests, connection included: of a new Snapshot each time, then of the same one again."""
    current = [snapshot]
    server = HttpServer("127.0.0.1:0", lambda: current[0], lambda: None, page=MetricsPage(detail=detail))
    server.start()
    try:

        def first() -> None:
            current[0] = msgspec.structs.replace(snapshot, generation=current[0].generation + 1)
            _get(server.address)

        again = partial(_get, server.address)
        seconds = timed(first, options.rounds(ROUNDS))
        yield timing(f"{name}: first scrape of a generation", seconds, FIRST_BUDGET_MS[detail])
        yield timing(f"{name}: the same again", timed(again, options.rounds(ROUNDS)), REPEAT_BUDGET_MS)
    finally:
        server.stop()


def _by_prometheus_client(page: str, name: str, options: Options) -> Figure:
    """Return what its own server takes for gauges with the names, labels and values of *page*."""
    registry = CollectorRegistry()
    for metric in text_string_to_metric_families(page):
        names = list(metric.samples[0].labels)
        gauge = Gauge(metric.name, metric.documentation, names, registry=registry)
        for sample in metric.samples:
            (gauge.labels(**sample.labels) if names else gauge).set(sample.value)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        seconds = timed(partial(_get, ("127.0.0.1", server.server_port)), options.rounds(ROUNDS))
        return timing(f"{name}: beside, gauges of prometheus_client", seconds)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _status_page(snapshot: Snapshot, options: Options) -> Iterator[Figure]:
    """Yield what a person's browser costs: the page of a new Snapshot each time, then of the same one again."""
    current = [snapshot]
    server = HttpServer("127.0.0.1:0", lambda: current[0], lambda: None, now=lambda: snapshot.time)
    server.start()
    try:

        def first() -> None:
            current[0] = msgspec.structs.replace(snapshot, generation=current[0].generation + 1)
            _get(server.address, "/")

        size = len(_get(server.address, "/"))
        yield Figure(what="status page: size", value=size / 1024, unit="KiB")
        seconds = timed(first, options.rounds(ROUNDS))
        yield timing("status page: first of a generation", seconds, PAGE_BUDGET_MS)
        again = timed(partial(_get, server.address, "/"), options.rounds(ROUNDS))
        yield timing("status page: the same again", again, REPEAT_BUDGET_MS)
    finally:
        server.stop()


def _get(address: tuple[str, int], path: str = "/metrics") -> bytes:
    connection = http.client.HTTPConnection(*address, timeout=5)
    connection.request("GET", path)
    page = connection.getresponse().read()
    connection.close()
    return page


if __name__ == "__main__":
    main("scrape", lambda options: list(measure(options)))
