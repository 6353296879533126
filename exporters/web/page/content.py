"""The data of the status page, for its template."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from nodevet.checks.core.model import Instant, Snapshot
from nodevet.checks.engine.judging import Rule
from nodevet.exporters.format import device_names, duration, moment
from nodevet.exporters.templates import Verbatim

from .about import Meaning, meanings
from .agent import AgentSection, agent_section
from .burnin import LoadSection, load_section
from .current import CurrentReadings
from .devices import DevicesSection, devices_sections
from .events import EventsSection, events_section
from .findings import FindingsSection, findings_section, listed_findings
from .links import LinkMap, link_maps
from .verdict import Banner, VerdictSection, banners, staleness, tallies, verdict_section

AGE = Verbatim("\0age\0")
"""Placeholder of the age of the judgement; shown texts never contain it."""


class Variant(msgspec.Struct, frozen=True):
    """Variant of the page of one Snapshot: stale or not, with a report or not, refreshing or not."""

    stale: str
    report: bool
    still: bool


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """All data for the template."""

    variant: Variant
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


def variant_of(snapshot: Snapshot, now: Instant, complaint: str | None, *, report: bool, still: bool) -> Variant:
    """Return the variant of the page of *snapshot*; *complaint* is the reason why the agent makes no progress."""
    return Variant(staleness(snapshot, now, complaint), report, still)


def page_of(snapshot: Snapshot, variant: Variant, rules: Mapping[str, Rule], *, refresh: int) -> Page:
    """Return the page of *snapshot*, on which codes are explained by *rules*."""
    entries, names, now = listed_findings(snapshot), device_names(snapshot), CurrentReadings(snapshot)
    return Page(
        variant=variant,
        node=snapshot.node,
        scope="" if snapshot.scope == "node" else snapshot.scope,
        is_simulated=snapshot.simulated,
        judged=moment(snapshot.time),
        age=AGE,
        refresh=duration(refresh),
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
