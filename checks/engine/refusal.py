"""Whether a driver that is there refuses every accelerator of the node, and does so in look after look. Pure.

One round of errors on every board proves nothing: a driver that is being reset or loaded says the same for a moment.
Each look that a driver answered with a refusal is counted, and a board that is read begins anew.
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
    {
        FailureKind.NO_DRIVER,
        FailureKind.NO_DEVICES,
        FailureKind.VERSION_MISMATCH,
        FailureKind.LOST,
        FailureKind.ERROR,
    }
)
"""What a driver itself says, where the failure is of it. A missing library, a permission that lacks and a fault of
ours are none."""

FALLS = frozenset({FailureKind.HUNG, FailureKind.STUCK, FailureKind.CRASHED})
"""What brings a reader down. The first time nothing is known, and it starts again within a second; whether it is the
driver's doing, and of which board, the check of readers says from witnesses. A refusal it is for a board that is left
alone for it, while the others are read."""

SPEAKING = frozenset({ReaderState.ABSENT, ReaderState.FAILED})
"""States of a reader that rest on what the driver said last."""


class RefusalRow(msgspec.Struct, frozen=True):
    """After how many looks in a row, and over how long, a driver counts as one that refuses."""

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
    """Return whether a driver that is there was asked, and gave not one accelerator of this boot: measured inability.

    Where that was *in one look* it may be nothing yet. The accelerators must be on the PCI bus in this boot, with a
    reader of their vendor that reads or tried to; those that are lent to virtual machines do not count. A backend that
    a site enabled by mistake proves nothing, and nor do fewer looks than the table asks for.

    A refusal that stands ends with a board that answers: what the machine lacks since, such as room on a disk that any
    user can fill, excuses none that was told before.
    """
    if snapshot.simulated or not snapshot.agent.ready or snapshot.agent.stopping:
        return False
    boards = boards_of(snapshot)
    return bool(boards) and all(_is_refused(snapshot, board, in_one_look) for board in boards)


def _is_refused(snapshot: Snapshot, board: Device, in_one_look: bool) -> bool:
    stands = _stands(_kept(snapshot, board))
    return (in_one_look or stands) and _evidence(snapshot, board, stands=stands) is not None


def counted(snapshot: Snapshot) -> dict[str, Refusal]:
    """Return the refusals in a row of each board; those that *snapshot* has are of the rounds before it.

    A round in which nothing was asked of a board, such as while its reader starts, changes nothing.
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
    """Return the accelerators of the PCI bus that are here in this boot, but those that are lent.

    A board is here that was looked at. While its reader does not run, one that is only remembered is here too where
    the bus shows its address, or where an agent of this boot saw its driver refuse it: an agent that is started amid
    a refusal gets no list, and nothing was read since.
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
    """Return whether *board*, of which no reader of this agent has told, is known to be here in this boot."""
    reader = _reader(snapshot, board)
    if reader is None or reader.state is ReaderState.RUNNING:  # one that runs without it is judged as missing
        return False
    return page_of(board, snapshot.on_bus) is not None or _kept(snapshot, board) is not None


def _reader(snapshot: Snapshot, board: Device) -> ReaderStatus | None:
    return next((entry for entry in snapshot.readers if entry.backend == board.vendor), None)


def _kept(snapshot: Snapshot, board: Device) -> Refusal | None:
    """Return the refusals of *board* in a row, where an agent of this boot counted them."""
    refusal = snapshot.refusals.get(board.id)
    return refusal if refusal is not None and refusal.last.boot_id == snapshot.time.boot_id else None


def _stands(refusal: Refusal | None) -> bool:
    """Return whether *refusal* was seen as often, and for as long, as the table asks for."""
    if refusal is None:
        return False
    seconds, row = refusal.last.seconds_since(refusal.since), refusal_row()
    return refusal.looks >= row.looks and seconds is not None and seconds >= row.seconds


def _evidence(snapshot: Snapshot, board: Device, *, stands: bool = False) -> str | None:
    """Return what tells this look at *board* from the one before; None where it shows no refusal by its driver.

    Of one that *stands* the failure need not be the driver's own any more.
    """
    reader = _reader(snapshot, board)
    if reader is None or board.backend not in ("host", board.vendor):  # a command of the site reads it by other means
        return None
    kept = _kept(snapshot, board)
    if reader.state is ReaderState.STARTING and kept is not None:  # nobody was asked since
        return kept.evidence
    if reader.state is not ReaderState.RUNNING:
        is_said = reader.state in SPEAKING and _refuses(reader.failure, REFUSALS, stands=stands)
        return f"start {reader.refusals} of {snapshot.agent.started.boottime_ns}" if is_said else None
    samples = _samples(snapshot, board)
    if board.backend == "host":  # its driver answers, and not for this one, or was told to leave it alone
        if board.pci in reader.quarantined and not reader.blamed.get(board.pci):
            return None
    else:
        words = REFUSALS | FALLS if board.id in reader.quarantined else REFUSALS
        if not all(_refuses(sample.failure, words, stands=stands) for sample in samples):
            return None
    return f"sample {max((sample.time.boottime_ns for sample in samples), default=0)}"


def _refuses(failure: Failure | None, words: frozenset[FailureKind], *, stands: bool) -> bool:
    """Return whether *failure* is one of *words*, and the driver's own where no refusal *stands*."""
    return failure is not None and failure.kind in words and (failure.of_driver or stands)


def _answers(snapshot: Snapshot, board: Device) -> bool:
    """Return whether *board* was read when it was last asked for a group."""
    newest = max(_samples(snapshot, board), key=lambda sample: sample.time.boottime_ns, default=None)
    return board.backend != "host" and newest is not None and newest.failure is None


def _samples(snapshot: Snapshot, board: Device) -> list[Sample]:
    return [sample for sample in snapshot.samples if sample.device == board.id]
