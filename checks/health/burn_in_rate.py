"""The speed of a verified load: against the peak of the device, and against its siblings in the same load.

Both only warn. A slow device has a cause that other checks name (heat, power, clocks); the rate shows that it matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from nodevet.checks.core.model import Action, Device, FaultClass, Finding, Limit, Outcome, Result, ResultState
from nodevet.checks.core.siblings import SiblingLimit, Slower, slower_devices
from nodevet.checks.engine.judging import Rule
from nodevet.checks.engine.registry import check
from nodevet.checks.engine.retest import LEFT_OUT
from nodevet.checks.engine.view import View, device_name
from nodevet.checks.reference.limits import from_table
from nodevet.checks.reference.tables import load_table

FLOOR = Rule(
    check="burn-in-rate",
    code="burnin.rate_low",
    outcome=Outcome.WARN,
    fault_class=FaultClass.HARDWARE,
    action=Action.INSPECT,
    gates=False,
    next_step="compare power limit, clocks and temperature with a healthy node, then repeat the burn-in",
)
SIBLING = Rule(
    check="burn-in-rate",
    code="burnin.slower_than_siblings",
    outcome=Outcome.WARN,
    fault_class=FaultClass.HARDWARE,
    action=Action.INSPECT,
    gates=False,
    next_step="compare power limit, clocks and temperature with the siblings, then repeat the burn-in",
)

_FORMATS = ("bf16", "fp16")
"""Formats whose healthy efficiency is published for most parts."""


class EfficiencyFloor(msgspec.Struct, frozen=True):
    """A row of ``efficiency_floors.csv``: the share of its peak that each healthy part of *architecture* reaches.

    The peak is the one at the clock of the specification, as in the published rates from which the floors come.
    """

    architecture: str
    ratio: float
    source: str


class BurnInRate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of the measured rates; None takes the limit of the table, which knows some architectures."""

    least_efficiency_ratio: (
        Annotated[
            float,
            Meta(
                ge=0,
                le=1.1,
                description="Warn below this share of the specified peak in large bf16 or fp16 loads; unset: a table.",
            ),
        ]
        | None
    ) = None


@check("burn-in-rate", policy=BurnInRate)
def judge(view: View, policy: BurnInRate) -> Iterator[Finding]:
    """Every verified load reaches the rate expected from the peak of the device and from its siblings."""
    results = [result for result in view.results if _tells_a_rate(result)]
    compared, slower = _compared(view.devices, results)
    for device in view.devices:
        own = [result for result in results if device.id in result.devices]
        yield _floor(view, device, own, policy.least_efficiency_ratio)
        yield _sibling(view, device, own, slower.get(device.id), is_compared=device.id in compared)


def _tells_a_rate(result: Result) -> bool:
    is_whole = result.state is ResultState.FINISHED and not result.conditions.get(LEFT_OUT)
    return is_whole and len(result.devices) == 1 and (result.metric("tflops_median") or 0) > 0


def _limit_of(result: Result, of_site: float | None) -> Limit | None:
    """Return the least efficiency: that *of_site*, else the one of the table for the architecture, None without one."""
    if of_site is not None:
        return Limit("<", of_site, "ratio", "configuration")
    architecture = result.conditions.get("architecture")
    rows = load_table("efficiency_floors.csv", EfficiencyFloor)
    known = next((row for row in rows if row.architecture == architecture), None)
    if known is None:
        return None
    return Limit("<", known.ratio, "ratio", f"table efficiency_floors.csv {known.architecture}")


def _floor(view: View, device: Device, results: Sequence[Result], of_site: float | None) -> Finding:
    """Compare the worst efficiency of *device* with its limit."""
    name = device_name(view, device.id)
    is_large = from_table("burnin.least_side").holds
    large = [
        (ratio, result, limit)
        for result in results
        if result.dtype in _FORMATS and len(result.shape) == 3 and is_large(min(result.shape[:2]))
        if (ratio := result.metric("efficiency_ratio")) is not None
        if (limit := _limit_of(result, of_site)) is not None
    ]
    if not large:
        return FLOOR.on_node(
            Outcome.SKIPPED,
            f"{name}: no large bf16 or fp16 load with a known healthy rate has run",
            device=device.id,
        )
    ratio, worst, limit = min(large, key=lambda entry: entry[0])
    facts = f"{name}: {worst.dtype} reached {100 * ratio:.0f} % of the specification's peak"
    if not limit.holds(ratio):
        return FLOOR.on_node(Outcome.PASS, facts, device=device.id, value=ratio, limit=limit)
    return FLOOR.on_node(
        Outcome.WARN,
        f"{facts}, the limit is {100 * limit.value:.0f} %",
        device=device.id,
        value=ratio,
        limit=limit,
        evidence_time=worst.ended,
    )


def _sibling(
    view: View, device: Device, results: Sequence[Result], found: Slower | None, *, is_compared: bool
) -> Finding:
    name = device_name(view, device.id)
    if not is_compared:
        return SIBLING.on_node(
            Outcome.SKIPPED, f"{name}: no load has run on at least six devices of its model", device=device.id
        )
    if found is None:
        return SIBLING.on_node(Outcome.PASS, f"{name}: as fast as its siblings in the same load", device=device.id)
    limit = Limit(">", found.limit, "standard_deviations", "table sibling_limits.csv")
    return SIBLING.on_node(
        Outcome.WARN,
        f"{name}: {100 * found.below_ratio:.1f} % slower than its siblings in the same load, which differ by "
        f"{100 * found.spread_ratio:.1f} %",
        device=device.id,
        value=round(found.deviations, 2),
        limit=limit,
        evidence_time=results[-1].ended,
    )


def _compared(devices: Sequence[Device], results: Sequence[Result]) -> tuple[frozenset[str], dict[str, Slower]]:
    """Return the devices that were compared with those of their model in the same load, and the slower ones of them."""
    limits = load_table("sibling_limits.csv", SiblingLimit)
    least = from_table("burnin.least_spread").value
    models = {device.id: device.model for device in devices}
    loads: dict[tuple[str, str], dict[str, dict[tuple[str | None, tuple[int, ...]], float]]] = {}
    for result in results:
        device, load = result.devices[0], result.conditions.get("load")
        rate = result.metric("tflops_median")
        if isinstance(load, str) and device in models and rate is not None and math.isfinite(rate):
            rates = loads.setdefault((load, models[device]), {}).setdefault(device, {})
            rates[result.dtype, result.shape] = rate
    compared: set[str] = set()
    found: dict[str, Slower] = {}
    for by_device in loads.values():
        workloads = set.intersection(*(set(rates) for rates in by_device.values()))
        order = sorted(workloads, key=str)
        if order and any(row.devices == len(by_device) for row in limits):
            compared |= set(by_device)
            rates_of = {device: [rates[each] for each in order] for device, rates in by_device.items()}
            found |= {each.device: each for each in slower_devices(rates_of, limits, least)}
    return frozenset(compared), found
