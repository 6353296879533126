"""Listen addresses, as a person writes them."""

from __future__ import annotations

from nodevet.checks.core.errors import ConfigurationError

LAST_PORT = 65535
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 (what an empty host asks for)


def parse_listen(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``, ``[ADDRESS]:PORT`` or ``:PORT`` (all addresses); else ConfigurationError.

    An IPv6 address stands in brackets, because its last group could be read as a port.
    """
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    is_port = port.isascii() and port.isdigit() and len(port) <= len(str(LAST_PORT)) and int(port) <= LAST_PORT
    if not colon or not is_port or (":" in host) != is_bracketed:
        raise ConfigurationError(
            f'found "{text}", expected HOST:PORT, [ADDRESS]:PORT or :PORT with a port from 0 to {LAST_PORT}'
        )
    return host.strip("[]") or EVERY_ADDRESS, int(port)
