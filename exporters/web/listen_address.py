"""The address that the HTTP surface listens on: how it is written, what it is, and why it cannot be bound."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket

from nodevet.checks.core.errors import BusyError, ConfigurationError
from nodevet.checks.system.addresses import parse_listen
from nodevet.checks.system.exhaustion import EXHAUSTED

from .listeners import holder_of

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}(\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*\.?")
"""What a resolver may know at another time (RFC 1123, and the underscore that sites use)."""


class AbsentAddressError(ConfigurationError):
    """This machine has no such address, or not yet."""


def is_free(listen: str) -> bool:
    """Return whether *listen* can be bound now."""
    host, port = parse_listen(listen)
    with socket.socket(family(host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(with_zone(host, port))
        except OSError:
            return False
    return True


def is_name(listen: str) -> bool:
    """Return whether the host of *listen* has to be resolved: it is no address."""
    try:
        ipaddress.ip_address(parse_listen(listen)[0].partition("%")[0])
    except ValueError:
        return True
    return False


def is_loopback(host: str) -> bool:
    """Return whether *host* reaches only this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def names_loopback(host: str | None) -> bool:
    """Return whether a Host header names this machine to itself; without one it is no browser that asks."""
    if host is None:
        return True
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.removeprefix("[").removesuffix("]").lower().removesuffix(".")
    return name in _LOOPBACK_NAMES or is_loopback(name)


def family(host: str) -> socket.AddressFamily:
    """Return the family of sockets that *host* is an address of."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def with_zone(host: str, port: int) -> tuple[str | int, ...]:
    """Return what bind(2) takes: it wants the interface of a link-local address by its number."""
    if "%" not in host:
        return (host, port)
    address, _, zone = host.partition("%")
    try:
        return (address, port, 0, int(zone) if zone.isdecimal() else socket.if_nametoindex(zone))
    except (OSError, OverflowError) as error:  # no interface has that name, or not yet
        raise OSError(errno.EADDRNOTAVAIL, str(error)) from error


def refusal(error: OSError, host: str, port: int) -> Exception:
    """Return in our words why *host* and *port* cannot be bound."""
    match error.errno:
        case errno.EADDRINUSE:
            holder = holder_of(port)
            by = f" by {holder}" if holder else ""
            return BusyError(f"port {port} on {host} is in use{by}: stop it or choose another with --listen HOST:PORT")
        case errno.EACCES | errno.EPERM:
            return ConfigurationError(f"port {port} on {host} may not be opened by this user: choose one above 1023")
        case errno.EADDRNOTAVAIL:
            return AbsentAddressError(
                f"{host} is not an address of this machine: choose another with --listen HOST:PORT"
            )
    text = f"cannot listen on {host}:{port}: {error.strerror or error}"
    # Whoever resolves names may come after the agent at a boot; what is no name of a host never gets an address.
    is_passing = HOST_NAME.fullmatch(host) if isinstance(error, socket.gaierror) else error.errno in EXHAUSTED
    kind = AbsentAddressError if is_passing else ConfigurationError
    return kind(text)
