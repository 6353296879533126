"""The engine of daemon, one-shot check, burn-in, replay and simulation: from inputs and a clock to Snapshots.

It does no I/O. Its inputs are samples, events, results and statuses; ``evaluate`` runs every check on a View, folds the
findings into episodes and returns a Snapshot together with the state that a restarted agent needs to continue
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TypeVar

import msgspec

from nodevet.checks.core.event import Event
from nodevet.checks.core.finding import Episode, EventCount, Finding, Key, Outcome
from nodevet.checks.core.guard import AGENT, CODE, Bug, Guard, PartFault, attempt, culprits, fault_findings
from nodevet.checks.core.model import AgentInfo, CheckRun, Device, Modes, ReaderStatus, Refusal, Result, Snapshot, State
from nodevet.checks.core.parts import Part
from nodevet.checks.core.recall import Recall
from nodevet.checks.core.sample import Instant, Sample, held_once
from nodevet.checks.kernel_log.dedupe import Deduplicator, DeduplicatorState

from .acknowledgement import Returns
from .arrivals import Arrivals, KeptArrivals
from .baseline import by_name, forget, links_noted, named, owed, remember, without_pages, without_ports
from .check_run import ConfiguredCheck
from .consequences import counted_once, joined, shown_once
from .disproof import Evidence, holders_of
from .episodes import Knew, Ledger, acknowledge, anybody, fold
from .exchanged import exchanged
from .growth import Counter, Counters
from .hours import Hourly
from .lapses import Lapse, Lapses
from .listed import ListedDevices
from .overflow import without_those_not_kept
from .refusal import counted
from .renamed import COMMANDS
from .retest import LatestResults
from .reuse import Reuse
from .runner import WAITING_EVENTS, CheckRunner
from .seen_events import SeenEvent, SeenEvents
from .standing import not_judged
from .tally import Counts, count_events
from .verdicts import verdicts_of
from .view import Cadence, KernelLogState, KnownDevices, View

__all__ = ["ConfiguredCheck", "Engine", "Round"]

MOST_NAMES = 1000
"""Limit of remembered former names of devices: clients that missed a rename ask again soon."""

MOST_FOLDS = 100
"""Limit of repeated folds in one round, which find the findings that make it raise."""

STEP = "judging: "
"""Prefix of the name of a step of a judgement that failed, as a part of the agent."""

Returned = TypeVar("Returned")


class Round(msgspec.Struct, frozen=True):
    """The result of one evaluation: the snapshot, and the episodes whose change a journal must keep."""

    snapshot: Snapshot
    changes: tuple[Episode, ...]


class Engine:
    """Holds the node's present state. One thread owns it; its results are immutable."""

    def __init__(
        self,
        checks: Sequence[ConfiguredCheck],
        *,
        node: str,
        clock: Callable[[], Instant],
        cadences: Mapping[tuple[str, str], Cadence] | None = None,
        scope: str = "node",
        partial: bool = False,
        modes: Modes | None = None,
        simulated: bool = False,
        guard: Guard | None = None,
        reuses: bool = True,
    ) -> None:
        """Start without any state. *clock* returns the present time; *cadences* are keyed by (backend, group).

        *partial* says that only some checks were requested, so that a device which none of them judges does not count.
        A *simulated* node is marked so from its first snapshot on, before any sample. *guard* runs the optional steps
        of a judgement. With *reuses*, findings with unchanged inputs are not judged again.
        """
        self._guard = guard or Guard()
        self._partial = partial
        self._modes = modes or Modes()
        self._runner = CheckRunner(checks, partial=partial)
        self._node = node
        self._clock = clock
        self._cadences = dict(cadences or {})
        self._scope = scope
        self._generation = 0
        self._listed = ListedDevices()
        self._arrivals = Arrivals()
        self._samples: dict[tuple[str, str], Sample] = {}
        self._counters = Counters()
        self._lapses = Lapses()
        self._links_up: dict[str, set[int]] = {}
        self._old_ports: set[tuple[str, int]] = set()
        self._events: list[Event] = []
        self._counts: Counts = {}
        self._results = LatestResults()
        self._readers: tuple[ReaderStatus, ...] = ()
        self._kernel_log: KernelLogState | None = None
        self._deduplicator = Deduplicator()
        self._seen_events = SeenEvents()
        self._reuse = Reuse() if reuses else None
        self._faults: tuple[PartFault, ...] = ()
        self._ledger = Ledger()
        self._untold: tuple[Episode, ...] = ()
        self._unfolded: tuple[Finding, ...] = ()
        self._memory = KnownDevices()
        self._renamed: dict[str, str] = {}
        self._simulated = simulated
        self._refusals: dict[str, Refusal] = {}

    # Inputs.

    def take_devices(self, backend: str, devices: Iterable[Device]) -> None:
        """Replace the inventory of *backend* by its new enumeration; samples of removed devices are deleted."""
        gone = self._listed.take(backend, devices, self._memory, (name for name, _ in self._cadences))
        self._arrivals.take_list(backend, self._listed.of(backend), self._clock())
        for key in [key for key, sample in self._samples.items() if (sample.backend, sample.device) in gone]:
            del self._samples[key]

    def take_sample(self, sample: Sample) -> None:
        """Store *sample* as the latest of its device and group, and record the growth of its counters."""
        name = self._listed.names.get((sample.backend, sample.device), sample.device)
        sample = sample if name == sample.device else msgspec.structs.replace(sample, device=name)
        if self._listed.is_left_out(sample.backend, sample.device):
            return
        place = sample.device, sample.group
        sample = self._samples[place] = held_once(sample, self._samples.get(place))
        self._simulated = self._simulated or sample.simulated
        if sample.failure is not None:
            return
        self._lapses.take(sample, self._counters.last_time(sample))
        self._note_links(sample)
        self._counters.take(sample)

    def take_event(self, event: Event) -> None:
        """Queue *event* for the next evaluation, unless it was reported before, by this or another source."""
        name = self._listed.names.get((event.source, event.device or ""))
        event = event if name in (None, event.device) else msgspec.structs.replace(event, device=name)
        is_numbered = event.source.startswith(COMMANDS)
        if self._seen_events.admit(event) if is_numbered else self._deduplicator.admit(event):
            self._events.append(event)

    def take_result(self, result: Result) -> None:
        """Store *result* as the latest of its workload, devices and number format."""
        self._results.take(result)

    def take_readers(self, statuses: Iterable[ReaderStatus]) -> None:
        """Replace the statuses of the readers."""
        self._readers = tuple(by_name(status, self._listed.names) for status in statuses)
        self._arrivals.take_readers(self._readers, self._clock())

    def take_kernel_log(self, state: KernelLogState) -> None:
        """Replace the state of the kernel log."""
        self._kernel_log = state

    def take_faults(self, faults: Iterable[PartFault]) -> None:
        """Replace the failures of the agent's parts; a part that failed since the last evaluation is still failed."""
        before = {fault.part: fault.count for fault in self._faults}
        self._faults = tuple(
            msgspec.structs.replace(fault, works=fault.works and before.get(fault.part) == fault.count)
            for fault in faults
        )

    def reconfigure(
        self, checks: Sequence[ConfiguredCheck], cadences: Mapping[tuple[str, str], Cadence], modes: Modes
    ) -> None:
        """Use new policies, cadences and modes from the next evaluation on."""
        self._modes, self._runner.checks, self._cadences = modes, tuple(checks), dict(cadences)

    def acknowledge(
        self, key: Key, *, note: str, actor: str, until: Instant | Returns | None = None, knew: Knew = anybody
    ) -> Episode | None:
        """Acknowledge the episode of *key* *until* a time; None if there is none, or its *actor* *knew* less of it.

        It counts again when it requests a harder action, or returns after its end and *until* does not cover that. A
        missing device stays known: entries of the bus or the kernel at its slot are no other board.
        """
        done = acknowledge(self._ledger, key, note=note, actor=actor, time=self._clock(), until=until, knew=knew)
        if done is None:
            return None
        self._ledger, episode = done
        return episode

    # Outputs.

    def evaluate(self, agent: AgentInfo) -> Round:
        """Run every check on the present state, fold the findings, and return the snapshot.

        A step that raises costs only its result, and makes the node unknown. If the rest raises, nothing is judged, and
        the changes so far are in the next Round.
        """
        now = self._clock()
        present = self._listed.present()
        said = {entry.key.device for entry in self._ledger.lasting if entry.last_seen.boot_id == now.boot_id}
        naming = partial(named, self._memory, present, self._listed.duplicates, said, self._readers)
        names = self._step("names of devices", naming, dict[str, str])
        renamed = {old: names.get(new, new) for old, new in self._renamed.items()} | names
        self._renamed = dict(islice(renamed.items(), max(len(renamed) - MOST_NAMES, 0), None))
        remembered = partial(
            remember, self._memory, present, self._links_up, now, self._listed.duplicates, self._readers
        )
        self._memory = self._step("memory of devices", remembered, lambda: self._memory)
        self._results.known(self._ledger.episodes)
        view = self._view(now, present)
        added = partial(count_events, self._counts, self._events, view)
        counts = self._step("counts of events", added, lambda: self._counts)
        if self._reuse is not None:
            self._reuse.turn()
        runs, found = self._runner.run(view, self._ledger.episodes)
        again = {finding.key for finding in found} if self._unfolded else set()
        waiting = tuple(finding for finding in self._unfolded if finding.key not in again)
        self._unfolded = ()
        told = (*found, *waiting, *self._own_faults())
        every = self._step("ends of links", partial(joined, told, present, self._memory), lambda: told)
        findings = self._step("findings counted once", partial(counted_once, every), lambda: every)
        replaced = self._step("replaced boards", partial(exchanged, view), dict[str, str])
        evidence = self._evidence(now, present, names, replaced)
        self._ledger, changes = self._step(
            "findings", partial(fold, self._ledger, findings, evidence), lambda: self._folded(findings, evidence)
        )
        self._untold = (*self._untold, *changes)
        self._counts = counts
        self._events.clear()
        self._old_ports.clear()
        self._results.judged({device.id for device in present})
        self._forget_replaced(changes)
        once = self._step("findings shown once", partial(shown_once, findings), lambda: findings)
        without = partial(without_those_not_kept, once, self._ledger.episodes)
        shown = self._step("findings that are kept", without, lambda: once)
        done = Round(self._snapshot(now, view, runs, shown, agent), self._untold)
        self._untold = ()
        return done

    def unjudged(self, before: Snapshot, agent: AgentInfo, why: str) -> Snapshot:
        """Return *before* for a failed judgement: failed verdicts stay failed, all others become unknown."""
        self._generation += 1
        unknown = not_judged(f"the agent could not judge the node: {why}", (), ())
        verdicts = {
            device: entry if entry.state is State.FAILED else unknown
            for device, entry in before.device_verdicts.items()
        }
        of_node = not_judged(unknown.reason, before.episodes, before.covered)
        verdict = before.verdict if before.verdict.state is State.FAILED else of_node
        return msgspec.structs.replace(
            before,
            generation=self._generation,
            time=self._clock(),
            verdict=verdict,
            device_verdicts=verdicts,
            agent=agent,
        )

    def remembered(self, agent: AgentInfo) -> Snapshot:
        """Return a snapshot of the known state without judging: at start and stop."""
        now = self._clock()
        return self._snapshot(now, self._view(now, self._listed.present()), (), (), agent)

    def memory(self) -> dict[str, bytes]:
        """Return the state that a restarted engine needs to continue unchanged, by name."""
        encode = msgspec.msgpack.encode
        return {
            "ledger": encode(self._ledger),
            "inventory": encode(self._memory),
            "arrivals": encode(self._arrivals.kept(self._clock())),
            "counters": encode(self._counters.kept),
            "times": encode(self._counters.times),
            "hourly": encode(self._counters.hourly),
            "lapses": encode(self._lapses.kept),
            "results": encode(self._results.everything),
            "events": encode(self._deduplicator.state),
            "seen_events": encode(self._seen_events.state),
            "event_counts": encode(tuple(self._counts.values())),
            "waiting": encode(self._runner.waiting),
            "refusals": encode(self._refusals),
            "renamed": encode(self._renamed),
        }

    def restore(self, memory: Mapping[str, bytes]) -> None:
        """Restore the result of ``memory``; missing names stay empty.

        An entry that cannot be decoded costs only itself: the others are restored, then msgspec.ValidationError is
        raised.
        """
        recall = Recall(memory)
        self._ledger = recall.take("ledger", Ledger, self._ledger)
        self._memory = recall.take("inventory", KnownDevices, self._memory)
        self._arrivals.restore(recall.take("arrivals", KeptArrivals, KeptArrivals()), self._clock())
        self._deduplicator = Deduplicator(state=recall.take("events", DeduplicatorState, self._deduplicator.state))
        self._seen_events = SeenEvents(recall.take("seen_events", tuple[SeenEvent, ...], ()))
        self._runner.restore(recall.take("waiting", dict[str, tuple[Event, ...]], {}))
        self._refusals = recall.take("refusals", dict[str, Refusal], {})
        self._renamed = recall.take("renamed", dict[str, str], {})
        self._counters = Counters(
            recall.take("counters", tuple[Counter, ...], ()),
            recall.take("hourly", tuple[Hourly, ...], ()),
            recall.take("times", tuple[tuple[str, str, Instant], ...], ()),
        )
        self._lapses = Lapses(recall.take("lapses", tuple[Lapse, ...], ()))
        for result in recall.take("results", tuple[Result, ...], ()):
            self.take_result(result)
        self._counts = {
            (entry.code, entry.device): entry for entry in recall.take("event_counts", tuple[EventCount, ...], ())
        }
        if recall.lost:
            raise msgspec.ValidationError("; ".join(recall.lost))

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """Return the episodes that are not cleared, and those whose return is covered by an acknowledgement."""
        return self._ledger.lasting

    def adopt(self, episodes: Iterable[Episode]) -> None:
        """Replace the remembered episodes by *episodes*, as after the loss of the store."""
        self._ledger = self._ledger.adopting(episodes)

    def _note_links(self, sample: Sample) -> None:
        """Record the links that are up. Ports that their driver renumbered are deleted, so that none seems missing."""
        up, seen = self._links_up.setdefault(sample.device, set()), self._memory.seen.get(sample.device)
        listed = self._listed.of(sample.backend)
        noted, old = links_noted({*up, *(seen.links_up if seen else ())}, sample, listed)
        up.update(noted)
        up -= old
        self._memory = without_ports(self._memory, sample.device, old)
        self._old_ports |= {(sample.device, port) for port in old}

    def _step(self, name: str, work: Callable[[], Returned], otherwise: Callable[[], Returned]) -> Returned:
        return self._guard.run(f"{STEP}{name}", work, otherwise)

    def _folded(self, findings: tuple[Finding, ...], evidence: Evidence) -> tuple[Ledger, tuple[Episode, ...]]:
        """Fold *findings* except those that make it raise, which wait for the next round; raise if it always does."""
        tries = iter(range(MOST_FOLDS))

        def fails(some: Sequence[Finding]) -> bool:
            work = partial(fold, self._ledger, tuple(some), evidence)
            return next(tries, None) is not None and isinstance(attempt(work), Bug)

        bad = () if fails(()) else culprits(findings, fails)
        rest = (finding for finding in findings if not any(finding is one for one in bad))
        told = {finding.key: finding for finding in (*rest, *self._own_faults())}
        done = fold(self._ledger, tuple(told.values()), evidence)
        self._unfolded = bad[-WAITING_EVENTS:]
        return done

    def _view(self, now: Instant, present: tuple[Device, ...]) -> View:
        """Return the view for the checks, which cannot change it."""
        return View(
            now=now,
            devices=present,
            duplicates=self._listed.duplicates,
            drained=self._listed.drained,
            on_bus=self._listed.pages(),
            arrived=self._arrivals.told(),
            memory=msgspec.structs.replace(self._memory, seen=MappingProxyType(self._memory.seen)),
            samples=MappingProxyType(self._samples),
            growth=MappingProxyType(self._counters.growth),
            lapses=MappingProxyType(self._step("lapses", self._lapses.times, dict[tuple[str, str, Part], Instant])),
            told=MappingProxyType(self._lapses.told),
            readers=self._readers,
            cadences=MappingProxyType(self._cadences),
            events=tuple(self._events),
            results=self._results.everything,
            required=MappingProxyType(owed(present, self._samples.values())),
            kernel_log=self._kernel_log,
            reuse=self._reuse,
        )

    def _own_faults(self) -> tuple[Finding, ...]:
        """Return the findings of failed parts of the agent, and those that end findings of an earlier agent."""
        steps = tuple(fault for fault in self._guard.faults if fault.part.startswith(STEP))
        told = fault_findings((*(fault for fault in self._faults if not fault.part.startswith(STEP)), *steps))
        keys = {finding.key for finding in told}
        over = tuple(
            msgspec.structs.replace(episode.finding, outcome=Outcome.PASS, message="works since the agent's start")
            for episode in self._ledger.episodes
            if episode.check == AGENT and episode.key.code == CODE and episode.key not in keys
        )
        return (*told, *over)

    def _evidence(
        self, now: Instant, present: tuple[Device, ...], names: Mapping[str, str], replaced: Mapping[str, str]
    ) -> Evidence:
        return Evidence(
            now=now,
            devices=present,
            remembered=tuple(seen.device for seen in self._memory.seen.values()),
            moved=frozenset(name for name, seen in self._memory.seen.items() if len(seen.slots) > 1),
            names=names,
            results=self._results.everything,
            processes=holders_of(self._samples.values()),
            old_ports=frozenset(self._old_ports),
            exchanged=replaced,
        )

    def _forget_replaced(self, changes: Iterable[Episode]) -> None:
        for episode in changes:
            if episode.cleared_by and episode.cleared_by.startswith("replaced"):
                self._memory = forget(self._memory, episode.key.device)
                self._results.forget(episode.key.device)

    def _snapshot(
        self, now: Instant, view: View, runs: tuple[CheckRun, ...], findings: tuple[Finding, ...], agent: AgentInfo
    ) -> Snapshot:
        self._generation += 1
        known = {device.id: device for device in view.devices}
        for seen in self._memory.seen.values():
            known.setdefault(seen.device.id, seen.device)
        known = self._step("devices without pages", partial(without_pages, known), lambda: known)
        episodes, covered = self._ledger.episodes, self._ledger.standing
        verdicts, of_node = verdicts_of(view, known, episodes, findings, partial=self._partial, covered=covered)
        snapshot = Snapshot(
            generation=self._generation,
            time=now,
            node=self._node,
            scope=self._scope,
            simulated=self._simulated,
            verdict=of_node,
            device_verdicts=verdicts,
            devices=tuple(known.values()),
            samples=tuple(self._samples.values()),
            findings=findings,
            episodes=episodes,
            results=self._results.everything,
            readers=self._readers,
            checks=runs,
            agent=agent,
            modes=self._modes,
            events=tuple(self._counts.values()),
            covered=covered,
            names=self._renamed,
            refusals=self._refusals,
            on_bus=self._listed.pages(),
        )
        self._refusals = self._step("refusals", partial(counted, snapshot), lambda: self._refusals)
        return msgspec.structs.replace(snapshot, refusals=self._refusals)
