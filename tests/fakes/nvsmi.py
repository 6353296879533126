"""What `nvidia-smi -q` printed on a real machine, as a scenario of the fake NVML: the driver is played back."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping

from fakes.nvml.scenario import NvmlReturn

__all__ = ["boards", "scenario"]

Board = dict[str, str]
"""The values of one board by the names of the lines that lead to it."""

VERSION = re.compile(r"Driver Version\s*: (\S+)|<driver_version>([^<]+)<")
HEADING = re.compile(r"GPU [0-9A-F]{8}:")
ARCHITECTURES = {"pascal": 4, "volta": 5, "turing": 6, "ampere": 7, "ada lovelace": 8, "hopper": 9, "blackwell": 10}
LINKS = {"A100-SXM": 12, "H100 80GB HBM3": 18, "H200": 18}

# (key of the fake, multiplier, what fails where it is N/A, names in text and XML)
NUMBERS: tuple[tuple[str, float, tuple[str, ...], tuple[str, ...]], ...] = (
    ("temperature", 1, ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"), ("gpu_current_temp", "gpu_temp")),
    ("temperature_margin", 1, ("nvmlDeviceGetMarginTemperature",), ("gpu_t_limit_temp", "gpu_temp_tlimit")),
    ("memory_temperature", 1, ("field.82",), ("memory_current_temp", "memory_temp")),
    ("margin_shutdown", 1, ("field.193",), ("gpu_shutdown_t_limit_temp",)),
    ("margin_slowdown", 1, ("field.194",), ("gpu_slowdown_t_limit_temp",)),
    ("margin_memory_maximum", 1, ("field.195",), ("memory_max_operating_t_limit_temp",)),
    ("margin_maximum", 1, ("field.196",), ("gpu_max_operating_t_limit_temp",)),
    ("threshold_slowdown", 1, (), ("gpu_slowdown_temp", "gpu_temp_slow_threshold")),
    ("threshold_shutdown", 1, (), ("gpu_shutdown_temp", "gpu_temp_max_threshold")),
    ("threshold_maximum", 1, (), ("gpu_max_operating_temp", "gpu_temp_max_gpu_threshold")),
    ("power_milliwatts", 1e3, ("field.185", "nvmlDeviceGetPowerUsage"), ("average_power_draw", "power_draw")),
    (
        "power_limit_milliwatts", 1e3, ("nvmlDeviceGetEnforcedPowerLimit",),
        ("current_power_limit", "enforced_power_limit"),
    ),
    (
        "power_limit_requested_milliwatts", 1e3, ("field.192", "nvmlDeviceGetPowerManagementLimit"),
        ("requested_power_limit", "power_limit"),
    ),
    (
        "power_limit_default_milliwatts", 1e3, ("field.189", "nvmlDeviceGetPowerManagementDefaultLimit"),
        ("default_power_limit",),
    ),
    ("pcie_width", 1, (), ("link_width/current", "current_link_width")),
    ("pcie_width_maximum", 1, (), ("link_width/max", "max_link_width")),
    ("utilization_percent", 1, ("nvmlDeviceGetUtilizationRates",), ("utilization/gpu", "utilization/gpu_util")),
    ("memory_clock_megahertz", 1, (), ("clocks/memory", "clocks/mem_clock")),
    ("sm_clock_megahertz", 1, (), ("clocks/sm", "clocks/sm_clock")),
)  # fmt: skip
REASONS = {
    0x01: "idle",
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
REMAPPING = ("field.144", "field.145", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetRowRemapperHistogram")


def boards(text: str) -> list[Board]:
    """Return what *text*, lines or XML, says of each board."""
    return list(_of_xml(text) if "<?xml" in text else _of_lines(text))


def scenario(text: str) -> dict[str, float | str]:
    """Return the keys of a fake NVML whose driver answers as the one did that *text* is of."""
    found = boards(text)
    version = next(part for match in VERSION.finditer(text) for part in match.groups() if part)
    values: dict[str, float | str] = {"count": len(found), "fabric_state": 0, "nvml_version": f"12.{version}"}
    for slot, board in enumerate(found):
        name = _value(board, "product_name")
        values[f"name.{slot}"] = name
        values[f"links.{slot}"] = next((count for part, count in LINKS.items() if part in name), 0)
        values[f"architecture.{slot}"] = ARCHITECTURES.get(_value(board, "product_architecture").lower(), 0)
        for key, factor, calls, names in NUMBERS:
            told = re.match(r"-?\d+(\.\d+)?", next((value for n in names if (value := _value(board, n))), ""))
            if told:
                values[f"{key}.{slot}"] = round(float(told[0]) * factor)
            values |= dict.fromkeys(
                (f"error.{call}.{slot}" for call in calls if not told), int(NvmlReturn.NOT_SUPPORTED)
            )
        split = _value(board, "mig_mode/current") or _value(board, "mig_mode/current_mig")
        values[f"mig_mode.{slot}"] = int(split == "Enabled")
        if not any("remapped_rows/" in key for key in board):
            values |= dict.fromkeys((f"error.{call}.{slot}" for call in REMAPPING), int(NvmlReturn.NOT_SUPPORTED))
        values[f"event_reasons.{slot}"] = sum(bit for bit, reason in REASONS.items() if _is_active(board, reason))
    return values


def _is_active(board: Mapping[str, str], reason: str) -> bool:
    return any(key.endswith(("/" + reason, "reason_" + reason)) and value == "Active" for key, value in board.items())


def _value(board: Mapping[str, str], name: str) -> str:
    """Return the first value under *name*; MIG instances tell nothing of the board."""
    keys = (key for key in board if f"/{key}".endswith(f"/{name}") and "mig_device" not in key and "module" not in key)
    return next((board[key] for key in keys), "")


def _word(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def _of_lines(text: str) -> Iterator[Board]:
    board: Board | None = None
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        if HEADING.match(line):
            if board is not None:
                yield board
            board, above = {}, []
        elif board is not None and line.strip():
            key, _, value = line.partition(" : ")
            depth = len(line) - len(line.lstrip())
            above = [entry for entry in above if entry[0] < depth] + [(depth, _word(key))]
            board.setdefault("/".join(word for _, word in above), value.strip())
    if board is not None:
        yield board


def _of_xml(text: str) -> Iterator[Board]:
    for element in ET.fromstring(text.encode()).findall("gpu"):
        yield dict(_leaves(element, ""))


def _leaves(element: ET.Element, above: str) -> Iterator[tuple[str, str]]:
    for child in element:
        yield (f"{above}{_word(child.tag)}", (child.text or "").strip())
        yield from _leaves(child, f"{above}{_word(child.tag)}/")
