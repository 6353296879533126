"""The shape of a workload's products and its ring, from measurements on the device itself.

On an accelerator the check of a product costs a time that does not depend on K, while the product grows with K. One
checked and one unchecked batch give the K at which checking takes its share; what K cannot do, a random share does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from nodevet.checks.reference.limits import from_table

from . import rates
from .device import ComputeDevice
from .layout import WORKSPACE_BYTES, KChoice, Layout, choose_k, fit_memory, fit_shape, fits_memory, lay_out
from .library import Tensor, torch
from .multiply import Multiplication
from .plan import GemmRequest, planned_shape
from .ring import Checking
from .sums import column_sums, row_sums

_BATCH_SECONDS = 0.05
_BATCH_AT_MOST = 64


class Sizing(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen layout, the shape of the plan, and how K was chosen (None where the plan or the request decides)."""

    layout: Layout
    planned: tuple[int, int, int]
    k: KChoice | None

    def facts(self) -> dict[str, Any]:
        """Return the conditions of a result that tell the choice."""
        facts: dict[str, Any] = {
            "planned_shape": list(self.planned),
            "slots": self.layout.slots,
            "lag": self.layout.lag,
            "batch": self.layout.batch,
            "lag_covers_cache": self.layout.covers_cache,
        }
        if self.k is not None:
            facts |= {
                "planned_k_overhead_ratio": self.k.overhead,
                "k_limited_by": self.k.limited_by or None,
            }
        return facts


def size(
    request: GemmRequest,
    device: ComputeDevice,
    multiplication: Multiplication,
    checking: Checking,
    pause: Callable[[], None],
) -> Sizing:
    """Return shape and ring for *request*; a shape that was asked for stays, or is refused."""
    wanted = request.shape or planned_shape(request.plan, device.kind, device.facts.compute_units, request.dtype)
    budget = _budget(request, device)
    data_type, output_bytes = multiplication.data_type, multiplication.output.itemsize

    def measure(shape: tuple[int, int, int]) -> float:
        pause()
        return _one_product_seconds(shape, device, multiplication)

    choice: KChoice | None = None
    if request.shape is None:
        affordable = fit_memory(wanted, data_type, output_bytes, budget)
        shape, gemm_seconds = fit_shape(affordable, data_type.maximum_k, request.call_limit_seconds, measure)
        if device.kind != "cpu":
            pause()
            choice = choose_k(
                shape,
                gemm_seconds,
                _overhead(shape, gemm_seconds, device, multiplication, checking),
                limit_ratio=from_table("burnin.checking_overhead").value,
                maximum_k=data_type.maximum_k,
                limit_seconds=request.call_limit_seconds,
                fits=lambda tried: fits_memory(tried, data_type, output_bytes, budget),
            )
            if choice.shape != shape:
                shape, gemm_seconds = choice.shape, measure(choice.shape)
    else:  # a re-test must have exactly this shape; one that does not fit is refused
        shape, gemm_seconds = wanted, measure(wanted)
    layout = lay_out(
        shape,
        data_type,
        output_bytes,
        budget_bytes=budget,
        cache_bytes=device.cache_bytes,
        gemm_seconds=gemm_seconds,
        seconds=request.seconds,
    )
    return Sizing(layout=layout, planned=wanted, k=choice)


def _budget(request: GemmRequest, device: ComputeDevice) -> int:
    free = device.free_bytes()
    budget = free if device.kind == "cpu" else int(free * request.memory_ratio) - WORKSPACE_BYTES
    return min(budget, request.maximum_memory_bytes) if request.maximum_memory_bytes else budget


def _one_product_seconds(shape: tuple[int, int, int], device: ComputeDevice, multiplication: Multiplication) -> float:
    """Return the seconds of the fastest of four products of zeros: the first ones start threads and load kernels."""
    a, b, out = _zeros(shape, device, multiplication)

    def start() -> Callable[[], float]:
        multiplication.run(a, b, out)
        return lambda: float(out[0, 0])

    return min(device.timed(start)[0] for _ in range(4))


def _overhead(
    shape: tuple[int, int, int],
    gemm_seconds: float,
    device: ComputeDevice,
    multiplication: Multiplication,
    checking: Checking,
) -> float | None:
    """Return by how much checking prolongs a batch of products of zeros, A B B A, after a first one that warms up."""
    a, b, out = _zeros(shape, device, multiplication)
    count = max(1, min(_BATCH_AT_MOST, int(_BATCH_SECONDS / max(gemm_seconds, 1e-9))))
    sums = (row_sums, column_sums)
    expected = [each(out) for each in sums]

    def agree(number: int) -> list[Tensor]:
        chosen = (0, 1) if checking is Checking.BOTH else (number % 2,)
        return [(sums[which](out) == expected[which]).all() for which in chosen]

    def start(*, is_checked: bool) -> Callable[[], int]:
        flags: list[Tensor] = []
        for number in range(count):
            multiplication.run(a, b, out)
            flags += agree(number) if is_checked else []
        last = torch.stack(flags).all() if flags else out[0, 0]
        return lambda: _waited(last, len(flags))

    seconds: dict[bool, list[float]] = {True: [], False: []}
    device.timed(partial(start, is_checked=True))
    for is_checked in (True, False, False, True):
        seconds[is_checked].append(device.timed(partial(start, is_checked=is_checked))[0])
    return rates.overhead_ratio(seconds[True], seconds[False])


def _waited(value: Tensor, count: int) -> int:
    """Wait for the device by reading *value*; return *count*."""
    float(value)
    return count


def _zeros(
    shape: tuple[int, int, int], device: ComputeDevice, multiplication: Multiplication
) -> tuple[Tensor, Tensor, Tensor]:
    """Return A, B (as the multiplication needs it) and a result."""
    m, n, k = shape
    a = torch.zeros(m, k, dtype=multiplication.element, device=device.torch_device)
    b = torch.zeros(n, k, dtype=multiplication.element, device=device.torch_device).t()
    b = b if multiplication.transpose_b else b.contiguous()
    return a, b, torch.zeros(m, n, dtype=multiplication.output, device=device.torch_device)
