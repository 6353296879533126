"""Burn-in plans as data, expanded into one request per number format for a device. Pure.

A request is sent to the load child as the parameters of ``Burn``; the child runs one after the other.
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

import msgspec

from nodevet.checks.core.errors import ReferenceDataError, UsageError

from .units import known_formats

WORKLOAD = "gemm"
"""The name of the only workload so far, as in ``Burn.workload`` and ``Result.workload``."""

DEFAULT_SEED = 20261


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named plan of ``plans.toml``; the file explains each field."""

    help: str
    seconds: float
    warmup_seconds: float
    memory_ratio: float
    maximum_memory_bytes: int
    call_limit_seconds: float
    dtypes: dict[str, tuple[str, ...]]
    k_factor: dict[str, int]
    shapes: Shapes


class Shapes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shapes (M, N, K): for processors by the least number of cores, and for accelerators."""

    cpu: dict[str, tuple[int, int, int]]
    accelerator: tuple[int, int, int]


class GemmRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One verified product workload on one device: the parameters of a ``Burn`` message.

    ``shape`` is (M, N, K), multiples of 128; None lets the child take it from the plan for its
    device. ``memory_ratio`` of the free memory and ``maximum_memory_bytes`` (0: none) limit its allocations.
    ``uuid`` and ``pci`` are those of an accelerator; another one that is visible in its place is not loaded.
    ``asked``: the format was requested by name, so that a device without it is not excused.
    """

    device: str
    dtype: str
    seconds: float
    plan: str = "probe"
    warmup_seconds: float = 0.0
    memory_ratio: float = 0.1
    maximum_memory_bytes: int = 0
    call_limit_seconds: float = 0.1
    shape: tuple[int, int, int] | None = None
    seed: int = DEFAULT_SEED
    self_test: bool = True
    pci_device_id: str | None = None
    uuid: str | None = None
    pci: str | None = None
    asked: bool = False

    def __post_init__(self) -> None:
        """Refuse invalid values, naming the field and the allowed range."""
        if self.shape is not None and any(side <= 0 or side % 128 for side in self.shape):
            raise ValueError(f"shape {self.shape}: M, N and K must be positive multiples of 128")
        if not 0 < self.memory_ratio <= 0.95:
            raise ValueError(f"memory_ratio {self.memory_ratio}: must be above 0 and at most 0.95")
        if self.seconds <= 0 or self.warmup_seconds < 0 or self.call_limit_seconds <= 0:
            raise ValueError("seconds and call_limit_seconds must be above 0, warmup_seconds not below")


@functools.cache
def load_plans() -> dict[str, Plan]:
    """Return every plan by name. Raises ReferenceDataError where the file of the package is malformed."""
    resource = Path(__file__).parents[1] / "reference" / "plans.toml"
    try:
        return msgspec.convert(tomllib.loads(resource.read_text(encoding="utf-8")), dict[str, Plan])
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ReferenceDataError(f"plans.toml: {error}; reinstall nodevet") from error


def requests_for(
    plan_name: str,
    device: str,
    kind: str,
    *,
    seconds: float | None = None,
    dtypes: tuple[str, ...] | None = None,
    pci_device_id: str | None = None,
    shape: tuple[int, int, int] | None = None,
) -> tuple[GemmRequest, ...]:
    """Return the requests of *plan_name* for *device* of *kind* (``cpu``, ``cuda``, ``rocm``), one per format.

    *seconds* (per format), *dtypes* and *shape* override the plan. Raises UsageError for an unknown plan or format. A
    repeated format is run once.
    """
    plan = plan_named(plan_name)
    unknown = [dtype for dtype in dtypes or () if dtype not in known_formats()]
    if unknown:
        raise UsageError(f"burn-in: unknown number format {unknown[0]!r}; formats: {', '.join(known_formats())}")
    return tuple(
        GemmRequest(
            device=device,
            dtype=dtype,
            plan=plan_name,
            seconds=plan.seconds if seconds is None else seconds,
            warmup_seconds=plan.warmup_seconds,
            memory_ratio=plan.memory_ratio,
            maximum_memory_bytes=plan.maximum_memory_bytes,
            call_limit_seconds=plan.call_limit_seconds,
            pci_device_id=pci_device_id,
            asked=dtypes is not None,
            shape=shape,
        )
        for dtype in (plan.dtypes.get(kind, ()) if dtypes is None else dict.fromkeys(dtypes))
    )


def plan_named(name: str) -> Plan:
    """Return the plan *name*. Raises UsageError with the existing names."""
    plans = load_plans()
    if name not in plans:
        raise UsageError(f"plan {name!r} does not exist; choose one of {', '.join(plans)}")
    return plans[name]


def planned_shape(name: str, kind: str, cores: int | None, dtype: str) -> tuple[int, int, int]:
    """Return (M, N, K) of plan *name* for *dtype* on a device of *kind* with *cores* (processors only)."""
    plan = plan_named(name)
    fitting = [int(least) for least in plan.shapes.cpu if int(least) <= (cores or 1)]
    m, n, k = plan.shapes.cpu[str(max(fitting))] if kind == "cpu" else plan.shapes.accelerator
    return (m, n, k * plan.k_factor.get(dtype, 1))
