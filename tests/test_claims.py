"""Claims of jobs, the lock of a load, and the order in which a load is announced, permitted and gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from fakes.clocks import SteppedClock
from fakes.snapshots import cpu_node, failed_node

from nodevet.agent.config.settings import SlurmSettings
from nodevet.agent.load.alone import LoadAlone
from nodevet.agent.load.claims import Claims, LoadLock
from nodevet.agent.load.guard import ANNOUNCE_SECONDS, LoadGuard
from nodevet.agent.slurm.first import first_status
from nodevet.checks.core.errors import BusyError, StoreError
from nodevet.checks.core.model import Snapshot
from nodevet.exporters.slurm.rules import Sight, WriterMemory
from nodevet.exporters.statefile.reader import StateFile, parse

PID = 100


class Desk:
    """A guard whose state file is what the test says."""

    def __init__(self, folder: Path) -> None:
        """Begin with an idle state on disk."""
        self.folder = folder
        self.clock = SteppedClock()
        self.written: Snapshot | None = cpu_node()
        self.guard = LoadGuard(folder, self.clock, lambda _pid: True, lambda: self.written)
        self.guard.claims.prepare()

    def announce(self) -> str | None:
        """Announce a load of PID after generation 7."""
        return self.guard.announce("probe", PID, ["GPU-1"], 600, 7)

    def write(self, generation: int, *, probing: bool) -> None:
        """Put a state on disk."""
        node = cpu_node()
        agent = msgspec.structs.replace(node.agent, probing=probing)
        self.written = msgspec.structs.replace(node, generation=generation, agent=agent)

    def claim(self, job: str = "4711") -> None:
        """Let the prolog of a job come."""
        (self.guard.claims.directory / job).touch()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A guard over an empty runtime directory."""
    return Desk(tmp_path)


def test_claims_are_counted_with_their_age_and_without_their_names(tmp_path: Path) -> None:
    """Whoever reads the status learns how many and how old, not whose."""
    claims = Claims(tmp_path, wall_seconds=lambda: 10_000.0)
    claims.prepare()
    assert claims.look().reason is None
    for job, began in (("41", 9_000.0), ("42", 9_990.0)):
        (claims.directory / job).touch()
        os.utime(claims.directory / job, (began, began))
    seen = claims.look()
    assert (seen.count, seen.oldest_seconds) == (2, 1000.0)
    assert seen.reason == "2 jobs claim this node, since 17 min"


def test_claims_that_cannot_be_read_are_no_permission(tmp_path: Path) -> None:
    """A folder that is gone means that no prolog could claim either."""
    reason = Claims(tmp_path).look().reason
    assert reason is not None
    assert "cannot be read" in reason


def test_the_folder_of_claims_is_ours_and_no_link(tmp_path: Path) -> None:
    """What somebody else put there is refused and not followed."""
    claims = Claims(tmp_path)
    claims.prepare()
    claims.prepare()
    assert claims.directory.stat().st_mode & 0o777 == 0o755
    claims.directory.rmdir()
    (tmp_path / "elsewhere").mkdir()
    claims.directory.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="not a folder of uid"):
        claims.prepare()
    assert "symbolic link" in (claims.look().reason or "")


