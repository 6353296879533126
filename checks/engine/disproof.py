"""Evidence other than good samples that ends an episode: a re-test, a replaced board, the end of a job. Pure.

reference/clearing.csv lists for each class which evidence counts.
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
"""Maximum number of digits of a process id (PID_MAX_LIMIT of the kernel), with a margin."""


class Holders(msgspec.Struct, frozen=True):
    """The process ids that had a device open at a time."""

    pids: frozenset[int]
    time: Instant


def holders_of(samples: Iterable[Sample]) -> dict[str, Holders]:
    """Return the processes that have each device open, from the readable *samples*."""
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
    """The evidence of one round besides findings.

    ``devices`` are present, ``remembered`` those known from before; ``moved`` are those whose slot changed; ``names``
    maps former ids (an address or another UUID) to present ones. ``processes`` are the processes on each device; absent
    for a device that could not be read. ``old_ports`` are, by device, ports that have other numbers from now on.
    ``exchanged`` are the proofs that remembered devices were replaced.
    """

    now: Instant
    devices: tuple[Device, ...] = ()
    remembered: tuple[Device, ...] = ()
    moved: frozenset[str] = frozenset()
    names: Mapping[str, str] = {}
    results: tuple[Result, ...] = ()
    processes: Mapping[str, Holders] = {}
    old_ports: frozenset[tuple[str, int | None]] = frozenset()
    exchanged: Mapping[str, str] = {}


def disproof(episode: Episode, evidence: Evidence, others: Iterable[Episode]) -> str | None:
    """Return the evidence other than good samples that ends *episode*, or None; *others* may contradict it."""
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
    """Return that a condition of a link continues, if it does, under the new port number of the driver."""
    key = episode.key
    is_old = key.part.kind is PartKind.LINK and (key.device, key.part.index) in evidence.old_ports
    return "its driver numbers this port differently" if is_old and row.good_samples is not None else None


def _retest(episode: Episode, row: ClearingRow, evidence: Evidence, others: Iterable[Episode]) -> str | None:
    """Return the proof of a passed re-test; a fault of the node needs all its accelerators, or processors.

    A load proves nothing about a device with another wrong result that stands: its passed results may be those of a
    probe that is too short to reproduce it.
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
    """Return the proof that the device was replaced, or None.

    Another serial in its slot is one if its own serial is nowhere; so are other boards after a boot (``exchanged``).
    A device whose slot changed replaced nothing: addresses change when a board drops out. Nor did a device of the same
    name that reports, or reported, its chip number (part of its UUID) as the serial, or one whose driver formats the
    serial differently.
    """
    devices = evidence.devices
    if episode.key.device in evidence.exchanged:
        return evidence.exchanged[episode.key.device]
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
