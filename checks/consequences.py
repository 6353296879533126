"""One loss is one finding: what could not be measured of a device that does not answer follows from that. Pure.

The loss itself is told by its own code. Of what follows from it nothing counts for itself, and nothing is shown beside
it; where only other checks are asked for, the loss is why they could not see.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from nodevet.checks.model import NODE, Finding, Outcome

__all__ = ["LOSSES", "UNREAD", "counted_once", "seen_by", "shown_once"]

LOSSES = frozenset(
    {"device.lost", "device.reset_required", "device.faulty", "reader.hung", "reader.stuck", "reader.crashed"}
)
"""What says of a device that it does not answer."""

UNREAD = "device.unread"


def counted_once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return *findings*, of which nothing that a lost device could not be asked for is required by itself."""
    findings = tuple(findings)
    lost = {device for device, finding in _causes(findings).items() if finding.outcome is Outcome.FAIL}
    return tuple(
        msgspec.structs.replace(finding, required=False) if _follows(finding, lost) else finding for finding in findings
    )


def shown_once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return *findings* without what follows from a loss: of each device that does not answer one finding says so."""
    findings = tuple(findings)
    causes = _causes(findings)
    return tuple(
        finding for finding in findings if causes.get(finding.device) is finding or not _follows(finding, causes)
    )


def seen_by(findings: Iterable[Finding], names: Collection[str]) -> tuple[Finding, ...]:
    """Return what the checks of *names* found, and each loss that kept them from seeing: that is no good news."""
    findings = tuple(findings)
    causes = _causes(findings)
    return tuple(
        finding
        if finding.check in names
        else msgspec.structs.replace(finding, outcome=Outcome.UNMEASURED, required=True)
        for finding in findings
        if finding.check in names or causes.get(finding.device) is finding
    )


def _causes(findings: Iterable[Finding]) -> dict[str, Finding]:
    """Return for each device that does not answer the finding that says so, the gravest first."""
    causes: dict[str, Finding] = {}
    for finding in findings:
        is_loss = finding.code in LOSSES and finding.outcome is Outcome.FAIL
        is_unread = finding.code == UNREAD and finding.outcome is Outcome.UNMEASURED
        if finding.device != NODE and (is_loss or (is_unread and finding.device not in causes)):
            causes[finding.device] = finding
    return causes


def _follows(finding: Finding, devices: Collection[str]) -> bool:
    return finding.device in devices and finding.outcome is Outcome.UNMEASURED
