"""A driver that refuses every accelerator is remembered over the agent's restart, and found anew after a reboot."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from fakes.views import BOOT, at, bare_board, gpu, reader, sample

from nodevet.checks.core.model import (
    AgentInfo,
    Device,
    Failure,
    FailureKind,
    Modes,
    ReaderState,
    ReaderStatus,
    Sample,
    Snapshot,
)
from nodevet.checks.core.scheduler import Permit
from nodevet.checks.engine.engine import ConfiguredCheck, Engine
from nodevet.checks.engine.modes import reach
from nodevet.checks.engine.refusal import REFUSALS, boards_of, refusal_row
from nodevet.checks.engine.registry import discover

PCI = ("0000:1b:00.0", "0000:2b:00.0")
VENDORS = ("nvidia", "amd")
INIT = Failure(FailureKind.ERROR, "nvmlInit: unknown error (NVML code 999)", of_driver=True)
LOOKS, SECONDS = refusal_row().looks, refusal_row().seconds


class Node:
    """A node of two boards of one vendor whose agent is started again, in the same boot or in another."""

    def __init__(self, vendor: str = "nvidia", *, bus: bool = True) -> None:
        """Begin with a first agent; where *bus* the host lists what its PCI bus shows."""
        self.vendor, self.boot, self.seconds, self.bus, self.bound_to = vendor, BOOT, 0.0, bus, vendor
        self.boards = tuple(
            msgspec.structs.replace(gpu(f"GPU-{number}", pci), vendor=vendor, backend=vendor)
            for number, pci in enumerate(PCI)
        )
        self.engine = self._engine()
        self._started = self._starts = 0.0

    def _engine(self) -> Engine:
        return Engine(
            tuple(ConfiguredCheck(check, check.policy()) for check in discover()),
            node="n",
            clock=lambda: at(self.seconds, self.boot),
            modes=Modes(),
        )

    def restart(self, boot: str = BOOT) -> None:
        """Let another agent go on with what this one kept."""
        memory, self.boot = self.engine.memory(), boot
        self.seconds += 1.0
        self._started, self._starts = self.seconds, 0.0
        self.engine = self._engine()
        self.engine.restore(memory)

    def look(self, listed: Failure | str | None = "read", *, state: ReaderState = ReaderState.FAILED) -> str:
        """Judge what a reader says that read every board, failed over each, or (a failure) could not list any."""
        self._starts += 1
        status = reader(self.vendor, last_round=at(self.seconds, self.boot))
        if isinstance(listed, Failure):
            status = reader(self.vendor, state, failure=listed, refusals=int(self._starts), last_round=None)
        elif listed is None:
            status = reader(self.vendor, state, last_round=None)
        else:
            self._read(None if listed == "read" else INIT)
        return self.judge(status)

    def _read(self, failure: Failure | None) -> None:
        self.engine.take_devices(self.vendor, self.boards)
        for board in self.boards:
            self._take(sample(board, {}, failure=failure))

    def _take(self, taken: Sample) -> None:
        self.engine.take_sample(msgspec.structs.replace(taken, time=at(self.seconds, self.boot)))

    def judge(self, status: ReaderStatus) -> str:
        """Return what the node's verdict rests on, and let the time of a look pass."""
        if self.bus:
            pages = tuple(self.page(pci) for pci in PCI)
            self.engine.take_devices("host", pages)
            for page in pages:
                self._take(sample(page, {}))
        self.engine.take_readers((reader("host"), status))
        started = at(self._started, self.boot)
        info = AgentInfo(version="0", started=started, interval_seconds=10, ready=True, permit=Permit(held=True))
        self.snapshot: Snapshot = self.engine.evaluate(info).snapshot
        self.seconds += SECONDS / (LOOKS - 1)
        return reach(self.snapshot, self.snapshot.verdict)

    def page(self, pci: str) -> Device:
        """Return what the PCI bus shows of a board."""
        return msgspec.structs.replace(bare_board(pci, self.bound_to), vendor=self.vendor)

    def refuse(self, listed: Failure | str = "refused") -> list[str]:
        """Look as often as the table asks for."""
        return [self.look(listed) for _ in range(LOOKS)]


