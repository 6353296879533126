"""Throttling of clocks: by the throttle time that the device counts, else by its current flag.

Each reason is judged separately: hardware sets several at once, and a harmless reason must not hide another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta

from nodevet.checks.core.counts import count_of
from nodevet.checks.core.model import Action, Finding, Outcome, Part
from nodevet.checks.engine.judging import FEW, Observation, Rule, observations, with_next_sample
from nodevet.checks.engine.registry import check
from nodevet.checks.engine.reuse import Asked, dated
from nodevet.checks.engine.view import Growth, View
from nodevet.checks.reference.limits import choose

FAULTS = frozenset({"hardware_thermal", "hardware_slowdown", "power_brake", "processor_hot"})
NORMAL = frozenset({"idle", "power_cap", "board_limit", "low_utilization", "reliability"})
"""A device under full load runs at its power cap, and one without load idles. Both are normal."""
CHOSEN = frozenset({"applications_clocks", "sync_boost", "display_clocks"})
"""A user or an administrator set these clocks."""

DRIVERS_HEAT, HARDWARES_HEAT = "software_thermal", "hardware_thermal"
SUM, SUMMED = "vendor:thermal", frozenset({DRIVERS_HEAT, HARDWARES_HEAT})
"""NVML's older counter of both thermal reasons; newer drivers also count each separately. One cause is one finding."""

Looks = Mapping[Part, Observation]

NEXT_STEPS = {
    "vendor:thermal": "thermal slowdown: check fans, filters, coolant and inlet air",
    "hardware_thermal": "thermal slowdown by the hardware: check fans, coolant and inlet air",
    "hardware_slowdown": "the hardware halved its clocks: check cooling and power supply",
    "power_brake": "the power supply asserted power brake: check power supplies, cables and the rack's power budget",
    "software_thermal": "thermal slowdown by the driver: check fans and inlet air",
    "processor_hot": "the board asserts PROCHOT: check fans, coolant, inlet air and power supply",
    "socket_thermal": "thermal slowdown by the device: check fans and inlet air",
    "memory_thermal": "thermal slowdown because of the memory temperature: check fans, inlet air and the heat sink",
    "regulator_thermal": "thermal slowdown because of the voltage regulator temperature: check fans and inlet air",
    "core": "thermal slowdown of the processor: check its cooler and the fans",
    "package": "thermal slowdown of the processor: check its cooler and the fans",
}


