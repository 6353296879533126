"""The number of active links of a healthy device, by model, else by architecture. Pure, from a table with sources."""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache

import msgspec

from nodevet.checks.core.model import Device

from .tables import load_table

MAKES = 64
"""More makes of devices than any node has; each round asks for the row of each device several times."""


class Which(StrEnum):
    """The links of a device that are up in health.

    ``every``: the baseboard or its switches connect each port. ``bridged``: each port, once a bridge, which is sold
    separately, connects the devices. ``some``: this number of any ports: the others lead outside, or are unknown.
    ``alike``: devices are wired to each other without a switch, and the number of wired ports depends on the machine,
    or on a virtual machine that has only some of the devices: each device has as many links up as its siblings.
    """

    EVERY = "every"
    BRIDGED = "bridged"
    SOME = "some"
    ALIKE = "alike"


class ExpectedLinks(msgspec.Struct, frozen=True):
    """A row of reference/expected_links.csv. ``model`` may contain ``*``; an empty ``architecture`` fits all.

    ``bridge`` is the number of links of one bridge, where known: a pair may have fewer bridges than it could.
    ``between`` is the number of links to each device of a bridge over more than two, of which a machine may lack some.
    ``told``: the driver reports the state of every port, whatever it leads to, so that missing states are not ok.
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

    def fits(self, vendor: str, model: str, architecture: str | None) -> bool:
        """Return whether a device of this make matches this row."""
        return self.vendor == vendor and self.architecture in ("", architecture) and fnmatchcase(model, self.model)


def expected_links(device: Device) -> ExpectedLinks | None:
    """Return the first row that *device* matches, or None where it has no links or none are known.

    A share of a device in a virtual machine has the name of the device and none of its links.
    """
    return None if device.virtual else _row_of(device.vendor, device.model, device.architecture)


@lru_cache(maxsize=MAKES)
def _row_of(vendor: str, model: str, architecture: str | None) -> ExpectedLinks | None:
    rows = load_table("expected_links.csv", ExpectedLinks)
    row = next((row for row in rows if row.fits(vendor, model, architecture)), None)
    return row if row is not None and row.links else None
