"""Events: occurrences on a device, as its driver, the kernel or a text tells them."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from .sample import Instant


class Severity(StrEnum):
    """The severity of an event as its source rates it."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    FATAL = "fatal"


class Provenance(StrEnum):
    """The origin of an event: the driver's interface, a kernel record that only a driver writes, or anybody's text."""

    DRIVER = "driver"
    KERNEL = "kernel"
    TEXT = "text"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One occurrence. ``sequence`` and ``stamp_us`` (kernel log clock, microseconds) are those of the kernel record.

    An event that the driver reports without the log has the time of that clock at which it was reported.
    """

    code: str
    source: str
    time: Instant
    text: str
    severity: Severity = Severity.ERROR
    device: str | None = None
    pci: str | None = None
    sequence: int | None = None
    stamp_us: int | None = None
    line: int | None = None
    pid: int | None = None
    process: str | None = None
    fields: dict[str, str] = {}
    provenance: Provenance = Provenance.TEXT
