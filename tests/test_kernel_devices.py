"""Which device a line of the kernel is about: what is told of one takes nothing from another."""

from __future__ import annotations

import re

import pytest
from fakes.views import GPU, PCIE, SIBLING, at, event, gpu, healthy, judge, reader
from hypothesis import given
from hypothesis import strategies as st

from nodevet.checks.core.errors import ModelError
from nodevet.checks.core.model import (
    NODE,
    WHOLE,
    Action,
    AgentInfo,
    Clearing,
    Episode,
    EpisodeState,
    Event,
    FaultClass,
    Instant,
    Outcome,
    Part,
    PartKind,
    Provenance,
    Snapshot,
    State,
)
from nodevet.checks.core.parts import at_address, unit_of
from nodevet.checks.engine.engine import ConfiguredCheck, Engine
from nodevet.checks.engine.registry import discover
from nodevet.checks.kernel_log.dedupe import Deduplicator
from nodevet.checks.kernel_log.lines import split_record
from nodevet.checks.kernel_log.parse import KernelLogParser
from nodevet.checks.kernel_log.rules import is_same_address
from nodevet.checks.reference.kernel_policy import policy_of, told_policy

CARD = "mlx5_core 0000:{}:00.0: poll_health:796:(pid 0): Fatal error 1 detected"
SWITCH = "nvidia-nvswitch{}: SXid (PCI:0000:0{}:00.0): 20034, Fatal, Link 48 LTSSM Fault Up"
PORT = "pcieport 0000:c0:01.{}: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Data Link Layer, (Receiver ID)"
CLOSED = "pcieport 0000:c0:01.{}: DPC: containment event, status:0x1f01 source:0x0000"
BOARD = "accel accel{}: Device heartbeat failed! PCI link is broken"
NEIGHBOURS = {
    "cards": (CARD.format("03"), CARD.format("c3")),
    "switches": (SWITCH.format(0, 5), SWITCH.format(3, 8)),
    "ports of one number": (PORT.format(1), PORT.format(3)),
    "closed ports of one number": (CLOSED.format(1), CLOSED.format(3)),
    "boards that their driver numbers": (BOARD.format(3), BOARD.format(5)),
}
"""Two devices that no reader lists, and what the kernel says when each fails."""

FIRMWARE = "nvidia 0000:06:00.0: Direct firmware load for nvidia/570.172.08/gsp_ga10x.bin failed with error {}"
NOT_FOUND = "NVRM: GPU0 RmFetchGspRmImages: No firmware image found"
NOT_INITIALISED = "NVRM: GPU 0000:{}:00.0: RmInitAdapter failed! ({}:1697)"
ECHO = "NVRM: GPU 0000:06:00.0: rm_init_adapter failed, device minor number 1"


def device_of(text: str) -> str:
    """Return the DEVICE that dev_printk gives a line, by the address or number that the line begins with."""
    if board := re.match(r"accel accel(\d+)", text):
        return f"c261:{board[1]}"
    address = re.match(r"[a-z][\w-]* (\w{4}:\w\w:\w\w\.\d)", text)
    return f"+pci:{address[1]}" if address else ""


def told(*texts: str, seconds: float = 0.0) -> list[Event]:
    """Return the events in these records of the kernel, a microsecond apart."""
    parser = KernelLogParser()
    for number, text in enumerate(texts):
        device = device_of(text)
        keys = f" SUBSYSTEM=pci\n DEVICE={device}\n" if device else ""
        stamp = 1_000_000 + int(seconds * 1e6) + number
        line = split_record(f"4,{number},{stamp},-;{text}\n{keys}")
        assert line is not None
        parser.feed(line, at(seconds))
    return parser.take()


