"""Which waits of a reader, its threads and its programs lead to the driver: every combination of two."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from nodevet.agent.readers.evidence import THE_DRIVER, other_cause
from nodevet.agent.readers.system_call import COMPUTES, Leads, Wait
from nodevet.agent.readers.witness import Other, ProcessStatus

READER = ProcessStatus("S", False, 0, 0.0)
ELSEWHERE, NOBODY_KNOWS = {Leads.FILE, Leads.PROGRAM, Leads.UNSURE}, {Leads.UNKNOWN, Leads.HIDDEN}
WITNESSES = {Leads.DRIVER, Leads.LIBRARY}
FIRST = {leads.value: Wait(leads, "words") for leads in Leads}
PARTS = ("inside", "unsure")
"""Waits of a call that another thread or program of the library may end."""
PAIRS = list(itertools.product(Leads, Leads))
CALLS = list(itertools.product(FIRST, Leads))
SECOND = Other(2, "thread-2")


def status(wait: Wait, at_rest: bool = False) -> ProcessStatus:
    """Return a process in this wait."""
    return msgspec.structs.replace(READER, wait=wait, at_rest=at_rest)


def cause(first: str, *working: Leads, resting: tuple[Leads, ...] = (), still: tuple[Other, ...] | None = None) -> Wait:
    """Return the other cause of a call in the *first* wait, beside threads that work and threads that rest."""
    states = [(leads, False) for leads in working] + [(leads, True) for leads in resting]
    parts = {
        Other(number, f"thread-{number}"): status(Wait(leads, "of a part"), at_rest)
        for number, (leads, at_rest) in enumerate(states, 2)
    }
    return other_cause(status(FIRST[first]), parts, still).wait


@pytest.mark.parametrize("first", FIRST)
def test_a_call_alone_is_judged_by_its_own_wait(first: str) -> None:
    """A library that waits for itself alone is stuck in itself: a lock that is taken twice."""
    is_blamed = FIRST[first].leads in WITNESSES or first == "inside"
    assert cause(first) == (COMPUTES if is_blamed else FIRST[first])


@pytest.mark.parametrize(("first", "second"), CALLS)
def test_other_threads_count_where_the_call_may_wait_for_them(first: str, second: Leads) -> None:
    """A file or a program excuses, the driver is the cause of a part's wait, and what nobody knows excuses too."""
    found = cause(first, second)
    if first not in PARTS:
        assert found == cause(first)
    elif second in ELSEWHERE | NOBODY_KNOWS:
        assert (found.leads, found.words) == (second, "its part thread-2 (process 2), which it may wait for: of a part")
    elif second is Leads.DRIVER or first == "inside":
        assert found == COMPUTES
    else:
        assert found == FIRST["unsure"]


@pytest.mark.parametrize("second", Leads)
def test_a_call_that_waits_for_a_program_is_no_hang_of_the_driver(second: Leads) -> None:
    """A thread that reads its device at this moment proves nothing: the call itself waits for the program."""
    assert cause("program", second, Leads.DRIVER) == FIRST["program"]


@pytest.mark.parametrize("resting", Leads)
@pytest.mark.parametrize("first", PARTS)
def test_a_part_that_runs_meanwhile_is_no_witness_beside_another_cause(first: str, resting: Leads) -> None:
    """It reads its device from time to time: only one that has not run since the watch began waits for an answer."""
    at_once = cause(first, Leads.DRIVER, resting=(resting,), still=(SECOND,))
    assert at_once == COMPUTES
    later = cause(first, Leads.DRIVER, resting=(resting,), still=())
    assert later.leads is cause(first, resting=(resting,)).leads


def test_the_part_whose_wait_it_is_comes_with_it() -> None:
    """The function of the kernel in which it waits is looked up for it, not for the first thread."""
    parts = {SECOND: status(Wait(Leads.UNKNOWN, "of a part"))}
    assert other_cause(status(FIRST["inside"]), parts).part == SECOND
    assert other_cause(status(FIRST["unknown"]), parts).part is None
    assert other_cause(status(FIRST["driver"]), parts) == THE_DRIVER


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_the_order_of_threads_is_of_no_account(first: Leads, second: Leads) -> None:
    """Of a thread that asks the driver and one that asks a daemon, the call may wait for the daemon: no witness."""
    one, other = cause("inside", first, second), cause("inside", second, first)
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
    found = cause("inside", working, resting=(resting,))
    if working in ELSEWHERE | NOBODY_KNOWS or working is Leads.DRIVER:
        assert found == cause("inside", working)
    elif resting in ELSEWHERE | NOBODY_KNOWS:
        assert found.leads is resting
    else:
        assert found == COMPUTES
