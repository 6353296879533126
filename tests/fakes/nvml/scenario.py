"""Writes the machine that the fake libnvidia-ml.so.1 plays.

A scenario is a text file with a key and a value per line. A key stands for all devices (``temperature``), for one
slot (``temperature.3``), or for a link or peer of a slot (``link_state.3.5``); the narrower key wins. The library
reads the file again when it was replaced, so a test changes the machine while a program watches it.

Numbers are in the unit that NVML itself speaks, which the key names:

- inventory: ``count`` 8, ``present.SLOT`` 1, ``name``, ``uuid``, ``serial``, ``minor``, ``pci_bus``,
  ``pci_device_id``, ``vbios``, ``driver_version``, ``nvml_version``, ``numa_node``, ``mig_mode``,
  ``architecture``
- heat in degrees: ``temperature`` 40, ``memory_temperature`` 48, ``temperature_margin`` 47,
  ``threshold_slowdown`` 89, ``threshold_shutdown`` 95, ``threshold_maximum`` 87, ``threshold_memory_maximum``
  95, and the T.Limit offsets ``margin_slowdown`` -2, ``margin_shutdown`` -8, ``margin_maximum`` 0,
  ``margin_memory_maximum`` 0
- power: ``power_milliwatts`` 120000, ``power_limit_milliwatts`` 700000, ``power_limit_default_milliwatts``,
  ``module_power_milliwatts``, ``memory_power_milliwatts``, ``energy_millijoules``
- clocks: ``sm_clock_megahertz`` 1980, ``memory_clock_megahertz`` 2619, ``sm_clock_maximum_megahertz``,
  ``event_reasons`` (mask), ``event_reasons_supported``, ``violation_NAME_nanoseconds`` (power, thermal,
  sync_boost, board_limit, low_utilization, reliability, software_thermal, hardware_thermal, power_brake),
  ``throttle_field_base`` 269
- memory errors: ``ecc_mode`` 1, ``ecc_{corrected,uncorrected}_{volatile,aggregate}_LOCATION``,
  ``ecc_locations`` (mask), ``sram_threshold_exceeded``, ``remapped_correctable``, ``remapped_uncorrectable``,
  ``remap_pending``, ``remap_failed``, ``banks_none``, ``banks_low``, ``recovery_action`` 0
- PCIe: ``pcie_generation`` 5, ``pcie_width`` 16, ``pcie_generation_maximum``, ``pcie_width_maximum``,
  ``pcie_replays``, ``pcie_correctable_errors``, ``pcie_nonfatal_errors``, ``pcie_fatal_errors``
- links: ``links`` 18, ``link_state`` 1, ``link_version`` 6, ``link_megabytes_per_second`` 26562,
  ``link_replay_errors``, ``link_recovery_errors``, ``link_crc_errors``, ``link_crc_data_errors``,
  ``link_effective_errors``, ``link_remote_type``, ``link_remote_pci``, ``fabric_state`` 3, ``fabric_status`` 0,
  ``fabric_health_mask``, ``topology.A.B``, ``peer_nvlink_status.A.B``
- load: ``utilization_percent``, ``memory_used_bytes``, ``memory_total_bytes``, ``processes`` (``pid:bytes
  pid:bytes``), ``persistence_mode`` 1

Faults take a function, a slot, both (``NAME.SLOT``) or ``all``: see ``fail``, ``hang``, ``crash`` and ``delay``.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

__all__ = ["FakeNvml", "NvmlReturn"]

XID = 8
"""The event type of an XID in NVML's mask of event types."""


class NvmlReturn(IntEnum):
    """The return codes of NVML that tests inject."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    DRIVER_NOT_LOADED = 9
    IRQ_ISSUE = 11
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    NO_DATA = 21
    ARGUMENT_VERSION_MISMATCH = 25
    NOT_READY = 27
    UNKNOWN = 999


class FakeNvml:
    """A machine on the fake library. Every method takes effect at the next call into the library."""

    def __init__(self, path: Path, library: Path) -> None:
        """Begin with a healthy machine, described in the file *path* for the library at *library*."""
        self.path = path
        self.library = library
        self.log = path.with_suffix(".calls")
        self._values: dict[str, str] = {}
        self._events: list[str] = []
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a child needs from its start on: the dynamic linker reads them only then."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), "NODEVET_FAKE_NVML": str(self.path)}

    @property
    def logged_environment(self) -> dict[str, str]:
        """The same, with every call into the library written to ``log``."""
        return {**self.environment, "NODEVET_FAKE_NVML_LOG": str(self.log)}

    def calls(self) -> list[str]:
        """Return the calls of children that ran in ``logged_environment``: function and slot, -1 for the library."""
        return self.log.read_text(encoding="ascii").splitlines() if self.log.exists() else []

    def set(self, key: str, value: float | str) -> FakeNvml:
        """Set one key and return self."""
        return self.update({key: value})

    def update(self, values: dict[str, float | str]) -> FakeNvml:
        """Set several keys at once and return self."""
        self._values |= {key: str(value) for key, value in values.items()}
        self._write()
        return self

    def clear(self, *keys: str) -> FakeNvml:
        """Forget *keys*, or everything but the events that happened, and return self."""
        for key in keys or tuple(self._values):
            self._values.pop(key, None)
        self._write()
        return self

    def xid(self, gpu: int, code: int) -> FakeNvml:
        """Report an XID of the device in slot *gpu* to everybody who waits for events."""
        return self.event(gpu, XID, code)

    def event(self, gpu: int, kind: int, data: int) -> FakeNvml:
        """Report an event of any type with its data."""
        self._events.append(f"event.{len(self._events) + 1} {gpu} {kind} {data}")
        self._write()
        return self

    def fail(self, what: str, code: NvmlReturn, gpu: int | None = None) -> FakeNvml:
        """Let the function *what* (or ``field.ID``) return *code*, on all devices or on *gpu*."""
        return self._fault("error", what, gpu, int(code))

    def fail_device(self, gpu: int, code: NvmlReturn = NvmlReturn.GPU_IS_LOST) -> FakeNvml:
        """Let every call on the device in slot *gpu* return *code*."""
        return self._fault("error", "", gpu, int(code))

    def vanish(self, gpu: int) -> FakeNvml:
        """Take the device in slot *gpu* out of the count."""
        return self.set(f"present.{gpu}", 0)

    def hang(self, what: str = "all", gpu: int | None = None) -> FakeNvml:
        """Let the function *what* never return; an empty name with *gpu* means every call on that device."""
        return self._fault("hang", what, gpu, 1)

    def crash(self, what: str = "all", gpu: int | None = None) -> FakeNvml:
        """Let the function *what* abort the process."""
        return self._fault("abort", what, gpu, 1)

    def delay(self, what: str, milliseconds: int, gpu: int | None = None) -> FakeNvml:
        """Let the function *what* take *milliseconds* longer."""
        return self._fault("delay_milliseconds", what, gpu, milliseconds)

    def _fault(self, kind: str, what: str, gpu: int | None, value: int) -> FakeNvml:
        words = [kind, what, "" if gpu is None else str(gpu)]
        return self.set(".".join(word for word in words if word), value)

    def _write(self) -> None:
        lines = [f"{key} {value}" for key, value in self._values.items()] + self._events
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n", encoding="ascii")
        new.replace(self.path)
