"""Judging one reading by one rule: pass, broken or unmeasured. Pure.

A check yields a finding for every reading that it judges, also for a good one, because only a good sample clears. A
number that was not measured is None, never zero, and the rule itself returns unmeasured for it: no check can pass on a
missing reading, whatever it compares.

A missing reading never makes a node unknown here: the check ``freshness`` reports, once, each required reading that is
missing. A check without its reading returns ``unmeasured``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from nodevet.checks.core.model import (
    NODE,
    WHOLE,
    Action,
    Clearing,
    Device,
    FaultClass,
    Finding,
    Instant,
    Limit,
    Outcome,
    Part,
    Reading,
    ReadingStatus,
    Scalar,
)
from nodevet.checks.core.quantities import QUANTITIES

from .view import Growth, View, device_name, refuse_other_part

NO_GROWTH = "a second sample is needed to measure growth"
NOTHING_TO_COMPARE = "no value or limit to compare"
SOON_SECONDS = 0.5
FEW = 4.0
"""Errors occur at random: if so many are expected, or so many more than allowed, zero is very unlikely."""

_PASS, _WARN, _FAIL, _UNMEASURED = Outcome.PASS, Outcome.WARN, Outcome.FAIL, Outcome.UNMEASURED
_NONE = Action.NONE
"""Looked up once for some hundred findings of each round: CPython 3.11 takes 70 ns for a member of an enumeration."""

CONFIGURED = "configuration"
"""The source of a limit from the configuration."""


class Confirmation(Protocol):
    """The part of a policy with the number of samples that must agree, of how many."""

    @property
    def needed(self) -> int:
        """Return how many samples must be bad."""
        ...

    @property
    def window(self) -> int:
        """Return the number of consecutive samples."""
        ...


class Observation(msgspec.Struct, frozen=True):
    """One reading as a check judges it: its device, its time, and its growth since the sample before."""

    device: str
    name: str
    reading: Reading
    time: Instant | None = None
    growth: Growth | None = None

    @property
    def quantity(self) -> str:
        """Return the key of the quantity."""
        return self.reading.quantity

    @property
    def part(self) -> Part:
        """Return the part of the device."""
        return self.reading.part

    @property
    def measured(self) -> bool:
        """Return whether there is a recently measured value; NaN is none."""
        value = self.reading.value  # None exactly where its status is not ok
        return value is not None and not (isinstance(value, float) and not math.isfinite(value))

    @property
    def number(self) -> float | None:
        """Return the measured number; None without a measurement, and for text."""
        value = self.reading.value
        if value is None or isinstance(value, str):
            return None
        number = float(value)
        return number if math.isfinite(number) else None

    @property
    def grew(self) -> float | None:
        """Return the growth of the counter; None without an earlier value."""
        _refuse_ungrowing(self)
        return self.growth.amount if self.growth else None

    @property
    def per_second(self) -> float | None:
        """Return the rate of growth; None without an earlier value."""
        _refuse_ungrowing(self)
        return self.growth.per_second if self.growth else None

    @property
    def occurrence(self) -> str | None:
        """Return the identifier that distinguishes this counter value from the same value after a reboot."""
        return f"{self.time.boot_id}:{self.number:.0f}" if self.time and self.number is not None else None

    @property
    def subject(self) -> str:
        """Return the displayed name of the part: ``GPU 3 (0000:1b:00.0), link 17``."""
        part = self.reading.part
        return self.name if part == WHOLE else f"{self.name}, {part}"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The code of a fault and its meaning: all fields of a finding that do not depend on the reading.

    ``gates`` is False for informational rules, such as a measured one, whatever number of samples the site requests.
    ``at_first`` is the outcome of a fault that has not repeated yet, None if it is ``outcome``.
    """

    check: str
    code: str
    outcome: Outcome = Outcome.FAIL
    fault_class: FaultClass = FaultClass.HARDWARE
    action: Action = Action.NONE
    clearing: Clearing = Clearing.CONDITION
    needed: int = 1
    window: int = 1
    gates: bool = True
    next_step: str = ""
    at_first: Outcome | None = None

    def confirmed_by(self, policy: Confirmation) -> Rule:
        """Return the rule as a measured one: it counts once the number of samples in *policy* agree."""
        return msgspec.structs.replace(self, needed=policy.needed, window=policy.window, gates=False)

    def judge(
        self,
        observation: Observation,
        broken: bool | Callable[[float], bool | None] | None,
        facts: str | Callable[[float], str],
        *,
        value: Scalar | None = None,
        unit: str = "",
        limit: Limit | None = None,
        occurrence: str | None = None,
        beside: Iterable[Observation] = (),
    ) -> Finding:
        """Return the finding of the rule on *observation*; it is unmeasured if there is no value.

        *facts* describe the observation, *beside* other readings: without their values nothing is judged either.
        *broken* and *facts* may be functions of the measured number, which are only called if there is one. If *broken*
        is None, as ``limit and value > limit`` is without a limit, nothing was compared: no pass either.
        """
        beside = tuple(beside)
        if beside or not observation.measured:
            unmeasured = self.unmeasured(observation, *beside)
            if unmeasured is not None:
                return unmeasured
        number = observation.number
        if number is None and (callable(broken) or callable(facts)):
            return self._unjudged(observation, Outcome.UNMEASURED, f"{observation.quantity} is not a number")
        asked = math.nan if number is None else number  # text, for which no function is called
        is_broken = broken(asked) if callable(broken) else broken
        if is_broken is None or (limit is not None and math.isnan(limit.value)):
            return self._unjudged(observation, Outcome.UNMEASURED, NOTHING_TO_COMPARE)
        seen = facts(asked) if callable(facts) else facts
        return Finding(
            check=self.check,
            code=self.code,
            outcome=self.outcome if is_broken else _PASS,
            message=f"{observation.subject}: {seen}" + (f"; {self.next_step}" if is_broken and self.next_step else ""),
            device=observation.device,
            part=observation.part,
            fault_class=self.fault_class,
            value=observation.reading.value if value is None else value,
            unit=unit,
            limit=limit,
            action=self.action if is_broken else _NONE,
            clearing=self.clearing,
            needed=self.needed,
            window=self.window,
            gates=self.gates and not _is_of_the_site(limit),
            occurrence=occurrence if is_broken else None,
            evidence=_quantities(observation, *beside) if beside else (observation.quantity,),
            evidence_time=observation.time,  # limits are read less often: their age must not make two samples one
        )

    def against(
        self,
        observation: Observation,
        value: float | None,
        limit: Limit,
        facts: str,
        *,
        beside: Iterable[Observation] = (),
    ) -> Finding:
        """Return the finding on *value*, which is broken if *limit* is exceeded; unmeasured if it is None."""
        if value is None or not math.isfinite(value):
            return self.unmeasured(observation, *beside) or self._unjudged(
                observation, Outcome.UNMEASURED, NOTHING_TO_COMPARE
            )
        return self.judge(
            observation, limit.holds(value), facts, value=value, unit=limit.unit, limit=limit, beside=beside
        )

    def rate(
        self, observation: Observation, limit: Limit, value: Callable[[Growth], float], facts: Callable[[Growth], str]
    ) -> Finding:
        """Return the finding on the growth of *observation*: broken if *limit* is exceeded by its *value*."""
        if observation.growth is None:
            return self.ungrown(observation) or self.skip(observation, NO_GROWTH)
        return self.against(observation, value(observation.growth), limit, facts(observation.growth))

    def grown(
        self,
        observation: Observation,
        broken: Callable[[Growth], bool | None],
        facts: Callable[[Growth], str],
        *,
        value: Callable[[Growth], float] | None = None,
        unit: str = "",
        limit: Limit | None = None,
        occurrence: str | None = None,
        beside: Iterable[Observation] = (),
    ) -> Finding:
        """Return the finding on the growth of *observation*: broken if the function *broken* is True."""
        growth = observation.growth
        if growth is None:
            return self.ungrown(observation) or self.skip(observation, NO_GROWTH)
        amount = growth.amount if value is None else value(growth)
        return self.judge(
            observation,
            broken(growth),
            facts(growth),
            value=amount,
            unit=unit,
            limit=limit,
            occurrence=occurrence,
            beside=beside,
        )

    def absent(self, observation: Observation, facts: str, *, value: Scalar | None = None) -> Finding:
        """Return that the rule is broken because *observation* has no value, such as a port that disappeared."""
        known = msgspec.structs.replace(
            observation, reading=Reading(observation.quantity, value or False, observation.part)
        )
        return self.judge(known, True, facts, value=value)

    def unmeasured(self, *read: Observation) -> Finding | None:
        """Return why the first of *read* without a value cannot be judged, or None if all have one."""
        for observation in read:
            if not observation.measured:
                return self._unmeasured(observation)
        return None

    def _unmeasured(self, observation: Observation) -> Finding:
        reading = observation.reading
        what = reading.status.value if reading.status is not ReadingStatus.OK else f"{reading.value}, not a number"
        why = f"{reading.quantity} is {what}" + (f" ({reading.detail})" if reading.detail else "")
        unsupported = reading.status is ReadingStatus.UNSUPPORTED
        return self._unjudged(observation, Outcome.SKIPPED if unsupported else Outcome.UNMEASURED, why)

    def ungrown(self, observation: Observation) -> Finding | None:
        """Return why the growth of *observation* cannot be judged: no value, or no earlier one; None if it can be.

        Raises LookupError for a quantity whose growth is not stored.
        """
        _refuse_ungrowing(observation)
        if observation.growth is not None:
            return self.unmeasured(observation)
        finding = self.unmeasured(observation) or self.skip(observation, NO_GROWTH)
        is_refused = observation.reading.status in (ReadingStatus.UNSUPPORTED, ReadingStatus.DENIED)
        return (
            finding if is_refused or observation.time is None else msgspec.structs.replace(finding, again=SOON_SECONDS)
        )

    def skip(self, observation: Observation, why: str) -> Finding:
        """Return that the rule does not apply to *observation* now, with the reason."""
        return self._unjudged(observation, Outcome.SKIPPED, why)

    def on_node(
        self,
        outcome: Outcome,
        message: str,
        *,
        device: str = NODE,
        part: Part = WHOLE,
        required: bool = False,
        value: Scalar | None = None,
        limit: Limit | None = None,
        evidence_time: Instant | None = None,
        as_of: Instant | None = None,
    ) -> Finding:
        """Return a finding that is not based on a reading: on the inventory, a reader or the kernel log."""
        bad = outcome is _WARN or outcome is _FAIL
        told = bad or (required and outcome is _UNMEASURED)
        return Finding(
            check=self.check,
            code=self.code,
            outcome=outcome,
            message=message + (f"; {self.next_step}" if told and self.next_step else ""),
            device=device,
            part=part,
            fault_class=self.fault_class,
            value=value,
            limit=limit,
            action=self.action if told else _NONE,
            clearing=self.clearing,
            needed=self.needed if bad else 1,
            window=self.window if bad else 1,
            gates=self.gates and not _is_of_the_site(limit),
            required=required,
            evidence_time=evidence_time,
            as_of=as_of,
        )

    def _unjudged(self, observation: Observation, outcome: Outcome, why: str) -> Finding:
        return Finding(
            check=self.check,
            code=self.code,
            outcome=outcome,
            message=f"{observation.subject}: {why}",
            device=observation.device,
            part=observation.part,
            fault_class=self.fault_class,
            clearing=self.clearing,
            needed=self.needed,
            window=self.window,
            evidence=(observation.quantity,),
            evidence_time=observation.time,
        )


