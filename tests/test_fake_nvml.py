"""The fake NVML is believed only because independent programs read it as they read a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from fakes.nvml.build import LIBRARY, build_fake_nvml
from fakes.nvml.scenario import FakeNvml, NvmlReturn

PATIENCE_SECONDS = 30

TEMPERATURE_PER_LINE = """
import sys, pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(3)
for line in sys.stdin:
    print(pynvml.nvmlDeviceGetTemperatureV(handle, 0), flush=True)
"""

WAIT_FOR_EVENTS = """
import sys, pynvml
pynvml.nvmlInit()
events = pynvml.nvmlEventSetCreate()
for index in range(pynvml.nvmlDeviceGetCount()):
    pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(index), 8, events)
print("registered", flush=True)
sys.stdin.readline()
for milliseconds in (20000, 0):
    try:
        data = pynvml.nvmlEventSetWait_v2(events, milliseconds)
        print(pynvml.nvmlDeviceGetIndex(data.device), data.eventData, flush=True)
    except pynvml.NVMLError_Timeout:
        print("timeout", flush=True)
"""


def run(environment: Mapping[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    """Run *command* of this interpreter on the fake machine."""
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def start(environment: Mapping[str, str], program: str) -> subprocess.Popen[str]:
    """Start *program*, which answers lines with lines."""
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(process: subprocess.Popen[str]) -> str:
    """Send a line and return the answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def call(fake: FakeNvml, expression: str) -> str:
    """Return what *expression* gives after nvmlInit, or the name of the exception it raises."""
    program = f"""
import pynvml
from pynvml import *
try:
    nvmlInit()
    device = nvmlDeviceGetHandleByIndex(3)
    print({expression})
except NVMLError as error:
    print(type(error).__name__)
"""
    return run(fake.environment, "-c", program).stdout.strip()


def test_gpustat_shows_the_injected_temperature(fake_nvml: FakeNvml) -> None:
    """A program of somebody else reads eight devices, and the heat of the one that was made hot."""
    fake_nvml.set("temperature.3", 95)
    shown = run(fake_nvml.environment, "-m", "gpustat", "--json")
    devices = json.loads(shown.stdout)["gpus"]
    assert [device["temperature.gpu"] for device in devices] == [40, 40, 40, 95, 40, 40, 40, 40]
    assert devices[3]["name"] == "NVIDIA H100 80GB HBM3"


def test_nvitop_shows_the_injected_temperature(fake_nvml: FakeNvml) -> None:
    """The same with a second program, which asks for much more."""
    fake_nvml.update({"temperature.3": 93, "power_milliwatts.3": 612000, "utilization_percent.3": 98})
    shown = run(fake_nvml.environment, "-m", "nvitop", "-1", "--ascii", "--force-color")
    assert shown.stdout.count("93C") == 1, shown.stdout + shown.stderr
    assert "612W / 700W" in shown.stdout


def test_a_program_sees_the_machine_change_while_it_runs(fake_nvml: FakeNvml) -> None:
    """The scenario is read again when it was replaced, also when only one digit changed."""
    with start(fake_nvml.environment, TEMPERATURE_PER_LINE) as process:
        answers = [ask(process)]
        for celsius in (95, 96, 41):
            fake_nvml.set("temperature.3", celsius)
            answers.append(ask(process))
    assert answers == ["40", "95", "96", "41"]


def test_an_event_wakes_who_waits_for_it_and_comes_once(fake_nvml: FakeNvml) -> None:
    """An XID from before the registration is not told; one during the wait is, and then there is no other."""
    fake_nvml.xid(1, 31)
    with start(fake_nvml.environment, WAIT_FOR_EVENTS) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "registered"
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        fake_nvml.xid(5, 79)
        assert process.stdout.read().splitlines() == ["5 79", "timeout"]


