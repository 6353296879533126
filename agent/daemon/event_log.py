"""What the agent tells people of its own accord: lines of its log, the service manager's line, and a greeting.

A state that goes on is not told again: a round that changed nothing leaves no line. A storm leaves a few lines and a
count.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from nodevet.agent.terminal.outlet import Outlet
from nodevet.checks.core.model import AgentInfo, Episode, EpisodeState, Event, Key, Result, Snapshot, State
from nodevet.checks.core.wire import Note
from nodevet.checks.engine.acknowledgement import is_announced
from nodevet.checks.reference.kernel_policy import told_code

from .notify import Notifier
from .storms import Folded, Storms

LEVELS = ("debug", "info", "warning", "error")
"""What a child may ask for; whatever else it says is told at info."""

STORM_KINDS = {"finding": 512, "kernel event": 64, "note": 64, "trouble": 64}
"""How many kinds of line each source may write one by one within a minute: a node has hundreds of parts to fail."""

CUT = "events and lines of collectors beyond the rate limit"
"""The kind of what readers told too much of."""


class EventLog:
    """Writes lines to *log*, and the verdict to the service manager. Every thread may call ``trouble``."""

    def __init__(
        self,
        log: FilteringBoundLogger,
        notifier: Notifier,
        *,
        monotonic: Callable[[], float],
        outlet: Outlet | None = None,
    ) -> None:
        """Tell by *log* and *notifier*; *outlet* is what *log* writes to, and *monotonic* measures storms."""
        self.log = log
        self._notifier = notifier
        self._monotonic = monotonic
        self._outlet = outlet
        self._lock = threading.Lock()
        self._storms = {name: Storms(kinds=kinds) for name, kinds in STORM_KINDS.items()}
        self._told_dropped = 0

    @property
    def dropped_lines(self) -> int:
        """Return how many lines found no room on their way to the log."""
        return self._outlet.dropped if self._outlet is not None else 0

    @property
    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to tell, in monotonic seconds."""
        with self._lock:
            deadlines = [storms.next_deadline for storms in self._storms.values()]
        return min((when for when in deadlines if when is not None), default=None)

    def tick(self) -> None:
        """Tell how many lines the storms that are over did not write, and how many lines were dropped."""
        now = self._monotonic()
        with self._lock:
            ended = [entry for storms in self._storms.values() for entry in storms.ended(now)]
        for folded in ended:
            self.log.warning("repeated", count=folded.count, seconds=round(folded.seconds), line=_kind_text(folded))
        dropped = self.dropped_lines
        if dropped > self._told_dropped:
            lines = dropped - self._told_dropped
            self.log.warning("log lines dropped", count=lines, reason="the log receiver was too slow")
            # Where this line is dropped too, it is told again, with it in the count.
            self._told_dropped = dropped if self.dropped_lines == dropped else self._told_dropped

    def kernel_event(self, event: Event) -> None:
        """Tell what the kernel logged of a device."""
        code = told_code(event)
        if self._admits("kernel event", f"{code} {event.pci or ''}".strip()):
            self.log.warning("kernel event", code=code, pci=event.pci, text=event.text[:200])

    def trouble(self, line: str) -> None:
        """Tell of something that does not work."""
        if self._admits("trouble", line):
            self.log.warning("problem", detail=line)

    def reloaded(self, level: str, event: str, **fields: object) -> None:
        """Tell what became of a configuration that was read again."""
        if self._admits("trouble", event):
            self._write(level, event, **fields)

    def simulation(self, line: str) -> None:
        """Tell what a simulated node does."""
        self.log.warning("simulation", detail=line)

    def note(self, note: Note) -> None:
        """Pass on what a child has to say."""
        if self._admits("note", f"{note.event} {note.fields.get('line', '')}".strip()):
            self._write(note.level if note.level in LEVELS else "info", note.event, **note.fields)

    def cut(self, count: int) -> None:
        """Tell, with the storms, that *count* events and lines of children were too many to be taken one by one."""
        if count:
            with self._lock:
                self._storms["note"].fold(CUT, count, self._monotonic())

    def load_ended(self, result: Result) -> None:
        """Tell what a load came to."""
        self.log.info("load ended", **_figures(result))

    def acknowledged(self, words: tuple[Episode, ...], note: str, actor: str, _trouble: str) -> None:
        """Tell that *actor* acknowledged the faults of *words*, with which *note*."""
        for word in words:
            self.log.warning("acknowledged", code=word.key.code, device=word.key.device, note=note, actor=actor)

    def report_rendered(self, page: Path, url: str) -> None:
        """Tell where the *page* of a report is."""
        self.log.info("report rendered", page=str(page), url=url)

    def changes(self, before: Snapshot | None, after: Snapshot, changed: tuple[Episode, ...]) -> None:
        """Tell what a judgement *changed*, and what else is otherwise than *before*."""
        for episode in changed:
            expired = episode.state is EpisodeState.ACKNOWLEDGED and episode.expired is not None
            event = "acknowledgement expired" if expired else f"finding {episode.state.value}"
            if self._admits("finding", f"{event} {episode.key}"):
                self._write(
                    "info" if episode.state is EpisodeState.CLEARED else "warning",
                    event,
                    code=episode.key.code,
                    device=episode.key.device,
                    message=episode.cleared_by or episode.finding.message,
                )
        announced = _announced(before) if before is not None else {}
        for key, episode in _announced(after).items():
            if key not in announced:
                self.log.warning(
                    "acknowledgement ends", code=episode.key.code, device=episode.key.device, within="1 day"
                )
        known = before.agent.notices if before else ()
        for notice in after.agent.notices:
            if notice not in known:
                self.trouble(notice)
        for notice in known:
            if notice not in after.agent.notices and self._admits("trouble", f"{notice} is over"):
                self.log.info("problem resolved", detail=notice)
        writer, did = after.agent.slurm, before.agent.slurm if before else None
        if writer is not None and writer.doing and (did is None or did.doing != writer.doing):
            self.log.warning("slurm", node=writer.node, writer=writer.writer, doing=writer.doing)
        if before is None or before.verdict.state is not after.verdict.state:
            level = "info" if after.verdict.state is State.OK else "warning"
            self._write(level, "verdict", state=after.verdict.state.value, reason=after.verdict.reason)
            origin = "simulated node, " if after.simulated else ""
            self._notifier.status(f"{origin}{after.verdict.state.value}: {after.verdict.reason}")

    def _admits(self, source: str, kind: str) -> bool:
        with self._lock:
            return self._storms[source].admits(f"{source} {kind}", self._monotonic())

    def _write(self, level: str, event: str, **fields: object) -> None:
        getattr(self.log, level)(event, **fields)


