"""What becomes of boards over boots, losses, moves, renamed sources and other hardware: random courses of a node.

The model knows which boards there are and what each source tells of them; the engine knows only the lists. Nothing
here starts a process.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
from fakes.views import GPU_READINGS, controller, gpu, reader, sample
from hypothesis import HealthCheck, Phase, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nodevet.checks.core.model import (
    AgentInfo,
    Device,
    DeviceKind,
    EpisodeState,
    Failure,
    FailureKind,
    Instant,
    Outcome,
    Part,
    PartKind,
    ReaderState,
    Reading,
    Sample,
    Snapshot,
    State,
)
from nodevet.checks.engine.engine import ConfiguredCheck, Engine
from nodevet.checks.engine.registry import discover
from nodevet.checks.engine.view import Cadence
from nodevet.checks.reference.vendors import vendor_of

CHECKS = tuple(
    ConfiguredCheck(entry, entry.policy()) for entry in discover() if entry.name in ("inventory", "freshness")
)
AGENT = AgentInfo(version="0", started=Instant("boot-0", 0, 0.0), interval_seconds=10)
QUIET_ROUNDS = 4
LATE_SECONDS = 1000.0
"""The seconds after a boot at which every driver has loaded."""

READINGS = sample(gpu(), GPU_READINGS).readings

KINDS = ("nvidia", "nvidia split", "amd", "amd split", "serials", "addresses", "names")
"""Boards of a vendor's backend, whole or split, and those of a command: with serials, with addresses, with names."""


class Board(msgspec.Struct):
    """A physical board: where it is, what the driver makes of it, and since when it is lost."""

    number: int
    slot: int
    lists: bool = True
    on_bus: bool = True
    silent: bool = False
    lost_as: set[str] = set()

    @property
    def pci(self) -> str:
        """Return its address."""
        return f"0000:{self.slot:02x}:00.0"


