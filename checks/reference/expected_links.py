"""How many links a board has up in health: by its model, else by its architecture. Pure, from a table with sources."""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase

import msgspec

from nodevet.checks.core.model import Device

from .tables import load_table


class Which(StrEnum):
    """Which links of a board are up in health.

    ``every``: the baseboard or its switches join each port. ``bridged``: each port, once a bridge, which is bought
    apart, joins the boards. ``some``: so many, whichever they are: others lead outside, or nobody knows of them.
    ``alike``: boards are wired to each other without a switch, and how many ports are wired is up to the machine, or to
    the virtual one that has but some of the boards: each board has as many up as its siblings.
    """

    EVERY = "every"
    BRIDGED = "bridged"
    SOME = "some"
    ALIKE = "alike"


class ExpectedLinks(msgspec.Struct, frozen=True):
    """A row of reference/expected_links.csv. ``model`` may hold ``*``; an empty ``architecture`` fits all.

    ``bridge`` is how many links one bridge joins, where that is known: a pair may have fewer bridges than it could.
    ``between`` is how many lead to each board of a bridge over more than two, some of which a machine may lack.
    ``told``: its driver tells the state of its ports whatever they lead to, so that one that tells none is not ok.
    """

    vendor: str
    model: str
    architecture: str
    links: int
    which: Which
    bridge: int | None
    between: int | None
    told: bool
    source: str

    def fits(self, device: Device) -> bool:
        """Return whether *device* is of this make."""
        return (
            self.vendor == device.vendor
            and self.architecture in ("", device.architecture)
            and fnmatchcase(device.model, self.model)
        )


def expected_links(device: Device) -> ExpectedLinks | None:
    """Return the first row that *device* fits, or None where it has no links or nobody knows of any.

    A share of a board in a virtual machine has the name of its board and none of its links.
    """
    if device.virtual:
        return None
    rows = load_table("expected_links.csv", ExpectedLinks)
    row = next((row for row in rows if row.fits(device)), None)
    return row if row is not None and row.links else None
