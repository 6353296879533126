"""The thread that writes to SLURM: it takes immutable snapshots, runs the writer's passes, and notifies the main loop.

Only the newest snapshot counts. A scontrol that hangs blocks only this thread. The results of a pass reach the main
loop through a pipe in its selector, because only that loop changes the agent's state.
"""

from __future__ import annotations

import os
import pwd
import selectors
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import msgspec

from nodevet.agent.config.settings import SlurmSettings
from nodevet.agent.load.claims import Claims
from nodevet.agent.services.protocol import Service
from nodevet.checks.core.errors import StoreError
from nodevet.checks.core.guard import Bug, attempt
from nodevet.checks.core.model import AgentInfo, Snapshot
from nodevet.checks.core.scheduler import Permit, WriterStatus
from nodevet.checks.engine.modes import named
from nodevet.checks.system.background import Background
from nodevet.exporters.slurm.scontrol import Scontrol

from .acknowledged import Acknowledged
from .gate_log import Closings
from .memory import MEMORY_NAME, Kept, load_memory, pack, save_memory
from .writer import Pass, Writer

AFTER_BUG_SECONDS = 5.0
"""Wait (s) after an internal error before SLURM is read again."""

GATE_SECONDS = 0.2
"""Interval (s) of checks for claims while the node is drained, as far as is known: a prolog waits for the answer."""

CLOSINGS_SECONDS = 1.0
"""Interval (s) of checks whether gate.log has grown, while the gate may close: nobody waits for the result."""

DRAINS_SECONDS = 10.0
"""Time (s) after a closed gate in which SLURM's drain is awaited: a resume counts only after the drain was seen."""

DRAINED_YET_SECONDS = 1.0
"""Interval (s) of the readings during that time."""

NAMELESS = "SLURM is not read yet: the lookup of the agent's user name (getpwuid) has not returned"

STILL_DRAINED = "drained"
"""The answer in the claim of a waiting prolog if its job was allocated before the drain."""


