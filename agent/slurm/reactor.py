"""The thread that acts outside: it receives immutable snapshots, lets the writer make its passes, and tells the loop.

Only the latest snapshot matters. A scontrol that hangs holds up this thread and nothing else; what a pass found comes
back through a pipe that the main loop's selector watches, because only that loop changes what is known.
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
"""How long to wait after an error of our own before SLURM is looked at again."""

GATE_SECONDS = 0.2
"""How often claims are looked at while the node is drained, as far as is known: a prolog waits there for an answer."""

CLOSINGS_SECONDS = 1.0
"""How often it is looked whether gate.log has grown, while the gate may close: nobody waits for that."""

DRAINS_SECONDS = 10.0
"""So long after a prolog closed the gate the drain by SLURM is looked for: a resume counts once that was seen."""

DRAINED_YET_SECONDS = 1.0
"""Between two looks for it."""

NAMELESS = "the name of the agent's user is asked for (getpwuid), and until it is known SLURM is not read"

STILL_DRAINED = "drained"
"""What a prolog finds in its claim where its job was allocated before the drain."""


class Reactor(Service):
    """Runs the writer to SLURM; ``told`` is called by the main loop when there is something to take."""

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
        """Start the thread for *node*; it does nothing before the first snapshot. *memory* is what the store kept."""
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
        """Return how the writer is doing."""
        with self._condition:
            if not self._thread.is_alive() and not self._closing:
                ended = "the writer to SLURM ended: restart the agent and report this"
                return msgspec.structs.replace(self._status, doing=ended, trouble=ended)
            return self._status

    def describe(self, info: AgentInfo) -> AgentInfo:
        """Tell how the writer is doing."""
        status = self.status
        return msgspec.structs.replace(info, slurm=status, permit=status.permit)

    @property
    def trouble(self) -> str:
        """Return what is wrong, in one line; empty while all is well."""
        status = self.status
        found = "; ".join(filter(None, (status.trouble or self._trouble, status.returned)))
        return f"slurm: {found}" if found else ""

    @property
    def memory(self) -> bytes:
        """Return what the store must keep."""
        with self._condition:
            return pack(self._kept)

    def judged(self, snapshot: Snapshot) -> None:
        """Have the writer look at *snapshot* soon. A simulated node is never told of to anybody."""
        if snapshot.simulated:
            return
        with self._condition:
            self._snapshot = snapshot
            self._condition.notify()

    def take(self) -> tuple[Acknowledged, ...]:
        """Return what a person acknowledged by resuming the node, once."""
        with self._condition:
            taken, self._acknowledged = self._acknowledged, ()
            return taken

    def stop(self) -> None:
        """Begin to end: no new call of scontrol, and the one that runs is given up."""
        self._scontrol.give_up()
        with self._condition:
            self._closing = True
            self._condition.notify()

    def close(self, timeout_seconds: float = 1.0) -> bool:
        """End; False where that took longer than *timeout_seconds*."""
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
        """Wait until it is time and look at the newest snapshot; return whether this was the last time."""
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
        """Have the writer know its own name; a directory service that does not answer holds up this thread alone."""
        with self._condition:
            before, self._trouble = self._trouble, NAMELESS
        self._writer.user = _user()
        with self._condition:
            self._has_name, self._trouble = True, before

    def _pass(self, snapshot: Snapshot) -> None:
        """Have the writer look at *snapshot*, and keep what it found."""
        jobs, waiting = self._jobs(), self._claims.waiting()
        comes = self._status.drained and bool(waiting or jobs - self._met)
        done = self._writer.step(snapshot, hurries=comes or time.monotonic() < self._drains_until)
        self._keep(snapshot, done)
        if done.status.drained and not done.status.trouble:
            # They were there before SLURM was asked, and it says that nobody resumed the node.
            self._claims.answer(waiting, STILL_DRAINED)
        self._met = jobs

    def _is_due(self) -> bool:
        """Return whether there is a snapshot to look at: because its faults are others, or because it is time."""
        if self._snapshot is None or not self._snapshot.agent.ready:
            return False
        if self._faults(self._snapshot) != self._seen or time.monotonic() >= self._due_at:
            return True
        if self._status.drained:
            return self._follows_up and self._has_new_job()
        return self._must_watch() and self._was_closed()

    @property
    def _follows_up(self) -> bool:
        """Return whether a resume says something: a job claims all of its nodes at one moment, most are healthy."""
        return bool(self._seen) or self._kept.memory.drained is not None

    def _was_closed(self) -> bool:
        """Return whether a prolog has closed the gate since the last look: SLURM drains the node now."""
        if not self._closings.take():
            return False
        now, wait = time.monotonic(), self._writer.behind_gate()
        self._drains_until = now + wait + DRAINS_SECONDS
        self._due_at = min(self._due_at, now + wait)
        return now >= self._due_at

    def _has_new_job(self) -> bool:
        """Return whether a job claims this node that did not at the last look, or that was gone since."""
        jobs = self._jobs()
        self._met &= jobs
        return bool(jobs - self._met)

    def _jobs(self) -> frozenset[tuple[str, bool]]:
        """Return the jobs that claim this node, and whether their prologs wait."""
        waiting = self._claims.waiting()
        return frozenset((name, name in waiting) for name in self._claims.names())

    def _must_watch(self) -> bool:
        """Return whether a job that comes means something: that somebody resumed the node, or that SLURM drains it."""
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
        if kept != self._saved:  # also where it could not be written before: an old file may outlive a person's word
            try:
                save_memory(self._file, kept)
                self._saved = kept
            except StoreError as error:
                trouble = str(error)
        status = done.status
        if trouble and status.permit.held and self._settings.permit == "cluster":
            # What is shown is kept: a permit that a restart would lose closes no gate.
            status = msgspec.structs.replace(status, permit=Permit(why=f"it cannot be kept: {trouble}"))
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
        """Return when to look again: soon where SLURM is about to drain the node, so that a resume at once counts."""
        drains = not done.status.drained and time.monotonic() < self._drains_until
        soon = DRAINED_YET_SECONDS + self._writer.behind_gate()
        return min(done.again_seconds, soon) if drains else done.again_seconds

    def _wake(self) -> None:
        try:
            os.write(self._sender, b"!")
        except BlockingIOError:
            return  # the loop has not taken what was told before

    def _ready(self, _mask: int) -> None:
        os.read(self._receiver, 4096)
        self._told()


def _user() -> str | None:
    """Return the name that SLURM puts at what this process writes, or None where it has none.

    SLURM asks nobody for root's, and neither may this: a directory service may take minutes to answer.
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
