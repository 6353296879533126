"""Links between devices: NVLink, xGMI and their like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from nodevet.checks.core.counts import count_of
from nodevet.checks.core.model import (
    NODE,
    Action,
    Clearing,
    Device,
    FaultClass,
    Finding,
    Instant,
    Limit,
    Outcome,
    Part,
    PartKind,
    ReadingStatus,
)
from nodevet.checks.engine.judging import FEW, Observation, Rule, observations, with_next_sample
from nodevet.checks.engine.registry import check
from nodevet.checks.engine.reuse import Asked, dated, looked
from nodevet.checks.engine.switches import told_of_switch
from nodevet.checks.engine.view import View, device_name
from nodevet.checks.reference.expected_links import ExpectedLinks, Which, expected_links
from nodevet.checks.reference.fabric import SEPARATOR, FabricFault, fault_named
from nodevet.checks.reference.limits import choose

_rule = partial(Rule, check="links")
_setting = partial(_rule, fault_class=FaultClass.CONFIGURATION, action=Action.INSPECT)
_warning = partial(_rule, outcome=Outcome.WARN, action=Action.INSPECT)
DOWN = _rule(
    code="link.down",
    action=Action.DRAIN_RESET,
    next_step="drain the node and reset the device; if the link stays down, have board and baseboard inspected",
)
ALL_DOWN = _rule(
    code="link.all_down",
    action=Action.DRAIN_RESET,
    next_step="drain the node and reset the device; if links stay down, have board, baseboard and switches inspected",
)
NOT_JOINED = msgspec.structs.replace(
    ALL_DOWN,
    fault_class=FaultClass.CONFIGURATION,
    action=Action.INSPECT,
    next_step="start the fabric manager of the same version as the driver and read its log; if it runs, have board, "
    "baseboard and switches inspected",
)
NOT_GIVEN = msgspec.structs.replace(
    ALL_DOWN,
    outcome=Outcome.WARN,
    fault_class=FaultClass.CONFIGURATION,
    action=Action.INSPECT,
    next_step="the host of this virtual machine may withhold links: ask its operator which links are assigned; if "
    "none are, set checks.links.expected = 0",
)
MAY_BE_SPLIT = msgspec.structs.replace(
    ALL_DOWN,
    action=Action.WATCH,
    clearing=Clearing.UNMEASURED,
    next_step="the agent queries the device again in each round; if it never answers, query it with the vendor's tool",
)
UNNAMED = msgspec.structs.replace(ALL_DOWN, outcome=Outcome.WARN, action=Action.INSPECT)
"""Of a board that no table knows, which says itself that it is part of a fabric."""
SWITCH = _rule(
    code="fabric.switch",
    action=Action.DRAIN_RESET,
    next_step="read the kernel log and the fabric manager log, drain the node, reset devices and switches; if links "
    "stay down, have switches and baseboard inspected",
)
FEWER = _warning(
    code="link.fewer",
    next_step="the missing ports were never up on this node: reset the device; if they stay missing, have it inspected",
)
REPLAY = _warning(code="link.replay", next_step="poor link signal: inspect board, connectors and cables")
RECOVERY = _warning(code="link.recovery", next_step="the link retrains: inspect board, connectors and cables")
CRC_RATE = _warning(code="link.crc_rate", next_step="poor link signal: inspect board, connectors and cables")
EFFECTIVE = _warning(code="link.effective", next_step="errors remain after correction: inspect connectors and cables")
FABRIC_HEALTH = _rule(
    code="fabric.health",
    action=Action.DRAIN_RESET,
    next_step="read the fabric manager's log, drain the node and reset devices and switches",
)
FABRIC_CONFIGURATION = _setting(
    code="fabric.configuration",
    next_step="compare the configuration of the device with that of its fabric; a reset does not help",
)
FABRIC = _setting(
    code="fabric.state", next_step="start the fabric manager of the same version as the driver and read its log"
)


UNSUPPORTED = ReadingStatus.UNSUPPORTED
BOARD = Part(PartKind.POWER_SCOPE, "device")
JOINED = "the device reports that it has joined a fabric"


class Links(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of link errors; None takes the limit of the table."""

    expected: (
        Annotated[int, Meta(ge=0, le=64, description="Links that must be up on each accelerator; unset: learned.")]
        | None
    ) = None
    crc_per_second: Annotated[float, Meta(ge=0, description="Limit of CRC errors per second on a link.")] | None = None
    needed: Annotated[int, Meta(ge=1, le=100, description="Bad samples that confirm a finding.")] = 3
    window: Annotated[int, Meta(ge=1, le=100, description="Latest samples among which bad ones are counted.")] = 5


