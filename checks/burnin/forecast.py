"""What a run is going to do, told without a load: shape, times and memory of each workload. Imports no torch."""

from __future__ import annotations

import msgspec

from .families import data_types
from .layout import least_bytes
from .plan import GemmRequest, plan_named, planned_shape

_WIDE_BYTES = {"float64": 8}
_OTHER_BYTES = 4


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """One workload to come. ``shape`` may be halved by a slow device, and ``memory_bytes`` is what it takes at least.

    ``seconds`` are those of load; ``setup_seconds`` is the estimate of the plan.
    """

    device: str
    dtype: str
    shape: tuple[int, int, int]
    setup_seconds: float
    seconds: float
    memory_bytes: int


def forecast(request: GemmRequest, kind: str, cores: int | None) -> Forecast:
    """Return what *request* comes to on a device of *kind* with so many *cores* (processors only)."""
    shape = request.shape or planned_shape(request.plan, kind, cores, request.dtype)
    data_type = data_types()[request.dtype]
    m, n, k = shape
    if request.shape is None and request.call_limit_seconds:
        k = min(k, data_type.maximum_k)
    setup = plan_named(request.plan).setup_seconds[kind]
    return Forecast(
        device=request.device,
        dtype=request.dtype,
        shape=(m, n, k),
        setup_seconds=setup,
        seconds=max(request.seconds, request.duration_seconds - setup) if request.duration_seconds else request.seconds,
        memory_bytes=least_bytes((m, n, k), data_type, _WIDE_BYTES.get(data_type.wide, _OTHER_BYTES)),
    )