def _quantities(*entries: Observation) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entry.quantity for entry in entries))


def with_next_sample(
    finding: Finding, observation: Observation, limit: float, enough_after: Callable[[float], float]
) -> Finding:
    """Return *finding*, with the next sample's time if *observation* grew by more than *limit* a second.

    *enough_after* returns the seconds after which growth at that rate is distinguishable from a burst.
    """
    rate = observation.per_second
    if not observation.measured or rate is None or rate <= limit:
        return finding
    return msgspec.structs.replace(finding, again=enough_after(rate))


def _is_of_the_site(limit: Limit | None) -> bool:
    """Return whether *limit* is a configured number: a wrong one must not close a cluster."""
    return limit is not None and limit.source == CONFIGURED


def observations(view: View, device: Device, quantity: str) -> tuple[Observation, ...]:
    """Return the observations of *quantity*, one for each part of *device* that ever reported it.

    If the whole device could not be read, there is one observation without a value.
    """
    key = (device.id, quantity)
    known: tuple[Observation, ...] | None = view.observed.get(key)
    if known is None:
        known = view.observed[key] = _observed(view, device.id, quantity)
    return known


def _observed(view: View, device_id: str, quantity: str) -> tuple[Observation, ...]:
    name = device_name(view, device_id)
    known = QUANTITIES.get(quantity)
    growth = view.growth if known is None or known.judged_by_growth else {}
    found = []
    for reading, sample in view.readings(device_id, quantity):
        # Growth up to an earlier sample is over.
        grown = growth.get((device_id, quantity, reading.part)) if growth else None
        since = grown if grown is not None and grown.until == sample.time else None
        found.append(Observation(device_id, name, reading, sample.time, since))
    failure = view.failure(device_id)
    if found or failure is None:
        return tuple(found)
    return (Observation(device_id, name, Reading(quantity, None, WHOLE, ReadingStatus.UNAVAILABLE, failure.detail)),)


def _refuse_ungrowing(observation: Observation) -> None:
    """Raise LookupError if the growth of *observation*'s quantity is not stored: it would be None for ever."""
    known = QUANTITIES.get(observation.quantity)
    if observation.measured and observation.growth is None and known is not None and not known.judged_by_growth:
        raise LookupError(f"no growth of {observation.quantity} is kept: compare its value with a limit")


def number_of(entries: Iterable[Observation], part: Part) -> Observation | None:
    """Return the measured observation of *part* among *entries*, or None. Raises LookupError for an unknown part."""
    found = tuple(entries)
    for entry in found:
        refuse_other_part(entry.quantity, part)
    return next((entry for entry in found if entry.part == part and entry.measured), None)
