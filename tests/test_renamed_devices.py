"""A script of the site that names its devices otherwise after an update: nothing is lost by a name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from fakes.site_tool import SettableTool, device, temperature
from fakes.views import at, gpu, reader
from hypothesis import given
from hypothesis import strategies as st

from nodevet.checks.backends.base import BackendError, Context
from nodevet.checks.backends.command.backend import CommandBackend
from nodevet.checks.backends.command.spec import CommandSpec
from nodevet.checks.core.model import (
    AgentInfo,
    Device,
    DeviceKind,
    FailureKind,
    Key,
    Link,
    Outcome,
    Reading,
    Sample,
    Snapshot,
    State,
)
from nodevet.checks.engine.baseline import recognised, remember
from nodevet.checks.engine.engine import ConfiguredCheck, Engine
from nodevet.checks.engine.registry import discover
from nodevet.checks.engine.renamed import same_boards
from nodevet.checks.engine.view import Cadence, KnownDevices
from nodevet.exporters.statefile.reader import StateFile, parse
from nodevet.exporters.statefile.writer import state_text

TOOL = "command.acme"
HOT = 120
SINCE_BOOT = -at().boottime_ns / 1e9
"""The seconds of a site at the moment of its boot."""


class Site:
    """An engine and the backend of a command, as the reader child and the agent use them, without their processes."""

    def __init__(self, folder: Path, groups: tuple[str, ...] = ("fast",)) -> None:
        """Begin with a command that lists nothing yet."""
        self.folder = folder
        self.tool = SettableTool(folder)
        self.groups = groups
        self.seconds = 0.0
        self.boot = "boot-1"
        self.engine = self._engine()
        self.start()

    def _engine(self) -> Engine:
        return Engine(
            [ConfiguredCheck(entry, entry.policy()) for entry in discover()],
            node="n1",
            clock=lambda: at(self.seconds, self.boot),
            cadences={(TOOL, group): Cadence(10, 5) for group in self.groups},
        )

    def start(self) -> None:
        """Start the reader anew."""
        context = SimpleNamespace(
            root="/", progress=SimpleNamespace(write=lambda _: None), note=None, now=lambda: at(self.seconds, self.boot)
        )
        settings = CommandSpec(name="acme", argv=(str(self.tool.program),), timeout_seconds=20, groups=self.groups)
        self.backend = CommandBackend(settings, cast(Context, context))
        self.listed: tuple[Device, ...] = ()

    def restart(self, boot: str = "boot-1") -> None:
        """Start the agent anew, with what it remembers, perhaps in another boot."""
        memory, self.boot = self.engine.memory(), boot
        self.engine = self._engine()
        self.engine.restore(memory)
        self.start()

    def round(self, *devices: dict[str, Any], **more: Any) -> Snapshot:
        """Print *devices*, read them as the child does, and judge."""
        self.seconds += 10
        if devices:
            self.tool.print(*devices, **more)
        if not self.listed:
            self.relist()
        for group in self.groups:
            for entry in self.listed:
                self.engine.take_sample(self.sample(group, entry))
        for event in self.backend.events():
            self.engine.take_event(event)
        snapshot = self.judge()
        self.relist()
        return snapshot

    def relist(self) -> None:
        """List the devices, as behind each round."""
        self.listed = self.backend.devices()
        self.engine.take_devices(TOOL, self.listed)

    def sample(self, group: str, entry: Device) -> Sample:
        """Return what is read of *entry*."""
        readings: tuple[Reading, ...] = ()
        failure = None
        try:
            readings = tuple(self.backend.read(group, entry))
        except BackendError as error:
            failure = error.failure
        return Sample(
            backend=TOOL,
            group=group,
            device=entry.id,
            sequence=1,
            time=at(self.seconds, self.boot),
            duration_seconds=0.01,
            readings=readings,
            failure=failure,
        )

    def judge(self) -> Snapshot:
        """Judge what was read."""
        now = at(self.seconds, self.boot)
        self.engine.take_readers((reader(TOOL, last_round=now),))
        return self.engine.evaluate(AgentInfo(version="0", started=at(), interval_seconds=10)).snapshot

    def rounds(self, *devices: dict[str, Any], count: int = 3) -> list[Snapshot]:
        """Return what *count* rounds of the same output say."""
        return [self.round(*devices) for _ in range(count)]


def unproven(snapshot: Snapshot) -> set[str]:
    """Return the devices that are missing without proof."""
    missing = (entry for entry in snapshot.episodes if entry.key.code == "device.missing")
    return {entry.key.device for entry in missing if entry.outcome is Outcome.UNMEASURED}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A node whose accelerators only a command knows."""
    monkeypatch.setattr("nodevet.checks.backends.command.backend.LIFELINE", None)
    return Site(tmp_path)


