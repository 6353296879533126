"""Devices that are present, missing, or unusable for the driver.

A device that was once present is expected until it is replaced or its absence is acknowledged. A failed enumeration is
no proof of absence: a device is missing only where its collector answered without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from nodevet.checks.core.counts import count_of
from nodevet.checks.core.model import (
    Action,
    Clearing,
    Device,
    DeviceKind,
    FailureKind,
    FaultClass,
    Finding,
    Instant,
    Limit,
    Outcome,
    Part,
    PartKind,
    ReaderState,
    ReaderStatus,
)
from nodevet.checks.engine.arriving import is_being_taken, is_booting, may_be_bound_yet, not_listed_since, page_of
from nodevet.checks.engine.bare import (
    bare_boards,
    has_left_bus,
    is_unanswered,
    out_of_place,
    unread_boards,
    without_address,
)
from nodevet.checks.engine.baseline import is_a_number
from nodevet.checks.engine.enumeration import has_enumerated, is_read, vendors_known
from nodevet.checks.engine.exchanged import awaits_bus, exchanged, unread_instead
from nodevet.checks.engine.judging import Rule
from nodevet.checks.engine.moved import is_told, moved_board
from nodevet.checks.engine.registry import check
from nodevet.checks.engine.renamed import COMMANDS
from nodevet.checks.engine.unlisted import (
    drained_by,
    excluded,
    not_given,
    of_removed_sources,
    unread_pages,
    was_given_elsewhere,
    why_unlisted,
    withheld,
)
from nodevet.checks.engine.view import View, device_name, device_names
from nodevet.checks.reference.limits import from_table
from nodevet.checks.reference.vendors import vendor_of

_rule = partial(Rule, check="inventory")
_setting = partial(_rule, outcome=Outcome.WARN, fault_class=FaultClass.CONFIGURATION, action=Action.INSPECT)
EMPTY = _rule(
    code="inventory.empty",
    outcome=Outcome.UNMEASURED,
    fault_class=FaultClass.NODE,
    next_step="wait for the first round; if no device appears, read the agent's log",
)
MISSING = _rule(
    code="device.missing",
    action=Action.REBOOT,
    clearing=Clearing.HARDWARE_EVENT,
    next_step="reboot the node; if the device was removed permanently, acknowledge the finding",
)
RENAMED = msgspec.structs.replace(
    MISSING,
    action=Action.INSPECT,
    next_step="change the command so that it prints the former names, or the serial, uuid or pci of each device; if "
    "this board is in the list under a new name, acknowledge the finding of the old name",
)
ELSEWHERE = msgspec.structs.replace(
    MISSING,
    action=Action.INSPECT,
    next_step="compare the serial numbers of the listed boards with the inventory of the site; if this board was moved "
    "or replaced, acknowledge the finding",
)
REPLACED = msgspec.structs.replace(
    MISSING, outcome=Outcome.WARN, fault_class=FaultClass.CONFIGURATION, action=Action.NONE, gates=False, next_step=""
)
"""It opens and ends in the same round: the history keeps the board and its serial."""
NOT_PRINTED = msgspec.structs.replace(
    MISSING,
    action=Action.INSPECT,
    next_step="run the command by hand: it must print every device; if this one is lost, let the command print it with "
    "the failure `lost`; if it was removed permanently, acknowledge the finding",
)
"""A script that leaves a device out is no witness of its loss: the tool that it asks may have been killed."""
UNNAMED_NOW = msgspec.structs.replace(
    MISSING,
    action=Action.WATCH,
    next_step="wait until the driver answers; if it does not, read the kernel log (journalctl -k), reload the driver",
)
LOST = _rule(
    code="device.lost",
    action=Action.REBOOT,
    clearing=Clearing.HARDWARE_EVENT,
    next_step="drain and reboot the node; if it happens again, reseat or replace the board",
)
AWAITING = {
    "action": Action.WATCH,
    "next_step": "wait: the driver may still be initializing the board; if it does not list the board within minutes, "
    "the board counts as lost",
}
LISTED_SHORT = {"action": Action.WATCH, "next_step": "end the shortage; the collector then lists the devices again"}
SHORT, SHORT_BY_NAME = (msgspec.structs.replace(rule, **LISTED_SHORT) for rule in (LOST, MISSING))
"""A library that is refused memory or a descriptor may leave a device out of its list."""
AWAITED, AWAITED_BY_NAME = (msgspec.structs.replace(rule, **AWAITING) for rule in (LOST, MISSING))
HOW_TO_GIVE = "pass every board and the host's /dev to the agent's container, or acknowledge the finding"
GIVING = {"fault_class": FaultClass.CONFIGURATION, "action": Action.INSPECT, "gates": False, "next_step": HOW_TO_GIVE}
NOT_GIVEN = msgspec.structs.replace(LOST, **GIVING)
NOT_GIVEN_BEFORE = msgspec.structs.replace(MISSING, **GIVING)
MISPLACED = msgspec.structs.replace(
    LOST, action=Action.INSPECT, gates=False, next_step="read the kernel log (journalctl -k) and the agent's log"
)
RESET_REQUIRED = _rule(
    code="device.reset_required",
    action=Action.DRAIN_RESET,
    clearing=Clearing.HARDWARE_EVENT,
    next_step="drain the node, reset the device, run a burn-in; if the reset fails, reboot the node",
)
FAULTY = _rule(
    code="device.faulty",
    action=Action.INSPECT,
    clearing=Clearing.HARDWARE_EVENT,
    next_step="drain the node, have the board, its power cables and its power supply inspected; replace the board if "
    "the fault persists",
)
DRIVER_MISSING = _rule(
    code="driver.missing",
    fault_class=FaultClass.CONFIGURATION,
    action=Action.INSPECT,
    next_step="install the vendor's driver and load its module; the message names both",
)
NO_DEVICES = _rule(
    code="driver.no_devices",
    action=Action.REBOOT,
    next_step="read the kernel log, then reboot the node",
)
VERSION_MISMATCH = _rule(
    code="driver.version_mismatch",
    fault_class=FaultClass.CONFIGURATION,
    action=Action.REBOOT,
    next_step="kernel module and library are of different releases: install one release, then reboot the node",
)
LISTED_TWICE = _setting(
    code="inventory.listed_twice",
    next_step="only one backend may list a device: disable one of the backends in agent.backends, or remove the device "
    "from the output of the command",
)
WITHHELD = _rule(code="inventory.withheld", outcome=Outcome.SKIPPED, fault_class=FaultClass.CONFIGURATION)
EXCLUDED = _setting(
    code="inventory.excluded",
    next_step="acknowledge the finding, or remove the board from NVreg_ExcludedGpus and reload the driver",
)
"""An administrator may exclude a board by a driver option; the driver reports it, so the board is not lost."""
HOW_TO_UNDRAIN = "acknowledge the finding, or return the board to service with {}"
DRAINED = _setting(code="inventory.drained", next_step=HOW_TO_UNDRAIN.format("the command of its driver"))
"""A drained board accepts no new process, so its driver does not list it, as if it were lost."""
UNCONFIGURED = _setting(
    code="inventory.unconfigured",
    next_step="if the backend or command was removed or renamed on purpose, acknowledge the finding; otherwise add it "
    "to the configuration again",
)
"""A person changed the configuration: nothing is lost by it, and nothing reads these devices."""
OFFLINE = _setting(
    code="processor.offline",
    next_step="bring its processors online (chcpu -e), or acknowledge the finding; if they stay offline, "
    "have the socket inspected",
)
"""An administrator may take processors offline; a socket that the kernel no longer knows is missing."""
COUNT = _rule(
    code="inventory.count",
    fault_class=FaultClass.CONFIGURATION,
    action=Action.INSPECT,
    next_step="find the missing device, or correct expected_accelerators in the configuration",
)
"""The limit is configured and closes no gate: a wrong number would be deployed to every node at once. A proven loss has
its own code: device.missing (known, not listed), device.lost (does not answer), driver.missing (on the PCI bus without
a driver)."""

REFUSED = (
    (
        RESET_REQUIRED,
        FailureKind.RESET_REQUIRED,
        "the driver requires a reset",  # a reboot is too much
        "no reset is required",
    ),
    (FAULTY, FailureKind.FAULTY, "the driver reports a fault and does not open it", "the driver opens it"),
)

WITNESSES = from_table("reader.falls").value
"""Number of hangs or crashes of the driver on a board, within the time of reader_faults.csv, that prove its loss."""

HOW_TO_READ = (
    "no enabled backend reads these devices: enable the vendor's backend in agent.backends, or add a command backend "
    "(docs/reference/command-backend.md)"
)

HOW_TO_PLACE = (
    "change the command so that it prints the PCI address (pci) of each device; nodevet then knows the unlisted devices"
)


class Inventory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The expected number of devices."""

    expected_accelerators: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=1024,
                description="Expected number of accelerators; unset: learned. A mismatch alone closes no gate.",
            ),
        ]
        | None
    ) = None


