"""A driver's library that waits for another program: the driver is not at fault."""

from __future__ import annotations

import fcntl
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from fakes.gpu_node import GpuNode
from fakes.privileges import needs_root
from fakes.waiting_library import library

UNIT = ("setpriv", "--bounding-set=-all,+syslog", "--inh-caps=-all")


@contextmanager
def silent(path: Path, kind: socket.SocketKind) -> Iterator[None]:
    """Keep a socket whose program reads nothing, as of a log or a daemon that was stopped."""
    with socket.socket(socket.AF_UNIX, kind) as program:
        program.bind(str(path))
        if kind is socket.SOCK_STREAM:
            program.listen(100)
        yield


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


CASES: dict[str, tuple[Callable[[Path], AbstractContextManager[None]], tuple[str, ...]]] = {
    "hidden-lock": (locked, UNIT),
    "log": (partial(silent, kind=socket.SOCK_DGRAM), ()),
    "asks": (partial(silent, kind=socket.SOCK_STREAM), ()),
    "lock": (locked, UNIT),
}


@needs_root
def test_a_library_that_waits_for_another_program_is_no_fault_of_its_driver(
    tmp_path: Path, campaign: Callable[[int], int]
) -> None:
    """Not even where the kernel shows nothing of the reader. Before, the second such call was a hang, hard."""
    with library(tmp_path) as built:
        for how in list(CASES)[: campaign(len(CASES))]:
            happens, within = CASES[how]
            directory = tmp_path / how
            directory.mkdir()
            other, trigger = directory / "other", directory / "trigger"
            environment = {"NODEVET_FAKE_NVML_LOG": str(trigger), "FAKE_WAIT": how, "FAKE_OTHER": str(other)}
            node = GpuNode(directory, built, deadline_seconds=1.0, environment=environment, within=within)
            with happens(other), node:
                node.wait_for_verdict("ok", 30.0)
                trigger.touch()
                until = time.monotonic() + 14.0
                while time.monotonic() < until:
                    assert not [entry["message"] for entry in node.status()["findings"] if entry["outcome"] == "fail"]
                    time.sleep(0.5)
                assert node.status()["verdict"] == "unknown"
