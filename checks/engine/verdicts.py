"""Computes the verdicts of a snapshot from episodes and findings: of devices, the node, or some checks alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

import msgspec

from nodevet.checks.core.model import NODE, Device, DeviceKind, Episode, Finding, Outcome, Snapshot, State, Verdict

from .acknowledgement import standing
from .completeness import Completeness, Standing, judged, last_proof
from .consequences import parts_lost, seen_by
from .losses import taken_out
from .standing import NOT_EVALUATED, node_verdict, not_judged, verdict
from .unlisted import out_of_service
from .view import View, device_name

INVENTORY = "inventory"
"""The check whose failures explain a silent device: missing, lost, refused until a reset."""

BURN_IN = "burn-in"
"""The check that judges the results of loads."""


def narrowed(snapshot: Snapshot, names: Collection[str]) -> Snapshot:
    """Return *snapshot* as if only the checks of *names* had run."""
    view = View(now=snapshot.time, devices=snapshot.devices)
    findings = seen_by(snapshot.findings, names)
    episodes = tuple(episode for episode in snapshot.episodes if episode.check in names)
    known = {device.id: device for device in snapshot.devices}
    covered = tuple(episode for episode in snapshot.covered if episode.check in names)
    verdicts, of_node = verdicts_of(view, known, episodes, findings, partial=True, covered=covered)
    alone = msgspec.structs.replace(
        snapshot,
        findings=findings,
        episodes=episodes,
        covered=covered,
        checks=tuple(run for run in snapshot.checks if run.check in names),
        device_verdicts=verdicts,
        verdict=of_node,
    )
    return proved(alone, names)


def proved(snapshot: Snapshot, checks: Collection[str]) -> Snapshot:
    """Return the *snapshot* of *checks*: if it covers loads, no better than the last one proved.

    A stopped load is no fault of its node, so the verdict over all checks does not change by it.
    """
    if BURN_IN not in checks or not snapshot.results:
        return snapshot
    accounts = last_proof(snapshot.results, snapshot.episodes).accounts
    # Wrong results are judged by the check itself, which knows the acknowledgements.
    load = Completeness(tuple(entry for entry in accounts if entry.standing is not Standing.WRONG))
    if not load.unproven:
        return snapshot
    view = View(now=snapshot.time, devices=snapshot.devices)
    names = {entry.device: device_name(view, entry.device) for entry in load.accounts}
    verdicts = {
        device: judged(verdict, Completeness(tuple(entry for entry in load.accounts if entry.device == device)), names)
        if any(entry.device == device for entry in load.unproven)
        else verdict
        for device, verdict in snapshot.device_verdicts.items()
    }
    return msgspec.structs.replace(snapshot, device_verdicts=verdicts, verdict=judged(snapshot.verdict, load, names))


def verdicts_of(
    view: View,
    known: Mapping[str, Device],
    episodes: tuple[Episode, ...],
    findings: tuple[Finding, ...],
    *,
    partial: bool,
    covered: tuple[Episode, ...] = (),
) -> tuple[dict[str, Verdict], Verdict]:
    """Return the verdict of each known device, and the node's.

    Before the first round only remembered failures count: they outlive the agent. An episode of a device that is not
    listed counts against the node, unless its absence is acknowledged. A silent device stays unknown itself; it makes
    the node unknown only if its loss is not acknowledged. So does a board that only the PCI bus lists. A part that is
    lost with its board has the board's state, and counts once. A board out of service counts by the finding of its
    node.
    """
    of_device: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        of_device[finding.device].append(finding)
    verdicts = {device: verdict(device, episodes, of_device.get(device, ()), partial=partial) for device in known}
    unused = {
        device: msgspec.structs.replace(verdicts[device], reason=why)
        for device, why in out_of_service(view).items()
        if device in verdicts and not verdicts[device].episodes
    }
    verdicts |= unused
    parts = {part: board for part, board in parts_lost(findings).items() if part in verdicts and board in verdicts}
    verdicts |= {part: verdicts[board] for part, board in parts.items() if not verdicts[part].episodes}
    gone = taken_out(episodes)
    lost = {
        entry.key.device for entry in standing(episodes) if entry.check == INVENTORY and entry.outcome is Outcome.FAIL
    }
    said = {entry.key.device for entry in standing(episodes)}
    said -= {entry.key.device for entry in standing(episodes) if entry.check == INVENTORY}  # its driver holds it
    judged = {
        device: entry
        for device, entry in verdicts.items()
        if device not in gone
        and device not in unused
        and not (device in said and _is_page(known[device]) and not entry.episodes)
        and not (device in parts and entry == verdicts[parts[device]])
        and not (partial and entry.reason == NOT_EVALUATED)
        and not (device in lost and not entry.episodes)
    }
    for device in sorted({NODE, *(entry.key.device for entry in episodes)} - gone - verdicts.keys()):
        unlisted = verdict(device, episodes, of_device.get(device, ()))
        if unlisted.episodes:
            judged[device] = unlisted
    if not findings and not any(entry.state is State.FAILED for entry in judged.values()):
        return verdicts, not_judged("starting: no check has run yet", episodes, covered)
    names = {device: device_name(view, device) for device in judged}
    return verdicts, node_verdict(judged, names, episodes, covered)


def _is_page(device: Device) -> bool:
    """Return whether only the PCI bus lists *device*, an accelerator: nothing can be measured on it."""
    return device.kind is DeviceKind.ACCELERATOR and device.backend == "host"