def cards(names: str, **told: Callable[[int], object]) -> list[dict[str, Any]]:
    """Return cards of those *names*, of which each tells by its number what *told* says."""
    return [
        device(name, temperature(45 + n), **{key: value(n) for key, value in told.items()})
        for n, name in enumerate(names.split())
    ]


def serial(n: int) -> str:
    """Return the serial of the n-th board."""
    return f"A10{n + 1}"


def none(n: int) -> str:
    """Return a word for no serial."""
    return ("N/A", "0000", "unknown")[n]


def uuid(n: int) -> str:
    """Return the UUID of the n-th board."""
    return f"ACME-000{n + 1}"


def address(n: int) -> str:
    """Return the PCI address of the n-th board."""
    return f"0000:{16 * (n + 1):02x}:00.0"


def is_hard(snapshot: Snapshot) -> bool:
    """Return whether the state file of *snapshot* closes a gate."""
    state = parse(state_text(snapshot, ttl_seconds=60))
    assert isinstance(state, StateFile)
    return bool({state.reach, *(line.reach for line in state.devices)} & {"hard", "unpermitted", "refused"})


def names(snapshot: Snapshot) -> dict[str, str | None]:
    """Return the serial of each accelerator, by name."""
    return {entry.id: entry.serial for entry in snapshot.devices if entry.kind.value == "accelerator"}


def heat(snapshot: Snapshot) -> dict[str, float]:
    """Return the temperature of each device, by name."""
    return {
        sample.device: float(entry.value or 0)
        for sample in snapshot.samples
        for entry in sample.readings
        if entry.quantity == "temperature_celsius"
    }


WITNESSED = {
    "serials": ({"serial": serial}, {"serial": serial}),
    "UUIDs": ({"uuid": uuid}, {"uuid": uuid}),
    "addresses": ({"pci": address}, {"pci": address}),
    "a serial in other letters": ({"serial": lambda n: f"00A10{n}"}, {"serial": lambda n: f"0xa10{n}"}),
    "a serial, and now a UUID": ({"serial": serial}, {"serial": serial, "uuid": uuid}),
    "a serial, and now an address": ({"serial": serial}, {"serial": serial, "pci": address}),
    "an address, and now a UUID": ({"pci": address}, {"pci": address, "uuid": uuid}),
    "an address and a serial, and now a serial": ({"pci": address, "serial": serial}, {"serial": serial}),
    "a UUID and a serial, and now a serial": ({"uuid": uuid, "serial": serial}, {"serial": serial}),
    "a UUID and an address, and now an address": ({"uuid": uuid, "pci": address}, {"pci": address}),
    "a UUID in other letters beside a serial": (
        {"uuid": uuid, "serial": serial},
        {"uuid": lambda n: uuid(n).lower(), "serial": serial},
    ),
}
"""What both releases of a script tell of each board besides its name."""


