"""A thread that has no memory to begin with is waited for no longer than any other: the loop goes on without it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.late_clock import LateClock
from test_agent_reports import rendered, reports
from test_listening import listening

from nodevet.agent.config.load import load_configuration
from nodevet.agent.daemon.reload import Reread
from nodevet.agent.readers.disk import Disk
from nodevet.agent.store.publisher import Publisher
from nodevet.agent.store.writer import StoreWriter
from nodevet.agent.terminal.outlet import Outlet
from nodevet.checks.burnin.stops import Stops
from nodevet.checks.core.errors import BusyError, ConfigurationError
from nodevet.checks.ipc import worker as child
from nodevet.checks.ipc.worker import watch_lifeline
from nodevet.checks.system import background
from nodevet.checks.system.background import Background
from nodevet.checks.system.threads import prove_threads

Started = list[Callable[[], None]]

MACHINE_WITHOUT_MEMORY = """
import resource
from nodevet.agent.readers.disk import Disk

disk, had = Disk(0.05), resource.getrlimit(resource.RLIMIT_AS)
print(disk.ask(lambda: "told", "nothing"))
resource.setrlimit(resource.RLIMIT_AS, (1 << 20, had[1]))
answers = {disk.ask(lambda: "told", "nothing") for _ in range(5)}
resource.setrlimit(resource.RLIMIT_AS, had)
print(*answers, disk.is_silent, disk.ask(lambda: "told", "nothing"))
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """What threads were started with that make no step, for their first one asks for memory."""
    found: Started = []

    def start(work: Callable[[], None], _arguments: tuple[()]) -> int:
        found.append(work)
        return 1

    monkeypatch.setattr(background, "start_new_thread", start)
    monkeypatch.setattr(background, "START_SECONDS", 0.01)
    return found


def test_a_thread_that_makes_no_step_is_given_up(started: Started) -> None:
    """Should it begin after all, it does nothing: another one may be at its work."""
    done: list[int] = []
    work = Background(lambda: done.append(1))
    with pytest.raises(RuntimeError, match="no memory left, or is overloaded"):
        work.start(0.01)
    started[0]()
    assert (done, work.is_alive()) == ([], False)


def test_a_refused_thread_is_one_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is asked for before it begins, too."""

    def refuse(*_: object) -> int:
        raise MemoryError

    monkeypatch.setattr(background, "start_new_thread", refuse)
    with pytest.raises(RuntimeError, match="no memory for a new thread"):
        Background(list).start()


def test_work_is_alive_from_its_start_to_its_end_whatever_it_raises() -> None:
    """Whoever waits for it goes on."""
    end = threading.Event()

    def fail() -> None:
        end.wait()
        raise SystemExit

    work = Background(fail)
    assert not work.is_alive()
    work.start()
    assert work.is_alive()
    work.join(0.0)
    assert work.is_alive()
    end.set()
    work.join(20.0)
    assert not work.is_alive()


def test_whoever_needs_a_thread_goes_on_without_it(started: Started, tmp_path: Path) -> None:
    """Disks, the configuration, the address and reports: a thread's first step was waited for without end."""
    disk = Disk(0.01)
    assert [disk.ask(lambda: "told", "nothing") for _ in range(2)] == ["nothing", "nothing"]
    assert not disk.is_silent
    with pytest.raises(ConfigurationError, match="no thread can be started"):
        Reread(lambda: load_configuration(None, (), environment={"HOME": "/"}, uid=1000))()
    assert "no thread can be started to open it" in listening("gpu-17.cluster:0", LateClock()).trouble
    told: list[str] = []
    rendered(reports(tmp_path, told))
    assert told[0].startswith("report: no thread can be started")
    assert len(started) > len(told)


STARTS: dict[str, Callable[[Path], object]] = {
    "log": lambda _path: Outlet(),
    "state file": lambda path: Publisher(path, ttl_seconds=1.0),
    "store": lambda path: StoreWriter(None, path=path / "nodevet.db"),
    "threads of the agent": lambda _path: prove_threads(),
    "lifeline of a child": lambda _path: watch_lifeline(lambda: None),
    "stops of a load": lambda _path: Stops().__enter__(),
}


@pytest.mark.parametrize("what", STARTS)
def test_what_needs_a_thread_from_its_start_says_so_at_once(
    what: str, started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, an agent or a child that began without memory for a thread stood still, and nobody was told why."""
    monkeypatch.setattr(child, "THREAD_SECONDS", 0.01, raising=False)
    monkeypatch.setattr(child, "_signal_when_orphaned", lambda _number: None)
    with pytest.raises((RuntimeError, BusyError), match=r"no step|threads can be started"):
        STARTS[what](tmp_path)
    assert started


def test_a_machine_without_memory_holds_up_nobody() -> None:
    """A real one: the main loop stood still after the first slow round in which the kernel refused memory."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", MACHINE_WITHOUT_MEMORY], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["told", "nothing False told"]
