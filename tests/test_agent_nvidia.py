"""The real daemon on the fake NVIDIA driver: whatever the driver does, it stays, answers, and says what is wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from fakes.freezer import Freeze
from fakes.gpu_node import DEADLINE_SECONDS, INTERVAL_SECONDS, GpuNode, pci
from fakes.host_tree import pci_device, virtual_machine, write_tree
from fakes.kernel import NO_MOUNTS
from fakes.nvml.scenario import FakeNvml, NvmlReturn, uuid
from fakes.running_agent import RunningAgent

from nodevet.agent.control.client import AgentRefused, ask

STOP_SECONDS = 2.0
ANSWER_SECONDS = 2.0
TOLD_SECONDS = INTERVAL_SECONDS + DEADLINE_SECONDS + 2.0
"""A hard fault is told within interval + deadline + 2 s."""

REPEAT = timedelta(seconds=1.5)
"""Events of one kind that lie closer together are one."""

Record = Callable[[str, object], None]

BUSY_SECONDS = 3.0
"""What a busy machine may add to any of these limits."""


@pytest.fixture
def node(tmp_path: Path, fake_nvml_library: Path) -> Iterator[GpuNode]:
    """A running agent on eight healthy GPUs."""
    with GpuNode(tmp_path, fake_nvml_library) as running:
        yield running


@pytest.fixture
def record(record_property: Record) -> Record:
    """Writes a measured value into the test's report and its output."""

    def write(name: str, value: object) -> None:
        record_property(name, value)
        sys.stdout.write(f"{name}: {value}\n")

    return write


def finding(status: dict[str, Any], code: str, device: str) -> dict[str, Any] | None:
    """Return the finding *code* of *device*, or None."""
    return next((entry for entry in status["findings"] if (entry["code"], entry["device"]) == (code, device)), None)


def told(node: GpuNode, code: str, device: str, seconds: float = 15.0, outcome: str | None = None) -> dict[str, Any]:
    """Wait until *code* stands open on *device*, and return the status."""

    def stands(status: dict[str, Any]) -> bool:
        found = finding(status, code, device)
        return found is not None and found["state"] == "open" and outcome in (None, found["outcome"])

    return node.wait_for(stands, seconds, f"{code} on {device} did not come")


def assert_every_surface_answers(node: GpuNode, verdict: str) -> None:
    """API, metrics, state file, health, socket and command line answer at once, and agree."""
    for path in ("/api/v1/status", "/metrics", "/-/healthy", "/-/ready", "/"):
        began = time.monotonic()
        node.get(path)
        assert time.monotonic() - began < ANSWER_SECONDS, path
    began = time.monotonic()
    answer = ask(node.runtime_dir / "control.socket", "status")
    assert time.monotonic() - began < ANSWER_SECONDS
    assert answer["verdict"] == verdict
    assert node.status()["verdict"] == verdict
    assert node.metric("nodevet_node_state", state=verdict) == 1
    node.seconds_until(lambda: node.state_line().startswith(f"{verdict} "), ANSWER_SECONDS)  # written by a thread
    assert node.command("status").stdout.startswith(f"node-1: {verdict}")


def test_eight_healthy_gpus_are_ok_on_every_surface(node: GpuNode) -> None:
    """Verdict ok, no finding, no probe, and every surface says so."""
    status = node.wait_for_verdict("ok")
    assert node.verdicts(status) == dict.fromkeys(range(8), "ok")
    assert status["findings"] == []
    assert_every_surface_answers(node, "ok")
    state = node.state_file()
    assert (state.state, state.probing, len(state.devices)) == ("ok", False, 11)
    assert node.stop() < STOP_SECONDS


