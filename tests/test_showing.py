"""What was shown is kept: a kill at the moment of showing loses nothing, and a slow disk hides nothing."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.clocks import SteppedClock
from fakes.drilled import Drilled
from fakes.episodes import episode
from fakes.running_agent import RunningAgent
from fakes.showing_child import changes, configuration, kind_of, result
from fakes.snapshots import gpu_node
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nodevet.agent.config.load import load_configuration
from nodevet.agent.control.server import SOCKET_NAME
from nodevet.agent.daemon.loop import Daemon
from nodevet.agent.daemon.showing import BOUND_SECONDS, LONGEST_QUEUE, LONGEST_SECONDS, Showing
from nodevet.agent.readers.release import Release
from nodevet.agent.services.protocol import Service
from nodevet.agent.simulated.node import Simulate, simulated_configuration
from nodevet.agent.slurm.memory import MEMORY_NAME, load_memory
from nodevet.agent.slurm.reactor import Reactor
from nodevet.agent.slurm.writer import Pass
from nodevet.agent.store.journal import Journal
from nodevet.agent.store.mirror import MIRROR_NAME, read_mirror, restore
from nodevet.agent.store.opening import open_store
from nodevet.agent.store.publisher import STATE_NAME
from nodevet.agent.store.writer import Keeping
from nodevet.agent.terminal.outlet import Outlet
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.model import Episode, EpisodeState, Instant, Snapshot
from nodevet.checks.core.scheduler import Permit
from nodevet.checks.engine.registry import installed
from nodevet.exporters.slurm.rules import WriterMemory

TESTS = Path(__file__).resolve().parent


class Disk:
    """A store whose tickets are kept, or fail, when the test says so."""

    def __init__(self) -> None:
        """Begin with nothing handed over."""
        self.asked = 0
        self.kept = 0
        self.attempted = 0
        self.trouble = ""

    def ticket(self) -> int:
        """Take one round."""
        self.asked += 1
        return self.asked

    def keeping(self, ticket: int) -> Keeping:
        """Say how far it is with *ticket*."""
        if ticket <= self.kept:
            return Keeping.KEPT
        return Keeping.FAILED if ticket <= self.attempted else Keeping.WAITING


class Surfaces:
    """What is shown, to whoever looks."""

    def __init__(self) -> None:
        """Show nothing."""
        self.clock = SteppedClock()
        self.disk = Disk()
        self.shown: list[Snapshot] = []
        self.changes: list[Episode] = []
        self.mirrored = 1_000_000
        self.showing = Showing(
            self.clock,
            self._show,
            keeping=self.disk.keeping,
            trouble=lambda: self.disk.trouble,
            mirrored=lambda snapshot: self.mirrored >= snapshot.generation,
        )

    def _show(self, snapshot: Snapshot, changed: tuple[Episode, ...]) -> None:
        self.shown.append(snapshot)
        self.changes.extend(changed)


def numbered(number: int) -> Snapshot:
    """Return a snapshot of the generation *number*."""
    return msgspec.structs.replace(gpu_node(), generation=number)


def test_a_round_that_changed_nothing_lasting_is_shown_at_once() -> None:
    """Readings wait for no disk."""
    surfaces = Surfaces()
    surfaces.showing.offer(numbered(1), (), None)
    assert [entry.generation for entry in surfaces.shown] == [1]
    assert surfaces.showing.next_deadline is None


def test_a_lasting_change_is_shown_when_it_is_kept_and_not_before() -> None:
    """Nor is anything judged after it, which would show it too."""
    surfaces = Surfaces()
    surfaces.showing.offer(numbered(1), (episode(),), surfaces.disk.ticket())
    surfaces.showing.offer(numbered(2), (), None)
    surfaces.showing.tick()
    assert surfaces.shown == []
    surfaces.disk.kept = 1
    surfaces.showing.tick()
    assert [entry.generation for entry in surfaces.shown] == [2]
    assert (surfaces.changes, surfaces.shown[0].agent.store) == ([episode()], "")


def test_what_is_wrong_is_shown_as_long_as_it_is_not_kept() -> None:
    """A disk that stands still for minutes: before, the next round said that it was over, and nothing was kept."""
    surfaces = Surfaces()
    surfaces.showing.offer(numbered(1), (episode(),), surfaces.disk.ticket())
    surfaces.clock.advance(BOUND_SECONDS)
    surfaces.showing.tick()
    for number in (2, 3):
        surfaces.showing.offer(numbered(number), (), None)
    surfaces.disk.kept = 1
    surfaces.showing.offer(numbered(4), (), None)
    assert ["not written" in entry.agent.store for entry in surfaces.shown] == [True, True, True, False]


def test_a_slow_disk_hides_nothing_for_longer_than_the_bound() -> None:
    """The fault is shown with what is wrong; what waited for an answer is told the same."""
    surfaces = Surfaces()
    told: list[str] = []
    surfaces.showing.offer(numbered(1), (episode(),), surfaces.disk.ticket())
    surfaces.showing.when_shown(told.append)
    surfaces.clock.advance(BOUND_SECONDS - 0.01)
    surfaces.showing.tick()
    assert (surfaces.shown, told) == ([], [])
    surfaces.clock.advance(0.01)
    assert surfaces.showing.next_deadline == surfaces.clock.monotonic()
    surfaces.showing.tick()
    (shown,) = surfaces.shown
    assert "has not written the shown data for 0.5 s" in shown.agent.store
    assert shown.agent.notices[-1] == shown.agent.store == told[0]


def test_a_disk_that_refuses_hides_nothing_at_all() -> None:
    """Its own words are shown, at once."""
    surfaces = Surfaces()
    surfaces.disk.trouble = "nodevet.db: disk full: free space in /state"
    surfaces.showing.offer(numbered(1), (episode(),), surfaces.disk.ticket())
    surfaces.disk.attempted = 1
    surfaces.showing.tick()
    assert surfaces.shown[0].agent.store == surfaces.disk.trouble


@pytest.mark.parametrize("refuses", [False, True])
def test_what_no_disk_keeps_is_shown_when_it_is_in_the_mirror(refuses: bool) -> None:
    """A disk that is slow or refuses costs no finding when the agent crashes on top of it."""
    surfaces = Surfaces()
    surfaces.mirrored = 0
    surfaces.showing.offer(numbered(1), (episode(),), surfaces.disk.ticket())
    surfaces.disk.attempted = int(refuses)
    surfaces.clock.advance(BOUND_SECONDS)
    surfaces.showing.tick()
    assert surfaces.shown == []
    assert surfaces.showing.next_deadline is not None
    assert surfaces.showing.next_deadline - surfaces.clock.monotonic() < BOUND_SECONDS / 10
    surfaces.mirrored = 1
    surfaces.showing.tick()
    assert [entry.generation for entry in surfaces.shown] == [1]
    assert surfaces.shown[0].agent.store


def test_a_mirror_that_hangs_too_hides_nothing_for_longer_than_a_second() -> None:
    """A fault that is lost in a crash is the smaller harm."""
    surfaces = Surfaces()
    surfaces.mirrored = 0
    surfaces.showing.offer(numbered(1), (episode(),), surfaces.disk.ticket())
    surfaces.clock.advance(LONGEST_SECONDS)
    surfaces.showing.tick()
    assert [entry.generation for entry in surfaces.shown] == [1]


def test_an_answer_waits_for_what_was_judged_before_it() -> None:
    """With nothing on its way to the disk it is given at once."""
    surfaces = Surfaces()
    told: list[str] = []
    surfaces.showing.when_shown(told.append)
    assert told == [""]
    surfaces.showing.offer(numbered(1), (episode(),), surfaces.disk.ticket())
    surfaces.showing.when_shown(told.append)
    assert told == [""]
    surfaces.disk.kept = 1
    surfaces.showing.tick()
    assert told == ["", ""]


def test_an_answer_behind_what_is_not_kept_says_so() -> None:
    """The results of a load that come again, because their answer was lost, or a disk that refuses at once."""
    surfaces = Surfaces()
    surfaces.disk.trouble = "nodevet.db: disk full: free space in /state"
    told: list[str] = []
    ticket = surfaces.disk.ticket()
    surfaces.disk.attempted = ticket
    surfaces.showing.offer(numbered(1), (episode(),), ticket)
    for _ in range(2):
        surfaces.showing.when_shown(told.append)
    surfaces.disk.kept = ticket
    surfaces.showing.when_shown(told.append)
    assert told == [surfaces.disk.trouble, surfaces.disk.trouble, ""]


def test_a_result_is_waited_for_also_where_it_changes_nothing_else(tmp_path: Path) -> None:
    """One that was stopped leaves a wrong one before it as the latest: nothing else said that somebody must wait."""
    memory = {"results": b"the wrong one"}
    with Journal(configuration(tmp_path), SystemClock()) as journal:
        assert journal.keep_round((), memory) is not None
        assert journal.keep_round((), memory) is None
        journal.keep_result(result(1))
        assert journal.keep_round((), memory) is not None
        assert journal.keep_round((), memory) is None


class Keeper(RuleBasedStateMachine):
    """Rounds, a disk that keeps, fails or sleeps, and time, in every order."""

    def __init__(self) -> None:
        """Begin with nothing judged."""
        super().__init__()
        self.surfaces = Surfaces()
        self.surfaces.mirrored = 0
        self.generation = 0
        self.offered: list[tuple[int, int, float]] = []
        self.answers: list[tuple[int, str]] = []
        self.asked: list[int] = []
        self.crowded = False

    @rule(is_lasting=st.booleans(), asks=st.booleans())
    def judge(self, is_lasting: bool, asks: bool) -> None:
        """A round comes, and perhaps someone who waits for its answer."""
        self.generation += 1
        changed = (episode(count=self.generation),) if is_lasting else ()
        ticket = self.surfaces.disk.ticket() if is_lasting else None
        if ticket is not None:
            self.offered.append((self.generation, ticket, self.surfaces.clock.monotonic()))
        self.surfaces.showing.offer(numbered(self.generation), changed, ticket)
        newest = self.surfaces.shown[-1].generation if self.surfaces.shown else 0
        self.crowded |= sum(generation > newest for generation, _, _ in self.offered) > LONGEST_QUEUE
        if asks:
            self.asked.append(self.generation)
            self.surfaces.showing.when_shown(partial(self._answered, self.generation))

    def _answered(self, generation: int, trouble: str) -> None:
        assert self.surfaces.shown[-1].generation >= generation, "answered before it was shown"
        self.answers.append((generation, trouble))

    @precondition(lambda self: self.surfaces.disk.kept < self.surfaces.disk.asked)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        """The disk has written up to some round."""
        disk = self.surfaces.disk
        disk.kept = data.draw(st.integers(disk.kept + 1, disk.asked))
        disk.attempted = max(disk.attempted, disk.kept)
        self.surfaces.showing.tick()

    @precondition(lambda self: self.surfaces.disk.attempted < self.surfaces.disk.asked)
    @rule()
    def fail(self) -> None:
        """The disk refuses all that waits."""
        self.surfaces.disk.attempted = self.surfaces.disk.asked
        self.surfaces.disk.trouble = "disk full"
        self.surfaces.showing.tick()

    @rule()
    def mirror(self) -> None:
        """The mirror has all that was judged."""
        self.surfaces.mirrored = self.generation
        self.surfaces.showing.tick()

    @rule(seconds=st.sampled_from([0.01, 0.2, 0.49, 0.5, 3.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.surfaces.clock.advance(seconds)
        self.surfaces.showing.tick()

    @invariant()
    def nothing_is_shown_before_it_is_kept(self) -> None:
        """But with the trouble said, because the disk failed or was slow."""
        for shown in self.surfaces.shown[-1:]:
            mine = [ticket for generation, ticket, _ in self.offered if generation <= shown.generation]
            assert shown.agent.store or not mine or self.surfaces.disk.kept >= max(mine) or self._was_told(max(mine))

    def _was_told(self, ticket: int) -> bool:
        generation = next(entry[0] for entry in self.offered if entry[1] == ticket)
        return any(entry.generation >= generation and entry.agent.store for entry in self.surfaces.shown)

    @invariant()
    def nothing_waits_longer_than_the_bound(self) -> None:
        """Counted from the oldest round that is not shown; a mirror that is not written either is waited for longer."""
        newest = self.surfaces.shown[-1].generation if self.surfaces.shown else 0
        now = self.surfaces.clock.monotonic()
        bound = BOUND_SECONDS if self.surfaces.mirrored >= self.generation else LONGEST_SECONDS
        assert all(now - since < bound for generation, _, since in self.offered if generation > newest)

    @invariant()
    def nothing_is_shown_that_neither_store_nor_mirror_has(self) -> None:
        """But after the longest wait; where too many wait, that of the oldest of those that are shown together."""
        for generation, ticket, since in self.offered:
            if self.surfaces.shown and self.surfaces.shown[-1].generation >= generation:
                is_safe = self.surfaces.disk.kept >= ticket or self.surfaces.mirrored >= generation
                assert is_safe or self.crowded or self.surfaces.clock.monotonic() - since >= LONGEST_SECONDS

    @invariant()
    def changes_are_told_once_and_in_order(self) -> None:
        """None is lost where rounds are shown together."""
        newest = self.surfaces.shown[-1].generation if self.surfaces.shown else 0
        counts = [entry.count for entry in self.surfaces.changes]
        assert counts == [generation for generation, _, _ in self.offered if generation <= newest]
        assert [entry[0] for entry in self.answers] == [entry for entry in self.asked if entry <= newest]


TestKeeper = Keeper.TestCase
TestKeeper.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


# Death at the moment of showing.


@pytest.mark.soak
def test_a_kill_at_the_moment_of_showing_loses_nothing(tmp_path: Path, campaign: Callable[[int], int]) -> None:
    """Findings, acknowledgements, results of loads and releases, with the agent's own journal and thread."""
    kills = campaign(200)
    subprocess.run([sys.executable, "-m", "fakes.showing_child", str(tmp_path), str(kills)], cwd=TESTS, check=True)
    late = 0
    for kill in range(kills):
        lines = (tmp_path / str(kill) / "shown").read_text().splitlines()
        last, _, trouble = lines[-1].partition(" ")
        late += bool(trouble)
        if not trouble:
            assert lost(tmp_path / str(kill), int(last)) == [], f"kill {kill}"
    assert late <= kills // 20, "the disk of this machine is slower than the bound"