@check(
    "links",
    policy=Links,
    inputs=(
        "link_active",
        "link_replay_errors",
        "link_recovery_errors",
        "link_crc_errors",
        "link_effective_errors",
        "fabric_state",
        "fabric_healthy",
        "fabric_faults",
        "partitioned",
        "energy_joules",
    ),
)
def judge(view: View, policy: Links) -> Iterable[Finding]:
    """Every expected link is up, its errors are below the limit, and the device has joined its fabric."""
    return told_of_switch(view, _settled(view, policy), SWITCH)


def _settled(view: View, policy: Links) -> Iterator[Finding]:
    """Return the findings; they close no gate while the node joins its fabric."""
    # The fabric manager starts after the driver and needs time: reported at once, but no agent ends its own drain.
    is_booted = choose("fabric.settling").holds(view.now.boottime_ns / 1e9)
    settling = {device.id for device in view.devices if is_booted or _is_loaded_anew(view, device.id)}
    if not settling:  # each layer of generators would handle all findings of the round once more
        return _judged(view, policy)
    return (
        msgspec.structs.replace(finding, gates=False) if finding.device in settling else finding
        for finding in _judged(view, policy)
    )


def _is_loaded_anew(view: View, device_id: str) -> bool:
    """Return whether the driver was loaded minutes ago, without a boot: a device counts its energy since then.

    The counter may not change: a reader that has run longer than the fabric needs shows that.
    """
    used = view.lately(device_id, "energy_joules", BOARD)
    if used is None or used <= 0 or not choose("fabric.settling_energy").holds(used):
        return False
    device = view.device(device_id)
    reader = view.reader(device.backend) if device is not None else None
    read_for = None if reader is None or reader.since is None else view.now.seconds_since(reader.since)
    return read_for is None or choose("fabric.settling").holds(read_for)


def _judged(view: View, policy: Links) -> Iterator[Finding]:
    for device in view.devices:
        links = observations(view, device, "link_active")
        dark = _all_down(view, device, links, policy)
        yield from dark
        is_dark = any(finding.outcome is Outcome.FAIL for finding in dark)
        is_told = any(finding.outcome in (Outcome.WARN, Outcome.FAIL) for finding in dark)
        up = {finding.part: finding for finding in dated(view, _up, device, policy)}
        if len(up) == len(links):  # as on most boards in most rounds
            yield from up.values()
        else:
            yield from _each(view, device, links, policy, up, is_dark=is_dark)
        yield from _fewer(view, device, links, policy, is_told=is_told)
        yield from looked(view, _errors, device, policy)
        yield from looked(view, _fabric, device, policy)


def _each(
    view: View,
    device: Device,
    links: tuple[Observation, ...],
    policy: Links,
    up: Mapping[Part, Finding],
    *,
    is_dark: bool,
) -> Iterator[Finding]:
    """Judge each of *links*; nothing else is asked about one that is *up*."""
    for observation in links:
        if observation.part in up:
            yield up[observation.part]
            continue
        told = DOWN.skip(observation, "reported as link.all_down") if is_dark else None
        yield told or _left_out(view, device, observation, links) or _down(view, device, observation, policy)


