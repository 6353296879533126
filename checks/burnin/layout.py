"""Shape, ring and batches of a workload that fit the device's speed and memory. Arithmetic only, no device."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from .errors import RefusedError
from .families import DataType
from .rotation import keeps_operand_set

EXTRA_ROWS = 1024
"""Rows of A beyond M: the row offset of each product is drawn from them."""

BATCH_SECONDS = 0.1
"""Longest time between two reads of the device's flag."""

WORKSPACE_BYTES = 1 << 30
"""Bytes left free on an accelerator for the library's own allocations."""

_LEAST_SLOTS = 4
_SPARE_SLOTS = 3  # a frozen slot and its recomputation while a fault is located
_LEAST_LAPS = 3
_LEAST_SIDE, _LEAST_K = 256, 512
_WORTH_A_TRY = 20  # small products are slower per operation: a shape predicted this much too slow is still tried


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The ring of one workload. ``covers_cache`` says whether the lag exceeds twice the last-level cache."""

    shape: tuple[int, int, int]
    slots: int
    lag: int
    batch: int
    bytes: int
    covers_cache: bool | None


def fit_shape(
    shape: tuple[int, int, int], maximum_k: int, limit_seconds: float, measure: Callable[[tuple[int, int, int]], float]
) -> tuple[tuple[int, int, int], float]:
    """Halve *shape* until *measure* says that one product takes at most *limit_seconds*; return both.

    A small product is measured first, so that a device without the format's units is not sent into minutes of work.
    """
    m, n, k = shape[0], shape[1], min(shape[2], maximum_k)
    small = (min(m, _LEAST_SIDE), min(n, _LEAST_SIDE), min(k, _LEAST_K))
    per_operation = measure(small) / math.prod(small)
    current = (m, n, k)
    while True:
        seconds = per_operation * math.prod(current)
        if seconds <= _WORTH_A_TRY * limit_seconds:
            seconds = measure(current)
            per_operation = seconds / math.prod(current)
        smaller = _shrink(current)
        if seconds <= limit_seconds or smaller is None:
            return current, seconds
        current = smaller


def fit_memory(
    shape: tuple[int, int, int], data_type: DataType, output_bytes: int, budget_bytes: int
) -> tuple[int, int, int]:
    """Halve *shape* until the smallest ring fits *budget_bytes*, or it cannot get smaller."""
    while least_bytes(shape, data_type, output_bytes) > budget_bytes:
        smaller = _shrink(shape)
        if smaller is None:
            break
        shape = smaller
    return shape


def least_bytes(shape: tuple[int, int, int], data_type: DataType, output_bytes: int) -> int:
    """Return what the smallest ring takes, with its operands."""
    return _fixed_bytes(shape, data_type, output_bytes) + _LEAST_SLOTS * shape[0] * shape[1] * output_bytes


def lay_out(
    shape: tuple[int, int, int],
    data_type: DataType,
    output_bytes: int,
    *,
    budget_bytes: int,
    cache_bytes: int | None,
    gemm_seconds: float,
    seconds: float,
) -> Layout:
    """Return the ring that fits *budget_bytes* and is lapped at least three times in *seconds*.

    Raises RefusedError where not even the smallest ring fits.
    """
    m, n, k = shape
    slot = m * n * output_bytes
    fixed = _fixed_bytes(shape, data_type, output_bytes)
    most = (budget_bytes - fixed) // slot
    if most < _LEAST_SLOTS:
        needed = least_bytes(shape, data_type, output_bytes)
        raise RefusedError(
            f"{data_type.name} {m}x{n}x{k} needs {needed >> 20} MiB, {max(0, budget_bytes) >> 20} MiB may be taken; "
            "free memory or choose a smaller shape"
        )
    batch = max(1, int(BATCH_SECONDS / gemm_seconds))
    # A virtual machine may report the cache of its whole host: no more products wait than the load measures.
    lag = max(1, min(math.ceil(2 * (cache_bytes or 0) / slot), int(seconds / gemm_seconds)))
    useful = max(_LEAST_SLOTS, int(seconds / gemm_seconds / _LEAST_LAPS))
    slots = _fitting(max(useful, lag + batch), most, data_type.set_count)
    if lag + batch > slots:
        lag = min(lag, slots // 2)
        batch = min(batch, slots - lag)
    covers = None if cache_bytes is None else lag * slot >= 2 * cache_bytes
    return Layout(shape=shape, slots=slots, lag=lag, batch=batch, bytes=fixed + slots * slot, covers_cache=covers)


def _fitting(wanted: int, most: int, sets: int) -> int:
    """Return *wanted* within *most*, or the nearest number in which no slot keeps its operand set."""
    slots = min(wanted, most)
    near = (slots + step for step in (0, 1, -1, 2, -2))
    return next(number for number in near if number <= most and not keeps_operand_set(number, sets))


def _fixed_bytes(shape: tuple[int, int, int], data_type: DataType, output_bytes: int) -> int:
    """Return what operands, an exact result and the spare slots take, without the ring."""
    m, n, k = shape
    operands = data_type.set_count * ((m + EXTRA_ROWS) * k + k * n) * data_type.bytes_per_element
    exact = m * n * (8 if data_type.wide == "float64" else 4)
    return operands + exact + _SPARE_SLOTS * m * n * output_bytes


def _shrink(shape: tuple[int, int, int]) -> tuple[int, int, int] | None:
    """Return *shape* with its longest side halved, K first, or None where it is as small as it gets."""
    m, n, k = shape
    if k > _LEAST_K and k >= max(m, n):
        return (m, n, _halve(k))
    if max(m, n) > _LEAST_SIDE:
        return (_halve(m), n, k) if m >= n else (m, _halve(n), k)
    return None


def _halve(side: int) -> int:
    return max(128, side // 2 // 128 * 128)
