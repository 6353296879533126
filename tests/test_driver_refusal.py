"""A driver that refuses every accelerator while the agent lives is told apart from ignorance, and asks for a permit."""

from __future__ import annotations

import msgspec
import pytest
from fakes.views import at, gpu, reader, sample

from nodevet.agent.engine import Armed, Engine
from nodevet.checks.model import (
    AgentInfo,
    Device,
    DeviceKind,
    Failure,
    FailureKind,
    Mode,
    Modes,
    ReaderState,
    ReaderStatus,
    Sample,
    Snapshot,
    State,
)
from nodevet.checks.modes import FALLS, REFUSALS, closing, driver_refuses_all, gating, reach
from nodevet.checks.registry import discover
from nodevet.checks.scheduler import Permit
from nodevet.exporters.state_reader import StateFile, parse
from nodevet.exporters.statefile import state_text

PCI = ("0000:1b:00.0", "0000:2b:00.0")


def board(pci: str, driver: str | None = "nvidia") -> Device:
    """Return an accelerator as the PCI bus alone shows it."""
    return Device(
        id=f"pci-{pci}",
        kind=DeviceKind.ACCELERATOR,
        vendor="nvidia",
        model="PCI device 10de:2330",
        backend="host",
        pci=pci,
        driver=driver,
    )


def judged(
    devices: tuple[Device, ...], samples: tuple[Sample, ...], nvidia: ReaderStatus | None, **changes: object
) -> Snapshot:
    """Return what the engine says of these devices, samples and readers."""
    modes = changes.pop("modes", Modes())
    assert isinstance(modes, Modes)
    engine = Engine(
        tuple(Armed(check, check.policy()) for check in discover()), node="n", clock=lambda: at(1), modes=modes
    )
    readers = (reader("host"), *((nvidia,) if nvidia else ()))
    for name in ("host", "nvidia"):
        engine.take_devices(name, [device for device in devices if device.backend == name])
    for entry in samples:
        engine.take_sample(entry)
    engine.take_readers(readers)
    info = AgentInfo(version="0", started=at(), interval_seconds=10, ready=True)
    return engine.evaluate(msgspec.structs.replace(info, **changes)).snapshot


def unread(*kinds: FailureKind | None, state: ReaderState = ReaderState.RUNNING, **changes: object) -> Snapshot:
    """Return a node whose accelerators each failed with a kind, or were read (None)."""
    devices = tuple(gpu(f"GPU-{n}", PCI[n]) for n in range(len(kinds)))
    samples = tuple(
        sample(device, {}, failure=Failure(kind, "for a test") if kind else None)
        for device, kind in zip(devices, kinds, strict=True)
    )
    return judged(devices, samples, reader("nvidia", state), **changes)


def refused_at_load(
    kind: FailureKind, state: ReaderState, driver: str | None = "nvidia", **changes: object
) -> Snapshot:
    """Return a node whose boards stand on the PCI bus while their library said *kind* to its reader."""
    boards = tuple(board(pci, driver) for pci in PCI)
    samples = tuple(sample(entry, {}) for entry in boards)
    status = reader("nvidia", state, failure=Failure(kind, "for a test"), detail="for a test", last_round=None)
    return judged(boards, samples, status, **changes)


HELD = Permit(held=True)
UNREAD = (FailureKind.ERROR, FailureKind.NO_DRIVER, FailureKind.VERSION_MISMATCH)


@pytest.mark.parametrize("kind", UNREAD)
def test_every_accelerator_unread_is_a_refusal_and_needs_a_permit(kind: FailureKind) -> None:
    """Without the permit it is told, with it the gate may close; what is known of the host stays as it is."""
    for permit, word in ((Permit(), "unpermitted"), (HELD, "refused")):
        snapshot = unread(kind, kind, permit=permit)
        assert snapshot.verdict.state is State.UNKNOWN
        assert driver_refuses_all(snapshot)
        assert reach(snapshot, snapshot.verdict) == word
        assert gating(snapshot)
        assert bool(closing(snapshot)) is (word == "refused")
        state = parse(state_text(snapshot, ttl_seconds=35))
        assert isinstance(state, StateFile)
        assert (state.state, state.reach, state.hard) == ("unknown", word, False)
        assert {device.reach for device in state.devices if device.kind == "accelerator"} == {word}


@pytest.mark.parametrize("kind", UNREAD)
def test_one_accelerator_that_answers_is_no_refusal(kind: FailureKind) -> None:
    """The others are unread, which closes nothing of itself."""
    snapshot = unread(kind, None, permit=HELD)
    assert not driver_refuses_all(snapshot)
    assert reach(snapshot, snapshot.verdict) == "soft"