def test_a_hang_is_told_with_its_call_and_the_siblings_are_measured(node: GpuNode, record: Record) -> None:
    """Unknown after the first hang, failed after the second; all surfaces answer and the other seven stay ok."""
    node.wait_for_verdict("ok")
    began = time.monotonic()
    node.machine.hang("nvmlDeviceGetTemperature", gpu=3).hang("nvmlDeviceGetTemperatureV", gpu=3)

    status = told(node, "reader.hung", uuid(3))

    seconds = time.monotonic() - began
    record("hang told after seconds", seconds)
    assert seconds < TOLD_SECONDS + BUSY_SECONDS
    first = finding(status, "reader.hung", uuid(3))
    assert first is not None
    assert "nvmlDeviceGetTemperature" in first["message"]
    assert "has not returned for 1." in first["message"]
    if first["outcome"] == "unmeasured":
        assert status["verdict"] == "unknown"
        assert_every_surface_answers(node, node.status()["verdict"])

    status = told(node, "reader.hung", uuid(3), outcome="fail")
    assert (status["verdict"], status["action"]) == ("failed", "reboot")
    assert_every_surface_answers(node, "failed")
    status = node.wait_for(
        lambda status: (
            node.verdicts(status) == dict.fromkeys(range(8), "ok") | {3: "failed"}
            and any(reader["state"] == "running" for reader in status["readers"] if reader["backend"] == "nvidia")
        ),
        what="the siblings are not read again",
    )
    assert [code for code in codes(status, "open") if code[1] != uuid(3)] == []
    rounds = node.metric("nodevet_reader_last_round_timestamp_seconds", backend="nvidia")
    node.seconds_until(
        lambda: node.metric("nodevet_reader_last_round_timestamp_seconds", backend="nvidia") != rounds, 10.0
    )
    assert node.stop() < STOP_SECONDS


def codes(status: dict[str, Any], state: str) -> list[tuple[str, str]]:
    """Return code and device of the findings in *state*, apart from what is said of the reader as a whole."""
    entries = [(entry["code"], entry["device"]) for entry in status["findings"] if entry["state"] == state]
    return [entry for entry in entries if not (entry[0].startswith("reader.") and entry[1] == "node")]


def test_an_abort_in_the_driver_costs_the_reader_only(node: GpuNode) -> None:
    """The crash is told with its signal and call, the reader comes back, and a second crash is a failure."""
    node.wait_for_verdict("ok")
    agent = node.process
    node.machine.crash("nvmlDeviceGetPowerUsage", gpu=0).crash("nvmlDeviceGetFieldValues", gpu=0)

    status = told(node, "reader.crashed", uuid(0))
    message = finding(status, "reader.crashed", uuid(0))
    assert message is not None
    assert "was killed by SIGABRT in: nvmlDeviceGet" in message["message"]

    status = told(node, "reader.crashed", uuid(0), outcome="fail")
    assert status["verdict"] == "failed"
    status = node.wait_for(lambda status: node.verdicts(status) == dict.fromkeys(range(8), "ok") | {0: "failed"})
    assert (node.metric("nodevet_reader_starts_total", backend="nvidia") or 0) >= 3
    assert node.metric("nodevet_reader_starts_total", backend="host") == 1
    assert agent is not None
    assert agent.poll() is None


def test_a_reader_that_is_frozen_is_told_and_never_doubled(node: GpuNode, freeze: Freeze) -> None:
    """It cannot be killed, and no driver is blamed: no second reader beside it, by this agent or the next."""
    node.wait_for_verdict("ok")
    (pid,) = node.readers()
    thaw = freeze(pid)

    node.wait_for(lambda status: "stuck" in [entry["state"] for entry in status["readers"]])
    status = told(node, "reader.down", "node")
    assert status["verdict"] == "unknown"
    (reader,) = [entry for entry in status["readers"] if entry["backend"] == "nvidia"]
    assert reader["state"] == "stuck"
    assert "frozen by its cgroup" in reader["detail"]
    assert not node.state_file().hard
    assert "no second collector is started" in reader["detail"]
    assert_every_surface_answers(node, "unknown")
    assert node.metric("nodevet_reader_starts_total", backend="nvidia") == 1
    assert node.readers() == [pid]
    assert node.stop() < STOP_SECONDS

    node.start()
    status = told(node, "reader.down", "node")
    assert status["verdict"] == "unknown"
    assert node.readers() == [pid]
    assert node.metric("nodevet_reader_starts_total", backend="nvidia") == 0

    thaw()
    node.wait_for(
        lambda status: any(entry["state"] == "running" and entry["backend"] == "nvidia" for entry in status["readers"])
    )
    assert node.readers() not in ([], [pid])
    assert node.stop() < STOP_SECONDS