@check("inventory", policy=Inventory)
def judge(view: View, policy: Inventory) -> Iterator[Finding]:
    """Every known device is present, answers, and has a working driver."""
    known = bool(view.devices or view.memory.seen)
    yield EMPTY.on_node(
        Outcome.PASS if known else Outcome.UNMEASURED,
        "devices were enumerated" if known else "no device was enumerated",
        required=not known,
    )
    present = {device.id for device in view.devices}
    for device in view.devices:
        yield MISSING.on_node(Outcome.PASS, f"{device_name(view, device.id)}: present", device=device.id)
        if device.kind is DeviceKind.CPU:
            yield OFFLINE.on_node(Outcome.PASS, f"{device_name(view, device.id)}: online", device=device.id)
        yield _lost(view, device)
        for rule, kind, why, well in REFUSED:
            yield _refused(view, device, rule, kind, why, well)
    replaced = exchanged(view)
    for seen in view.memory.seen.values():
        if seen.device.id not in present and not _merged(seen.device, present):
            yield _offline(view, seen.device) or _missing(view, seen.device, replaced)
    yield _listed_twice(view)
    if withheld(view):
        facts = f"{', '.join(withheld(view))}: the cgroup of this process denies access, as in a job; not judged"
        yield WITHHELD.on_node(Outcome.SKIPPED, facts)
    if left_out := ", ".join(excluded(view)):
        facts = f"{left_out}: excluded by a driver option, according to the driver's file in /proc; not judged"
        yield EXCLUDED.on_node(Outcome.WARN, facts)
    elif unread := ", ".join(unread_pages(view)):
        yield EXCLUDED.on_node(Outcome.UNMEASURED, f"{unread}: the driver's file in /proc could not be read")
    elif any(view.of_kind(DeviceKind.NODE)):
        yield EXCLUDED.on_node(Outcome.PASS, "no board is excluded by a driver option")
    yield _drained(view)
    yield _unconfigured(view)
    for vendor in vendors_known(view):
        yield from _driver(view, vendor)
    yield _count(view, policy.expected_accelerators)


