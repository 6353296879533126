"""Runs the checks of an engine on one view after another; events that a check cannot judge wait for it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from nodevet.checks.core.model import CheckRun, Episode, Event, Finding

from .check_run import (
    ConfiguredCheck,
    Rests,
    not_asked,
    not_configured,
    not_listed,
    nothing_found,
    runs_again,
    told_run,
)
from .view import View

WAITING_EVENTS = 1000
"""Limit of waiting events per check that cannot run; the oldest are dropped."""


class CheckRunner:
    """Runs the checks; an exception costs only its check, which gets the missed events again."""

    def __init__(self, checks: Sequence[ConfiguredCheck], *, partial: bool = False) -> None:
        """Run *checks*; *partial* says that only some checks were requested, so the absence of others ends nothing."""
        self.checks = tuple(checks)
        self.partial = partial
        self._rests = Rests()
        self._waiting: dict[str, tuple[Event, ...]] = {}
        self._aside: dict[str, tuple[Event, ...]] = {}

    def run(self, view: View, episodes: tuple[Episode, ...]) -> tuple[tuple[CheckRun, ...], tuple[Finding, ...]]:
        """Return each check's run on *view*, and all findings; *episodes* are those that they may end."""
        runs: list[CheckRun] = []
        everything: list[Finding] = []
        for configured in self.checks:
            began = time.perf_counter()
            name = configured.check.name
            waited = self._waiting.pop(name, ())
            shown = msgspec.structs.replace(view, events=(*waited, *view.events)) if waited else view
            ran = self._rests.run(configured, shown)
            if ran.error:
                # No other check may get its events again: a repeated occurrence would count twice.
                self._waiting[name] = tuple(shown.events)[-WAITING_EVENTS:]
            if ran.aside:
                self._aside[name] = (*self._aside.get(name, ()), *ran.aside)[-WAITING_EVENTS:]
            again = runs_again(configured.check, ran, self._over(name, episodes))
            findings = (*(ran.findings or (nothing_found(configured.check, ran.error),)), *again)
            runs.append(told_run(configured.check, ran, findings, view.now, time.perf_counter() - began))
            everything.extend(findings)
        if not self.partial:
            everything.extend(not_asked(self.checks, episodes))
            if view.readers:
                everything.extend(not_configured(view.readers, episodes))
            everything.extend(not_listed(view, everything, episodes))
        return tuple(runs), tuple(everything)

    def _over(self, check: str, episodes: Iterable[Episode]) -> tuple[Episode, ...]:
        """Return the episodes that *check* may end: set-aside events stand until another version judges them."""
        kept = f"vendor:{check}.events" if self._aside.get(check) else ""
        return tuple(episode for episode in episodes if episode.key.part.name != kept)

    @property
    def waiting(self) -> dict[str, tuple[Event, ...]]:
        """The waiting events by check: another version of a check may be able to judge them."""
        names = self._aside | self._waiting
        return {name: (*self._aside.get(name, ()), *self._waiting.get(name, ())) for name in names}

    def restore(self, waiting: Mapping[str, tuple[Event, ...]]) -> None:
        """Restore the events that waited before a restart."""
        self._waiting = dict(waiting)
