"""Waits of a library whose parts wait too, on real agents: a thread or helper beside a call, and its peers."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import pytest
from fakes.gpu_node import GpuNode
from fakes.more_waits import NODES
from fakes.waiting_library import library, waiting_node
from test_library_waits import failures, is_hard, never_fails
from test_program_waits import Happens, absent, running, silent


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Build the fake library that waits."""
    with library(tmp_path_factory.mktemp("waiting")) as built:
        yield built


@contextmanager
def answering(path: Path, seconds: float = 0.3) -> Iterator[str]:
    """Run a healthy daemon that answers each connection after *seconds*."""
    stop = threading.Event()
    with socket.socket(socket.AF_UNIX) as program:
        program.bind(str(path))
        program.listen(100)
        program.settimeout(0.1)

        def serve() -> None:
            while not stop.is_set():
                with suppress(OSError):
                    line, _ = program.accept()
                    with line:
                        stop.wait(seconds)
                        line.send(b"x")

        with running(stop, serve):
            yield str(path)


def node_of(place: Path, built: Path, how: str, other: str, background: str) -> tuple[GpuNode, Path]:
    """Return a node whose library waits as *how* says, beside a thread of it that does *background* all the time."""
    place.mkdir(exist_ok=True)
    node, trigger = waiting_node(place, built, how, other)
    for number in range(NODES):
        os.mkfifo(place / "root" / "dev" / f"nvidia3{number}")
    node._environment = {**node.variables, **({"FAKE_MORE": background} if background else {})}
    return node, trigger


def nothing(_path: Path) -> nullcontext[str]:
    """Nothing else happens."""
    return nullcontext("")


NOT_THE_DRIVERS: dict[str, tuple[Happens, str]] = {
    "asks": (silent, "samples"),
    "listens-then-asks": (silent, ""),
    "helper-input": (silent, ""),
    "timed-wait": (absent, ""),
    "timed-event": (absent, ""),
    "nested-epoll": (silent, ""),
}


def test_a_daemon_that_does_not_answer_is_no_fault_of_the_driver(
    tmp_path: Path, waiting: Path, campaign: Callable[[int], int]
) -> None:
    """The daemon is absent or stopped: unknown, never failed."""
    for how in list(NOT_THE_DRIVERS)[: campaign(len(NOT_THE_DRIVERS))]:
        happens, background = NOT_THE_DRIVERS[how]
        with happens(tmp_path / f"{how}-other") as other:
            node, trigger = node_of(tmp_path / how, waiting, how, other, background)
            with node:
                node.wait_for_verdict("ok", 30.0)
                trigger.touch()
                never_fails(node, 13.0)


THE_DRIVERS: dict[str, tuple[str, Happens, str]] = {
    "beside a thread that listens to two daemons": ("join", silent, "alternates"),
    "endless computing behind a socket pair": ("pair-computes", nothing, ""),
    "beside the word that its node is removed": ("poll-inotify", nothing, ""),
    "below a helper to which another one writes": ("pipeline", nothing, ""),
    "a deadlock behind a socket pair": ("pair-deadlock", nothing, ""),
    "beside a thread that asks a healthy daemon": ("join", answering, "renews"),
    "below a thread whose end is asked for in turn": ("timed-join", nothing, ""),
}


def test_a_driver_that_hangs_is_told(tmp_path: Path, waiting: Path, campaign: Callable[[int], int]) -> None:
    """Nothing else disturbs the call: hard the second time."""
    for number, case in enumerate(list(THE_DRIVERS)[: campaign(len(THE_DRIVERS))]):
        how, happens, background = THE_DRIVERS[case]
        with happens(tmp_path / f"{number}-other") as other:
            node, trigger = node_of(tmp_path / str(number), waiting, how, other, background)
            with node:
                node.wait_for_verdict("ok", 30.0)
                trigger.touch()
                node.wait_for(failures, 25.0, f"no hang was told: {case}")
                node.wait_for(partial(is_hard, node), 5.0, f"no hard state file: {case}")


def test_a_hang_counts_over_a_kill_and_a_recovery_in_between(tmp_path: Path, waiting: Path) -> None:
    """The first hang is over, and its agent was killed: the second one is hard in the next agent."""
    node, trigger = node_of(tmp_path, waiting, "driver", "", "")
    with node:
        node.wait_for_verdict("ok", 30.0)
        trigger.touch()
        node.wait_for(lambda status: "collector hung" in str(status["findings"]), 15.0, "the first hang was not told")
        trigger.unlink()
        node.kill()
        node.start()
        node.wait_for_verdict("ok", 30.0)
        assert not node.state_file().hard
        trigger.touch()
        began = time.monotonic()
        node.wait_for(failures, 10.0, "the second hang was not told")
        node.wait_for(partial(is_hard, node), 5.0, "no hard state file")
        assert time.monotonic() - began < 8.0
