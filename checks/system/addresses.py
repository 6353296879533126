"""An address to listen on, as a person writes it."""

from __future__ import annotations

from nodevet.checks.core.errors import ConfigurationError

LAST_PORT = 65535
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 (what an empty host asks for)


def parse_listen(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``, ``[ADDRESS]:PORT`` or ``:PORT`` (all addresses); else ConfigurationError.

    An address of IPv6 stands in brackets, or nobody could tell its last group from a port.
    """
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    is_port = port.isascii() and port.isdigit() and len(port) <= len(str(LAST_PORT)) and int(port) <= LAST_PORT
    if not colon or not is_port or (":" in host) != is_bracketed:
        raise ConfigurationError(
            f'found "{text}", expected HOST:PORT, [ADDRESS]:PORT or :PORT with a port from 0 to {LAST_PORT}'
        )
    return host.strip("[]") or EVERY_ADDRESS, int(port)
