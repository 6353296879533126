"""What is particular to the accelerators of a vendor, as data: nothing that judges or shows knows one by its name."""

from __future__ import annotations

import msgspec

from nodevet.checks.core.model import Action

from .tables import load_table

LENT_DRIVERS = ("vfio-pci", "nvgrace_gpu_vfio_pci", "xen-pciback", "pci-stub")
"""Drivers that hand a device on to a virtual machine. The second is that of Grace boards: Linux,
drivers/vfio/pci/nvgrace-gpu, by the name of its module."""


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    """A row of reference/vendors.csv; None is what nobody told of the vendor.

    ``backend``: checks/backends has a folder of the vendor's name, whose ``backend.py`` reads it; that is asked for
    events every ``event_poll_seconds``, or has none to be asked for. ``topology``: it knows how its boards are
    connected. ``compute`` is what torch calls its boards. ``kernel_module`` drives its boards, ``links`` is what
    its own links are called, ``install`` says how to get a driver that works. ``release_action`` and
    ``release_advice`` say what to do where the parts of that are of different releases, ``ecc_advice`` how the
    correction of memory errors is switched on, ``links_advice`` how links come up of which none can be seen.
    ``renumbers_ports``: a release of its driver gave the ports of links other numbers. ``retired_pages_limit``: it
    takes a board back that has so many retired pages of memory, where the board itself does not say how many.
    ``takes_in_turn``: while it loads, its driver takes one board after the other, and lists those that it has.
    """

    vendor: str
    backend: bool = False
    event_poll_seconds: float | None = None
    topology: bool = False
    compute: str | None = None
    kernel_module: str | None = None
    links: str | None = None
    install: str | None = None
    release_action: Action | None = None
    release_advice: str | None = None
    ecc_advice: str | None = None
    links_advice: str | None = None
    renumbers_ports: bool = False
    retired_pages_limit: int | None = None
    takes_in_turn: bool = False
    source: str = ""


def vendors() -> tuple[Vendor, ...]:
    """Return the rows of reference/vendors.csv, in the order in which accelerators are looked for."""
    return load_table("vendors.csv", Vendor)


def vendor_of(name: str) -> Vendor:
    """Return what is known of the vendor *name*, which is nothing where the table lacks it."""
    return next((row for row in vendors() if row.vendor == name), Vendor(vendor=name))


def backend_names() -> tuple[str, ...]:
    """Return the backends that a configuration may name: the host, and each vendor that one reads."""
    return ("host", *(row.vendor for row in vendors() if row.backend))
