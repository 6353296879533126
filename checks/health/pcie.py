"""The PCIe link: its width, its generation under load, and its errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from nodevet.checks.core.counts import count_of
from nodevet.checks.core.model import Action, Clearing, Finding, Limit, Outcome
from nodevet.checks.engine.judging import FEW, Observation, Rule, number_of, with_next_sample
from nodevet.checks.engine.registry import check
from nodevet.checks.engine.reuse import Asked, looked
from nodevet.checks.engine.view import Growth, View
from nodevet.checks.reference.limits import choose

_rule = partial(Rule, check="pcie")
_warning = partial(_rule, outcome=Outcome.WARN, action=Action.INSPECT)
WIDTH = _warning(
    code="pcie.width",
    next_step="reseat the board or riser, clean its contacts, compare with another slot; if the slot or virtual "
    "machine has no more lanes, set checks.pcie.lanes",
)
GENERATION = _warning(
    code="pcie.generation",
    next_step="reseat the board or riser, check the slot's setting in the firmware; if the slot supports no higher "
    "generation, set checks.pcie.generation",
)
REPLAYS = _warning(code="pcie.replay_rate", next_step="poor signal: reseat the board or riser")
CORRECTABLE = _warning(code="pcie.correctable_rate", next_step="poor signal: reseat the board or riser")
FATAL = _rule(
    code="pcie.fatal",
    action=Action.REBOOT,
    clearing=Clearing.HARDWARE_EVENT,
    next_step="drain the node, reboot it, run a burn-in",
)
NONFATAL = _warning(
    code="pcie.nonfatal", next_step="a transfer was lost: if it happens again, reseat the board or riser"
)

HIGHEST_GENERATION = 6

TOGETHER_SECONDS = 3.0
"""Groups that are due together are read one after the other, well within this time; cadences are longer."""


class Pcie(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of the PCIe link; None takes the limit of the table."""

    lanes: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=32,
                description="Lanes that the slot or virtual machine provides; unset: all lanes of the device.",
            ),
        ]
        | None
    ) = None
    generation: (
        Annotated[int, Meta(ge=1, le=8, description="PCIe generation of the slot; unset: the highest of the device.")]
        | None
    ) = None
    replays_per_minute: (
        Annotated[float, Meta(ge=0, description="Limit of replays per minute; unset: by generation and lanes.")] | None
    ) = None
    correctable_per_minute: (
        Annotated[float, Meta(ge=0, description="Limit of correctable errors per minute.")] | None
    ) = None
    utilization_ratio: (
        Annotated[float, Meta(ge=0, le=1, description="Minimum utilization at which the generation is judged.")] | None
    ) = None
    needed: Annotated[int, Meta(ge=1, le=100, description="Bad samples that confirm a finding.")] = 3
    window: Annotated[int, Meta(ge=1, le=100, description="Latest samples among which bad ones are counted.")] = 5


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
    """The PCIe link has its full width, and its full generation under load; errors and replays are below the limits."""
    for device in view.devices:
        yield from looked(view, _link, device, policy)


def _link(asked: Asked, policy: Pcie) -> Iterator[Finding]:
    """Judge the link of one device."""
    widest = {observation.part: observation for observation in asked.observations("pcie_link_width_maximum")}
    fastest = {observation.part: observation for observation in asked.observations("pcie_link_generation_maximum")}
    for observation in asked.observations("pcie_link_width"):
        yield _width(observation, widest.get(observation.part), policy)
    for observation in asked.observations("pcie_link_generation"):
        yield _generation(asked, observation, fastest.get(observation.part), policy)
    for observation in asked.observations("pcie_replays"):
        yield _replays(asked, observation, policy)
    for observation in asked.observations("pcie_correctable_errors"):
        yield _correctable(observation, policy)
    for observation in asked.observations("pcie_nonfatal_errors"):
        yield _grown(NONFATAL, observation, "non-fatal")
    for observation in asked.observations("pcie_fatal_errors"):
        yield _grown(FATAL, observation, "fatal")


def _width(width: Observation, widest: Observation | None, policy: Pcie) -> Finding:
    rule = WIDTH.confirmed_by(policy)
    if policy.lanes is not None:
        lanes = Limit("<", policy.lanes, "", "configuration")
        return rule.against(width, width.number, lanes, f"the link has {width.number or 0:.0f} of {policy.lanes} lanes")
    if widest is None:
        return rule.unmeasured(width) or rule.skip(width, "the maximum link width is not known")
    unmeasured = rule.unmeasured(width, widest)
    if unmeasured:
        return unmeasured
    if widest.number is None:
        return rule.skip(width, "the maximum link width is not known")
    facts = f"the link has {width.number:.0f} of {widest.number:.0f} lanes"
    limit = Limit("<", widest.number, "", "reported by the device")
    return rule.against(width, width.number, limit, facts, beside=(widest,))