def lost(folder: Path, last: int) -> list[str]:
    """Return what the rounds up to *last* had shown and the store in *folder* lacks."""
    store = open_store(folder / "state" / "nodevet.db").store
    try:
        known = {(entry.key, entry.state, entry.note) for entry in store.load_episodes()}
        memory, results = store.load_memory(), store.results()
    finally:
        store.close()
    missing = []
    acknowledged = [number for number in range(1, last + 1) if kind_of(number) == "acknowledgement"]
    for number in range(1, last + 1):
        kind = kind_of(number)
        is_there = {
            "opening": all((entry.key, entry.state, entry.note) in known for entry in changes(number)),
            "acknowledgement": any((entry.key, entry.state, entry.note) in known for entry in changes(acknowledged[-1]))
            if acknowledged
            else True,
            "result": result(number) in results,
            "release": int(memory.get("release", b"0")) >= number,
        }
        if not is_there[kind]:
            missing.append(f"{kind} of round {number}")
    return missing


SCENARIO = """
[[fault]]
kind = "set"
{at}device = 3
quantity = "row_remap_failed"
value = true

[[fault]]
kind = "wrong_result"
{at}device = 6
"""


class KilledAgent:
    """The real daemon on a simulated node in a forked child, which dies as soon as a surface is shown something."""

    def __init__(self, folder: Path, shows: Callable[[Snapshot], bool], at: str = "") -> None:
        """Keep everything in *folder*; die at the first snapshot that *shows* it. The faults come at the time *at*."""
        self.folder = folder
        self._shows = shows
        folder.mkdir()
        (folder / "scenario.toml").write_text(SCENARIO.format(at=f'at = "{at}"\n' if at else ""))
        plain = load_configuration(None, installed(), environment={})
        places = {"state_dir": str(folder / "state"), "runtime_dir": str(folder / "run")}
        agent = msgspec.structs.replace(plain.agent, listen="127.0.0.1:0", interval_seconds=1.0, **places)
        self._settings = simulated_configuration(msgspec.structs.replace(plain, agent=agent), "dgx-h100")

    def start(self) -> int:
        """Return the process id of the child."""
        child = os.fork()
        if child:
            return child
        try:
            os.dup2(os.open(self.folder / "log", os.O_WRONLY | os.O_CREAT, 0o600), 2)
            simulate = Simulate("dgx-h100", self.folder / "scenario.toml")
            reload = lambda: self._settings  # noqa: E731
            outlet = Outlet()
            Daemon(
                self._settings, SystemClock(), reload=reload, outlet=outlet, simulate=simulate, through=self._through
            ).run()
        finally:
            os._exit(1)

    def _through(self, service: Service) -> Service:
        """Let the first service that is handed a snapshot be the surface at which it dies."""
        return Drilled(service, judged=self._judged) if service.name == "store" else service

    def _judged(self, snapshot: Snapshot) -> None:
        if self._shows(snapshot):
            os.kill(os.getpid(), signal.SIGKILL)