def _up(asked: Asked, _policy: Links) -> Iterator[Finding]:
    """Judge the links that are up."""
    for observation in asked.observations("link_active"):
        if observation.number:
            yield DOWN.judge(observation, False, "the link is up")


def _all_down(view: View, device: Device, links: tuple[Observation, ...], policy: Links) -> list[Finding]:
    """Judge whether any link is up, once for the device: all links down have one cause and one remedy."""
    measured = [observation for observation in links if observation.measured]
    silent = bool(links) and all(observation.reading.status is UNSUPPORTED for observation in links)
    unseen = silent and any(
        observation.measured
        for sibling in view.siblings(device)
        for observation in observations(view, sibling, "link_active")
    )
    if not (measured or unseen):
        return []
    dark = not any(observation.number for observation in links) and len(measured) == sum(
        observation.reading.status is not UNSUPPORTED for observation in links
    )
    if _is_split(view, device) or _may_be_split(view, device):
        return [_of_split(view, device, links)]
    why = _why_any(view, device, measured, policy) if dark else ""
    if why is None and policy.expected != 0:
        return []
    if why is None:  # findings from before the configuration end
        dark, why = False, ""
    registration = view.reading(device.id, "fabric_state")
    joined = registration is None or registration.value in (None, "completed")
    down = f"all {len(measured)} links are down" if measured else "it reports no link, and others of its model do"
    up = sum(bool(observation.number) for observation in links)
    proven = any(_proven(view, device, observation) for observation in measured)
    rule = ALL_DOWN if joined else NOT_JOINED
    if _is_guest(view) and policy.expected is None and not (proven or unseen):
        rule = NOT_GIVEN
    else:
        rule = _cured_with(_misconfigured(view, device), UNNAMED if why == JOINED else rule)
    facts = f"{down} although {why}" if dark else f"{up} links are up"
    by_number_alone = policy.expected is not None and not proven
    return [
        rule.on_node(
            rule.outcome if dark else Outcome.PASS,
            f"{device_name(view, device.id)}: {facts}",
            device=device.id,
            part=Part(PartKind.LINK),
            value=up,
            limit=_configured(policy.expected) if dark and by_number_alone and policy.expected is not None else None,
            evidence_time=_oldest(links),
        )
    ]


def _cured_with(fault: FabricFault | None, rule: Rule) -> Rule:
    """Return *rule* with the remedy for the configuration *fault* of the fabric: a reset does not correct that."""
    if fault is None:
        return rule
    return msgspec.structs.replace(rule, fault_class=fault.fault_class, action=fault.action, next_step=fault.next_step)


def _of_split(view: View, device: Device, links: tuple[Observation, ...]) -> Finding:
    """Return that links that read as down may be healthy, because *device* is or may be partitioned."""
    is_split = _is_split(view, device)
    why = (
        "the device is partitioned"
        if is_split
        else "no link is up, and the device did not report whether it is partitioned"
    )
    return MAY_BE_SPLIT.on_node(
        Outcome.SKIPPED if is_split else Outcome.UNMEASURED,
        f"{device_name(view, device.id)}: {why}",
        device=device.id,
        part=Part(PartKind.LINK),
        required=not is_split,
        evidence_time=_oldest(links),
    )


def _why_any(view: View, device: Device, measured: list[Observation], policy: Links) -> str | None:
    """Return why at least one link should be up, or None if there is no reason."""
    row = _row(view, device)
    by_port = (_expected(view, device, observation, policy) for observation in measured)
    found = next((why for why in by_port if why), None)
    if found is not None or policy.expected is not None:
        return found
    if row is not None:
        return f"{device.model} has {row.links} links"
    return JOINED if _is_in_a_fabric(view, device) else None


def _is_in_a_fabric(view: View, device: Device) -> bool:
    """Return whether a board in no table reports that it has joined a fabric, beside others of its make."""
    registration = view.reading(device.id, "fabric_state")
    joined = registration is not None and registration.value == "completed"
    return joined and not device.virtual and bool(view.siblings(device)) and expected_links(device) is None