@pytest.mark.parametrize(
    ("expression", "key", "value", "answer"),
    [
        ("nvmlDeviceGetCount()", "count", 4, "4"),
        ("nvmlDeviceGetCount()", "present.2", 0, "7"),
        ("nvmlDeviceGetUUID(device)", "present.2", 0, "GPU-5eed0004-c0de-4abc-8def-000000000104"),
        ("nvmlDeviceGetName(device)", "name", "NVIDIA H200", "NVIDIA H200"),
        ("nvmlDeviceGetMarginTemperature(device)", "temperature_margin.3", -5, "-5"),
        ("nvmlDeviceGetTemperatureThreshold(device, 1)", "threshold_slowdown", 90, "90"),
        ("nvmlDeviceGetPowerUsage(device)", "power_milliwatts.3", 650000, "650000"),
        ("nvmlDeviceGetCurrentClocksEventReasons(device)", "event_reasons.3", "0x48", "72"),
        ("nvmlDeviceGetViolationStatus(device, 1).violationTime", "violation_thermal_nanoseconds.3", 7, "7"),
        ("nvmlDeviceGetTotalEccErrors(device, 1, 0)", "ecc_uncorrected_volatile_sram.3", 2, "2"),
        ("nvmlDeviceGetMemoryErrorCounter(device, 0, 1, 2)", "ecc_corrected_aggregate_dram", 9, "9"),
        ("nvmlDeviceGetMemoryErrorCounter(device, 0, 1, 0)", "ecc_mode", 1, "NVMLError_NotSupported"),
        ("nvmlDeviceGetTotalEccErrors(device, 1, 0)", "ecc_mode", 0, "NVMLError_NotSupported"),
        ("nvmlDeviceGetRemappedRows(device)", "remap_pending.3", 1, "(0, 0, 1, 0)"),
        ("nvmlDeviceGetRowRemapperHistogram(device).none", "banks_none.3", 3, "3"),
        ("nvmlDeviceGetCurrPcieLinkWidth(device)", "pcie_width.3", 8, "8"),
        ("nvmlDeviceGetNvLinkState(device, 5)", "link_state.3.5", 0, "0"),
        ("nvmlDeviceGetNvLinkState(device, 18)", "links", 18, "NVMLError_InvalidArgument"),
        ("nvmlDeviceGetNvLinkState(device, 0)", "links", 0, "NVMLError_NotSupported"),
        ("nvmlDeviceGetNvLinkErrorCounter(device, 4, 1)", "link_recovery_errors.3.4", 6, "6"),
        ("nvmlDeviceGetFieldValues(device, [230])[0].value.uiVal", "recovery_action.3", 2, "2"),
        ("nvmlDeviceGetFieldValues(device, [193])[0].value.siVal", "margin_shutdown", -8, "-8"),
        ("nvmlDeviceGetFieldValues(device, [12])[0].value.ullVal", "ecc_uncorrected_volatile_dram.3", 4, "4"),
        ("nvmlDeviceGetFieldValues(device, [23])[0].value.ullVal", "ecc_uncorrected_aggregate_dram.3", 5, "5"),
        ("nvmlDeviceGetFieldValues(device, [11])[0].value.ullVal", "ecc_corrected_volatile_dram.3", 6, "6"),
        ("nvmlDeviceGetFieldValues(device, [22])[0].value.ullVal", "ecc_corrected_aggregate_dram.3", 7, "7"),
        ("nvmlDeviceGetFieldValues(device, [82])[0].nvmlReturn", "error.field.82", 3, "3"),
        ("nvmlDeviceGetComputeRunningProcesses_v3(device)[0].pid", "processes.3", "4711:1024 4712:0", "4711"),
        ("nvmlDeviceGetMemoryInfo(device, nvmlMemory_v2).used", "memory_used_bytes.3", 1024, "1024"),
        ("nvmlDeviceGetTopologyCommonAncestor(device, nvmlDeviceGetHandleByIndex(2))", "topology.2.3", 10, "10"),
        ("nvmlDeviceGetFanSpeed(device)", "count", 8, "NVMLError_NotSupported"),
    ],
)
def test_the_wrapper_reads_what_the_scenario_says(
    fake_nvml: FakeNvml, expression: str, key: str, value: int | str, answer: str
) -> None:
    """nvidia-ml-py on the fake returns each injected value through the function that a real driver serves."""
    assert call(fake_nvml.set(key, value), expression) == answer


@pytest.mark.parametrize(
    ("function", "code", "raised"),
    [
        ("nvmlInitWithFlags", NvmlReturn.DRIVER_NOT_LOADED, "NVMLError_DriverNotLoaded"),
        ("nvmlInitWithFlags", NvmlReturn.LIB_RM_VERSION_MISMATCH, "NVMLError_LibRmVersionMismatch"),
        ("nvmlDeviceGetPowerUsage", NvmlReturn.NO_PERMISSION, "NVMLError_NoPermission"),
    ],
)
def test_a_function_can_be_made_to_fail(fake_nvml: FakeNvml, function: str, code: NvmlReturn, raised: str) -> None:
    """A code that a test injects arrives as the wrapper's exception."""
    assert call(fake_nvml.fail(function, code), "nvmlDeviceGetPowerUsage(device)") == raised


def test_a_lost_device_is_counted_and_answers_nothing(fake_nvml: FakeNvml) -> None:
    """After a device was lost the count stays, and even asking for its handle fails."""
    fake_nvml.fail_device(3)
    assert call(fake_nvml, "nvmlDeviceGetHandleByIndex(4)") == "NVMLError_GpuIsLost"
    fake_nvml.clear().fail_device(5)
    assert call(fake_nvml, "nvmlDeviceGetCount()") == "8"


def test_a_crash_ends_the_process(fake_nvml: FakeNvml) -> None:
    """An abort inside the library kills its caller, as a broken driver library would."""
    fake_nvml.crash("nvmlDeviceGetTemperatureV", gpu=3)
    ended = run(fake_nvml.environment, "-c", TEMPERATURE_PER_LINE.replace("sys.stdin", "'x'"))
    assert ended.returncode == -6


def test_the_library_has_every_function_of_the_header_but_those_taken_out(tmp_path: Path) -> None:
    """A variant without a symbol is an older driver: the wrapper finds no function at all."""
    library = build_fake_nvml(tmp_path / "old", missing=("nvmlDeviceGetTemperatureV",))
    assert library.name == LIBRARY
    fake = FakeNvml(tmp_path / "scenario", library)
    assert call(fake, "nvmlDeviceGetTemperatureV(device, 0)") == "NVMLError_FunctionNotFound"
    assert call(fake, "nvmlDeviceGetTemperature(device, 0)") == "40"


def test_a_symbol_that_the_header_lacks_cannot_be_taken_out(tmp_path: Path) -> None:
    """A misspelt name is refused instead of leaving the library as it was."""
    with pytest.raises(ValueError, match="declares no nvmlDeviceGetTemperatur"):
        build_fake_nvml(tmp_path, missing=("nvmlDeviceGetTemperatur",))
