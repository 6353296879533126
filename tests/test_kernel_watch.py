"""The follower of the kernel log goes on where it was."""

from __future__ import annotations

import os
import selectors
from pathlib import Path

import msgspec
import pytest

from nodevet.agent.clock import SystemClock
from nodevet.agent.kernel_watch import KernelWatch


@pytest.mark.parametrize("memory", [b"\xc1", msgspec.msgpack.encode({"another": "version"})])
def test_memory_of_another_version_is_told_and_the_log_is_read_from_the_boot_on(tmp_path: Path, memory: bytes) -> None:
    """An upgrade must not leave an agent that cannot start."""
    path = tmp_path / "kernel.log"
    path.write_text("")
    told: list[str] = []
    with selectors.DefaultSelector() as selector:
        watch = KernelWatch(str(path), SystemClock(), selector, memory=memory, log=told.append)
        watch.tick()
        assert watch.state.readable
        watch.close()
    assert "another" in told[0] or "earlier version" in told[0]


@pytest.mark.parametrize("kind", ["fifo", "folder", "terminal"])
def test_a_log_that_becomes_something_else_is_told_and_opened_anew(tmp_path: Path, kind: str) -> None:
    """A file that is replaced by no file ends neither the agent nor a descriptor that is not its own."""
    path = tmp_path / "kernel.log"
    path.write_text("x\n")
    told: list[str] = []
    with selectors.DefaultSelector() as selector:
        watch = KernelWatch(str(path), SystemClock(), selector, log=told.append)
        watch.tick()
        path.unlink()
        master, slave = os.openpty()
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to(os.ttyname(slave))
        assert watch.tick() == []
        assert not watch.state.readable and len(told) == 1
        watch.close()
        os.close(master)
        os.close(slave)