def _drained(view: View) -> Finding:
    if not view.drained:
        return DRAINED.on_node(Outcome.PASS, "no board is drained by a command of its driver")
    boards = ", ".join(f"{board.pci} ({board.model})" for board in view.drained)
    first = view.drained[0]
    command = vendor_of(first.vendor).undrain or ""
    if len(view.drained) == 1:
        command = command.replace("ADDRESS", first.pci or "ADDRESS")
    rule = msgspec.structs.replace(DRAINED, next_step=HOW_TO_UNDRAIN.format(command)) if command else DRAINED
    facts = f"{boards}: taken out of service by {drained_by(first)}; not judged"
    return rule.on_node(Outcome.WARN, facts)


def _unconfigured(view: View) -> Finding:
    found = of_removed_sources(view)
    if not found:
        return UNCONFIGURED.on_node(Outcome.PASS, "every known device is read by a configured backend or command")
    sources: dict[str, list[Device]] = {}
    for device, source in found.items():
        sources.setdefault(source, []).append(view.memory.seen[device].device)
    told = "; ".join(
        f"{source} is not configured any more, and nothing reads its devices: {device_names(view, devices)}"
        for source, devices in sorted(sources.items())
    )
    return UNCONFIGURED.on_node(Outcome.WARN, told)


def _listed_twice(view: View) -> Finding:
    if not view.duplicates:
        return LISTED_TWICE.on_node(Outcome.PASS, "no device is listed by two backends")
    told = "; ".join(
        f"{device_name(view, kept.id)} is listed by {kept.backend} and by {left_out.backend}; "
        f"{left_out.backend} is ignored"
        for left_out, kept in view.duplicates
    )
    return LISTED_TWICE.on_node(Outcome.WARN, told)


