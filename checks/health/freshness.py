"""Whether the node can be observed: running collectors, recent samples, required readings.

The other checks skip readings that are missing; this check reports each missing one, once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
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
    next_step="read the kernel log (journalctl -k) and the agent's log",
)
NO_ACCESS = msgspec.structs.replace(
    UNREAD,
    next_step="restart the agent if the driver was loaded after its start; otherwise check the permissions of the "
    "device node, and DeviceAllow= of the agent's unit or the devices of its container",
)
READING = Rule(
    check="freshness",
    code="reading.missing",
    outcome=Outcome.UNMEASURED,
    fault_class=FaultClass.NODE,
    action=Action.INSPECT,
    clearing=Clearing.UNMEASURED,
    next_step="this model supports the reading: read the kernel log (journalctl -k), check permissions and the driver "
    "version",
)
FAILED = Rule(
    check="freshness",
    code="reader.failed",
    outcome=Outcome.UNMEASURED,
    fault_class=FaultClass.NODE,
    action=Action.INSPECT,
    clearing=Clearing.UNMEASURED,
    next_step="the agent retries; if the error persists, check the permissions of the device nodes and the "
    "installation of the driver",
)


DOWN = Rule(
    check="freshness",
    code="reader.down",
    outcome=Outcome.UNMEASURED,
    fault_class=FaultClass.NODE,
    action=Action.WATCH,
    clearing=Clearing.UNMEASURED,
    next_step="the agent restarts it; no driver fault is known",
)
"""A collector that ended while nothing shows a fault of its driver: no hardware fault, whatever the reason."""

HELD = msgspec.structs.replace(
    DOWN, next_step="the agent starts another one as soon as its process is gone; no driver fault is known"
)
"""The same while its process is still there."""


def _final(code: str, next_step: str, at_first: Outcome | None = Outcome.UNMEASURED) -> Rule:
    return Rule(
        check="freshness",
        code=code,
        fault_class=FaultClass.NODE,
        action=Action.REBOOT,
        clearing=Clearing.HARDWARE_EVENT,
        next_step=next_step,
        at_first=at_first,
    )


BROKEN = {
    FailureKind.HUNG: _final("reader.hung", "drain and reboot the node"),
    FailureKind.STUCK: _final("reader.stuck", "its process cannot be killed: drain and reboot the node", None),
    FailureKind.CRASHED: _final("reader.crashed", "drain and reboot the node; report the crash to the driver's vendor"),
}
"""Rules for a driver that hung or crashed its collector repeatedly; the first time is unknown."""

ANY = msgspec.structs.replace(
    READING,
    code="reading.any",
    next_step="the driver reports no reading of the board: check permissions and the driver version; where the driver"
    " does not support the board, read it with a command backend and remove the backend from agent.backends",
)
"""For boards that report few readings, of which at least one is required."""
CORE = Part(PartKind.SENSOR, "core")
ON_CHIP = frozenset({"core", "hotspot", "edge", "package"})
"""Sensors of the chip, of which one is required: AMD SMI has no core sensor, and memory may be cool on a hot chip."""
INSPECT_LINKS = "have the board, the baseboard and the switches inspected"
"""The next step for links of a vendor without own advice."""
SPLIT = frozenset({"row_remap_failed", "link_active"})
"""Readings that a partitioned device does not report (nvml.h nvmlDeviceGetRemappedRows: "not supported if MIG is
enabled"); findings from before the partitioning stay open."""
NEEDS = {"ecc_uncorrected_errors": "ecc_enabled"}
"""Readings that a device supports only while a setting is on; the check of the setting reports that it is off."""
NOT_TOLD = frozenset({ReadingStatus.UNSUPPORTED, ReadingStatus.DENIED})
"""Statuses in a virtual machine of a reading that only the host of the board can read."""
STATES = {ReaderState.HUNG: "hung", ReaderState.STUCK: "is stuck", ReaderState.CRASHED: "crashed"}
"""How a message says that a collector is broken."""
AWAY = frozenset({ReaderState.STARTING, ReaderState.RELEASED, ReaderState.STOPPED, ReaderState.ABSENT})
"""States in which a collector delivers no samples for a known reason."""


class Freshness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a driver counts as broken."""

    hangs: Annotated[
        int,
        Meta(
            ge=1,
            le=10,
            description="A collector is failed after this number of hangs or crashes in driver calls within the time "
            "of reader_faults.csv; before, it is unknown.",
        ),
    ] = int(from_table("reader.falls").value)


@check("freshness", policy=Freshness)
def judge(view: View, policy: Freshness) -> Iterator[Finding]:
    """Every collector runs, every device was read recently, and every required reading is present."""
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
    """Return the addresses that *reader* skips and no finding names: a read there ended it before there was a name."""
    known = {name for device in view.devices for name in (device.id, device.pci)}
    return ", ".join(name for name in reader.quarantined if name not in known and view.device(name) is None)


def _reader(reader: ReaderStatus, policy: Freshness, nameless: str) -> Iterator[Finding]:
    part = of_reader(reader.backend)
    name = f"{reader.backend} collector"
    running = reader.state is ReaderState.RUNNING
    # The check inventory reports boards without a collector.
    rests = reader.state is ReaderState.ABSENT and not reader.required
    well = f"{name} answers" if running else f"{name} has no device: {reader.detail}"
    down = _down(reader)
    # A process that cannot be killed is seen all the time.
    looked = None if reader.state is ReaderState.STUCK else reader.looked or NEVER
    if down is FailureKind.READER:
        rule = HELD if reader.state is ReaderState.STUCK else DOWN
        why = reader.failure.detail if reader.failure else reader.detail  # the latter is the call of the new process
        facts = why.removeprefix("the ") if why.startswith(f"the {name} ") else f"{name} is down: {why}"
        yield rule.on_node(Outcome.UNMEASURED, facts, part=part, required=True, as_of=looked)
        return
    if running and nameless:
        yield DOWN.on_node(
            Outcome.UNMEASURED, f"{name} failed at {nameless} and no longer reads it", part=part, required=True
        )
    elif running or rests:
        yield DOWN.on_node(Outcome.PASS, well, part=part, evidence_time=reader.last_round)
    elif reader.state is ReaderState.FAILED:
        yield DOWN.on_node(Outcome.PASS, f"{name} runs; its library refuses", part=part, evidence_time=reader.looked)
    for kind in BROKEN:
        if down is kind:
            # A device that is at fault fails by itself, and the others are read again: the collector is not broken.
            again = reader.witnessed >= policy.hangs and not reader.quarantined
            final = kind is FailureKind.STUCK or again
            message = f"{name} {STATES[reader.state]}: {reader.detail or 'no detail'}"
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
        # Before the first answer it is not known whether there is a device: that is no reason to be ok.
        facts = f"{name} has not answered yet" + (f", it is in the call {reader.detail}" if reader.detail else "")
        next_step = "wait: a driver may take a minute to start; after that time the collector counts as hung"
        rule = msgspec.structs.replace(FAILED, action=Action.WATCH, next_step=next_step)
        yield rule.on_node(Outcome.UNMEASURED, facts, part=part, required=True, as_of=looked)
    elif reader.state in AWAY:
        yield FAILED.on_node(Outcome.SKIPPED, f"{name} is {reader.state.value}: {reader.detail}", part=part)


def _step_elsewhere(backend: str) -> str:
    """Return the next step of a *backend* without device nodes and driver; empty for the others."""
    if backend == "host":
        return "check access to /proc and /sys: ProcSubset= and ProtectProc= of the agent's unit, mounts of a container"
    if backend.startswith(COMMANDS):
        return "check the output of its command: nodevet readings check --command NAME"
    return ""


def _down(reader: ReaderStatus) -> FailureKind | None:
    """Return the kind of failure that took *reader* down; READER where no fault of the driver is known."""
    kind = reader.failure.kind if reader.failure is not None else None
    if kind is FailureKind.READER and reader.state is not ReaderState.RUNNING:
        return kind
    if reader.state not in (ReaderState.HUNG, ReaderState.STUCK, ReaderState.CRASHED):
        return None
    return kind if kind in BROKEN else FailureKind.READER


def _broken_by(view: View, device: Device, quarantined: bool, blamed: bool) -> Iterator[Finding]:
    """Judge whether *device* takes its collector down; *blamed* says that it did so repeatedly in driver calls."""
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
        next_step="the agent retries; a device whose calls hang or crash twice is failed",
    )


def _severity(final: bool) -> Outcome:
    return Outcome.FAIL if final else Outcome.UNMEASURED


def _unread(view: View, device: Device) -> Finding:
    name = device_name(view, device.id)
    samples = _samples(view, device)
    reader = view.reader(device.backend)
    if not samples:
        waiting = reader is None or reader.state in AWAY or reader.last_round is None
        return UNREAD.on_node(
            Outcome.SKIPPED if waiting else Outcome.UNMEASURED,
            f"{name}: never read",
            device=device.id,
            required=not waiting,
            as_of=NEVER,
        )
    if reader is not None and reader.state is ReaderState.RELEASED:
        return UNREAD.on_node(Outcome.UNMEASURED, f"{name}: released and not read", device=device.id)
    newest = max((sample.time for sample in samples), key=lambda time: time.boottime_ns)
    failed = max((s for s in samples if s.failure), key=lambda sample: sample.time.boottime_ns, default=None)
    if failed is not None and failed.failure is not None:
        why = f"its {failed.group} readings are missing ({failed.failure.kind.value}): {failed.failure.detail}"
    else:
        unread = {group for backend, group in view.cadences if backend == device.backend}
        unread -= {sample.group for sample in samples}
        ages = [_age(view, sample) for sample in samples if view.is_old(sample)]
        why = "; ".join((*ages, *(f"its {group} readings were not taken yet" for group in sorted(unread))))
    rule = NO_ACCESS if failed and failed.failure and failed.failure.kind is FailureKind.DENIED else UNREAD
    return rule.on_node(
        Outcome.UNMEASURED if why else Outcome.PASS,
        f"{name}: {why or 'read recently'}",
        device=device.id,
        required=bool(why),
        evidence_time=view.now if why else newest,
        as_of=_asked(samples) if why else None,
    )


def _asked(samples: Iterable[Sample]) -> Instant:
    """Return when the driver was last called for any of *samples*; a repeated failure keeps its time."""
    times = (sample.failure.as_of if sample.failure and sample.failure.as_of else sample.time for sample in samples)
    return max(times, key=lambda time: time.boottime_ns)


def _age(view: View, sample: Sample) -> str:
    age = view.age_seconds(sample)
    cadence = view.cadences.get((sample.backend, sample.group))
    limit = f", limit {cadence.age_limit_seconds:.0f} s" if cadence else ""
    when = "before the last boot" if age is None else f"{age:.0f} s ago"
    return f"its {sample.group} readings were last taken {when}{limit}"


def _required(view: View, device: Device, *, readable: bool) -> Iterator[Finding]:
    """Judge the readings that devices of this model must report.

    One implausible value of a sensor, clock or link is unmeasured in its own check and missing for no other part. Where
    no reading of a similar part is present, it counts once the previous reading is old. A board may lack a sensor, but
    not the core sensor, unless it reports the thermal margin of the core.
    """
    for quantity in sorted(view.required.get(device.id, frozenset())):
        if OR in quantity:
            yield _any(view, device, quantity.split(OR), readable=readable)
            continue
        name = device_name(view, device.id)
        entries = observations(view, device, quantity)
        if readable and entries and all(observation.measured for observation in entries):
            # As nearly always: there is nothing to excuse, and no step to advise.
            yield _of_reading(quantity, READING.next_step).on_node(
                Outcome.PASS,
                f"{name}: {quantity} is present",
                device=device.id,
                evidence_time=view.evidence_time(device.id, quantity),
            )
            continue
        rule = _of_reading(quantity, _advice(view, device, quantity))
        if not readable:
            yield rule.on_node(Outcome.UNMEASURED, f"{name}: device not read", device=device.id)
            continue
        excuse = _excuse(view, device, quantity, entries)
        if excuse:
            seen = view.evidence_time(device.id, quantity)  # a reading that was missing is no longer required
            yield rule.on_node(Outcome.SKIPPED, f"{name}: {excuse}", device=device.id, evidence_time=seen)
            continue
        bad = [
            observation
            for observation in entries
            if not observation.measured
            and (observation.reading.status is not ReadingStatus.UNSUPPORTED or observation.part == CORE)
        ]
        why = _missing(view, quantity, entries, bad)
        # A reading of the last rounds counts as missing once it is old, like a sample that did not arrive.
        lapsed = [observation for observation in bad if view.was_read_lately(device.id, quantity, observation.part)]
        counts = bool(why) and (not lapsed or bool(_missing(view, quantity, entries, bad, lapsed)))
        had = f"{why}; the value of an earlier round is still valid" if why and not counts else why
        yield rule.on_node(
            Outcome.UNMEASURED if why else Outcome.PASS,
            f"{name}: {had or f'{quantity} is present'}",
            device=device.id,
            required=counts,
            evidence_time=view.evidence_time(device.id, quantity),
        )


@lru_cache(maxsize=200)
def _of_reading(quantity: str, next_step: str) -> Rule:
    return msgspec.structs.replace(READING, code=f"reading.{quantity}", next_step=next_step)


def _advice(view: View, device: Device, quantity: str) -> str:
    """Return the next step where *quantity* is missing; neither permissions nor a newer driver bring links back.

    Of links that the driver failed to read nothing is known: they may be up.
    """
    could_not = {ReadingStatus.ERROR, ReadingStatus.DENIED, ReadingStatus.UNAVAILABLE}
    if quantity != "link_active" or any(entry.status in could_not for entry, _ in view.readings(device.id, quantity)):
        return READING.next_step
    return f"no link is reported: {vendor_of(device.vendor).links_advice or INSPECT_LINKS}"


def _any(view: View, device: Device, quantities: list[str], *, readable: bool) -> Finding:
    """Judge whether *device* reports at least one of *quantities*."""
    name = device_name(view, device.id)
    if not readable:
        return ANY.on_node(Outcome.UNMEASURED, f"{name}: device not read", device=device.id)
    entries = [observation for quantity in quantities for observation in observations(view, device, quantity)]
    there = [observation.quantity for observation in entries if observation.measured]
    lapsed = any(view.was_read_lately(device.id, observation.quantity, observation.part) for observation in entries)
    return ANY.on_node(
        Outcome.PASS if there else Outcome.UNMEASURED,
        f"{name}: {there[0]} is present" if there else f"{name}: none of {', '.join(quantities)} is reported",
        device=device.id,
        required=not there and not lapsed,
        evidence_time=view.evidence_time(device.id, *quantities),
    )


def _excuse(view: View, device: Device, quantity: str, entries: tuple[Observation, ...]) -> str:
    """Return why *device* need not report *quantity* now, or an empty text where it must."""
    if _turned_off(view, device, quantity, entries):
        return f"{NEEDS[quantity]} is off"
    if quantity in SPLIT and _is_untold(entries) and view.lately(device.id, "partitioned"):
        return f"{quantity} is not reported while the device is partitioned"
    is_refused = all(observation.reading.status in NOT_TOLD for observation in entries)
    if device.virtual and is_refused and _tells_anything(view, device):
        return f"{quantity} is not supported by a virtual GPU; the host of the virtual machine reports it"
    return ""


def _missing(
    view: View,
    quantity: str,
    entries: tuple[Observation, ...],
    bad: list[Observation],
    lapsed: Collection[Observation] = (),
) -> str:
    """Return why *quantity* is missing in *bad*, or an empty text; a reading that only *lapsed* is present."""
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
    """Return whether the thermal margin of the core is reported although its temperature could not be read."""
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
