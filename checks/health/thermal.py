"""Heat. The device's own margin comes first, then the limits it reports, then the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from nodevet.checks.judging import Look, Rule, looks, number_of
from nodevet.checks.limits import choose
from nodevet.checks.model import Action, Device, Finding, Limit, Outcome
from nodevet.checks.registry import check
from nodevet.checks.view import View

__all__ = ["Thermal", "judge"]

SLOWDOWN = Rule(
    check="thermal",
    code="temperature.slowdown",
    outcome=Outcome.FAIL,
    action=Action.INSPECT,
    next_step="the device slows itself down: check fans, filters, coolant and inlet air",
)
HIGH = Rule(
    check="thermal",
    code="temperature.high",
    outcome=Outcome.WARN,
    action=Action.INSPECT,
    next_step="compare with its neighbours, clean filters, check fans and inlet air",
)

BY_TABLE = frozenset({"core", "edge"})
"""Sensors that the table's absolute limits are about; memory and hotspot run hotter in health."""


class Thermal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of heat; None takes what the device reports, else the table."""

    margin_celsius: (
        Annotated[float, Meta(ge=0, le=50, description="Warn when the device's own margin is at or below this.")] | None
    ) = None
    high_celsius: (
        Annotated[float, Meta(ge=20, le=150, description="Warn at this temperature where no margin is reported.")]
        | None
    ) = None
    slowdown_celsius: (
        Annotated[float, Meta(ge=20, le=150, description="Fail at this temperature where no margin is reported.")]
        | None
    ) = None
    needed: Annotated[int, Meta(ge=1, le=100, description="Looks that must be bad.")] = 3
    window: Annotated[int, Meta(ge=1, le=100, description="Of how many looks in a row.")] = 5


@check(
    "thermal",
    policy=Thermal,
    inputs=(
        "temperature_celsius",
        "temperature_margin_celsius",
        "temperature_slowdown_celsius",
        "temperature_shutdown_celsius",
        "temperature_maximum_celsius",
    ),
)
def judge(view: View, policy: Thermal) -> Iterator[Finding]:
    """Every sensor stays clear of the temperature at which its device slows itself down."""
    for device in view.devices:
        margins = looks(view, device, "temperature_margin_celsius")
        sensors = looks(view, device, "temperature_celsius")
        measured = {margin.part for margin in margins if margin.measured}
        for margin in margins:
            if margin.part in measured:
                yield from _by_margin(margin, policy)
            elif not any(sensor.part == margin.part for sensor in sensors):
                yield from _blind(margin)
        for sensor in sensors:
            if sensor.part not in measured:
                yield from _by_temperature(view, device, sensor, policy)


def _by_margin(margin: Look, policy: Thermal) -> Iterator[Finding]:
    facts = f"{margin.number:.0f} celsius left before slowdown"
    slowdown = choose("temperature.slowdown_margin")
    high = choose("temperature.high_margin", configuration=policy.margin_celsius)
    yield SLOWDOWN.confirmed_by(policy).against(margin, margin.number, slowdown, facts)
    yield HIGH.confirmed_by(policy).against(margin, margin.number, high, f"{facts}, limit {high.value:.0f}")


def _by_temperature(view: View, device: Device, sensor: Look, policy: Thermal) -> Iterator[Finding]:
    if not sensor.measured:
        yield from _blind(sensor)
        return
    reported = {
        name: number_of(looks(view, device, f"temperature_{name}_celsius"), sensor.part)
        for name in ("slowdown", "shutdown", "maximum")
    }
    stop = reported["slowdown"] or reported["maximum"] or reported["shutdown"]
    margin = choose("temperature.high_margin", configuration=policy.margin_celsius).value
    warm = reported["maximum"] if stop is not reported["maximum"] else None
    at = stop.number if stop else None
    yield _against(
        SLOWDOWN.confirmed_by(policy),
        sensor,
        _limit("temperature.slowdown", sensor, policy.slowdown_celsius, at),
        stop,
    )
    yield _against(
        HIGH.confirmed_by(policy),
        sensor,
        _limit(
            "temperature.high",
            sensor,
            policy.high_celsius,
            warm.number if warm else at - margin if at is not None else None,
        ),
        warm or stop,
    )


def _against(rule: Rule, sensor: Look, limit: Limit | None, beside: Look | None) -> Finding:
    if limit is None:
        return rule.skip(sensor, f"{sensor.number:.0f} celsius; no limit is known for this sensor")
    facts = f"{sensor.number:.0f} celsius, limit {limit.value:.0f} ({limit.source})"
    return rule.against(sensor, sensor.number, limit, facts, beside=(beside,) if beside else ())


def _limit(key: str, sensor: Look, configured: float | None, reported: float | None) -> Limit | None:
    if configured is None and reported is None and sensor.part.name not in BY_TABLE:
        return None
    return choose(key, configuration=configured, reported=reported)


def _blind(look: Look) -> Iterator[Finding]:
    for rule in (SLOWDOWN, HIGH):
        finding = rule.blind(look)
        if finding is not None:
            yield finding