def _lost(view: View, device: Device) -> Finding:
    name = device_name(view, device.id)
    samples = [sample for (owner, _), sample in view.samples.items() if owner == device.id]
    lost = [sample for sample in samples if is_told(sample.failure, {FailureKind.LOST})]
    if lost:
        sample = max(lost, key=lambda entry: entry.time.boottime_ns)
        detail = sample.failure.detail if sample.failure else ""
        gone, silent = moved_board(view, device.backend)
        known = (
            f"; it may be the board formerly at {gone.pci}, serial {gone.serial}" if gone and silent == device else ""
        )
        return LOST.on_node(
            Outcome.FAIL, f"{name}: no longer answers ({detail}){known}", device=device.id, evidence_time=sample.time
        )
    if is_unanswered(view, device):
        reader = view.reader(device.vendor)
        if reader is not None and device.pci in reader.quarantined and reader.blamed.get(device.pci, 0) < WITNESSES:
            return LOST.on_node(
                Outcome.UNMEASURED,
                f"{name}: not read, because its collector failed while listing it{_did(reader, device)}; "
                "no driver fault is known",
                device=device.id,
                required=True,
                evidence_time=reader.last_round,
            )
        if is_being_taken(view, device) and (reader is None or device.pci not in reader.quarantined):
            facts = f"{name}: bound to {device.driver}, which has not listed this board yet"
            return AWAITED.on_node(Outcome.UNMEASURED, facts, device=device.id, required=True)
        if device.pci in not_given(view) and (reader is None or device.pci not in reader.quarantined):
            facts = f"{name}: bound to {device.driver}; the agent's container has other boards and not this one"
            return NOT_GIVEN.on_node(Outcome.UNMEASURED, facts, device=device.id, required=True)
        if (others := out_of_place(view, device)) and (reader is None or device.pci not in reader.quarantined):
            alike = device_names(view, list(others))
            facts = f"{name}: bound to {device.driver}, possibly the same board as {alike}, whose address is unknown"
            return MISPLACED.on_node(Outcome.UNMEASURED, facts, device=device.id, required=True)
        if reader is not None and reader.shortage and device.pci not in reader.quarantined:
            facts = f"{name}: bound to {device.driver}, and not listed; {reader.shortage}: a loss is not proven"
            return SHORT.on_node(Outcome.UNMEASURED, facts, device=device.id, required=True)
        told = _did(reader, device) if reader is not None else ""
        why = f"which fails while listing it{told}" if told else "which lists other devices and not this one"
        return LOST.on_node(
            Outcome.FAIL,
            f"{name}: bound to {device.driver}, {why}",
            device=device.id,
            evidence_time=reader.last_round if reader else None,
        )
    if not samples:
        return LOST.on_node(Outcome.SKIPPED, f"{name}: not read yet", device=device.id)
    answered = all(sample.failure is None and not view.is_old(sample) for sample in samples)
    outcome = Outcome.PASS if answered else Outcome.UNMEASURED
    newest = max((sample.time for sample in samples), key=lambda time: time.boottime_ns)
    facts = "answers" if answered else "could not be read"
    return LOST.on_node(outcome, f"{name}: {facts}", device=device.id, evidence_time=newest)


