"""The machine that the fake libamd_smi.so plays, and the keys that it knows.

What every vendor has goes by the same keys and units as on the fake NVML:

- inventory: ``count`` 8, ``present.SLOT`` 1, ``name``, ``uuid``, ``serial`` (of the board), ``minor`` (of the render
  node, 128 + slot), ``module_id``, ``pci_domain``, ``pci_bus``, ``pci_device_id``, ``board_part_number``, ``vbios``,
  ``driver_version``, ``numa_node``
- heat in degrees: ``temperature`` (of the hottest spot) 40, ``memory_temperature`` 48, ``threshold_slowdown`` 100,
  ``threshold_shutdown`` 110
- power: ``power_milliwatts`` 140000, ``power_limit{,_default,_minimum,_maximum}_milliwatts`` 750000,
  ``energy_millijoules``
- clocks: ``sm_clock_megahertz`` 2100, ``sm_clock_maximum_megahertz``, ``memory_clock_megahertz`` 1300,
  ``memory_clock_maximum_megahertz``, ``violation_{power,thermal}_nanoseconds``
- memory errors: ``ecc_mode`` 1, ``ecc_{corrected,uncorrected}_volatile_BLOCK`` with ``dram`` for the memory
- PCIe: ``pcie_generation`` 5, ``pcie_width`` 16, ``pcie_generation_maximum``, ``pcie_width_maximum``,
  ``pcie_replays``
- links: ``links`` 7, ``link_state`` 1 (0 down, 2 disabled), ``link_megabytes_per_second`` 64000, ``peer_status.A.B``
- load: ``utilization_percent``, ``memory_utilization_percent``, ``memory_used_bytes``, ``memory_total_bytes``,
  ``processes``

Only AMD has these:

- inventory: ``asic_serial`` (hexadecimal), ``vendor_name``, ``product_name``, ``fru_id``, ``drm_card``, ``hsa_id``,
  ``hip_id``, ``kfd_id``, ``compute_units``, ``graphics_version`` 0x942, ``vbios_part_number``, ``vbios_name``,
  ``vbios_date``, ``firmware_{power,ras,xgmi}``, ``library_version``, ``compute_partition`` SPX,
  ``memory_partition`` NPS1, ``partition_id`` 0, ``virtualization_mode`` 1
- heat: ``threshold_memory_slowdown`` 105, ``threshold_memory_shutdown`` 115; unset, because MI300X lacks them:
  ``edge_temperature``, ``regulator_temperature``, ``stack_temperature.SLOT.STACK``; ``temperature_scale`` 1000 plays
  a release that answers in thousandths
- power: ``power_cap_per_watt`` 1000000; 1 plays a release before 6.1
- throttling: ``accumulation_ticks`` (passes of the firmware, one per millisecond; without it the real clock),
  ``violation_{processor_hot,regulator_thermal,memory_thermal}_nanoseconds``, ``violation_NAME_percent`` (of the last
  100 ms), ``violation_sample_milliseconds`` 100
- memory errors: ``ecc_deferred_volatile_BLOCK``; blocks ``dram``, ``sdma``, ``gfx``, ``mmhub``, ``pcie_bif``,
  ``xgmi_wafl``; ``ecc_blocks`` (mask of those that count), ``bad_pages_{reserved,pending,unreservable}``,
  ``bad_page_threshold`` 128, ``ras_schema``, ``ras_eeprom_version``
- PCIe: ``pcie_recoveries``, ``pcie_replay_rollovers``, ``pcie_naks_sent``, ``pcie_naks_received``,
  ``pcie_other_end_recoveries``
- ``lock``: the file by which a board is locked between all processes, unless a process asks for locks of its own
- links: ``link_read_kilobytes``, ``link_write_kilobytes``, ``link_error_status`` 0, ``hive_id``,
  ``topology_link_type.A.B`` 2, ``topology_hops.A.B`` 1, ``topology_weight.A.B`` 15,
  ``topology_megabytes_per_second.A.B``
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self

from fakes.host_tree import PCI, Files, pci_device
from fakes.machine import FakeMachine

__all__ = ["AmdSmiStatus", "FakeAmdSmi", "pci", "uuid"]

TICKS_PER_SECOND = 1000

ERROR_FILES = {
    "aer_dev_correctable": "TOTAL_ERR_COR",
    "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL",
    "aer_dev_fatal": "TOTAL_ERR_FATAL",
}
"""Where the kernel counts the errors of a PCIe link."""


class AmdSmiStatus(IntEnum):
    """The status codes of AMD SMI that tests inject."""

    INVAL = 1
    NOT_SUPPORTED = 2
    NOT_YET_IMPLEMENTED = 3
    API_FAILED = 7
    TIMEOUT = 8
    RETRY = 9
    NO_PERM = 10
    IO = 12
    FILE_ERROR = 14
    INIT_ERROR = 18
    BUSY = 30
    NOT_FOUND = 31
    NOT_INIT = 32
    DRIVER_NOT_LOADED = 34
    NO_DATA = 40


def uuid(slot: int) -> str:
    """Return the UUID that the fake gives to the device in *slot*."""
    return f"5eed{slot:04x}-0000-1000-80a1-{0x100 + slot:012x}"


def pci(slot: int) -> str:
    """Return the PCI address that the fake gives to the device in *slot*."""
    return f"0000:{0x10 * slot + 0x0C:02x}:00.0"


class FakeAmdSmi(FakeMachine):
    """Eight MI300X, each linked with every other."""

    variable = "NODEVET_FAKE_AMDSMI"
    backend = "amd"
    lost = AmdSmiStatus.IO
    uuid = staticmethod(uuid)
    pci = staticmethod(pci)

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which every release of the wrapper finds the library, ``ROCM_HOME`` before ``ROCM_PATH``."""
        rocm = str(self.library.parent.parent)
        return {
            "ROCM_HOME": rocm,
            "ROCM_PATH": rocm,
            "AMDSMI_LIB_OVERRIDE": str(self.library),
            self.variable: str(self.path),
        }

    def host_files(self) -> Files:
        """Return what the kernel shows of the machine below ``/``: its module, and its boards on the PCI bus."""
        files: Files = {"sys/module/amdgpu/version": "6.14.14\n"}
        for slot in range(8):
            files |= pci_device(pci(slot), "0x1002", "0x74a1", "0x120000", driver="amdgpu", node=slot // 4)
            files |= {f"{PCI}/{pci(slot)}/{name}": f"{total} 0\n" for name, total in ERROR_FILES.items()}
        return files

    def advance(self, seconds: float) -> Self:
        """Let the firmware count the passes of *seconds*; from the first time on it no longer counts by itself."""
        ticks = int(self._clock.get("accumulation_ticks", 0)) + round(seconds * TICKS_PER_SECOND)
        self._clock["accumulation_ticks"] = str(ticks)
        self._write()
        return self