def _oldest(links: tuple[Observation, ...]) -> Instant | None:
    return min(
        (observation.time for observation in links if observation.time), key=lambda time: time.boottime_ns, default=None
    )


def _left_out(view: View, device: Device, observation: Observation, links: tuple[Observation, ...]) -> Finding | None:
    """Return that a port that was up is not in use any more while others are, or None if that is not the case."""
    seen = view.memory.seen.get(device.id)
    was_up = seen is not None and observation.part.index in seen.links_up
    if not was_up or observation.reading.status is not UNSUPPORTED or not any(other.measured for other in links):
        return None
    if _is_split(view, device) or _may_be_split(view, device):
        return None
    return DOWN.absent(observation, "the port is no longer in use although its link was up before", value=False)


def _down(view: View, device: Device, observation: Observation, policy: Links) -> Finding:
    if observation.number != 0:
        return DOWN.judge(observation, False, "the link is up")
    why = _expected(view, device, observation, policy)
    if _is_split(view, device):
        return DOWN.skip(observation, "the link is down because the device is partitioned")
    if _may_be_split(view, device):
        return DOWN.skip(observation, "the link is down, and the device did not report whether it is partitioned")
    if why is None and policy.expected is not None:
        return DOWN.judge(observation, False, f"the link is down, and checks.links.expected is {policy.expected}")
    if why is None:
        return DOWN.skip(observation, "the link is down, and it was never up or expected")
    limit = None if policy.expected is None or _proven(view, device, observation) else _configured(policy.expected)
    return DOWN.judge(observation, True, f"the link is down although {why}", limit=limit)


def _configured(expected: int) -> Limit:
    return Limit("<", expected, "", "configuration")


def _expected(view: View, device: Device, observation: Observation, policy: Links) -> str | None:
    """Return why the link should be up, or None: a healthy board without a bridge has all links down.

    The site's number comes first, and if only that number requires the link, it closes no gate.
    """
    before = _ports_before(view, device, observation.part.index)
    if policy.expected is not None and (before >= policy.expected or _number_up(view, device) >= policy.expected):
        return None
    return _proven(view, device, observation) or (
        None if policy.expected is None else f"checks.links.expected is {policy.expected}"
    )


def _proven(view: View, device: Device, observation: Observation) -> str | None:
    """Return why the link should be up by its history or the board's table row, or None."""
    port, before = observation.part.index, _ports_before(view, device, observation.part.index)
    seen = view.memory.seen.get(device.id)
    if seen is not None and port in seen.links_up:
        return "it was up before"
    for sibling in view.siblings(device):
        remembered = view.memory.seen.get(sibling.id)
        is_up = view.number(sibling.id, "link_active", observation.part) or (remembered and port in remembered.links_up)
        # Behind a switch every board has its counterpart; a bridge connects only some.
        if is_up and any(link.port == port and link.peer == "switch" for link in sibling.links):
            return f"link {port} of {sibling.pci or sibling.id} is up"
    row = _row(view, device)
    if row is None or row.which in (Which.SOME, Which.ALIKE) or port is None or before >= row.links:
        return None
    if row.bridge and len(_ever_up(view, device)) % row.bridge == 0:
        return None
    return f"{device.model} has {row.links} links"


def _row(view: View, device: Device) -> ExpectedLinks | None:
    """Return the links that boards of this make have up; a single one in a virtual machine has no peer.

    If a bridge connects them, it must have been seen on this very board: beside a pair, a third one may stand alone. In
    a virtual machine the host decides which ports are connected: only their number is known.
    """
    row = expected_links(device) if view.siblings(device) else None
    if row is not None and _is_guest(view):
        which = Which.SOME if row.which is Which.EVERY else row.which
        row = msgspec.structs.replace(row, which=which, bridge=row.between or row.bridge)
    if row is None or row.which is not Which.BRIDGED:
        return row
    return row if _was_up(view, device) else None


def _is_guest(view: View) -> bool:
    node = view.device(NODE)
    return node is not None and node.virtual


