"""Power: it is measured, its limit was not lowered, and the draw is below the limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from nodevet.checks.core.model import Action, FaultClass, Finding, Outcome, ReadingStatus
from nodevet.checks.engine.judging import Observation, Rule, observations
from nodevet.checks.engine.registry import check
from nodevet.checks.engine.view import View
from nodevet.checks.reference.limits import choose

READING = Rule(check="power", code="power.reading", outcome=Outcome.WARN)
LOWERED = Rule(
    check="power",
    code="power.limit_lowered",
    outcome=Outcome.WARN,
    fault_class=FaultClass.CONFIGURATION,
    action=Action.WATCH,
    next_step="raise the power limit, or, if the limit is intended, set checks.power.limit_watts",
)
OVER = Rule(
    check="power",
    code="power.over_limit",
    outcome=Outcome.WARN,
    action=Action.INSPECT,
    next_step="check the power supply and the power sensors of the board",
)


class Power(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of power; None takes the limit of the table."""

    limit_watts: (
        Annotated[float, Meta(ge=1, le=20000, description="Expected power limit; unset: the vendor's default.")] | None
    ) = None
    over_limit_ratio: (
        Annotated[float, Meta(ge=1, le=2, description="Warn when the power draw exceeds this multiple of the limit.")]
        | None
    ) = None
    needed: Annotated[int, Meta(ge=1, le=100, description="Bad samples that confirm a finding.")] = 3
    window: Annotated[int, Meta(ge=1, le=100, description="Latest samples among which bad ones are counted.")] = 5


@check(
    "power",
    policy=Power,
    inputs=("power_watts", "power_limit_watts", "power_limit_requested_watts", "power_limit_default_watts"),
)
def judge(view: View, policy: Power) -> Iterator[Finding]:
    """Power is measured, the power limit was not lowered, and the power draw is below it."""
    for device in view.devices:
        limits = {observation.part: observation for observation in observations(view, device, "power_limit_watts")}
        # The limit in force may be below the requested one: a module shares its power between its parts.
        requested = {
            observation.part: observation for observation in observations(view, device, "power_limit_requested_watts")
        }
        defaults = {
            observation.part: observation for observation in observations(view, device, "power_limit_default_watts")
        }
        for drawn in observations(view, device, "power_watts"):
            yield READING.judge(drawn, False, lambda watts: f"power draw {watts:.0f} W")
            if drawn.part in limits:
                yield _over_limit(drawn, limits[drawn.part], policy)
        for part, limit in limits.items():
            default = defaults.get(part)
            if policy.limit_watts is not None or default is not None:
                yield _lowered(_told(requested.get(part)) or limit, default, policy)


def _told(observation: Observation | None) -> Observation | None:
    """Return *observation*, or None where the device does not support it."""
    return None if observation is None or observation.reading.status is ReadingStatus.UNSUPPORTED else observation


def _over_limit(drawn: Observation, limit: Observation, policy: Power) -> Finding:
    rule = OVER.confirmed_by(policy)
    unmeasured = rule.unmeasured(drawn, limit)
    if unmeasured:
        return unmeasured
    if drawn.number is None or not limit.number:
        return rule.skip(drawn, "the device reports no power limit")
    allowed = choose("power.over_limit", configuration=policy.over_limit_ratio)
    ratio = drawn.number / limit.number
    facts = f"power draw {drawn.number:.0f} W, {100 * ratio:.0f} % of the power limit of {limit.number:.0f} W"
    return rule.against(drawn, ratio, allowed, facts, beside=(limit,))


def _lowered(limit: Observation, default: Observation | None, policy: Power) -> Finding:
    beside = () if default is None or policy.limit_watts is not None else (default,)
    meant = beside[0].number if beside else policy.limit_watts
    unmeasured = LOWERED.unmeasured(limit, *beside)
    if unmeasured or meant is None:
        return unmeasured or LOWERED.skip(limit, "the expected power limit is not known")
    return LOWERED.judge(
        limit,
        lambda watts: watts < meant,
        lambda watts: f"power limit {watts:.0f} W, expected {meant:.0f} W",
        unit="watts",
        beside=beside,
    )
