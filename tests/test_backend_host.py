"""The host backend on trees of /proc and /sys: a server, a virtual machine, and files that hold nonsense."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from fakes.clocks import SteppedClock
from fakes.heard import Heard
from fakes.host_tree import (
    CPU,
    EDAC,
    HWMON,
    PCI,
    Files,
    amd_server,
    pci_device,
    processor_files,
    server,
    virtual_machine,
    write_tree,
)
from fakes.node_exporter import NodeExporter
from fakes.pass_time import pass_time

from nodevet.agent.config.reader_plan import ReaderPlan
from nodevet.agent.readers.supervisor import Supervisor
from nodevet.agent.readers.witness import Surroundings
from nodevet.checks.backends.base import BackendError
from nodevet.checks.backends.host.backend import HostBackend, open_backend
from nodevet.checks.backends.sound import sound_readings
from nodevet.checks.backends.tree import Tree
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.model import (
    AgentInfo,
    Device,
    DeviceKind,
    Episode,
    FailureKind,
    Firmware,
    Instant,
    Outcome,
    ReaderState,
    ReaderStatus,
    Reading,
    ReadingStatus,
    Sample,
    Snapshot,
)
from nodevet.checks.core.quantities import measured
from nodevet.checks.core.wire import Progress
from nodevet.checks.engine.engine import ConfiguredCheck, Engine
from nodevet.checks.engine.registry import discover
from nodevet.checks.engine.view import Cadence

REAL_SECONDS = 20.0
BOARD = "sys/class/dmi/id"

Answers = dict[tuple[str, str], Reading]


class TestContext:
    """What a child lends its backend, for a tree."""

    __test__ = False

    def __init__(self, root: Path) -> None:
        """Stand for a child that reads below *root*."""
        self.root = str(root)
        self.options: dict[str, object] = {}
        self.progress, descriptor = Progress.create()
        os.close(descriptor)

    def now(self) -> Instant:
        """The present moment."""
        return SystemClock(self.root).instant()

    def note(self, level: str, event: str, **fields: str) -> None:
        """Take a line for the log."""


Opener = Callable[[Files], HostBackend]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Opener]:
    """A function that writes a tree and opens the backend on it, as a reader does; psutil reads this machine after."""
    before = psutil.PROCFS_PATH
    yield lambda files: open_backend(TestContext(write_tree(tmp_path, files)))
    psutil.PROCFS_PATH = before


def devices(backend: HostBackend) -> dict[str, Device]:
    """The devices by id."""
    return {device.id: device for device in backend.devices()}


def read(backend: HostBackend, device: str) -> Answers:
    """The readings of every group of a device, by quantity and part."""
    known = devices(backend)[device]
    readings = [measured(reading) for group in backend.groups for reading in backend.read(group, known)]
    return {(reading.quantity, str(reading.part)): reading for reading in readings}


def values(answers: Answers) -> dict[str, object]:
    """What was measured, by quantity and part in words."""
    return {
        f"{quantity} {part}".removesuffix(" device"): reading.value
        for (quantity, part), reading in answers.items()
        if reading.status is ReadingStatus.OK
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"proc/cpuinfo": "flags\t\t: fpu hypervisor lahf_lm\n"}, True),
        ({"proc/cpuinfo": "flags\t\t: fpu vmx\nbugs\t\t: hypervisor\n"}, False),
        ({"sys/hypervisor/type": "xen\n"}, True),
        ({f"{BOARD}/sys_vendor": "QEMU\n"}, True),
        ({f"{BOARD}/sys_vendor": "Microsoft Corporation\n", f"{BOARD}/product_name": "Virtual Machine\n"}, True),
        ({f"{BOARD}/sys_vendor": "Amazon EC2\n", f"{BOARD}/product_name": "p6e-gb200.36xlarge\n"}, True),
        ({f"{BOARD}/sys_vendor": "Amazon EC2\n", f"{BOARD}/product_name": "g5g.metal\n"}, False),
        ({f"{BOARD}/sys_vendor": "NVIDIA\n", f"{BOARD}/product_name": "DGX H100\n"}, False),
    ],
)
def test_virtual_machine_is_known_by_its_processors_or_its_board(host: Opener, changes: Files, expected: bool) -> None:
    """The flag of x86, the directory of Xen, and on other processors the names in the DMI table."""
    files = server()
    if "proc/cpuinfo" in changes:
        changes = {"proc/cpuinfo": files["proc/cpuinfo"] + "\n" + changes["proc/cpuinfo"]}
    assert devices(host(files | changes))["node"].virtual is expected


def test_a_server_has_its_sockets_memory_node_and_accelerators(host: Opener) -> None:
    """Each device has a stable id and its identity; a board's graphics chip is no accelerator."""
    found = devices(host(server()))
    assert list(found) == ["node", "memory", "cpu-0", "cpu-1", "pci-0000:10:00.0", "pci-0000:90:00.0"]
    assert found["cpu-1"] == Device(
        id="cpu-1",
        kind=DeviceKind.CPU,
        vendor="intel",
        model="Xeon Test 8000",
        backend="host",
        numa_node=1,
        driver="intel_pstate",
        firmware=(Firmware("microcode", "0x2b0004d0"),),
        compute_units=2,
        maximum_clock_hertz=3_800_000_000,
    )
    assert found["memory"].memory_bytes == 1_024_000_000
    node = found["node"]
    assert (node.vendor, node.model, node.serial) == ("Test Systems", "TS-2", "S123")


