"""Errors of device and host memory, and the use of the spare rows that repair them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from nodevet.checks.core.counts import count_of
from nodevet.checks.core.model import Action, Clearing, Device, DeviceKind, FaultClass, Finding, Outcome
from nodevet.checks.core.quantities import UNKNOWN_ACTION
from nodevet.checks.engine.judging import Observation, Rule, observations, with_next_sample
from nodevet.checks.engine.registry import check
from nodevet.checks.engine.reuse import Asked, looked
from nodevet.checks.engine.view import Growth, View
from nodevet.checks.reference.limits import choose
from nodevet.checks.reference.vendors import vendor_of

_rule = partial(Rule, check="memory-errors")
_warning = partial(_rule, outcome=Outcome.WARN)
UNCORRECTED = _rule(
    code="memory.uncorrected",
    action=Action.DRAIN_RESET,
    clearing=Clearing.HARDWARE_EVENT,
    next_step="drain the node, reset the device, run a burn-in",
)
UNCORRECTED_ON_HOST = msgspec.structs.replace(
    UNCORRECTED, action=Action.INSPECT, next_step="drain the node, find the memory module, replace it, run a burn-in"
)
DEFERRED = _warning(
    code="memory.deferred",
    action=Action.RESET_DEVICE,
    next_step="no program used the bad data: reset the device when it is idle, then run a burn-in",
)
CORRECTED_RATE = _warning(
    code="memory.corrected_rate", action=Action.WATCH, next_step="replace the memory if the rate persists"
)
REMAP_FAILED = _rule(
    code="memory.row_remap_failed",
    action=Action.REPLACE,
    clearing=Clearing.REPLACEMENT,
    next_step="its spare rows are used up: have the board replaced",
)
REMAP_PENDING = _warning(
    code="memory.row_remap_pending",
    action=Action.RESET_DEVICE,
    next_step="jobs may continue; reset the device when it is idle",
)
NO_SPARES = _warning(
    code="memory.banks_without_spares",
    action=Action.WATCH,
    next_step="the next uncorrected error in these banks cannot be repaired: plan a replacement",
)
ECC_DISABLED = _warning(
    code="memory.ecc_disabled",
    fault_class=FaultClass.CONFIGURATION,
    action=Action.INSPECT,  # ECC stays off until an operator enables it: no need to watch it
    next_step="memory errors are not counted: enable ECC and reboot the node",
)
SRAM_THRESHOLD = _rule(
    code="memory.sram_threshold",
    action=Action.REPLACE,
    clearing=Clearing.REPLACEMENT,
    next_step="the board qualifies for replacement: have it replaced",
)
RECOVERY = _rule(code="memory.recovery_action", next_step="carry out the recovery action that the driver requests")

RECOVERY_ACTIONS = {
    "none": Action.NONE,
    "reset_device": Action.RESET_DEVICE,
    "reboot": Action.REBOOT,
    "drain_peer_to_peer": Action.RESET_DEVICE,
    "drain_reset": Action.DRAIN_RESET,
    "recover_imex_domain": Action.INSPECT,
    "reset_bus": Action.REBOOT,
    "reboot_system": Action.REBOOT,
}
UNKNOWN_RECOVERY = msgspec.structs.replace(
    RECOVERY,
    outcome=Outcome.WARN,
    fault_class=FaultClass.UNKNOWN,
    action=Action.INSPECT,
    next_step="query the recovery action with the vendor's tool and carry it out; a newer nodevet may know it",
)
MILD_RECOVERY = frozenset({"drain_peer_to_peer", "recover_imex_domain"})
"""Only traffic between devices is affected; the device itself still computes."""


SECONDS_PER_HOUR = 3600.0


class MemoryErrors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of corrected errors; None takes the limit of the table. The limit of uncorrected errors is zero."""

    corrected_per_hour: (
        Annotated[float, Meta(ge=0, description="Limit of corrected errors per hour in the memory of an accelerator.")]
        | None
    ) = None
    host_corrected_per_hour: (
        Annotated[float, Meta(ge=0, description="Limit of corrected errors per hour of a host memory controller.")]
        | None
    ) = None
    needed: Annotated[int, Meta(ge=1, le=100, description="Bad samples that confirm a finding.")] = 3
    window: Annotated[int, Meta(ge=1, le=100, description="Latest samples among which bad ones are counted.")] = 5


