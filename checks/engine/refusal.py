"""Whether a loaded driver refuses every accelerator of the node in consecutive rounds. Pure.

One round of errors on every board proves nothing: a driver that is being reset or loaded does the same for a moment.
Each refusal by the driver is counted, and a successful read resets the count of its board.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from nodevet.checks.core.model import (
    Device,
    DeviceKind,
    Failure,
    FailureKind,
    ReaderState,
    ReaderStatus,
    Refusal,
    Sample,
    Snapshot,
)
from nodevet.checks.reference.tables import load_table
from nodevet.checks.reference.vendors import LENT_DRIVERS

from .arriving import page_of

REFUSALS = frozenset(
    {FailureKind.NO_DRIVER, FailureKind.NO_DEVICES, FailureKind.VERSION_MISMATCH, FailureKind.LOST, FailureKind.ERROR}
)
"""Failures that a driver itself reports: no missing library, no missing permission and no bug of nodevet."""

FALLS = frozenset({FailureKind.HUNG, FailureKind.STUCK, FailureKind.CRASHED})
"""Failures that end a reader. The first one proves nothing, and the reader restarts within a second; the check of
readers decides whether the driver and which board is the cause. It is a refusal of a board that is quarantined for it
while the others are read.
"""

SPEAKING = frozenset({ReaderState.ABSENT, ReaderState.FAILED})
"""States of a reader that are based on the driver's last answer."""


class RefusalRow(msgspec.Struct, frozen=True):
    """The number of consecutive rounds, and the time, after which a driver counts as refusing."""

    looks: int
    seconds: float
    meaning: str
    source: str


@lru_cache(maxsize=1)
def refusal_row() -> RefusalRow:
    """Return the row of reference/refusals.csv."""
    row: RefusalRow = load_table("refusals.csv", RefusalRow)[0]
    return row


def driver_refuses_all(snapshot: Snapshot, *, in_one_look: bool = False) -> bool:
    """Return whether a loaded driver was called and gave access to no accelerator of this boot: measured inability.

    With *in_one_look* one round is enough, which may be temporary. The accelerators must be on the PCI bus in this
    boot, with a reader of their vendor that reads or tried to; those passed through to virtual machines do not count. A
    backend that a site enabled by mistake proves nothing, nor do fewer rounds than the table requires.

    A refusal that counts ends when a board answers: a later shortage of the machine, such as a full disk that any user
    can cause, excuses no earlier refusal.
    """
    if snapshot.simulated or not snapshot.agent.ready or snapshot.agent.stopping:
        return False
    boards = boards_of(snapshot)
    return bool(boards) and all(_is_refused(snapshot, board, in_one_look) for board in boards)


def _is_refused(snapshot: Snapshot, board: Device, in_one_look: bool) -> bool:
    stands = _stands(_kept(snapshot, board))
    return (in_one_look or stands) and _evidence(snapshot, board, stands=stands) is not None


def counted(snapshot: Snapshot) -> dict[str, Refusal]:
    """Return the consecutive refusals of each board; those in *snapshot* are of the rounds before it.

    A round in which a board was not read, such as while its reader starts, changes nothing.
    """
    found = dict(snapshot.refusals)
    for board in boards_of(snapshot):
        evidence, known = _evidence(snapshot, board), _kept(snapshot, board)
        if evidence is None:
            if _answers(snapshot, board):
                found.pop(board.id, None)
        elif known is None:
            found[board.id] = Refusal(looks=1, since=snapshot.time, last=snapshot.time, evidence=evidence)
        elif known.evidence != evidence and not _stands(known):
            found[board.id] = msgspec.structs.replace(
                known, looks=known.looks + 1, last=snapshot.time, evidence=evidence
            )
    return found


