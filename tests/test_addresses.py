"""Addresses to listen on: one reading of them for the configuration, the command line and the server."""

from __future__ import annotations

import pytest

from nodevet.checks.core.errors import ConfigurationError
from nodevet.checks.system.addresses import parse_listen


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:10917", ("127.0.0.1", 10917)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:80", ("::1", 80)),
        ("[fe80::1%eth0]:80", ("fe80::1%eth0", 80)),
        ("node:65535", ("node", 65535)),
        (":9100", ("0.0.0.0", 9100)),  # noqa: S104
    ],
)
def test_listen_addresses_are_read(text: str, address: tuple[str, int]) -> None:
    """A name, IPv4, IPv6 in brackets, or a port alone for all addresses."""
    assert parse_listen(text) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "1", "10917", "host", "host:", "host:http", "host:65536", "host:-1", "host:1\u0663", "host:+1"),
        *("::1:80", "[::1]", "[]:80", "[host]:80", "[::1:80", "host:" + "9" * 5000),
    ],
)
def test_other_listen_addresses_are_refused(text: str) -> None:
    """The message shows the text and what is expected."""
    with pytest.raises(ConfigurationError, match=r"expected HOST:PORT, \[ADDRESS\]:PORT or :PORT"):
        parse_listen(text)
