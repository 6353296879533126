"""Loads of this node as the loop sees them: the agent's own probe, and the results and curves of whatever load runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

import msgspec

from nodevet.agent.load.conditions import KnownConditions
from nodevet.agent.load.guard import LoadGuard
from nodevet.agent.load.prober import PLAN, Prober
from nodevet.agent.load.recorder import LoadRecorder
from nodevet.agent.services.protocol import Service
from nodevet.agent.simulated.prober import SimulatedProber
from nodevet.checks.core.digest import sha256
from nodevet.checks.core.model import AgentInfo, Instant, Result, Snapshot
from nodevet.exporters.documents.schema import burn_in_document
from nodevet.exporters.documents.types import BurnInDocument

from .event_log import EventLog
from .ingest import Ingest
from .reports import Reports


class Judge(Protocol):
    """Who judges and shows, as far as loads need the daemon."""

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot that every surface shows; one that is not kept yet may be newer."""
        ...

    @property
    def newest(self) -> Snapshot:
        """What was judged last."""
        ...

    @property
    def now(self) -> Instant:
        """The present moment."""
        ...

    def judge(self) -> None:
        """Judge what is known."""
        ...

    def when_kept(self, act: Callable[[str], None]) -> None:
        """Call *act* once what was just done is on the disk, or with why it is not."""
        ...


class Loads(Service):
    """Drives the agent's own probe, and takes what any load measured."""

    name = "loads"

    def __init__(
        self,
        prober: Prober | SimulatedProber,
        lease: LoadGuard,
        recorder: LoadRecorder,
        reports: Reports,
        ingest: Ingest,
        event_log: EventLog,
        judge: Judge,
    ) -> None:
        """Have *ingest* take results, and *judge* judge them; *lease* tells which load runs."""
        self.prober = prober
        self._lease = lease
        self._recorder = recorder
        self._reports = reports
        self._ingest = ingest
        self._event_log = event_log
        self._judge = judge
        self._results: tuple[Result, ...] = ()
        self._answered: tuple[bytes, BurnInDocument] | None = None

    def take_results(self, results: tuple[Result, ...], plan: str) -> BurnInDocument | None:
        """Judge and keep *results* of a load that was granted, and return its document.

        Those that come again, because the answer was lost, are answered again and not taken twice. None where the
        agent's own probe runs: then nothing is taken.
        """
        if self.prober.running:
            return None
        name = sha256(msgspec.json.encode(results))
        if self._answered is None or self._answered[0] != name:
            self._answered = (name, self._documented(self._take_results(results), plan))
        return self._answered[1]

    @property
    def conditions(self) -> KnownConditions:
        """Heat, power, clock and throttling of each device, as they were read last."""
        return self._recorder.now(self._judge.now.boottime_ns / 1e9)

    def take_found(self, results: tuple[Result, ...]) -> None:
        """Judge wrong *results* of a load that goes on: its end may be hours away. History has the last one alone."""
        for result in results:
            if result.metric("mismatches"):
                self._ingest.take_result(self._stamped(result), keep=False)
        self._judge.judge()

    def stop_probe(self, reason: str) -> bool:
        """Begin to end a probe that runs; False where none does."""
        running = self.prober.running
        self.prober.stop(reason)
        return running

    def tick(self) -> None:
        """Drive the probe, and take what it found and measured."""
        was_running = self.prober.running
        results = self.prober.tick(self._judge.snapshot)
        if results or was_running is not self.prober.running:
            self._results = (*self._results, *self._take_results(results))
            if self._results and not self.prober.running:
                results, self._results = self._results, ()  # those of the next probe are documented whatever these do
                self._documented(results, PLAN)
        found = self.prober.found()
        if found:
            self.take_found(found)
        if self._lease.leases.current is not None:
            self._recorder.begin(self._judge.now.boottime_ns / 1e9)
        else:
            self._recorder.end()

    def end(self) -> None:
        """Drive a probe that ends with the agent; what it knew to be wrong is kept for the next agent."""
        results = self.prober.tick(None)
        if results:
            self._take_results(results)

    @property
    def next_deadline(self) -> float | None:
        """Return when the probe is due, or must be driven."""
        return self.prober.next_deadline

    def describe(self, info: AgentInfo) -> AgentInfo:
        """Tell which load runs, or why none does."""
        lease = self._lease.leases.current
        words = self.prober.status if lease is None or lease.pid == os.getpid() else f"{lease.holder} runs"
        return msgspec.structs.replace(info, load=words)

    def stop(self) -> None:
        """Begin to end the probe."""
        self.prober.stop("the agent stops")

    def _take_results(self, results: tuple[Result, ...]) -> tuple[Result, ...]:
        """Judge and keep *results*; return them with the conditions that they were measured under."""
        results = tuple(map(self._stamped, results))
        for result in results:
            self._ingest.take_result(result)
        self._judge.judge()
        for result in results:
            self._judge.when_kept(lambda _trouble, result=result: self._event_log.load_ended(result))  # type: ignore[misc]
        return results

    def _stamped(self, result: Result) -> Result:
        return self._recorder.stamped(result, self._judge.snapshot.samples)

    def _documented(self, results: tuple[Result, ...], plan: str) -> BurnInDocument:
        """Return the document of a load that has ended, and have its report rendered."""
        document = burn_in_document(self._judge.newest, plan=plan, results=results, series=self._recorder.end())
        self._judge.when_kept(lambda _trouble: self._reports.render(document))
        return document
