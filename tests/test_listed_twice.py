"""A device that two readers list: it is judged once, by the readings of one of them, and a person is told."""

from __future__ import annotations

import msgspec
import pytest
from fakes.views import CORE, GPU, GPU_READINGS, SIBLING, at, gpu, reader, sample

from nodevet.checks.core.model import NODE, AgentInfo, Device, Finding, Outcome, State
from nodevet.checks.engine.baseline import listed_twice
from nodevet.checks.engine.engine import ConfiguredCheck, Engine, Round
from nodevet.checks.engine.registry import discover
from nodevet.checks.engine.view import Cadence

TOOL = "command.acme"
SLOT = "0000:1b:00.0"
SERIAL = "1650123000017"


def of_tool(identity: str, **changes: object) -> Device:
    """Return a board as a command of the site lists it."""
    told: dict[str, object] = {"id": identity, "backend": TOOL, "uuid": None, "serial": None, "pci": None, **changes}
    return msgspec.structs.replace(gpu(), **told)


SAME = {
    "uuid": of_tool(GPU, uuid=GPU),
    "address": of_tool(SLOT, pci=SLOT),
    "serial": of_tool("acme:a", serial=SERIAL),
}


class Desk:
    """An engine of a node with the backend of a vendor and a command, in that order."""

    def __init__(self) -> None:
        """Begin at zero."""
        self.seconds = 0.0
        rate = Cadence(10, 5)
        self.engine = Engine(
            [ConfiguredCheck(entry, entry.policy()) for entry in discover()],
            node="n1",
            clock=lambda: at(self.seconds),
            cadences={("nvidia", "fast"): rate, (TOOL, "fast"): rate},
        )

    def present(self, *of_command: Device, native: tuple[Device, ...] | None = None) -> None:
        """Let both readers list devices; the command answers first, as one that starts faster does."""
        own = (gpu(serial=SERIAL), gpu(SIBLING, "0000:2b:00.0")) if native is None else native
        self.engine.take_devices(TOOL, of_command)
        self.engine.take_devices("nvidia", own)
        self.engine.take_readers((reader("nvidia", last_round=at(self.seconds)), reader(TOOL)))
        for device in own:
            self.read(device)

    def read(self, device: Device, celsius: float = 45.0) -> None:
        """Hand over a sample of *device*."""
        readings = {**GPU_READINGS, ("temperature_celsius", CORE): celsius}
        taken = msgspec.structs.replace(sample(device, readings), time=at(self.seconds), backend=device.backend)
        self.engine.take_sample(taken)

    def round(self) -> Round:
        """Judge ten seconds later."""
        self.seconds += 10
        return self.engine.evaluate(AgentInfo(version="0", started=at(), interval_seconds=10))


def told(done: Round) -> Finding:
    """Return what was said of devices that are listed twice."""
    return next(entry for entry in done.snapshot.findings if entry.code == "inventory.listed_twice")


@pytest.mark.parametrize("same", SAME)
def test_a_board_that_a_command_lists_too_is_shown_once_and_told(same: str) -> None:
    """The backend that stands first in the configuration is believed; the node is degraded until one of them stops."""
    desk = Desk()
    desk.present(SAME[same])
    desk.read(SAME[same], celsius=150)
    done = desk.round()
    finding = told(done)
    assert (finding.device, finding.outcome) == (NODE, Outcome.WARN)
    assert "GPU 0 (0000:1b:00.0) is listed by nvidia and by command.acme" in finding.message
    accelerators = [device for device in done.snapshot.devices if device.kind.value == "accelerator"]
    assert [(device.id, device.backend) for device in accelerators] == [(GPU, "nvidia"), (SIBLING, "nvidia")]
    assert {entry.backend for entry in done.snapshot.samples} == {"nvidia"}
    assert done.snapshot.verdict.state is State.DEGRADED

    for _ in range(6):
        desk.present()
        done = desk.round()
    assert told(done).outcome is Outcome.PASS
    assert done.snapshot.verdict.state is State.OK, done.snapshot.verdict
    assert [entry.device for entry in done.snapshot.samples] == [GPU, SIBLING]


def test_a_device_that_the_command_listed_alone_for_a_while_is_not_missing_later() -> None:
    """The command was faster at the first start: its name for the board goes over to the one that is kept."""
    desk = Desk()
    desk.present(SAME["serial"], native=())
    desk.read(SAME["serial"])
    assert told(desk.round()).outcome is Outcome.PASS
    for commanded in ((SAME["serial"],), ()):
        desk.present(*commanded)
        done = desk.round()
        codes = {entry.key.code for entry in done.snapshot.episodes} - {"inventory.listed_twice"}
        assert not codes
        assert [device.id for device in done.snapshot.devices] == [GPU, SIBLING]


def test_a_name_that_is_taken_is_taken_whatever_the_kind() -> None:
    """An id stands for one device on a node: a disk must not answer for a GPU."""
    disk = of_tool(GPU, kind="disk", uuid=GPU)
    assert listed_twice({"nvidia": (gpu(),), TOOL: (disk,)}) == ((disk, gpu()),)


@pytest.mark.parametrize("serial", ["N/A", "0", "unknown", "000-000"])
def test_a_serial_that_is_none_makes_no_double(serial: str) -> None:
    """Boards whose serial was never written say such things."""
    first, second = gpu(serial=serial), of_tool("acme:a", serial=serial)
    assert listed_twice({"nvidia": (first,), TOOL: (second,)}) == ()


def test_other_boards_and_parts_of_one_board_are_no_doubles() -> None:
    """Partitions share address and serial with their board; a driverless board on the bus is shown by another rule."""
    board = gpu()
    part = gpu("GPU-part", parent=board.id)
    bare = msgspec.structs.replace(board, id="pci-1", backend="host", uuid=None, serial=None)
    other = of_tool("acme:a", serial="S2", pci="0000:aa:00.0")
    assert listed_twice({"host": (bare,), "nvidia": (board, part), TOOL: (other,)}) == ()


def test_a_command_that_begins_to_tell_an_address_that_another_reader_lists_makes_none_missing() -> None:
    """The documentation asks for the address, and calls the device by it: adding it closes no gate."""
    before, after = of_tool("acme:a"), of_tool(SLOT, pci=SLOT)
    desk = Desk()
    for _ in range(3):
        desk.present(before)
        desk.read(before)
        assert not desk.round().snapshot.episodes
    for _ in range(3):
        desk.present(after)
        done = desk.round()
        missing = {f.message for f in done.snapshot.findings if f.code == "device.missing" and f.device == before.id}
        assert missing, "it is named"
        assert all("instead of all its former devices" in message for message in missing), missing
        assert not [f.message for f in done.snapshot.findings if f.outcome is Outcome.FAIL]
