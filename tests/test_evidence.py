"""Which waits of a reader, its threads and its programs lead to the driver: every combination of two."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from nodevet.agent.readers.evidence import other_cause
from nodevet.agent.readers.system_call import COMPUTES, Leads, Wait
from nodevet.agent.readers.witness import Other, ProcessStatus

READER = ProcessStatus("S", False, 0, 0.0)
ELSEWHERE, NOBODY_KNOWS = {Leads.FILE, Leads.PROGRAM}, {Leads.UNKNOWN, Leads.HIDDEN}
WITNESSES = {Leads.DRIVER, Leads.LIBRARY}
PARTS = {Leads.INSIDE, Leads.PROGRAM}
"""Waits that another thread or program of the library may end."""
PAIRS = list(itertools.product(Leads, Leads))


def status(wait: Wait, at_rest: bool = False) -> ProcessStatus:
    """Return a process in this wait."""
    return msgspec.structs.replace(READER, wait=wait, at_rest=at_rest)


def cause(first: Leads, *working: Leads, resting: tuple[Leads, ...] = ()) -> Wait:
    """Return the other cause of a call whose thread is in the *first* wait, beside threads that work and that rest."""
    states = [(leads, False) for leads in working] + [(leads, True) for leads in resting]
    parts = {
        Other(number, f"thread-{number}"): status(Wait(leads, "of a part"), at_rest)
        for number, (leads, at_rest) in enumerate(states, 2)
    }
    return other_cause(status(Wait(first, "words")), parts)


@pytest.mark.parametrize("leads", list(Leads))
def test_a_call_alone_is_judged_by_its_own_wait(leads: Leads) -> None:
    """A library that waits for itself alone is stuck in itself: a lock that is taken twice."""
    is_blamed = leads in WITNESSES or leads is Leads.INSIDE
    assert cause(leads) == (COMPUTES if is_blamed else Wait(leads, "words"))


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_other_threads_count_where_the_call_may_wait_for_them(first: Leads, second: Leads) -> None:
    """A file or a program excuses, the driver is the cause of a part's wait, and what nobody knows excuses too."""
    found = cause(first, second)
    if first not in PARTS:
        assert found == cause(first)
    elif second in ELSEWHERE | NOBODY_KNOWS:
        assert (found.leads, found.words) == (second, "its part thread-2 (process 2), which it may wait for: of a part")
    elif second is Leads.DRIVER or first is Leads.INSIDE:
        assert found == COMPUTES
    else:
        assert found == Wait(Leads.PROGRAM, "words")


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_the_order_of_threads_is_of_no_account(first: Leads, second: Leads) -> None:
    """Of a thread that asks the driver and one that asks a daemon, the call may wait for the daemon: no witness."""
    one, other = cause(Leads.INSIDE, first, second), cause(Leads.INSIDE, second, first)
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


@pytest.mark.parametrize(("working", "resting"), PAIRS)
def test_a_thread_at_rest_hides_no_driver_and_is_no_witness(working: Leads, resting: Leads) -> None:
    """One that takes the answers of a daemon rests in the same wait before a call and in it."""
    found = cause(Leads.INSIDE, working, resting=(resting,))
    if working in ELSEWHERE | NOBODY_KNOWS or working is Leads.DRIVER:
        assert found == cause(Leads.INSIDE, working)
    elif resting in ELSEWHERE | NOBODY_KNOWS:
        assert found.leads is resting
    else:
        assert found == COMPUTES