def _number_up(view: View, device: Device) -> int:
    return sum(bool(observation.number) for observation in observations(view, device, "link_active"))


def _was_up(view: View, device: Device) -> bool:
    """Return whether a link of *device* is up, or ever was."""
    return bool(_ever_up(view, device))


def _ever_up(view: View, device: Device) -> set[int | None]:
    """Return the ports of *device* that are or were up: whole bridges may be absent, but a part of one is broken."""
    seen = view.memory.seen.get(device.id)
    up = {observation.part.index for observation in observations(view, device, "link_active") if observation.number}
    return up | set(seen.links_up if seen else ())


def _fewer(
    view: View, device: Device, links: tuple[Observation, ...], policy: Links, *, is_told: bool
) -> Iterator[Finding]:
    """Judge whether *device* uses as many ports as it should: a port that it omits is not reported as down."""
    row = _row(view, device)
    expected = (row.links if row else None) if policy.expected is None else policy.expected
    if expected is None or not links or _is_split(view, device) or _may_be_split(view, device):
        return
    part, name = Part(PartKind.LINK), device_name(view, device.id)
    used = sum(observation.reading.status is not UNSUPPORTED for observation in links)
    counts_up = policy.expected is None and row is not None and row.which in (Which.SOME, Which.ALIKE)
    if not any(observation.measured for observation in links):
        outcome = Outcome.UNMEASURED if used else Outcome.SKIPPED
        yield FEWER.on_node(outcome, f"{name}: no link was measured", device=device.id, part=part)
        return
    if counts_up and is_told:
        yield FEWER.on_node(Outcome.SKIPPED, f"{name}: all its links are down", device=device.id, part=part)
        return
    wanted = f"{device.model} has {expected}" if policy.expected is None else f"{expected} are expected"
    if counts_up:
        used = _number_up(view, device)
    if counts_up and row is not None and row.which is Which.ALIKE:
        expected = max(used, *(_number_up(view, board) for board in view.siblings(device)))
        wanted = f"boards beside it have {expected}"
    limit = Limit("<", expected, "", "table") if policy.expected is None else _configured(expected)
    yield FEWER.on_node(
        Outcome.WARN if limit.holds(used) else Outcome.PASS,
        f"{name}: {'has' if counts_up else 'uses'} {count_of(used, 'link')}{' up' if counts_up else ''}, {wanted}",
        device=device.id,
        part=part,
        value=used,
        limit=limit,
        evidence_time=_oldest(links),
    )


def _is_split(view: View, device: Device) -> bool:
    """Return whether MIG instances take the links of *device*. A device that reports its partition mode keeps them."""
    if view.reading(device.id, "compute_partition") is not None:
        return False
    return bool(view.lately(device.id, "partitioned")) or any(other.parent == device.id for other in view.devices)


def _may_be_split(view: View, device: Device) -> bool:
    """Return whether no link of *device* is up and it does not report, and did not recently, if it is partitioned.

    Its links may be down but healthy. A device with a link up is not partitioned.
    """
    told = view.reading(device.id, "partitioned")
    is_told = told is None or told.status in (ReadingStatus.OK, UNSUPPORTED)
    return not is_told and view.lately(device.id, "partitioned") is None and not _number_up(view, device)


def _ports_before(view: View, device: Device, port: int | None) -> int:
    """Return the number of used ports before *port*: which ports a board omits may depend on its slot."""
    parts = [
        observation.part.index
        for observation in observations(view, device, "link_active")
        if observation.reading.status is not UNSUPPORTED
    ]
    return sum(port is not None and other is not None and other < port for other in parts)


