"""Boards that their driver does not list to this node's readers although they are not lost, with the reason.

A cgroup denies them, a driver option excludes them, an administrator drained them by the driver's own command, or the
container of the readers was given others.
"""

from __future__ import annotations

from nodevet.checks.core.model import Device, DeviceKind
from nodevet.checks.reference.vendors import vendor_of

from .arriving import places_of
from .view import Seen, View


def withheld(view: View) -> tuple[str, ...]:
    """Return the addresses of the boards that the cgroup denies to the readers."""
    node = _node(view)
    return node.withheld if node else ()


def excluded(view: View) -> tuple[str, ...]:
    """Return the addresses of the boards that a driver option excludes from use."""
    node = _node(view)
    return node.excluded if node else ()


def unread_pages(view: View) -> tuple[str, ...]:
    """Return the addresses of the boards whose driver page could not be read, so that an exclusion is unknown."""
    node = _node(view)
    return node.unread_pages if node else ()


def not_given(view: View) -> tuple[str, ...]:
    """Return the addresses of the boards that the container of the readers was not given, while it got others."""
    node = _node(view)
    return node.not_given if node else ()


def why_unlisted(view: View, device: Device) -> str:
    """Return why *device*, once listed, is not listed although it did not fail; empty if no reason is known."""
    places = places_of(device)
    if places & {*withheld(view)}:
        return "denied to this process by its cgroup, as in a job"
    if places & {*excluded(view)}:
        return "not listed, because an option of its driver excludes it"
    if places & {board.pci for board in view.drained}:
        return f"not listed, because {drained_by(device)} took it out of service"
    return ""


def of_removed_sources(view: View) -> dict[str, str]:
    """Return the backend of each device that nothing reads, because its backend is no longer in the configuration.

    A finding of the node reports them. Without collectors, nothing is known of the configuration.
    """
    sources = {reader.backend for reader in view.readers}
    if not sources:
        return {}
    present = {device.id for device in view.devices}
    return {
        key: entry.device.backend
        for key, entry in view.memory.seen.items()
        if key not in present and entry.device.backend not in sources
    }


def out_of_service(view: View) -> dict[str, str]:
    """Return, by device id, why a remembered board is not listed that an administrator took out of service.

    A finding of the node reports it, and nothing can be measured on the board itself.
    """
    places = {*excluded(view), *(board.pci for board in view.drained)}
    remembered = (seen.device for seen in view.memory.seen.values())
    found = {device.id: why_unlisted(view, device) for device in remembered if places_of(device) & places}
    return {
        device: f"not read: {source} is not configured" for device, source in of_removed_sources(view).items()
    } | found


def drained_by(board: Device) -> str:
    """Return the command by which a person took *board* out of service."""
    return vendor_of(board.vendor).drained_by or "a command of its driver"


def was_given_elsewhere(view: View, seen: Seen) -> bool:
    """Return whether the *seen* board is not given now, and may have been given to another container.

    A board that was read in this boot was given to this container, and disappeared since.
    """
    return bool(places_of(seen.device) & {*not_given(view)}) and seen.last.boot_id != view.now.boot_id


def _node(view: View) -> Device | None:
    return next(iter(view.of_kind(DeviceKind.NODE)), None)
