"""The fake AMD SMI is read through AMD's own wrapper, in a child, as a real library would be."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from fakes.amdsmi.build import LIBRARY, bound_symbols, build_fake_amdsmi
from fakes.amdsmi.scenario import AmdSmiStatus, FakeAmdSmi
from fakes.ended import ended
from fakes.machine import FakeMachine
from fakes.nvml.scenario import FakeNvml

PATIENCE_SECONDS = 30

TEMPERATURE_PER_LINE = """
import sys
from amdsmi import *
amdsmi_init()
device = amdsmi_get_processor_handles()[3]
for line in sys.stdin:
    sensor, metric = AmdSmiTemperatureType.HOTSPOT, AmdSmiTemperatureMetric.CURRENT
    print(amdsmi_get_temp_metric(device, sensor, metric), flush=True)
"""

FILL_TOO_SMALL_AN_ARRAY = """
import ctypes
from amdsmi import amdsmi_init, amdsmi_wrapper as library
amdsmi_init()
count = ctypes.c_uint32()
library.amdsmi_get_socket_handles(ctypes.byref(count), None)
print(count.value)
count.value = 2
handles = (library.amdsmi_socket_handle * 8)()
library.amdsmi_get_socket_handles(ctypes.byref(count), handles)
print(count.value, [bool(handle) for handle in handles])
"""


def run(environment: Mapping[str, str], program: str) -> subprocess.CompletedProcess[str]:
    """Run *program* on the fake machine."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def call(environment: Mapping[str, str], *expressions: str) -> list[str]:
    """Return what each expression gives after amdsmi_init, or the code of the error that it raises."""
    program = f"""
from amdsmi import *
SENSORS, METRICS, BLOCKS, CLOCKS = AmdSmiTemperatureType, AmdSmiTemperatureMetric, AmdSmiGpuBlock, AmdSmiClkType
devices = []
def answer(expression):
    try:
        return eval(expression, globals())
    except AmdSmiLibraryException as error:
        return f"code {{error.get_error_code()}}"
try:
    amdsmi_init()
    devices = amdsmi_get_processor_handles()
    device = devices[3]
except AmdSmiLibraryException as error:
    print(f"code {{error.get_error_code()}}")
else:
    for expression in {expressions!r}:
        print(answer(expression))
"""
    done = run(environment, program)
    assert done.stderr == ""
    return done.stdout.splitlines()