@pytest.mark.parametrize("restart", ["none", "agent", "boot"])
@pytest.mark.parametrize("then", ["accel0 accel1 accel2", "hl1 hl2 hl3", "hl2 hl0 hl1"])
@pytest.mark.parametrize("what", WITNESSED)
def test_a_board_that_tells_who_it_is_goes_on_whatever_it_is_called(
    site: Site, what: str, then: str, restart: str
) -> None:
    """Not for one round is a board lost, unread, or taken for its sibling, and none is there twice."""
    before, after = WITNESSED[what]
    assert site.rounds(*cards("hl0 hl1 hl2", **before))[-1].verdict.state is State.OK
    if restart != "none":
        site.restart("boot-2" if restart == "boot" else "boot-1")
    for snapshot in site.rounds(*cards(then, **after), count=4):
        assert snapshot.verdict.state is State.OK, snapshot.verdict
        assert sorted(heat(snapshot).values()) == [45, 46, 47]
        assert len(names(snapshot)) == 3
        assert snapshot.episodes == ()


@pytest.mark.parametrize("then", ["accel0 accel1 accel2", "hl1 hl2 hl3", "hl2 hl0 hl1"])
def test_a_fault_stays_with_its_board_and_comes_from_no_other(site: Site, then: str) -> None:
    """Before, another serial under the name ended it as a replaced board, and the healthy sibling had it."""
    block = {"kind": "memory_block", "name": "dram"}

    def boards(called: str, errors: int) -> list[dict[str, Any]]:
        found = cards(called, serial=serial)
        for n, entry in enumerate(found):
            counted = {"quantity": "ecc_uncorrected_errors", "part": block, "value": errors if n == 0 else 0}
            entry["readings"].append(counted)
        return found

    site.rounds(*boards("hl0 hl1 hl2", 0))
    site.rounds(*boards("hl0 hl1 hl2", 3))
    for snapshot in site.rounds(*boards(then, 3), count=4):
        (episode,) = snapshot.episodes
        assert (episode.key.code, episode.key.device) == ("memory.uncorrected", "acme:hl0")
        assert names(snapshot)["acme:hl0"] == serial(0)
        assert snapshot.device_verdicts["acme:hl1"].state is State.OK


def test_an_event_is_of_the_board_of_which_it_is_told(site: Site) -> None:
    """In the round of the update and in later ones."""
    site.rounds(*cards("hl0 hl1", serial=serial))
    for sequence in (1, 2):
        event = {"code": "flap", "sequence": sequence, "text": "down", "device": "hl1", "severity": "error"}
        site.round(*cards("hl1 hl2", serial=serial), events=[event])
    snapshot = site.round(*cards("hl1 hl2", serial=serial))
    assert {entry.device for entry in snapshot.events if entry.code.endswith("flap")} == {"acme:hl0"}


UNWITNESSED = {
    "names alone": ({}, {}),
    "other serials": ({"serial": serial}, {"serial": lambda n: f"B20{n}"}),
    "serials that were told, and are not": ({"serial": serial}, {}),
    "serials that are none": ({"serial": none}, {"serial": none}),
    "other UUIDs": ({"uuid": uuid}, {"uuid": lambda n: f"NEWER-000{n}"}),
    "UUIDs, and names": ({"uuid": uuid}, {}),
}


@pytest.mark.parametrize("restart", ["none", "agent", "boot"])
@pytest.mark.parametrize("what", UNWITNESSED)
def test_all_names_at_once_with_nothing_to_tell_them_by_are_unknown_and_close_no_gate(
    site: Site, what: str, restart: str
) -> None:
    """Whether the script was changed or every board exchanged nobody knows; a person's word ends it."""
    before, after = UNWITNESSED[what]
    first = site.rounds(*cards("hl0 hl1 hl2", **before))[-1]
    assert first.verdict.state is State.OK
    if restart != "none":
        site.restart("boot-2" if restart == "boot" else "boot-1")
    found = site.rounds(*cards("accel0 accel1 accel2", **after), count=5)
    assert {snapshot.verdict.state for snapshot in found} == {State.UNKNOWN}
    assert not any(map(is_hard, found))
    missing = [entry for entry in found[-1].findings if entry.code == "device.missing" and entry.required]
    assert {entry.device for entry in missing} == set(names(first))
    for words in ("the script was changed", "instead of all its former devices", "serial, uuid or pci"):
        assert words in missing[0].message
    site.restart()
    assert not is_hard(site.round(*cards("accel0 accel1 accel2", **after)))
    for name in names(first):
        site.engine.acknowledge(Key("device.missing", name), note="renamed", actor="me")
    last = site.rounds(*cards("accel0 accel1 accel2", **after))[-1]
    assert last.verdict.state is State.OK, last.verdict