class Node:
    """The boards of a node, the source that lists them, and the engine that judges the lists."""

    def __init__(self, kind: str, count: int) -> None:
        """Begin with *count* healthy boards."""
        self.kind = kind
        self.numbers = itertools.count()
        self.boards = [Board(next(self.numbers), 0x10 * (slot + 1)) for slot in range(count)]
        self.vendor = kind.split()[0] if kind.split()[0] in ("nvidia", "amd") else "habana"
        self.source = self.vendor if self.vendor != "habana" else "command.acme"
        self.removed = False
        self.present: set[str] = set()
        self.boots = 0
        self.seconds = LATE_SECONDS
        self.wall = 0.0
        self.engine = self._engine()

    def _engine(self) -> Engine:
        sources = (self.vendor, "command.acme", "command.next", "command.more", "host")
        cadences = {(source, "fast"): Cadence(10, 5) for source in sources}
        return Engine(CHECKS, node="n1", clock=lambda: self.now, cadences=cadences)

    @property
    def boot(self) -> str:
        """Return the id of this boot."""
        return f"boot-{self.boots}"

    @property
    def now(self) -> Instant:
        """Return the present time."""
        return Instant(self.boot, int(self.seconds * 1e9), self.wall)

    def restart(self, *, boots: bool = False) -> None:
        """Start the agent anew, perhaps with the node."""
        memory = self.engine.memory()
        if boots:
            self.boots, self.seconds = self.boots + 1, LATE_SECONDS
        self.engine = self._engine()
        self.engine.restore(memory)

    def devices(self, board: Board) -> Iterator[Device]:
        """Yield *board* as its source lists it, and its parts."""
        whole = Device(
            id="",
            kind=DeviceKind.ACCELERATOR,
            vendor=self.vendor,
            model=f"{self.vendor} accelerator",
            backend=self.source,
        )
        if self.source == self.vendor:
            name = f"GPU-{board.number}"
            yield msgspec.structs.replace(whole, id=name, uuid=name, serial=f"S{board.number}", pci=board.pci)
            for part in (1, 2) if self.kind.endswith("split") else ():
                uuid = f"MIG-{board.number}-{part}" if self.vendor == "nvidia" else None
                called = uuid or f"{name}/partition-{part}"
                yield msgspec.structs.replace(whole, id=called, uuid=uuid, pci=board.pci, parent=name)
            return
        command = self.source.removeprefix("command.")
        here = sorted(entry.slot for entry in self.boards).index(board.slot)
        told: dict[str, dict[str, Any]] = {
            "serials": {"id": f"{command}:{here}", "serial": f"S{board.number}"},
            "addresses": {"id": f"{command}:{board.pci}", "pci": board.pci},
            "names": {"id": f"{command}:{board.number}"},
        }
        yield msgspec.structs.replace(whole, **told[self.kind])

    def page(self, board: Board) -> Device:
        """Return *board* as the PCI bus shows it."""
        return Device(
            id=f"pci-{board.pci}",
            kind=DeviceKind.ACCELERATOR,
            vendor=self.vendor,
            model="PCI device",
            backend="host",
            pci=board.pci,
            driver=vendor_of(self.vendor).kernel_module,
        )

    def round(self, *, first: int | None = None, bus: bool = True) -> Snapshot:
        """List, read and judge once; *first* boards alone are taken by their driver yet, or the *bus* is not read."""
        self.seconds += 10
        self.wall += 10
        listed = [device for board in self.listed[:first] for device in self.devices(board)]
        names = [self.source] if not self.removed else []
        if bus:
            pages = [
                self.page(board) for board in self.boards if board.on_bus and self.kind not in ("serials", "names")
            ]
            self.engine.take_devices("host", (controller(), *pages))
            told = (Reading("ecc_uncorrected_errors", 0, Part(PartKind.MEMORY_BLOCK, "controller", 0)),)
            self.engine.take_sample(Sample("host", "fast", controller().id, 1, self.now, 0.01, told))
        if not self.removed:
            self.engine.take_devices(self.source, listed)
            for device in listed:
                self.engine.take_sample(self.sample(device))
        status = reader("host", last_round=self.now) if bus else reader("host", state=ReaderState.STARTING)
        self.engine.take_readers((status, *(reader(name, last_round=self.now) for name in names)))
        snapshot = self.engine.evaluate(AGENT).snapshot
        self.present = {device.id for device in listed} if not self.removed else set()
        return snapshot

    def sample(self, device: Device) -> Sample:
        """Return what is read of *device*."""
        silent = {each.id for board in self.boards if board.silent for each in self.devices(board)}
        failure = Failure(FailureKind.LOST, "fell off the bus", of_driver=True) if device.id in silent else None
        readings = () if failure else READINGS
        return Sample(self.source, "fast", device.id, 1, self.now, 0.01, readings, failure)

    def ids(self, board: Board) -> set[str]:
        """Return the names that *board* and its parts have on the page, as far as its source tells who it is."""
        return {device.id for device in self.devices(board)}

    def acknowledge(self, snapshot: Snapshot) -> None:
        """Let a person acknowledge whatever is open."""
        for episode in snapshot.episodes:
            if episode.state is EpisodeState.OPEN:
                assert self.engine.acknowledge(episode.key, note="known", actor="me") is not None, episode.key

    @property
    def listed(self) -> list[Board]:
        """Return the boards that the driver lists."""
        return [board for board in self.boards if board.lists]


def hard(snapshot: Snapshot) -> set[str]:
    """Return the devices that are missing so that a gate closes."""
    return {
        entry.key.device
        for entry in snapshot.episodes
        if entry.key.code == "device.missing" and entry.outcome is Outcome.FAIL and entry.finding.hard
    }


BOOTS = ("plain", "renumbered", "one moved", "one replaced", "other hardware", "more hardware", "less hardware",
         "one gone", "one without its driver", "one added", "one back")  # fmt: skip


