"""The text formats of a metrics page: Prometheus 0.0.4 and OpenMetrics 1.0.

Written here and not by prometheus_client, which does not fit into the time and memory that a scrape may cost;
docs/decisions/0002-metrics-text.md has the figures. Tests read every page back with prometheus_client's parsers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

__all__ = [
    "CONTENT_TYPE_OPENMETRICS",
    "CONTENT_TYPE_TEXT",
    "Family",
    "Value",
    "counter",
    "escape",
    "gauge",
    "labels_text",
    "text",
]

CONTENT_TYPE_TEXT = "text/plain; version=0.0.4; charset=utf-8"
CONTENT_TYPE_OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

PREFIX = "nodevet_"

Value = float | int | bool


class Family(msgspec.Struct):
    """All series of one metric: name without ``_total``, kind ``gauge | counter``, help, value by label text."""

    name: str
    kind: str
    help: str
    samples: dict[str, Value]


def gauge(name: str, description: str, samples: Mapping[str, Value | None]) -> Family:
    """Return a gauge with our prefix; samples that are None were not measured and are left out."""
    return Family(PREFIX + name, "gauge", description, _measured(samples))


def counter(name: str, description: str, samples: Mapping[str, Value | None]) -> Family:
    """Return a counter with our prefix; the page adds ``_total``."""
    return Family(PREFIX + name, "counter", description, _measured(samples))


def _measured(samples: Mapping[str, Value | None]) -> dict[str, Value]:
    return {labels: value for labels, value in samples.items() if value is not None}


def text(found: Iterable[Family], *, openmetrics: bool = False) -> bytes:
    """Return *found* as a page in the text format 0.0.4, or in OpenMetrics 1.0."""
    lines: list[str] = []
    for family in found:
        series = f"{family.name}_total" if family.kind == "counter" else family.name
        described = family.name if openmetrics else series
        lines.append(f"# HELP {described} {_escape_help(family.help, quotes=openmetrics)}")
        lines.append(f"# TYPE {described} {family.kind}")
        lines += [
            f"{series}{labels} {value if type(value) is int else _number(value)}"
            for labels, value in family.samples.items()
        ]
    if openmetrics:
        lines.append("# EOF")
    lines.append("")
    return "\n".join(lines).encode()


def _number(value: Value) -> str:
    if value is True:
        return "1"
    if value is False:
        return "0"
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


@lru_cache(maxsize=1024)  # the same few hundred words stand on every page
def escape(value: str) -> str:
    """Return *value* as it stands between the quotes of a label."""
    if value.isidentifier():
        return value
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escape_help(value: str, *, quotes: bool) -> str:
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace('"', '\\"') if quotes else escaped


@lru_cache(maxsize=4096)  # most series of a page stood on the page before
def labels_text(**labels: str) -> str:
    """Return *labels* as they stand behind a metric's name, in the order given."""
    return "{" + ",".join(f'{name}="{escape(value)}"' for name, value in labels.items()) + "}"
