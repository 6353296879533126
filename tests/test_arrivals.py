"""Requests on their way in: whole, in pieces, without end, or no request at all."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodevet.exporters.web.arrivals import LARGEST_REQUEST_BYTES, Arrivals, Request

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Bench:
    """One connection of which the request is expected."""

    def __init__(self, cleanup: ExitStack) -> None:
        """Connect; what is opened goes with *cleanup*."""
        ours, self.client = socket.socketpair()
        for opened in (ours, self.client):
            cleanup.callback(opened.close)
        self.selector = cleanup.enter_context(selectors.DefaultSelector())
        self.arrivals = Arrivals(self.selector)
        self.arrivals.expect(ours)
        self.ours = ours

    def sent(self, pieces: Sequence[bytes]) -> list[Request | None]:
        """Send *pieces* one by one, and return what each made of the request, up to its end."""
        taken: list[Request | None] = []
        for piece in pieces:
            self.client.sendall(piece)
            taken.append(self.arrivals.take(self.ours))
            if taken[-1] is not None:
                break
        return taken


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A connection without a word on it."""
    with ExitStack() as cleanup:
        yield Bench(cleanup)


@given(st.lists(st.integers(1, len(REQUEST) - 1), unique=True).map(sorted), st.sampled_from([b"\r\n", b"\n"]))
def test_a_request_in_any_pieces_is_whole_at_its_end(cuts: list[int], end: bytes) -> None:
    """Wherever it is cut, also within the empty line that ends it, and not before."""
    request = REQUEST.replace(b"\r\n", end)
    places = [0, *(cut for cut in cuts if cut < len(request)), len(request)]
    pieces = [request[begin:stop] for begin, stop in pairwise(places)]
    with ExitStack() as cleanup:
        taken = Bench(cleanup).sent(pieces)
    assert taken == [None] * (len(pieces) - 1) + [Request(request, True)]


def test_what_is_no_http_is_not_waited_for(bench: Bench) -> None:
    """Whoever speaks TLS to the page is refused at once."""
    assert bench.sent([b"\x16\x03\x01\x02"]) == [Request(b"\x16\x03\x01\x02", False)]


def test_a_request_without_end_is_cut_off(bench: Bench) -> None:
    """It takes no memory beyond what a request may have, and nobody waits for its end."""
    (*_, last) = bench.sent([b"a" * (1 << 14)] * 100)
    assert last is not None
    assert LARGEST_REQUEST_BYTES < len(last.data) <= LARGEST_REQUEST_BYTES + (1 << 16)
    assert not last.whole


def test_who_hangs_up_is_forgotten(bench: Bench) -> None:
    """What was said until then is no request."""
    assert bench.sent([b"GET / HT"]) == [None]
    bench.client.close()
    assert bench.arrivals.take(bench.ours) == Request(b"GET / HT", False)
    assert not bench.selector.get_map()
    assert bench.arrivals.forget_all() == ()


def test_nothing_that_is_there_is_nothing_yet(bench: Bench) -> None:
    """A look without news costs nothing."""
    assert bench.arrivals.take(bench.ours) is None
    assert bench.arrivals.forget_all() == (bench.ours,)
