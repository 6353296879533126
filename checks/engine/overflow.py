"""Limits the number of open findings that close no gate: of a flood, the surplus is counted, not kept. Pure.

Names in findings come from outside: numbers in a log, parts that a command of the site lists. A finding that closes a
gate is always kept, and so is the first finding of each device and outcome: no device is green because another one
floods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from nodevet.checks.core.guard import AGENT
from nodevet.checks.core.model import (
    Action,
    Clearing,
    Episode,
    EpisodeState,
    FaultClass,
    Finding,
    Key,
    Outcome,
    Part,
    PartKind,
)
from nodevet.checks.reference.kernel_policy import TEXT_PREFIX

MAXIMUM_KEPT = 500
"""Limit of open findings per check and outcome that close no gate; those from log text count separately.

One check on a node of sixteen boards cannot have more links, lanes and pages, and a round, the mirror and a page of
them stay small.
"""

NOT_KEPT = "findings.not_kept"
"""The code of the finding that counts the others."""

Bucket = tuple[str, bool, Outcome]
"""A check, whether the finding comes from log text, and its outcome."""


class Overflow:
    """Decides within one round which new findings become episodes, and counts the others."""

    def __init__(self, episodes: Iterable[Episode]) -> None:
        """Start with the *episodes* of earlier rounds."""
        self._open: dict[Bucket, int] = {}
        self._devices: set[tuple[Bucket, str]] = set()
        self._left: dict[str, set[Key]] = {}
        self._told: dict[str, Episode] = {}
        for episode in episodes:
            if episode.key.code == NOT_KEPT:
                self._told[_check(episode)] = episode
            elif episode.state is not EpisodeState.CLEARED and _closes_nothing(episode.finding):
                self._count(_bucket(episode.finding), episode.key.device)

    def admits(self, finding: Finding) -> bool:
        """Return whether *finding*, which has no episode yet, may open one; otherwise it is counted."""
        if finding.code == NOT_KEPT or not _closes_nothing(finding):
            return True
        bucket = _bucket(finding)
        if self._open.get(bucket, 0) >= MAXIMUM_KEPT and (bucket, finding.device) in self._devices:
            self._left.setdefault(finding.check, set()).add(finding.key)
            return False
        self._count(bucket, finding.device)
        return True

    def findings(self) -> tuple[Finding, ...]:
        """Return the findings that count the findings of each check that were not kept; at most one per check."""
        return tuple(_finding(check, len(keys), self._told.get(check)) for check, keys in sorted(self._left.items()))

    def _count(self, bucket: Bucket, device: str) -> None:
        self._open[bucket] = self._open.get(bucket, 0) + 1
        self._devices.add((bucket, device))


def without_those_not_kept(findings: Iterable[Finding], episodes: Collection[Episode]) -> tuple[Finding, ...]:
    """Return the *findings* of a round without those that were only counted: outputs list only findings in *episodes*.

    Otherwise the round of a flood would show each finding, and the next round none of them.
    """
    checks = {_check(episode) for episode in episodes if episode.key.code == NOT_KEPT}
    if not checks:
        return tuple(findings)
    kept = {episode.key for episode in episodes}
    return tuple(
        finding
        for finding in findings
        if finding.check not in checks or finding.key in kept or not (finding.bad and _closes_nothing(finding))
    )


def _finding(check: str, left: int, before: Episode | None) -> Finding:
    """Return the finding that *left* findings of *check* were not kept in one round; the maximum of rounds is kept."""
    most = max(left, before.finding.value) if before and isinstance(before.finding.value, int) else left
    return Finding(
        check=AGENT,
        code=NOT_KEPT,
        outcome=Outcome.WARN,
        message=(
            f"check {check}: {MAXIMUM_KEPT} findings of one kind that close no gate are open, and up to {most} more of "
            "one round are not kept: look at the log and at what the check reads for their cause"
        ),
        part=Part(PartKind.DEVICE, f"vendor:{check}"),
        fault_class=FaultClass.UNKNOWN,
        value=most,
        action=Action.INSPECT,
        clearing=Clearing.HARDWARE_EVENT,
        gates=False,
    )


def _check(episode: Episode) -> str:
    return episode.key.part.name.removeprefix("vendor:")


def _bucket(finding: Finding) -> Bucket:
    return finding.check, finding.code.startswith(TEXT_PREFIX), finding.outcome


def _closes_nothing(finding: Finding) -> bool:
    """Return whether *finding* can close no gate by itself: neither a hard fault nor a driver's refusal."""
    return not (finding.hard and finding.outcome in (Outcome.FAIL, Outcome.UNMEASURED))
