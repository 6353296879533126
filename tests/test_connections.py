"""Which connections the HTTP server keeps, on a clock that is handed in."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodevet.exporters.web.connections import Connections

MOST = 3
REQUEST_SECONDS = 2.0


class Bench:
    """Connections on a clock of their own; a client is told that it was hung up on by its socket."""

    def __init__(self, sockets: ExitStack) -> None:
        """Keep what is opened in *sockets*."""
        self.seconds = 0.0
        self.kept = Connections(most=MOST, request_seconds=REQUEST_SECONDS, monotonic=lambda: self.seconds)
        self._sockets = sockets

    def client(self) -> Client:
        """Return a client that connects now."""
        ours, theirs = socket.socketpair()
        self._sockets.callback(ours.close)
        self._sockets.callback(theirs.close)
        theirs.setblocking(False)
        return Client(self.kept, ours, theirs)


class Client:
    """One end of a connection, and what the server did with the other."""

    def __init__(self, kept: Connections, ours: socket.socket, theirs: socket.socket) -> None:
        """Connect."""
        self.ours, self._theirs = ours, theirs
        self.admitted = kept.admit(ours)

    @property
    def is_open(self) -> bool:
        """Return whether nobody hung up."""
        try:
            return self._theirs.recv(1) != b""
        except BlockingIOError:
            return True


@pytest.fixture
def bench() -> Iterator[Bench]:
    """An empty server."""
    with ExitStack() as sockets:
        yield Bench(sockets)


def test_the_oldest_incomplete_request_makes_room(bench: Bench) -> None:
    """Not one that is being answered, however old."""
    answered, *waiting = [bench.client() for _ in range(MOST)]
    bench.kept.complete(answered.ours)
    newcomer = bench.client()
    assert newcomer.admitted
    assert [client.is_open for client in (answered, *waiting)] == [True, False, True]
    assert bench.kept.refused == 1


def test_a_complete_request_outlives_younger_incomplete_ones(bench: Bench) -> None:
    """Also when its own reader is slow: whoever said nothing goes first."""
    slow = bench.client()
    bench.kept.complete(slow.ours)
    bench.seconds += REQUEST_SECONDS
    younger = [bench.client() for _ in range(MOST - 1)]
    assert bench.client().admitted
    assert [client.is_open for client in (slow, *younger)] == [True, False, True]


def test_where_all_are_being_answered_the_newcomer_goes(bench: Bench) -> None:
    """An answer that was begun is finished."""
    for _ in range(MOST):
        bench.kept.complete(bench.client().ours)
    assert not bench.client().admitted
    assert bench.kept.refused == 1


def test_there_is_room_as_long_as_one_place_is_not_taken_by_an_answer(bench: Bench) -> None:
    """Who comes meanwhile is left to wait in the kernel's queue, and not refused."""
    clients = [bench.client() for _ in range(MOST)]
    for client in clients:
        assert bench.kept.has_room
        assert bench.kept.complete(client.ours)
    assert not bench.kept.has_room
    bench.seconds += REQUEST_SECONDS
    assert bench.kept.has_room, "a slow reader makes room"
    bench.seconds = 0.0
    bench.kept.forget(clients[0].ours)
    assert bench.kept.has_room
    assert not bench.kept.complete(clients[0].ours), "it is gone"


def test_a_reader_that_is_slow_makes_room(bench: Bench) -> None:
    """Whoever does not take the answer within two seconds holds nobody up who asks now."""
    slow = [bench.client() for _ in range(MOST)]
    for client in slow:
        bench.kept.complete(client.ours)
    bench.seconds += REQUEST_SECONDS
    assert bench.client().admitted
    assert [client.is_open for client in slow] == [False, True, True]


def test_a_reader_that_takes_nothing_makes_room_at_once(bench: Bench) -> None:
    """Given two seconds, eight such readers a second would hold all places; one that is answered keeps its time."""
    first, second, third = (bench.client() for _ in range(MOST))
    for client in (first, second, third):
        bench.kept.complete(client.ours)
    assert not bench.kept.has_room
    for client in (third, second):
        bench.kept.waits(client.ours)
        bench.seconds += 0.01
    assert bench.kept.has_room
    assert bench.client().admitted
    assert [client.is_open for client in (first, second, third)] == [True, True, False]
    bench.kept.waits(third.ours)  # it is gone


def test_an_incomplete_request_ends_after_two_seconds_and_an_answer_after_ten(bench: Bench) -> None:
    """The deadline is that of the whole request: a byte now and then changes nothing."""
    incomplete, answered = bench.client(), bench.client()
    bench.kept.complete(answered.ours)
    for seconds, states in ((2.0, [True, True]), (2.1, [False, True]), (10.0, [False, True]), (10.1, [False, False])):
        bench.seconds = seconds
        bench.kept.end_overdue()
        assert [incomplete.is_open, answered.is_open] == states
    assert bench.kept.refused == 1  # the answered one was no refusal


@given(st.lists(st.sampled_from(["connect", "complete", "wait", "end"]), max_size=40))
def test_whatever_others_do_a_request_that_is_sent_at_once_is_answered(steps: list[str]) -> None:
    """As long as those that are being answered leave one place, or take longer than two seconds."""
    with ExitStack() as sockets:
        bench = Bench(sockets)
        others: list[Client] = []
        for step in steps:
            match step:
                case "connect":
                    others.append(bench.client())
                case "complete" if others:
                    bench.kept.complete(others[-1].ours)
                case "end" if others:
                    bench.kept.forget(others.pop(0).ours)
                case "wait":
                    bench.seconds += 1.0
            bench.kept.end_overdue()
        bench.seconds += REQUEST_SECONDS
        scraper = bench.client()
        assert scraper.admitted
        assert scraper.is_open
