"""The follower of the kernel log goes on where it was."""

from __future__ import annotations

import errno
import os
import selectors
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from fakes.clocks import SteppedClock

from nodevet.agent.readers.kernel_watch import BEGIN_SECONDS, RETRY_SECONDS, KernelWatch
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.kernel_log import reader
from nodevet.checks.kernel_log.reader import KernelLogReader

FALLEN = "NVRM: Xid (PCI:0000:80:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"


@pytest.mark.parametrize("memory", [b"\xc1", msgspec.msgpack.encode({"another": "version"})])
def test_memory_of_another_version_is_told_and_the_log_is_read_from_the_boot_on(tmp_path: Path, memory: bytes) -> None:
    """An upgrade must not leave an agent that cannot start."""
    path = tmp_path / "kernel.log"
    path.write_text("")
    told: list[str] = []
    with selectors.DefaultSelector() as selector:
        watch = KernelWatch(str(path), SystemClock(), selector, memory=memory, log=told.append)
        watch.read()
        assert watch.state.readable
        watch.close()
    assert "another" in told[0] or "earlier version" in told[0]


@pytest.mark.parametrize("place", [{"offset": -5}, {"sequence": -5}], ids=["byte", "record"])
def test_a_position_that_no_log_has_is_told_and_the_log_is_read_from_its_begin(
    tmp_path: Path, place: dict[str, int]
) -> None:
    """Another release kept it, or its bytes changed: no event is missed."""
    path = tmp_path / "kernel.log"
    path.write_text(FALLEN)
    clock = SystemClock()
    memory = msgspec.msgpack.encode({"boot_id": clock.instant().boot_id, "inode": path.stat().st_ino} | place)
    told: list[str] = []
    with selectors.DefaultSelector() as selector:
        watch = KernelWatch(str(path), clock, selector, memory=memory, log=told.append)
        assert [event.code for event in watch.read()] == ["nvidia.xid.79"]
        watch.close()
    assert len(told) == 1 and "the saved position cannot be decoded: Expected `int` >= 0" in told[0]


@pytest.mark.parametrize("kind", ["fifo", "folder", "terminal"])
def test_a_log_that_becomes_something_else_is_told_and_opened_anew(tmp_path: Path, kind: str) -> None:
    """A file that is replaced by no file ends neither the agent nor a descriptor that is not its own."""
    path = tmp_path / "kernel.log"
    path.write_text("x\n")
    told: list[str] = []
    with selectors.DefaultSelector() as selector:
        watch = KernelWatch(str(path), SystemClock(), selector, log=told.append)
        watch.read()
        path.unlink()
        master, slave = os.openpty()
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to(os.ttyname(slave))
        assert watch.read() == []
        assert not watch.state.readable and len(told) == 1
        watch.close()
        os.close(master)
        os.close(slave)


@pytest.mark.parametrize("function", ["fstat", "lseek"])
def test_a_log_on_a_server_that_is_gone_is_told_and_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """Its size or place cannot be had for a while (ESTALE, ENOTCONN): no part of the agent fails, no line is lost."""
    path = tmp_path / "kernel.log"
    path.write_text(FALLEN)
    told: list[str] = []
    clock = SteppedClock()
    with selectors.DefaultSelector() as selector:
        watch = KernelWatch(str(path), clock, selector, log=told.append)
        assert [event.code for event in watch.read()] == ["nvidia.xid.79"]
        with path.open("a") as log:
            log.write(FALLEN.replace("79", "48"))
        with monkeypatch.context() as gone:
            gone.setattr(os, function, Mock(side_effect=OSError(errno.ESTALE, os.strerror(errno.ESTALE))))
            for _ in range(3):
                clock.advance(RETRY_SECONDS)
                assert watch.read() == []
        assert not watch.state.readable
        assert told == [f"{path}: reading failed: Stale file handle"]
        clock.advance(RETRY_SECONDS)
        assert [event.code for event in watch.read()] == ["nvidia.xid.48"]
        assert watch.state.readable
        watch.close()


