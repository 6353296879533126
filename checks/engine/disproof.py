"""What ends an episode besides good looks at it: a re-test, another board, the end of its job. Pure.

reference/clearing.csv says for each class which of them counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from nodevet.checks.core.model import (
    NODE,
    Device,
    DeviceKind,
    Episode,
    EpisodeState,
    Instant,
    PartKind,
    Result,
    Sample,
    compared_serial,
)

from .retest import ClearingRow, clearing_table, is_later, retest_proof, stands_wrong

LONGEST_PROCESS_ID = 10
"""Digits of the largest process id, PID_MAX_LIMIT of the kernel, with room."""


class Holders(msgspec.Struct, frozen=True):
    """The process ids that held a device at a moment."""

    pids: frozenset[int]
    time: Instant


def holders_of(samples: Iterable[Sample]) -> dict[str, Holders]:
    """Return the processes that hold each device, as the *samples* that could be read report them."""
    return {
        sample.device: Holders(
            frozenset(int(pid) for pid in reading.value.split(",") if _is_process_id(pid)), sample.time
        )
        for sample in samples
        if sample.failure is None
        for reading in sample.readings
        if reading.quantity == "compute_process_ids" and isinstance(reading.value, str)
    }


def _is_process_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= LONGEST_PROCESS_ID


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one round saw besides findings.

    ``devices`` are present, ``remembered`` those known from before; ``moved`` names those that sat in another slot
    before; ``names`` gives their ids to those that were known by address alone, or by another UUID, until now.
    ``processes`` tell who held each device; one that could not be asked is absent. ``old_ports`` are those, by device,
    that have but other numbers from now on.
    """

    now: Instant
    devices: tuple[Device, ...] = ()
    remembered: tuple[Device, ...] = ()
    moved: frozenset[str] = frozenset()
    names: Mapping[str, str] = {}
    results: tuple[Result, ...] = ()
    processes: Mapping[str, Holders] = {}
    old_ports: frozenset[tuple[str, int | None]] = frozenset()


def disproof(episode: Episode, evidence: Evidence, others: Iterable[Episode]) -> str | None:
    """Return what ends *episode* besides good samples, or None; *others* may stand against it."""
    if episode.state not in (EpisodeState.OPEN, EpisodeState.ACKNOWLEDGED):
        return None
    row = clearing_table()[episode.finding.clearing]
    return (
        _under_another_number(episode, row, evidence)
        or (row.passed_retest and _retest(episode, row, evidence, others))
        or (row.other_serial and other_serial(episode, evidence))
        or (row.job_ended and _job_ended(episode, evidence))
        or None
    )


def _under_another_number(episode: Episode, row: ClearingRow, evidence: Evidence) -> str | None:
    """Return that a condition of a link goes on, if it does, under the number that the driver gives its port now."""
    key = episode.key
    is_old = key.part.kind is PartKind.LINK and (key.device, key.part.index) in evidence.old_ports
    return "its driver numbers this port differently" if is_old and row.good_samples is not None else None


def _retest(episode: Episode, row: ClearingRow, evidence: Evidence, others: Iterable[Episode]) -> str | None:
    """Return the proof of a passed re-test; a fault of the node is disproved by all its accelerators, or processors.

    A load proves nothing of a device that was wrong in another one which nothing has disproved: its results may be
    those of a probe that is too short to show it again.
    """
    tested: tuple[str, ...] = (episode.key.device,)
    if episode.key.device == NODE:
        by_kind = {kind: tuple(d.id for d in evidence.devices if d.kind is kind) for kind in DeviceKind}
        tested = by_kind[DeviceKind.ACCELERATOR] or by_kind[DeviceKind.CPU]
    proofs = [retest_proof(device, episode, row, evidence.results, evidence.now) for device in tested]
    if not proofs or not all(proofs) or any(stands_wrong(other, episode, tested) for other in others):
        return None
    return proofs[0]


def other_serial(episode: Episode, evidence: Evidence) -> str | None:
    """Return the proof that the device was replaced: another serial where it sat, and its own nowhere.

    A device that sat in another slot before replaced nothing: addresses change when a board falls out. Nor did one
    of the same name that tells the number of its chip, which is its UUID's, in the place of its serial, or did before.
    Nor did one whose serial its driver writes another way.
    """
    devices = evidence.devices
    serial = compared_serial(episode.serial)
    if serial is None or not episode.pci or any(compared_serial(device.serial) == serial for device in devices):
        return None
    for device in devices:
        is_itself = device.id == episode.key.device and device.is_chip_number(device.serial, episode.serial)
        sits_there = device.pci == episode.pci and device.id not in evidence.moved
        if sits_there and compared_serial(device.serial) is not None and not is_itself:
            return f"replaced: serial {device.serial} where {episode.serial} was"
    return None


def _job_ended(episode: Episode, evidence: Evidence) -> str | None:
    if episode.last_seen.boot_id != evidence.now.boot_id:
        return "its process ended with the boot"
    holders = evidence.processes.get(episode.key.device)
    if holders is None or not is_later(holders.time, episode.last_seen):
        return None
    pid = episode.finding.pid
    if pid is None:
        return None if holders.pids else "no process uses the device"
    return None if pid in holders.pids else f"process {pid} ended"
