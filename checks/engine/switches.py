"""The loss of a switch that all boards of a node share takes links of each board down: one loss is one finding. Pure.

No driver reports which switch a port is connected to. The evidence is that each board lost the same number of links at
once; if a board lost more, some have another cause, and because no port says which, all of its links count.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nodevet.checks.core.model import Action, Finding, Outcome, Part, PartKind

from .judging import Rule
from .view import View, device_name

SWITCH = "a switch"
"""The cause of a down link that went down with its counterparts on the other boards."""
FEWEST = 3
"""Minimum number of boards with missing links: two boards may each have lost links of their own."""
DOWN, PEER = "link.down", "switch"


def told_of_switch(view: View, findings: Iterable[Finding], rule: Rule) -> tuple[Finding, ...]:
    """Return *findings* with that of *rule* on the loss of a switch, as the cause of the links that went down."""
    findings = tuple(findings)
    behind = {device.id for device in view.devices if any(link.peer == PEER for link in device.links)}
    links = [finding for finding in findings if finding.code == DOWN and finding.device in behind]
    if not behind:
        return findings
    lost = _lost(links)
    told = {finding.key: _following(finding) for finding in lost}
    every = (told.get(finding.key, finding) for finding in findings) if told else findings
    return (*every, _loss(view, links, lost, rule))


def _lost(links: list[Finding]) -> list[Finding]:
    """Return those of *links* that are down because of a component that all boards share."""
    down: dict[str, list[Finding]] = {}
    for finding in links:
        if finding.outcome in (Outcome.PASS, Outcome.FAIL):  # a board with all links down has a finding of its own
            down.setdefault(finding.device, []).extend([finding] if finding.outcome is Outcome.FAIL else [])
    if len(down) < FEWEST:
        return []
    fewest = min(map(len, down.values()))
    shared = set.intersection(*({finding.part.index for finding in its} for its in down.values()))
    lost = {
        device: [entry for entry in its if len(its) == fewest or entry.part.index in shared]
        for device, its in down.items()
        if len(its) == fewest or len(shared) == fewest
    }
    return [entry for its in lost.values() for entry in its] if 2 * len(lost) > len(down) else []


def _following(finding: Finding) -> Finding:
    said = f"{finding.message.partition('; ')[0]}; it follows from what all boards share"
    return msgspec.structs.replace(
        finding, outcome=Outcome.SKIPPED, action=Action.NONE, follows=SWITCH, required=False, message=said
    )


def _loss(view: View, links: list[Finding], lost: list[Finding], rule: Rule) -> Finding:
    """Return whether a switch is lost. A board that was read and misses no link proves that none is."""
    times = [finding.evidence_time for finding in lost or links if finding.evidence_time is not None]
    oldest = min(times, key=lambda time: time.boottime_ns, default=None)
    part = Part(PartKind.LINK)
    if not lost:
        is_proven = _is_proven(links)
        said = "no links of all boards are down at once" if is_proven else "its links tell of no switch"
        return rule.on_node(Outcome.PASS if is_proven else Outcome.SKIPPED, said, part=part, evidence_time=oldest)
    boards: dict[str, list[str]] = {}
    for finding in lost:
        boards.setdefault(finding.device, []).append(str(finding.part.index))
    each = len(lost) // len(boards)
    names = ", ".join(f"{device_name(view, device)} link {' '.join(ports)}" for device, ports in boards.items())
    said = f"{each} links of each of {len(boards)} boards are down at once, as with a switch that they share: {names}"
    found = rule.on_node(Outcome.FAIL, said, part=part, value=len(lost), evidence_time=oldest)
    return msgspec.structs.replace(found, gates=any(finding.gates for finding in lost))


def _is_proven(links: list[Finding]) -> bool:
    """Return whether *links*, of which none is down because of a switch, prove that none is lost."""
    outcomes: dict[str, set[Outcome]] = {}
    for finding in links:
        outcomes.setdefault(finding.device, set()).add(finding.outcome)
    well = any(Outcome.PASS in its and not its & {Outcome.FAIL, Outcome.UNMEASURED} for its in outcomes.values())
    told = set().union(*outcomes.values())
    return well or (Outcome.FAIL in told and Outcome.UNMEASURED not in told)
