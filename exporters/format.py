"""Numbers, times and codes as text for people."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime

from nodevet.checks.core.model import NODE, DeviceKind, Instant, Scalar, Snapshot
from nodevet.checks.engine.view import device_node_name

ABSENT = "\u2013"
"""Stands where nothing was measured."""

_SIGNS = {"celsius": "°C", "watts": "W", "seconds": "s", "joules": "J"}
_SHORT_KINDS = {"accelerator": "GPU", "cpu": "CPU", "nic": "NIC"}


def number(value: float, digits: int = 3) -> str:
    """Return *value* with *digits* significant digits and a comma between thousands."""
    if isinstance(value, int) or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def amount(value: Scalar, unit: str) -> str:
    """Return *value* with its unit, such as ``3 °C`` or ``2.5 GHz``."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    match unit:
        case "ratio":
            return f"{number(100 * value)} %"
        case "hertz":
            return hertz(value)
        case "bytes":
            return bytes_of(value)
        case "bytes_per_second":
            return f"{number(value / 1e9)} GB/s"
        case "count":
            return number(value)
        case "flops_per_second":
            return f"{number(value / 1e12)} TFLOPS"
    return f"{number(value)} {_SIGNS.get(unit, words(unit))}".rstrip()


def hertz(value: float) -> str:
    """Return a clock: ``1,980 MHz``."""
    return f"{value / 1e6:,.0f} MHz"


def bytes_of(value: float) -> str:
    """Return a size in the binary unit that leaves one to four digits before the point."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{number(value, 3)} {unit}"
        value /= 1024
    return f"{number(value, 3)} TiB"


def percent(ratio: float, digits: int = 0) -> str:
    """Return *ratio* in hundredths."""
    return f"{100 * ratio:.{digits}f} %"


def one_in(rate: float | None) -> str:
    """Return an upper bound of an error rate as ``1/30037``, rounded up: no run claims more than it showed."""
    trials = 1 / rate * (1 + 1e-12) if rate else math.nan
    return f"1/{math.floor(trials)}" if math.isfinite(trials) else ABSENT  # of a subnormal rate it is infinite


def bar_length(ratio: float) -> str:
    """Return how much of a bar is filled at *ratio*, in hundredths, cut to 0 to 100."""
    return f"{100 * min(max(ratio, 0.0), 1.0):.1f}"


def rate_unit(rates: Iterable[float | None]) -> tuple[str, float]:
    """Return the unit in which *rates*, in TFLOPS, are easily read, and what brings them to it."""
    known = [rate for rate in rates if rate is not None]
    return ("GFLOPS", 1000.0) if known and max(known) < 1 else ("TFLOPS", 1.0)


def counted(count: int, noun: str) -> str:
    """Return *count* with *noun* in its plural where it needs one: ``1 finding``, ``2 findings``."""
    return f"{count:,} {noun if count == 1 else f'{noun}s'}"


def words(code: str) -> str:
    """Return a word of ours without its underscores."""
    return code.replace("_", " ")


def moment(instant: Instant | None) -> str:
    """Return the wall time as ``2026-11-20 10:00:00 UTC``."""
    if instant is None:
        return ABSENT
    return datetime.fromtimestamp(instant.wall_seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration(seconds: float) -> str:
    """Return a time span in its largest unit that is at least two of them: ``45 s``, ``3 min``, ``5 h``, ``4 d``."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def age(now: Instant, then: Instant | None) -> str:
    """Return how long before *now* something was: ``3 min ago``, or ``before the last boot``."""
    if then is None:
        return "never"
    seconds = now.seconds_since(then)
    return "before the last boot" if seconds is None else f"{duration(seconds)} ago"


def device_names(snapshot: Snapshot) -> dict[str, str]:
    """Return what people call each device: ``GPU 3`` by its device node, else its id; the node is ``the node``."""
    names = {NODE: "the node"}
    for device in snapshot.devices:
        if device.kind is DeviceKind.NODE:
            continue
        names[device.id] = short_name(device.id, device.kind.value, device.minor)
    return names


def short_name(device_id: str, kind: str, minor: int | None) -> str:
    """Return what people call a device: ``GPU 3`` by its device node *minor*, else its id."""
    return device_id if minor is None else f"{_SHORT_KINDS.get(kind, kind)} {device_node_name(minor)}"