def test_lost_and_vanished_gpus_fail_alone_and_heat_heals(node: GpuNode, record: Record) -> None:
    """Lost and missing stay although the driver answers again; a condition clears; siblings stay ok."""
    node.wait_for_verdict("ok")
    began = time.monotonic()
    node.machine.fail_device(5, NvmlReturn.GPU_IS_LOST).vanish(6).set("temperature_margin.1", -2)

    told(node, "device.lost", uuid(5))
    seconds = time.monotonic() - began
    record("lost device told after seconds", seconds)
    assert seconds < TOLD_SECONDS + BUSY_SECONDS
    told(node, "device.missing", uuid(6))
    status = told(node, "temperature.slowdown", uuid(1))
    assert (status["verdict"], status["action"]) == ("failed", "inspect")
    expected = dict.fromkeys(range(8), "ok") | {1: "failed", 5: "failed", 6: "failed"}
    status = node.wait_for(lambda status: node.verdicts(status) == expected)
    assert "reboot" in (finding(status, "device.lost", uuid(5)) or {})["action"]
    assert node.metric("nodevet_reader_starts_total", backend="nvidia") == 1

    node.machine.clear()
    expected = dict.fromkeys(range(8), "ok") | {5: "failed", 6: "failed"}
    status = node.wait_for(lambda status: node.verdicts(status) == expected)
    assert finding(status, "temperature.slowdown", uuid(1)) is None
    text = node.command("history").stdout
    assert "temperature.slowdown" in text
    assert "cleared" in text


def test_a_failed_verdict_outlives_restart_kill_and_a_lost_store(node: GpuNode, record: Record) -> None:
    """An XID is told at once and counted once; nothing but an acknowledgement takes it back, and it may recur."""
    node.wait_for_verdict("ok")
    began = time.monotonic()
    node.log_kernel(f"NVRM: Xid (PCI:{pci(2)[:-2]}): 79, pid=1234, name=python, GPU has fallen off the bus.")
    state = node.seconds_until(lambda: node.state_line().startswith("failed "), 3.0)
    metric = state + node.seconds_until(lambda: node.metric("nodevet_node_state", state="failed") == 1, 3.0)
    record("kernel event in state file and metrics after seconds", (state, metric))
    assert time.monotonic() - began < 3.0
    node.machine.xid(2, 79).xid(4, 48)
    told(node, "nvidia.xid.48", uuid(4))  # so the driver's own report of XID 79 has come, too
    before = finding(node.status(), "nvidia.xid.79", uuid(2))
    assert before is not None
    assert (before["count"], before["action"], before["fault_class"]) == (1, "reboot", "hardware")

    for end in (node.stop, node.kill):
        end()
        assert node.state_line().startswith("failed ")
        node.start()
        again = finding(node.status(), "nvidia.xid.79", uuid(2))
        assert again is not None
        assert (again["state"], again["count"], again["first_seen"]) == ("open", 1, before["first_seen"])
        assert node.status()["verdict"] == "failed"

    node.stop()
    shutil.rmtree(node.state_dir)
    node.start()
    status = node.status()
    assert status["verdict"] == "failed"
    assert sorted(codes(status, "open")) == [("nvidia.xid.48", uuid(4)), ("nvidia.xid.79", uuid(2))]


