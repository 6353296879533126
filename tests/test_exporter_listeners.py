"""Who holds a port, asked of the machine."""

from __future__ import annotations

import os
import socket

import psutil
import pytest

from nodevet.exporters.listeners import holder_of


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_listener_is_named(address: str) -> None:
    """The process whose socket listens on the port, over either protocol."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen()

        assert holder_of(listener.getsockname()[1]) == f"{psutil.Process().name()} (pid {os.getpid()})"


def test_a_connection_is_no_listener() -> None:
    """The client's end of a connection does not hold its port for listening."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        assert holder_of(client.getsockname()[1]) is None


def test_a_free_port_has_no_holder() -> None:
    """A port that was closed is nobody's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    assert holder_of(port) is None