def has_failed(code: str, snapshot: Snapshot) -> bool:
    """Whether *snapshot* shows the open finding *code*."""
    return any(entry.key.code == code and entry.state is EpisodeState.OPEN for entry in snapshot.episodes)


def kept(folder: Path) -> dict[str, Episode]:
    """Return the findings that a restart would know, by their codes: from the store, and the mirror of this boot."""
    store = open_store(folder / "state" / "nodevet.db").store
    try:
        stored = store.load_episodes()
    finally:
        store.close()
    mirror = read_mirror(folder / "run" / MIRROR_NAME)
    return {entry.key.code: entry for entry in restore(stored, mirror, SystemClock().instant().boot_id)}


@pytest.mark.soak
def test_an_agent_killed_at_the_showing_of_a_fault_knows_it_after_the_restart(
    tmp_path: Path, campaign: Callable[[int], int]
) -> None:
    """What a driver told once, and what its own probe found."""
    codes = ("memory.row_remap_failed", "burnin.mismatch")
    kills = 200 if campaign(200) == 200 else 2
    for kill in range(kills):
        code = codes[kill % len(codes)]
        agent = KilledAgent(tmp_path / str(kill), partial(has_failed, code))
        _, status = os.waitpid(agent.start(), 0)
        assert status == signal.SIGKILL, (agent.folder / "log").read_text()[-3000:]
        assert code in kept(agent.folder), f"kill {kill}: {(agent.folder / 'log').read_text()[-3000:]}"