class Throttle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limit of the throttle time; None takes the limit of the table."""

    ratio: (
        Annotated[float, Meta(ge=0, le=1, description="Share of time for which one reason may throttle the clock.")]
        | None
    ) = None
    needed: Annotated[int, Meta(ge=1, le=100, description="Bad samples that confirm a finding.")] = 3
    window: Annotated[int, Meta(ge=1, le=100, description="Latest samples among which bad ones are counted.")] = 5


@check("throttle", policy=Throttle, inputs=("throttle_seconds", "throttle_active", "throttle_events"))
def judge(view: View, policy: Throttle) -> Iterator[Finding]:
    """No clock is throttled by temperature, by hardware protection or by the power supply."""
    for device in view.devices:
        times, flags, events = (
            {observation.part: observation for observation in observations(view, device, f"throttle_{name}")}
            for name in ("seconds", "active", "events")
        )
        alone = {finding.part: finding for finding in dated(view, _by_flags, device, policy)}
        for part in dict.fromkeys((*times, *flags, *events)):
            rule = _rule(part, policy)
            told = _told_elsewhere(rule, part, times, flags, policy)
            if told is None and part not in times and part not in events:
                yield alone[part]
            else:
                yield told or _reason(rule, times.get(part), flags.get(part), events.get(part), policy)


def _by_flags(asked: Asked, policy: Throttle) -> Iterator[Finding]:
    """Judge each reason by its flag, as if the device counted no time: most are not counted, and not set."""
    for flag in asked.observations("throttle_active"):
        yield _reason(_rule(flag.part, policy), None, flag, None, policy)


def _told_elsewhere(rule: Rule, part: Part, times: Looks, flags: Looks, policy: Throttle) -> Finding | None:
    """Return a skipped finding where another reason reports the cause of *part*, or None: one cause is one finding.

    Some drivers count both thermal reasons in one sum only. A sum above its limit reports the driver's thermal
    slowdown; the flag of the hardware's slowdown, which is graver, is reported in place of the sum. A sum that does not
    grow hides no flag.
    """
    if part.name not in (SUM, DRIVERS_HEAT):
        return None
    total = next((observation for key, observation in times.items() if key.name == SUM), None)
    if total is None or not total.measured:
        return None
    if any(observation.measured for observation in times.values() if observation.part.name in SUMMED):
        return rule.skip(total, "counted separately for each reason") if part.name == SUM else None
    set_now = {key.name: observation for key, observation in flags.items() if observation.number}
    if part.name == SUM:
        return rule.skip(total, "reported as hardware_thermal") if HARDWARES_HEAT in set_now else None
    limit = choose("throttle.ratio", configuration=policy.ratio)
    if part.name not in set_now or total.growth is None or not limit.holds(total.growth.per_second):
        return None
    return rule.skip(set_now[part.name], f"reported as {SUM.removeprefix('vendor:')}")


@lru_cache(maxsize=100)
def _rule(part: Part, policy: Throttle) -> Rule:
    return Rule(
        check="throttle",
        code=f"throttle.{part.name.removeprefix('vendor:') or 'reason'}",
        outcome=Outcome.FAIL if part.name in FAULTS else Outcome.WARN,
        action=Action.INSPECT,
        next_step=NEXT_STEPS.get(part.name, "see the vendor's manual for this reason"),
    ).confirmed_by(policy)


def _reason(
    rule: Rule, time: Observation | None, flag: Observation | None, events: Observation | None, policy: Throttle
) -> Finding:
    """Judge one reason by its best source: throttle time, else the flag, else the event counter."""
    read = [observation for observation in (time, flag, events) if observation is not None]
    seen = next((observation for observation in read if observation.measured), None)
    if seen is None:
        # A source that could not be read explains more than one that is not supported.
        why = ((rule.unmeasured if observation is flag else rule.ungrown)(observation) for observation in read)
        unmeasured = [finding for finding in why if finding]
        return next((finding for finding in unmeasured if finding.outcome is Outcome.UNMEASURED), unmeasured[0])
    if seen.part.name in CHOSEN:
        return rule.skip(seen, "clocks were set by a user or an administrator")
    if time is not None and time.measured and time.growth is not None:
        return _by_time(rule, time, policy)
    if flag is not None and flag.measured:
        active = flag.number != 0
        facts = "throttled now" if active else "not throttled"
        return rule.judge(flag, active and flag.part.name not in NORMAL, facts)
    if events is not None and events.measured and not (time is not None and time.measured):
        return _by_events(rule, events)
    return rule.ungrown(seen) or rule.skip(seen, "no earlier sample to compare with")


def _by_time(rule: Rule, observation: Observation, policy: Throttle) -> Finding:
    limit = choose("throttle.ratio", configuration=policy.ratio)

    def facts(growth: Growth) -> str:
        share, allowed = 100 * growth.per_second, 100 * limit.value
        seconds = f"{growth.seconds:.0f}" if growth.seconds >= 10 else f"{growth.seconds:.1f}"
        return f"throttled for {share:.1f} % of the last {seconds} s, limit {allowed:.1f} %"

    return rule.grown(
        observation,
        lambda growth: limit.holds(growth.per_second) and observation.part.name not in NORMAL,
        facts,
        value=lambda growth: growth.per_second,
        unit=limit.unit,
        limit=limit,
    )


def _by_events(rule: Rule, observation: Observation) -> Finding:
    finding = rule.grown(
        observation,
        lambda growth: growth.amount > 0,
        lambda growth: f"{count_of(growth.amount, 'thermal throttle event')} in {growth.seconds:.0f} s",
    )
    return with_next_sample(finding, observation, 0.0, lambda rate: FEW / rate)