def test_accelerators_show_vendor_address_and_driver(host: Opener) -> None:
    """What the PCI bus shows does not depend on a driver: one that is missing is seen as missing."""
    found = devices(host(server()))
    nvidia, amd = found["pci-0000:10:00.0"], found["pci-0000:90:00.0"]
    assert (nvidia.vendor, nvidia.pci, nvidia.pci_device_id, nvidia.driver, nvidia.numa_node) == (
        "nvidia", "0000:10:00.0", "10de:2330", "nvidia", 0,
    )  # fmt: skip
    assert (amd.vendor, amd.driver) == ("amd", None)
    assert {device.kind for device in (nvidia, amd)} == {DeviceKind.ACCELERATOR}


@pytest.mark.parametrize(
    ("vendor", "class_code", "counts"),
    [
        ("0x10de", "0x030000", True),  # a board with a display output
        ("0x10de", "0x030200", True),
        ("0x10de", "0x068000", False),  # a link switch
        ("0x10de", "0x040300", False),  # the sound of a display board
        ("0x1002", "0x038000", True),
        ("0x1002", "0x120000", True),
        ("0x1002", "0x030000", False),  # may be the graphics of a processor
        ("0x8086", "0x030000", False),
        ("0x8086", "0x038000", True),
        ("0x1da3", "0x120000", True),
        ("0x1a03", "0x030000", False),  # a management controller
    ],
)
def test_vendor_and_class_decide_what_is_an_accelerator(
    host: Opener, vendor: str, class_code: str, counts: bool
) -> None:
    """The table of vendors and classes decides, row by row."""
    files = virtual_machine() | pci_device("0000:05:00.0", vendor, "0x1234", class_code)
    assert ("pci-0000:05:00.0" in devices(host(files))) is counts


def test_virtual_functions_are_parts_of_a_device_that_is_listed(host: Opener) -> None:
    """A virtual function does not count as another accelerator."""
    files = server() | pci_device("0000:10:00.1", "0x10de", "0x2330", "0x030200")
    files[f"{PCI}/0000:10:00.1/physfn"] = "-> ../0000:10:00.0"
    assert "pci-0000:10:00.1" not in devices(host(files))


