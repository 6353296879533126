"""The PCIe link: its width, its generation under load, and its errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from nodevet.checks.judging import Look, Rule, looks, number_of
from nodevet.checks.limits import choose
from nodevet.checks.model import Action, Clearing, Device, Finding, Limit, Outcome
from nodevet.checks.registry import check
from nodevet.checks.view import View

__all__ = ["Pcie", "judge"]

WIDTH = Rule(
    check="pcie",
    code="pcie.width",
    outcome=Outcome.WARN,
    action=Action.INSPECT,
    next_step="reseat the board or riser, clean its contacts, compare with another slot",
)
GENERATION = Rule(
    check="pcie",
    code="pcie.generation",
    outcome=Outcome.WARN,
    action=Action.INSPECT,
    next_step="reseat the board or riser, check the slot's setting in the firmware",
)
REPLAYS = Rule(
    check="pcie",
    code="pcie.replay_rate",
    outcome=Outcome.WARN,
    action=Action.INSPECT,
    next_step="the signal is poor: reseat the board or riser",
)
CORRECTABLE = Rule(
    check="pcie",
    code="pcie.correctable_rate",
    outcome=Outcome.WARN,
    action=Action.INSPECT,
    next_step="the signal is poor: reseat the board or riser",
)
FATAL = Rule(
    check="pcie",
    code="pcie.fatal",
    action=Action.REBOOT,
    clearing=Clearing.HARDWARE_EVENT,
    next_step="drain the node, reboot it, prove the device with a burn-in",
)
NONFATAL = Rule(
    check="pcie",
    code="pcie.nonfatal",
    outcome=Outcome.WARN,
    action=Action.INSPECT,
    next_step="a transfer was lost: reseat the board or riser when it happens again",
)

HIGHEST_GENERATION = 6

TOGETHER_SECONDS = 3.0
"""Groups that are due at once are read one after the other, well within this time; cadences are longer."""


class Pcie(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of the PCIe link; None takes the table."""

    replays_per_minute: (
        Annotated[float, Meta(ge=0, description="Packets sent again per minute; unset: by generation and lanes.")]
        | None
    ) = None
    correctable_per_minute: (
        Annotated[float, Meta(ge=0, description="Correctable errors per minute that the link may have.")] | None
    ) = None
    utilization_ratio: (
        Annotated[float, Meta(ge=0, le=1, description="Judge the generation only while the device is this busy.")]
        | None
    ) = None
    needed: Annotated[int, Meta(ge=1, le=100, description="Looks that must be bad.")] = 3
    window: Annotated[int, Meta(ge=1, le=100, description="Of how many looks in a row.")] = 5


@check(
    "pcie",
    policy=Pcie,
    inputs=(
        "pcie_link_width",
        "pcie_link_width_maximum",
        "pcie_link_generation",
        "pcie_link_generation_maximum",
        "pcie_replays",
        "pcie_correctable_errors",
        "pcie_nonfatal_errors",
        "pcie_fatal_errors",
        "utilization_ratio",
    ),
)
def judge(view: View, policy: Pcie) -> Iterator[Finding]:
    """The PCIe link has all its lanes and, under load, its full generation; it loses and repeats nothing."""
    for device in view.devices:
        widest = {look.part: look for look in looks(view, device, "pcie_link_width_maximum")}
        fastest = {look.part: look for look in looks(view, device, "pcie_link_generation_maximum")}
        for look in looks(view, device, "pcie_link_width"):
            yield _width(look, widest.get(look.part), policy)
        for look in looks(view, device, "pcie_link_generation"):
            yield _generation(view, device, look, fastest.get(look.part), policy)
        for look in looks(view, device, "pcie_replays"):
            yield _replays(view, device, look, policy)
        for look in looks(view, device, "pcie_correctable_errors"):
            yield _correctable(look, policy)
        for look in looks(view, device, "pcie_nonfatal_errors"):
            yield _grown(NONFATAL, look, "non-fatal")
        for look in looks(view, device, "pcie_fatal_errors"):
            yield _grown(FATAL, look, "fatal")


