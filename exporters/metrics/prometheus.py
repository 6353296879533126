"""The metrics page: which series a Snapshot has.

The page is built from one Snapshot each time, so a device that vanished vanishes here too, and a reading that is not
there is a series that is not there: never a zero.

A default page keeps one node small: error counters of links and memory blocks are summed per device. With
``detail`` the same metrics carry one series per link and block, and every exported quantity is on the page.
"""

from __future__ import annotations

import gzip
import threading

from nodevet.checks.core.model import Snapshot

from .exposition import Family, text
from .node import node_metrics
from .quantity import quantity_metrics
from .result import result_metrics
from .scheduler import scheduler_metrics

__all__ = ["MetricsPage", "families"]


def families(snapshot: Snapshot, *, detail: bool = False) -> list[Family]:
    """Return the metrics of *snapshot*, those of the node first; families without series are left out."""
    found = [
        *node_metrics(snapshot, detail=detail),
        *scheduler_metrics(snapshot),
        *quantity_metrics(snapshot, detail=detail),
        *result_metrics(snapshot, detail=detail),
    ]
    return [family for family in found if family.samples]


class MetricsPage:
    """Renders a Snapshot once per format and hands the same bytes out until another Snapshot comes."""

    def __init__(self, *, detail: bool = False) -> None:
        """Start with nothing rendered; *detail* puts every link and every quantity on the page."""
        self._detail = detail
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._pages: dict[tuple[bool, bool], bytes] = {}

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
                page = text(families(snapshot, detail=self._detail), openmetrics=openmetrics)
            self._pages[openmetrics, compressed] = page
        return page