TABLE = [
    ("len(devices)", "count", 4, "4"),
    ("len(devices)", "present.2", 0, "7"),
    ("amdsmi_get_gpu_device_uuid(device)", "count", 8, "5eed0003-0000-1000-80a1-000000000103"),
    ("amdsmi_get_gpu_device_uuid(device)", "uuid.3", "11-22", "11-22"),
    ("amdsmi_get_gpu_device_bdf(device)", "pci_bus.3", 0xDF, "0000:df:00.0"),
    ("amdsmi_get_gpu_asic_info(device)['market_name']", "name", "AMD Instinct MI325X", "AMD Instinct MI325X"),
    ("amdsmi_get_gpu_asic_info(device)['device_id']", "pci_device_id", 0x74A51002, "0x74a5"),
    ("amdsmi_get_gpu_asic_info(device)['target_graphics_version']", "graphics_version", 0x950, "gfx950"),
    ("amdsmi_get_gpu_asic_info(device)['asic_serial']", "asic_serial.3", "2a", "0x000000000000002A"),
    ("amdsmi_get_gpu_asic_info(device)['oam_id']", "module_id.3", 6, "6"),
    ("amdsmi_get_gpu_board_info(device)['product_serial']", "serial.3", "6924001", "6924001"),
    ("amdsmi_get_gpu_enumeration_info(device)['drm_render']", "minor.3", 135, "135"),
    ("amdsmi_get_gpu_vram_info(device)['vram_size']", "memory_total_bytes", 256 << 30, "262144"),
    ("amdsmi_get_gpu_driver_info(device)['driver_version']", "driver_version", "6.10.5", "6.10.5"),
    ("amdsmi_get_gpu_vbios_info(device)['version']", "vbios", "022.040", "022.040"),
    ("amdsmi_get_fw_info(device)['fw_list'][0]['fw_version']", "firmware_power", 0x01020304, "01.02.03.04"),
    ("amdsmi_get_lib_version()['major']", "library_version", "25.3.0", "25"),
    ("amdsmi_get_gpu_compute_partition(device)", "compute_partition.3", "CPX", "CPX"),
    ("amdsmi_get_gpu_memory_partition(device)", "memory_partition.3", "NPS4", "NPS4"),
    ("amdsmi_get_temp_metric(device, SENSORS.HOTSPOT, METRICS.CURRENT)", "temperature.3", 95, "95"),
    ("amdsmi_get_temp_metric(device, SENSORS.VRAM, METRICS.CURRENT)", "memory_temperature.3", 88, "88"),
    ("amdsmi_get_temp_metric(device, SENSORS.VRAM, METRICS.CRITICAL)", "count", 8, "105"),
    ("amdsmi_get_temp_metric(device, SENSORS.HOTSPOT, METRICS.EMERGENCY)", "threshold_shutdown", 112, "112"),
    ("amdsmi_get_temp_metric(device, SENSORS.HOTSPOT, METRICS.CURRENT)", "temperature_scale", 1000, "40000"),
    ("amdsmi_get_temp_metric(device, SENSORS.EDGE, METRICS.CURRENT)", "count", 8, "code 2"),
    ("amdsmi_get_temp_metric(device, SENSORS.EDGE, METRICS.CURRENT)", "edge_temperature", 51, "51"),
    ("amdsmi_get_temp_metric(device, SENSORS.HBM_2, METRICS.CURRENT)", "stack_temperature.3.2", 61, "61"),
    ("amdsmi_get_power_info(device)['current_socket_power']", "power_milliwatts.3", 612400, "612"),
    ("amdsmi_get_power_info(device)['average_socket_power']", "count", 8, "N/A"),
    ("amdsmi_get_power_cap_info(device)['power_cap']", "power_limit_milliwatts.3", 600000, "600000000"),
    ("amdsmi_get_power_cap_info(device)['max_power_cap']", "power_cap_per_watt", 1, "750"),
    ("amdsmi_get_energy_count(device)['energy_accumulator']", "energy_millijoules.3", 42000, "2752474"),
    ("amdsmi_get_violation_status(device)['acc_ppt_pwr']", "violation_power_nanoseconds.3", 5_000_000, "5"),
    ("amdsmi_get_violation_status(device)['acc_socket_thrm']", "violation_thermal_nanoseconds.3", 7_000_000, "7"),
    ("amdsmi_get_violation_status(device)['acc_counter']", "accumulation_ticks", 99, "99"),
    ("amdsmi_get_violation_status(device)['active_hbm_thrm']", "violation_memory_thermal_percent.3", 40, "True"),
    ("amdsmi_get_violation_status(device)['acc_gfx_clk_below_host_limit']", "count", 8, "N/A"),
    ("amdsmi_get_clock_info(device, CLOCKS.GFX)['clk']", "sm_clock_megahertz.3", 132, "132"),
    ("amdsmi_get_clock_info(device, CLOCKS.VCLK0)", "count", 8, "code 2"),
    ("amdsmi_get_gpu_activity(device)['gfx_activity']", "utilization_percent.3", 97, "97"),
    ("amdsmi_get_gpu_vram_usage(device)['vram_used']", "memory_used_bytes.3", 1 << 30, "1024"),
    ("amdsmi_get_gpu_process_list(device)[1]['pid']", "processes.3", "4711:1024 4712:0", "4712"),
    ("amdsmi_get_gpu_total_ecc_count(device)['uncorrectable_count']", "ecc_uncorrected_volatile_dram.3", 2, "2"),
    ("amdsmi_get_gpu_ecc_count(device, BLOCKS.UMC)['correctable_count']", "ecc_corrected_volatile_dram.3", 3, "3"),
    ("amdsmi_get_gpu_ecc_count(device, BLOCKS.GFX)['deferred_count']", "ecc_deferred_volatile_gfx.3", 4, "4"),
    ("amdsmi_get_gpu_ecc_count(device, BLOCKS.UMC)", "ecc_mode", 0, "code 2"),
    ("amdsmi_get_gpu_ecc_enabled(device)", "ecc_mode", 0, "0"),
    ("amdsmi_get_gpu_ecc_status(device, BLOCKS.SDMA).name", "ecc_blocks", 1, "DISABLED"),
    ("[page['status'] for page in amdsmi_get_gpu_bad_page_info(device)]", "bad_pages_pending.3", 2, "[1, 1]"),
    ("amdsmi_get_gpu_bad_page_info(device)", "count", 8, "[]"),
    ("amdsmi_get_gpu_bad_page_threshold(device)", "bad_page_threshold", 64, "64"),
    ("amdsmi_get_pcie_info(device)['pcie_metric']['pcie_width']", "pcie_width.3", 8, "8"),
    ("amdsmi_get_pcie_info(device)['pcie_metric']['pcie_speed']", "pcie_generation.3", 3, "8000"),
    ("amdsmi_get_pcie_info(device)['pcie_metric']['pcie_nak_sent_count']", "pcie_naks_sent.3", 6, "6"),
    ("''.join(amdsmi_get_gpu_xgmi_link_status(device)['status'])", "link_state.3.5", 0, "UUUUUDUX"),
    ("amdsmi_get_gpu_xgmi_link_status(device)", "links", 0, "code 2"),
    ("amdsmi_get_link_metrics(device)['links'][5]['bdf']", "count", 8, "0000:6c:00.0"),
    ("amdsmi_get_link_metrics(device)['links'][5]['max_bandwidth']", "link_megabytes_per_second.3.5", 32000, "256"),
    ("int(amdsmi_gpu_xgmi_error_status(device))", "link_error_status.3", 1, "1"),
    ("amdsmi_topo_get_link_type(device, devices[6])", "topology_link_type.3.6", 1, "{'hops': 3, 'type': 1}"),
    ("amdsmi_topo_get_link_weight(device, devices[6])", "topology_weight.3.6", 52, "52"),
    ("amdsmi_is_P2P_accessible(device, devices[6])", "peer_status.3.6", 2, "False"),
    ("amdsmi_topo_get_numa_node_number(device)", "numa_node.3", 1, "1"),
    ("amdsmi_get_gpu_metrics_info(device)['temperature_mem']", "memory_temperature.3", 77, "77"),
    ("amdsmi_get_gpu_metrics_info(device)['temperature_edge']", "count", 8, "N/A"),
    ("amdsmi_get_gpu_metrics_info(device)['pcie_link_speed']", "pcie_generation.3", 4, "160"),
    ("amdsmi_get_gpu_metrics_info(device)['prochot_residency_acc']", "violation_processor_hot_nanoseconds", 10**6, "1"),
    ("amdsmi_get_gpu_fan_rpms(device, 0)", "count", 8, "code 2"),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "key", "value", "answer"), TABLE)