def killed_while_held(folder: Path, at: str) -> bool:
    """Hold the database of an agent that dies as it shows the fault of the time *at*; False where that came before."""
    agent = KilledAgent(folder, partial(has_failed, "memory.row_remap_failed"), at=at)
    child = agent.start()
    deadline = time.monotonic() + 20.0
    while not (folder / "run" / STATE_NAME).exists():
        assert time.monotonic() < deadline, "the agent does not begin"
        time.sleep(0.02)
    with closing(sqlite3.connect(folder / "state" / "nodevet.db", timeout=20)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert os.waitpid(child, 0)[1] == signal.SIGKILL, (folder / "log").read_text()[-3000:]
        stored = {row[0] for row in other.execute("SELECT code FROM journal")}
    return "memory.row_remap_failed" not in stored


@pytest.mark.soak
def test_an_agent_killed_while_its_disk_is_slow_knows_what_it_showed(
    tmp_path: Path, campaign: Callable[[int], int]
) -> None:
    """Somebody holds the database: the fault is shown with that, and is known to the next agent all the same."""
    for kill in range(max(1, campaign(50) // 5)):
        folders = {at: tmp_path / f"{kill}-{at}" for at in ("3s", "10s", "20s")}  # later on a busy machine
        held = next(folder for at, folder in folders.items() if killed_while_held(folder, at))
        assert "memory.row_remap_failed" in kept(held), f"kill {kill}"


def ask(path: Path, **request: object) -> dict[str, Any]:
    """Send *request* to the socket at *path*, as soon as there is one, and return the answer."""
    deadline = time.monotonic() + 20.0
    while True:
        with socket.socket(socket.AF_UNIX) as caller:
            try:
                caller.connect(os.fspath(path))
            except (FileNotFoundError, ConnectionRefusedError):
                assert time.monotonic() < deadline, "the agent does not listen"
                time.sleep(0.02)
                continue
            caller.sendall(msgspec.json.encode(request) + b"\n")
            answer: dict[str, Any] = json.loads(caller.makefile("rb").readline())
            return answer


def wait_for_finding(path: Path, code: str) -> str:
    """Return the device of the finding *code* once the status shows it."""
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        for finding in ask(path, verb="status")["findings"]:
            if finding["code"] == code:
                return str(finding["device"])
        time.sleep(0.02)
    raise AssertionError(f"{code} was not shown")


def answered_ack(agent: KilledAgent, device: str) -> Callable[[], None]:
    """Acknowledge a finding; return what must hold after a restart."""
    path = agent.folder / "run" / SOCKET_NAME
    answer = ask(path, verb="ack", code="memory.row_remap_failed", device=device, note="known")
    assert answer["acknowledged"]

    def holds() -> None:
        found = kept(agent.folder)["memory.row_remap_failed"]
        assert (found.state, found.note) == (EpisodeState.ACKNOWLEDGED, "known")

    return holds


def answered_release(agent: KilledAgent, _device: str) -> Callable[[], None]:
    """Release the devices; return what must hold after a restart.

    A disk that is slower than the bound is told in the answer: then it is asked again.
    """
    for _ in range(20):
        answer = ask(agent.folder / "run" / SOCKET_NAME, verb="release", seconds=600)
        assert answer["released"]
        if "not kept" not in answer["message"]:
            break

    def holds() -> None:
        opened = open_store(agent.folder / "state" / "nodevet.db").store
        memory = opened.load_memory()
        opened.close()
        assert left_of(memory.get("release", b"")) > 500

    return holds


@pytest.mark.soak
@pytest.mark.parametrize("asks", [answered_ack, answered_release])
def test_an_agent_killed_when_it_has_answered_knows_what_it_answered(
    asks: Callable[[KilledAgent, str], Callable[[], None]], tmp_path: Path, campaign: Callable[[int], int]
) -> None:
    """An acknowledgement is there, and devices stay released, after the restart."""
    for kill in range(200 if campaign(200) == 200 else 1):
        agent = KilledAgent(tmp_path / str(kill), lambda _snapshot: False)
        child = agent.start()
        try:
            device = wait_for_finding(agent.folder / "run" / SOCKET_NAME, "memory.row_remap_failed")
            holds = asks(agent, device)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        holds()


RESULT_CONFIGURATION = """
[agent.backends]
enabled = ["host"]
[kernel_log]
enabled = false
[load]
probe = "off"
"""


@pytest.mark.soak
def test_an_agent_killed_when_it_took_a_result_knows_it(tmp_path: Path, campaign: Callable[[int], int]) -> None:
    """The wrong product of a load is a finding, and in the history, after each restart."""
    agent = RunningAgent(tmp_path, RESULT_CONFIGURATION)
    path = agent.runtime_dir / SOCKET_NAME
    for kill in range(1, 1 + (200 if campaign(200) == 200 else 2)):
        agent.start()
        try:
            status = agent.wait_for(lambda status: status["agent"]["ready"])
            device = next(entry["id"] for entry in status["devices"] if entry["kind"] == "cpu")
            wrong = msgspec.structs.replace(
                result(kill), devices=(device,), workload=f"gemm-{kill}", started=now(), ended=now()
            )
            answer = ask(path, verb="result", results=[msgspec.to_builtins(wrong)], plan="quick")
        finally:
            agent.kill()
        assert "error" not in answer
        opened = open_store(agent.state_dir / "nodevet.db").store
        known, results = {entry.key.code for entry in opened.load_episodes()}, opened.results()
        opened.close()
        assert "burnin.mismatch" in known, f"kill {kill}"
        assert any(entry.workload == wrong.workload for entry in results), f"kill {kill}"


def now() -> Instant:
    """Return the present moment of this boot."""
    return SystemClock().instant()


class Readers:
    """Stands for the supervisor: notes for how long it was told to let go."""

    def __init__(self) -> None:
        """Begin with nothing released."""
        self.released: list[float] = []

    def release(self, seconds: float | None = None) -> None:
        """Note *seconds*."""
        self.released.append(seconds or 0.0)


def left_of(memory: bytes) -> float:
    """Return for how many seconds a restarted agent would keep the devices released."""
    readers = Readers()
    Release(readers, SystemClock(), memory)  # type: ignore[arg-type]
    return sum(readers.released)


@pytest.mark.parametrize(
    ("seconds", "boot", "left"), [(10.0, "boot-1", 50.0), (60.0, "boot-1", 0.0), (10.0, "boot-2", 0.0)]
)
def test_a_release_goes_on_after_a_restart_until_its_end_and_no_further(seconds: float, boot: str, left: float) -> None:
    """A reboot ends it: nothing holds the devices then."""
    clock, readers = SteppedClock(), Readers()
    release = Release(readers, clock, None)  # type: ignore[arg-type]
    assert release.memory == b""
    release.begin(60.0)
    kept = release.memory
    clock.advance(seconds)
    assert (release.memory == b"") is (seconds >= 60.0)
    if boot != clock.boot_id:
        clock.reboot(boot, 1000.0)
    after = Readers()
    Release(after, clock, kept)  # type: ignore[arg-type]
    assert sum(after.released) == left


@pytest.mark.parametrize("memory", [None, b"", b"\xc1", b"\x00", b"\x92\xa1a\xa1b"])
def test_a_memory_of_no_release_releases_nothing(memory: bytes | None) -> None:
    """Nor does one that cannot be read."""
    readers = Readers()
    Release(readers, SteppedClock(), memory)  # type: ignore[arg-type]
    assert readers.released == []


def show_a_permit(folder: Path) -> None:
    """Let the writer to SLURM keep a permit, and die as soon as its status shows one."""
    settings = load_configuration(None, installed(), environment={}).slurm
    with selectors.DefaultSelector() as selector:
        reactor = Reactor(settings, "n1", selector, runtime=folder, memory=None, boot_id="boot-1", told=lambda: None)
        status = msgspec.structs.replace(reactor.status, permit=Permit(held=True, why="within the limits"))
        given = Pass(status, WriterMemory(permit="boot-1"), (), 60.0)
        threading.Thread(target=reactor._keep, args=(gpu_node(), given), daemon=True).start()
        while not reactor.status.permit.held:
            time.sleep(0)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.soak
def test_a_permit_that_is_shown_is_in_the_memory_of_this_boot(tmp_path: Path, campaign: Callable[[int], int]) -> None:
    """So that a gate which it closed stays closed, and no second permit is asked for."""
    for kill in range(campaign(200)):
        folder = tmp_path / str(kill)
        folder.mkdir()
        child = os.fork()
        if child == 0:
            try:
                show_a_permit(folder)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        assert load_memory(folder / MEMORY_NAME, None, "boot-1").memory.permit == "boot-1", f"kill {kill}"