@pytest.mark.parametrize("before", ["folder", "nothing", "device"])
def test_a_log_that_takes_the_place_of_none_is_read_at_once(tmp_path: Path, before: str) -> None:
    """The next try is a minute away, and the finding would tell until then what is at its path no more."""
    path = tmp_path / "kernel.log"
    if before == "folder":
        path.mkdir()
    elif before == "device":
        path.symlink_to("/dev/null")
    told: list[str] = []
    clock = SteppedClock()
    with selectors.DefaultSelector() as selector:
        watch = KernelWatch(str(path), clock, selector, log=told.append)
        for _ in range(3):
            assert watch.read() == []
            clock.advance(1.0)
        assert not watch.state.readable
        if before == "folder":
            path.rmdir()
        path.unlink(missing_ok=True)
        path.write_text(FALLEN)
        assert [event.code for event in watch.read()] == ["nvidia.xid.79"]
        watch.close()
    assert watch.state.detail == "" and len(told) == 1


def test_a_log_that_cannot_be_opened_is_tried_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop turns often, and each try may be a line of the audit."""
    opened = Mock(side_effect=PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    path = tmp_path / "kernel.log"
    path.write_text(FALLEN)
    clock = SteppedClock()
    with selectors.DefaultSelector() as selector:
        watch = KernelWatch(str(path), clock, selector, log=lambda _line: None)
        with monkeypatch.context() as refused:
            refused.setattr(os, "open", opened)
            for _ in range(100):
                watch.read()
                clock.advance(1.0)
        watch.close()
    assert opened.call_count == 2


def test_a_log_whose_server_refuses_to_close_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The descriptor is free all the same, and must not be closed again when it is another's."""
    path = tmp_path / "kernel.log"
    path.write_text(FALLEN)
    opened = KernelLogReader(str(path), boot_id="b")
    with monkeypatch.context() as gone:
        closing = Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO)), wraps=os.close)
        gone.setattr(os, "close", closing)
        opened.close()
        opened.close()
    os.close(closing.call_args.args[0])
    assert closing.call_count == 1


def test_a_long_file_is_told_until_it_is_read_and_what_was_passed_over_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is opened anew."""
    monkeypatch.setattr(reader, "MAXIMUM_RECORDS", 1)
    monkeypatch.setattr(reader, "MOST_UNREAD_BYTES", 3 << 20)
    path = tmp_path / "kernel.log"
    path.write_text("\n" * (5 << 20))
    clock = SteppedClock()
    with selectors.DefaultSelector() as selector:
        watch = KernelWatch(str(path), clock, selector, log=lambda _line: None)
        watch.read()
        assert watch.state.begun and watch.state.readable
        for _ in range(100):
            clock.advance(BEGIN_SECONDS)
            watch.read()
        assert not watch.state.begun
        assert "2 MiB were skipped" in watch.trouble
        watch.close()
        assert "2 MiB were skipped" in watch.trouble


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero"])
def test_a_device_that_holds_no_log_is_none(device: str) -> None:
    """Some containers have /dev/null in the place of the kernel's log: nothing is read there, and that is told."""
    told: list[str] = []
    with selectors.DefaultSelector() as selector:
        watch = KernelWatch(device, SystemClock(), selector, log=told.append)
        assert watch.read() == watch.settle() == []
        assert not watch.state.readable
        assert "give this container the host's /dev/kmsg" in watch.state.detail
        watch.close()
    assert len(told) == 1


def test_a_log_that_no_selector_takes_is_told_and_opened_anew(tmp_path: Path) -> None:
    """The user's limit of watches (fs.epoll.max_user_watches) ends neither the agent nor its end."""
    path = tmp_path / "kernel.log"
    os.mkfifo(path)
    told: list[str] = []
    with selectors.DefaultSelector() as selector:
        refusing = Mock(wraps=selector, register=Mock(side_effect=OSError(28, "No space left on device")))
        watch = KernelWatch(str(path), SystemClock(), refusing, log=told.append)
        assert watch.read() == []
        assert not watch.state.readable
        watch.close()
    assert told == [f"{path}: cannot be waited for: No space left on device"]
