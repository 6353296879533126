"""Which waits of a reader, its threads and its programs lead to the driver: every combination of two."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from nodevet.agent.readers.evidence import other_cause
from nodevet.agent.readers.system_call import AT_REST, COMPUTES, Leads, Wait
from nodevet.agent.readers.witness import Other, ProcessStatus

READER = ProcessStatus("S", False, 0, 0.0)
ELSEWHERE, NOBODY_KNOWS = {Leads.FILE, Leads.PROGRAM}, {Leads.UNKNOWN, Leads.HIDDEN}
WITNESSES = {Leads.DRIVER, Leads.LIBRARY}
PARTS = {Leads.INSIDE, Leads.PROGRAM}
"""Waits that another thread or program of the library may end."""


def status(wait: Wait) -> ProcessStatus:
    """Return a process in this wait."""
    return msgspec.structs.replace(READER, wait=wait)


def cause(first: Wait, *others: Wait, opened: frozenset[str] = frozenset()) -> Wait:
    """Return the other cause of a call whose thread is in the *first* wait, beside threads in the *others*."""
    parts = {Other(number, f"thread-{number}"): status(wait) for number, wait in enumerate(others, 2)}
    return other_cause(status(first), parts, opened)


@pytest.mark.parametrize("leads", list(Leads))
def test_a_call_alone_is_judged_by_its_own_wait(leads: Leads) -> None:
    """A library that waits for itself alone is stuck in itself: a lock that is taken twice."""
    found = cause(Wait(leads, "words"))
    is_blamed = leads in WITNESSES or leads is Leads.INSIDE
    assert found == (COMPUTES if is_blamed else Wait(leads, "words"))


@pytest.mark.parametrize(("first", "second"), list(itertools.product(Leads, Leads)))
def test_other_threads_count_where_the_call_may_wait_for_them(first: Leads, second: Leads) -> None:
    """A file or a program excuses, the driver is the cause of a part's wait, and what nobody knows excuses too."""
    found = cause(Wait(first, "words"), Wait(second, "of a part"))
    if first not in PARTS:
        assert found == cause(Wait(first, "words"))
    elif second in ELSEWHERE | NOBODY_KNOWS:
        assert (found.leads, found.words) == (second, "thread-2 (process 2), which it may wait for: of a part")
    elif second is Leads.DRIVER or first is Leads.INSIDE:
        assert found == COMPUTES
    else:
        assert found == Wait(Leads.PROGRAM, "words")


@pytest.mark.parametrize(("first", "second"), list(itertools.product(Leads, Leads)))
def test_the_order_of_threads_is_of_no_account(first: Leads, second: Leads) -> None:
    """Of a thread that asks the driver and one that asks a daemon, the call may wait for the daemon: no witness."""
    one, other = (cause(Wait(Leads.INSIDE), Wait(a, "w"), Wait(b, "w")) for a, b in ((first, second), (second, first)))
    assert (one == COMPUTES) is (other == COMPUTES)
    kinds = {first, second}
    if kinds & ELSEWHERE:
        assert one.leads in ELSEWHERE
    elif Leads.DRIVER in kinds:
        assert one == COMPUTES
    elif kinds & NOBODY_KNOWS:
        assert one.leads in NOBODY_KNOWS
    else:
        assert one == COMPUTES


@pytest.mark.parametrize("leads", list(Leads))
def test_a_socket_of_this_call_excuses_a_library_that_computes_or_sleeps(leads: Leads) -> None:
    """It may ask a daemon again and again; a wait for the driver is no such thing."""
    found = cause(Wait(leads, "words"), opened=frozenset({"socket:[77]"}))
    if leads is Leads.LIBRARY:
        assert found.leads is Leads.PROGRAM
        assert "a socket that it opened in this call; check the daemons of the driver" in found.words
    else:
        assert found == cause(Wait(leads, "words"))


def test_a_thread_at_rest_is_no_cause() -> None:
    """It waits for its next work, not the call for it."""
    assert cause(Wait(Leads.INSIDE), AT_REST) == COMPUTES
    assert cause(Wait(Leads.PROGRAM, "words"), AT_REST).leads is Leads.PROGRAM
