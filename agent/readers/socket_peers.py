"""The other end of a connected Unix socket, as the kernel's socket diagnostics name it (sock_diag(7))."""

from __future__ import annotations

import socket
import struct
import sys
from contextlib import suppress

SOCK_DIAG = 4
"""NETLINK_SOCK_DIAG of linux/netlink.h."""

BY_FAMILY = 20
"""SOCK_DIAG_BY_FAMILY of linux/sock_diag.h: a request, and the type of its answer."""

SHOW_PEER, PEER = 4, 2
"""UDIAG_SHOW_PEER and the attribute UNIX_DIAG_PEER of linux/unix_diag.h."""

ANY_STATE = ANY_COOKIE = 0xFFFFFFFF
ANSWERS_SECONDS = 0.2
ANSWER_BYTES = 4096

HEADER = struct.Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, sequence, port."""

REQUEST = struct.Struct("=BBHIIIII")
"""struct unix_diag_req: family, protocol, padding, states, inode, what to show, cookie (two)."""

SOCKET_BYTES = 16
"""Size of struct unix_diag_msg, after which the attributes come."""

ATTRIBUTE = struct.Struct("=HH")


def peer_of(inode: int) -> int | None:
    """Return the inode of the socket that the Unix socket *inode* of this network namespace is connected to.

    None: it is not connected, it is no Unix socket, or the kernel does not tell.
    """
    request = REQUEST.pack(socket.AF_UNIX, 0, 0, ANY_STATE, inode, SHOW_PEER, ANY_COOKIE, ANY_COOKIE)
    header = HEADER.pack(HEADER.size + len(request), BY_FAMILY, 1, 0, 0)  # NLM_F_REQUEST
    with suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as kernel:
        kernel.settimeout(ANSWERS_SECONDS)
        kernel.send(header + request)
        return _peer_in(kernel.recv(ANSWER_BYTES))
    return None


def _peer_in(answer: bytes) -> int | None:
    """Return the attribute UNIX_DIAG_PEER of *answer*; None if it is an error or has none."""
    if len(answer) < HEADER.size or HEADER.unpack_from(answer)[1] != BY_FAMILY:
        return None
    place = HEADER.size + SOCKET_BYTES
    while place + ATTRIBUTE.size <= len(answer):
        length, kind = ATTRIBUTE.unpack_from(answer, place)
        if kind == PEER and length == ATTRIBUTE.size + 4:
            return int.from_bytes(answer[place + ATTRIBUTE.size : place + length], sys.byteorder) or None
        place += max(ATTRIBUTE.size, -(-length // 4) * 4)  # NLA_ALIGN: to four bytes
    return None
