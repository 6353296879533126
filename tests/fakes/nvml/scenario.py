"""The machine that the fake libnvidia-ml.so.1 plays, and the keys that it knows.

Numbers are in the unit that NVML itself speaks, which the key names:

- inventory: ``count`` 8, ``present.SLOT`` 1, ``drained.SLOT`` 0 (beside ``present.SLOT`` 0),
  ``name``, ``uuid``, ``serial``, ``minor``, ``pci_bus``,
  ``pci_device_id``, ``vbios``, ``driver_version``, ``nvml_version``, ``numa_node``, ``mig_mode``,
  ``architecture``, ``virtualization_mode`` 0 (2: a share of a board in a virtual machine)
- heat in degrees: ``temperature`` 40, ``memory_temperature`` 48, ``temperature_margin`` 47,
  ``threshold_slowdown`` 89, ``threshold_shutdown`` 95, ``threshold_maximum`` 87, ``threshold_memory_maximum``
  95, and the T.Limit offsets ``margin_slowdown`` -2, ``margin_shutdown`` -8, ``margin_maximum`` 0,
  ``margin_memory_maximum`` 0
- power: ``power_milliwatts`` 120000, ``power_limit_milliwatts`` 700000 (in force), ``power_limit_default_milliwatts``,
  ``power_limit_requested_milliwatts`` (what is in force),
  ``module_power_milliwatts``, ``memory_power_milliwatts``, ``energy_millijoules``
- clocks: ``sm_clock_megahertz`` 1980, ``memory_clock_megahertz`` 2619, ``sm_clock_maximum_megahertz``,
  ``event_reasons`` (mask), ``event_reasons_supported``, ``violation_NAME_nanoseconds`` (power, thermal,
  sync_boost, board_limit, low_utilization, reliability, software_thermal, hardware_thermal, power_brake),
  ``throttle_field_base`` 269
- memory errors: ``ecc_mode`` 1, ``ecc_{corrected,uncorrected}_{volatile,aggregate}_LOCATION``,
  ``ecc_locations`` (mask), ``sram_threshold_exceeded``, ``remapped_correctable``, ``remapped_uncorrectable``,
  ``remap_pending``, ``remap_failed``, ``banks_none``, ``banks_low``, ``recovery_action`` 0;
  of boards before Ampere ``retired_pages_corrected``, ``retired_pages_uncorrectable``, ``retired_pages_pending``
- PCIe: ``pcie_generation`` 5, ``pcie_width`` 16, ``pcie_generation_maximum``, ``pcie_width_maximum``,
  ``pcie_replays``, ``pcie_correctable_errors``, ``pcie_nonfatal_errors``, ``pcie_fatal_errors``
- links: ``links`` 18, ``link_count`` (what the driver counts: ``links``), ``link_state`` 1,
  ``link_version`` 6, ``link_megabytes_per_second`` 26562,
  ``link_replay_errors``, ``link_recovery_errors``, ``link_crc_errors``, ``link_crc_data_errors``,
  ``link_effective_errors``, ``link_remote_type``, ``link_remote_pci``, ``fabric_state`` 3, ``fabric_status`` 0,
  ``fabric_health_mask``, ``topology.A.B``, ``peer_nvlink_status.A.B``
- load: ``utilization_percent``, ``memory_used_bytes``, ``memory_total_bytes``, ``processes`` (``pid:bytes
  pid:bytes``), ``persistence_mode`` 1

A fault may also name a field (``fail("field.82", ...)``).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self

from fakes.host_tree import Files, pci_device
from fakes.machine import FakeMachine

__all__ = ["FakeNvml", "NvmlReturn", "pci", "uuid"]

XID = 8
"""The event type of an XID in NVML's mask of event types."""


class NvmlReturn(IntEnum):
    """The return codes of NVML that tests inject."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    IRQ_ISSUE = 11
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    NO_DATA = 21
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    UNKNOWN = 999


def uuid(slot: int) -> str:
    """Return the UUID that the fake gives to the device in *slot*."""
    return f"GPU-5eed{slot:04x}-c0de-4abc-8def-{0x100 + slot:012x}"


def pci(slot: int) -> str:
    """Return the PCI address that the fake gives to the device in *slot*."""
    return f"0000:{0x10 * (slot + 1):02x}:00.0"


class FakeNvml(FakeMachine):
    """Eight H100 behind NVSwitch."""

    variable = "NODEVET_FAKE_NVML"
    backend = "nvidia"
    lost = NvmlReturn.GPU_IS_LOST
    uuid = staticmethod(uuid)
    pci = staticmethod(pci)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a child needs from its start on: the dynamic linker reads them only then."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), self.variable: str(self.path)}

    def host_files(self) -> Files:
        """Return what the kernel shows of the machine below ``/``: its boards on the PCI bus, bound to their driver."""
        boards = (
            pci_device(pci(slot), "0x10de", "0x2330", "0x030200", driver="nvidia", node=slot // 4) for slot in range(8)
        )
        return {name: text for board in boards for name, text in board.items()}

    def xid(self, gpu: int, code: int) -> Self:
        """Report an XID of the device in slot *gpu* to everybody who waits for events."""
        return self.event(gpu, XID, code)
