"""Resources of the host for a load: memory within its cgroup, processors within its quota, caches, formats.

Everything is read under a root, so that a captured tree returns the values of its machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from .errors import RefusedError

HOST_SHARE = 0.10
"""Share of the available memory that a load may use on a shared host."""

_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def host_memory_allowance(root: str = "/") -> int:
    """Return the bytes that a load may allocate: 10 % of the memory available on the host or left in its cgroup.

    Raises RefusedError where ``proc/meminfo`` does not state the available memory.
    """
    available = _meminfo_available(Path(root))
    for directory in _cgroup_directories(Path(root), "memory"):
        limit = _number(directory / "memory.max") or _number(directory / "memory.limit_in_bytes")
        used = _number(directory / "memory.current") or _number(directory / "memory.usage_in_bytes") or 0
        if limit is not None:
            available = min(available, max(0, limit - used))
    return int(available * HOST_SHARE)


def cpu_quota(root: str = "/") -> float | None:
    """Return the processor time that the cgroups allow, in processors, or None without a quota."""
    quotas = []
    for directory in _cgroup_directories(Path(root), "cpu"):
        words = _text(directory / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit():
            quotas.append(int(words[0]) / int(words[1]))
        quota, period = _number(directory / "cpu.cfs_quota_us"), _number(directory / "cpu.cfs_period_us")
        if quota and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def online_processors(root: str = "/") -> frozenset[int]:
    """Return the online processors, also those that a container was not given; empty where unknown."""
    pieces = [piece.split("-") for piece in _text(Path(root, "sys/devices/system/cpu/online")).split(",")]
    spans = [(piece[0], piece[-1]) for piece in pieces if all(number.isdigit() for number in piece)]
    return frozenset(cpu for first, last in spans for cpu in range(int(first), int(last) + 1))


def processors_of_socket(socket: str, processors: Iterable[int]) -> frozenset[int]:
    """Return those of *processors* that belong to *socket*."""
    return frozenset(cpu for cpu in processors if _topology(cpu, "physical_package_id", "0") == socket)


def cores_of(processors: Iterable[int]) -> int:
    """Return the number of cores of *processors*: a core number may repeat on another die."""
    return len({_topology(cpu, "thread_siblings_list", str(cpu)) for cpu in processors})


def _topology(cpu: int, name: str, otherwise: str) -> str:
    return _text(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology", name)) or otherwise


def has_bf16_units(root: str = "/") -> bool | None:
    """Return whether the processor multiplies bf16 in hardware; else libraries convert it, 50 times slower than fp32.

    None where the kernel does not report processor flags.
    """
    text = _text(Path(root, "proc/cpuinfo"))
    if not text:
        return None
    for line in text.splitlines():
        name, _, words = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            return not _BF16_FLAGS.isdisjoint(words.split())
    return False


def last_level_cache_bytes(processors: frozenset[int], root: str = "/") -> int | None:
    """Return the total size of the last-level caches of *processors*, or None where the kernel does not report it."""
    caches: dict[tuple[int, str], int] = {}
    for processor in processors:
        for cache in Path(root, f"sys/devices/system/cpu/cpu{processor}/cache").glob("index*"):
            level, size = _number(cache / "level"), _text(cache / "size")
            if level is not None and size.endswith("K"):
                caches[level, _text(cache / "shared_cpu_list")] = int(size[:-1]) << 10
    last = max((level for level, _ in caches), default=None)
    return sum(size for (level, _), size in caches.items() if level == last) or None


def _meminfo_available(root: Path) -> int:
    """Parsed here: psutil has one root per process, and a load reads /proc, or a captured tree in tests."""
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        number = value.strip().partition(" ")[0]
        if name == "MemAvailable" and number.isdecimal():
            return int(number) << 10
    raise RefusedError(f"{root / 'proc/meminfo'} does not tell the available memory; no load is started without it")


def _cgroup_directories(root: Path, controller: str) -> list[Path]:
    """Return the cgroups that hold this process, the innermost first, of version 2 and 1."""
    directories = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        inner = mount / path.lstrip("/")
        directories += [inner, *(parent for parent in inner.parents if parent.is_relative_to(mount))]
    return directories


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return os.fsdecode(path.read_bytes()).strip()
    except OSError:
        return ""