def test_a_server_is_read_whole(host: Opener) -> None:
    """Every quantity of a socket has its value in its unit; threads of one core count once."""
    assert values(read(host(server()), "cpu-1")) == {
        "temperature_celsius sensor package": 51.0,
        "temperature_slowdown_celsius sensor package": 100.0,
        "clock_hertz clock core": 2_050_000_000.0,
        "clock_maximum_hertz clock core": 3_800_000_000.0,
        "throttle_events reason core": 2 + 3,
        "throttle_seconds reason core": 0.2 + 0.3,
        "throttle_events reason package": 7,
        "throttle_seconds reason package": 1.5,
        "logical_processors": 4,
        "physical_cores": 2,
    }
    assert values(read(host({}), "memory")) == {
        "memory_total_bytes": 1_024_000_000,
        "ecc_corrected_errors memory_block controller 0": 0,
        "ecc_uncorrected_errors memory_block controller 0": 0,
        "ecc_corrected_errors memory_block controller 1": 3,
        "ecc_uncorrected_errors memory_block controller 1": 0,
    }
    assert values(read(host({}), "node")) == {
        "load_average_ratio": 0.5,
        "memory_total_bytes": 1_024_000_000,
        "memory_available_bytes": 768_000_000,
        "uptime_seconds": 86400.5,
        "logical_processors": 8,
        "physical_cores": 4,
    }


def test_uncorrected_errors_of_two_modules_are_not_those_of_one_controller(host: Opener, tmp_path: Path) -> None:
    """Where the firmware tells of errors, one controller stands for all memory."""
    files = {f"{EDAC}/mc0/ue_count": "4\n", f"{EDAC}/mc0/ue_noinfo_count": "1\n"}
    for number, label, count in ((0, "P0 DIMM_A1", 1), (3, "P1 \x1bDIMM_B2", 2), (5, "", 0)):
        files[f"{EDAC}/mc0/dimm{number}/dimm_ue_count"] = f"{count}\n"
        files[f"{EDAC}/mc0/dimm{number}/dimm_label"] = f"{label}\n"
    read_values = values(read(host(server() | files), "memory"))
    uncorrected = {name: value for name, value in read_values.items() if name.startswith("ecc_uncorrected")}
    assert uncorrected == {
        "ecc_uncorrected_errors memory_block vendor:mc0 dimm0 P0 DIMM_A1": 1,
        "ecc_uncorrected_errors memory_block vendor:mc0 dimm3 P1 DIMM_B2": 2,
        "ecc_uncorrected_errors memory_block vendor:mc0 dimm5": 0,
        "ecc_uncorrected_errors memory_block controller 0": 1,
        "ecc_uncorrected_errors memory_block controller 1": 0,
    }
    without = {name: text for name, text in files.items() if not name.endswith("dimm_ue_count")}
    for name in files.keys() - without.keys():
        (tmp_path / name).unlink()
    read_values = values(read(host({}), "memory"))
    assert read_values["ecc_uncorrected_errors memory_block controller 0"] == 4  # a kernel that counts no modules


@pytest.mark.parametrize(("total", "rest"), [(6, 3), (4, 1), (2, 1)])
def test_an_uncorrected_error_that_only_the_sum_has_is_not_lost(host: Opener, total: int, rest: int) -> None:
    """A kernel that knows the channel and not the slot may count neither a module nor "no information".

    Where an error came between two files, the sum that was read first is the smaller one.
    """
    mc0 = f"{EDAC}/mc0"
    files = {f"{mc0}/ue_count": f"{total}\n", f"{mc0}/ue_noinfo_count": "1\n", f"{mc0}/dimm0/dimm_ue_count": "3\n"}
    read_values = values(read(host(server() | files), "memory"))
    assert read_values["ecc_uncorrected_errors memory_block controller 0"] == rest


@pytest.mark.parametrize("ones", [2**32 - 1, 2**64 - 1])
@pytest.mark.parametrize("name", ["ue_count", "ue_noinfo_count", "dimm0/dimm_ue_count", "ce_count"])
def test_counter_of_ones_alone_is_in_no_sum(host: Opener, name: str, ones: int) -> None:
    """An empty register counts no error, also not what is left of it beside others."""
    counts = {"ue_count": 3, "ue_noinfo_count": 0, "dimm0/dimm_ue_count": 3, "ce_count": 0} | {name: ones}
    files = {f"{EDAC}/mc0/{key}": f"{number}\n" for key, number in counts.items()}
    every = values(read(host(server() | files), "memory"))
    assert all(value in (0, 3) for key, value in every.items() if key.startswith("ecc_"))
    core = {f"{CPU}/cpu0/thermal_throttle/core_throttle_count": f"{ones}\n"}
    files = server() | {key: "4\n" for key in server() if key.endswith("core_throttle_count")} | core
    assert "throttle_events reason core" not in values(read(host(files), "cpu-0"))