def _generation(asked: Asked, generation: Observation, fastest: Observation | None, policy: Pcie) -> Finding:
    rule = GENERATION.confirmed_by(policy)
    beside: tuple[Observation, ...] = ()
    if policy.generation is not None:
        limit = Limit("<", policy.generation, "", "configuration")
    elif fastest is None or fastest.number is None:
        return rule.unmeasured(generation, *([fastest] if fastest else [])) or rule.skip(
            generation, "the maximum generation is not known"
        )
    else:
        limit = Limit("<", fastest.number, "", "reported by the device")
        beside = (fastest,)
    seen = f"generation {generation.number or 0:.0f} of {limit.value:.0f}"
    if generation.number is None or not limit.holds(generation.number):  # at full speed the load is irrelevant
        return rule.against(generation, generation.number, limit, seen, beside=beside)
    busy = next(
        (observation for observation in asked.observations("utilization_ratio") if observation.part.name == "compute"),
        None,
    )
    load = choose("pcie.generation_utilization", configuration=policy.utilization_ratio)
    if busy is None or busy.number is None:
        return rule.skip(generation, f"{seen}; utilization is not known, and idle links run slower")
    if not _at_once(generation, busy):
        return rule.skip(
            generation, f"{seen}; utilization and generation were not read together, and idle links run slower"
        )
    if not load.holds(busy.number):
        return rule.skip(generation, f"{seen}; utilization is {100 * busy.number:.0f} %, and idle links run slower")
    return rule.against(generation, generation.number, limit, f"{seen} under load", beside=(*beside, busy))


def _at_once(one: Observation, other: Observation) -> bool:
    """Return whether both were read at about the same time: their groups have different cadences."""
    if one.time is None or other.time is None:
        return False
    apart = one.time.seconds_since(other.time)
    return apart is not None and abs(apart) <= TOGETHER_SECONDS


def _replays(asked: Asked, observation: Observation, policy: Pcie) -> Finding:
    rule = REPLAYS.confirmed_by(policy)
    unmeasured = rule.ungrown(observation)
    if unmeasured:
        return unmeasured
    lanes, generation, fastest = (
        number_of(asked.observations(f"pcie_link_{name}"), observation.part)
        for name in ("width", "generation", "generation_maximum")
    )
    beside: tuple[Observation, ...] = ()
    if policy.replays_per_minute is not None:
        limit = Limit(">", policy.replays_per_minute, "per_minute", "configuration")
    elif lanes is None or generation is None or lanes.number is None or generation.number is None:
        return rule.skip(observation, "generation and lanes of the link are not known")
    else:
        # At idle the link slows down; the replays happened earlier, at up to its full speed.
        at_most = policy.generation or (fastest.number if fastest else None) or generation.number
        row = choose(f"pcie.replay_rate.gen{min(max(int(generation.number), int(at_most), 1), HIGHEST_GENERATION)}")
        limit = Limit(row.op, row.value * lanes.number, "per_minute", row.source)
        beside = (lanes, generation)
    finding = rule.grown(
        observation,
        # Whole packets: in a short window, one replay is no rate.
        lambda growth: growth.amount > math.ceil(limit.value * growth.seconds / 60),
        lambda growth: _new(growth, "replay", limit),
        value=lambda growth: growth.per_second * 60,
        unit=limit.unit,
        limit=limit,
        beside=beside,
    )
    return _again(finding, observation, limit)


def _correctable(observation: Observation, policy: Pcie) -> Finding:
    rule = CORRECTABLE.confirmed_by(policy)
    limit = choose("pcie.correctable_rate", configuration=policy.correctable_per_minute)
    finding = rule.rate(
        observation,
        limit,
        lambda growth: growth.per_second * 60,
        lambda growth: _new(growth, "correctable error", limit),
    )
    return _again(finding, observation, limit)


def _new(growth: Growth, noun: str, limit: Limit) -> str:
    return f"{count_of(growth.amount, noun)} in {growth.seconds:.0f} s, limit {limit.value:.0f} per minute"


def _again(finding: Finding, observation: Observation, limit: Limit) -> Finding:
    """Return *finding* with the time at which a rate above *limit* a minute is distinguishable from chance."""
    return with_next_sample(finding, observation, limit.value / 60, lambda rate: FEW / (rate - limit.value / 60))


def _grown(rule: Rule, observation: Observation, word: str) -> Finding:
    since_boot = f"{observation.number:.0f} since boot" if observation.number is not None else ""
    return rule.grown(
        observation,
        lambda growth: growth.amount > 0,
        lambda growth: f"{count_of(growth.amount, f'new {word} PCIe error')}, {since_boot}",
        occurrence=observation.occurrence,
    )
