"""Whether a load proved its plan: every planned device and number format was verified to its end. Pure.

Every output reports the state of a load from here. A load is *complete* if each planned format of each planned device
was verified; a format that a device lacks is listed and does no harm, unless an operator requested it by name. An
incomplete load is ``unknown``, whatever the reason; a wrong result is ``failed``, however the load ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from nodevet.checks.core.model import NODE, Episode, EpisodeState, Result, ResultState, Shown, State, Verdict

from .retest import is_passed_retest

ASKED = "asked"
"""Condition of a result whose number format was requested by name."""

KILLED = "killed"
"""Condition of a result whose load was ended by SIGKILL or stopped by a signal: no device sends one."""

REFUSAL = "refusal"
"""Condition of a refused result with the refusing part: ``format`` (the device lacks it), or something else."""

LOAD = "load"
"""Condition of a result that identifies its load: boot and start time."""

PLANNED = "planned_results"
"""Condition of a result with the number of results of its load: one per planned format and device."""

NAMED_AT_MOST = 4


class Planned(msgspec.Struct, frozen=True):
    """A number format to be verified on a device; ``asked``: requested by name, not by the plan of its kind."""

    device: str
    dtype: str
    asked: bool = False


class Standing(StrEnum):
    """The outcome of a planned format."""

    VERIFIED = "verified"
    WRONG = "wrong"
    LACKING = "lacking"
    UNPROVEN = "unproven"


class Account(msgspec.Struct, frozen=True):
    """The outcome of one planned format on one device; ``why`` is empty if it was verified."""

    device: str
    dtype: str
    standing: Standing
    why: str = ""


class Completeness(msgspec.Struct, frozen=True):
    """The outcomes of the whole plan, in its order."""

    accounts: tuple[Account, ...]

    @property
    def state(self) -> State:
        """Return ``ok`` if every device was verified and nothing is unproven, ``failed`` if a result is wrong."""
        if self._of(Standing.WRONG):
            return State.FAILED
        return State.OK if self.accounts and not self.unproven else State.UNKNOWN

    @property
    def unproven(self) -> tuple[Account, ...]:
        """Return the unproven outcomes. A device that lacks every planned format is unproven too."""
        verified = {entry.device for entry in self._of(Standing.VERIFIED)}
        return tuple(
            entry
            for entry in self.accounts
            if entry.standing is Standing.UNPROVEN
            or (entry.standing is Standing.LACKING and entry.device not in verified)
        )

    @property
    def verified(self) -> int:
        """Return the number of verified planned formats, counted per device."""
        return len(self._of(Standing.VERIFIED))

    @property
    def counted(self) -> str:
        """Return what the numbers count: planned formats, and of several devices those of each."""
        several = len({entry.device for entry in self.accounts}) > 1
        return "planned formats (counted on each device)" if several else "planned formats"

    def reason(self, names: Mapping[str, str] | None = None) -> str:
        """Return the failed or unproven part in one line, devices by *names*; empty if the load is complete."""
        wrong = self._of(Standing.WRONG)
        if wrong:
            return f"wrong results: {_listed(wrong, names or {})}"
        if not self.accounts:
            return "incomplete: no workload has run"
        if not self.unproven:
            return ""
        counted = f"{len(self.unproven)} of {len(self.accounts)} planned formats are not verified"
        return f"incomplete: {counted}: {_listed(self.unproven, names or {})}"

    def _of(self, standing: Standing) -> tuple[Account, ...]:
        return tuple(entry for entry in self.accounts if entry.standing is standing)


def account(plan: Iterable[Planned], results: Sequence[Result]) -> Completeness:
    """Return the outcomes of *plan* by *results*, in the order of their arrival.

    A planned format without a result is unproven. Formats that ran in addition count as planned.
    """
    planned = {(entry.device, entry.dtype): entry for entry in (*planned_in(results), *plan)}
    ordered = dict.fromkeys([(entry.device, entry.dtype) for entry in plan] + list(planned))
    return Completeness(tuple(_account(planned[key], results) for key in ordered))


def planned_in(results: Iterable[Result]) -> tuple[Planned, ...]:
    """Return the plan as *results* show it: a planned format leaves a result, also if it never ran."""
    return tuple(
        Planned(device, result.dtype or "", bool(result.conditions.get(ASKED)))
        for result in results
        for device in result.devices
    )


def absent(load: Sequence[Result]) -> int:
    """Return how many results of a *load* are missing here: still to come, or lost, with unknown content."""
    told = [result for result in load if isinstance(result.conditions.get(PLANNED), int)]
    planned = max((result.conditions[PLANNED] for result in told), default=0)
    return max(0, planned - len({(result.devices, result.dtype) for result in told}))


def without(load: Completeness, count: int, where: str) -> Completeness:
    """Return the completeness of a *load* of which *count* results are not in *where*."""
    if not count:
        return load
    why = f"{count} of its results are not in {where}"
    return Completeness((*load.accounts, Account(NODE, "", Standing.UNPROVEN, why)))


def last_load(results: Iterable[Result]) -> tuple[Result, ...]:
    """Return the *results* of the newest load, and all other wrong results, which stand until disproved.

    For outputs that have the latest result of each format, of any load, in the order of arrival: a wall clock that was
    set back must not make an older load the newest.
    """
    everything = tuple(results)
    load = everything[-1].conditions.get(LOAD) if everything else None
    return tuple(result for result in everything if result.conditions.get(LOAD) == load or result.metric("mismatches"))


def standing_wrong(episodes: Iterable[Episode]) -> tuple[tuple[str, Shown], ...]:
    """Return the wrong results that no re-test has disproved, each with its device; acknowledged ones included."""
    return tuple(
        (episode.key.device, shown)
        for episode in episodes
        if episode.state is not EpisodeState.CLEARED
        for shown in episode.finding.shown
    )


def last_proof(results: Iterable[Result], episodes: Iterable[Episode]) -> Completeness:
    """Return the completeness of the newest load and the wrong results that stand: a shorter load removes none of them.

    Results of a load that is running, or whose end the agent missed, prove nothing beyond themselves.
    """
    everything = tuple(results)
    accounts = {(entry.device, entry.dtype): entry for entry in account((), last_load(everything)).accounts}
    for device, shown in standing_wrong(episodes):
        key = (device, shown.dtype or "")
        if accounts.get(key) is None or accounts[key].standing is not Standing.WRONG:
            why = f"{shown.wrong} wrong in an earlier burn-in, not cleared by a re-test"
            accounts[key] = Account(*key, Standing.WRONG, why)
    newest = [result for result in everything if result.conditions.get(LOAD) == everything[-1].conditions.get(LOAD)]
    return without(Completeness(tuple(accounts.values())), absent(newest), "the agent's memory")


def judged(verdict: Verdict, load: Completeness, names: Mapping[str, str] | None = None) -> Verdict:
    """Return the *verdict* of a node as that of a *load* on it: never better than the load proved."""
    if load.state.rank <= verdict.state.rank:
        return verdict
    return msgspec.structs.replace(verdict, state=load.state, reason=load.reason(names))


def _account(planned: Planned, results: Iterable[Result]) -> Account:
    own = [result for result in results if planned.device in result.devices and (result.dtype or "") == planned.dtype]
    standing, why = _standing(planned, own)
    return Account(planned.device, planned.dtype, standing, why)


def _standing(planned: Planned, results: Sequence[Result]) -> tuple[Standing, str]:
    wrong = [result for result in results if result.metric("mismatches")]
    if wrong:
        return Standing.WRONG, f"{wrong[-1].metric('mismatches')} wrong"
    if not results:
        return Standing.UNPROVEN, "no result"
    last = results[-1]
    if is_passed_retest(last):
        return Standing.VERIFIED, ""
    lacking = last.state is ResultState.REFUSED and last.conditions.get(REFUSAL) == "format" and not planned.asked
    return Standing.LACKING if lacking else Standing.UNPROVEN, _why(last)


def _why(result: Result) -> str:
    proof: Any = result.conditions.get("verification") or "nothing verified"
    said = result.detail or (str(proof) if result.state is ResultState.FINISHED else "")
    return f"{result.state.value}: {said}" if said else result.state.value


def _listed(accounts: Sequence[Account], names: Mapping[str, str]) -> str:
    said = [
        " ".join(part for part in (names.get(entry.device, entry.device), entry.dtype) if part) + f" ({entry.why})"
        for entry in accounts[:NAMED_AT_MOST]
    ]
    more = len(accounts) - NAMED_AT_MOST
    return ", ".join(said) + (f", and {more} more" if more > 0 else "")