class Desk:
    """An engine that judges the kernel log alone, with two healthy accelerators."""

    def __init__(self) -> None:
        """Begin healthy."""
        self.seconds = 0.0
        checks = [ConfiguredCheck(check, check.policy()) for check in discover() if check.name == "kernel-log"]
        self.engine = Engine(checks, node="n1", clock=lambda: self.now)
        self.engine.take_devices("nvidia", (gpu(), gpu(SIBLING, "0000:2b:00.0")))
        self.engine.take_readers((reader("nvidia", last_round=self.now),))

    @property
    def now(self) -> Instant:
        """Return the present moment."""
        return at(self.seconds)

    def log(self, *texts: str) -> Snapshot:
        """Let the kernel say *texts*, a minute later, and judge."""
        self.seconds += 60.0
        for found in told(*texts, seconds=self.seconds):
            self.engine.take_event(found)
        return self.engine.evaluate(AgentInfo(version="0", started=at(), interval_seconds=10)).snapshot


def faults(snapshot: Snapshot) -> list[Episode]:
    """Return what stands of the kernel log."""
    return [episode for episode in snapshot.episodes if episode.check == "kernel-log"]


@pytest.mark.parametrize("pair", NEIGHBOURS)
def test_two_devices_that_fail_at_once_are_two_faults(pair: str) -> None:
    """The second is neither a repeat of the first, nor does its text take the place of the first one's."""
    found = told(*NEIGHBOURS[pair])
    seen = Deduplicator()
    assert [seen.admit(one) for one in found] == [True, True]
    assert [seen.admit(one) for one in found] == [False, False]
    first, second = faults(Desk().log(*NEIGHBOURS[pair]))
    assert first.key.device == second.key.device == NODE
    assert first.key.part != second.key.part
    for episode, text in zip((first, second), NEIGHBOURS[pair], strict=True):
        assert text.split(": ")[0] in episode.finding.message


@pytest.mark.parametrize("pair", NEIGHBOURS)
def test_a_word_about_one_device_of_the_node_is_none_about_another(pair: str) -> None:
    """Who knows that one card is broken has not said that the next one may break unseen."""
    desk = Desk()
    (known,) = faults(desk.log(NEIGHBOURS[pair][0]))
    desk.engine.acknowledge(known.key, note="is being replaced", actor="anna")
    assert desk.log().verdict.state is not State.FAILED
    assert desk.log(NEIGHBOURS[pair][0]).verdict.state is not State.FAILED  # a repeat of what is known
    after = desk.log(NEIGHBOURS[pair][1])
    assert after.verdict.state is State.FAILED
    assert {one.key.part: one.state for one in faults(after)}[known.key.part] is EpisodeState.ACKNOWLEDGED


def test_a_text_makes_one_finding_however_many_addresses_it_names() -> None:
    """Who writes it chooses them; and a device that a reader lists is named by that alone."""
    texts = tuple(
        event("pcie.aer", pci=f"0000:{n:02x}:00.0", sequence=n, provenance=Provenance.TEXT) for n in range(3, 9)
    )
    found = [one for one in judge("kernel-log", healthy(events=texts)) if one.code == "text.pcie.aer"]
    assert {(one.device, one.part) for one in found} == {(NODE, WHOLE)}
    own = [one for one in judge("kernel-log", healthy(events=(event("pcie.aer", pci="0000:1b:00.0"),))) if one.bad]
    assert [(one.device, one.part) for one in own] == [(GPU, WHOLE)]
    nameless = [one for one in judge("kernel-log", healthy(events=(event("memory.mce_ue", pci=None),))) if one.bad]
    assert [(one.device, one.part) for one in nameless] == [(NODE, WHOLE)]


def test_a_part_of_the_node_is_named_by_its_address() -> None:
    """What its driver calls it otherwise is its own word; nothing else is a name."""
    assert str(at_address("0000:c0:01.1")) == "pcie 0000:c0:01.1"
    assert str(at_address("accel3")) == "pcie vendor:accel3"
    assert at_address("10000:e1:00.0").kind is PartKind.PCIE
    for name in ("c0:01.1", "0000:c0:01.1 x", "x"):
        with pytest.raises(ModelError):
            Part(PartKind.PCIE, name)
    with pytest.raises(ModelError):
        Part(PartKind.LINK, "0000:c0:01.1")
    assert Part(PartKind.PCIE) == PCIE


