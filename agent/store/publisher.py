"""The thread that writes the state file and the mirror, so that a slow file system never holds up the main loop.

Only the latest snapshot matters: one that was not written yet is replaced by the next.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from nodevet.agent.services.protocol import Service
from nodevet.checks.core.errors import NodevetError
from nodevet.checks.core.guard import Guard
from nodevet.checks.core.model import AgentInfo, Episode, EpisodeState, Snapshot, State
from nodevet.checks.system.background import Background
from nodevet.exporters.statefile.reader import StateFile, read_state
from nodevet.exporters.statefile.writer import clock_lead, write_state

from .mirror import MIRROR_NAME, write_mirror

STATE_NAME = "state"

STOPPED_SECONDS = 120.0
"""How long a state is good for that an agent wrote as it ended in order: a new package is installed within that."""


class Publisher(Service):
    """Writes ``state`` and ``episodes.json`` into the runtime directory."""

    name = "state_file"

    def __init__(
        self,
        directory: Path,
        *,
        ttl_seconds: float,
        guard: Guard | None = None,
        ended: Callable[[], tuple[Episode, ...]] = tuple,
        root: str = "/",
    ) -> None:
        """Start the thread; a state is good for *ttl_seconds* after it was judged. *guard* learns of our own bugs.

        *ended* tells what is over although the store may still have it; it is asked from the thread. The
        readers of ``state`` have the clock below *root*.
        """
        self._ended = ended
        self._root = root
        self._guard = guard or Guard()
        self._directory = directory
        self.ttl_seconds = ttl_seconds
        self._condition = threading.Condition()
        self._waiting: Snapshot | None = None
        self._newest: Snapshot | None = None
        self._tried_generation = -1
        self._closing = False
        self._failure = self._mirror_failure = self._state_failure = ""
        self.written: Snapshot | None = None
        """The snapshot that the state file on disk is of; None before the first write."""
        self._mirrored: tuple[object, ...] | None = None
        self._thread = Background(self._run)
        self._thread.start()

    @property
    def trouble(self) -> str:
        """Return why the last write failed, or an empty string."""
        return self._failure

    def describe(self, info: AgentInfo) -> AgentInfo:
        """Tell why the last write failed."""
        return msgspec.structs.replace(info, state_file=self.trouble)

    def judged(self, snapshot: Snapshot) -> None:
        """Have *snapshot* written soon."""
        with self._condition:
            self._waiting = snapshot
            self._condition.notify()

    def mirror(self, snapshot: Snapshot) -> None:
        """Have the findings of *snapshot*, which no surface shows yet, in the mirror soon."""
        with self._condition:
            self._newest = snapshot
            self._condition.notify()

    def has_mirrored(self, snapshot: Snapshot) -> bool:
        """Return whether the mirror has the findings of *snapshot*, or could not be written."""
        with self._condition:
            return self._tried_generation >= snapshot.generation or not self._thread.is_alive()

    def close(self, timeout_seconds: float = 1.0) -> bool:
        """Write what waits and end; False where that took longer than *timeout_seconds*."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting or self._must_mirror or self._closing)
                shown, self._waiting = self._waiting, None
                mirrored = self._of_mirror(shown)
            if mirrored is None:
                return
            self._write(mirrored, shown)
            with self._condition:
                self._tried_generation = max(self._tried_generation, mirrored.generation)

    @property
    def _must_mirror(self) -> bool:
        return self._newest is not None and self._newest.generation > self._tried_generation

    def _of_mirror(self, shown: Snapshot | None) -> Snapshot | None:
        """Return what the mirror is written of: the newest, or a crash would lose what is about to be shown."""
        newest = self._newest if shown is not None or self._must_mirror else None
        if newest is None or (shown is not None and shown.generation >= newest.generation):
            return shown
        return newest

    def _write(self, mirrored: Snapshot, shown: Snapshot | None) -> None:
        # Mirror first, so that no verdict is told that a crash could lose. A mirror that cannot be written keeps no
        # fault out of the state file: what stands there may still be an `ok` of before.
        self._mirror_failure = self._try("mirror", partial(self._write_mirror, mirrored))
        if shown is not None:
            self._state_failure = self._try("state file", partial(self._write_state, shown))
        self._failure = "; ".join(filter(None, (self._mirror_failure, self._state_failure)))

    def _try(self, part: str, write: Callable[[], None]) -> str:
        return self._guard.run(part, partial(_tried, write), partial(_broken, part))

    def _write_state(self, snapshot: Snapshot) -> None:
        path, lead = self._directory / STATE_NAME, clock_lead(self._root)
        if _is_empty(snapshot) and _stands(path, snapshot, lead):
            return
        ttl = max(self.ttl_seconds, STOPPED_SECONDS) if snapshot.agent.stopping else self.ttl_seconds
        write_state(path, snapshot, ttl_seconds=ttl, lead_seconds=lead)
        self.written = snapshot

    def _write_mirror(self, snapshot: Snapshot) -> None:
        """Write the mirror where an episode changed."""
        lasting = [episode for episode in snapshot.episodes if episode.state is not EpisodeState.PENDING]
        lasting += snapshot.covered
        ended = self._ended()
        facts = (*map(_facts, lasting), *((entry.key, entry.cleared) for entry in ended))
        if facts != self._mirrored or not (self._directory / MIRROR_NAME).exists():
            write_mirror(self._directory / MIRROR_NAME, lasting, snapshot.time.boot_id, ended)
            self._mirrored = facts


def _is_empty(snapshot: Snapshot) -> bool:
    """Return whether *snapshot* says of a real node only that nothing was judged yet."""
    return not snapshot.agent.ready and not snapshot.simulated and snapshot.verdict.state is State.UNKNOWN


def _stands(path: Path, snapshot: Snapshot, lead_seconds: float) -> bool:
    """Return whether the state at *path* is one of no fault that an agent left as it ended in order, and still good.

    Such an agent comes back within seconds, as where a new package is installed on every node at once. Where a site
    closes on ignorance, each gate would be closed, without a permit, until the first round is complete.
    """
    found = read_state(
        str(path),
        boot_id=snapshot.time.boot_id,
        uptime_seconds=snapshot.time.boottime_ns / 1e9 - lead_seconds,
        owner_uid=os.geteuid(),
    )
    return (
        isinstance(found, StateFile)
        and found.agent in ("stopped", "drained")
        and found.state in (State.OK.value, State.DEGRADED.value)
        and not found.probing
    )


def _facts(episode: Episode) -> tuple[object, ...]:
    """Return what of *episode* is mirrored again when it changes: also another term under the same note."""
    until = None if episode.until is None else episode.until.wall_seconds
    said = (episode.actor, episode.note, until, episode.acknowledged, episode.expired)
    return (episode.key, episode.opened, episode.state, episode.outcome, episode.count, said)


def _tried(write: Callable[[], None]) -> str:
    """Return why *write* could not, or an empty string."""
    try:
        write()
    except NodevetError as error:
        return str(error)
    return ""


def _broken(part: str) -> str:
    return f"the {part} is not written: an error in nodevet; read the agent's log"