@check(
    "memory-errors",
    policy=MemoryErrors,
    inputs=(
        "ecc_uncorrected_errors",
        "ecc_deferred_errors",
        "ecc_corrected_errors",
        "row_remap_failed",
        "row_remap_pending",
        "row_remap_banks_without_spares",
        "ecc_sram_threshold_exceeded",
        "recovery_action",
        "ecc_enabled",
    ),
)
def judge(view: View, policy: MemoryErrors) -> Iterator[Finding]:
    """Memory has no uncorrected errors and has spare rows for repair, and corrected errors are below the limit."""
    for device in view.devices:
        for observation in observations(view, device, "ecc_uncorrected_errors"):
            rule = UNCORRECTED if device.kind is DeviceKind.ACCELERATOR else UNCORRECTED_ON_HOST
            yield _counted(rule, observation, "uncorrected memory error")
        for observation in observations(view, device, "ecc_deferred_errors"):
            yield _counted(DEFERRED, observation, "deferred memory error")
        for observation in observations(view, device, "ecc_corrected_errors"):
            yield _corrected_rate(device, observation, policy)
        for observation in observations(view, device, "row_remap_failed"):
            yield _flag(REMAP_FAILED, observation, "row remapping failed", "no row remapping failed")
        for observation in observations(view, device, "row_remap_pending"):
            yield _flag(
                REMAP_PENDING,
                observation,
                "row remapping is pending until the next reset",
                "no row remapping is pending",
            )
        yield from looked(view, _spent, device, policy)
        for observation in observations(view, device, "recovery_action"):
            yield _recovery(observation, policy)
        for observation in observations(view, device, "ecc_enabled"):
            yield _ecc_disabled(view, observation)


def _spent(asked: Asked, _policy: MemoryErrors) -> Iterator[Finding]:
    """Judge the consumption of spare rows, and of the number of SRAM errors that a device may have."""
    for observation in asked.observations("row_remap_banks_without_spares"):
        yield NO_SPARES.judge(observation, bool, lambda banks: f"{count_of(banks, 'memory bank')} without a spare row")
    for observation in asked.observations("ecc_sram_threshold_exceeded"):
        yield _flag(
            SRAM_THRESHOLD,
            observation,
            "SRAM errors exceed the threshold of the device",
            "SRAM errors are below the threshold",
        )


def _counted(rule: Rule, observation: Observation, error: str) -> Finding:
    def facts(errors: float) -> str:
        return f"{errors:.0f} {error}" + ("" if errors == 1 else "s")

    return rule.judge(observation, bool, facts, occurrence=observation.occurrence)


def _corrected_rate(device: Device, observation: Observation, policy: MemoryErrors) -> Finding:
    """Judge corrected errors by their count within the hour, and by their rate if it is based on enough of them."""
    rule = CORRECTED_RATE.confirmed_by(policy)
    on_accelerator = device.kind is DeviceKind.ACCELERATOR
    owner = "accelerator" if on_accelerator else "host"
    limit = choose(
        f"memory.corrected_rate.{owner}",
        configuration=policy.corrected_per_hour if on_accelerator else policy.host_corrected_per_hour,
    )
    enough = choose(f"memory.corrected_count.{owner}")

    def is_storm(growth: Growth) -> bool:
        return enough.holds(growth.amount) and limit.holds(growth.per_second * SECONDS_PER_HOUR)

    def facts(growth: Growth) -> str:
        new = f"{count_of(growth.amount, 'corrected error')} in {growth.seconds:.0f} s"
        return f"{new}, {growth.within_hour:.0f} within the hour, limit {limit.value:.0f} per hour"

    finding = rule.grown(
        observation,
        lambda growth: is_storm(growth) or limit.holds(growth.within_hour),
        facts,
        value=lambda growth: growth.per_second * SECONDS_PER_HOUR if is_storm(growth) else growth.within_hour,
        unit=limit.unit,
        limit=limit,
    )
    return with_next_sample(finding, observation, limit.value / SECONDS_PER_HOUR, lambda rate: enough.value / rate)


def _flag(rule: Rule, observation: Observation, bad: str, good: str) -> Finding:
    return rule.judge(observation, bool, lambda broken: bad if broken else good)


def _ecc_disabled(view: View, observation: Observation) -> Finding:
    off = observation.number == 0
    if off and not view.requires(observation.device, "ecc_uncorrected_errors"):
        return ECC_DISABLED.skip(observation, "ECC is off, which is the default of some boards of this model")
    device = view.device(observation.device)
    how = vendor_of(device.vendor).ecc_advice if device else None
    rule = msgspec.structs.replace(ECC_DISABLED, next_step=ECC_DISABLED.next_step + (f" ({how})" if how else ""))
    return rule.judge(observation, off, f"ECC of the memory is {'off' if off else 'on'}")


def _recovery(observation: Observation, policy: MemoryErrors) -> Finding:
    asked = str(observation.reading.value)
    if asked == UNKNOWN_ACTION:
        rule = UNKNOWN_RECOVERY.confirmed_by(policy)
        return rule.judge(observation, True, "the driver requests an unknown recovery action")
    rule = msgspec.structs.replace(
        RECOVERY,
        outcome=Outcome.WARN if asked in MILD_RECOVERY else Outcome.FAIL,
        action=RECOVERY_ACTIONS.get(asked, Action.INSPECT),
        fault_class=FaultClass.CONFIGURATION if asked == "recover_imex_domain" else FaultClass.HARDWARE,
    )
    broken = asked != "none"
    return rule.judge(
        observation,
        broken,
        f"the driver requests: {asked.replace('_', ' ')}" if broken else "no recovery action is requested",
    )