def test_a_script_that_is_taken_back_leaves_no_name_missing(site: Site) -> None:
    """Nor does a second change of names before a person has said a word."""
    site.rounds(*cards("hl0 hl1"))
    for called in ("accel0 accel1", "dev0 dev1 dev2", "hl0 hl1 hl3", "hl0 hl1 hl3"):
        assert not any(map(is_hard, site.rounds(*cards(called)))), called


@pytest.mark.parametrize(
    ("then", "lost"),
    [
        ("hl0 hl1", "acme:hl2"),
        ("hl0 hl1 accel2", "acme:hl2"),
        ("accel0 accel1", "acme:hl0"),
        ("hl0", "acme:hl2"),
    ],
)
@pytest.mark.parametrize("told", [{}, {"serial": serial}])
def test_a_board_that_is_left_out_is_unknown(site: Site, then: str, lost: str, told: dict[str, Any]) -> None:
    """One name of several, or fewer than there were: a board is missing, and a script is no witness of its loss."""
    site.rounds(*cards("hl0 hl1 hl2", **told))
    snapshot = site.rounds(*cards(then, **(told if not then.endswith("2") else {})))[-1]
    if told and then == "accel0 accel1":
        lost = "acme:hl2"
    assert lost in unproven(snapshot)
    assert not any("instead of all" in entry.finding.message for entry in snapshot.episodes)
    assert (snapshot.verdict.state, is_hard(snapshot)) == (State.UNKNOWN, False)


def test_a_board_that_was_lost_before_stays_so_when_the_others_are_renamed(site: Site) -> None:
    """It was not among those that were listed a moment before."""
    site.rounds(*cards("hl0 hl1 hl2"))
    site.rounds(*cards("hl0 hl1"))
    snapshot = site.rounds(*cards("accel0 accel1"))[-1]
    assert (snapshot.verdict.state, is_hard(snapshot)) == (State.UNKNOWN, False)
    told = {found.device: found.message for found in snapshot.findings if found.code == "device.missing"}
    assert all("instead of all its former devices" in told[f"acme:hl{n}"] for n in (0, 1))
    assert "does not print it any more" in told["acme:hl2"]


def test_a_board_that_comes_back_while_its_sibling_goes_renames_nothing(site: Site) -> None:
    """Both were there together, so one is not the other."""
    for called in ("hl0 hl1", "hl1", "hl0"):
        snapshot = site.rounds(*cards(called))[-1]
    told = {found.device: found.message for found in snapshot.findings if found.code == "device.missing"}
    assert "does not print it any more" in told["acme:hl1"]


LISTS = st.lists(
    st.tuples(st.permutations([f"hl{n}" for n in range(7)]), st.integers(1, 5), st.lists(st.booleans(), min_size=5)),
    min_size=2,
    max_size=5,
)