def boards_of(snapshot: Snapshot) -> tuple[Device, ...]:
    """Return the accelerators of the PCI bus that are present in this boot, except those passed through.

    A board is present if it was read. While its reader does not run, a remembered board is present if the bus lists its
    address, or if an agent of this boot saw its driver refuse it: an agent that starts during a refusal gets no list,
    and nothing was read since.
    """
    here = {sample.device for sample in snapshot.samples if sample.time.boot_id == snapshot.time.boot_id}
    return tuple(
        device
        for device in snapshot.devices
        if device.kind is DeviceKind.ACCELERATOR
        and device.pci is not None
        and not _is_lent(snapshot, device)
        and (device.id in here or _is_remembered_here(snapshot, device))
    )


def _is_lent(snapshot: Snapshot, board: Device) -> bool:
    page = board if board.backend == "host" else page_of(board, snapshot.on_bus)
    return page is not None and page.driver in LENT_DRIVERS


def _is_remembered_here(snapshot: Snapshot, board: Device) -> bool:
    """Return whether *board*, which no reader of this agent has listed, is known to be present in this boot."""
    reader = _reader(snapshot, board)
    if reader is None or reader.state is ReaderState.RUNNING:  # one that runs without it is judged as missing
        return False
    return page_of(board, snapshot.on_bus) is not None or _kept(snapshot, board) is not None


def _reader(snapshot: Snapshot, board: Device) -> ReaderStatus | None:
    return next((entry for entry in snapshot.readers if entry.backend == board.vendor), None)


def _kept(snapshot: Snapshot, board: Device) -> Refusal | None:
    """Return the consecutive refusals of *board* if an agent of this boot counted them."""
    refusal = snapshot.refusals.get(board.id)
    return refusal if refusal is not None and refusal.last.boot_id == snapshot.time.boot_id else None


def _stands(refusal: Refusal | None) -> bool:
    """Return whether *refusal* was seen as often, and for as long, as the table requires."""
    if refusal is None:
        return False
    seconds, row = refusal.last.seconds_since(refusal.since), refusal_row()
    return refusal.looks >= row.looks and seconds is not None and seconds >= row.seconds


def _evidence(snapshot: Snapshot, board: Device, *, stands: bool = False) -> str | None:
    """Return an identifier of this observation of *board*; None if it shows no refusal by its driver.

    Once a refusal *stands*, the failure need not come from the driver itself any more.
    """
    reader = _reader(snapshot, board)
    if reader is None or board.backend not in ("host", board.vendor):  # a command of the site reads it by other means
        return None
    kept = _kept(snapshot, board)
    if reader.state is ReaderState.STARTING and kept is not None:  # it was not read since
        return kept.evidence
    if reader.state is not ReaderState.RUNNING:
        is_said = reader.state in SPEAKING and _refuses(reader.failure, REFUSALS, stands=stands)
        return f"start {reader.refusals} of {snapshot.agent.started.boottime_ns}" if is_said else None
    samples = _samples(snapshot, board)
    if board.backend == "host":  # its driver answers, but not for this board, or the board is quarantined
        if board.pci in reader.quarantined and not reader.blamed.get(board.pci):
            return None
    else:
        words = REFUSALS | FALLS if board.id in reader.quarantined else REFUSALS
        if not all(_refuses(sample.failure, words, stands=stands) for sample in samples):
            return None
    return f"sample {max((sample.time.boottime_ns for sample in samples), default=0)}"


def _refuses(failure: Failure | None, words: frozenset[FailureKind], *, stands: bool) -> bool:
    """Return whether *failure* is one of *words*, and, unless a refusal *stands*, comes from the driver itself."""
    return failure is not None and failure.kind in words and (failure.of_driver or stands)


def _answers(snapshot: Snapshot, board: Device) -> bool:
    """Return whether the last read of *board* succeeded."""
    newest = max(_samples(snapshot, board), key=lambda sample: sample.time.boottime_ns, default=None)
    return board.backend != "host" and newest is not None and newest.failure is None


def _samples(snapshot: Snapshot, board: Device) -> list[Sample]:
    return [sample for sample in snapshot.samples if sample.device == board.id]
