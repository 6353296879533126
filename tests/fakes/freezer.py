"""Processes in state D, as a wedged driver leaves them: the cgroup v1 freezer does the same to any process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

__all__ = ["NO_FREEZER", "Freeze", "freeze"]

FREEZER = Path("/sys/fs/cgroup/freezer")
NO_FREEZER = "no cgroup v1 freezer that may be written to"
GONE_SECONDS = 20.0

Freeze = Callable[[int], Callable[[], None]]
"""Freezes the process of that id, so that no signal reaches it; returns the function that lets it go."""


@pytest.fixture
def freeze() -> Iterator[Freeze]:
    """A function that puts a process into state D; what is frozen at the end of the test is let go and killed."""
    if not os.access(FREEZER / "cgroup.procs", os.W_OK):
        pytest.skip(NO_FREEZER)
    group = FREEZER / f"nodevet-test-{os.getpid()}"
    group.mkdir()

    def thaw() -> None:
        (group / "freezer.state").write_text("THAWED")

    def freeze_process(pid: int) -> Callable[[], None]:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        return thaw

    yield freeze_process
    thaw()
    _empty(group / "cgroup.procs")
    group.rmdir()


def _empty(processes: Path) -> None:
    end = time.monotonic() + GONE_SECONDS
    while (left := processes.read_text().split()) and time.monotonic() < end:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.01)
