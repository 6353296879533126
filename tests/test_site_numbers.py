"""Numbers that a site configures: a wrong one is pushed to every node at once, so by itself it closes no gate."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import pytest
from fakes.views import GPU, SIBLING, at, bare_board, healthy, judge, link, of, reader

from nodevet.checks.core.model import NODE, WHOLE, FaultClass, Finding, Key, Outcome, ReaderState, Reading
from nodevet.checks.core.parts import Part, PartKind
from nodevet.checks.engine.registry import Check, discover
from nodevet.checks.engine.view import Growth, KnownDevices, View

CHECKS = discover()
LEVELS = (None, 0, 1, 2, 3, 100, 1e6)
"""What every number of the node reads at a time; None leaves the healthy one."""


def settings(declared: Check) -> Iterator[dict[str, object]]:
    """Yield policies of *declared* with one number at either end of its range, alone and with one look confirmed."""
    schema = msgspec.json.schema(declared.policy)["$defs"][declared.policy.__name__]["properties"]
    one_look: dict[str, object] = {"needed": 1, "window": 1} if {"needed", "window"} <= set(schema) else {}
    yield one_look
    for name, field in schema.items():
        for kind in field.get("anyOf", [field]):
            if kind.get("type") in ("integer", "number"):
                as_type = int if kind["type"] == "integer" else float
                ends = [kind.get("minimum", 0), kind.get("maximum", 10**6), 1, 2, 3]
                for end in ends:
                    if kind.get("minimum", end) <= end <= kind.get("maximum", end):
                        yield {**one_look, name: as_type(end)}


def at_level(view: View, level: float | None) -> View:
    """Return *view* with every number at *level*, and every counter grown by so much."""
    if level is None:
        return view

    def levelled(reading: Reading) -> Reading:
        value = reading.value
        if value is None or isinstance(value, str):
            return reading
        return msgspec.structs.replace(reading, value=bool(level) if isinstance(value, bool) else level)

    samples = {
        key: msgspec.structs.replace(sample, readings=tuple(map(levelled, sample.readings)))
        for key, sample in view.samples.items()
    }
    growth = {
        (device, reading.quantity, reading.part): Growth(level, 10.0, sample.time)
        for (device, _), sample in samples.items()
        for reading in sample.readings
    }
    return msgspec.structs.replace(view, samples=samples, growth=growth)


EVERY_LINK = Part(PartKind.LINK)


def without_memory(view: View) -> View:
    """Return *view* of a node that remembers nothing: no link was ever up, no device was ever seen."""
    return msgspec.structs.replace(view, memory=KnownDevices())


def hard(declared: Check, view: View, **policy: object) -> set[Key]:
    """Return what *declared* finds that would close a gate."""
    findings: list[Finding] = list(declared.judge(view, msgspec.convert(policy, declared.policy)))
    return {finding.key for finding in findings if finding.hard and finding.outcome is Outcome.FAIL}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("declared", CHECKS, ids=lambda declared: declared.name)
def test_no_number_of_the_site_closes_a_gate(declared: Check, level: float | None) -> None:
    """Whatever is set, and however few looks are wanted, nothing is hard that is not hard by the shipped settings."""
    for view in (at_level(healthy(), level), without_memory(at_level(healthy(), level))):
        shipped = hard(declared, view)
        for policy in settings(declared):
            assert hard(declared, view, **policy) <= shipped, policy


def test_the_numbers_of_the_site_are_those_that_are_documented() -> None:
    """The test above is of every number that can be set: checks without any are the ones known to have none."""
    without = {declared.name for declared in CHECKS if not [policy for policy in settings(declared) if policy]}
    assert without == {"burn-in", "kernel-log"}


def test_a_wrong_count_fails_and_closes_nothing() -> None:
    """It is a mistake of the configuration until something else says that a device is gone."""
    findings = judge("inventory", healthy(), expected_accelerators=8)
    finding = of(findings, "inventory.count", NODE)
    assert (finding.outcome, finding.hard, finding.fault_class) == (Outcome.FAIL, False, FaultClass.CONFIGURATION)
    assert re.search(r"2 accelerators, 8 expected.*correct expected_accelerators", finding.message)
    assert [entry for entry in findings if entry.hard and entry.outcome is Outcome.FAIL] == []


def test_evidence_beyond_the_number_closes() -> None:
    """A device that was seen and is gone, and a board without its driver, are hard with or without a number."""
    view = healthy()
    gone = msgspec.structs.replace(view, devices=tuple(entry for entry in view.devices if entry.id != GPU))
    board = bare_board("0000:3b:00.0")
    absent = (reader("host"), reader("nvidia", ReaderState.RUNNING, last_round=at()))
    undriven = msgspec.structs.replace(view, devices=(*view.devices, board), readers=absent)
    for changed, code, device in ((gone, "device.missing", GPU), (undriven, "driver.missing", NODE)):
        for expected in (None, 2, 3, 8):
            finding = of(judge("inventory", changed, expected_accelerators=expected), code, device)
            assert (finding.outcome, finding.hard) == (Outcome.FAIL, True)


def test_links_that_only_a_number_wants_close_nothing() -> None:
    """A board without a bridge has its links down; a link that was up, or whose sibling's is, is a fault by itself."""
    lone = healthy({("link_active", link(port)): False for port in range(18)})
    lone = msgspec.structs.replace(lone, devices=tuple(entry for entry in lone.devices if entry.id != SIBLING))
    found = of(judge("links", without_memory(lone), expected=18), "link.all_down", GPU, EVERY_LINK)
    assert (found.outcome, found.hard) == (Outcome.FAIL, False)
    assert found.limit is not None
    assert found.limit.source == "configuration"
    half = healthy({("link_active", link(port)): False for port in range(9, 18)})
    half = msgspec.structs.replace(half, devices=lone.devices)
    found = of(judge("links", without_memory(half), expected=18), "link.down", GPU, link(17))
    assert (found.outcome, found.hard) == (Outcome.FAIL, False)
    one_down = healthy({("link_active", link(3)): False})
    one_down = msgspec.structs.replace(one_down, devices=lone.devices)
    found = of(judge("links", without_memory(one_down), expected=18), "link.down", GPU, link(3))
    assert (found.outcome, found.hard) == (Outcome.FAIL, False)
    seen = msgspec.structs.replace(lone.memory.seen[GPU], links_up=tuple(range(18)))
    remembered = msgspec.structs.replace(lone, memory=KnownDevices({**lone.memory.seen, GPU: seen}))
    for expected in (None, 18):
        found = of(judge("links", remembered, expected=expected), "link.all_down", GPU, EVERY_LINK)
        assert (found.outcome, found.hard) == (Outcome.FAIL, True)


def test_a_limit_below_the_vendors_closes_nothing() -> None:
    """A board with fewer bad pages than its vendor allows is the site's to judge; one that has more is broken."""
    for retired, policy, is_hard in ((3, {"threshold": 2}, False), (3, {}, None), (64, {}, True)):
        view = healthy({("bad_pages_retired", WHOLE): retired, ("bad_pages_threshold", WHOLE): 64})
        finding = of(judge("bad-pages", view, **policy), "memory.bad_pages_threshold", GPU)
        broken = is_hard is not None
        assert (finding.outcome is Outcome.FAIL, finding.hard and broken) == (broken, bool(is_hard))