def _width(width: Look, widest: Look | None, policy: Pcie) -> Finding:
    rule = WIDTH.confirmed_by(policy)
    if widest is None:
        return rule.blind(width) or rule.skip(width, "the widest possible link is not known")
    blind = rule.blind(width, widest)
    if blind:
        return blind
    facts = f"{width.number:.0f} lanes of {widest.number:.0f}"
    limit = Limit("<", widest.number, "", "reported by the device")
    return rule.against(width, width.number, limit, facts, beside=(widest,))


def _generation(view: View, device: Device, generation: Look, fastest: Look | None, policy: Pcie) -> Finding:
    rule = GENERATION.confirmed_by(policy)
    if fastest is None:
        return rule.blind(generation) or rule.skip(generation, "the highest generation is not known")
    blind = rule.blind(generation, fastest)
    if blind:
        return blind
    busy = next((look for look in looks(view, device, "utilization_ratio") if look.part.name == "compute"), None)
    load = choose("pcie.generation_utilization", configuration=policy.utilization_ratio)
    if busy is None or not busy.measured:
        return rule.skip(generation, "whether the device is busy is not known; links slow down at idle")
    if not _at_once(generation, busy):
        return rule.skip(generation, "load and generation were not read together; links slow down at idle")
    if not load.holds(busy.number):
        return rule.skip(generation, f"the device is {busy.number:.0%} busy; links slow down at idle")
    facts = f"generation {generation.number:.0f} of {fastest.number:.0f} under load"
    limit = Limit("<", fastest.number, "", "reported by the device")
    return rule.against(generation, generation.number, limit, facts, beside=(fastest, busy))


def _at_once(one: Look, other: Look) -> bool:
    """Return whether both were read at about the same moment: their groups have cadences of their own."""
    if one.time is None or other.time is None:
        return False
    apart = one.time.seconds_since(other.time)
    return apart is not None and abs(apart) <= TOGETHER_SECONDS


def _replays(view: View, device: Device, look: Look, policy: Pcie) -> Finding:
    rule = REPLAYS.confirmed_by(policy)
    blind = rule.ungrown(look)
    if blind:
        return blind
    link = _link(view, device, look)
    if policy.replays_per_minute is not None:
        link, limit = (), Limit(">", policy.replays_per_minute, "per_minute", "configuration")
    elif not link:
        return rule.skip(look, "generation and lanes of the link are not known")
    else:
        lanes, generation = link
        row = choose(f"pcie.replay_rate.gen{min(max(int(generation.number), 1), HIGHEST_GENERATION)}")
        limit = Limit(row.op, row.value * lanes.number, "per_minute", row.source)
    # Whole packets: in a short window a single replay is no rate.
    broken = look.grew > math.ceil(limit.value * look.seconds / 60)
    facts = f"{look.grew:.0f} replays in {look.seconds:.0f} s, limit {limit.value:.0f} per minute"
    return rule.judge(look, broken, facts, value=look.per_second * 60, unit=limit.unit, limit=limit, beside=link)


def _link(view: View, device: Device, look: Look) -> tuple[Look, ...]:
    """Return the looks at lanes and generation of the link, or nothing where one of them is not measured."""
    lanes = number_of(looks(view, device, "pcie_link_width"), look.part)
    generation = number_of(looks(view, device, "pcie_link_generation"), look.part)
    return (lanes, generation) if lanes and generation else ()


def _correctable(look: Look, policy: Pcie) -> Finding:
    rule = CORRECTABLE.confirmed_by(policy)
    limit = choose("pcie.correctable_rate", configuration=policy.correctable_per_minute)
    facts = f"{look.grew:.0f} correctable errors in {look.seconds:.0f} s, limit {limit.value:.0f} per minute"
    return rule.ungrown(look) or rule.against(look, look.per_second * 60, limit, facts)


def _grown(rule: Rule, look: Look, word: str) -> Finding:
    facts = f"{look.grew:.0f} new {word} PCIe errors, {look.number:.0f} since boot"
    return rule.ungrown(look) or rule.judge(look, look.grew > 0, facts, value=look.grew, occurrence=look.occurrence)