@pytest.mark.parametrize("kind", sorted(set(FailureKind) - REFUSALS))
def test_what_is_not_the_drivers_word_is_no_refusal(kind: FailureKind) -> None:
    """A bug of ours, a missing library and a permission that lacks close no gate, on no node of the cluster."""
    for snapshot in (unread(kind, kind, permit=HELD), refused_at_load(kind, ReaderState.FAILED, permit=HELD)):
        assert not driver_refuses_all(snapshot)
        assert reach(snapshot, snapshot.verdict) != "refused"


@pytest.mark.parametrize("kind", sorted(FALLS))
@pytest.mark.parametrize("state", [ReaderState.RUNNING, ReaderState.CRASHED, ReaderState.HUNG])
def test_a_reader_that_fell_is_no_refusal_and_a_board_that_is_left_alone_is(
    kind: FailureKind, state: ReaderState
) -> None:
    """One crash leaves every board unread for a second: no gate may close in it, whoever crashed."""
    fell = Failure(kind, "for a test")
    devices = tuple(gpu(f"GPU-{n}", pci) for n, pci in enumerate(PCI))
    samples = tuple(sample(device, {}, failure=fell) for device in devices)
    status = reader("nvidia", state, failure=None if state is ReaderState.RUNNING else fell, detail="for a test")
    snapshot = judged(devices, samples, status, permit=HELD)
    assert not driver_refuses_all(snapshot)
    assert "refused" not in {reach(snapshot, verdict) for verdict in snapshot.device_verdicts.values()}

    alone = msgspec.structs.replace(
        status, state=ReaderState.RUNNING, failure=None, quarantined=tuple(device.id for device in devices)
    )
    assert driver_refuses_all(judged(devices, samples, alone, permit=HELD))


@pytest.mark.parametrize("state", [ReaderState.RELEASED, ReaderState.STOPPED, ReaderState.STARTING])
def test_a_reader_that_does_not_ask_proves_nothing(state: ReaderState) -> None:
    """Released devices are not refused ones, nor are those that were never asked for yet."""
    assert not driver_refuses_all(refused_at_load(FailureKind.NO_DRIVER, state))


@pytest.mark.parametrize("kind", [FailureKind.NO_DRIVER, FailureKind.NO_DEVICES, FailureKind.VERSION_MISMATCH])
@pytest.mark.parametrize("state", [ReaderState.FAILED, ReaderState.ABSENT])
def test_boards_whose_driver_says_no_are_refused(kind: FailureKind, state: ReaderState) -> None:
    """They are on the PCI bus in this boot, and the driver names its reason."""
    assert driver_refuses_all(refused_at_load(kind, state))


def test_a_backend_that_was_enabled_on_a_node_without_boards_is_no_refusal() -> None:
    """A wrong configuration is pushed to every node at once: without a board on the bus it proves nothing."""
    status = reader("nvidia", ReaderState.FAILED, failure=Failure(FailureKind.NO_DRIVER, "x"), required=True)
    snapshot = judged((), (), status, permit=HELD)
    assert not driver_refuses_all(snapshot)
    assert reach(snapshot, snapshot.verdict) == "soft"


def test_boards_of_another_boot_and_boards_that_are_lent_are_no_refusal() -> None:
    """What is remembered is not on the bus now, and a virtual machine has the driver of what it was lent."""
    assert not driver_refuses_all(refused_at_load(FailureKind.NO_DRIVER, ReaderState.FAILED, "vfio-pci"))
    snapshot = unread(FailureKind.ERROR, FailureKind.ERROR)
    old = tuple(
        msgspec.structs.replace(entry, time=msgspec.structs.replace(entry.time, boot_id="another"))
        for entry in snapshot.samples
    )
    assert not driver_refuses_all(msgspec.structs.replace(snapshot, samples=old))


def test_boards_that_nothing_reads_are_no_refusal() -> None:
    """Nobody asked their driver."""
    boards = tuple(board(pci) for pci in PCI)
    assert not driver_refuses_all(judged(boards, tuple(sample(entry, {}) for entry in boards), None))


def test_observing_simulated_starting_and_stopping_agents_refuse_nothing() -> None:
    """A refusal is a fault like another under the site's mode, and never one of a node that does not exist."""
    snapshot = unread(FailureKind.ERROR, FailureKind.ERROR, permit=HELD, modes=Modes(Mode.OBSERVE))
    assert reach(snapshot, snapshot.verdict) == "soft"
    snapshot = unread(FailureKind.ERROR, FailureKind.ERROR, permit=HELD)
    assert not driver_refuses_all(msgspec.structs.replace(snapshot, simulated=True))
    for changes in ({"ready": False}, {"stopping": True}):
        agent = msgspec.structs.replace(snapshot.agent, **changes)
        assert not driver_refuses_all(msgspec.structs.replace(snapshot, agent=agent))
