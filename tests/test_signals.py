"""Signals that come while nothing may be lost."""

from __future__ import annotations

import os
import selectors
import signal
from types import FrameType

import pytest

from nodevet.checks.system.signals import HANDLED, SignalPipe, begin_undisposed, ending, interrupting, undisturbed


@pytest.mark.parametrize("number", HANDLED, ids=lambda number: number.name)
def test_a_signal_passes_by_while_results_are_judged(number: signal.Signals) -> None:
    """Whatever would handle it does so before and after, and not meanwhile."""
    seen: list[int] = []

    def handle(received: int, _frame: FrameType | None) -> None:
        seen.append(received)

    before = signal.signal(number, handle)
    try:
        with undisturbed():
            signal.raise_signal(number)
            assert seen == []
        signal.raise_signal(number)
        assert seen == [number]
    finally:
        signal.signal(number, before)


def test_a_flood_of_one_signal_hides_no_other() -> None:
    """Thousands of SIGHUP within one turn of the loop fill the pipe: it is one reload, and SIGTERM comes first."""
    told: list[int] = []
    with selectors.DefaultSelector() as selector, SignalPipe(selector, told.append):
        for number in (*[signal.SIGHUP] * 5_000, signal.SIGTERM):
            os.kill(os.getpid(), number)
        while ready := selector.select(0):
            for key, mask in ready:
                key.data(mask)
    assert told == [signal.SIGTERM, signal.SIGHUP]


def test_what_was_started_to_outlive_its_terminal_does() -> None:
    """nohup(1) has SIGHUP ignored: what judges, waits or loads leaves it so, and hears the others."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert ending() == (signal.SIGTERM, signal.SIGINT)
        with selectors.DefaultSelector() as selector:
            for at_work in (undisturbed(), interrupting(), SignalPipe(selector, lambda _number: None, ending())):
                with at_work:
                    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
                    assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_IGN, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert ending() == HANDLED
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_comes_again_is_told_again() -> None:
    """One reload after the other."""
    told: list[int] = []
    with selectors.DefaultSelector() as selector, SignalPipe(selector, told.append):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
            for key, mask in selector.select(1):
                key.data(mask)
    assert told == [signal.SIGHUP] * 3


def test_a_signal_that_comes_while_its_descriptor_is_taken_away_wakes_the_loop() -> None:
    """As code of a site begins (overrun.py): SIGTERM was noted, and heard with the next signal only."""
    told: list[int] = []
    with selectors.DefaultSelector() as selector, SignalPipe(selector, told.append):
        descriptor = signal.set_wakeup_fd(-1)
        signal.raise_signal(signal.SIGTERM)
        signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
        for key, mask in selector.select(0):
            key.data(mask)
        assert told == [signal.SIGTERM]
        assert not selector.select(0)
        os.kill(os.getpid(), signal.SIGTERM)
        for key, mask in selector.select(0):
            key.data(mask)
        assert not selector.select(0)
    assert told == [signal.SIGTERM, signal.SIGTERM]


def test_a_process_begins_with_children_it_hears_of_and_nothing_blocked() -> None:
    """Whatever its starter did: an ignored SIGCHLD hides how a child ended, a blocked SIGTERM ends nothing."""
    handler, mask = signal.getsignal(signal.SIGCHLD), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD})
        begin_undisposed()
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
    finally:
        signal.signal(signal.SIGCHLD, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