def test_a_virtual_machine_says_unsupported_and_never_zero(host: Opener) -> None:
    """Without sensors, counters and controllers nothing is measured, and each says why."""
    backend = host(virtual_machine())
    answers = read(backend, "cpu-0") | read(backend, "memory")
    missing = {quantity for (quantity, _), reading in answers.items() if reading.status is not ReadingStatus.OK}
    assert missing == {
        "temperature_celsius", "clock_hertz", "clock_maximum_hertz", "throttle_events", "throttle_seconds",
        "ecc_corrected_errors", "ecc_uncorrected_errors",
    }  # fmt: skip
    for quantity in missing:
        for (name, _), reading in answers.items():
            if name == quantity:
                assert (reading.value, reading.status) == (None, ReadingStatus.UNSUPPORTED)
                assert reading.detail


def test_amd_sensors_belong_to_the_socket_of_their_node(host: Opener) -> None:
    """The chips of two sockets are told apart by NUMA node, whatever their order."""
    backend = host(amd_server())
    assert values(read(backend, "cpu-0"))["temperature_celsius sensor package"] == 70.0
    assert values(read(backend, "cpu-1"))["temperature_celsius sensor package"] == 71.0


THROTTLE = f"{CPU}/cpu0/thermal_throttle/core_throttle_count"
TEMPERATURE = f"{HWMON}/hwmon3/temp1_input"
CORRECTED = f"{EDAC}/mc0/ce_count"


@pytest.mark.parametrize(
    ("file", "text", "device", "quantity", "status", "words"),
    [
        (TEMPERATURE, "N/A\n", "cpu-0", "temperature_celsius", "error", "holds 'N/A', which is no number"),
        (TEMPERATURE, "", "cpu-0", "temperature_celsius", "error", "holds ''"),
        (TEMPERATURE, "999000\n", "cpu-0", "temperature_celsius", "error", "implausible"),
        (f"{HWMON}/hwmon3/temp1_fault", "1\n", "cpu-0", "temperature_celsius", "unavailable", "fault of its own"),
        (CORRECTED, "many\n", "memory", "ecc_corrected_errors", "error", "ce_count holds 'many'"),
        (CORRECTED, "-1\n", "memory", "ecc_corrected_errors", "error", "implausible"),
        (THROTTLE, "\x00\n", "cpu-0", "throttle_events", "error", "holds ''"),
        ("proc/loadavg", "", "node", "load_average_ratio", "error", "empty"),
        ("proc/loadavg", "high\n", "node", "load_average_ratio", "error", "loadavg"),
        ("proc/meminfo", "MemTotal: lots kB\n", "node", "memory_total_bytes", "error", "meminfo"),
        ("proc/meminfo", "MemTotal: 1 kB\n", "node", "memory_available_bytes", "error", "no MemAvailable"),
    ],
)
def test_nonsense_in_a_file_is_told_and_never_a_value(
    host: Opener, file: str, text: str, device: str, quantity: str, status: str, words: str
) -> None:
    """A file that holds no number, or an impossible one, is an error of just that reading."""
    answers = read(host(server() | {file: text}), device)
    bad = [reading for (name, _), reading in answers.items() if name == quantity and reading.value is None]
    assert [reading.status.value for reading in bad] == [status]
    assert words in bad[0].detail


WHOLE_MEMORY = "MemTotal: 100 kB\nMemFree: 10 kB\n"


