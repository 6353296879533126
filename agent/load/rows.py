"""The rows of the live table: what each device of a load does, and what was read of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from nodevet.agent.terminal.live import LiveRow
from nodevet.checks.core.model import Device, DeviceKind, ResultState
from nodevet.checks.engine.view import device_node_name

from .conditions import UNREAD, Conditions, KnownConditions, throttle_word
from .run import DeviceProgress

_LETTERS = 7
"""The width of a device's name in the table."""

_PHASES = {
    "loading torch": "import",
    "preparing": "prepare",
    "certifying": "certify",
    "self-test": "test",
    "measuring the cost of checking": "warm-up",
    "measuring": "load",
    "starting": "start",
    "stopping": "stop",
}
_WORST = (ResultState.DIED, ResultState.REFUSED, ResultState.INTERRUPTED, ResultState.FINISHED)


def short_names(devices: Iterable[Device]) -> dict[str, str]:
    """Return a name of at most seven letters for each of *devices*, by id; no two are alike."""
    names: dict[str, str] = {}
    for number, device in enumerate(devices):
        choices = [*_candidates(device), f"dev{number}"]
        names[device.id] = next(name for name in choices if len(name) <= _LETTERS and name not in names.values())
    return names


def _candidates(device: Device) -> Iterable[str]:
    if device.kind is DeviceKind.ACCELERATOR and device.minor is not None and device_node_name(device.minor).isdigit():
        yield f"gpu{device.minor}"
    if device.pci:
        yield device.pci.partition(":")[2]
    yield device.id
    yield device.id[-_LETTERS:]


def live_rows(progress: Iterable[DeviceProgress], known: KnownConditions) -> tuple[LiveRow, ...]:
    """Return a row per device of *progress*, with the conditions that are *known* of it."""
    entries = tuple(progress)
    names = short_names(entry.device for entry in entries)
    return tuple(_row(names[entry.device.id], entry, known.get(entry.device.id, UNREAD)) for entry in entries)


def _row(name: str, entry: DeviceProgress, read: Conditions) -> LiveRow:
    tflops, peak = entry.figures.get("tflops"), entry.figures.get("peak_tflops")
    return LiveRow(
        device=name,
        phase=_phase(entry),
        tflops=tflops,
        peak_ratio=tflops / peak if tflops is not None and peak else None,
        temperature_celsius=read.temperature_celsius,
        power_watts=read.power_watts,
        clock_hertz=read.clock_hertz,
        throttle=None if read.throttle is None else throttle_word(read.throttle),
        verified=entry.verified,
        wrong=entry.wrong,
        left_seconds=entry.left_seconds,
    )


def _phase(entry: DeviceProgress) -> str:
    """Return format and phase, or how the device ended: by the worst of its formats."""
    if entry.ended:
        worst = next(state for state in _WORST if state in entry.ended)
        return "done" if worst is ResultState.FINISHED else str(worst.value)
    dtype = (entry.dtype or "").partition("_")[0]
    return " ".join(filter(None, (dtype, _PHASES.get(entry.phase, entry.phase))))
