"""The end of a command: with its code, whatever code of a site left running in it."""

from __future__ import annotations

import multiprocessing.process
import os
import sys
import threading
from io import StringIO

import pytest

from nodevet.agent.terminal.exits import DEGRADED, end_process


class EndedError(Exception):
    """Stands for the end of this process."""


@pytest.fixture(autouse=True)
def ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise where this process would end at once, without waiting for anything."""

    def end(code: int) -> None:
        raise EndedError(code)

    monkeypatch.setattr(os, "_exit", end)


def test_the_end_waits_for_nothing_that_was_left_running() -> None:
    """Python's own end joins each thread that is no daemon."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        with pytest.raises(EndedError, match=f"^{DEGRADED}$"):
            end_process(DEGRADED)
        assert thread.is_alive()
    finally:
        over.set()
        thread.join()


def test_what_was_printed_is_written_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of a site may have printed without a line feed."""
    flushed = []

    class Output(StringIO):
        def flush(self) -> None:
            flushed.append(self.getvalue())

    monkeypatch.setattr(sys, "stdout", Output())
    sys.stdout.write("no line feed")
    with pytest.raises(EndedError):
        end_process(DEGRADED)
    assert flushed == ["no line feed"]


def test_a_process_of_a_site_ends_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own end waits for it, or asks it to end where it is a daemon."""
    ends: list[str] = []

    class Worker:
        def kill(self) -> None:
            ends.append("killed")

    monkeypatch.setattr(multiprocessing.process, "active_children", lambda: [Worker()])
    with pytest.raises(EndedError):
        end_process(DEGRADED)
    assert ends == ["killed"]
