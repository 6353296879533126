"""A disk or file server that gives no answer, such as one that ROCm lies on, holds up no loop and blames nobody."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from fakes.bench import DEADLINE, INTERVAL, REAL_SECONDS, Bench, outcome

from nodevet.agent.readers.disk import Disk
from nodevet.agent.readers.supervisor import Supervisor
from nodevet.agent.readers.witness import Surroundings
from nodevet.checks.core.model import FailureKind, ReaderState
from nodevet.checks.system import background


@contextmanager
def silent(disk: Disk) -> Iterator[None]:
    """Let *disk* give no answer meanwhile."""
    answers = threading.Event()
    asker = threading.Thread(target=disk.ask, args=(answers.wait, False))
    asker.start()
    end = time.monotonic() + REAL_SECONDS
    while not disk.is_silent:
        assert time.monotonic() < end
    yield
    answers.set()
    asker.join()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """What the reader has loaded."""
    path = tmp_path / "libfake.so.1"
    path.write_bytes(b"x" * 4096)
    return path


@pytest.fixture
def bench(tmp_path: Path, library: Path) -> Iterator[Bench]:
    """A reader that has loaded the library."""
    bench = Bench(tmp_path, map=str(library))
    bench.round()
    yield bench
    bench.close()


def test_an_answer_that_does_not_come_is_waited_for_once() -> None:
    """Nothing else is asked until it came."""
    disk, answers, asked = Disk(0.01), threading.Event(), list[int]()
    assert disk.ask(answers.wait, False) is False
    assert disk.is_silent
    assert disk.ask(lambda: asked.append(1) or "told", "nothing") == "nothing"  # type: ignore[func-returns-value]
    assert asked == []
    answers.set()
    end = time.monotonic() + REAL_SECONDS
    while disk.is_silent:
        assert time.monotonic() < end
    assert Disk(REAL_SECONDS).ask(lambda: "told", "nothing") == "told"


def test_without_a_thread_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked again, and nobody calls the disk silent."""

    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    disk = Disk()
    monkeypatch.setattr(background, "start_new_thread", refuse)
    assert disk.ask(lambda: "told", "nothing") == "nothing"
    assert not disk.is_silent


def test_readings_go_on_while_the_disk_of_a_library_is_silent(bench: Bench, library: Path) -> None:
    """Whether it was replaced is not known meanwhile; it is seen in the first round after that."""
    with silent(bench.surroundings.disk):
        library.unlink()
        library.write_bytes(b"y" * 8192)
        for _ in range(2):
            assert outcome(bench.round(INTERVAL)) == dict.fromkeys("abc", "ok")
        assert bench.status().starts == 1
    bench.clock.advance(INTERVAL)
    bench.until(lambda: bench.status().starts == 2 and bench.supervisor.settled)
    assert bench.status().state is ReaderState.RUNNING


def test_what_falls_while_the_disk_of_a_library_is_silent_is_nobodys_fault(bench: Bench) -> None:
    """A page of the library may be on its way, and none of its files can be looked at."""
    for behaviour in ("hang", "segv"):
        with silent(bench.surroundings.disk):
            bench.write(read={"b": behaviour})
            bench.clock.advance(INTERVAL)
            if behaviour == "hang":
                bench.fall(ReaderState.HUNG, "b")
            bench.until(lambda: bench.status().pid is None)
            assert bench.failure.kind is FailureKind.READER
            assert "disk or file server of a library that it has loaded does not answer" in bench.status().detail
        assert (bench.status().witnessed, bench.status().blamed) == (0, {})
        bench.write(read={})
        bench.round(61.0 + DEADLINE)
        assert bench.status().state is ReaderState.RUNNING


def test_a_silent_disk_of_one_reader_excuses_no_other(tmp_path: Path, library: Path) -> None:
    """Two vendors, and the files of one lie on a server that gives no answer: the other's crash is its driver's."""
    looks: list[Surroundings] = []

    def look() -> Surroundings:
        looks.append(Surroundings(cgroups=tmp_path, disk=Disk(REAL_SECONDS)))
        return looks[-1]

    bench = Bench(tmp_path, map=str(library))
    plans = [msgspec.structs.replace(bench.plan(), backend=name) for name in ("fake", "other")]
    bench.supervisor = Supervisor(plans, bench.clock, bench.selector, bench.take, surroundings=look)
    bench.round()
    with silent(looks[1].disk):
        bench.write(read={"b": "segv"})
        bench.clock.advance(INTERVAL)
        bench.until(lambda: not bench.supervisor.records)
    assert {status.backend: status.witnessed for status in bench.supervisor.statuses} == {"fake": 1, "other": 0}
    bench.close()


@pytest.mark.parametrize("rounds", [0, 1])
def test_what_a_slow_disk_kept_from_being_noted_is_not_known_until_it_is_noted(
    tmp_path: Path, library: Path, rounds: int
) -> None:
    """It answers too late while the reader starts, and in time when that falls: none of its libraries is not none."""
    bench = Bench(tmp_path, map=str(library))
    with silent(bench.surroundings.disk):
        bench.round()
    for _ in range(rounds):
        bench.round(INTERVAL)
    bench.write(read={"b": "segv"})
    bench.clock.advance(INTERVAL)
    bench.until(lambda: bench.status().pid is None)
    assert bench.status().witnessed == rounds
    assert ("its loaded libraries are not known" in bench.status().detail) is (not rounds)
    bench.close()


def test_a_library_that_was_noted_late_is_seen_when_it_is_replaced(tmp_path: Path, library: Path) -> None:
    """It is asked for again in each round until its disk answers."""
    bench = Bench(tmp_path, map=str(library))
    with silent(bench.surroundings.disk):
        bench.round()
    bench.round(INTERVAL)
    library.unlink()
    library.write_bytes(b"y" * 8192)
    bench.clock.advance(INTERVAL)
    bench.until(lambda: bench.status().starts == 2 and bench.supervisor.settled)
    bench.close()


def test_the_files_of_a_reader_are_not_known_while_a_disk_is_silent() -> None:
    """Their disk may be the one that gives no answer: the loop does not ask it itself."""
    around = Surroundings(disk=Disk(0.01))
    with silent(around.disk):
        assert around.mapped(os.getpid()) is None
        assert around.stamps(["/etc/hostname"]) is None
    end = time.monotonic() + REAL_SECONDS
    while around.disk.is_silent:
        assert time.monotonic() < end
    assert Surroundings(disk=Disk(REAL_SECONDS)).mapped(os.getpid()) is not None
