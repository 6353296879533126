"""The metrics page: the series of a Snapshot, encoded by prometheus_client.

Each page is built from one Snapshot: a device that vanished has no series, and a missing reading has no series instead
of a zero.

A default page keeps one node small: error counters of links and memory blocks are summed per device. With ``detail``
the same metrics have one series per link and block, and every exported quantity is on the page.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import TYPE_CHECKING

from nodevet.checks.core.guard import Guard
from nodevet.checks.core.later import SELDOM, called_later, loaded_later
from nodevet.checks.core.model import Snapshot

from .family import Family, Maker, kept
from .node import node_makers
from .quantity import quantity_makers
from .result import result_metrics
from .scheduler import scheduler_metrics

if TYPE_CHECKING:
    from .encoding import PageEncoder

CONTENT_TYPE_TEXT = "text/plain; version=0.0.4; charset=utf-8"
CONTENT_TYPE_OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""Content types of the page, for any version or escaping that a scraper requests: the names need no escaping."""


_EXPOSITION = "prometheus_client.exposition"
_KNOWN = {
    (_EXPOSITION, "ssl.SSLContext"): object,
    (_EXPOSITION, "ssl.TLSVersion"): object,
    (_EXPOSITION, "ssl.PROTOCOL_TLS_CLIENT"): 16,
    (_EXPOSITION, "ssl.PROTOCOL_TLS_SERVER"): 17,
    ("prometheus_client.context_managers", "prometheus_client.decorator.decorate"): called_later(
        "prometheus_client.decorator", "decorate"
    ),
}
"""What prometheus_client asks for while it is imported: annotations, default values, and a function for its timers.

The numbers are those of Python's _ssl.c. They save the import of ssl and inspect, which takes 5 MiB.
"""


def families(snapshot: Snapshot, *, detail: bool = False, guard: Guard | None = None) -> list[Family]:
    """Return the metrics of *snapshot*, those of the node first; families without series are left out.

    If a maker raises, only its own families are lost, and *guard* reports it; without a guard it raises.
    """
    readings: list[Maker] = []
    kept(guard, "metrics: readings", lambda: readings.extend(quantity_makers(snapshot, detail=detail)), None)
    makers: tuple[Maker, ...] = (
        *node_makers(snapshot, detail=detail),
        ("metrics: scheduler", partial(scheduler_metrics, snapshot)),
        *readings,
        ("metrics: burn-in", partial(result_metrics, snapshot, detail=detail)),
    )
    found: list[Family] = []
    for name, make in makers:
        kept(guard, name, partial(_append, found, make), None)
    return found


class MetricsPage:
    """Renders a Snapshot once per format and returns the same bytes until the next Snapshot."""

    def __init__(self, *, detail: bool = False, guard: Guard | None = None) -> None:
        """Start without a rendered page; *detail* puts every link and every quantity on the page.

        *guard* reports families that raise and are left out; without a guard the page raises.
        """
        self._detail = detail
        self._guard = guard
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._pages: dict[tuple[bool, bool], bytes] = {}
        self._encoders: dict[bool, PageEncoder] = {}

    def render(self, snapshot: Snapshot, openmetrics: bool = False, *, compressed: bool = False) -> bytes:
        """Return the page of *snapshot*, gzipped when *compressed*. Safe to call from several threads."""
        with self._lock:
            if snapshot is not self._snapshot:
                self._snapshot = snapshot
                self._pages = {}
            return self._page(snapshot, openmetrics, compressed)

    def _page(self, snapshot: Snapshot, openmetrics: bool, compressed: bool) -> bytes:
        page = self._pages.get((openmetrics, compressed))
        if page is None:
            if compressed:
                page = gzip.compress(self._page(snapshot, openmetrics, False), compresslevel=1, mtime=0)
            else:
                found = families(snapshot, detail=self._detail, guard=self._guard)
                encoder = self._encoders.setdefault(openmetrics, _page_encoder()(openmetrics=openmetrics))
                page = encoder.page(found, self._guard)
            self._pages[openmetrics, compressed] = page
        return page


@cache
def _page_encoder() -> type[PageEncoder]:
    with loaded_later(*SELDOM, "prometheus_client.decorator", known=_KNOWN):
        from .encoding import PageEncoder
    return PageEncoder


def _append(found: list[Family], make: Callable[[], Iterable[Family]]) -> None:
    """Add each family of *make* that has series; those before an exception stay."""
    found.extend(family for family in make() if family.samples)