class Reactor(Service):
    """Runs the SLURM writer. The main loop calls ``told`` when there are results to take."""

    name = "slurm"

    def __init__(
        self,
        settings: SlurmSettings,
        node: str,
        selector: selectors.BaseSelector,
        *,
        runtime: Path,
        memory: bytes | None,
        boot_id: str,
        told: Callable[[], None],
    ) -> None:
        """Start the thread for *node*; it is idle until the first snapshot. *memory* is from the store."""
        self._selector = selector
        self._told = told
        self._settings = settings
        self._claims = Claims(runtime)
        self._met = self._jobs()
        self._closings = Closings(runtime)
        self._drains_until = 0.0
        self._file = runtime / MEMORY_NAME
        self._boot_id = boot_id
        self._scontrol = Scontrol(
            settings.scontrol, configuration=settings.conf, timeout_seconds=settings.timeout_seconds
        )
        self._kept = load_memory(self._file, memory, boot_id)
        self._saved: Kept | None = None
        self._writer = Writer(
            self._scontrol,
            settings,
            node,
            wall_seconds=time.time,
            monotonic=partial(time.clock_gettime, time.CLOCK_BOOTTIME),
            random=Random().random,  # noqa: S311 (spreads calls, keeps no secret)
            boot_id=boot_id,
            memory=self._kept.memory,
            host=socket.gethostname(),
        )
        self._has_name = False
        self._condition = threading.Condition()
        self._snapshot: Snapshot | None = None
        self._seen: tuple[str, ...] = ()
        self._due_at = 0.0
        self._closing = False
        self._closed = False
        self._status = self._writer.status
        self._trouble = ""
        self._acknowledged: tuple[Acknowledged, ...] = ()
        self._receiver, self._sender = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        selector.register(self._receiver, selectors.EVENT_READ, self._ready)
        self._thread = Background(self._run)
        self._thread.start()

    @property
    def status(self) -> WriterStatus:
        """Return the status of the writer."""
        with self._condition:
            if not self._thread.is_alive() and not self._closing:
                ended = "the writer to SLURM ended: restart the agent and report this"
                return msgspec.structs.replace(self._status, doing=ended, trouble=ended)
            return self._status

    def describe(self, info: AgentInfo) -> AgentInfo:
        """Add the status of the writer to *info*."""
        status = self.status
        return msgspec.structs.replace(info, slurm=status, permit=status.permit)

    @property
    def trouble(self) -> str:
        """Return the present problems in one line; empty if there are none."""
        status = self.status
        found = "; ".join(filter(None, (status.trouble or self._trouble, status.returned)))
        return f"slurm: {found}" if found else ""

    @property
    def memory(self) -> bytes:
        """Return the memory for the store."""
        with self._condition:
            return pack(self._kept)

    def judged(self, snapshot: Snapshot) -> None:
        """Have the writer process *snapshot* soon. A simulated snapshot never reaches SLURM."""
        if snapshot.simulated:
            return
        with self._condition:
            self._snapshot = snapshot
            self._condition.notify()

    def take(self) -> tuple[Acknowledged, ...]:
        """Return the faults that a person acknowledged by resuming the node, once."""
        with self._condition:
            taken, self._acknowledged = self._acknowledged, ()
            return taken

    def stop(self) -> None:
        """Begin to stop: scontrol is not started again, and a running one is aborted."""
        self._scontrol.give_up()
        with self._condition:
            self._closing = True
            self._condition.notify()

    def close(self, timeout_seconds: float = 1.0) -> bool:
        """Stop; return False if that takes longer than *timeout_seconds*."""
        self.stop()
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            return False
        if not self._closed:
            self._closed = True
            self._selector.unregister(self._receiver)
            os.close(self._receiver)
            os.close(self._sender)
        return True

    def _run(self) -> None:
        ended: bool | Bug = False
        while ended is not True:
            ended = attempt(self._turn)
            if isinstance(ended, Bug):
                with self._condition:
                    self._trouble = f"nodevet's own error, please report it: {ended}"
                    self._wake()
                    self._condition.wait_for(lambda: self._closing, AFTER_BUG_SECONDS)

    def _turn(self) -> bool:
        """Wait until a pass is due and run it for the newest snapshot; return whether the thread ends."""
        with self._condition:
            while not self._closing and not self._is_due():
                self._condition.wait(self._patience())
            snapshot = self._snapshot
            if self._closing or snapshot is None:
                return True
        if not self._has_name:
            self._take_name()
        self._pass(snapshot)
        return False

    def _take_name(self) -> None:
        """Set the writer's user name; a directory service that does not answer blocks only this thread."""
        with self._condition:
            before, self._trouble = self._trouble, NAMELESS
        self._writer.user = _user()
        with self._condition:
            self._has_name, self._trouble = True, before

    def _pass(self, snapshot: Snapshot) -> None:
        """Run a pass for *snapshot* and keep its results."""
        jobs, waiting = self._jobs(), self._claims.waiting()
        comes = self._status.drained and bool(waiting or jobs - self._met)
        done = self._writer.step(snapshot, hurries=comes or time.monotonic() < self._drains_until)
        self._keep(snapshot, done)
        if done.status.drained and not done.status.trouble:
            # These prologs waited before SLURM was read, and SLURM still shows the drain: nobody resumed the node.
            self._claims.answer(waiting, STILL_DRAINED)
        self._met = jobs

    def _is_due(self) -> bool:
        """Return whether a pass is due: at its time, after a change of faults, or because of a job or a closed gate."""
        if self._snapshot is None or not self._snapshot.agent.ready:
            return False
        if self._faults(self._snapshot) != self._seen or time.monotonic() >= self._due_at:
            return True
        if self._status.drained:
            return self._follows_up and self._has_new_job()
        return self._must_watch() and self._was_closed()

    @property
    def _follows_up(self) -> bool:
        """Return whether a resume would have a meaning: a job claims all of its nodes at once, and most are healthy."""
        return bool(self._seen) or self._kept.memory.drained is not None

    def _was_closed(self) -> bool:
        """Return whether a prolog has closed the gate since the last pass, and a reading is due for the drain."""
        if not self._closings.take():
            return False
        now, wait = time.monotonic(), self._writer.behind_gate()
        self._drains_until = now + wait + DRAINS_SECONDS
        self._due_at = min(self._due_at, now + wait)
        return now >= self._due_at

    def _has_new_job(self) -> bool:
        """Return whether a job claims this node that did not at the last pass, or whose claim was gone meanwhile."""
        jobs = self._jobs()
        self._met &= jobs
        return bool(jobs - self._met)

    def _jobs(self) -> frozenset[tuple[str, bool]]:
        """Return the jobs that claim this node, each with whether its prolog waits."""
        waiting = self._claims.waiting()
        return frozenset((name, name in waiting) for name in self._claims.names())

    def _must_watch(self) -> bool:
        """Return whether a new job matters: it may show that somebody resumed the node, or make SLURM drain it."""
        return self._status.drained or (self._status.permit.held and bool(self._seen))

    def _patience(self) -> float | None:
        if self._snapshot is None:
            return None
        wait = max(self._due_at - time.monotonic(), 0.0) or None
        if not self._must_watch():
            return wait
        often = GATE_SECONDS if self._status.drained else CLOSINGS_SECONDS
        return min(wait or often, often)

    def _faults(self, snapshot: Snapshot) -> tuple[str, ...]:
        return named(self._writer.due(snapshot))

    def _keep(self, snapshot: Snapshot, done: Pass) -> None:
        trouble = ""
        kept = self._kept.followed_by(done.memory, self._boot_id)
        if kept != self._saved:  # also after a failed write: an old file may outlive an acknowledgement
            try:
                save_memory(self._file, kept)
                self._saved = kept
            except StoreError as error:
                trouble = str(error)
        status = done.status
        if trouble and status.permit.held and self._settings.permit == "cluster":
            # Only a permit that is kept is shown: one that a restart would lose closes no gate.
            status = msgspec.structs.replace(status, permit=Permit(why=f"the permit cannot be stored: {trouble}"))
        with self._condition:
            before, self._status = self._status, status
            self._kept, self._trouble = kept, trouble
            self._seen = self._faults(snapshot)
            self._due_at = time.monotonic() + self._again_seconds(done)
            self._acknowledged = done.acknowledged
            is_news = bool(done.acknowledged) or _without_time(before) != _without_time(status)
            if is_news and not self._closing:
                self._wake()

    def _again_seconds(self, done: Pass) -> float:
        """Return the time until the next pass (s): short while SLURM is about to drain, to see an early resume."""
        drains = not done.status.drained and time.monotonic() < self._drains_until
        soon = DRAINED_YET_SECONDS + self._writer.behind_gate()
        return min(done.again_seconds, soon) if drains else done.again_seconds

    def _wake(self) -> None:
        try:
            os.write(self._sender, b"!")
        except BlockingIOError:
            return  # the loop has not read the earlier notification yet

    def _ready(self, _mask: int) -> None:
        os.read(self._receiver, 4096)
        self._told()


def _user() -> str | None:
    """Return the user name with which SLURM signs the writes of this process, or None if the user has no name.

    SLURM does not look up root's name, and neither may this: a directory service may take minutes to answer.
    """
    uid = os.geteuid()
    if not uid:
        return "root"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def _without_time(status: WriterStatus) -> WriterStatus:
    return msgspec.structs.replace(status, last_read_seconds=None)