class Course(RuleBasedStateMachine):
    """Any course of events of one node."""

    node: Node
    last: Snapshot

    def __init__(self) -> None:
        """Begin without a node."""
        super().__init__()
        self.is_sound = False
        self.allowed: set[str] = set()
        self.gone: list[Board] = []

    @initialize(kind=st.sampled_from(KINDS), count=st.integers(1, 4))
    def begin(self, kind: str, count: int) -> None:
        """A healthy node."""
        self.node = Node(kind, count)
        self.settle()
        assert self.last.verdict.state is State.OK, self.last.verdict

    def settle(self) -> None:
        """Judge some quiet rounds."""
        for number in range(QUIET_ROUNDS):
            if number == QUIET_ROUNDS - 2:
                self.node.seconds += LATE_SECONDS  # no driver is awaited any more
            self.look(self.node.round())

    def look(self, snapshot: Snapshot) -> None:
        """Hold what may never be on any page."""
        self.last, self.is_sound = snapshot, False
        assert hard(snapshot) <= self.allowed, (self.node.kind, [e.finding.message for e in snapshot.episodes])
        # The list of a command proves no loss: the bus does, which knows the addresses alone.
        assert self.node.kind not in ("serials", "names") or not hard(snapshot), self.node.kind
        whole = [d for d in snapshot.devices if d.kind is DeviceKind.ACCELERATOR and d.parent is None]
        serials = [device.serial for device in whole if device.serial]
        assert len(serials) == len(set(serials)), serials
        places = [device.pci for device in whole if device.pci]
        if not hard(snapshot) and self.node.kind != "names":
            assert len(places) == len(set(places)), places

    def names_of(self, board: Board) -> set[str]:
        """Return the ids under which the page has *board*: by its serial, else by its source's name or address."""
        parts = self.node.ids(board)
        found = {d.id for d in self.last.devices if d.serial == f"S{board.number}" or d.pci == board.pci}
        return parts | found | {d.id for d in self.last.devices if d.parent in found | parts}

    def lose(self, board: Board) -> None:
        """A board is lost in this boot."""
        board.lost_as = self.names_of(board)
        self.allowed |= board.lost_as
        self.gone.append(board)

    def pick(self, data: st.DataObject, boards: list[Board]) -> Board:
        """Return any of *boards*."""
        return data.draw(st.sampled_from(boards))

    @precondition(lambda self: self.node.listed and not self.node.removed)
    @rule(data=st.data(), how=st.sampled_from(["driver", "bus", "silent"]))
    def loses(self, data: st.DataObject, how: str) -> None:
        """A board falls off, or no longer answers."""
        board = self.pick(data, self.node.listed)
        self.lose(board)
        board.lists, board.on_bus, board.silent = how == "silent", how != "bus", how == "silent"
        self.settle()

    @rule()
    def restarts(self) -> None:
        """The agent starts anew."""
        self.node.restart()
        self.settle()

    @rule(what=st.sampled_from(BOOTS), data=st.data(), bus_later=st.booleans(), in_turn=st.booleans())
    def boots(self, what: str, data: st.DataObject, bus_later: bool, in_turn: bool) -> None:
        """The node boots, and meanwhile something was done to it."""
        event(what)
        node = self.node
        before = {name for board in node.boards for name in self.names_of(board)} | set(self.last.device_verdicts)
        for board in node.boards:
            if board.on_bus and not board.lists:  # it is told already, and its page is no other board
                self.allowed.add(f"pci-{board.pci}")
        count, on_bus = len(node.listed), sum(board.on_bus for board in node.boards)
        self.gone = [board for board in self.gone if not board.silent]
        for board in node.boards:
            board.silent = False
        if what == "renumbered":
            for board in node.boards[data.draw(st.integers(0, len(node.boards))) :]:
                board.slot += 3
        elif what == "one moved" and node.boards:
            self.pick(data, node.boards).slot += 5
        elif what == "one replaced" and node.boards:
            board = self.pick(data, node.boards)
            fresh = Board(next(node.numbers), board.slot)
            node.boards[node.boards.index(board)] = fresh
            self.gone = [each for each in self.gone if each is not board]
        elif what.endswith("hardware"):
            number = {"other": count, "more": count + 1, "less": count - 1}[what.split()[0]]
            shift = data.draw(st.sampled_from([0, 7]))
            node.boards = [Board(next(node.numbers), 0x10 * (slot + 1) + shift) for slot in range(max(number, 0))]
            self.gone = []
        elif what == "one gone" and node.listed:
            board = self.pick(data, node.listed)
            board.lists = board.on_bus = False
        elif what == "one without its driver" and node.listed:
            self.pick(data, node.listed).lists = False
        elif what == "one added":
            node.boards.append(Board(next(node.numbers), 0xE0 + len(node.boards)))
            self.gone = [board for board in self.gone if board.on_bus]  # it may have come in place of such a board
        elif what == "one back":
            for board in node.boards[:1]:
                board.lists = board.on_bus = True
                self.gone = [each for each in self.gone if each is not board]
        is_fewer = len(node.listed) < count or sum(board.on_bus for board in node.boards) < on_bus
        if is_fewer or any(board.on_bus and not board.lists for board in node.boards):
            self.allowed |= before
        node.restart(boots=True)
        for number in range(len(node.listed) if in_turn and node.vendor == "amd" else 0):
            node.seconds = min(node.seconds, 30.0 + 10 * number)
            self.look(node.round(first=number))
        if bus_later:
            self.look(node.round(bus=False))
        node.seconds = max(node.seconds, LATE_SECONDS)
        self.settle()

    @precondition(lambda self: self.node.source.startswith("command."))
    @rule()
    def renames(self) -> None:
        """A person gives the command another name."""
        both = ("acme:", "next:")
        self.allowed |= {there + name.removeprefix(here) for name in self.allowed for here in both for there in both}
        self.node.source = {"command.acme": "command.next", "command.next": "command.acme"}[self.node.source]
        self.node.restart()
        self.settle()

    @rule()
    def removes(self) -> None:
        """A person takes the source out of the configuration, or puts it back."""
        self.node.removed = not self.node.removed
        self.node.restart()
        self.settle()

    @rule()
    def acknowledges(self) -> None:
        """A person acknowledges whatever is open, and the node is ok: nothing is unknown for ever."""
        for _ in range(3):
            self.node.acknowledge(self.last)
            self.settle()
        assert self.last.verdict.state is State.OK, (self.node.kind, self.last.verdict)

    @invariant()
    def what_is_lost_is_told(self) -> None:
        """As long as it is lost, its loss is open or acknowledged: a failure, or unknown if a command lists it."""
        states = (EpisodeState.OPEN, EpisodeState.ACKNOWLEDGED)
        told = {e.key.device: e.outcome for e in self.last.episodes if e.state in states}
        failed = {device for device, outcome in told.items() if outcome is Outcome.FAIL}
        for board in self.gone:
            enough = failed if board.silent or self.node.source == self.node.vendor else told.keys()
            assert enough & {*board.lost_as, *self.names_of(board), f"pci-{board.pci}"}, (self.node.kind, board, told)

    @invariant()
    def what_is_unknown_can_be_ended(self) -> None:
        """Each device is ok, or something of it or of the node is open, which a person can acknowledge."""
        open_now = [entry for entry in self.last.episodes if entry.state is EpisodeState.OPEN]
        if not open_now:
            assert self.last.verdict.state is State.OK, (self.node.kind, self.last.verdict)
        self.is_sound = True

    def teardown(self) -> None:
        """Let a person acknowledge everything in the end."""
        if self.is_sound:
            self.acknowledges()


TestCourse = Course.TestCase
TestCourse.settings = settings(
    max_examples=80,
    derandomize=True,  # a new find is no reason to refuse an unrelated change
    stateful_step_count=8,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    report_multiple_bugs=False,
    phases=(Phase.generate,),
)