def _errors(asked: Asked, policy: Links) -> Iterator[Finding]:
    """Judge the error counts of each link."""
    replay, recovery, effective, crc = (rule.confirmed_by(policy) for rule in (REPLAY, RECOVERY, EFFECTIVE, CRC_RATE))
    for observation in asked.observations("link_replay_errors"):
        yield _counted(replay, observation, "link.replay")
    for observation in asked.observations("link_recovery_errors"):
        yield _counted(recovery, observation, "link.recovery")
    for observation in asked.observations("link_crc_errors"):
        yield _crc_rate(crc, observation, policy)
    for observation in asked.observations("link_effective_errors"):
        yield _counted(effective, observation, "link.effective")


def _counted(rule: Rule, observation: Observation, key: str) -> Finding:
    in_all = f"{observation.number:.0f} in total" if observation.number is not None else ""
    finding = rule.rate(
        observation,
        choose(key),
        lambda growth: growth.amount,
        lambda growth: f"{count_of(growth.amount, 'new error')} in {growth.seconds:.0f} s, {in_all}",
    )
    return with_next_sample(finding, observation, 0.0, lambda rate: FEW / rate)


def _crc_rate(rule: Rule, observation: Observation, policy: Links) -> Finding:
    limit = choose("link.crc_rate", configuration=policy.crc_per_second)
    return rule.rate(
        observation,
        limit,
        lambda growth: growth.per_second,
        lambda growth: f"{growth.per_second:.1f} CRC errors per second, limit {limit.value:.0f}",
    )


def _fabric(asked: Asked, policy: Links) -> Iterator[Finding]:
    """Judge the fabric by the device's report: the faults that it names, else only whether there are any."""
    healthy = asked.observations("fabric_healthy")
    named = asked.observations("fabric_faults")
    faults = _faults(named)
    wrong = [fault for fault in faults if fault.fault_class is FaultClass.CONFIGURATION]
    for observation in named:
        yield _named_faults(FABRIC_CONFIGURATION, observation, wrong, policy)
    broken = [fault for fault in faults if fault not in wrong]
    for observation in named if faults or not healthy else ():
        yield _named_faults(FABRIC_HEALTH, observation, broken, policy)
    for observation in () if faults else healthy:
        facts = f"the device reports {'no' if observation.number else 'a'} fabric fault"
        yield FABRIC_HEALTH.judge(observation, observation.number == 0, facts)
    for observation in asked.observations("fabric_state"):
        yield _registered(observation, policy)


def _faults(named: Iterable[Observation]) -> list[FabricFault]:
    """Return the faults of its fabric in *named*, the device's report."""
    return [fault_named(word) for observation in named if observation.measured for word in _words(observation)]


def _misconfigured(view: View, device: Device) -> FabricFault | None:
    """Return the worst wrong setting of its fabric that *device* reports, or None."""
    faults = _faults(observations(view, device, "fabric_faults"))
    wrong = [fault for fault in faults if fault.fault_class is FaultClass.CONFIGURATION]
    return _worst(wrong) if wrong else None


def _worst(faults: list[FabricFault]) -> FabricFault:
    return max(faults, key=lambda fault: (fault.outcome is Outcome.FAIL, fault.static, fault.action.rank))


def _words(observation: Observation) -> list[str]:
    return [word for word in str(observation.reading.value).split(SEPARATOR) if word]


def _named_faults(rule: Rule, observation: Observation, faults: list[FabricFault], policy: Links) -> Finding:
    """Judge all *faults* of one class by the worst of them; a permanent fault counts in one sample."""
    if not faults:
        return rule.judge(observation, False, "the device reports no such fabric fault")
    worst = _worst(faults)
    rule = msgspec.structs.replace(
        rule, outcome=worst.outcome, fault_class=worst.fault_class, action=worst.action, next_step=worst.next_step
    )
    rule = rule if any(fault.static for fault in faults) else rule.confirmed_by(policy)
    return rule.judge(observation, True, "; ".join(fault.text for fault in faults))


def _registered(observation: Observation, policy: Links) -> Finding:
    state = str(observation.reading.value)
    rule = FABRIC if state != "in_progress" else FABRIC.confirmed_by(policy)
    return rule.judge(observation, state != "completed", f"fabric registration is {state.replace('_', ' ')}")
