"""The whole page, made once per judgement; only how old the judgement is differs from one request to the next."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

import msgspec

from nodevet.checks.core.model import Instant, Snapshot
from nodevet.checks.engine.explanation import declared_rules
from nodevet.checks.engine.judging import Rule
from nodevet.exporters.format import age, device_names, duration, moment

from .about import about_section
from .agent import agent_section
from .burnin import burn_in_section
from .current import Present
from .devices import devices_sections
from .events import events_section
from .findings import findings_section, told
from .links import links_section
from .markup import Html, element, joined
from .shapes import FAVICONS, SHAPES
from .verdict import banners, hero, staleness, tallies

__all__ = ["StatusPage"]

SHORTEST_REFRESH_SECONDS = 5
STARTING_REFRESH_SECONDS = 2

_AGE = Html("\0age\0")
"""Where the age of the judgement stands; escaped text never holds the sign."""


class _Variant(msgspec.Struct, frozen=True):
    """What a page of one Snapshot may differ in: whether it is stale, has a report, and refreshes itself."""

    stale: str
    report: bool
    still: bool


class StatusPage:
    """Renders a Snapshot once per variant and hands the same text out until another Snapshot comes."""

    def __init__(self, now: Callable[[], Instant]) -> None:
        """Start with nothing rendered; *now* tells the time by which a judgement grows old."""
        self._now = now
        self._style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._pages: dict[_Variant, str] = {}

    def render(
        self, snapshot: Snapshot, *, complaint: str | None = None, report: bool = False, still: bool = False
    ) -> bytes:
        """Return the page of *snapshot*. Safe to call from several threads.

        *complaint* says why the agent makes no progress; *report* adds the link to it; a *still* page says that it
        does not refresh itself.
        """
        now = self._now()
        variant = _Variant(staleness(snapshot, now, complaint), report, still)
        with self._lock:
            if snapshot is not self._snapshot:
                self._snapshot = snapshot
                self._pages = {}
            page = self._pages.get(variant)
            if page is None:
                page = self._pages[variant] = self._whole(snapshot, variant)
        return page.replace(_AGE, age(now, snapshot.time)).encode()

    def headers(self, snapshot: Snapshot, *, still: bool = False) -> dict[str, str]:
        """Return the headers of the page: what it may load, which is its own style, and when it is asked for again."""
        policy = (
            f"default-src 'none'; style-src '{self._style_digest}'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"}
        return headers if still else {**headers, "Refresh": str(_refresh_seconds(snapshot))}

    @cached_property
    def _style_digest(self) -> str:
        return f"sha256-{base64.b64encode(hashlib.sha256(self._style.encode()).digest()).decode()}"

    @cached_property
    def _rules(self) -> Mapping[str, Rule]:
        return declared_rules()

    def _whole(self, snapshot: Snapshot, variant: _Variant) -> str:
        entries, names, now = told(snapshot), device_names(snapshot), Present(snapshot)
        freshness = joined(["judged ", element("time", moment(snapshot.time)), " (", _AGE, ")"])
        state = "unknown" if variant.stale else snapshot.verdict.state.value
        main = element(
            "main",
            *banners(snapshot, variant.stale),
            _heading(snapshot),
            hero(snapshot, entries, variant.stale, freshness),
            tallies(snapshot, entries),
            findings_section(snapshot, entries, names),
            *devices_sections(snapshot, entries, names, now),
            links_section(snapshot, entries, names, now),
            burn_in_section(snapshot, names, report=variant.report),
            events_section(snapshot, names),
            agent_section(snapshot),
            about_section(entries, self._rules),
            _footer(snapshot, variant),
            class_="history" if variant.stale else None,
        )
        title = f"{snapshot.node}: {state}{' (simulated)' if snapshot.simulated else ''}"
        head = element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("link", rel="icon", href=FAVICONS[state]),
            element("title", title),
            element("style", Html(self._style)),
        )
        return f"<!DOCTYPE html>\n{element('html', head, element('body', SHAPES, main), lang='en')}\n"


def _refresh_seconds(snapshot: Snapshot) -> int:
    if not snapshot.agent.ready:
        return STARTING_REFRESH_SECONDS
    return max(SHORTEST_REFRESH_SECONDS, round(snapshot.agent.interval_seconds))


def _heading(snapshot: Snapshot) -> Html:
    scope = "" if snapshot.scope == "node" else f"scope: {snapshot.scope}"
    return element(
        "header",
        element("p", "nodevet", class_="brand"),
        element("h1", snapshot.node),
        element("p", scope, class_="soft") if scope else None,
    )


def _footer(snapshot: Snapshot, variant: _Variant) -> Html:
    if variant.still:
        refresh = joined(["This page does not refresh itself. ", element("a", "Refresh it", href="/")])
    else:
        seconds = duration(_refresh_seconds(snapshot))
        refresh = joined(
            [f"This page refreshes itself every {seconds}. ", element("a", "Hold it", href="/?refresh=off")]
        )
    pages = [("/report", "report")] if variant.report else []
    pages += [
        ("/metrics", "metrics"),
        ("/api/v1/status", "status as JSON"),
        ("/-/healthy", "healthy"),
        ("/-/ready", "ready"),
    ]
    links = element("ul", *(element("li", element("a", text, href=path)) for path, text in pages))
    said = f"generation {snapshot.generation}, nodevet {snapshot.agent.version}"
    return element("footer", element("nav", links, aria_label="Other pages"), element("p", refresh), element("p", said))
