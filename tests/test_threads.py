"""Threads that cannot be started are named as the cause, before anything else is begun."""

from __future__ import annotations

import re
import resource
import subprocess
import sys

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


def test_threads_share_one_heap() -> None:
    """The second thread that allocates at the same time takes no heap of its own."""
    program = (
        "import re, sys, threading\n"
        "from nodevet.checks.system.threads import share_one_heap\n"
        "share_one_heap() if len(sys.argv) > 1 else None\n"
        "held, together = [], threading.Barrier(8)\n"
        "work = lambda: (held.append(bytearray(100_000)), together.wait())\n"
        "threads = [threading.Thread(target=work) for _ in range(8)]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
        "text = open('/proc/self/maps').read()\n"
        "bounds = [re.split('[- ]', line)[:2] for line in text.splitlines() if '---p 00000000 00:00 0' in line]\n"
        "print(sum(32 << 20 < int(end, 16) - int(begin, 16) < 64 << 20 for begin, end in bounds))\n"
    )
    alone, together = (
        int(subprocess.run([sys.executable, "-I", "-c", program, *more], capture_output=True, check=True).stdout)
        for more in ([], ["x"])
    )
    if alone == 0:
        pytest.skip("the C library gives threads no heaps of their own")
    assert together == 0
