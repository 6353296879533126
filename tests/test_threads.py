"""Threads that cannot be started are named as the cause, before anything else is begun."""

from __future__ import annotations

import re
import resource

import pytest

from nodevet.checks.core.errors import BusyError
from nodevet.checks.system.background import Background
from nodevet.checks.system.threads import NEEDED, prove_threads


def test_too_few_threads_are_refused_at_the_start() -> None:
    """With the number that can be started, the number that is needed, and what to raise; none is left behind."""
    begun: list[Background] = []

    def start(thread: Background) -> None:
        if len(begun) == 3:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        thread.start()

    with pytest.raises(BusyError, match=re.escape(f"only 3 more threads can be started, and the agent needs {NEEDED}")):
        prove_threads(start)
    assert [thread.is_alive() for thread in begun] == [False] * 3


def test_enough_threads_are_proven_at_once_and_ended() -> None:
    """All at the same time, or a limit would not show."""
    alive: list[int] = []
    begun: list[Background] = []

    def start(thread: Background) -> None:
        thread.start()
        begun.append(thread)
        alive.append(sum(each.is_alive() for each in begun))

    prove_threads(start)
    assert alive == list(range(1, NEEDED + 1))
    assert not any(thread.is_alive() for thread in begun)


def test_a_limit_of_memory_is_named_where_there_is_one() -> None:
    """Each thread asks for its stack: before, only limits of processes were named, which nobody had to raise."""
    had = resource.getrlimit(resource.RLIMIT_AS)

    def refuse(_thread: Background) -> None:
        raise RuntimeError

    resource.setrlimit(resource.RLIMIT_AS, (1 << 44, had[1]))
    try:
        with pytest.raises(
            BusyError, match=r"needs 8: remove RLIMIT_AS of 17592186044416 bytes \(LimitAS or LimitDATA"
        ):
            prove_threads(refuse)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, had)