def test_functions_tell_devices_apart_where_both_are_stated() -> None:
    """NVIDIA's driver names one GPU now with, now without."""
    assert is_same_address("0000:1b:00", "0000:1b:00.0") and is_same_address("0000:1b:00.0", "0000:1b:00.0")
    assert not is_same_address("0000:c0:01.1", "0000:c0:01.3")
    assert not is_same_address("0000:c0:01", "0000:c1:01")
    nvml = event("nvidia.xid.79", source="nvml", pci="0000:1b:00.0", provenance=Provenance.DRIVER)
    seen = Deduplicator()
    assert seen.admit(event("nvidia.xid.79")) and not seen.admit(nvml)


@given(order=st.permutations([0, 1]))
def test_the_device_of_the_stated_function_comes_first(order: list[int]) -> None:
    """Virtual functions of one board share bus and device."""
    virtual = (gpu("VF-1", "0000:1b:00.1"), gpu("VF-2", "0000:1b:00.2"))
    view = healthy(devices=tuple(virtual[place] for place in order))
    for device in virtual:
        found = view.by_pci(device.pci)
        assert found is not None and found.id == device.id
    assert view.by_pci("0000:1b:00") is not None


def test_a_port_that_was_closed_is_not_lost_in_the_error_of_another_device() -> None:
    """What asks a device behind a closed port gets no answer, and says so: an error that loses one transaction."""
    lost = "mlx5_core 0000:44:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer"
    found = told(CLOSED.format(1), lost)
    assert [(one.code, one.pci) for one in found] == [("pcie.dpc", "0000:c0:01.1"), ("pcie.aer", "0000:44:00.0")]
    assert [told_policy(one).gates for one in found] == [True, False]
    own = "pcieport 0000:c0:01.1: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer"
    (joined,) = told(CLOSED.format(1), own)
    assert (joined.code, joined.fields["dpc_status"]) == ("pcie.aer", "0x1f01")
    behind = "nvme 0000:c1:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Data Link Layer"
    assert [one.pci for one in told(CLOSED.format(1), behind)] == ["0000:c1:00.0"]


MACHINE_CHECK = (
    "mce: [Hardware Error]: CPU {}: Machine Check Exception: 5 Bank 7: be00000000800400",
    "mce: [Hardware Error]: TSC 4a2b3c4d ADDR 10000 MISC 86",
    "mce: [Hardware Error]: PROCESSOR 0:806f8 TIME 1795000000 SOCKET {} APIC 40 microcode 2b000181",
)
AMD_CHECK = (
    "[Hardware Error]: Uncorrected, software restartable error.",
    "[Hardware Error]: CPU:{} (19:1:1) MC0_STATUS[Over|UE|MiscV|AddrV|-|-|-|UECC|-|Poison|-]: 0xbc2020000001085b",
    "[Hardware Error]: Error Addr: 0x0000001234567890",
    "[Hardware Error]: PPIN: 0x02b6a1f3c0de{:04x}",
)
MEMORY_RECORD = (
    "{{{}}}[Hardware Error]: event severity: fatal",
    "{{{}}}[Hardware Error]:   section_type: memory error",
    "{{{}}}[Hardware Error]:    DIMM location: P{} DIMMA1 ",
)
NUMBERED = "NVRM: GPU{} kgspHealthCheck: GPU has fallen off the bus"
INTERFACE = "NETDEV WATCHDOG: ens{}f0 (mlx5_core): transmit queue 3 timed out"
UNITS = {
    "processors": tuple(
        (MACHINE_CHECK[0].format(cpu), MACHINE_CHECK[1], MACHINE_CHECK[2].format(socket))
        for cpu, socket in ((3, 0), (67, 1))
    ),
    "processors by their own numbers": tuple(
        (AMD_CHECK[0], AMD_CHECK[1].format(cpu), AMD_CHECK[2], AMD_CHECK[3].format(cpu)) for cpu in (2, 99)
    ),
    "modules of memory": tuple(tuple(text.format(n, n) for text in MEMORY_RECORD) for n in (1, 2)),
    "boards by number": tuple((NUMBERED.format(n),) for n in (3, 5)),
    "interfaces": tuple((INTERFACE.format(n),) for n in (1, 2)),
}
"""Two units of the node without an address, and what the kernel says when each fails."""


