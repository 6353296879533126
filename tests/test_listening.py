"""The address of page and metrics: who holds it, or an address that comes late, leaves no node without its agent."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial

import pytest
from fakes.late_clock import LateClock

from nodevet.agent.listening import AGAIN_SECONDS, Listening
from nodevet.checks.errors import BusyError, ConfigurationError
from nodevet.exporters import http
from nodevet.exporters.http import AbsentAddressError, HttpServer, is_free


@pytest.fixture
def holder() -> Iterator[socket.socket]:
    """Another process that listens where the agent is to."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken


def listening(listen: str, clock: LateClock, *, may_wait: bool = True) -> Listening:
    """Return the server at *listen*, or the wait for it."""
    return Listening(listen, partial(HttpServer, listen, lambda: None, lambda: None), clock, may_wait=may_wait)


def test_a_port_that_is_held_is_taken_when_it_is_free(holder: socket.socket) -> None:
    """Until then it is told what stands in the way, and what is asked of the page has an answer."""
    clock = LateClock()
    server = listening(f"127.0.0.1:{holder.getsockname()[1]}", clock)
    assert "is in use by" in server.trouble
    assert (server.url, server.refused) == ("", 0)
    server.start()
    assert server.next_deadline is not None
    server.tick()
    clock.ahead += AGAIN_SECONDS
    server.tick()
    assert server.trouble
    holder.close()
    server.tick()
    assert not server.url, "it asked again before its time"
    clock.ahead += AGAIN_SECONDS
    server.tick()
    assert not server.trouble
    assert [server.next_deadline] == [None]
    with socket.create_connection(("127.0.0.1", int(server.url.rstrip("/").rpartition(":")[2])), timeout=5) as caller:
        caller.sendall(b"GET /-/healthy HTTP/1.0\r\n\r\n")
        assert b"200" in caller.recv(100)
    server.stop()


def test_an_address_that_comes_after_the_agent_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a boot the network may be up later; before, the agent ended with the exit code that systemd never retries."""
    clock = LateClock()
    server = listening("192.0.2.1:0", clock)
    assert "192.0.2.1 is no address of this machine" in server.trouble
    server.start()
    real = http._Server

    def present(_address: tuple[str, int], *rest: object) -> object:
        return real(("127.0.0.1", 0), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(http, "_Server", present)
    monkeypatch.setattr("nodevet.agent.listening.is_free", lambda _listen: True)
    clock.ahead += AGAIN_SECONDS
    server.tick()
    assert server.trouble == ""
    server.stop()


def test_somebody_who_is_quicker_is_waited_for(holder: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the opening another one may have come."""
    clock = LateClock()
    server = listening(f"127.0.0.1:{holder.getsockname()[1]}", clock)
    server.start()
    monkeypatch.setattr("nodevet.agent.listening.is_free", lambda _listen: True)
    clock.ahead += AGAIN_SECONDS
    server.tick()
    assert server.trouble
    assert server.next_deadline is not None
    server.stop()
    assert server.next_deadline is None


def test_what_a_person_starts_and_what_no_time_mends_is_refused(holder: socket.socket) -> None:
    """In one line: a simulated node, for instance, is started beside the agent and on the same port unless told."""
    with pytest.raises(BusyError, match="is in use"):
        listening(f"127.0.0.1:{holder.getsockname()[1]}", LateClock(), may_wait=False)
    with pytest.raises(AbsentAddressError):
        listening("192.0.2.1:0", LateClock(), may_wait=False)
    with pytest.raises(ConfigurationError, match="cannot listen on"):
        listening("no such host:0", LateClock())


def test_an_address_is_free_or_not(holder: socket.socket) -> None:
    """Of both families, and one that this machine lacks."""
    assert not is_free(f"127.0.0.1:{holder.getsockname()[1]}")
    assert not is_free("192.0.2.1:0")
    assert is_free("127.0.0.1:0")
