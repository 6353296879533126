"""The checks of an engine, run over one view after another; events that a check cannot judge wait for it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from nodevet.checks.core.model import CheckRun, Episode, Event, Finding

from .check_run import ConfiguredCheck, Rests, not_asked, not_configured, nothing_found, runs_again, told_run
from .view import View

WAITING_EVENTS = 1000
"""So many events wait for a check that cannot run, by each; the oldest are given up."""


class CheckRunner:
    """Runs the checks; one that raises costs itself, and the events that it missed are shown to it again."""

    def __init__(self, checks: Sequence[ConfiguredCheck], *, partial: bool = False) -> None:
        """Run *checks*; *partial* says that only some checks were asked for, so the absence of others ends nothing."""
        self.checks = tuple(checks)
        self.partial = partial
        self._rests = Rests()
        self._waiting: dict[str, tuple[Event, ...]] = {}
        self._aside: dict[str, tuple[Event, ...]] = {}

    def run(self, view: View, episodes: tuple[Episode, ...]) -> tuple[tuple[CheckRun, ...], tuple[Finding, ...]]:
        """Return how each check ran over *view*, and all that they found; *episodes* are those that they may end."""
        runs: list[CheckRun] = []
        everything: list[Finding] = []
        for configured in self.checks:
            began = time.perf_counter()
            name = configured.check.name
            waited = self._waiting.pop(name, ())
            shown = msgspec.structs.replace(view, events=(*waited, *view.events)) if waited else view
            ran = self._rests.run(configured, shown)
            if ran.error:
                # Nobody else may see its events again: an occurrence that comes back would count anew.
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
        return tuple(runs), tuple(everything)

    def _over(self, check: str, episodes: Iterable[Episode]) -> tuple[Episode, ...]:
        """Return what *check* may end: that it set events aside stands until another version judges them."""
        kept = f"vendor:{check}.events" if self._aside.get(check) else ""
        return tuple(episode for episode in episodes if episode.key.part.name != kept)

    @property
    def waiting(self) -> dict[str, tuple[Event, ...]]:
        """The events that wait by check: another version of a check may judge what this one set aside."""
        names = self._aside | self._waiting
        return {name: (*self._aside.get(name, ()), *self._waiting.get(name, ())) for name in names}

    def restore(self, waiting: Mapping[str, tuple[Event, ...]]) -> None:
        """Take over the events that waited before a restart."""
        self._waiting = dict(waiting)
