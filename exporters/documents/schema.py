"""The public JSON: ``nodevet.status/1`` and ``nodevet.burn-in/1``, made from a Snapshot.

docs/reference/status-json.md lists the possible words and nulls. Additions keep the schema number; a removal or a
change of meaning requires a new one. No document has process ids or process names, so that the same document may go to
a person, to the socket and over plain HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from nodevet.checks.core.documents import copied
from nodevet.checks.core.model import (
    WHOLE,
    Device,
    Episode,
    EpisodeState,
    Finding,
    Instant,
    Limit,
    Metric,
    Modes,
    Outcome,
    Part,
    Result,
    Snapshot,
    State,
    Verdict,
)
from nodevet.checks.engine.acknowledgement import covering_end, is_announced, is_covering, is_word
from nodevet.checks.engine.completeness import Planned, Standing, account, judged
from nodevet.checks.engine.modes import closing, gating

from .completeness import completeness_document, device_names
from .types import (
    AcknowledgedDocument,
    AgentDocument,
    BurnInDocument,
    CheckDocument,
    DeviceDocument,
    FindingDocument,
    GateDocument,
    LimitDocument,
    ReaderDocument,
    ResultDocument,
    SeriesDocument,
    SlurmDocument,
    StatusDocument,
    VerifiedDocument,
)

CURVES = "curves"
"""The condition of a result that holds curves; in the documents they are ``series``."""

_STATE_OF = {
    Outcome.PASS: State.OK,
    Outcome.WARN: State.DEGRADED,
    Outcome.UNMEASURED: State.UNKNOWN,
    Outcome.FAIL: State.FAILED,
}

_AT_BEST = {Standing.WRONG: State.FAILED, Standing.UNPROVEN: State.UNKNOWN}


def status_document(snapshot: Snapshot) -> StatusDocument:
    """Return *snapshot* as ``nodevet.status/1``."""
    verdict = snapshot.verdict
    return copied(
        StatusDocument,
        snapshot,
        verdict=verdict.state.value,
        reason=verdict.reason,
        action=verdict.action.value,
        hard=verdict.hard,
        oldest_evidence=timestamp(verdict.oldest_evidence),
        time=_wall(snapshot.time),
        devices=_devices(snapshot),
        findings=_findings(snapshot),
        checks=tuple(
            CheckDocument(run.check, run.success, run.error, _wall(run.time), run.outcomes) for run in snapshot.checks
        ),
        readers=_readers(snapshot),
        results=tuple(_results(snapshot.results, snapshot)),
        agent=_agent(snapshot),
        gate=_gate(snapshot),
        slurm=_slurm(snapshot),
        acknowledged=_acknowledged(snapshot),
    )


def burn_in_document(
    snapshot: Snapshot,
    *,
    plan: str,
    planned: Iterable[Planned] = (),
    results: Iterable[Result] | None = None,
    series: Iterable[SeriesDocument] = (),
) -> BurnInDocument:
    """Return *results* (default: those of *snapshot*) of the burn-in *plan* as ``nodevet.burn-in/1``.

    Its verdict is never better than the load's proof of *planned* (default: the formats in the results). Its curves are
    *series* and those in the conditions of the results.
    """
    chosen = tuple(snapshot.results if results is None else results)
    names, load = device_names(snapshot.devices), account(tuple(planned), chosen)
    is_load = results is not None or bool(load.accounts)
    verdict = judged(snapshot.verdict, load, names) if is_load else snapshot.verdict
    return BurnInDocument(
        plan=plan,
        node=snapshot.node,
        simulated=snapshot.simulated,
        verdict=verdict.state.value,
        reason=verdict.reason,
        action=verdict.action.value,
        time=_wall(snapshot.time),
        devices=_devices(snapshot),
        results=tuple(_results(chosen, snapshot)),
        verified=VerifiedDocument(_total(chosen, "gemms_verified"), _total(chosen, "mismatches")),
        findings=_findings(snapshot),
        series=(*series, *_curves(chosen)),
        agent=_agent(snapshot),
        acknowledged=_acknowledged(snapshot),
        completeness=completeness_document(load, names) if is_load else None,
    )


def encode(document: object) -> bytes:
    """Return *document* as JSON in UTF-8 on one line, with a newline at its end."""
    return msgspec.json.encode(document) + b"\n"


def timestamp(moment: Instant | None) -> str | None:
    """Return the wall time of *moment* as RFC 3339 in UTC with milliseconds, or None."""
    return None if moment is None else _wall(moment)


def _wall(moment: Instant) -> str:
    return datetime.fromtimestamp(moment.wall_seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _devices(snapshot: Snapshot) -> tuple[DeviceDocument, ...]:
    unjudged = Verdict(state=State.UNKNOWN, reason="no check had a value of this device to judge")
    return tuple(_device(device, snapshot.device_verdicts.get(device.id, unjudged)) for device in snapshot.devices)


def _device(device: Device, verdict: Verdict) -> DeviceDocument:
    return copied(
        DeviceDocument,
        device,
        kind=device.kind.value,
        verdict=verdict.state.value,
        reason=verdict.reason,
        action=verdict.action.value,
    )


def _findings(snapshot: Snapshot) -> tuple[FindingDocument, ...]:
    """Return the episodes, then findings of the last round that did not pass and have no episode; gravest first."""
    lasting = [episode for episode in snapshot.episodes if episode.state is not EpisodeState.CLEARED]
    keys = {episode.key for episode in lasting}
    documents = [_from_episode(episode, snapshot.modes) for episode in lasting]
    documents += [
        _from_finding(finding, snapshot.modes)
        for finding in snapshot.findings
        if finding.outcome in (Outcome.WARN, Outcome.FAIL, Outcome.UNMEASURED) and finding.key not in keys
    ]
    gravity = {"fail": 0, "unmeasured": 1, "warn": 2}
    return tuple(sorted(documents, key=lambda document: (document.state is None, gravity.get(document.outcome, 3))))


def _from_episode(episode: Episode, modes: Modes) -> FindingDocument:
    return _finding(
        episode.finding,
        modes,
        code=episode.key.code,
        device=episode.key.device,
        part=_part(episode.key.part),
        outcome=episode.outcome.value,
        state=episode.state.value,
        first_seen=timestamp(episode.opened),
        last_seen=timestamp(episode.last_seen),
        count=episode.count,
        note=episode.note,
        flapping=episode.flapping,
    )


def _acknowledged(snapshot: Snapshot) -> tuple[AcknowledgedDocument, ...]:
    return tuple(
        AcknowledgedDocument(
            code=episode.key.code,
            device=episode.key.device,
            part=_part(episode.key.part),
            outcome=episode.outcome.value,
            message=episode.finding.message,
            actor=episode.actor,
            note=episode.note,
            time=timestamp(episode.acknowledged),
            until=timestamp(covering_end(episode) if is_covering(episode) else episode.until),
            ends_soon=is_announced(episode, snapshot.time),
            expired=episode.expired is not None,
            present=is_word(episode),
        )
        for episode in (*filter(is_word, snapshot.episodes), *snapshot.covered)
    )


def _from_finding(finding: Finding, modes: Modes) -> FindingDocument:
    return _finding(
        finding,
        modes,
        code=finding.code,
        device=finding.device,
        part=_part(finding.part),
        outcome=finding.outcome.value,
        state=None,
        first_seen=None,
        last_seen=timestamp(finding.evidence_time),
        count=1,
        note=None,
    )


def _finding(finding: Finding, modes: Modes, **fields: Any) -> FindingDocument:
    return copied(
        FindingDocument,
        finding,
        fault_class=finding.fault_class.value,
        limit=_limit(finding.limit),
        action=finding.action.value,
        clearing=finding.clearing.value,
        mode=modes.of(finding.check).value,
        **fields,
    )


def _limit(limit: Limit | None) -> LimitDocument | None:
    return None if limit is None else LimitDocument(limit.op, limit.value, limit.source)


def _part(part: Part) -> str | None:
    return None if part == WHOLE else str(part)


def _readers(snapshot: Snapshot) -> tuple[ReaderDocument, ...]:
    return tuple(
        copied(ReaderDocument, reader, state=reader.state.value, last_round=timestamp(reader.last_round))
        for reader in snapshot.readers
    )


def _results(results: Iterable[Result], snapshot: Snapshot) -> Iterator[ResultDocument]:
    """Yield a row per figure; a workload that died before any measurement has one row without a value."""
    for result in results:
        verdict = _judged(result, snapshot.findings)
        for metric in result.metrics or (Metric("none", None, ""),):
            yield copied(
                ResultDocument,
                result,
                device=",".join(result.devices),
                metric=metric.name,
                value=metric.value,
                unit=metric.unit,
                conditions=_without_curves(result.conditions),
                verdict=verdict,
                state=result.state.value,
                started=_wall(result.started),
                ended=_wall(result.ended),
            )


def _without_curves(conditions: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in conditions.items() if key != CURVES}


def _curves(results: Iterable[Result]) -> Iterator[SeriesDocument]:
    """Yield the curves in the conditions of *results*: ``{quantity: [[seconds, value], ...]}``."""
    for result in results:
        for quantity, points in result.conditions.get(CURVES, {}).items():
            pairs = tuple((float(seconds), float(value)) for seconds, value in points)
            yield SeriesDocument(",".join(result.devices), quantity, pairs, result.dtype)


def _judged(result: Result, findings: Iterable[Finding]) -> str | None:
    """Return the worst state of the devices of *result*: by the burn-in checks, and by the proof of the result itself.

    None if neither gives a state, and for a format that its device lacks.
    """
    standings = {entry.standing for entry in account((), (result,)).accounts}
    if Standing.LACKING in standings:
        return None
    said = [
        _STATE_OF[finding.outcome]
        for finding in findings
        if finding.check.startswith("burn-in") and finding.device in result.devices and finding.outcome in _STATE_OF
    ]
    said += [_AT_BEST[standing] for standing in standings if standing in _AT_BEST]
    return max(said, key=lambda state: state.rank).value if said else None


def _total(results: Iterable[Result], metric: str) -> int:
    return sum(int(result.metric(metric) or 0) for result in results)


def _gate(snapshot: Snapshot) -> GateDocument:
    codes = tuple(dict.fromkeys(episode.key.code for episode in gating(snapshot)))
    permit = snapshot.agent.permit
    return GateDocument(
        closed=bool(closing(snapshot)),
        mode=snapshot.modes.site.value,
        codes=codes,
        permit=permit.held,
        permit_reason=permit.why,
    )


def _slurm(snapshot: Snapshot) -> SlurmDocument | None:
    slurm = snapshot.agent.slurm
    if slurm is None:
        return None
    return copied(SlurmDocument, slurm, drained_by=slurm.drained_by or None, would_drain=bool(slurm.wanted))


def _agent(snapshot: Snapshot) -> AgentDocument:
    return copied(AgentDocument, snapshot.agent, started=_wall(snapshot.agent.started))
