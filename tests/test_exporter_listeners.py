"""Who holds a port, asked of the machine."""

from __future__ import annotations

import errno
import os
import socket

import psutil
import pytest

from nodevet.exporters.web.listeners import SHOWN_CHARACTERS, holder_of


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_listener_is_named(address: str) -> None:
    """The process whose socket listens on the port, over either protocol."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen()

        assert holder_of(listener.getsockname()[1]) == f"{psutil.Process().name()} (pid {os.getpid()})"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("\udcff\udcfebad", "bad"),
        ("a\nnodevet: healthy", "a nodevet: healthy"),
        ("\x1b[2Jclean", "[2Jclean"),
        ("x" * 100_000, "x" * SHOWN_CHARACTERS),
        ("\udcff", "a process without a name"),
    ],
)
def test_whatever_a_holder_calls_itself_is_one_short_line(
    monkeypatch: pytest.MonkeyPatch, name: str, told: str
) -> None:
    """Any user may hold the port under any name; before, one that is not UTF-8 cost every answer of the agent."""
    monkeypatch.setattr(psutil.Process, "name", lambda _process: name)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert holder_of(listener.getsockname()[1]) == f"{told} (pid {os.getpid()})"


def test_a_proc_that_cannot_be_read_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who holds the port is not known then; before, it could end the agent at its start."""

    def refuse(_kind: str) -> list[object]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(psutil, "net_connections", refuse)
    assert holder_of(10917) is None


def test_a_connection_is_no_listener() -> None:
    """The client's end of a connection does not hold its port for listening."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        assert holder_of(client.getsockname()[1]) is None


def test_a_free_port_has_no_holder() -> None:
    """A port that was closed is nobody's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    assert holder_of(port) is None
