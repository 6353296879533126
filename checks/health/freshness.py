"""Whether the node can be seen at all: readers that live, samples that are new, readings that it must give.

What the other checks could not see they leave alone; that it could not be seen is told here, and once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from nodevet.checks.core.model import (
    NEVER,
    Action,
    Clearing,
    Device,
    FailureKind,
    FaultClass,
    Finding,
    Instant,
    Outcome,
    Part,
    PartKind,
    ReaderState,
    ReaderStatus,
    ReadingStatus,
    Sample,
)
from nodevet.checks.core.parts import are_alike, of_reader
from nodevet.checks.engine.baseline import OR
from nodevet.checks.engine.judging import Observation, Rule, observations
from nodevet.checks.engine.registry import check
from nodevet.checks.engine.renamed import COMMANDS
from nodevet.checks.engine.view import View, device_name
from nodevet.checks.reference.limits import from_table
from nodevet.checks.reference.vendors import vendor_of

UNREAD = Rule(
    check="freshness",
    code="device.unread",
    outcome=Outcome.UNMEASURED,
    fault_class=FaultClass.NODE,
    action=Action.WATCH,
    clearing=Clearing.UNMEASURED,
    next_step="read the agent's log; nothing newer is known of this device",
)
READING = Rule(
    check="freshness",
    code="reading.missing",
    outcome=Outcome.UNMEASURED,
    fault_class=FaultClass.NODE,
    action=Action.INSPECT,
    clearing=Clearing.UNMEASURED,
    next_step="devices of this model give this reading: check permissions and the driver's version",
)
FAILED = Rule(
    check="freshness",
    code="reader.failed",
    outcome=Outcome.UNMEASURED,
    fault_class=FaultClass.NODE,
    action=Action.INSPECT,
    clearing=Clearing.UNMEASURED,
    next_step="check permissions on the device nodes and the driver's installation",
)


DOWN = Rule(
    check="freshness",
    code="reader.down",
    outcome=Outcome.UNMEASURED,
    fault_class=FaultClass.NODE,
    action=Action.WATCH,
    clearing=Clearing.UNMEASURED,
    next_step="it is started again; nothing shows a fault of the driver",
)
"""A reader that went down without a witness against its driver: whatever the reason is, it is no fault of hardware."""

HELD = msgspec.structs.replace(
    DOWN, next_step="another is started as soon as it is gone; nothing shows a fault of the driver"
)
"""The same while its process is still there."""


def _final(code: str, next_step: str) -> Rule:
    return Rule(
        check="freshness",
        code=code,
        fault_class=FaultClass.NODE,
        action=Action.REBOOT,
        clearing=Clearing.HARDWARE_EVENT,
        next_step=next_step,
    )


BROKEN = {
    FailureKind.HUNG: _final("reader.hung", "drain and reboot the node"),
    FailureKind.STUCK: _final("reader.stuck", "its process cannot be killed: drain and reboot the node"),
    FailureKind.CRASHED: _final("reader.crashed", "drain and reboot the node; report the crash to the driver's vendor"),
}
"""What a driver that broke its reader once more is; the first time it is watched."""

ANY = msgspec.structs.replace(
    READING,
    code="reading.any",
    next_step="its driver answers no question about it: check permissions and the driver's version; where it never"
    " does, read the board by a command of the site, and leave the backend out of the configuration",
)
"""Of boards of which few readings can be had, and one of them must."""
CORE = Part(PartKind.SENSOR, "core")
ON_CHIP = frozenset({"core", "hotspot", "edge", "package"})
"""Sensors of the chip itself, of which one must answer: AMD SMI tells no core, and memory may be cool on a hot chip."""
INSPECT_LINKS = "have board, baseboard and switches inspected"
"""What to do where nobody told how links of such a vendor come up."""
SPLIT = frozenset({"row_remap_failed", "link_active"})
"""What a device does not tell while it is split into instances (nvml.h nvmlDeviceGetRemappedRows: "not supported if MIG
is enabled"); what was found before the split stays open."""
NEEDS = {"ecc_uncorrected_errors": "ecc_enabled"}
"""Readings that a device supports only while a setting is on. That it is off is told by the setting's own check."""
NOT_TOLD = frozenset({ReadingStatus.UNSUPPORTED, ReadingStatus.DENIED})
"""What a virtual machine says of a reading that only the host of its board is given."""
AWAY = frozenset({ReaderState.STARTING, ReaderState.RELEASED, ReaderState.STOPPED, ReaderState.ABSENT})
"""States in which nothing is to be expected of a reader, for a reason that is known."""


class Freshness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a driver that does not answer counts as broken."""

    hangs: Annotated[
        int,
        Meta(
            ge=1,
            le=10,
            description="From so many hangs or crashes inside calls of its driver on, within the time that "
            "reader_faults.csv gives, a reader is failed; before that unknown.",
        ),
    ] = int(from_table("reader.falls").value)


@check("freshness", policy=Freshness)
def judge(view: View, policy: Freshness) -> Iterator[Finding]:
    """Every reader lives, every device was read lately, and every reading that it must give is there."""
    for reader in view.readers:
        yield from _reader(reader, policy, _nameless(view, reader))
    quarantined = {device for reader in view.readers for device in reader.quarantined}
    blamed = {device for reader in view.readers for device, falls in reader.blamed.items() if falls >= policy.hangs}
    present = {device.id for device in view.devices}
    remembered = (view.device(device) for device in sorted(quarantined - present))
    for device in (*view.devices, *(device for device in remembered if device)):
        yield from _broken_by(view, device, device.id in quarantined, device.id in blamed)
        unread = _unread(view, device)
        yield unread
        yield from _required(view, device, readable=unread.outcome is Outcome.PASS)


def _nameless(view: View, reader: ReaderStatus) -> str:
    """Return what *reader* leaves alone and nothing else names: it fell at an address before it named the device."""
    known = {name for device in view.devices for name in (device.id, device.pci)}
    return ", ".join(name for name in reader.quarantined if name not in known and view.device(name) is None)


def _reader(reader: ReaderStatus, policy: Freshness, nameless: str) -> Iterator[Finding]:
    part = of_reader(reader.backend)
    name = f"reader of {reader.backend}"
    running = reader.state is ReaderState.RUNNING
    # Boards that nothing reads are told by the inventory.
    rests = reader.state is ReaderState.ABSENT and not reader.required
    well = f"{name} answers" if running else f"{name} has nothing to read: {reader.detail}"
    down = _down(reader)
    # One that cannot be killed is seen all along.
    looked = None if reader.state is ReaderState.STUCK else reader.looked or NEVER
    if down is FailureKind.READER:
        rule = HELD if reader.state is ReaderState.STUCK else DOWN
        why = reader.failure.detail if reader.failure else reader.detail  # its detail is the new one's call by now
        yield rule.on_node(Outcome.UNMEASURED, f"{name} does not read: {why}", part=part, required=True, as_of=looked)
        return
    if running and nameless:
        yield DOWN.on_node(
            Outcome.UNMEASURED, f"{name} fell at {nameless} and leaves it alone", part=part, required=True
        )
    elif running or rests:
        yield DOWN.on_node(Outcome.PASS, well, part=part, evidence_time=reader.last_round)
    for kind in BROKEN:
        if down is kind:
            # A device that is to blame fails by itself, and its siblings are read again: the reader is not broken.
            again = reader.witnessed >= policy.hangs and not reader.quarantined
            final = kind is FailureKind.STUCK or again
            message = f"{name} is {reader.state.value}: {reader.detail or 'no detail'}"
            yield _broken(kind, final).on_node(_severity(final), message, part=part, required=not final, as_of=looked)
        elif running or rests:
            yield _broken(kind, True).on_node(Outcome.PASS, well, part=part, evidence_time=reader.last_round)
    if reader.state is ReaderState.FAILED or (reader.state is ReaderState.ABSENT and not rests):
        detail = reader.failure.detail if reader.failure else reader.detail
        facts = f"{name} failed: {detail}"
        if step := _step_elsewhere(reader.backend):
            rule = msgspec.structs.replace(FAILED, next_step=step)
            yield rule.on_node(Outcome.UNMEASURED, facts, part=part, required=True, as_of=looked)
        else:
            yield FAILED.on_node(Outcome.UNMEASURED, facts, part=part, required=True, as_of=looked)
    elif running or rests:
        yield FAILED.on_node(Outcome.PASS, well, part=part, evidence_time=reader.last_round)
    elif reader.state is ReaderState.STARTING and reader.last_round is None:
        # Whether there is anything to read is not known before the first answer: that is no reason to be ok.
        facts = f"{name} has not answered yet" + (f", it is in {reader.detail}" if reader.detail else "")
        next_step = "a driver may take a minute to start; after that it counts as hung"
        rule = msgspec.structs.replace(FAILED, action=Action.WATCH, next_step=next_step)
        yield rule.on_node(Outcome.UNMEASURED, facts, part=part, required=True, as_of=looked)
    elif reader.state in AWAY:
        yield FAILED.on_node(Outcome.SKIPPED, f"{name} is {reader.state.value}: {reader.detail}", part=part)


def _step_elsewhere(backend: str) -> str:
    """Return what to do where *backend* has neither device nodes nor a driver; empty where it has."""
    if backend == "host":
        return "see what hides /proc or /sys: ProcSubset= and ProtectProc= of the agent's unit, a container"
    if backend.startswith(COMMANDS):
        return "see what its command prints: nodevet readings check --command NAME"
    return ""


def _down(reader: ReaderStatus) -> FailureKind | None:
    """Return whose doing it is that *reader* is down: nobody's is shown where no fault of the driver is named."""
    kind = reader.failure.kind if reader.failure is not None else None
    if kind is FailureKind.READER and reader.state is not ReaderState.RUNNING:
        return kind
    if reader.state not in (ReaderState.HUNG, ReaderState.STUCK, ReaderState.CRASHED):
        return None
    return kind if kind in BROKEN else FailureKind.READER


def _broken_by(view: View, device: Device, quarantined: bool, blamed: bool) -> Iterator[Finding]:
    """Judge whether *device* brings its reader down; *blamed* is one that did so often inside calls of its driver."""
    failure = view.failure(device.id)
    name = device_name(view, device.id)
    for kind in BROKEN:
        guilty = failure is not None and failure.kind is kind
        if guilty and failure is not None:
            final = blamed or kind is FailureKind.STUCK
            seen = None if kind is FailureKind.STUCK else failure.as_of  # as above
            yield _broken(kind, final).on_node(
                _severity(final), f"{name}: {failure.detail}", device=device.id, required=not final, as_of=seen
            )
        elif failure is None and not quarantined and _samples(view, device):
            yield _broken(kind, True).on_node(Outcome.PASS, f"{name}: answers", device=device.id)


def _broken(kind: FailureKind, final: bool) -> Rule:
    if final:
        return BROKEN[kind]
    return msgspec.structs.replace(
        BROKEN[kind],
        action=Action.WATCH,
        clearing=Clearing.UNMEASURED,
        next_step="it is tried again; a second time counts as a failure",
    )


def _severity(final: bool) -> Outcome:
    return Outcome.FAIL if final else Outcome.UNMEASURED


def _unread(view: View, device: Device) -> Finding:
    name = device_name(view, device.id)
    samples = _samples(view, device)
    reader = next((reader for reader in view.readers if reader.backend == device.backend), None)
    if not samples:
        waiting = reader is None or reader.state in AWAY or reader.last_round is None
        return UNREAD.on_node(
            Outcome.SKIPPED if waiting else Outcome.UNMEASURED,
            f"{name}: was never read",
            device=device.id,
            required=not waiting,
            as_of=NEVER,
        )
    if reader is not None and reader.state is ReaderState.RELEASED:
        return UNREAD.on_node(Outcome.UNMEASURED, f"{name}: released, not read meanwhile", device=device.id)
    newest = max((sample.time for sample in samples), key=lambda time: time.boottime_ns)
    failed = max((s for s in samples if s.failure), key=lambda sample: sample.time.boottime_ns, default=None)
    if failed is not None and failed.failure is not None:
        why = f"group {failed.group} could not be read: {failed.failure.detail} ({failed.failure.kind.value})"
    else:
        unread = {group for backend, group in view.cadences if backend == device.backend}
        unread -= {sample.group for sample in samples}
        ages = [_age(view, sample) for sample in samples if view.is_old(sample)]
        why = "; ".join((*ages, *(f"group {group} was not read yet" for group in sorted(unread))))
    return UNREAD.on_node(
        Outcome.UNMEASURED if why else Outcome.PASS,
        f"{name}: {why or 'was read lately'}",
        device=device.id,
        required=bool(why),
        evidence_time=view.now if why else newest,
        as_of=_asked(samples) if why else None,
    )


def _asked(samples: Iterable[Sample]) -> Instant:
    """Return when the driver was asked last for any of *samples*: not as often as it is told that it cannot be."""
    times = (sample.failure.as_of if sample.failure and sample.failure.as_of else sample.time for sample in samples)
    return max(times, key=lambda time: time.boottime_ns)


def _age(view: View, sample: Sample) -> str:
    age = view.age_seconds(sample)
    cadence = view.cadences.get((sample.backend, sample.group))
    limit = f", limit {cadence.age_limit_seconds:.0f} s" if cadence else ""
    return f"group {sample.group} was last read " + ("in another boot" if age is None else f"{age:.0f} s ago") + limit


def _required(view: View, device: Device, *, readable: bool) -> Iterator[Finding]:
    """Judge the readings that devices of this make must give: those that are there outweigh those that are not.

    One odd value of a sensor, clock or link costs that reading alone: its own check says that it is unmeasured. Where
    nothing like it is told, it counts once the reading before it is old: the SRAM tells no errors of HBM. A board
    may lack a sensor, but not that of its core, for which only the core's own margin stands in.
    """
    for quantity in sorted(view.required.get(device.id, frozenset())):
        if OR in quantity:
            yield _any(view, device, quantity.split(OR), readable=readable)
            continue
        rule = msgspec.structs.replace(READING, code=f"reading.{quantity}", next_step=_advice(device, quantity))
        name = device_name(view, device.id)
        if not readable:
            yield rule.on_node(Outcome.UNMEASURED, f"{name}: the device was not read", device=device.id)
            continue
        entries = observations(view, device, quantity)
        excuse = _excuse(view, device, quantity, entries)
        if excuse:
            seen = view.evidence_time(device.id, quantity)  # what was missing before is not owed any more
            yield rule.on_node(Outcome.SKIPPED, f"{name}: {excuse}", device=device.id, evidence_time=seen)
            continue
        bad = [
            observation
            for observation in entries
            if not observation.measured
            and (observation.reading.status is not ReadingStatus.UNSUPPORTED or observation.part == CORE)
        ]
        why = _missing(view, quantity, entries, bad)
        # What was had a moment ago is no more missing than a sample that did not come once: it counts once it is old.
        lapsed = [observation for observation in bad if view.was_read_lately(device.id, quantity, observation.part)]
        counts = bool(why) and (not lapsed or bool(_missing(view, quantity, entries, bad, lapsed)))
        had = f"{why}; it was read in an earlier round, and counts once that is old" if why and not counts else why
        yield rule.on_node(
            Outcome.UNMEASURED if why else Outcome.PASS,
            f"{name}: {had or f'{quantity} is there'}",
            device=device.id,
            required=counts,
            evidence_time=view.evidence_time(device.id, quantity),
        )


def _advice(device: Device, quantity: str) -> str:
    """Return what to do where *quantity* is missing; links are not for want of permissions or a younger driver."""
    if quantity != "link_active":
        return READING.next_step
    return f"none of its links can be seen: {vendor_of(device.vendor).links_advice or INSPECT_LINKS}"


def _any(view: View, device: Device, quantities: list[str], *, readable: bool) -> Finding:
    """Judge whether *device* tells any of *quantities*: of one that tells none of them nothing is known."""
    name = device_name(view, device.id)
    if not readable:
        return ANY.on_node(Outcome.UNMEASURED, f"{name}: the device was not read", device=device.id)
    entries = [observation for quantity in quantities for observation in observations(view, device, quantity)]
    there = [observation.quantity for observation in entries if observation.measured]
    lapsed = any(view.was_read_lately(device.id, observation.quantity, observation.part) for observation in entries)
    return ANY.on_node(
        Outcome.PASS if there else Outcome.UNMEASURED,
        f"{name}: {there[0]} is there" if there else f"{name}: none of {', '.join(quantities)} is told",
        device=device.id,
        required=not there and not lapsed,
        evidence_time=view.evidence_time(device.id, *quantities),
    )


def _excuse(view: View, device: Device, quantity: str, entries: tuple[Observation, ...]) -> str:
    """Return why *device* does not owe *quantity* now, or nothing where it does."""
    if _turned_off(view, device, quantity, entries):
        return f"{NEEDS[quantity]} is off"
    if quantity in SPLIT and _is_untold(entries) and view.lately(device.id, "partitioned"):
        return f"{quantity} is not told while the device is split into instances"
    is_refused = all(observation.reading.status in NOT_TOLD for observation in entries)
    if device.virtual and is_refused and _tells_anything(view, device):
        return f"{quantity} is not supported by a share of a board in a virtual machine; its host tells it"
    return ""


def _missing(
    view: View,
    quantity: str,
    entries: tuple[Observation, ...],
    bad: list[Observation],
    lapsed: Collection[Observation] = (),
) -> str:
    """Return why *quantity* is missing, which *bad* do not tell, or an empty text; what only *lapsed* is there."""
    missing = [observation for observation in bad if observation not in lapsed]
    there = [*(observation for observation in entries if observation.measured), *lapsed]
    lacks_core = any(observation.part == CORE and not _has_margin(view, observation) for observation in missing)
    chip = [
        observation
        for observation in entries
        if observation.part.kind is PartKind.SENSOR and observation.part.name in ON_CHIP
    ]
    lacks_chip = bool(chip) and not any(observation in there or _has_margin(view, observation) for observation in chip)
    unseen = next(
        (observation for observation in missing if _alike(observation, missing) > _alike(observation, there)), None
    )
    if lacks_core or lacks_chip or unseen is not None:
        observation = unseen or (missing or chip)[0]
        of = f" of {observation.part}" if observation.part.kind is PartKind.MEMORY_BLOCK else ""
        said = f" ({observation.reading.detail})" if observation.reading.detail else ""
        return f"{quantity}{of} is {observation.reading.status.value}{said}"
    return "" if there else f"{quantity} is " + ("not supported" if entries else "not reported")


def _alike(observation: Observation, entries: Iterable[Observation]) -> int:
    """Return how many of *entries* are of parts like that of *observation*."""
    return sum(are_alike(observation.part, entry.part) for entry in entries)


def _has_margin(view: View, observation: Observation) -> bool:
    """Return whether the core's distance to its limit is told, although its temperature could not be read."""
    margin = view.number(observation.device, "temperature_margin_celsius", CORE)
    return (
        margin is not None and observation.part == CORE and observation.reading.status is not ReadingStatus.UNSUPPORTED
    )


def _turned_off(view: View, device: Device, quantity: str, entries: tuple[Observation, ...]) -> bool:
    """Return whether the device does not support *quantity* because the setting that it needs is off."""
    return _is_untold(entries) and quantity in NEEDS and view.lately(device.id, NEEDS[quantity]) == 0


def _is_untold(entries: tuple[Observation, ...]) -> bool:
    return all(observation.reading.status is ReadingStatus.UNSUPPORTED for observation in entries)


def _tells_anything(view: View, device: Device) -> bool:
    return any(entry.status is ReadingStatus.OK for sample in _samples(view, device) for entry in sample.readings)


def _samples(view: View, device: Device) -> list[Sample]:
    return [sample for (owner, _), sample in view.samples.items() if owner == device.id]