def greeting(info: AgentInfo, node: str, url: str, *, trouble: str, simulates: str, elsewhere: str) -> Iterator[str]:
    """Yield the lines that greet whoever starts the agent.

    *url* is that of the page, empty where *trouble* says why there is none; *simulates* says what it stands for, if
    anything; *elsewhere* is its runtime directory where that is not the one in which `nodevet status` looks by itself.
    """
    yield f"nodevet {info.version} vets {node}"
    if simulates:
        yield f"  SIMULATED: {simulates}; this machine is not read"
    if url:
        yield f"  status   {url}"
        yield f"  metrics  {url}metrics"
        yield f"  report   {url}report (after the first probe)"
    else:
        yield f"  note     {trouble}"
    yield f"  command  nodevet status{f' --runtime-dir {elsewhere}' if elsewhere else ''}"
    for notice in info.notices:
        yield f"  note     {notice}"


def _announced(snapshot: Snapshot) -> dict[Key, Episode]:
    """Return whose acknowledgements end within a day, also of faults that are not there at the moment."""
    said = (*snapshot.episodes, *snapshot.covered)
    return {episode.key: episode for episode in said if is_announced(episode, snapshot.time)}


def _kind_text(folded: Folded) -> str:
    return str(folded.kind) if folded.kind is not None else "various lines"


def _figures(result: Result) -> dict[str, object]:
    """Return what a line of the log says of a load."""
    rate, verified, wrong = (result.metric(name) for name in ("tflops_median", "gemms_verified", "mismatches"))
    figures: dict[str, object] = {
        "device": ",".join(result.devices),
        "dtype": result.dtype,
        "state": result.state.value,
        "tflops": None if rate is None else round(rate, 4),
        "verified": verified,
        "wrong": wrong,
        "detail": result.detail,
    }
    return {name: value for name, value in figures.items() if value not in (None, "")}
