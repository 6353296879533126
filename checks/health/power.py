"""Power: it can be measured, its limit is the vendor's, and the limit is held."""

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
    next_step="raise the limit, or tell the configuration that it is meant",
)
OVER = Rule(
    check="power",
    code="power.over_limit",
    outcome=Outcome.WARN,
    action=Action.INSPECT,
    next_step="the limit is not held: check the power supply and the board's sensors",
)


class Power(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of power; None takes the table."""

    limit_watts: (
        Annotated[float, Meta(ge=1, le=20000, description="The power limit that is meant; unset: the vendor's.")] | None
    ) = None
    over_limit_ratio: (
        Annotated[float, Meta(ge=1, le=2, description="Warn when more than this multiple of the limit is drawn.")]
        | None
    ) = None
    needed: Annotated[int, Meta(ge=1, le=100, description="Looks that must be bad.")] = 3
    window: Annotated[int, Meta(ge=1, le=100, description="Of how many samples in a row.")] = 5


@check(
    "power",
    policy=Power,
    inputs=("power_watts", "power_limit_watts", "power_limit_requested_watts", "power_limit_default_watts"),
)
def judge(view: View, policy: Power) -> Iterator[Finding]:
    """Power can be measured, nobody lowered its limit, and the limit is held."""
    for device in view.devices:
        limits = {observation.part: observation for observation in observations(view, device, "power_limit_watts")}
        # What is in force may be less than what was asked for: a module shares its power between its parts.
        requested = {
            observation.part: observation for observation in observations(view, device, "power_limit_requested_watts")
        }
        defaults = {
            observation.part: observation for observation in observations(view, device, "power_limit_default_watts")
        }
        for drawn in observations(view, device, "power_watts"):
            yield READING.judge(drawn, False, lambda watts: f"draws {watts:.0f} watts")
            if drawn.part in limits:
                yield _over_limit(drawn, limits[drawn.part], policy)
        for part, limit in limits.items():
            default = defaults.get(part)
            if policy.limit_watts is not None or default is not None:
                yield _lowered(_told(requested.get(part)) or limit, default, policy)


def _told(observation: Observation | None) -> Observation | None:
    """Return *observation* unless its device does not tell this at all."""
    return None if observation is None or observation.reading.status is ReadingStatus.UNSUPPORTED else observation


def _over_limit(drawn: Observation, limit: Observation, policy: Power) -> Finding:
    rule = OVER.confirmed_by(policy)
    unmeasured = rule.unmeasured(drawn, limit)
    if unmeasured:
        return unmeasured
    if drawn.number is None or not limit.number:
        return rule.skip(drawn, "the device names no power limit")
    allowed = choose("power.over_limit", configuration=policy.over_limit_ratio)
    facts = f"draws {drawn.number:.0f} watts, limit {limit.number:.0f} watts"
    return rule.against(drawn, drawn.number / limit.number, allowed, facts, beside=(limit,))


def _lowered(limit: Observation, default: Observation | None, policy: Power) -> Finding:
    beside = () if default is None or policy.limit_watts is not None else (default,)
    meant = beside[0].number if beside else policy.limit_watts
    unmeasured = LOWERED.unmeasured(limit, *beside)
    if unmeasured or meant is None:
        return unmeasured or LOWERED.skip(limit, "the power limit that is meant is not known")
    return LOWERED.judge(
        limit,
        lambda watts: watts < meant,
        lambda watts: f"power limit {watts:.0f} watts, meant {meant:.0f} watts",
        unit="watts",
        beside=beside,
    )
