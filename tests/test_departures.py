"""Answers on their way out: whole for whoever reads, and a reader that takes nothing is known at once."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from nodevet.exporters.web.departures import Departure

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Our end, which waits for ten seconds at most, and that of the reader."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        yield ours, theirs


def test_an_answer_that_finds_room_waits_for_nobody(pair: Pair) -> None:
    """A scraper with the usual buffers keeps no answer waiting."""
    ours, theirs = pair
    waits: list[bool] = []
    assert Departure(ours, lambda: waits.append(True)).write(b"page") == 4
    assert theirs.recv(100) == b"page"
    assert waits == []


def test_an_answer_that_finds_no_room_is_told_before_it_waits(pair: Pair) -> None:
    """Also where there is no room for its first byte; it arrives whole when it is read after all."""
    ours, theirs = pair
    ours.settimeout(0)
    filled = 0
    with pytest.raises(BlockingIOError):
        while True:
            filled += ours.send(bytes(1 << 16))
    ours.settimeout(10)
    told = threading.Event()
    text = bytes(range(256)) * 4096
    writer = threading.Thread(target=Departure(ours, told.set).write, args=(text,))
    writer.start()
    began = time.monotonic()
    assert told.wait(5), "the time-out passed first"
    assert time.monotonic() - began < 5
    received = bytearray()
    while len(received) < filled + len(text):
        received += theirs.recv(1 << 16)
    writer.join(5)
    assert bytes(received[filled:]) == text
    assert ours.gettimeout() == 10