@pytest.mark.parametrize("pair", UNITS)
def test_units_without_an_address_are_told_apart_by_what_the_kernel_calls_them(pair: str) -> None:
    """A module of memory that is known to be broken hides no other one, and of two at once each is told."""
    first, second = UNITS[pair]
    found = told(*first, *second)
    seen = Deduplicator()
    assert [seen.admit(one) for one in found] == [True, True]
    assert len({one.key.part for one in faults(Desk().log(*first, *second))}) == 2
    desk = Desk()
    (known,) = faults(desk.log(*first))
    assert known.key.device == NODE and known.key.part != WHOLE
    desk.engine.acknowledge(known.key, note="is being replaced", actor="anna")
    assert [one.state for one in faults(desk.log(*first))] == [EpisodeState.ACKNOWLEDGED]  # a repeat of what is known
    after = {one.key.part: one.state for one in faults(desk.log(*second))}
    assert after.pop(known.key.part) is EpisodeState.ACKNOWLEDGED
    assert list(after.values()) == [EpisodeState.OPEN]


@pytest.mark.parametrize("pair", ["processors", "processors by their own numbers", "modules of memory"])
def test_a_fault_waits_for_the_line_that_names_its_unit(pair: str) -> None:
    """A serial console prints a line in 10 ms, so that a read of the log may end between any two."""
    texts = UNITS[pair][0]
    parser = KernelLogParser()
    for number, text in enumerate(texts):
        assert parser.take(settled_before=at(-1.0)) == []
        line = split_record(f"2,{number},{number},-;{text}\n")
        assert line is not None
        parser.feed(line, at())
    (found,) = parser.take(settled_before=at(-1.0))
    assert unit_of(found.fields)
    (alone,) = told(*texts[:-1])
    assert unit_of(alone.fields) == "" and told_policy(alone).gates  # it does not wait for ever


def test_a_unit_is_that_of_its_own_error() -> None:
    """A corrected error behind it names its processor, too."""
    corrected = "mce: [Hardware Error]: CPU 67: Machine Check: 0 Bank 7: 8c00004000010090"
    lines = (*UNITS["processors"][0][:2], corrected, UNITS["processors"][1][2])
    found = [(one.code, unit_of(one.fields)) for one in told(*lines)]
    assert found == [("memory.mce_ue", ""), ("memory.mce_ce", "SOCKET 1")]


def initialised(*texts: str) -> Event:
    """Return the one event in the lines of a board that could not be initialised."""
    (found,) = told(*texts)
    assert found.code == "nvidia.driver.rm_init_failed"
    return found


@pytest.mark.parametrize("error", [-4, -12, -13, -512])
def test_a_process_that_gets_no_firmware_while_it_opens_a_gpu_says_nothing_of_the_board(error: int) -> None:
    """The driver reads its firmware within the open() of whoever comes first, and the kernel may refuse it to that one.

    Any user may kill his program (EINTR, ERESTARTSYS), and fill the memory of his job (ENOMEM); a site may have
    nvidia-smi killed after ten seconds, and a reader of ours is killed at its deadline.
    """
    killed = initialised(FIRMWARE.format(error), NOT_FOUND, NOT_INITIALISED.format("06", "0x61:0x56"), ECHO)
    policy = told_policy(killed)
    assert (policy.outcome, policy.gates, policy.fault_class) == (Outcome.WARN, False, FaultClass.APPLICATION)
    assert (policy.clearing, policy.action) == (Clearing.APPLICATION_EVENT, Action.RESTART_APP)


@pytest.mark.parametrize(
    "texts",
    [
        (FIRMWARE.format(-2), NOT_FOUND, NOT_INITIALISED.format("06", "0x61:0x56")),
        (FIRMWARE.format(-42), NOT_FOUND, NOT_INITIALISED.format("06", "0x61:0x56")),
        (FIRMWARE.format(-4), NOT_INITIALISED.format("07", "0x61:0x56")),
        (FIRMWARE.format(-4), NOT_INITIALISED.format("06", "0x23:0x65")),
        (NOT_FOUND, NOT_INITIALISED.format("06", "0x61:0x56")),
    ],
    ids=["no file", "another error", "another board", "another stage", "no word of the kernel"],
)
def test_every_other_failure_to_initialise_is_one(texts: tuple[str, ...]) -> None:
    """A file that is missing, another board, and what failed after the driver went on without the file."""
    assert told_policy(initialised(*texts)).gates


