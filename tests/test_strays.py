"""Exceptions that end in no code of ours are lines of the log, never tracebacks on standard error."""

from __future__ import annotations

import gc
import sys
import threading
import time
from _thread import start_new_thread

import pytest

from nodevet.agent.daemon.strays import WAITING_LINES, Strays


class Fallible:
    """Cannot be cleaned up."""

    def __del__(self) -> None:
        """Fail, where nobody can catch it."""
        raise OSError("no room")


def fail() -> None:
    """Fail in a thread."""
    raise RuntimeError("can't start new thread")


def test_the_exception_of_a_thread_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """With its name, whichever way the thread was started; and told once."""
    before = threading.excepthook, sys.unraisablehook
    with Strays() as strays:
        thread = threading.Thread(target=fail, name="publisher")
        thread.start()
        thread.join()
        assert strays.take() == ["thread publisher: RuntimeError: can't start new thread"]
        start_new_thread(fail, ())
        lines: list[str] = []
        deadline = time.monotonic() + 10.0
        while not lines and time.monotonic() < deadline:
            lines = strays.take()
        assert lines
        assert "RuntimeError: can't start new thread" in lines[0]
        assert strays.take() == []
    assert (threading.excepthook, sys.unraisablehook) == before
    assert capfd.readouterr().err == ""


def test_what_python_cannot_raise_is_one_line_and_bounded(capfd: pytest.CaptureFixture[str]) -> None:
    """The loop may be busy meanwhile."""
    with Strays() as strays:
        for _ in range(10 * WAITING_LINES):
            Fallible()
        gc.collect()
        lines = strays.take()
    assert len(lines) == WAITING_LINES
    assert "OSError: no room" in lines[0]
    assert capfd.readouterr().err == ""
