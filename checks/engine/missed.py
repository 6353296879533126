"""Siblings that prove the loss of a board by their links: the links that led to it are down. Pure.

A script that leaves a board out of its list is no witness. The siblings are: each reports its own links.
"""

from __future__ import annotations

from nodevet.checks.core.model import Device, DeviceKind, ReadingStatus

from .view import View

LINK_ACTIVE = "link_active"


def is_missed(view: View, board: Device) -> bool:
    """Return whether each present sibling of *board* has lost links, and all of them equally many.

    Only links that were up before count. Where the siblings report the peers of their links, only those to *board*.
    """
    siblings = [device for device in view.devices if _is_sibling(device, board)]
    lost = [_lost(view, sibling, board) for sibling in siblings]
    return bool(lost) and lost[0] > 0 and len({*lost}) == 1


def _is_sibling(device: Device, board: Device) -> bool:
    whole = device.kind is DeviceKind.ACCELERATOR and device.parent is None and device.id != board.id
    return whole and (device.backend, device.vendor, device.model) == (board.backend, board.vendor, board.model)


def _lost(view: View, sibling: Device, board: Device) -> int:
    """Return how many links of *sibling* went down that may have led to *board*."""
    seen = view.memory.seen.get(sibling.id)
    peers = {link.port: link.peer for link in sibling.links if link.peer is not None}
    return sum(
        reading.status is ReadingStatus.OK
        and not reading.value
        and seen is not None
        and reading.part.index in seen.links_up
        and peers.get(reading.part.index, board.id) in (board.id, board.pci)
        for reading, _ in view.readings(sibling.id, LINK_ACTIVE)
    )