def refused_after_all() -> list[str]:
    """Return what the looks that the table asks for rest on, one after the other."""
    return ["unpermitted"] * (LOOKS - 1) + ["refused"]


def names(devices: Iterable[Device]) -> list[str]:
    """Return the ids of *devices*."""
    return [device.id for device in devices]


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize("bus", [True, False])
@pytest.mark.parametrize("kind", sorted(REFUSALS - {FailureKind.LOST}))
def test_a_refusal_stands_over_the_restart_of_the_agent_until_a_board_answers(
    vendor: str, bus: bool, kind: FailureKind
) -> None:
    """The new agent gets no list at all: its boards are those that an agent of this boot saw refused."""
    node = Node(vendor, bus=bus)
    node.look()
    assert node.refuse() == refused_after_all()
    for _ in range(3):
        node.restart()
        said = node.look(msgspec.structs.replace(INIT, kind=kind))
        # What has a finding of its own, such as a driver that is not loaded, is judged by it where a board is shown.
        own = {entry.code for entry in node.snapshot.findings if entry.outcome == "fail" and entry.gates}
        assert said == ("hard" if own else "refused"), own
    if kind is FailureKind.ERROR:
        assert node.look() == "soft"
        assert node.snapshot.refusals == {}


@pytest.mark.parametrize("state", [ReaderState.STARTING, ReaderState.RELEASED, ReaderState.STOPPED])
def test_a_start_that_has_not_answered_leaves_a_refusal_as_it_was(state: ReaderState) -> None:
    """Nobody was asked: what stood stands. Devices that were given away are not refused."""
    node = Node()
    node.look()
    node.refuse()
    node.restart()
    assert node.look(None, state=state) == ("refused" if state is ReaderState.STARTING else "soft")
    node.restart()
    assert node.look(INIT) == "refused"


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_driver_that_refuses_all_after_a_reboot_is_found_by_the_addresses_of_the_boards(vendor: str) -> None:
    """They are remembered by their names, and the bus shows them: nothing was read of them in this boot."""
    node = Node(vendor)
    node.look()
    node.restart("another boot")
    assert node.refuse(INIT) == refused_after_all()
    assert names(boards_of(node.snapshot)) == names(node.boards)
    node.restart("another boot")
    assert node.look(INIT) == "refused"
    node.restart("a third boot")
    assert node.refuse(INIT) == refused_after_all()


def test_looks_of_two_agents_are_two_looks() -> None:
    """Each agent counts the starts of its readers from one."""
    node = Node()
    node.look()
    reached = []
    for _ in range(LOOKS):
        node.restart()
        reached.append(node.look(INIT))
    assert reached == refused_after_all()


def test_boards_that_are_only_remembered_are_refused_by_nobody() -> None:
    """Of another boot, not on the bus, lent to a guest, or not listed by a reader that runs: no gate closes for it."""
    node = Node(bus=False)
    node.look()
    node.restart("another boot")
    assert set(node.refuse(INIT)) == {"soft"}

    lent = Node()
    lent.look()
    lent.refuse()
    lent.restart()
    lent.bound_to = "vfio-pci"
    assert lent.look(INIT) == "soft"

    running = Node(bus=False)
    running.look()
    running.refuse()
    running.restart()
    running.judge(reader("nvidia"))
    assert boards_of(running.snapshot) == ()


@pytest.mark.parametrize("vendor", VENDORS)
def test_boards_that_are_lent_while_the_agent_lives_are_refused_by_nobody(vendor: str) -> None:
    """Its reader knows them yet, so that their names hid from the agent which driver the bus shows now."""
    node = Node(vendor)
    node.look()
    node.bound_to = "vfio-pci"
    assert set(node.refuse(msgspec.structs.replace(INIT, kind=FailureKind.NO_DEVICES))) == {"soft"}
    assert boards_of(node.snapshot) == ()
