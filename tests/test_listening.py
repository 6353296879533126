"""The address of page and metrics: who holds it, or an address that comes late, leaves no node without its agent."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from fakes.late_clock import LateClock
from fakes.snapshots import gpu_node

from nodevet.agent.daemon.listening import AGAIN_SECONDS, CAUSE_SECONDS, Listening
from nodevet.checks.core.errors import BusyError, ConfigurationError
from nodevet.checks.system import background
from nodevet.exporters.web import http
from nodevet.exporters.web.http import HttpServer
from nodevet.exporters.web.listen_address import AbsentAddressError, is_free, is_name, with_zone


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
    assert (server.url, server.describe(gpu_node().agent).refused_connections) == ("", 0)
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
    server.close()


def test_an_address_that_comes_after_the_agent_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a boot the network may be up later; before, the agent ended with the exit code that systemd never retries."""
    clock = LateClock()
    server = listening("192.0.2.1:0", clock)
    assert "192.0.2.1 is not an address of this machine" in server.trouble
    server.start()
    real = http._Server

    def present(_address: tuple[str, int], *rest: object) -> object:
        return real(("127.0.0.1", 0), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(http, "_Server", present)
    monkeypatch.setattr("nodevet.agent.daemon.listening.is_free", lambda _listen: True)
    clock.ahead += AGAIN_SECONDS
    server.tick()
    assert server.trouble == ""
    server.close()


def test_somebody_who_is_quicker_is_waited_for(holder: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the opening another one may have come."""
    clock = LateClock()
    server = listening(f"127.0.0.1:{holder.getsockname()[1]}", clock)
    server.start()
    monkeypatch.setattr("nodevet.agent.daemon.listening.is_free", lambda _listen: True)
    clock.ahead += AGAIN_SECONDS
    server.tick()
    assert "is in use by" in server.trouble
    assert server.next_deadline is not None
    server.close()
    assert server.next_deadline is None


def ticked_until(server: Listening, clock: LateClock, words: str, step_seconds: float) -> None:
    """Let *server* look again, *step_seconds* later each time, until its trouble has *words*."""
    deadline = time.monotonic() + 5
    while words not in server.trouble and time.monotonic() < deadline:
        clock.ahead += step_seconds
        server.tick()
        time.sleep(0.01)
    assert words in server.trouble


def test_who_holds_the_port_is_named_as_it_is_now(holder: socket.socket) -> None:
    """Its holder may change, or an absent address come and be held; before, the first cause was told for ever."""
    port, clock, causes = holder.getsockname()[1], LateClock(), iter(("n1 is not an address of this machine", "pid 17"))
    asked_in = []

    def make() -> HttpServer:
        asked_in.append(threading.current_thread())
        raise BusyError(f"is in use by {next(causes)}")

    server = Listening(f"127.0.0.1:{port}", make, clock, may_wait=True)
    server.start()
    clock.ahead += AGAIN_SECONDS
    server.tick()
    assert "not an address" in server.trouble
    ticked_until(server, clock, "pid 17", CAUSE_SECONDS)
    assert len(asked_in) == 2
    assert asked_in[1] is not threading.current_thread(), "the loop looks through all processes"
    server.close()


def no_descriptor(_listen: str) -> bool:
    """Stand for a socket that cannot be opened."""
    raise OSError(errno.EMFILE, "Too many open files")


def no_thread(_server: HttpServer) -> None:
    """Stand for a thread that cannot be started."""
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("lacks", [no_descriptor, no_thread])
def test_what_lacks_when_the_address_is_free_is_told_and_waited_for(
    holder: socket.socket, monkeypatch: pytest.MonkeyPatch, lacks: Callable[..., object]
) -> None:
    """Neither is a bug to report; the address is given back meanwhile, and the page opens when it can."""
    clock = LateClock()
    server = listening(f"127.0.0.1:{holder.getsockname()[1]}", clock)
    server.start()
    holder.close()
    with monkeypatch.context() as short:
        if lacks is no_thread:
            short.setattr(HttpServer, "start", no_thread)
        else:
            short.setattr("nodevet.agent.daemon.listening.is_free", no_descriptor)
        for _ in range(2):
            clock.ahead += AGAIN_SECONDS
            server.tick()
            assert "page and metrics are not served" in server.trouble
            assert ("Too many open files" in server.trouble) or ("new thread" in server.trouble)
            assert server.url == ""
    clock.ahead += AGAIN_SECONDS
    server.tick()
    assert (server.trouble, bool(server.url)) == ("", True)
    server.close()


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


def test_a_name_that_is_resolved_after_the_agent_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS may come later at a boot; before, the agent ended with the exit code that systemd never retries."""
    clock, knows = LateClock(), threading.Event()
    real = http._Server

    def resolve(_address: tuple[str, int], *rest: object) -> object:
        if not knows.is_set():
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return real(("127.0.0.1", 0), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(http, "_Server", resolve)
    server = listening("gpu-17.cluster:0", clock)
    assert "Temporary failure in name resolution" in server.trouble
    server.start()
    server.tick()
    knows.set()
    deadline = time.monotonic() + 30
    while server.trouble and time.monotonic() < deadline:
        clock.ahead += AGAIN_SECONDS
        server.tick()
        time.sleep(0.01)
    assert server.url.startswith("http://127.0.0.1:")
    assert server.next_deadline is None
    server.close()


def test_why_a_name_is_not_resolved_is_told_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the first cause was told for ever: "not resolved yet" where the name does not exist, for instance."""
    clock, known = LateClock(), threading.Event()

    def resolve(*_: object) -> object:
        known.wait(5)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(http, "_Server", resolve)
    monkeypatch.setattr("nodevet.agent.daemon.listening.RESOLVE_SECONDS", 0.1)
    server = listening("gpu-17.cluster:0", clock)
    server.start()
    clock.ahead += AGAIN_SECONDS
    server.tick()
    assert "not resolved yet" in server.trouble
    known.set()
    ticked_until(server, clock, "Name or service not known", AGAIN_SECONDS)
    server.close()


def test_a_link_local_address_is_bound_on_its_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, none could be; one whose interface comes after the agent ended it for good at each boot."""
    absent = listening("[fe80::1%nodevet0]:0", LateClock())
    assert "fe80::1%nodevet0 is not an address of this machine" in absent.trouble
    assert not is_free("[fe80::1%nodevet0]:0")
    monkeypatch.setattr(socket, "if_nametoindex", {"ib0": 7}.__getitem__)
    assert [with_zone(f"fe80::1%{zone}", 1) for zone in ("ib0", "4")] == [
        ("fe80::1", 1, 0, 7),
        ("fe80::1", 1, 0, 4),
    ]
    assert with_zone("::1", 1) == ("::1", 1)


def test_a_resolver_that_does_not_answer_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take minutes: the start waits for a bounded time, the loop not at all, and one thread asks."""
    clock, over, asked = LateClock(), threading.Event(), []

    def hang(*_: object) -> object:
        asked.append(threading.get_ident())
        over.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(http, "_Server", hang)
    monkeypatch.setattr("nodevet.agent.daemon.listening.is_free", lambda _listen: asked.append(threading.get_ident()))
    monkeypatch.setattr("nodevet.agent.daemon.listening.RESOLVE_SECONDS", 0.1)
    server = listening("gpu-17.cluster:0", clock)
    assert "not resolved yet" in server.trouble
    server.start()
    for _ in range(3):
        clock.ahead += AGAIN_SECONDS
        server.tick()
    assert len(asked) == 1
    over.set()
    end = time.monotonic() + 10
    while "name resolution" not in server.trouble:
        assert time.monotonic() < end
        clock.ahead += AGAIN_SECONDS
        server.tick()
    clock.ahead += AGAIN_SECONDS
    server.tick()
    assert threading.get_ident() not in asked
    server.close()


def test_no_thread_to_resolve_a_name_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another look may get one."""

    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(background, "start_new_thread", refuse)
    assert "no thread" in listening("gpu-17.cluster:0", LateClock()).trouble


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_what_the_machine_lacks_for_the_moment_is_waited_for(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing of the address."""

    def refuse(*_: object) -> object:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(http, "_Server", refuse)
    assert os.strerror(number) in listening("127.0.0.1:0", LateClock()).trouble


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "é..b", "a\0b"])
def test_what_no_resolver_can_be_asked_is_refused(host: str) -> None:
    """In one line; before, a traceback called it a bug."""
    with pytest.raises(ConfigurationError, match="cannot listen on"):
        listening(f"{host}:0", LateClock())
    with pytest.raises(ConfigurationError, match="cannot listen on"):
        listening(f"{host}:0", LateClock(), may_wait=False)


def test_a_name_is_no_address() -> None:
    """An address needs nobody to resolve it, whatever interface it belongs to."""
    assert [is_name(f"{host}:0") for host in ("127.0.0.1", "[::1]", "[fe80::1%eth0]", "")] == [False] * 4
    assert [is_name(f"{host}:0") for host in ("localhost", "gpu-17.cluster")] == [True] * 2
