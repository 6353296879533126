"""Temperature. The device's own thermal margin comes first, then the limits that it reports, then the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from nodevet.checks.core.model import Action, Device, Finding, Limit, Outcome
from nodevet.checks.engine.judging import Observation, Rule, number_of, observations
from nodevet.checks.engine.registry import check
from nodevet.checks.engine.view import View
from nodevet.checks.reference.limits import choose

SLOWDOWN = Rule(
    check="thermal",
    code="temperature.slowdown",
    outcome=Outcome.FAIL,
    action=Action.INSPECT,
    next_step="the device reduces its clocks: check fans, filters, coolant and inlet air",
)
HIGH = Rule(
    check="thermal",
    code="temperature.high",
    outcome=Outcome.WARN,
    action=Action.INSPECT,
    next_step="compare with neighbouring devices, clean filters, check fans and inlet air",
)

CHECK_COOLING = "check fans, filters, coolant and inlet air"
WORDS = {
    "slowdown": SLOWDOWN.next_step,
    "maximum": f"above the maximum operating temperature: {CHECK_COOLING}",
    "shutdown": f"the device shuts down at this temperature: {CHECK_COOLING}",
}
"""The next step by the limit that the device reports; the maximum operating temperature does not yet reduce clocks."""

SLOWDOWN_ROW, HIGH_ROW = 0, 1
CORE_KEYS = ("temperature.slowdown", "temperature.high")
BY_TABLE = {"core": CORE_KEYS, "edge": CORE_KEYS, "memory": ("temperature.memory_slowdown", "temperature.memory_high")}
"""Rows of the table by sensor; none for a hotspot, whose normal temperature only its vendor knows."""


class Thermal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Temperature limits; None takes the limit of the device, else of the table."""

    margin_celsius: (
        Annotated[float, Meta(ge=0, le=50, description="Warn at this thermal margin (T.Limit) of the device or less.")]
        | None
    ) = None
    high_celsius: (
        Annotated[
            float, Meta(ge=20, le=150, description="Warn at this temperature where the device reports no margin.")
        ]
        | None
    ) = None
    slowdown_celsius: (
        Annotated[
            float, Meta(ge=20, le=150, description="Fail at this temperature where the device reports no margin.")
        ]
        | None
    ) = None
    needed: Annotated[int, Meta(ge=1, le=100, description="Bad samples that confirm a finding.")] = 3
    window: Annotated[int, Meta(ge=1, le=100, description="Latest samples among which bad ones are counted.")] = 5


@check(
    "thermal",
    policy=Thermal,
    inputs=(
        "temperature_celsius",
        "temperature_margin_celsius",
        "temperature_margin_slowdown_celsius",
        "temperature_slowdown_celsius",
        "temperature_shutdown_celsius",
        "temperature_maximum_celsius",
    ),
)
def judge(view: View, policy: Thermal) -> Iterator[Finding]:
    """Every sensor is below the slowdown temperature and the warning temperature of its device."""
    for device in view.devices:
        margins = observations(view, device, "temperature_margin_celsius")
        sensors = observations(view, device, "temperature_celsius")
        measured = {margin.part for margin in margins if margin.measured}
        for margin in margins:
            if margin.part in measured:
                yield from _by_margin(view, device, margin, policy)
            elif not any(sensor.part == margin.part for sensor in sensors):
                yield from _unmeasured(margin)
        for sensor in sensors:
            if sensor.part not in measured:
                yield from _by_temperature(view, device, sensor, policy)


def _by_margin(view: View, device: Device, margin: Observation, policy: Thermal) -> Iterator[Finding]:
    """Judge the thermal margin; with a slowdown offset its zero is the maximum operating temperature."""
    offset = number_of(observations(view, device, "temperature_margin_slowdown_celsius"), margin.part)
    slowdown = choose("temperature.slowdown_margin", reported=offset.number if offset else None)
    high = choose("temperature.high_margin", configuration=policy.margin_celsius)
    number = margin.number or 0.0
    beside = (offset,) if offset else ()
    scale = f"margin {number:.0f} °C"
    facts = f"{_distance(number - slowdown.value)} the slowdown threshold ({scale}, threshold {slowdown.value:.0f} °C)"
    yield SLOWDOWN.confirmed_by(policy).against(margin, margin.number, slowdown, facts, beside=beside)
    zero = "maximum operating temperature" if offset is not None else "slowdown threshold"
    facts = f"{_distance(number)} the {zero} ({scale}, minimum {high.value:.0f} °C)"
    yield HIGH.confirmed_by(policy).against(margin, margin.number, high, facts, beside=beside)


def _distance(left: float) -> str:
    """Return the position of a temperature *left* degrees below a threshold as text, such as ``3 °C above``."""
    return f"{abs(left):.0f} °C {'below' if left > 0 else 'above'}" if round(left) else "at"


def _by_temperature(view: View, device: Device, sensor: Observation, policy: Thermal) -> Iterator[Finding]:
    if not sensor.measured:
        yield from _unmeasured(sensor)
        return
    reported = {
        name: number_of(observations(view, device, f"temperature_{name}_celsius"), sensor.part)
        for name in ("slowdown", "maximum", "shutdown")
    }
    which, stop = next(((name, observation) for name, observation in reported.items() if observation), ("", None))
    margin = choose("temperature.high_margin", configuration=policy.margin_celsius).value
    warm = reported["maximum"] if which != "maximum" else None
    at = stop.number if stop else None
    limit = _limit(SLOWDOWN_ROW, sensor, policy.slowdown_celsius, at)
    if limit is not None and at is not None and which == "maximum" and policy.slowdown_celsius is None:
        limit = msgspec.structs.replace(limit, op=">")  # the maximum operating temperature itself is allowed
    rule = SLOWDOWN if policy.slowdown_celsius is not None else _worded(which)
    yield _against(rule.confirmed_by(policy), sensor, limit, stop)
    below = at - margin if at is not None else None
    high = _limit(HIGH_ROW, sensor, policy.high_celsius, warm.number if warm else below)
    if high is not None and warm is None and below is not None and policy.high_celsius is None:
        source = f"{margin:.0f} °C below the {at:.0f} °C that the device reports"
        high = msgspec.structs.replace(high, source=source)
    yield _against(HIGH.confirmed_by(policy), sensor, high, warm or stop)


def _worded(which: str) -> Rule:
    """Return the rule with the next step for the reported limit *which*; a limit of the table has none."""
    return msgspec.structs.replace(SLOWDOWN, next_step=WORDS.get(which, CHECK_COOLING))


def _against(rule: Rule, sensor: Observation, limit: Limit | None, beside: Observation | None) -> Finding:
    if limit is None:
        return rule.skip(sensor, f"{sensor.number:.0f} °C; no limit is known for this sensor")
    facts = f"{sensor.number:.0f} °C, limit {limit.value:.0f} °C ({limit.source})"
    return rule.against(sensor, sensor.number, limit, facts, beside=(beside,) if beside else ())


def _limit(row: int, sensor: Observation, configured: float | None, reported: float | None) -> Limit | None:
    """Return the limit in force, or None if there is none; *row* is its index among those of the table."""
    if configured is None and reported is None and sensor.part.name not in BY_TABLE:
        return None
    key = BY_TABLE.get(sensor.part.name, CORE_KEYS)[row]
    return choose(key, configuration=configured, reported=reported)


def _unmeasured(observation: Observation) -> Iterator[Finding]:
    for rule in (SLOWDOWN, HIGH):
        finding = rule.unmeasured(observation)
        if finding is not None:
            yield finding
