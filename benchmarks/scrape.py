"""Cost of a scrape in both formats: a healthy DGX H100, simulated.

Beside it in the same run: the same series as gauges of prometheus_client, nvitop-exporter on eight fake GPUs, and
node_exporter on this machine. A peer makes its page anew for each scrape, as ours does for each generation.
"""

from __future__ import annotations

import http.client
import tempfile
from collections.abc import Container, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from harness import Figure, Options, main, timed, timing
from peers import Peer, node_exporter, nvitop_exporter, series_of
from peers import page as page_at

from fakes.nvml.build import build_fake_nvml  # isort: skip - harness makes it importable
from fakes.nvml.scenario import FakeNvml  # isort: skip
from fakes.whole_node import whole_node  # isort: skip - harness makes it importable
from prometheus_client import CollectorRegistry, Gauge, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from nodevet.checks.core.model import Reading, Snapshot
from nodevet.checks.core.quantities import QUANTITIES, QuantityKind
from nodevet.exporters.metrics.prometheus import MetricsPage
from nodevet.exporters.web.http import HttpServer

SERIES_BUDGET = {False: 140 + 8 * 40, True: 1600}
FIRST_BUDGET_MS = {False: 4.0, True: 12.0}
REPEAT_BUDGET_MS = 1.0
PAGE_BUDGET_MS = 20.0
ROUNDS = 300
MOVING = {
    "gauges changed": (QuantityKind.GAUGE,),
    "gauges and counters changed": (QuantityKind.GAUGE, QuantityKind.COUNTER),
}
"""What changes from one generation to the next: on a healthy node all gauges may, and few of the counters."""

FORMATS = {"text": "text/plain", "OpenMetrics": "application/openmetrics-text"}


def measure(options: Options) -> Iterator[Figure]:
    """Yield the figures of both kinds of page."""
    snapshot = whole_node("dgx-h100")
    for detail in (False, True):
        name = "links in detail" if detail else "default"
        page = MetricsPage(detail=detail).render(snapshot).decode()
        yield Figure(what=f"{name}: series", value=series_of(page), unit="series", budget=SERIES_BUDGET[detail])
        for wanted, accept in FORMATS.items():
            yield from _over_http(snapshot, detail, f"{name}, {wanted}", accept, options)
        yield _by_prometheus_client(page, name, options)
    yield from _peers(options)
    yield from _status_page(snapshot, options)


def _peers(options: Options) -> Iterator[Figure]:
    """Yield what a scrape of exporters takes that others use."""
    with tempfile.TemporaryDirectory() as name:
        machine = FakeNvml(Path(name) / "machine", build_fake_nvml(Path(name) / "library"))
        with nvitop_exporter(machine.environment, 10.0) as peer:
            yield from _beside("nvitop-exporter, eight fake GPUs", peer, options)
        with node_exporter() as peer:
            yield from _beside("node_exporter, this machine", peer, options)


def _beside(name: str, peer: Peer | None, options: Options) -> Iterator[Figure]:
    if peer is None:
        return
    where = urlsplit(peer.url)
    assert where.hostname and where.port
    seconds = timed(partial(_get, (where.hostname, where.port)), options.rounds(ROUNDS))
    yield timing(f"beside: {name}", seconds, note=f"{series_of(page_at(peer.url))} series")


def _over_http(snapshot: Snapshot, detail: bool, name: str, accept: str, options: Options) -> Iterator[Figure]:
    """Yield whole requests, connection included: of a new Snapshot each time, then of the same one again."""
    current = [snapshot]
    server = HttpServer("127.0.0.1:0", lambda: current[0], lambda: None, page=MetricsPage(detail=detail))
    server.start()
    try:

        def first(before: Snapshot, after: Snapshot) -> None:
            generation = current[0].generation + 1
            current[0] = msgspec.structs.replace(after if generation % 2 else before, generation=generation)
            _get(server.address, accept=accept)

        again = partial(_get, server.address, accept=accept)
        for what, kinds in MOVING.items():
            seconds = timed(partial(first, snapshot, _moved(snapshot, kinds)), options.rounds(ROUNDS))
            yield timing(f"{name}: first scrape, {what}", seconds, FIRST_BUDGET_MS[detail])
        yield timing(f"{name}: the same again", timed(again, options.rounds(ROUNDS)), REPEAT_BUDGET_MS)
    finally:
        server.stop()


def _moved(snapshot: Snapshot, kinds: Container[QuantityKind]) -> Snapshot:
    """Return *snapshot* with another number in each reading of *kinds*: what is equal is not encoded again."""

    def moved(reading: Reading) -> Reading:
        if not isinstance(reading.value, int | float) or QUANTITIES[reading.quantity].kind not in kinds:
            return reading
        return msgspec.structs.replace(reading, value=reading.value + 1)

    samples = (
        msgspec.structs.replace(sample, readings=tuple(map(moved, sample.readings))) for sample in snapshot.samples
    )
    return msgspec.structs.replace(snapshot, samples=tuple(samples))


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


def _get(address: tuple[str, int], path: str = "/metrics", accept: str = "*/*") -> bytes:
    connection = http.client.HTTPConnection(*address, timeout=5)
    connection.request("GET", path, headers={"Accept": accept})
    page = connection.getresponse().read()
    connection.close()
    return page


if __name__ == "__main__":
    main("scrape", lambda options: list(measure(options)))