@given(LISTS, st.booleans())
def test_whatever_a_script_calls_them_no_two_boards_have_one_name(
    lists: list[tuple[list[str], int, list[bool]]], with_serials: bool
) -> None:
    """And one that tells its serial has the same name for ever."""
    memory, owners = KnownDevices(), dict[str, str]()
    for names_now, count, tells in lists:
        told = tuple(
            Device(
                id=f"acme:{name}",
                kind=DeviceKind.ACCELERATOR,
                vendor="acme",
                model="X",
                backend=TOOL,
                serial=serial(n) if with_serials or tells[n] else None,
                pci=address(n) if tells[-n] else None,
            )
            for n, name in enumerate(names_now[:count])
        )
        found = recognised(memory, told)
        assert len({entry.id for entry in found}) == count
        if with_serials:
            assert all(owners.setdefault(entry.serial or "", entry.id) == entry.id for entry in found)
        memory = remember(memory, found, {}, at())


def test_another_uuid_in_a_slot_is_another_board(site: Site) -> None:
    """Its address alone is no witness against that."""
    site.rounds(*cards("hl0 hl1", uuid=uuid, pci=address))
    exchanged = cards("hl0 hl1", uuid=lambda n: f"NEWER-000{n}" if n else uuid(n), pci=address)
    snapshot = site.rounds(*exchanged)[-1]
    assert unproven(snapshot) == {uuid(1)}


def test_a_part_that_is_not_listed_beside_its_board_is_no_lost_board(site: Site) -> None:
    """A board that is split otherwise has other parts."""

    def split(*parts: str) -> list[dict[str, Any]]:
        return [device("hl0", serial="A1"), *(device(name, parent="hl0") for name in parts)]

    site.rounds(*split("p0", "p1"))
    part = next(entry for entry in site.listed if entry.id == "acme:p0")
    found = site.rounds(*split("q0", "q1"), count=4)
    failure = site.sample("fast", part).failure
    assert failure is not None
    assert failure.detail == "command.acme lists its board, and not this part any more"
    assert not any(map(is_hard, found))
    assert found[-1].verdict.state is State.OK, found[-1].verdict


def board(name: str, number: str, peer: str, **more: Any) -> Device:
    """Return a board with a link to *peer*."""
    links = (Link(0, peer),)
    return Device(
        id=name, kind=DeviceKind.ACCELERATOR, vendor="acme", model="X", backend=TOOL, serial=number, links=links, **more
    )


def test_links_and_parts_lead_to_the_names_that_are_kept() -> None:
    """A peer that nobody knows would be a link to nowhere."""
    known = (board("acme:hl0", "A1", "acme:hl1"), board("acme:hl1", "A2", "acme:hl0"))
    memory = remember(KnownDevices(), known, {}, at())
    part = board("acme:p", "A2", "acme:x0", parent="acme:x1")
    told = recognised(memory, (board("acme:x0", "A1", "acme:x1"), board("acme:x1", "A2", "acme:x0"), part))
    assert [msgspec.structs.replace(entry, called=None) for entry in told[:2]] == list(known)
    assert [entry.called for entry in told[:2]] == ["acme:x0", "acme:x1"]
    assert (told[2].parent, told[2].links) == ("acme:hl1", (Link(0, "acme:hl0"),))


def test_a_new_board_under_the_name_of_another_one_is_called_by_its_serial(site: Site) -> None:
    """The old one keeps its name; what is on it stays on it."""
    site.rounds(*cards("hl0 hl1", serial=serial))
    moved = [device("hl0", serial="NEW"), device("hl1", serial=serial(0)), device("hl2", serial=serial(1))]
    for snapshot in site.rounds(*moved, count=3)[1:]:
        assert names(snapshot) == {"acme:hl0": serial(0), "acme:hl1": serial(1), "acme:new": "NEW"}
        assert snapshot.verdict.state is State.OK


