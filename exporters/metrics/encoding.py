"""Encodes families as a page with prometheus_client: the text format 0.0.4 and OpenMetrics 1.0.

Each page has a collector of its own. There is no registry; the global one, with metrics of the interpreter and the
process, is never exported. This module makes the checks that prometheus_client lacks: it drops a label without a value,
exports None as a sample without a value, and raises for a whole page if one label has a lone surrogate. The first
scrape loads this module; docs/decisions/0034-prometheus-client-encodes.md states the cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest as in_text
from prometheus_client.openmetrics.exposition import generate_latest as in_openmetrics

from nodevet.checks.core.errors import ModelError
from nodevet.checks.core.guard import Guard

from .family import Family, kept

END = b"# EOF\n"
"""The last line of a page in OpenMetrics."""


def encoded(found: Iterable[Family], guard: Guard | None = None, *, openmetrics: bool = False) -> bytes:
    """Return *found* as a page; a family that raises is left out and reported to *guard*; without a guard it raises.

    Names are escaped by the default of the library, ``underscores``; our names need no escaping.
    """
    encode = in_openmetrics if openmetrics else in_text
    return encode(_Families(found, guard))


class PageEncoder:
    """Encodes the pages of one format, one after another. What it remembers costs as much memory as one page."""

    def __init__(self, *, openmetrics: bool) -> None:
        """Start with nothing remembered."""
        self._openmetrics = openmetrics
        self._texts: dict[str, tuple[Family, bytes]] = {}

    def page(self, found: Iterable[Family], guard: Guard | None = None) -> bytes:
        """Return the page that ``encoded`` returns; a family that equals that of the page before is not encoded again.

        Most families of a healthy node do not change between two scrapes.
        """
        before, self._texts = self._texts, {}
        texts: list[bytes] = []
        for family in found:
            known = before.get(family.name)
            # The order counts, too: series that trade places are equal as a dictionary.
            if known is None or known[0] != family or list(known[0].samples) != list(family.samples):
                known = family, encoded((family,), guard, openmetrics=self._openmetrics).removesuffix(END)
            if known[1]:
                self._texts[family.name] = known
            texts.append(known[1])
        return b"".join((*texts, END)) if self._openmetrics else b"".join(texts)


class _Families:
    """The collector of prometheus_client for one page."""

    def __init__(self, found: Iterable[Family], guard: Guard | None) -> None:
        self._found = found
        self._guard = guard

    def collect(self) -> Iterator[Metric]:
        for family in self._found:
            made = kept(self._guard, f"metric {family.name}", partial(metric, family), None)
            if made is not None:
                yield made


def metric(family: Family) -> Metric:
    """Return *family* for prometheus_client. Raises ModelError, TypeError or OverflowError: no series is guessed.

    Neither ``unit=`` nor ``created=`` is passed: the former changes the name, the latter adds a series per counter.
    """
    of_kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    made = of_kind(family.name, family.help, labels=family.labels)
    for labels, value in family.samples.items():
        if len(labels) != len(family.labels):
            raise ModelError(f"{family.name} has the labels {family.labels} and was given {labels}: name each")
        made.add_metric([label if label.isascii() else _encodable(label) for label in labels], float(value))
    return made


def _encodable(label: str) -> str:
    """Return *label* with lone surrogates as escapes, so that different labels stay different."""
    return label.encode("utf-8", "backslashreplace").decode()
