"""A link that is down because the board at its other end is lost follows from that loss, and from nothing else."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from fakes.amdsmi.scenario import FakeAmdSmi
from fakes.nvml.scenario import FakeNvml
from fakes.rig import Rig
from fakes.views import GPU_READINGS, at, bare_board, fault, gpu, link, reader, sample

from nodevet.checks.core.model import (
    AgentInfo,
    Clearing,
    Device,
    Failure,
    FailureKind,
    Finding,
    Limit,
    Link,
    Outcome,
    Part,
    PartKind,
    Snapshot,
    State,
)
from nodevet.checks.engine.baseline import recognised
from nodevet.checks.engine.consequences import joined
from nodevet.checks.engine.engine import ConfiguredCheck, Engine
from nodevet.checks.engine.registry import discover
from nodevet.checks.engine.verdicts import narrowed
from nodevet.checks.engine.view import Cadence, KnownDevices, Seen

BOARDS = 8
DEAD = 2


def port_to(board: int, other: int) -> int:
    """Return the port of *board* that leads to *other*: the others in their order."""
    return other if other < board else other - 1


def board(number: int, peers: bool = True) -> Device:
    """Return an MI300X, each of whose ports leads to another one."""
    others = [other for other in range(BOARDS) if other != number]
    links = tuple(Link(port, f"0000:{other:02x}:00.0" if peers else None) for port, other in enumerate(others))
    make = {"vendor": "amd", "model": "AMD Instinct MI300X", "backend": "amd", "minor": 128 + number}
    return gpu(f"GPU-{number}", f"0000:{number:02x}:00.0", links=links, **make)


class Node:
    """Eight boards, each joined with each other, with a clock that the test moves."""

    def __init__(self, *, peers: bool = True) -> None:
        """Begin with three healthy looks; *peers* says whether the ports tell where they lead."""
        self.boards = [board(number, peers) for number in range(BOARDS)]
        self.seconds = 5000.0
        self.engine = self._engine()
        found = [self.look().verdict for _ in range(3)]
        assert [verdict.state for verdict in found] == [State.OK] * 3, found

    def _engine(self) -> Engine:
        checks = [ConfiguredCheck(entry, entry.policy()) for entry in discover()]
        return Engine(checks, node="n1", clock=lambda: at(self.seconds), cadences={("amd", "fast"): Cadence(10, 5)})

    def restart(self) -> None:
        """Let another engine go on from what the first one would have kept."""
        memory = self.engine.memory()
        self.engine = self._engine()
        self.engine.restore(memory)

    def look(
        self,
        down: Iterable[tuple[int, int]] = (),
        *,
        silent: Iterable[int] = (),
        unlisted: Iterable[int] = (),
    ) -> Snapshot:
        """Judge a round in which links between pairs of boards are *down*, at both ends."""
        self.seconds += 10
        ends = {*down, *((other, one) for one, other in down)}
        listed = [entry for number, entry in enumerate(self.boards) if number not in set(unlisted)]
        self.engine.take_devices("amd", listed)
        self.engine.take_readers((reader("amd", last_round=at(self.seconds)), reader("host")))
        links = {("link_active", link(port)) for port in range(18)}
        other = {key: value for key, value in GPU_READINGS.items() if key[0] != "link_active" and key not in links}
        for number, entry in enumerate(self.boards):
            up = {
                ("link_active", link(port_to(number, far))): (number, far) not in ends
                for far in range(BOARDS)
                if far != number
            }
            failure = Failure(FailureKind.LOST, "for a test", of_driver=True) if number in set(silent) else None
            taken = sample(entry, {} if failure else {**other, **up}, failure=failure)
            if entry in listed:
                self.engine.take_sample(msgspec.structs.replace(taken, backend="amd", time=at(self.seconds)))
        return self.engine.evaluate(AgentInfo(version="0", started=at(), interval_seconds=10)).snapshot


def counting(snapshot: Snapshot) -> set[tuple[str, str]]:
    """Return codes and devices of what counts."""
    return {(entry.key.code, entry.key.device) for entry in snapshot.episodes}


ALL_OF_DEAD = [(DEAD, other) for other in range(BOARDS) if other != DEAD]


@pytest.mark.parametrize("peers", [True, False])
@pytest.mark.parametrize(
    ("how", "code"), [("silent", "device.lost"), ("unlisted", "device.missing"), ("dark", "link.all_down")]
)
def test_a_dead_board_whose_links_are_told_down_on_its_peers_is_one_finding(peers: bool, how: str, code: str) -> None:
    """It was eight. The loss names each link that went with it, and they are listed for themselves."""
    node = Node(peers=peers)
    away = {} if how == "dark" else {how: [DEAD]}
    snapshot = node.look(ALL_OF_DEAD, **away)
    assert counting(snapshot) == {(code, "GPU-2")}
    assert snapshot.verdict.state is State.FAILED
    (loss,) = (entry for entry in snapshot.findings if entry.code == code and entry.outcome is Outcome.FAIL)
    followed = [entry for entry in snapshot.findings if entry.follows]
    assert [(entry.code, entry.outcome, entry.follows) for entry in followed] == [
        ("link.down", Outcome.SKIPPED, "GPU-2")
    ] * 7
    for entry in followed:
        assert entry.message.split(": ")[0] in loss.message
        assert "the link is down" in entry.message
        assert "GPU renderD130" in entry.message


@pytest.mark.parametrize("peers", [True, False])
def test_links_that_stay_down_after_the_loss_count_for_themselves(peers: bool) -> None:
    """The board answers again, and its links are down still: then each end of them does."""
    node = Node(peers=peers)
    for _ in range(3):
        node.look(ALL_OF_DEAD, silent=[DEAD])
    snapshot = node.look([(DEAD, 0)])
    assert {("link.down", "GPU-0"), ("link.down", "GPU-2")} < counting(snapshot)
    assert snapshot.device_verdicts["GPU-0"].hard


def test_links_that_went_before_the_loss_was_told_follow_from_it() -> None:
    """They are read more often than who is there."""
    node = Node()
    assert len(counting(node.look(ALL_OF_DEAD[:6]))) == 7
    assert counting(node.look(ALL_OF_DEAD, silent=[DEAD])) >= {("device.lost", "GPU-2")}
    assert {device for code, device in counting(node.look(ALL_OF_DEAD, silent=[DEAD]))} == {"GPU-2"}


@pytest.mark.parametrize("peers", [True, False])
def test_another_link_is_another_finding(peers: bool) -> None:
    """One between two boards that answer, beside the loss; where no port tells its other end, nothing is excused."""
    node = Node(peers=peers)
    found = counting(node.look([*ALL_OF_DEAD, (0, 1)], silent=[DEAD]))
    assert {("device.lost", "GPU-2"), ("link.down", "GPU-0"), ("link.down", "GPU-1")} <= found
    assert len({device for _, device in found}) == (3 if peers else 8)


def test_two_dead_boards_are_two_findings() -> None:
    """Each other one lost two links."""
    down = [*ALL_OF_DEAD, *((5, other) for other in range(BOARDS) if other not in (DEAD, 5))]
    for peers in (True, False):
        assert {device for _, device in counting(Node(peers=peers).look(down, silent=[DEAD, 5]))} == {"GPU-2", "GPU-5"}


def test_a_link_behind_a_switch_follows_from_no_board() -> None:
    """What leads to a switch goes down for a reason of its own."""
    boards = [msgspec.structs.replace(entry, links=(Link(0, "switch"),)) for entry in map(board, range(2))]
    memory = KnownDevices({entry.id: Seen(entry, at(), at(), (0,)) for entry in boards})
    lost = fault("device.lost", device="GPU-1", message="GPU 1: gone")
    down = fault("link.down", device="GPU-0", part=link(0), message="GPU 0 link 0: down")
    assert joined([lost, down], boards, memory) == (lost, down)
    half_told = [msgspec.structs.replace(entry, links=(Link(0), Link(1, "switch"))) for entry in boards]
    memory = KnownDevices({entry.id: Seen(entry, at(), at(), (0,)) for entry in half_told})
    assert joined([lost, down], half_told, memory) == (lost, down)
    bridged = [msgspec.structs.replace(entry, links=(Link(0, None),)) for entry in boards]
    memory = KnownDevices({entry.id: Seen(entry, at(), at(), (0,)) for entry in bridged})
    assert [entry.follows for entry in joined([lost, down], bridged, memory)] == ["", "GPU-1"]


def test_what_else_tells_of_the_lost_ends_follows_too() -> None:
    """The partner of a bridge has all its links down; and a board whose links are counted has so many fewer."""
    boards = [board(number) for number in range(2)]
    boards = [
        msgspec.structs.replace(entry, links=(Link(0, boards[1 - number].pci), Link(1, boards[1 - number].pci)))
        for number, entry in enumerate(boards)
    ]
    memory = KnownDevices({entry.id: Seen(entry, at(), at(), (0, 1)) for entry in boards})
    whole = Part(PartKind.LINK)
    lost = fault("device.lost", device="GPU-1", message="GPU 1: gone")
    dark = fault("link.all_down", device="GPU-0", part=whole, message="GPU 0: all down")
    assert [entry.follows for entry in joined([lost, dark], boards, memory)] == ["", "GPU-1"]
    down = fault("link.down", device="GPU-0", part=link(0), message="GPU 0 link 0: down")
    for up, follows in ((1, "GPU-1"), (0, "")):
        fewer = Finding(
            check="links",
            code="link.fewer",
            device="GPU-0",
            part=whole,
            outcome=Outcome.WARN,
            message="GPU 0: fewer",
            value=up,
            limit=Limit("<", 2, "", "table"),
            clearing=Clearing.CONDITION,
        )
        assert [entry.follows for entry in joined([lost, down, fewer], boards, memory)] == ["", "GPU-1", follows]


@pytest.mark.parametrize("how", ["silent", "unlisted"])
def test_check_of_links_alone_is_not_green_beside_a_loss(how: str) -> None:
    """What the other checks saw is why a link is down."""
    snapshot = Node().look(ALL_OF_DEAD, **{how: [DEAD]})
    assert narrowed(snapshot, {"links"}).verdict.state is State.UNKNOWN


def test_real_reader_names_the_lost_board_at_the_other_end(fake_amdsmi: FakeAmdSmi) -> None:
    """AMD SMI tells of each port where it leads."""
    with Rig(fake_amdsmi) as rig:
        assert rig.look(3).verdict.state is State.OK
        fake_amdsmi.fail_device(DEAD)
        for slot in range(BOARDS):
            if slot != DEAD:
                fake_amdsmi.set(f"link_state.{slot}.{port_to(slot, DEAD)}", 0)
        snapshot = rig.look()
        assert [entry.key.code for entry in snapshot.episodes] == ["device.lost"]


MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
"""How many links join two of the eight V100 of a DGX-1: no board is joined with each other one."""


def wired(fake_nvml: FakeNvml) -> list[list[int]]:
    """Let *fake_nvml* play a DGX-1 with V100, and return to which board each port of each leads."""
    ends: list[list[int]] = [[] for _ in range(BOARDS)]
    for (one, other), number in MESH.items():
        ends[one] += [other] * number
        ends[other] += [one] * number
    make: dict[str, float | str] = {"name": "Tesla V100-SXM2-32GB", "architecture": 5, "links": 6, "link_version": 2}
    told = {
        f"link_remote_pci.{slot}.{port}": f"0000{FakeNvml.pci(end).upper()}"
        for slot, peers in enumerate(ends)
        for port, end in enumerate(peers)
    }
    fake_nvml.update({**make, **told, "link_remote_type": 0, "fabric_state": 0, "fabric_health_mask": 0})
    return ends


@pytest.mark.parametrize("reboots", [False, True])
def test_reader_that_starts_beside_a_lost_board_knows_where_its_dark_ports_led(
    fake_nvml: FakeNvml, reboots: bool
) -> None:
    """A port tells its other end only while it is up: a restart left six hard failures on four healthy boards."""
    ends = wired(fake_nvml)
    with Rig(fake_nvml) as rig:
        assert rig.look(3).verdict.state is State.OK
        fake_nvml.fail_device(DEAD)
        for slot, peers in enumerate(ends):
            fake_nvml.update({f"link_state.{slot}.{port}": 0 for port, end in enumerate(peers) if end == DEAD})
        assert [entry.key.code for entry in rig.look(3).episodes] == ["device.lost"]
        for start in (rig.reboot if reboots else rig.start_again, rig.start_again):
            start()
            snapshot = rig.look(3)
            assert [entry.key.code for entry in snapshot.episodes] == ["device.lost"]
        assert (
            sum(entry.follows == FakeNvml.uuid(DEAD) and entry.code == "link.down" for entry in snapshot.findings) == 6
        )


def untold(entry: Device, *ends: int, **changes: str) -> Device:
    """Return *entry* as it is listed anew while the links to the boards *ends* are down: these ports tell no end."""
    dark = {f"0000:{end:02x}:00.0" for end in ends}
    links = tuple(msgspec.structs.replace(port, peer=None) if port.peer in dark else port for port in entry.links)
    return msgspec.structs.replace(entry, links=links, **changes)


@pytest.mark.parametrize("restarts", [False, True])
def test_ports_that_tell_no_end_any_more_lead_where_they_led(restarts: bool) -> None:
    """Beside another link that is down nothing else tells which of them went with the lost board."""
    node = Node()
    node.look(ALL_OF_DEAD, silent=[DEAD])
    if restarts:
        node.restart()
    down = {entry: [DEAD, *({0: [1], 1: [0]}.get(entry, []))] for entry in range(BOARDS)}
    node.boards = [untold(entry, *down[number]) for number, entry in enumerate(node.boards)]
    for _ in range(2):
        snapshot = node.look([*ALL_OF_DEAD, (0, 1)], silent=[DEAD])
        assert {device for _, device in counting(snapshot)} == {"GPU-0", "GPU-1", "GPU-2"}


def test_an_end_is_remembered_of_the_same_port_alone() -> None:
    """Of a board in another slot, of a driver that may number its ports anew, and of another board it is not."""
    one = board(0)
    memory = KnownDevices({one.id: Seen(one, at(), at(), (0,))})

    def ends(told: Device) -> list[str | None]:
        return [port.peer for port in recognised(memory, [told])[0].links]

    known = ends(one)
    assert None not in known
    assert ends(untold(one, 1, 2)) == known
    assert ends(untold(one, 1, driver="another")) == [None, *known[1:]]
    assert ends(untold(one, 1, pci="0000:77:00.0")) == [None, *known[1:]]
    assert ends(untold(one, 1, serial="another")) == [None, *known[1:]]
    moved = msgspec.structs.replace(one, links=(Link(0, "switch"), *one.links[1:]))
    assert ends(moved) == ["switch", *known[1:]]
    nvidia = msgspec.structs.replace(one, vendor="nvidia", backend="nvidia")
    memory = KnownDevices({one.id: Seen(nvidia, at(), at(), (0,))})
    assert ends(untold(nvidia, 1, driver="another")) == known


TOOL = "command.hl"
LINKS_EACH, OUTSIDE = 3, 3


class Modules:
    """Eight modules of Gaudi 2 as a command tells of them: three links to each other one, and three ports outside."""

    def __init__(self, *, addressed: bool = True, pages: int = BOARDS) -> None:
        """Begin with three healthy looks; the command tells addresses where *addressed*, the kernel of *pages*."""
        make = {"vendor": "habana", "model": "HL-225", "backend": TOOL}
        self.boards = [gpu(f"hl:{number}", f"0000:{number:02x}:00.0", **make) for number in range(BOARDS)]
        listed = (bare_board(f"0000:{number:02x}:00.0", "habanalabs") for number in range(pages))
        self.pages = [msgspec.structs.replace(entry, vendor="habana") for entry in listed]
        if not addressed:
            self.boards = [msgspec.structs.replace(entry, pci=None) for entry in self.boards]
        self.seconds = 5000.0
        checks = [ConfiguredCheck(entry, entry.policy()) for entry in discover()]
        self.engine = Engine(
            checks, node="n1", clock=lambda: at(self.seconds), cadences={(TOOL, "fast"): Cadence(10, 5)}
        )
        expected = State.OK if pages == BOARDS else State.UNKNOWN
        assert [self.look().verdict.state for _ in range(3)] == [expected] * 3

    def look(self, *dead: int, also: tuple[int, int] | None = None, up: bool = False) -> Snapshot:
        """Judge a round in which the command lists no module that is *dead*, and the kernel still its PCI page.

        What links lead there are down (unless *up*), and *also* a port of a module.
        """
        self.seconds += 10
        self.engine.take_devices("host", self.pages)
        self.engine.take_devices(TOOL, [entry for number, entry in enumerate(self.boards) if number not in dead])
        self.engine.take_readers(tuple(reader(name, last_round=at(self.seconds)) for name in (TOOL, "host")))
        whole = {key: value for key, value in GPU_READINGS.items() if not key[0].startswith(("link", "fabric"))}
        for entry in self.pages:
            self.engine.take_sample(msgspec.structs.replace(sample(entry, {}), time=at(self.seconds)))
        for number, entry in enumerate(self.boards):
            if number in dead:
                continue
            ends = [other for other in range(BOARDS) if other != number for _ in range(LINKS_EACH)] + [None] * OUTSIDE
            links = {
                ("link_active", link(port)): (up or end not in dead) and (number, port) != also
                for port, end in enumerate(ends)
            }
            taken = sample(entry, {**whole, **links})
            self.engine.take_sample(msgspec.structs.replace(taken, time=at(self.seconds)))
        return self.engine.evaluate(AgentInfo(version="0", started=at(), interval_seconds=10)).snapshot


def test_a_dead_module_that_a_command_leaves_out_is_missing_and_its_page_is_no_other_board() -> None:
    """The list of a command proves no loss, so the links to the module that are down are told for themselves."""
    node = Modules()
    looked = [node.look(DEAD) for _ in range(3)]
    assert all(("device.missing", "hl:2") in counting(snapshot) for snapshot in looked)
    assert not any("driver" in code or "unread" in code for code, _ in counting(looked[-1]))
    assert {("device.missing", "hl:2"), ("device.missing", "hl:5")} <= counting(Modules().look(DEAD, 5))


def test_a_dead_module_that_left_the_bus_is_one_finding_where_some_ports_lead_outside() -> None:
    """24 ports are no multiple of seven: three of them lead outside."""
    node = Modules()
    del node.pages[DEAD]
    looked = [node.look(DEAD) for _ in range(3)]
    assert [counting(snapshot) for snapshot in looked] == [{("device.missing", "hl:2")}] * 3
    assert looked[-1].device_verdicts["hl:0"].state is State.OK


def test_boards_that_tell_no_address_are_those_on_the_bus_where_there_are_as_many() -> None:
    """The node was unknown for ever: their pages on the bus passed for other boards, which nothing reads."""
    node = Modules(addressed=False)
    snapshot = [node.look(DEAD) for _ in range(3)][-1]
    assert ("device.missing", "hl:2") in counting(snapshot)
    assert not any("driver" in code for code, _ in counting(snapshot))
    node.pages[0] = msgspec.structs.replace(node.pages[0], driver=None)
    assert ("driver.missing", "node") in counting(node.look())
    more = Modules(addressed=False, pages=BOARDS + 1).look()
    (told,) = (entry for entry in more.findings if entry.code == "driver.missing" and entry.required)
    assert "9 habana accelerators, not read" in told.message
    assert "8 other devices without a PCI address" in told.message
    assert "prints the PCI address" in told.message
