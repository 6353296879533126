"""The properties of each accelerator vendor, as data: no check and no surface contains a vendor's name."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from nodevet.checks.core.model import Action

from .tables import load_table

LENT_DRIVERS = ("vfio-pci", "nvgrace_gpu_vfio_pci", "pciback", "xen-pciback", "pci-stub", "gim")
"""Drivers that pass a device through to a virtual machine, by the names of driver and module.

That of Grace boards is in Linux, drivers/vfio/pci/nvgrace-gpu; that of Xen in drivers/xen/xen-pciback
(PCISTUB_DRIVER_NAME); gim is AMD's for the shares of a board (SR-IOV).
"""


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    """A row of reference/vendors.csv; None is unknown.

    ``backend``: checks/backends has a folder of the vendor's name, whose ``backend.py`` reads its devices and is polled
    for events every ``event_poll_seconds``, where it has any. Each poll wakes an idle process, and the kernel log
    reports most of these events within a second. ``topology``: the backend reports the connections of its devices.
    ``compute`` is torch's name for the devices. ``kernel_module`` is their driver, ``links`` the name of the
    vendor's links, ``install`` the way to a working driver. ``release_action`` and ``release_advice`` are the remedy
    where driver components are of different releases, ``ecc_advice`` the way to enable error correction of memory,
    ``links_advice`` the remedy where no link is visible. ``drained_by`` is the command by which a person takes a device
    out of service, ``undrain`` the one that returns it.
    ``renumbers_ports``: a driver release changed the numbers of link ports. ``retired_pages_limit``: the number of
    retired memory pages at which the vendor replaces a device that does not report its own limit.
    ``takes_in_turn``: while it loads, the driver binds one device after the other, and lists those that it has bound.
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
    drained_by: str | None = None
    undrain: str | None = None
    renumbers_ports: bool = False
    retired_pages_limit: int | None = None
    takes_in_turn: bool = False
    source: str = ""


@lru_cache(maxsize=1)
def vendors() -> tuple[Vendor, ...]:
    """Return the rows of reference/vendors.csv, in the order in which accelerators are searched for."""
    return load_table("vendors.csv", Vendor)


def vendor_of(name: str) -> Vendor:
    """Return the row of the vendor *name*, or an empty one where the table lacks it."""
    return _by_name().get(name) or Vendor(vendor=name)


@lru_cache(maxsize=1)
def _by_name() -> dict[str, Vendor]:
    return {row.vendor: row for row in vendors()}


def backend_names() -> tuple[str, ...]:
    """Return the backends that a configuration may name: the host, and each vendor with a backend."""
    return ("host", *(row.vendor for row in vendors() if row.backend))