def test_the_wrapper_reads_what_the_scenario_says(
    fake_amdsmi: FakeAmdSmi, expression: str, key: str, value: int | str, answer: str
) -> None:
    """AMD's wrapper on the fake returns each injected value through the function that a real driver serves."""
    assert call(fake_amdsmi.set(key, value).environment, expression) == [answer]


def test_program_sees_the_machine_change_while_it_runs(fake_amdsmi: FakeAmdSmi) -> None:
    """The scenario is read again when it was replaced, also when only one digit changed."""
    answers = []
    with ended(
        subprocess.Popen(
            [sys.executable, "-c", TEMPERATURE_PER_LINE],
            env={**os.environ, **fake_amdsmi.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for celsius in (40, 95, 96, 41):
            fake_amdsmi.set("temperature.3", celsius)
            process.stdin.write("\n")
            process.stdin.flush()
            answers.append(process.stdout.readline().strip())
    assert answers == ["40", "95", "96", "41"]


@pytest.mark.parametrize(
    ("function", "status"),
    [
        ("amdsmi_init", AmdSmiStatus.DRIVER_NOT_LOADED),
        ("amdsmi_get_power_info", AmdSmiStatus.NO_PERM),
        ("amdsmi_get_power_info", AmdSmiStatus.BUSY),
    ],
)
def test_function_can_be_made_to_fail(fake_amdsmi: FakeAmdSmi, function: str, status: AmdSmiStatus) -> None:
    """A code that a test injects arrives as the wrapper's exception."""
    told = call(fake_amdsmi.fail(function, status).environment, "amdsmi_get_power_info(device)")
    assert told == [f"code {int(status)}"]


def test_lost_device_is_listed_and_answers_nothing(fake_amdsmi: FakeAmdSmi) -> None:
    """After a device was lost the list stays as long, and every question about that device fails."""
    asked = (
        "len(devices)",
        "amdsmi_get_power_info(device)",
        "amdsmi_get_power_info(devices[4])['current_socket_power']",
    )
    assert call(fake_amdsmi.fail_device(3).environment, *asked) == ["8", "code 12", "140"]


def test_without_a_device_the_list_is_empty(fake_amdsmi: FakeAmdSmi) -> None:
    """A machine without devices initialises and lists none, as after a driver that failed to probe."""
    program = "from amdsmi import *; amdsmi_init(); print(amdsmi_get_processor_handles())"
    assert run(fake_amdsmi.set("count", 0).environment, program).stdout == "[]\n"


def test_handles_come_in_two_passes(fake_amdsmi: FakeAmdSmi) -> None:
    """The first pass tells the count; the second fills what the caller has room for, and no more."""
    told = run(fake_amdsmi.environment, FILL_TOO_SMALL_AN_ARRAY).stdout.splitlines()
    assert told == ["8", f"2 {[True] * 2 + [False] * 6}"]


def test_before_init_and_after_shut_down_nothing_answers(fake_amdsmi: FakeAmdSmi) -> None:
    """A library that is not initialised says so."""
    asked = ("amdsmi_shut_down()", "amdsmi_get_power_info(device)")
    assert call(fake_amdsmi.environment, *asked) == ["None", "code 32"]


def test_violation_status_takes_its_hundred_milliseconds(fake_amdsmi: FakeAmdSmi) -> None:
    """The call sleeps inside the library, which is why a reader should not make it for every device."""
    asked = "(begun := __import__('time').monotonic(), amdsmi_get_violation_status(device))"
    spent = "__import__('time').monotonic() - begun >= 0.1"
    assert call(fake_amdsmi.environment, asked, spent)[1:] == ["True"]


def test_crash_ends_the_process(fake_amdsmi: FakeAmdSmi) -> None:
    """An abort inside the library kills its caller, as a broken driver library would."""
    fake_amdsmi.crash("amdsmi_get_temp_metric", gpu=3)
    assert run(fake_amdsmi.environment, TEMPERATURE_PER_LINE.replace("sys.stdin", "'x'")).returncode == -6


@pytest.mark.parametrize("function", ["amdsmi_init", "amdsmi_get_temp_metric"])
def test_hang_never_returns(fake_amdsmi: FakeAmdSmi, function: str) -> None:
    """A call that hangs prints nothing, and only a kill ends it."""
    fake_amdsmi.hang(function)
    program = TEMPERATURE_PER_LINE.replace("sys.stdin", "'x'")
    environment = {**os.environ, **fake_amdsmi.logged_environment}
    with ended(subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE)) as process:
        while not any(line.startswith(function) for line in fake_amdsmi.calls()):
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.05)
        assert process.poll() is None
        process.kill()
        assert process.communicate()[0] == b""


def test_calls_are_logged_with_their_slot(fake_amdsmi: FakeAmdSmi) -> None:
    """A test can tell what was asked of which device."""
    call(fake_amdsmi.logged_environment, "amdsmi_get_power_info(device)")
    assert fake_amdsmi.calls()[-1] == "amdsmi_get_power_info 3"


def test_library_of_another_release_cannot_be_imported(tmp_path: Path) -> None:
    """The wrapper binds everything while it is imported: one missing symbol ends it there, with its name."""
    library = build_fake_amdsmi(tmp_path / "old", missing=("amdsmi_get_violation_status",))
    assert library.name == LIBRARY
    told = run(FakeAmdSmi(tmp_path / "scenario", library).environment, "import amdsmi")
    assert "AttributeError" in told.stderr
    assert "amdsmi_get_violation_status" in told.stderr


def test_symbol_that_the_wrapper_lacks_cannot_be_taken_out(tmp_path: Path) -> None:
    """A misspelt name is refused instead of leaving the library as it was."""
    with pytest.raises(ValueError, match="binds no amdsmi_get_violations"):
        build_fake_amdsmi(tmp_path, missing=("amdsmi_get_violations",))


def test_every_symbol_of_the_wrapper_is_there(fake_amdsmi_library: Path) -> None:
    """Nothing that the installed wrapper binds is missing, and nothing of ours is visible beside it."""
    told = subprocess.run(
        ["nm", "-D", "--defined-only", str(fake_amdsmi_library)], check=True, capture_output=True, text=True
    )
    assert {line.split()[-1] for line in told.stdout.splitlines()} == bound_symbols()


NVML_FACTS = """
from pynvml import *
nvmlInit()
device = nvmlDeviceGetHandleByIndex(3)
dram, uncorrected, volatile = 2, 1, 0
print([
    nvmlDeviceGetCount(), nvmlDeviceGetSerial(device), nvmlDeviceGetTemperatureV(device, 0),
    nvmlDeviceGetPowerUsage(device) // 1000, nvmlDeviceGetEnforcedPowerLimit(device) // 1000,
    nvmlDeviceGetMemoryErrorCounter(device, uncorrected, volatile, dram),
    nvmlDeviceGetCurrPcieLinkWidth(device), nvmlDeviceGetPcieReplayCounter(device),
    [nvmlDeviceGetNvLinkState(device, link) for link in range(7)],
    nvmlDeviceGetUtilizationRates(device).gpu, nvmlDeviceGetMemoryInfo(device, nvmlMemory_v2).used >> 20,
    [process.pid for process in nvmlDeviceGetComputeRunningProcesses_v3(device)],
    nvmlDeviceGetViolationStatus(device, 0).violationTime // 1000000,
])
"""

AMDSMI_FACTS = """
from amdsmi import *
amdsmi_init()
devices = amdsmi_get_processor_handles()
device = devices[3]
metric = amdsmi_get_pcie_info(device)["pcie_metric"]
print([
    len(devices), amdsmi_get_gpu_board_info(device)["product_serial"],
    amdsmi_get_temp_metric(device, AmdSmiTemperatureType.HOTSPOT, AmdSmiTemperatureMetric.CURRENT),
    amdsmi_get_power_info(device)["current_socket_power"], amdsmi_get_power_cap_info(device)["power_cap"] // 1000000,
    amdsmi_get_gpu_ecc_count(device, AmdSmiGpuBlock.UMC)["uncorrectable_count"],
    metric["pcie_width"], metric["pcie_replay_count"],
    ["DU".index(state) for state in amdsmi_get_gpu_xgmi_link_status(device)["status"][:7]],
    amdsmi_get_gpu_activity(device)["gfx_activity"], amdsmi_get_gpu_vram_usage(device)["vram_used"],
    [process["pid"] for process in amdsmi_get_gpu_process_list(device)],
    amdsmi_get_violation_status(device)["acc_ppt_pwr"],
])
"""


def test_one_scenario_tells_both_libraries_the_same_facts(
    fake_nvml: FakeNvml, fake_amdsmi: FakeAmdSmi, tmp_path: Path
) -> None:
    """A shared key means the same to either vendor, read from one file."""
    one = FakeMachine(tmp_path / "both.scenario", tmp_path).update(
        {
            "present.7": 0, "serial.3": "1650000000999", "temperature.3": 91, "power_milliwatts.3": 612000,
            "power_limit_milliwatts": 650000, "ecc_uncorrected_volatile_dram.3": 2, "pcie_width.3": 8,
            "pcie_replays.3": 41, "links": 7, "link_state.3.5": 0, "utilization_percent.3": 97,
            "memory_used_bytes.3": 3 << 30, "processes.3": "4711:1024 4712:0",
            "violation_power_nanoseconds.3": 55_000_000,
        }
    )  # fmt: skip
    nvidia = run({**fake_nvml.environment, fake_nvml.variable: str(one.path)}, NVML_FACTS)
    amd = run({**fake_amdsmi.environment, fake_amdsmi.variable: str(one.path)}, AMDSMI_FACTS)

    wanted = [7, "1650000000999", 91, 612, 650, 2, 8, 41, [1, 1, 1, 1, 1, 0, 1], 97, 3072, [4711, 4712], 55]
    assert (nvidia.stdout.strip(), nvidia.stderr) == (str(wanted), "")
    assert (amd.stdout.strip(), amd.stderr) == (str(wanted), "")