@pytest.fixture
def load(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that inherited the lock of a load in *tmp_path*, and nothing else knows of it."""
    descriptor = LoadLock(tmp_path).acquire()
    child = subprocess.Popen(["sleep", "60"], pass_fds=(descriptor,))
    os.close(descriptor)
    yield child
    child.kill()
    child.wait()


def test_the_lock_lives_exactly_as_long_as_the_load(tmp_path: Path, load: subprocess.Popen[bytes]) -> None:
    """Not its starter holds it but the process itself, however it ends."""
    lock = LoadLock(tmp_path)
    assert lock.is_held()
    with pytest.raises(BusyError, match="still runs"):
        lock.acquire()
    load.send_signal(signal.SIGKILL)
    load.wait()
    assert not lock.is_held()


def test_looking_for_a_load_leaves_nothing_behind(tmp_path: Path) -> None:
    """Where none ever ran there is no file, and none is made: a full disk is no load."""
    assert not LoadLock(tmp_path).is_held()
    assert list(tmp_path.iterdir()) == []


def test_a_load_starts_after_its_announcement_is_on_disk(desk: Desk) -> None:
    """Neither the state before the announcement nor an idle one that is written late will do."""
    assert desk.announce() is None
    assert desk.guard.probing
    assert desk.guard.standing(PID) is None
    desk.write(7, probing=True)  # of a load before this one
    assert desk.guard.standing(PID) is None
    desk.write(8, probing=False)
    assert desk.guard.standing(PID) is None
    desk.write(9, probing=True)
    assert desk.guard.standing(PID) == ""


def test_a_claim_that_came_before_the_listing_refuses_the_load(desk: Desk) -> None:
    """The lease is lost with it, so the node becomes idle again."""
    desk.announce()
    desk.write(8, probing=True)
    desk.claim()
    assert "a job claims this node" in (desk.guard.standing(PID) or "")
    assert desk.guard.leases.current is None
    assert not desk.guard.probing


def test_nothing_is_announced_while_a_job_is_here(desk: Desk) -> None:
    """A busy node need not be told of a load that will not come."""
    desk.claim()
    assert "a job claims this node" in (desk.announce() or "")
    assert desk.guard.leases.current is None


def test_a_state_file_that_cannot_be_written_permits_nothing(desk: Desk) -> None:
    """After a while the load is given up, and says why."""
    desk.announce()
    desk.clock.advance(ANNOUNCE_SECONDS + 1)
    assert "cannot be written" in (desk.guard.standing(PID) or "")
    assert desk.guard.leases.current is None


def test_a_process_of_a_load_keeps_the_node_probing(desk: Desk, load: subprocess.Popen[bytes]) -> None:
    """Also when its lease has ended, and for an agent that was started after it."""
    assert desk.guard.probing
    assert "still runs" in (desk.announce() or "")
    load.kill()
    load.wait()
    assert not desk.guard.probing
    assert desk.announce() is None


def test_whoever_waits_is_told_once(desk: Desk) -> None:
    """Permission and refusal reach the caller of the socket when they are known."""
    told: list[str | None] = []
    desk.announce()
    desk.guard.tell(PID, told.append)
    desk.guard.tick()
    assert told == []
    assert desk.guard.next_deadline is not None
    desk.write(8, probing=True)
    desk.guard.tick()
    desk.guard.tick()
    assert told == [None]
    desk.guard.leases.give_back(PID)
    desk.guard.tell(PID, told.append)
    desk.guard.tick()
    assert told == [None, "the lease has ended"]


def state(folder: Path) -> StateFile:
    """Return the state file in *folder*."""
    found = parse((folder / "state").read_text())
    assert isinstance(found, StateFile)
    return found


def test_a_load_without_an_agent_is_told_as_well(tmp_path: Path) -> None:
    """The file says probing and unknown during the load, idle after it, and a job is seen."""
    with LoadAlone(tmp_path, cpu_node()) as alone:
        assert (state(tmp_path).probing, state(tmp_path).state) == (True, "unknown")
        assert alone.look().reason is None
        (tmp_path / "claims" / "9").touch()
        assert alone.look().reason is not None
    assert (state(tmp_path).probing, state(tmp_path).state) == (False, "unknown")
    with pytest.raises(BusyError, match="a job claims"), LoadAlone(tmp_path, cpu_node()):
        pass
    assert not state(tmp_path).probing


@pytest.mark.parametrize(
    ("memory", "agent", "reach"),
    [
        (WriterMemory(permit="boot"), "running", "hard"),
        (WriterMemory(permit="boot", drained="nodevet: x", sight=Sight("boot", None, None)), "drained", "hard"),
        (WriterMemory(permit="another boot"), "running", "unpermitted"),
    ],
    ids=["closed", "drained", "of another boot"],
)
def test_a_load_without_an_agent_leaves_the_gate_as_the_agent_did(
    tmp_path: Path, memory: WriterMemory, agent: str, reach: str
) -> None:
    """A permit holds within its boot; who resumes a node that was drained is still believed, and no job waits."""
    writer = first_status(SlurmSettings(writer="drain"), "n1", memory, "boot")
    with LoadAlone(tmp_path, failed_node(), writer=writer):
        found = state(tmp_path)
        assert (found.state, found.agent, found.reach, found.probing) == ("failed", agent, reach, True)
    found = state(tmp_path)
    assert (found.state, found.agent, found.reach, found.probing) == ("failed", agent, reach, False)


def test_a_load_without_an_agent_says_idle_when_its_last_process_is_gone(tmp_path: Path) -> None:
    """A process that outlives the command a little keeps the file at probing so long."""
    waits = "import sys; sys.stdin.read()"
    with LoadAlone(tmp_path, cpu_node()) as alone:
        descriptor = alone.lock.acquire()
        child = subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE, pass_fds=(descriptor,))
        os.close(descriptor)
        assert alone.lock.is_held()
        child.kill()
        child.communicate()
    assert not state(tmp_path).probing


def test_a_load_without_an_agent_gives_way_when_no_prolog_can_be_told_any_more(tmp_path: Path) -> None:
    """A disk that is full for a moment ends no load; one that stays so ends it before the state file expires."""
    clock, said = SteppedClock(), list[str]()
    with LoadAlone(tmp_path, cpu_node(), clock, said.append) as alone:
        (tmp_path / "state").rename(tmp_path / "before")
        (tmp_path / "state").symlink_to("before")  # what cannot be written either
        reasons = []
        for _ in range(4):
            clock.advance(15)
            reasons.append(alone.look().reason)
        assert reasons[:3] == [None] * 3
        assert (reasons[3] or "").startswith("no prolog can notice the load: state file")
        (tmp_path / "state").unlink()
        clock.advance(15)
        assert alone.look().reason is None
    assert len(said) == 1
    assert not state(tmp_path).probing
