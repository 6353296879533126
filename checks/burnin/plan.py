"""Burn-in plans as data, expanded into one request per number format for a device. Pure.

A request is sent to the load child as the parameters of ``Burn``; the child runs one after the other.
"""

from __future__ import annotations

import functools
import math
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from nodevet.checks.core.counts import count_of
from nodevet.checks.core.errors import ReferenceDataError, UsageError

from .errors import NotExactError
from .families import data_types, operand_families

WORKLOAD = "gemm"
"""The name of the only workload so far, as in ``Burn.workload`` and ``Result.workload``."""

DEFAULT_SEED = 20261


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named plan of ``plans.toml``; the file explains each field."""

    help: str
    duration_seconds: float
    least_seconds: float
    setup_seconds: dict[str, float]
    warmup_seconds: float
    memory_ratio: float
    maximum_memory_bytes: dict[str, int]
    call_limit_seconds: float
    dtypes: dict[str, tuple[str, ...]]
    k_factor: dict[str, int]
    shapes: Shapes

    def shortest_seconds(self, kind: str, formats: int) -> float:
        """Return the shortest run of so many *formats* on a device of *kind*, set-up included."""
        return formats * (self.setup_seconds[kind] + self.least_seconds)


class Shapes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shapes (M, N, K): for processors by the least number of cores, and for accelerators."""

    cpu: dict[str, tuple[int, int, int]]
    accelerator: tuple[int, int, int]


class GemmRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One verified product workload on one device: the parameters of a ``Burn`` message.

    ``shape`` is (M, N, K), multiples of 128; None lets the child take it from the plan for its
    device. ``seconds`` are those of load; where ``duration_seconds`` is not 0, the load takes what the set-up left of
    them, and ``seconds`` at least. ``call_limit_seconds`` is the longest product that the child chooses, 0 for the
    shape of the plan as it is. ``memory_ratio`` of the free memory and ``maximum_memory_bytes`` (0: none) limit its
    allocations.
    ``asked``: the format was requested by name, so that a device without it is not excused.
    """

    device: str
    dtype: str
    seconds: float
    duration_seconds: float = 0.0
    plan: str = "probe"
    warmup_seconds: float = 0.0
    memory_ratio: float = 0.1
    maximum_memory_bytes: int = 0
    call_limit_seconds: float = 0.1
    shape: tuple[int, int, int] | None = None
    seed: int = DEFAULT_SEED
    self_test: bool = True
    pci_device_id: str | None = None
    asked: bool = False

    def __post_init__(self) -> None:
        """Refuse invalid values, naming the field and the allowed range."""
        if self.shape is not None and any(side <= 0 or side % 128 for side in self.shape):
            raise ValueError(f"shape {self.shape}: M, N and K must be positive multiples of 128")
        if not 0 < self.memory_ratio <= 0.95:
            raise ValueError(f"memory_ratio {self.memory_ratio}: must be above 0 and at most 0.95")
        if self.seconds <= 0 or min(self.warmup_seconds, self.call_limit_seconds, self.duration_seconds) < 0:
            raise ValueError("seconds must be above 0, warmup_seconds, call_limit_seconds, duration_seconds not below")

    @property
    def planned_seconds(self) -> float:
        """Return how long the whole workload is to take, without its set-up where that is not limited."""
        return max(self.seconds, self.duration_seconds) + (0.0 if self.duration_seconds else self.warmup_seconds)


_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def duration_seconds(text: str) -> float:
    """Return the seconds of a duration such as ``90s``, ``10m``, ``8h`` or ``3d``. Raises ValueError."""
    found = _DURATION.fullmatch(text.strip().lower())
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not 0 < seconds < math.inf:
        raise ValueError(f"{text!r} is no duration above 0 such as 90s, 10m, 8h or 3d")
    return seconds


def duration_words(seconds: float) -> str:
    """Return *seconds* as ``duration_seconds`` reads them, rounded up to a second."""
    whole = math.ceil(round(seconds, 6))
    unit = next((unit for unit in ("d", "h", "m") if whole >= _SECONDS[unit] and whole % _SECONDS[unit] == 0), "s")
    return f"{whole // _SECONDS[unit]}{unit}"


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
    duration_seconds: float | None = None,
    dtypes: tuple[str, ...] | None = None,
    pci_device_id: str | None = None,
    shape: tuple[int, int, int] | None = None,
) -> tuple[GemmRequest, ...]:
    """Return the requests of *plan_name* for *device* of *kind* (``cpu``, ``cuda``, ``rocm``), one per format.

    *seconds* of load per format, or *duration_seconds* of the whole run, *dtypes* and *shape* override the plan. A
    repeated format is run once. Raises UsageError for an unknown plan or format, for a shape that a format refuses, and
    for a duration that its formats do not fit.
    """
    plan = plan_named(plan_name)
    unknown = [dtype for dtype in dtypes or () if dtype not in data_types()]
    if unknown:
        raise UsageError(f"burn-in: unknown number format {unknown[0]!r}; formats: {', '.join(data_types())}")
    chosen = plan.dtypes.get(kind, ()) if dtypes is None else tuple(dict.fromkeys(dtypes))
    if shape is not None:
        _require_exact(chosen, shape)
    wanted = plan.duration_seconds if duration_seconds is None else duration_seconds
    shortest = plan.shortest_seconds(kind, len(chosen))
    if seconds is None and wanted < shortest:
        raise UsageError(
            f"burn-in: {duration_words(wanted)} is too short for plan {plan_name} with "
            f"{count_of(len(chosen), 'format')} on {kind}: "
            f"set --duration to {duration_words(shortest)} or more, or choose formats with --dtype"
        )
    return tuple(
        GemmRequest(
            device=device,
            dtype=dtype,
            plan=plan_name,
            seconds=plan.least_seconds if seconds is None else seconds,
            duration_seconds=wanted / len(chosen) if seconds is None else 0.0,
            warmup_seconds=plan.warmup_seconds,
            memory_ratio=plan.memory_ratio,
            maximum_memory_bytes=plan.maximum_memory_bytes.get(kind, 0),
            call_limit_seconds=plan.call_limit_seconds,
            pci_device_id=pci_device_id,
            asked=dtypes is not None,
            shape=shape,
        )
        for dtype in chosen
    )


def _require_exact(dtypes: Iterable[str], shape: tuple[int, int, int]) -> None:
    """Raise UsageError where a product of *shape* is exact in no result of one of *dtypes*."""
    for dtype in dtypes:
        try:
            operand_families(data_types()[dtype], shape[2], narrow=True)
        except NotExactError as error:
            raise UsageError(f"burn-in: --shape: {error}, or choose formats with --dtype") from error


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