@pytest.mark.parametrize(
    ("meminfo", "total", "available", "words"),
    [
        (f"{WHOLE_MEMORY}MemAvailable: 50 kB\n", 102_400, 51_200, ""),
        (f"{WHOLE_MEMORY}Cached: 80 kB\n", 102_400, None, "/proc/meminfo holds nonsense: it has no MemAvailable"),
        (f"{WHOLE_MEMORY}MemAvailable: -5 kB\n", 102_400, None, "its MemAvailable is below zero"),
        ("MemTotal: 100 kB\nMemAvailable: 50 kB\n", None, None, "it has no MemFree"),
        ("MemFree: 100 kB\nMemAvailable: 50 kB\n", None, None, "it has no MemTotal"),
        (f"{WHOLE_MEMORY}MemAvailable:\n", None, None, "psutil does not understand it (list index out of range)"),
        (f"{WHOLE_MEMORY}MemAvailable: 50 kB\n\n\nSwap: 1 kB\n", None, None, "psutil does not understand it"),
        (f"{WHOLE_MEMORY}MemAvailable: plenty\n", None, None, "holds nonsense: invalid literal for int()"),
        (f"MemTotal: {'9' * 400} kB\nMemFree: 1 kB\nMemAvailable: 1 kB\n", None, None, "too large to convert to float"),
        ("\xff\xfe", None, None, "holds nonsense"),
        ("", None, None, "it has no Mem"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_odd_words_about_memory_cost_these_alone(
    host: Opener, meminfo: str, total: int | None, available: int | None, words: str
) -> None:
    """Whatever psutil makes of them: it raises, estimates or warns, and the load of the node is still read."""
    answers = read(host(server() | {"proc/meminfo": meminfo}), "node")
    by_name = {name: reading for (name, _), reading in answers.items()}
    assert by_name["memory_total_bytes"].value == total
    assert by_name["memory_available_bytes"].value == available
    assert words in by_name["memory_available_bytes"].detail
    assert by_name["load_average_ratio"].status is ReadingStatus.OK


def test_the_memory_of_another_root_is_never_taken_for_this_one(host: Opener, tmp_path: Path) -> None:
    """A process of which psutil reads the machine itself tells no memory of a node below another root."""
    host(server())
    elsewhere = write_tree(tmp_path / "elsewhere", server())
    backend = HostBackend(Tree(str(elsewhere), TestContext(elsewhere).progress))
    reading = read(backend, "node")["memory_total_bytes", "device"]
    assert devices(backend)["memory"].memory_bytes is None
    assert (reading.value, reading.status) == (None, ReadingStatus.ERROR)
    assert f"psutil reads {tmp_path / 'proc'} in this process, not {elsewhere / 'proc'}" in reading.detail


def test_a_read_of_memory_is_noted_while_it_lasts(
    host: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where /proc/meminfo never returns, as of a container's file system that hangs, the agent can name it."""
    host(server())
    noted: list[str] = []
    whole = psutil.virtual_memory

    def look() -> object:
        noted.append(context.progress.read())
        return whole()

    context = TestContext(tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", look)
    devices(HostBackend(Tree(context.root, context.progress)))
    assert noted == ["read /proc/meminfo"]


def test_numbers_survive_carriage_returns_and_nul_bytes(host: Opener) -> None:
    """Firmware that pads its text does not make a number unreadable."""
    files = server() | {TEMPERATURE: "47000\r\n\x00\x00"}
    assert values(read(host(files), "cpu-0"))["temperature_celsius sensor package"] == 47.0


@pytest.mark.parametrize("relative", ["proc/loadavg", "proc/uptime", "proc/meminfo"])
def test_a_file_that_every_linux_has_is_no_missing_feature(host: Opener, tmp_path: Path, relative: str) -> None:
    """Where /proc itself is incomplete the reading is an error, not unsupported."""
    backend = host(server())
    (tmp_path / relative).unlink()
    statuses = {reading.status for reading in read(backend, "node").values()}
    assert ReadingStatus.ERROR in statuses
    assert ReadingStatus.UNSUPPORTED not in statuses


def test_a_counter_that_some_cores_have_is_not_unsupported(host: Opener, tmp_path: Path) -> None:
    """A core that went offline makes the sum unknown for now, not a missing feature."""
    backend = host(server())
    (tmp_path / CPU / "cpu1/thermal_throttle/core_throttle_count").unlink()
    reading = read(backend, "cpu-0")["throttle_events", "reason core"]
    assert (reading.value, reading.status) == (None, ReadingStatus.UNAVAILABLE)


def test_a_directory_where_a_file_should_be_is_an_error(host: Opener, tmp_path: Path) -> None:
    """An unreadable attribute is told with the kernel's words."""
    backend = host(server())
    (tmp_path / TEMPERATURE).unlink()
    (tmp_path / TEMPERATURE).mkdir()
    reading = read(backend, "cpu-0")["temperature_celsius", "sensor package"]
    assert (reading.status, reading.detail) == (ReadingStatus.ERROR, f"/{TEMPERATURE}: Is a directory")


@pytest.mark.parametrize(
    ("text", "kind"), [(None, FailureKind.ERROR), ("", FailureKind.NO_DEVICES), ("nothing", FailureKind.NO_DEVICES)]
)
def test_a_tree_without_processors_cannot_be_listed(
    host: Opener, tmp_path: Path, text: str | None, kind: FailureKind
) -> None:
    """An empty or absent /proc/cpuinfo is a failure with its reason, never a machine without processors."""
    backend = host(virtual_machine())
    (tmp_path / "proc/cpuinfo").unlink()
    if text is not None:
        (tmp_path / "proc/cpuinfo").write_text(text)
    with pytest.raises(BackendError) as caught:
        backend.devices()
    assert caught.value.failure.kind is kind
    assert "cpuinfo" in caught.value.failure.detail


def test_a_socket_that_went_offline_is_not_lost(host: Opener, tmp_path: Path) -> None:
    """It answers with no old values, and nothing blames it: an administrator may take processors offline."""
    backend = host(server())
    known = devices(backend)["cpu-1"]
    write_tree(tmp_path, {"proc/cpuinfo": virtual_machine()["proc/cpuinfo"]})
    backend.devices()
    with pytest.raises(BackendError) as caught:
        list(backend.read("fast", known))
    assert (caught.value.failure.kind, caught.value.failure.of_driver) == (FailureKind.ERROR, False)


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ({}, False),
        ({"present": "0-7\n", "online": "0-7\n"}, False),
        ({"present": "0-7\n", "online": "0-1,4-5\n"}, True),
        ({"present": "0-7\n", "online": "0-5\n"}, True),
        ({"present": "0-7\n", "online": "0-6\n"}, False),
        ({"present": "0-7\n", "online": "0-3\n", "smt/control": "on\n"}, True),
        ({"present": "0-7\n", "online": "0-3\n", "smt/control": "off\n"}, False),
        ({"present": "0-7\n", "online": "0-3\n", "smt/control": "forceoff\n"}, False),
        ({"present": "0-7\n", "online": "0-1\n", "smt/control": "off\n"}, True),
        ({"present": "0-7\n"}, False),
        ({"present": "nonsense\n", "online": "0-1\n"}, False),
    ],
)
def test_processors_that_are_not_used_are_known_by_the_lists_of_the_kernel(
    host: Opener, lists: Files, expected: bool
) -> None:
    """A socket's worth of them. Which may come, as in a virtual machine that can grow, are not present and none of
    them, nor are the second threads of the cores in use where SMT is off."""
    files = {f"{CPU}/{name}": text for name, text in lists.items()} | {f"{CPU}/possible": "0-63\n"}
    assert devices(host(server() | files))["node"].offline is expected


@pytest.mark.parametrize(
    ("present", "online", "smt", "offline"),
    [
        ("0-7", "0-1,4-5", "on", True),
        ("0-7", "0-1", "off", True),
        ("0-1,4-5", "0-1,4-5", "on", False),
        ("0-1,4-5", "0-1", "off", False),
        ("0-1,4-5", "0-1,4", "on", False),
    ],
)
def test_a_socket_whose_processors_were_taken_offline_is_told_and_closes_no_gate(
    host: Opener, tmp_path: Path, present: str, online: str, smt: str, offline: bool
) -> None:
    """It ends with them back. One that the kernel does not know any more is missing, also where SMT is off or another
    processor was taken offline."""
    lists = {f"{CPU}/present": "0-7\n", f"{CPU}/online": "0-7\n"}
    backend = host(server() | lists)
    clock = SteppedClock()
    engine = Engine([ConfiguredCheck(check, check.policy()) for check in discover()], node="node", clock=clock.instant)

    def look() -> Snapshot:
        clock.advance(60.0)
        listed, now = backend.devices(), clock.instant()
        engine.take_devices("host", listed)
        for device in listed:
            readings = sound_readings(backend.read("fast", device))
            engine.take_sample(Sample("host", "fast", device.id, 1, now, 0.01, readings))
        engine.take_readers([ReaderStatus(backend="host", state=ReaderState.RUNNING, last_round=now)])
        return engine.evaluate(AgentInfo(version="0", started=now, interval_seconds=10)).snapshot

    def of_second() -> list[Episode]:
        """Return what is open on the second socket after three looks."""
        return [entry for entry in [look() for _ in range(3)][-1].episodes if entry.key.device == "cpu-1"]

    assert of_second() == []
    every = processor_files(2, 2, 2, vendor="GenuineIntel", model="Xeon Test 8000")["proc/cpuinfo"].split("\n\n")
    first = "\n\n".join(entry for entry in every if "physical id\t: 0" in entry)
    lists_now = {f"{CPU}/present": present, f"{CPU}/online": online, f"{CPU}/smt/control": smt}
    write_tree(tmp_path, {"proc/cpuinfo": first, **lists_now})
    (gone,) = of_second()
    told = ("processor.offline", Outcome.WARN, False) if offline else ("device.missing", Outcome.FAIL, True)
    assert (gone.key.code, gone.outcome, gone.outcome is Outcome.FAIL and gone.finding.hard) == told
    write_tree(tmp_path, server() | lists)
    assert [entry.key.code for entry in of_second()] == ([] if offline else ["device.missing"])


def test_a_quarter_of_a_thousand_processors_is_listed_by_number(host: Opener) -> None:
    """Sockets hold their processors by number, not by the order of the alphabet."""
    files = virtual_machine() | {
        f"{CPU}/cpu{number}/topology/physical_package_id": f"{number // 128}\n" for number in range(256)
    }
    files["proc/cpuinfo"] = "\n".join(f"processor\t: {number}\ncore id\t: {number % 128}\n" for number in range(256))
    backend = host(files)
    assert [device.compute_units for device in backend.devices() if device.kind is DeviceKind.CPU] == [128, 128]


def test_an_arm_processor_is_known_by_implementer_and_part(host: Opener) -> None:
    """Where the kernel gives no model name, the numbers that identify the core stand in its place."""
    files = virtual_machine() | {"proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"}
    found = devices(host(files))["cpu-0"]
    assert (found.vendor, found.model) == ("arm", "implementer 0x41 part 0xd4f")


def test_this_machine_is_read_as_psutil_reads_it() -> None:
    """On the real /proc and /sys an independent library counts the same processors, and the kernel the same memory."""
    backend = open_backend(TestContext(Path("/")))
    found = devices(backend)
    answers = values(read(backend, "node"))
    assert answers["logical_processors"] == psutil.cpu_count()
    assert answers["physical_cores"] == psutil.cpu_count(logical=False)
    assert found["memory"].memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert answers["memory_total_bytes"] == found["memory"].memory_bytes
    assert answers["uptime_seconds"] == pytest.approx(time.time() - psutil.boot_time(), abs=30)


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    """A selector that is closed afterwards."""
    with selectors.DefaultSelector() as selector:
        yield selector


def test_a_read_of_sysfs_that_never_returns_is_named(tmp_path: Path, selector: selectors.BaseSelector) -> None:
    """The real child on a file that blocks: the agent names the file, and reads everything else."""
    write_tree(tmp_path, server())
    (tmp_path / TEMPERATURE).unlink()
    os.mkfifo(tmp_path / TEMPERATURE)  # opening it waits for a writer that never comes
    clock = SteppedClock()
    plan = ReaderPlan(backend="host", cadences={"fast": Cadence(10.0, 5.0)}, root=str(tmp_path))
    heard = Heard()
    supervisor = Supervisor([plan], clock, selector, heard.take, surroundings=partial(Surroundings, root=str(tmp_path)))

    def until(done: Callable[[], bool]) -> None:
        end = time.monotonic() + REAL_SECONDS
        supervisor.tick()
        while not done():
            supervisor.tick()
            assert time.monotonic() < end, supervisor.statuses
            for key, mask in selector.select(0.05):
                supervisor.handle(key, mask)

    def call() -> str:
        return "".join(record.detail for record in supervisor.records)

    until(lambda: call() == f"read /{TEMPERATURE}" and not selector.select(0))
    pass_time(clock, supervisor, until, 5.0)
    until(lambda: supervisor.statuses[0].state is ReaderState.HUNG and supervisor.at_rest)
    assert f"read /{TEMPERATURE} has not returned for 5.0 s" in supervisor.statuses[0].detail
    samples = {sample.device: sample.failure for sample in heard.samples}
    assert [device for device, failure in samples.items() if failure is None] == ["node", "memory"]
    failure = samples["cpu-0"]
    assert failure is not None
    assert failure.kind is FailureKind.READER  # the host has no driver to blame
    assert supervisor.statuses[0].witnessed == 0

    heard.samples.clear()
    clock.advance(1.0)
    until(lambda: call() == f"read /{TEMPERATURE}" and not selector.select(0))
    samples = {sample.device: sample.failure for sample in heard.samples}
    assert set(samples) == {"node", "memory", "cpu-1", "pci-0000:10:00.0", "pci-0000:90:00.0"}
    assert set(samples.values()) == {None}
    supervisor.stop()
    clock.advance(1.0)
    until(lambda: supervisor.at_rest)


TREES: dict[str, tuple[Callable[[], Files], dict[str, tuple[str, str]]]] = {
    "intel": (
        server,
        {"cpu-0": ("platform_coretemp_0", "Package id 0"), "cpu-1": ("platform_coretemp_1", "Package id 1")},
    ),
    "amd": (amd_server, {"cpu-0": ("hwmon2_device", "Tctl"), "cpu-1": ("hwmon1_device", "Tctl")}),
}
"""Files, and for each socket the chip and the label under which the node exporter tells its temperature."""


@pytest.mark.parametrize("kind", TREES)
def test_the_node_exporter_reads_the_same_temperatures(host: Opener, tmp_path: Path, kind: str) -> None:
    """Another program's reading of every socket's temperature and limit is ours, before and after it changed."""
    build, chips = TREES[kind]
    backend = host(build())
    with NodeExporter(tmp_path) as other:
        for millidegrees in (None, 61_125, -5_500):
            if millidegrees is not None:
                for number, sensor in enumerate(sorted((tmp_path / HWMON).glob("*/temp1_input"))):
                    sensor.write_text(f"{millidegrees + 1000 * number}\n")
            theirs = other.temperatures()
            for device, chip in chips.items():
                ours = values(read(backend, device))
                assert ours["temperature_celsius sensor package"] == theirs[(*chip, "input")]
                assert ours.get("temperature_slowdown_celsius sensor package") == theirs.get((*chip, "crit"))
    assert len({theirs[(*chip, "input")] for chip in chips.values()}) == 2


def test_the_node_exporter_reads_the_same_memory_errors(host: Opener, tmp_path: Path) -> None:
    """Another program's counts of each memory controller are ours, before and after they grew."""
    backend = host(server() | controllers(12))
    with NodeExporter(tmp_path) as other:
        for grown in (0, 1000):
            for number in range(12):
                for file, count in (("ce_count", 7 * number), ("ue_count", number + 100)):
                    (tmp_path / EDAC / f"mc{number}" / file).write_text(f"{count + grown}\n")
            ours = values(read(backend, "memory"))
            theirs = other.memory_errors()
            assert len(theirs) == 24
            for (number, kind), told in theirs.items():
                assert ours[f"ecc_{kind}_errors memory_block controller {number}"] == told
            assert theirs[11, "uncorrected"] == 111 + grown


def controllers(count: int) -> Files:
    """Return *count* memory controllers that counted nothing."""
    names = ("ce_count", "ue_count", "ce_noinfo_count", "ue_noinfo_count")
    return {f"{EDAC}/mc{number}/{name}": "0\n" for number in range(count) for name in names}
