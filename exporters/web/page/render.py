"""The status page, rendered once per judgement; only the age of the judgement differs between requests."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

import msgspec

from nodevet.checks.core.errors import BusyError
from nodevet.checks.core.model import Instant, Snapshot
from nodevet.checks.engine.explanation import declared_rules
from nodevet.checks.engine.judging import Rule
from nodevet.exporters.format import age, device_names, duration, moment
from nodevet.exporters.templates import Templates, Verbatim

from .about import Meaning, meanings
from .agent import AgentSection, agent_section
from .burnin import LoadSection, load_section
from .current import CurrentReadings
from .devices import DevicesSection, devices_sections
from .events import EventsSection, events_section
from .findings import FindingsSection, findings_section, listed_findings
from .links import LinkMap, link_maps
from .verdict import Banner, VerdictSection, banners, staleness, tallies, verdict_section

SHORTEST_REFRESH_SECONDS = 5
STARTING_REFRESH_SECONDS = 2

LONGEST_TEXT = 600
"""Maximum number of characters of one text: a device with an endless name must not bloat the page."""

PATIENCE_SECONDS = 2.0
"""Maximum wait (s) of a request while another one renders the page: each waiting request holds a thread.

The first rendering imports and compiles, from a disk that may hang.
"""

_AGE = Verbatim("\0age\0")
"""Placeholder of the age of the judgement; shown texts never contain it."""


class _Variant(msgspec.Struct, frozen=True):
    """Variant of the page of one Snapshot: stale or not, with a report or not, refreshing or not."""

    stale: str
    report: bool
    still: bool


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """All data for the template."""

    variant: _Variant
    node: str
    scope: str
    is_simulated: bool
    judged: str
    age: str
    refresh: str
    generation: int
    version: str
    banners: tuple[Banner, ...]
    verdict: VerdictSection
    tallies: tuple[tuple[str, str, str], ...]
    findings: FindingsSection
    devices: tuple[DevicesSection, ...]
    links: tuple[LinkMap, ...]
    load: LoadSection | None
    events: EventsSection | None
    agent: AgentSection
    meanings: tuple[Meaning, ...]


class StatusPage:
    """Renders a Snapshot once per variant and returns the same text until the next Snapshot."""

    def __init__(self, now: Callable[[], Instant]) -> None:
        """Start with nothing rendered; *now* gives the time by which a verdict becomes stale."""
        self._now = now
        folder = Path(__file__).parent
        self._style = Verbatim((folder / "page.css").read_text(encoding="utf-8"))
        self._templates = Templates(folder, longest_text=LONGEST_TEXT)
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._pages: dict[_Variant, str] = {}

    def render(
        self, snapshot: Snapshot, *, complaint: str | None = None, report: bool = False, still: bool = False
    ) -> bytes:
        """Return the page of *snapshot*. Safe to call from several threads.

        *complaint* is the reason why the agent makes no progress; *report* adds the link to the report; a *still* page
        states that it does not refresh itself. Raises PageError if jinja2 cannot be imported, BusyError if that takes
        too long.
        """
        now = self._now()
        variant = _Variant(staleness(snapshot, now, complaint), report, still)
        if not self._lock.acquire(timeout=PATIENCE_SECONDS):
            raise BusyError(f"the page was not rendered within {PATIENCE_SECONDS:g} s")
        try:
            if snapshot is not self._snapshot:
                self._snapshot = snapshot
                self._pages = {}
            page = self._pages.get(variant)
            if page is None:
                values = _page(snapshot, variant, self._rules)
                page = self._pages[variant] = self._templates.render("page.html", page=values, style=self._style)
        finally:
            self._lock.release()
        return page.replace(_AGE, age(now, snapshot.time)).encode()

    def headers(self, snapshot: Snapshot, *, still: bool = False) -> dict[str, str]:
        """Return the headers of the page: content security policy and refresh interval."""
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


def _page(snapshot: Snapshot, variant: _Variant, rules: Mapping[str, Rule]) -> Page:
    entries, names, now = listed_findings(snapshot), device_names(snapshot), CurrentReadings(snapshot)
    return Page(
        variant=variant,
        node=snapshot.node,
        scope="" if snapshot.scope == "node" else snapshot.scope,
        is_simulated=snapshot.simulated,
        judged=moment(snapshot.time),
        age=_AGE,
        refresh=duration(_refresh_seconds(snapshot)),
        generation=snapshot.generation,
        version=snapshot.agent.version,
        banners=tuple(banners(snapshot, variant.stale)),
        verdict=verdict_section(snapshot, entries, variant.stale),
        tallies=tallies(snapshot, entries),
        findings=findings_section(snapshot, entries, names),
        devices=devices_sections(snapshot, entries, names, now),
        links=link_maps(snapshot, entries, names, now),
        load=load_section(snapshot, names),
        events=events_section(snapshot, names),
        agent=agent_section(snapshot),
        meanings=meanings(entries, rules),
    )


def _refresh_seconds(snapshot: Snapshot) -> int:
    if not snapshot.agent.ready:
        return STARTING_REFRESH_SECONDS
    return max(SHORTEST_REFRESH_SECONDS, round(snapshot.agent.interval_seconds))