def _refused(view: View, device: Device, rule: Rule, kind: FailureKind, why: str, well: str) -> Finding:
    """Judge whether the driver refuses the device with failures of *kind* and the reason *why*; it is on the bus."""
    name = device_name(view, device.id)
    samples = [sample for (owner, _), sample in view.samples.items() if owner == device.id]
    newest = max(samples, key=lambda entry: entry.time.boottime_ns, default=None)
    if newest is None:
        return rule.on_node(Outcome.SKIPPED, f"{name}: not read yet", device=device.id)
    asked = [sample for sample in samples if is_told(sample.failure, {kind})]
    if asked:
        sample = max(asked, key=lambda entry: entry.time.boottime_ns)
        detail = sample.failure.detail if sample.failure else ""
        return rule.on_node(Outcome.FAIL, f"{name}: {why} ({detail})", device=device.id, evidence_time=sample.time)
    answered = newest.failure is None and not view.is_old(newest)
    return rule.on_node(
        Outcome.PASS if answered else Outcome.UNMEASURED,
        f"{name}: {well if answered else 'could not be read'}",
        device=device.id,
        evidence_time=newest.time,
    )


def _offline(view: View, device: Device) -> Finding | None:
    """Return that no processor of the unlisted socket *device* is online; None if it is missing."""
    node = next(iter(view.of_kind(DeviceKind.NODE)), None)
    if (
        device.kind is not DeviceKind.CPU
        or node is None
        or not node.offline
        or not has_enumerated(view, device.backend)
    ):
        return None
    name = device_name(view, device.id)
    return OFFLINE.on_node(Outcome.WARN, f"{name}: no processor of the socket is online", device=device.id)


def _missing(view: View, device: Device, replaced: Mapping[str, str]) -> Finding:
    name = device_name(view, device.id)
    if device.id in replaced:
        return REPLACED.on_node(Outcome.WARN, f"{name}: {replaced[device.id]}", device=device.id)
    if device.id in of_removed_sources(view):
        return MISSING.on_node(
            Outcome.SKIPPED, f"{name}: {device.backend}, which listed it, is not configured", device=device.id
        )
    reader = view.reader(device.backend)
    at_slot = page_of(device, bare_boards(view, device.vendor))
    if not has_enumerated(view, device.backend):
        state = reader.state.value if reader else "not running"
        return MISSING.on_node(
            Outcome.UNMEASURED, f"{name}: not enumerated, {device.backend} collector is {state}", device=device.id
        )
    is_running = reader is not None and reader.state is ReaderState.RUNNING
    if at_slot is not None and (not is_running or may_be_bound_yet(view, at_slot)):
        return MISSING.on_node(Outcome.UNMEASURED, f"{name}: on the PCI bus, without its driver", device=device.id)
    if why := why_unlisted(view, device):
        return MISSING.on_node(Outcome.SKIPPED, f"{name}: {why}", device=device.id)
    if was_given_elsewhere(view, view.memory.seen[device.id]):
        facts = f"{name}: present in an earlier boot; the agent's container has other boards and not this one"
        return NOT_GIVEN_BEFORE.on_node(Outcome.UNMEASURED, facts, device=device.id, required=True)
    gone, silent = moved_board(view, device.backend)
    if silent is not None and gone == device:
        return MISSING.on_node(
            Outcome.SKIPPED,
            f"{name}: not listed, and possibly the same board as {device_name(view, silent.id)}, which does not answer",
            device=device.id,
        )
    if since := not_listed_since(view, view.memory.seen[device.id], at_slot):
        facts = f"{name}: not listed by {device.backend} since {since}; the driver may list its boards one by one"
        return AWAITED_BY_NAME.on_node(Outcome.UNMEASURED, facts, device=device.id, required=True)
    numbers = [board for board in view.devices if board.backend == device.backend and is_a_number(board)]
    if numbers and device.uuid:
        facts = f"{name}: {device.backend} names none of {len(numbers)} boards that it lists; it may be one of them"
        return UNNAMED_NOW.on_node(Outcome.UNMEASURED, facts, device=device.id, required=True)
    listed_at = reader.last_round if reader else None
    if finding := _elsewhere(view, device, listed_at):
        return finding
    if reader is not None and reader.shortage:
        facts = f"{name}: not listed by {device.backend}; {reader.shortage}: a loss is not proven"
        return SHORT_BY_NAME.on_node(Outcome.UNMEASURED, facts, device=device.id, required=True)
    if device.backend.startswith(COMMANDS) and not has_left_bus(view, device):
        facts = f"{name}: {device.backend} does not print it any more: a loss is not proven"
        return NOT_PRINTED.on_node(Outcome.UNMEASURED, facts, device=device.id, required=True, evidence_time=listed_at)
    serial = f", serial {device.serial}" if device.serial else ""
    return MISSING.on_node(
        Outcome.FAIL,
        f"{name}: {device.model}{serial} is no longer enumerated",
        device=device.id,
        evidence_time=listed_at,
    )


