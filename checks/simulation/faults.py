"""Faults of a simulated node: the kinds, and the effects of each on readings and kernel log. Pure."""

from __future__ import annotations

import msgspec

from nodevet.checks.reference.tables import load_table


class Kind(msgspec.Struct, frozen=True):
    """A row of reference/simulated_kinds.csv: a fault, the settings that it takes, and those that it cannot do without.

    A ``probed`` kind changes only the results of probes; a ``logged`` kind only writes a driver's log line, which not
    every vendor has.
    """

    name: str
    settings: tuple[str, ...]
    required: tuple[str, ...]
    on_links: bool
    on_accelerators: bool
    probed: bool
    logged: bool
    help: str


KINDS = {row.name: row for row in load_table("simulated_kinds.csv", Kind)}
"""The kinds of faults by name."""


class Setting(msgspec.Struct, frozen=True):
    """A row of reference/simulated_settings.csv: what a setting means, its default, and its range."""

    name: str
    low: int | None
    high: int | None
    meaning: str


SETTINGS = {row.name: row for row in load_table("simulated_settings.csv", Setting)}
"""What each setting of a fault means."""

RANGES = {row.name: (row.low, row.high) for row in SETTINGS.values() if row.low is not None and row.high is not None}
"""Least and greatest that a setting may be. How many links there are is told by the profile."""


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
