"""Faults of a simulated node: the kinds, and the effects of each on readings and kernel log. Pure."""

from __future__ import annotations

import msgspec

from nodevet.checks.reference.tables import load_table


class Kind(msgspec.Struct, frozen=True):
    """A kind of fault: its description, its settings, and the required ones.

    A ``probed`` kind changes only the results of probes; a ``logged`` kind only writes a driver's log line, which not
    every vendor has.
    """

    help: str
    settings: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    on_links: bool = False
    on_accelerators: bool = False
    probed: bool = False
    logged: bool = False


KINDS: dict[str, Kind] = {
    "overheat": Kind("every sensor rises beyond the temperature at which the device slows itself down", ("celsius",)),
    "throttle": Kind("the hardware holds the clock down", ("ratio",)),
    "ecc_uncorrected": Kind("memory errors that could not be corrected", ("count",)),
    "ecc_corrected_storm": Kind("many corrected memory errors", ("per_second",)),
    "link_down": Kind("a link is down", ("link",), on_links=True, on_accelerators=True),
    "link_errors": Kind(
        "a link repeats and loses packets", ("link", "per_second"), on_links=True, on_accelerators=True
    ),
    "pcie_narrow": Kind("the PCIe link lost lanes", ("lanes",), on_accelerators=True),
    "lost": Kind("the device no longer answers", on_accelerators=True),
    "missing": Kind("the device is not enumerated", on_accelerators=True),
    "hang": Kind("a call into the driver does not return"),
    "crash": Kind("the driver's library aborts its process"),
    "slow": Kind("a probe is slower than before", ("ratio",), probed=True),
    "wrong_result": Kind("a probe finds wrong results", ("count",), probed=True),
    "xid": Kind(
        "the driver logs an XID", ("code", "pid", "process", "text"), ("code",), on_accelerators=True, logged=True
    ),
    "kernel_log": Kind("the kernel logs this line; {pci} stands for the device's address", ("text",), ("text",)),
    "set": Kind(
        "a quantity reads as given",
        ("quantity", "part", "value", "status", "detail"),
        ("quantity",),
    ),
}
"""The kinds of faults by name."""

SETTINGS: dict[str, str] = {
    "celsius": "degrees beyond the reported slowdown (3)",
    "code": "number of the XID",
    "count": "how many (1)",
    "detail": "why there is no value",
    "lanes": "lanes that are left (8)",
    "link": "number of the port (0)",
    "part": 'part of the device, such as "link 17" or "sensor core"; all parts where none is named',
    "per_second": "rate at which the counter grows",
    "pid": "process id of the job",
    "process": "name of the process",
    "quantity": "name of the quantity, such as `power_limit_watts`",
    "ratio": "throttle: share of the time (0.9); slow: rate that is left (0.85)",
    "status": "ok, unsupported, unavailable, denied or error",
    "text": "words of the line",
    "value": "what it reads",
}
"""The meaning of each setting of a fault, and its default."""

RANGES: dict[str, tuple[int, int]] = {
    "celsius": (-100, 100),
    "code": (0, 10_000),
    "count": (1, 1_000_000),
    "lanes": (0, 16),
    "per_second": (0, 1_000_000),
    "pid": (0, 2**31 - 1),
    "ratio": (0, 1),
}
"""The lowest and highest value of each setting. The profile defines the number of links."""


class Effect(msgspec.Struct, frozen=True):
    """A row of reference/simulated_faults.csv: the effect of a kind of fault on one quantity of one part.

    ``change``: ``set`` and ``scale`` the value, or put it ``above`` the reported slowdown, while the fault lasts;
    ``add`` to a counter once, or let it ``grow`` by this amount per second, for good. ``setting`` names the scenario
    key that replaces ``amount``. ``device`` is the vendor of an accelerator, the kind of another device, or ``*``.
    """

    kind: str
    device: str
    quantity: str
    part: str
    change: str
    amount: float
    setting: str
    source: str


class LogLine(msgspec.Struct, frozen=True):
    """A row of reference/simulated_lines.csv: a kernel log line at the start of a kind of fault."""

    kind: str
    device: str
    text: str
    source: str


def effects_of(kind: str, subject: str | None = None) -> tuple[Effect, ...]:
    """Return the effects of the fault *kind* on a *subject* (None: any): a vendor's accelerator or a kind of device."""
    rows = load_table("simulated_faults.csv", Effect)
    return tuple(row for row in rows if row.kind == kind and (subject is None or row.device in ("*", subject)))


def lines_of(kind: str, subject: str) -> tuple[str, ...]:
    """Return the kernel log lines, with placeholders, at the start of the fault *kind* on a *subject*."""
    rows = load_table("simulated_lines.csv", LogLine)
    return tuple(row.text for row in rows if row.kind == kind and row.device in ("*", subject))