def test_two_groups_agree_about_the_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first group of a round is read before the devices are listed anew."""
    monkeypatch.setattr("nodevet.checks.backends.command.backend.LIFELINE", None)
    site = Site(tmp_path, ("fast", "slow"))
    slow = {"quantity": "ecc_enabled", "value": True}

    def both(called: str) -> None:
        site.tool.print(*cards(called, serial=serial), group="fast")
        site.tool.print(*(device(name, slow, serial=serial(n)) for n, name in enumerate(called.split())), group="slow")

    both("hl0 hl1")
    site.rounds()
    both("hl1 hl2")
    for snapshot in site.rounds(count=4):
        assert snapshot.verdict.state is State.OK, snapshot.verdict
        assert heat(snapshot) == {"acme:hl0": 45, "acme:hl1": 46}


def test_what_the_backend_says_in_the_round_of_the_update_names_the_change(site: Site) -> None:
    """It is no word of a driver."""
    site.rounds(*cards("hl0 hl1"))
    site.tool.print(*cards("accel0 accel1"))
    for entry in site.listed:
        with pytest.raises(BackendError, match="under new names") as found:
            site.backend.read("fast", entry)
        assert (found.value.failure.kind, found.value.failure.of_driver) == (FailureKind.ERROR, False)


@pytest.mark.parametrize("then", ["accel0 accel1 accel2", "hl1 hl2 hl3", "hl2 hl0 hl1"])
def test_a_serial_that_is_not_told_for_once_leaves_the_board_its_name(site: Site, then: str) -> None:
    """The script's present name says which board it is, as it does of one that never told a serial."""
    site.rounds(*cards("hl0 hl1 hl2", serial=serial))
    site.rounds(*cards(then, serial=serial))
    for restart in (False, True):
        for silent in ((0,), (1, 2), (0, 1, 2)):
            told = cards(then, serial=serial)
            told[silent[0]]["serial"] = "N/A"
            for entry in [told[n] for n in silent[1:]]:
                del entry["serial"]
            for snapshot in site.rounds(*told, count=2):
                assert snapshot.verdict.state is State.OK, snapshot.verdict
                assert {name: heat(snapshot)[name] for name in names(snapshot)} == {
                    "acme:hl0": 45, "acme:hl1": 46, "acme:hl2": 47,
                }  # fmt: skip
            site.rounds(*cards(then, serial=serial))
        if not restart:
            site.restart()


@pytest.mark.parametrize("then", ["accel0 accel1 accel2", "hl1 hl2 hl3"])
def test_the_only_board_that_tells_no_serial_is_the_only_one_that_is_left(site: Site, then: str) -> None:
    """Its siblings say who they are; of two nobody knows which is which."""
    told = {"serial": lambda n: serial(n) if n else "N/A"}
    site.rounds(*cards("hl0 hl1 hl2", **told))
    for snapshot in site.rounds(*cards(then, **told)):
        assert snapshot.verdict.state is State.OK, snapshot.verdict
        assert heat(snapshot) == {"acme:hl0": 45, "acme:hl1": 46, "acme:hl2": 47}


@pytest.mark.parametrize("told", [{}, {"serial": serial}], ids=["names alone", "serials"])
def test_boards_that_come_one_after_the_other_after_a_boot_close_no_gate(site: Site, told: dict[str, Any]) -> None:
    """Before, each boot left a drain: what the first list lacked was gone for good, though it came a moment later."""
    all_of_them = cards("hl0 hl1 hl2", **told)
    site.rounds(*all_of_them)
    for boot in ("boot-2", "boot-3"):
        site.restart(boot)
        site.seconds = SINCE_BOOT + 30
        for count in (1, 2):
            snapshot = site.round(*all_of_them[:count])
            assert (snapshot.verdict.state, is_hard(snapshot)) == (State.UNKNOWN, False)
            assert "since the boot" in snapshot.verdict.reason
        assert site.rounds(*all_of_them)[-1].verdict.state is State.OK
    site.restart("boot-3")
    snapshot = site.round(*all_of_them[:2])
    assert (snapshot.verdict.state, is_hard(snapshot)) == (State.UNKNOWN, False)
    assert "does not print it any more" in snapshot.verdict.reason, "one of this boot is not awaited"


