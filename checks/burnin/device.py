"""The device under load as torch reports it: one torch device, its facts, its clocks and its free memory.

The parent chooses the device by environment before the child starts (``CUDA_VISIBLE_DEVICES`` with a UUID), so an
accelerator is always the only one that is visible. A processor socket is chosen by affinity.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from .errors import RefusedError
from .host import (
    cores_of,
    cpu_quota,
    host_memory_allowance,
    last_level_cache_bytes,
    online_processors,
    processors_of_socket,
)
from .library import torch
from .peak import DeviceFacts, table_cache_bytes
from .rates import believed

Outcome = TypeVar("Outcome")

ONE_INSTANCE = "the board is split, and a load reaches one MIG instance of it: disable MIG to load all of it"

_OF_A_PART = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "HSA_CU_MASK", "ROC_GLOBAL_CU_MASK")
"""Variables that restrict a process to a part of an accelerator; SLURM sets the first one in a job with gres/mps."""

_ALL = "100"

_MOST_PROCESSORS = 8192
"""No kernel has more (CONFIG_NR_CPUS); the kernel ignores those that do not exist."""


class ComputeDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device to load. ``cache_bytes`` is its last-level cache, None where unknown.

    ``left_out`` names the part that the load does not reach, so that no result proves the device.
    """

    kind: str
    torch_device: torch.device
    facts: DeviceFacts
    cache_bytes: int | None
    threads: int | None = None
    left_out: str = ""

    def free_bytes(self) -> int:
        """Return the largest allocation of a load in bytes, before any share of it is chosen."""
        if self.kind == "cpu":
            return host_memory_allowance()
        free, _total = torch.cuda.mem_get_info(self.torch_device)
        return int(free)

    def timed(self, start: Callable[[], Callable[[], Outcome]]) -> tuple[float, Outcome]:
        """Call *start*, then the function that it returns, which waits for the device; return seconds and the outcome.

        A device's own timer is not trusted beyond the time that passed on the host.
        """
        begin_seconds = time.perf_counter()
        if self.kind == "cpu":
            outcome = start()()
            return time.perf_counter() - begin_seconds, outcome
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        wait = start()
        end.record()
        outcome = wait()
        end.synchronize()
        return believed(float(begin.elapsed_time(end)) / 1e3, time.perf_counter() - begin_seconds), outcome

    def release(self) -> None:
        """Return cached memory to the driver."""
        if self.kind != "cpu":
            torch.cuda.empty_cache()


def open_device(device_id: str, pci_device_id: str | None = None) -> ComputeDevice:
    """Open the device *device_id*: ``cpu-N`` for socket N, anything else for the one visible accelerator.

    Raises RefusedError where it does not exist.
    """
    if device_id.startswith("cpu-"):
        return _open_socket(device_id)
    if not torch.cuda.is_available():
        build = torch.version.hip or torch.version.cuda
        built = "for processors only" if build is None else f"against {build}"
        raise RefusedError(f"torch {torch.__version__} sees no accelerator (built {built}); install a matching build")
    properties = torch.cuda.get_device_properties(0)
    is_rocm = torch.version.hip is not None
    architecture = (
        str(getattr(properties, "gcnArchName", "")).split(":")[0]
        if is_rocm
        else f"sm{properties.major}{properties.minor}"
    )
    clock_kilohertz = getattr(properties, "clock_rate", None)
    facts = DeviceFacts(
        vendor="amd" if is_rocm else "nvidia",
        architecture=architecture or None,
        name=properties.name,
        pci_device_id=pci_device_id,
        compute_units=properties.multi_processor_count,
        maximum_clock_hertz=clock_kilohertz * 1000 if clock_kilohertz else None,
    )
    return ComputeDevice(
        kind="rocm" if is_rocm else "cuda",
        torch_device=torch.device("cuda", 0),
        facts=facts,
        cache_bytes=table_cache_bytes(architecture) or getattr(properties, "L2_cache_size", None),
        left_out=ONE_INSTANCE if "MIG" in properties.name.split() else _kept_away(os.environ),
    )


def _open_socket(device_id: str) -> ComputeDevice:
    """Bind this process to the socket and give torch one thread for each of its usable cores."""
    socket = device_id.removeprefix("cpu-")
    allowed = os.sched_getaffinity(0)
    processors = processors_of_socket(socket, allowed)
    if not processors:
        raise RefusedError(f"{device_id}: no processor of this socket may be used; allowed are {sorted(allowed)}")
    reachable = _reachable()
    os.sched_setaffinity(0, processors)
    cores, quota = cores_of(processors), cpu_quota()
    there = allowed | _of_machine() | reachable | online_processors()
    threads = cores if quota is None else max(1, min(cores, math.ceil(quota)))
    torch.set_num_threads(threads)
    return ComputeDevice(
        kind="cpu",
        torch_device=torch.device("cpu"),
        facts=DeviceFacts(vendor="", architecture=None, name=device_id, compute_units=cores),
        cache_bytes=last_level_cache_bytes(processors),
        threads=threads,
        left_out=_left_out(len(processors), len(processors_of_socket(socket, there)))
        or _withheld_time(quota, cores_of(there)),
    )


def _of_machine() -> frozenset[int]:
    """Return the processors of this machine or container: the affinity of its first process, where that is readable."""
    try:
        return frozenset(os.sched_getaffinity(1))
    except OSError:
        return frozenset()


def _reachable() -> frozenset[int]:
    """Return the processors that this process could have, regardless of its start; changes its affinity.

    A restriction of the service manager itself (CPUAffinity= in system.conf, isolcpus=) applies to every process.
    """
    try:
        os.sched_setaffinity(0, range(_MOST_PROCESSORS))
    except OSError:
        return frozenset()
    return frozenset(os.sched_getaffinity(0))


def _kept_away(environment: Mapping[str, str]) -> str:
    """Return a text about the variable that withholds a part of an accelerator, or an empty string."""
    name = next((name for name in _OF_A_PART if environment.get(name, _ALL) not in ("", _ALL)), None)
    return f"{name} keeps a part of the device from the load: unset it" if name else ""


def _left_out(used: int, of: int) -> str:
    """Return a text about the processors of a socket that a load does not use, or an empty string."""
    if used == of:
        return ""
    why = "taskset, a job, a container, CPUAffinity=, isolcpus="
    return f"{of - used} of {of} processors are not for this process ({why})"


def _withheld_time(quota: float | None, cores: int) -> str:
    """Return a text about the processor time that a *quota* withholds from a load; all sockets share it."""
    if quota is None or quota >= cores:
        return ""
    return f"a quota leaves the time of {quota:g} of {cores} cores to this process (cpu.max, CPUQuota=): lift it"
