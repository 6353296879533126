"""Clocks held down: by the time that the device counted, else by its flag of the moment.

Each reason is judged for itself: hardware sets several at once, and one harmless reason must hide no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from nodevet.checks.core.model import Action, Finding, Outcome, Part
from nodevet.checks.engine.judging import FEW, Observation, Rule, observations, with_next_sample
from nodevet.checks.engine.registry import check
from nodevet.checks.engine.view import Growth, View
from nodevet.checks.reference.limits import choose

FAULTS = frozenset({"hardware_thermal", "hardware_slowdown", "power_brake", "processor_hot"})
NORMAL = frozenset({"idle", "power_cap", "board_limit", "low_utilization", "reliability"})
"""Under full load a device runs at its power cap; without load it idles. Both are health."""
CHOSEN = frozenset({"applications_clocks", "sync_boost", "display_clocks"})
"""Somebody asked for these clocks."""

DRIVERS_HEAT, HARDWARES_HEAT = "software_thermal", "hardware_thermal"
SUM, SUMMED = "vendor:thermal", frozenset({DRIVERS_HEAT, HARDWARES_HEAT})
"""NVML's older counter of both kinds of heat; newer drivers count them apart beside it, and one cause is told once."""

Looks = Mapping[Part, Observation]

NEXT_STEPS = {
    "vendor:thermal": "clocks are lowered because of heat: check fans, filters, coolant and inlet air",
    "hardware_thermal": "the hardware protects itself from heat: check fans, coolant and inlet air",
    "hardware_slowdown": "the hardware halved its clocks: check cooling and power supply",
    "power_brake": "the power supply asked for less load: check supplies, cables and the rack's budget",
    "software_thermal": "the driver lowers clocks because of heat: check fans and inlet air",
    "processor_hot": "the board calls for protection from heat: check fans, coolant, inlet air and power supply",
    "socket_thermal": "the device lowers clocks because of heat: check fans and inlet air",
    "memory_thermal": "the device lowers clocks because its memory is hot: check fans, inlet air and the heat sink",
    "regulator_thermal": "the device lowers clocks because its voltage regulators are hot: check fans and inlet air",
    "core": "the processor protects itself from heat: check its cooler and the fans",
    "package": "the processor protects itself from heat: check its cooler and the fans",
}


class Throttle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much of the time a clock may be held down; None takes the table."""

    ratio: (
        Annotated[float, Meta(ge=0, le=1, description="Share of the time that a reason may hold the clock down.")]
        | None
    ) = None
    needed: Annotated[int, Meta(ge=1, le=100, description="Looks that must be bad.")] = 3
    window: Annotated[int, Meta(ge=1, le=100, description="Of how many samples in a row.")] = 5


@check("throttle", policy=Throttle, inputs=("throttle_seconds", "throttle_active", "throttle_events"))
def judge(view: View, policy: Throttle) -> Iterator[Finding]:
    """No clock is held down by heat, by the hardware's own protection or by the power supply."""
    for device in view.devices:
        times, flags, events = (
            {observation.part: observation for observation in observations(view, device, f"throttle_{name}")}
            for name in ("seconds", "active", "events")
        )
        for part in dict.fromkeys((*times, *flags, *events)):
            rule = _rule(part, policy)
            told = _told_elsewhere(rule, part, times, flags, policy)
            yield told or _reason(rule, times.get(part), flags.get(part), events.get(part), policy)


def _told_elsewhere(rule: Rule, part: Part, times: Looks, flags: Looks, policy: Throttle) -> Finding | None:
    """Return that another reason tells what *part* stands for, or None: one cause is told once.

    Where heat is counted in one sum alone, a sum that grew too far tells of the driver's part in it, by its time, and
    the flag of the hardware's part tells of that, which weighs more. A sum that stands still hides no flag.
    """
    total = next((observation for key, observation in times.items() if key.name == SUM), None)
    if total is None or not total.measured or part.name not in {SUM, DRIVERS_HEAT}:
        return None
    if any(observation.measured for observation in times.values() if observation.part.name in SUMMED):
        return rule.skip(total, "its reasons are counted apart") if part.name == SUM else None
    set_now = {key.name: observation for key, observation in flags.items() if observation.number}
    if part.name == SUM:
        return (
            rule.skip(total, "the hardware's own protection from heat is told") if HARDWARES_HEAT in set_now else None
        )
    limit = choose("throttle.ratio", configuration=policy.ratio)
    if part.name not in set_now or total.growth is None or not limit.holds(total.growth.per_second):
        return None
    return rule.skip(set_now[part.name], f"{SUM.removeprefix('vendor:')} counts its time")


def _rule(part: Part, policy: Throttle) -> Rule:
    return Rule(
        check="throttle",
        code=f"throttle.{part.name.removeprefix('vendor:') or 'reason'}",
        outcome=Outcome.FAIL if part.name in FAULTS else Outcome.WARN,
        action=Action.INSPECT,
        next_step=NEXT_STEPS.get(part.name, "look the reason up in the vendor's manual"),
    ).confirmed_by(policy)


def _reason(
    rule: Rule, time: Observation | None, flag: Observation | None, events: Observation | None, policy: Throttle
) -> Finding:
    """Judge one reason once, by what says most of it: time counted, else the flag, else events counted."""
    read = [observation for observation in (time, flag, events) if observation is not None]
    seen = next((observation for observation in read if observation.measured), None)
    if seen is None:
        # That one of them is not supported explains less than that the other could not be read.
        why = ((rule.unmeasured if observation is flag else rule.ungrown)(observation) for observation in read)
        unmeasured = [finding for finding in why if finding]
        return next((finding for finding in unmeasured if finding.outcome is Outcome.UNMEASURED), unmeasured[0])
    if seen.part.name in CHOSEN:
        return rule.skip(seen, "clocks were set by somebody")
    if time is not None and time.measured and time.growth is not None:
        return _by_time(rule, time, policy)
    if flag is not None and flag.measured:
        active = flag.number != 0
        facts = "holds the clock down now" if active else "does not hold the clock down"
        return rule.judge(flag, active and flag.part.name not in NORMAL, facts)
    if events is not None and events.measured and not (time is not None and time.measured):
        return _by_events(rule, events)
    return rule.ungrown(seen) or rule.skip(seen, "nothing to compare with")


def _by_time(rule: Rule, observation: Observation, policy: Throttle) -> Finding:
    limit = choose("throttle.ratio", configuration=policy.ratio)

    def facts(growth: Growth) -> str:
        held = f"held the clock down for {growth.per_second:.1%} of the last {growth.seconds:.0f} s"
        return f"{held}, limit {limit.value:.1%}"

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
        lambda growth: f"{growth.amount:.0f} thermal throttle events in {growth.seconds:.0f} s",
    )
    return with_next_sample(finding, observation, 0.0, lambda rate: FEW / rate)
