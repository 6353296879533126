"""The other end of a Unix socket: real sockets, the real kernel."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest

from nodevet.agent.readers import socket_peers
from nodevet.agent.readers.socket_peers import peer_of


def inode(one: socket.socket) -> int:
    """Return the inode of a socket."""
    return os.fstat(one.fileno()).st_ino


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_each_end_of_a_pair_is_the_others_peer(kind: socket.SocketKind) -> None:
    """Of each kind of Unix socket."""
    one, other = socket.socketpair(socket.AF_UNIX, kind)
    with one, other:
        assert (peer_of(inode(one)), peer_of(inode(other))) == (inode(other), inode(one))


def test_the_peer_of_a_client_is_the_socket_that_its_server_accepted(tmp_path: Path) -> None:
    """Before that, no program has it."""
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "s"))
        server.listen()
        client.connect(str(tmp_path / "s"))
        assert peer_of(inode(client)) is None
        accepted, _ = server.accept()
        with accepted:
            assert peer_of(inode(client)) == inode(accepted)
            assert peer_of(inode(server)) is None


def test_another_socket_has_no_peer_that_is_known() -> None:
    """One of the network, one that nobody connected, a file, and none at all."""
    with socket.socket() as network, socket.socket(socket.AF_UNIX) as alone:
        for number in (inode(network), inode(alone), Path(__file__).stat().st_ino, 0, 2**32 - 1):
            assert peer_of(number & 0xFFFFFFFF) is None


@pytest.mark.parametrize("kernel", ["refuses", "is silent"])
def test_a_kernel_that_does_not_tell_costs_nothing(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    """Without the right to the family of sockets, or without an answer in time."""

    class Other(socket.socket):
        def __init__(self, *_families: int) -> None:
            if kernel == "refuses":
                raise PermissionError(1, "Operation not permitted")
            super().__init__(socket.AF_UNIX, socket.SOCK_DGRAM)

        def send(self, *_arguments: object) -> int:
            return 0

    one, other = socket.socketpair()
    with one, other:
        number = inode(one)
        monkeypatch.setattr(socket, "socket", Other)
        assert peer_of(number) is None


@pytest.mark.parametrize("size", range(0, 48, 4))
def test_an_answer_that_is_cut_short_names_no_peer(size: int) -> None:
    """The attributes come after the header and the state of the socket; one of length 0 ends nothing."""
    whole = struct.pack("=IHHII", 48, 20, 0, 0, 0) + bytes(16) + struct.pack("=HHIHHI", 8, 2, 77, 5, 6, 0)
    peer = socket_peers._peer_in(whole[:size])
    assert peer == (77 if size >= 40 else None)
    assert socket_peers._peer_in(whole[:32] + bytes(12) + whole[32:]) == 77