def test_a_board_that_was_listed_in_this_boot_is_not_awaited(site: Site) -> None:
    """All were listed at once after the boot, half a minute ago: one that is gone then does not come any more."""
    all_of_them = cards("hl0 hl1 hl2", serial=serial)
    site.rounds(*all_of_them)
    site.restart("boot-2")
    site.seconds = SINCE_BOOT + 30
    site.rounds(*all_of_them)
    snapshot = site.rounds(*all_of_them[:2])[-1]
    missing = {f.device: f.message for f in snapshot.findings if f.code == "device.missing"}
    assert "does not print it any more" in missing["acme:hl2"]


def test_a_board_that_does_not_come_after_a_boot_is_not_awaited_for_ever(site: Site) -> None:
    """It is awaited for ten minutes after the boot, also where the agent was started anew meanwhile."""
    all_of_them = cards("hl0 hl1 hl2", serial=serial)
    site.rounds(*all_of_them)
    site.restart("boot-2")
    site.seconds = SINCE_BOOT + 500
    assert "since the boot" in site.rounds(*all_of_them[:2])[-1].verdict.reason
    site.restart("boot-2")
    site.seconds = SINCE_BOOT + 590
    assert "does not print it any more" in site.rounds(*all_of_them[:2])[-1].verdict.reason


def test_a_board_is_known_by_the_name_that_it_was_called_last() -> None:
    """Every index has moved by one since the boards were first listed; now none of them tells a serial."""
    known = [
        msgspec.structs.replace(
            gpu(),
            id=f"acme:hl{n}",
            called=f"acme:hl{n + 1}",
            backend="command.acme",
            uuid=None,
            pci=None,
            serial=f"S{n}",
        )
        for n in range(3)
    ]
    told = [msgspec.structs.replace(entry, id=entry.called, called=None, serial=None) for entry in known]
    assert same_boards(known, told) == {"acme:hl1": "acme:hl0", "acme:hl2": "acme:hl1", "acme:hl3": "acme:hl2"}


def test_a_board_whose_bus_was_numbered_anew_is_known_by_its_serial() -> None:
    """The number of the chip stays; another UUID of the same form, or another serial, is another board."""
    board = msgspec.structs.replace(gpu(), id="acme:a", backend="command.acme", uuid=None, serial="S1")
    moved = msgspec.structs.replace(board, id="0000:99:00.0", pci="0000:99:00.0")
    assert same_boards([board], [moved]) == {"0000:99:00.0": "acme:a"}
    assert same_boards([board], [msgspec.structs.replace(moved, serial="S2")]) == {}
    assert same_boards([board], [msgspec.structs.replace(moved, serial=None)]) == {}


@pytest.mark.parametrize(
    ("boot", "listed", "instead"),
    [
        ("boot-2", ("a", "b", "d"), {"c": ("d",)}),
        ("boot-2", ("a", "d", "e"), {"b": ("d", "e"), "c": ("d", "e")}),
        ("boot-2", ("a", "d"), {"b": (), "c": ()}),
        ("boot-2", ("a", "b"), {"c": ()}),
        ("boot-1", ("a", "b", "d"), {"c": ()}),
    ],
)
def test_addresses_that_a_boot_numbered_anew_prove_no_loss(
    boot: str, listed: tuple[str, ...], instead: dict[str, tuple[str, ...]]
) -> None:
    """As many new boards as are missing may be those; within one boot no address changes."""

    def boards(names: tuple[str, ...]) -> list[Device]:
        board = msgspec.structs.replace(gpu(), backend="command.acme", uuid=None, serial=None)
        return [msgspec.structs.replace(board, id=name, pci=f"0000:{name * 2}:00.0") for name in names]

    memory = remember(KnownDevices({}), boards(("a", "b", "c")), {}, at(boot="boot-1"))
    seen = remember(memory, boards(listed), {}, at(100, boot=boot)).seen
    assert {name: seen[name].instead for name in ("a", "b", "c") if seen[name].unlisted} == instead