def test_a_repeat_of_an_acknowledged_fault_updates_it(node: GpuNode) -> None:
    """It takes a note; the verdict recovers, and another occurrence is counted and closes nothing."""
    node.wait_for_verdict("ok")
    node.machine.xid(2, 79)
    told(node, "nvidia.xid.79", uuid(2))
    words = ("ack", "nvidia.xid.79", "--device", pci(2), "--note")
    empty = node.command(*words, "  ")
    assert (empty.returncode, empty.stdout) == (64, "")
    assert "the note is empty" in empty.stderr
    done = node.command(*words, "board reseated, ticket 12")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("acknowledged: nvidia.xid.79")
    status = node.wait_for_verdict("ok")
    acknowledged = finding(status, "nvidia.xid.79", uuid(2))
    assert acknowledged is not None
    assert (acknowledged["state"], acknowledged["note"]) == ("acknowledged", "board reseated, ticket 12")

    later = (datetime.fromisoformat(acknowledged["last_seen"]) + REPEAT).isoformat()
    node.wait_for(lambda status: status["time"] > later)
    node.machine.xid(2, 79)
    status = node.wait_for(lambda status: (finding(status, "nvidia.xid.79", uuid(2)) or {"count": 0})["count"] == 2)
    assert status["verdict"] == "ok"
    assert status["reason"].startswith("1 acknowledged failure (GPU 2 (")
    (word,) = status["acknowledged"]
    assert (word["code"], word["note"], word["until"]) == ("nvidia.xid.79", "board reseated, ticket 12", None)
    assert word["actor"].startswith("uid ")


def test_sigterm_ends_within_two_seconds_while_a_call_hangs(tmp_path: Path, fake_nvml_library: Path) -> None:
    """Also long before the deadline of the call is over."""
    with GpuNode(tmp_path, fake_nvml_library, deadline_seconds=60.0, logged=True) as node:
        node.wait_for_verdict("ok")
        node.machine.hang("nvmlDeviceGetTemperature").hang("nvmlDeviceGetTemperatureV")
        node.seconds_until(lambda: (calls := node.machine.calls()) and "Temperature" in calls[-1], 10.0)
        assert node.stop() < STOP_SECONDS
    assert node.state_file().agent == "stopped"


def test_a_reload_takes_a_good_configuration_and_refuses_a_bad_one(node: GpuNode) -> None:
    """A refused file changes nothing and is told on every surface until a good one comes."""
    node.wait_for_verdict("ok")
    good = node.configuration_file.read_text()
    digest = node.status()["agent"]["configuration_digest"]

    node.configuration_file.write_text(good + "[checks.thermal]\nneded = 3\n")
    node.reload()
    status = node.wait_for(lambda status: not status["agent"]["configuration_accepted"])
    assert status["agent"]["configuration_digest"] == digest
    assert "checks.thermal.neded" in status["agent"]["configuration_message"]
    assert "did you mean" in status["agent"]["configuration_message"]
    assert status["verdict"] == "ok"
    assert node.metric("nodevet_configuration_last_reload_successful") == 0
    assert (
        "checks.thermal.neded" in ask(node.runtime_dir / "control.socket", "status")["agent"]["configuration_message"]
    )
    assert "checks.thermal.neded" in node.get("/")
    assert "reload refused" in node.log.read_text()

    node.configuration_file.write_text(good + "[checks.thermal]\nenabled = false\n")
    node.reload()
    status = node.wait_for(lambda status: status["agent"]["configuration_accepted"])
    assert status["agent"]["configuration_digest"] != digest
    assert "thermal" not in {check["check"] for check in status["checks"]}
    assert node.command("check", "inventory").returncode == 0

    node.configuration_file.write_text(good + "[report]\nkeep = 3\n[store]\nrollup_days = 1\n")
    node.reload()
    status = node.wait_for(lambda status: status["agent"]["configuration_message"])
    assert status["agent"]["configuration_message"] == "[report], [store] change with the next restart"


