"""What was judged is kept before anybody is shown it: a crash takes nothing back that a person has seen.

A round that changed something lasting goes to the writer of the store first, and to the surfaces when that has it on
disk; until then they show the round before. The main loop waits for no disk. A store that fails, or that needs longer
than a bound, holds nothing back for good: to hide a fault is worse than to lose it, so the round is shown, and what is
wrong with the store is shown with it. Its findings are in the mirror before that, so that a crash loses none of them;
a mirror that cannot be written either holds nothing back for longer than a second bound.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from nodevet.agent.services.protocol import Service
from nodevet.agent.store.writer import Keeping
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.model import Episode, Snapshot

BOUND_SECONDS = 0.5
"""How long a round may wait for the disk: half of what an event may take to every surface."""

LONGEST_SECONDS = 1.0
"""How long a round may wait where neither the store nor the mirror is written."""

LOOK_SECONDS = 0.02
"""Between two looks at whether the mirror is written: its thread rings no bell."""

LONGEST_QUEUE = 8
"""So many rounds wait apart from one another; of more, the oldest are shown together."""

Act = Callable[[str], None]
"""What waits for a round to be shown; it is told what is wrong where that round is not kept, else an empty string."""


class _Waiting(msgspec.Struct, frozen=True):
    """A round that is not shown yet; ``since`` is when the oldest of what it shows was judged."""

    ticket: int
    since: float
    snapshot: Snapshot
    changes: tuple[Episode, ...]
    acts: tuple[Act, ...] = ()


class Showing(Service):
    """Holds back rounds until they are kept. One thread owns it."""

    name = "showing"

    def __init__(
        self,
        clock: Clock,
        show: Callable[[Snapshot, tuple[Episode, ...]], None],
        *,
        keeping: Callable[[int], Keeping],
        trouble: Callable[[], str],
        mirrored: Callable[[Snapshot], bool],
    ) -> None:
        """Hand each round to *show* once *keeping* says of its ticket that it is kept.

        *trouble* returns what is wrong with the store, to be shown with a round that is not kept; *mirrored* whether
        the mirror has the findings of a snapshot, or cannot be written.
        """
        self._clock = clock
        self._show = show
        self._keeping = keeping
        self._trouble = trouble
        self._mirrored = mirrored
        self._next_look: float | None = None
        self._waiting: list[_Waiting] = []
        self._unkept: int | None = None

    @property
    def pending(self) -> bool:
        """Return whether a round waits to be kept."""
        return bool(self._waiting)

    @property
    def next_deadline(self) -> float | None:
        """Return when ``tick`` must be called although the store says nothing, in monotonic seconds."""
        if not self._waiting:
            return None
        return self._next_look if self._next_look is not None else self._waiting[0].since + BOUND_SECONDS

    def offer(self, snapshot: Snapshot, changes: tuple[Episode, ...], ticket: int | None) -> None:
        """Show *snapshot* once the store has what *ticket* stands for; at once where nothing lasting changed (None)."""
        if ticket is None and not self._waiting:
            trouble = self._still_wrong()
            self._show(_with_trouble(snapshot, trouble) if trouble else snapshot, changes)
            return
        if ticket is None:
            last = self._waiting.pop()
            together = _Waiting(last.ticket, last.since, snapshot, (*last.changes, *changes), last.acts)
        else:
            together = _Waiting(ticket, self._clock.monotonic(), snapshot, changes)
        self._waiting.append(together)
        if len(self._waiting) > LONGEST_QUEUE:
            self._waiting[:2] = [_merged(self._waiting[:2])]
        self.tick()

    def when_shown(self, act: Act) -> None:
        """Call *act* when all that was offered so far is shown: at once where nothing waits, and as what is shown."""
        if not self._waiting:
            act(self._still_wrong())
            return
        last = self._waiting[-1]
        self._waiting[-1] = msgspec.structs.replace(last, acts=(*last.acts, act))

    def tick(self) -> None:
        """Show what is kept by now, and what may wait no longer."""
        kept = 0
        while kept < len(self._waiting) and self._keeping(self._waiting[kept].ticket) is Keeping.KEPT:
            kept += 1
        self._release(kept, "")
        self._next_look = None
        if not self._waiting:
            return
        first, now = self._waiting[0], self._clock.monotonic()
        failed = self._keeping(first.ticket) is Keeping.FAILED
        if not failed and now - first.since < BOUND_SECONDS:
            return
        safe = 0
        while safe < len(self._waiting) and self._is_safe(self._waiting[safe], now):
            safe += 1
        if safe:
            self._release(safe, self._trouble() or _slow())
        if self._waiting:
            self._next_look = now + LOOK_SECONDS

    def _still_wrong(self) -> str:
        """Return what is wrong as long as what was shown is not kept: it is not over with the round that told it."""
        if self._unkept is not None and self._keeping(self._unkept) is Keeping.KEPT:
            self._unkept = None
        return "" if self._unkept is None else self._trouble() or _slow()

    def _is_safe(self, entry: _Waiting, now: float) -> bool:
        """Return whether *entry*, which the store does not have, may be shown: a crash loses none of its findings."""
        return self._mirrored(entry.snapshot) or now - entry.since >= LONGEST_SECONDS

    def finish(self) -> None:
        """Show what waits although it is not kept: at the end, when there is no time left."""
        self.tick()
        self._release(len(self._waiting), self._trouble() or _slow())

    def _release(self, count: int, trouble: str) -> None:
        """Show the first *count* rounds as one, with *trouble* where they are not kept."""
        if not count:
            return
        shown = _merged(self._waiting[:count])
        del self._waiting[:count]
        self._unkept = shown.ticket if trouble else None
        self._show(_with_trouble(shown.snapshot, trouble) if trouble else shown.snapshot, shown.changes)
        for act in shown.acts:
            act(trouble)


def _merged(rounds: list[_Waiting]) -> _Waiting:
    return _Waiting(
        rounds[-1].ticket,
        rounds[0].since,
        rounds[-1].snapshot,
        tuple(change for entry in rounds for change in entry.changes),
        tuple(act for entry in rounds for act in entry.acts),
    )


def _slow() -> str:
    return (
        f"the store has not written the shown data for {BOUND_SECONDS:g} s, so a crash may lose some: "
        "check the disk of state_dir"
    )


def _with_trouble(snapshot: Snapshot, trouble: str) -> Snapshot:
    """Return *snapshot* with *trouble* where the state of the store is shown, and among the notices."""
    agent = snapshot.agent
    notices = agent.notices if trouble in agent.notices else (*agent.notices, trouble)
    return msgspec.structs.replace(snapshot, agent=msgspec.structs.replace(agent, store=trouble, notices=notices))
