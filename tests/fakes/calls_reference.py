"""The page of the calls by which each reading is taken from a vendor's library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from nodevet.checks.backends.amd import amdsmi
from nodevet.checks.backends.amd import items as amd
from nodevet.checks.backends.nvidia import items as nvidia
from nodevet.checks.backends.nvidia import nvml

HEAD = """# Calls of the vendors' libraries

<!-- Written by make golden from items.py of each vendor's folder in checks/backends. Edit that, not this page. -->

Each reading of an accelerator, and the calls that return it. The first call that the device supports is used. The
fast group is read in every interval, the slow group once a minute. A field is an identifier of
`nvmlDeviceGetFieldValues`. [nvidia.md](nvidia.md) and [amd.md](amd.md) describe how the answers are read.
"""


def items() -> dict[tuple[str, str], tuple[nvml.Item | amdsmi.Item, ...]]:
    """Return the items of each vendor and group for a device with one link port and every block of memory."""
    return {
        ("NVIDIA", "fast"): nvidia.fast_items(1, "13.580"),
        ("NVIDIA", "slow"): nvidia.slow_items(1),
        ("AMD", "fast"): amd.fast_items(1, amd.ThrottleClock()),
        ("AMD", "slow"): amd.slow_items(1, sorted(amd.BLOCKS)),
    }


def calls_page(_repository: Path) -> str:
    """One table for each vendor and group: quantity, part and calls."""
    lines = [HEAD.rstrip()]
    for (vendor, group), each in items().items():
        lines += ["", f"## {vendor}, {group} group", "", "| Reading | Part | Calls |", "|---|---|---|"]
        lines += _rows(each)
    return "\n".join(lines) + "\n"


def _rows(each: Iterable[nvml.Item | amdsmi.Item]) -> Iterator[str]:
    parts: dict[tuple[str, str, str], list[str]] = {}
    for item in each:
        calls = ", else ".join(dict.fromkeys(_name(source) for source in item.sources))
        names = parts.setdefault((item.quantity, item.part.kind.value, calls), [])
        names += [f"`{item.part.name.removeprefix('vendor:')}`"] if item.part.name else []
    for (quantity, kind, calls), names in parts.items():
        of = f"`{kind}`" + (f": {', '.join(dict.fromkeys(names))}" if names else "")
        yield f"| `{quantity}` | {of} | {calls} |"


def _name(source: nvml.Field | nvml.Call | amdsmi.Call) -> str:
    return f"field {source.identifier}" if isinstance(source, nvml.Field) else f"`{source.symbol}`"