def _elsewhere(view: View, device: Device, listed: Instant | None) -> Finding | None:
    """Return that the unlisted *device* may be another one that its backend *listed*; None if a loss is proven."""
    name = device_name(view, device.id)
    seen = view.memory.seen.get(device.parent or device.id) or view.memory.seen[device.id]
    others = [other for name in seen.instead if (other := view.device(name)) is not None]
    if awaits_bus(view, seen):
        return MISSING.on_node(Outcome.UNMEASURED, f"{name}: the PCI bus was not read yet", device=device.id)
    if not device.backend.startswith(COMMANDS) and (alike := others or unread_instead(view, seen)):
        return ELSEWHERE.on_node(
            Outcome.UNMEASURED,
            f"{name}: not listed since a boot, and possibly one of {device_names(view, alike)}, which were not there "
            "before: a loss is not proven",
            device=device.id,
            required=True,
            evidence_time=listed,
        )
    if others:
        return RENAMED.on_node(
            Outcome.UNMEASURED,
            f"{name}: {device.backend} lists {device_names(view, others)} instead of all its former devices, so "
            "a loss is not proven: the script was changed, or every board was replaced",
            device=device.id,
            required=True,
            evidence_time=listed,
        )
    return None


def _merged(device: Device, present: set[str]) -> bool:
    """Return whether *device* was a part of another device that is present and was merged again."""
    return device.parent is not None and device.parent in present


def _did(reader: ReaderStatus, board: Device) -> str:
    """Return the last failure of *board* for which its *reader* skips it, as text, or an empty text."""
    words = reader.left_alone.get(board.pci or "")
    return f": {words}" if words else ""