def test_released_devices_are_let_go_of_and_read_again(node: GpuNode) -> None:
    """While released no process holds the library, and no load is granted; the node says so and is not failed."""
    node.wait_for_verdict("ok")
    done = node.command("release", "--for", "6s")
    assert (done.returncode, done.stderr) == (0, "")
    node.seconds_until(lambda: not node.readers(), 5.0)
    status = node.wait_for(lambda status: reader_state(status) == "released")
    with pytest.raises(AgentRefused, match="it is released"):
        ask(node.runtime_dir / "control.socket", "lease", seconds=60.0)
    assert status["verdict"] != "failed"
    node.seconds_until(lambda: node.state_file().agent == "released", ANSWER_SECONDS)
    node.wait_for(lambda status: reader_state(status) == "running" and status["verdict"] == "ok")


NO_CGROUPS = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"', "agent")
"""Runs a command that sees no cgroup: a reader that the freezer holds looks to it as one that a driver holds."""


def test_a_call_in_state_d_that_no_signal_ends_is_the_drivers_on_every_surface(
    tmp_path: Path, fake_nvml_library: Path, freeze: Freeze
) -> None:
    """Hard at once, with the gate closed; the next agent says so too and starts no second reader."""
    if subprocess.run([*NO_CGROUPS, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip(NO_MOUNTS)
    with GpuNode(tmp_path, fake_nvml_library, deadline_seconds=3.0, within=NO_CGROUPS) as node:
        node.wait_for_verdict("ok")
        (pid,) = node.readers()
        node.machine.hang("nvmlDeviceGetTemperature", gpu=3).hang("nvmlDeviceGetTemperatureV", gpu=3)
        node.seconds_until(lambda: keeps_time(node), 10.0)
        thaw = freeze(pid)

        status = told(node, "reader.stuck", uuid(3))
        assert (status["verdict"], status["action"]) == ("failed", "reboot")
        message = finding(status, "reader.stuck", uuid(3))
        assert message is not None
        assert message["outcome"] == "fail"
        assert "nvmlDeviceGetTemperature" in message["message"]
        assert "state D" in message["message"]
        assert reader_state(status) == "stuck"
        assert node.state_file().hard
        assert_every_surface_answers(node, "failed")
        assert node.readers() == [pid]
        assert node.stop() < STOP_SECONDS

        node.start()
        status = node.wait_for(lambda status: reader_state(status) == "stuck")
        assert status["verdict"] == "failed"
        assert node.state_file().hard
        assert node.readers() == [pid]
        thaw()


def keeps_time(node: GpuNode) -> bool:
    """Return whether the agent runs its process that keeps time beside a call that is out for long."""
    assert node.process is not None
    return any("os.read(0, 64)" in " ".join(child.cmdline()) for child in psutil.Process(node.process.pid).children())


def reader_state(status: dict[str, Any]) -> str:
    """Return the state of the NVIDIA reader."""
    return next(str(reader["state"]) for reader in status["readers"] if reader["backend"] == "nvidia")


class Driver(NamedTuple):
    """A driver that cannot be used, and what must be said of it."""

    name: str
    plant: Callable[[FakeNvml], object]
    code: str
    verdict: str
    fault_class: str
    words: str


DRIVERS = (
    Driver(
        "not loaded",
        lambda machine: machine.fail("nvmlInit_v2", NvmlReturn.DRIVER_NOT_LOADED).fail(
            "nvmlInitWithFlags", NvmlReturn.DRIVER_NOT_LOADED
        ),
        "driver.missing",
        "failed",
        "configuration",
        "install the NVIDIA driver",
    ),
    Driver(
        "no devices",
        lambda machine: machine.set("count", 0),
        "driver.no_devices",
        "failed",
        "hardware",
        "lists no device",
    ),
    Driver(
        "another version",
        lambda machine: machine.fail("nvmlInit_v2", NvmlReturn.LIB_RM_VERSION_MISMATCH).fail(
            "nvmlInitWithFlags", NvmlReturn.LIB_RM_VERSION_MISMATCH
        ),
        "driver.version_mismatch",
        "failed",
        "configuration",
        "reboot the node",
    ),
    Driver(
        "no permission",
        lambda machine: machine.fail("nvmlInit_v2", NvmlReturn.NO_PERMISSION).fail(
            "nvmlInitWithFlags", NvmlReturn.NO_PERMISSION
        ),
        "reader.failed",
        "unknown",
        "node",
        "permission",
    ),
)


def accelerator_tree(folder: Path) -> str:
    """Return the root of a machine with one NVIDIA accelerator on its PCI bus."""
    files = virtual_machine() | pci_device(pci(0), "0x10de", "0x2330", "0x030200", driver="nvidia")
    return str(write_tree(folder / "root", files))


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
def test_a_driver_that_cannot_be_used_is_told_with_its_class(
    tmp_path: Path, fake_nvml_library: Path, driver: Driver
) -> None:
    """The hardware is on the PCI bus, so the node is never ok."""
    node = GpuNode(tmp_path, fake_nvml_library, root=accelerator_tree(tmp_path))
    driver.plant(node.machine)
    with node:
        status = told(node, driver.code, "node")
        found = finding(status, driver.code, "node")
        assert found is not None
        assert found["fault_class"] == driver.fault_class
        assert driver.words in found["message"]
        assert status["verdict"] == driver.verdict
        assert_every_surface_answers(node, driver.verdict)


def test_a_node_is_not_ok_while_its_driver_is_still_starting(tmp_path: Path, fake_nvml_library: Path) -> None:
    """Nothing was read of the GPUs yet: the node is unknown until the driver answers."""
    node = GpuNode(tmp_path, fake_nvml_library, root=accelerator_tree(tmp_path))
    node.machine.delay("nvmlInit_v2", 7000).delay("nvmlInitWithFlags", 7000)
    RunningAgent.start(node)
    verdicts: list[str] = []

    def is_ok(status: dict[str, Any]) -> bool:
        verdicts.append(status["verdict"])
        return verdicts[-1] == "ok"

    try:
        node.wait_for(is_ok, 20.0)
    finally:
        node.stop()
    assert set(verdicts[:-1]) == {"unknown"}
    assert "nvidia collector has not answered yet, it is in the call nvmlInit" in node.log.read_text()


def test_an_accelerator_without_any_library_is_a_fault_of_configuration(
    tmp_path: Path, fake_nvml_library: Path
) -> None:
    """A library that cannot be loaded is a driver that is not installed."""
    nothing = tmp_path / "libraries"
    nothing.mkdir()
    (nothing / "libnvidia-ml.so.1").write_text("no library at all")
    node = GpuNode(
        tmp_path,
        fake_nvml_library,
        root=accelerator_tree(tmp_path),
        environment={"LD_LIBRARY_PATH": str(nothing)},
    )
    with node:
        status = told(node, "driver.missing", "node")
        found = finding(status, "driver.missing", "node")
        assert found is not None
        assert (status["verdict"], found["fault_class"]) == ("failed", "configuration")
        assert pci(0) in found["message"]
        document = json.loads(node.command("check", "--json").stdout)
        assert document["verdict"] == "failed"


def test_the_state_of_an_agent_expires_in_the_uptime_below_its_root(tmp_path: Path, fake_nvml_library: Path) -> None:
    """Prologs compare it with /proc/uptime, which in a container may have begun with that."""
    root = accelerator_tree(tmp_path)
    Path(root, "proc/uptime").write_text("30.00 600.00\n")
    with GpuNode(tmp_path, fake_nvml_library, root=root) as node:
        node.wait_for_verdict("ok", 20.0)
        assert 30 <= node.state_file().fresh_until_uptime <= 100