def test_a_board_that_fails_behind_a_process_that_was_killed_is_told() -> None:
    """One is excused, not the next; and the excuse is no repeat of it."""
    killed = (FIRMWARE.format(-4), NOT_FOUND, NOT_INITIALISED.format("06", "0x61:0x56"))
    found = told(*killed, NOT_INITIALISED.format("06", "0x62:0x40"))
    assert [told_policy(one).gates for one in found] == [False, True]
    seen = Deduplicator()
    assert [seen.admit(one) for one in found] == [True, True]


OOM = tuple(
    f"[  {pid}]  1000  {pid}    12345     6789   524288        0             0 python" for pid in range(4000, 4040)
)


@pytest.mark.parametrize("place", [1, 2, 3])
def test_what_users_have_the_kernel_print_between_does_not_break_a_board(place: int) -> None:
    """The job that fills its memory has the kernel print all of its processes meanwhile, as often as it likes."""
    texts = [FIRMWARE.format(-12), NOT_FOUND, NOT_INITIALISED.format("06", "0x61:0x56"), ECHO]
    texts[place:place] = OOM
    assert not told_policy(initialised(*texts)).gates
    assert Desk().log(*texts).verdict.state is not State.FAILED


def test_an_echo_behind_other_lines_is_known_in_a_later_read_and_of_its_own_board() -> None:
    """Of another board, or of another moment, it tells a failure of its own."""
    parser = KernelLogParser()

    def read(seconds: float, *texts: str) -> list[Event]:
        for number, text in enumerate(texts):
            device = device_of(text)
            keys = f" SUBSYSTEM=pci\n DEVICE={device}\n" if device else ""
            line = split_record(f"4,{number},{1_000_000 + int(seconds * 1e6) + number},-;{text}\n{keys}")
            assert line is not None
            parser.feed(line, at(seconds))
        return parser.take()

    (killed,) = read(0.0, FIRMWARE.format(-12), NOT_FOUND, NOT_INITIALISED.format("06", "0x61:0x56"))
    assert not told_policy(killed).gates
    assert read(0.5, *OOM) == read(1.0, ECHO) == []
    (other,) = read(1.5, ECHO.replace("06:00", "07:00"))
    (later,) = read(60.0, ECHO)
    assert told_policy(other).gates and told_policy(later).gates


ANNOUNCED = "pcieport 0000:60:01.0: AER: Uncorrectable (Non-Fatal) error message received from 0000:61:00.0"
AFTER = {
    "corrected": "nvidia 0000:61:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)",
    "corrected elsewhere": "nvme 0000:c1:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer",
    "another device": "nvme 0000:c1:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer",
}


@pytest.mark.parametrize("after", AFTER)
def test_an_announced_error_without_details_is_lost_in_no_other(after: str) -> None:
    """It finds none where they are masked or the device does not answer, and a bad link has corrected errors."""
    found = told(f"{ANNOUNCED} (no details found", AFTER[after])
    assert [(one.code, policy_of(one).outcome) for one in found] == [
        ("pcie.aer", Outcome.WARN),
        ("pcie.aer", Outcome.PASS if "corrected" in after else Outcome.WARN),
    ]
    assert found[0].pci == "0000:61:00.0"
    seen = Deduplicator()
    assert [seen.admit(one) for one in found] == [True, True]
    snapshot = Desk().log(f"{ANNOUNCED} (no details found", AFTER[after])
    assert "pcie 0000:61:00.0" in {str(one.key.part) for one in faults(snapshot)}


@pytest.mark.parametrize("device", ["0000:61:00.0", "0000:60:01.0"])
def test_an_announced_error_is_told_once_with_its_details(device: str) -> None:
    """By the device that the header names, or the port itself."""
    details = f"nvidia {device}: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer"
    (found,) = told(ANNOUNCED.replace("0000:61:00.0", device), details)
    assert (found.pci, found.fields["type"]) == (device, "Transaction Layer")