def _driver(view: View, vendor: str) -> Iterator[Finding]:
    part = Part(PartKind.DEVICE, f"vendor:{vendor}")
    reader = view.reader(vendor)
    unplaced = without_address(view, vendor) if reader is None else 0
    boards = unread_boards(view, vendor, reader, unplaced)
    where = ", ".join(f"{board.pci} (bound to {board.driver or 'no driver'})" for board in boards)
    failure = reader.failure if reader else None
    says = f"; the collector reports: {failure.detail}" if failure else ""
    read_from = reader.last_round if reader else None
    looked = reader.looked if reader else None

    known = vendor_of(vendor)
    mismatch = msgspec.structs.replace(
        VERSION_MISMATCH,
        action=known.release_action or VERSION_MISMATCH.action,
        next_step=known.release_advice or VERSION_MISMATCH.next_step,
    )
    for rule, kind in ((NO_DEVICES, FailureKind.NO_DEVICES), (mismatch, FailureKind.VERSION_MISMATCH)):
        if failure is not None and failure.kind is kind and boards:
            finding = rule.on_node(Outcome.FAIL, f"{vendor}: {where} cannot be used{says}", part=part, as_of=looked)
            may_load = kind is FailureKind.NO_DEVICES and is_booting(view)
            # Jobs do not need the agent's wrapper.
            yield msgspec.structs.replace(finding, gates=failure.of_driver and not may_load)
        elif reader is not None and reader.state is ReaderState.RUNNING:
            yield rule.on_node(Outcome.PASS, f"{vendor}: the driver answers", part=part, evidence_time=read_from)

    rule = msgspec.structs.replace(
        DRIVER_MISSING, next_step=known.install or f"no backend exists for {vendor}: monitor it by other means"
    )
    if not boards:
        outcome = Outcome.PASS if is_read(view, vendor) else Outcome.SKIPPED
        yield rule.on_node(outcome, f"{vendor}: every accelerator has its driver", part=part)
    elif reader is None:
        rule = msgspec.structs.replace(rule, next_step=HOW_TO_PLACE if unplaced else HOW_TO_READ)
        told = f"; {count_of(unplaced, 'other device')} without a PCI address" if unplaced else ""
        facts = f"{_counted(len(boards), vendor)}, not read: {where}{told}"
        yield rule.on_node(Outcome.UNMEASURED, facts, part=part, required=True)
    elif reader.state is ReaderState.RUNNING or (
        failure is not None and failure.kind in (FailureKind.NO_DRIVER, FailureKind.NO_LIBRARY)
    ):
        finding = rule.on_node(
            Outcome.FAIL,
            f"{_counted(len(boards), vendor)} without a working driver: {where}{says}",
            part=part,
            value=len(boards),
            as_of=looked,
        )
        # If the agent lacks a library, or it is refused memory, that says nothing about the driver; jobs bring their
        # own.
        is_said = failure is None or (failure.kind is not FailureKind.NO_LIBRARY and failure.of_driver)
        may_bind = is_booting(view) or all(may_be_bound_yet(view, board) for board in boards)
        yield msgspec.structs.replace(finding, gates=is_said and not may_bind)
    else:
        yield rule.on_node(
            Outcome.UNMEASURED, f"{vendor}: {where} not read yet, collector is {reader.state.value}{says}", part=part
        )


def _counted(number: int, vendor: str) -> str:
    return f"{number} {vendor} accelerator{'' if number == 1 else 's'}"


def _count(view: View, expected: int | None) -> Finding:
    if expected is None:
        return COUNT.on_node(Outcome.PASS, "no expected number of accelerators is known")
    accelerators = [device for device in view.of_kind(DeviceKind.ACCELERATOR) if device.backend != "host"]
    ids = {device.id for device in accelerators}
    count = sum(device.parent not in ids for device in accelerators) + len(withheld(view)) + len(view.drained)
    waiting = [
        reader.backend
        for reader in view.readers
        if reader.state not in (ReaderState.RUNNING, ReaderState.ABSENT, ReaderState.FAILED)
    ]
    if count < expected and waiting:
        return COUNT.on_node(
            Outcome.UNMEASURED,
            f"{count} of {expected} accelerators; collectors without an answer: {', '.join(waiting)}",
            required=True,
        )
    others = len(not_given(view))
    if count < expected <= count + others:
        return msgspec.structs.replace(COUNT, next_step=HOW_TO_GIVE).on_node(
            Outcome.UNMEASURED,
            f"{count} of {expected} accelerators; the container of the agent lacks {others} more",
            required=True,
        )
    rule = COUNT
    if count > expected:
        rule = msgspec.structs.replace(
            COUNT, outcome=Outcome.WARN, next_step="correct expected_accelerators in the configuration"
        )
    listed = [reader.last_round for reader in view.readers if reader.last_round is not None]
    return rule.on_node(
        Outcome.PASS if count == expected else rule.outcome,
        f"{count} accelerators, {expected} expected",
        value=count,
        limit=Limit("!=", expected, "", "configuration"),
        evidence_time=max(listed, key=lambda time: time.boottime_ns, default=None),
    )
