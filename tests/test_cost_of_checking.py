"""What checking costs is measured on the device: K is raised first, then a share of the products is drawn."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

import pytest
from fakes.model_gpu import model_gpu
from fakes.torch_release import NO_TORCH, Release  # skips this file where torch is not installed

from nodevet.checks.burnin import sizing, workload
from nodevet.checks.burnin.device import open_device
from nodevet.checks.burnin.layout import choose_k
from nodevet.checks.burnin.multiply import choose_multiplication
from nodevet.checks.burnin.plan import GemmRequest
from nodevet.checks.burnin.ring import Checking, checked_share
from nodevet.checks.burnin.sizing import size
from nodevet.checks.burnin.workload import Run, run_gemm
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.model import Result, ResultState

PLANNED = (256, 256, 512)
LIMIT = 0.02


class Quiet:
    """Lets the workload go on."""

    def known(self, result: Result) -> None:
        """Take what was told of a wrong result."""

    def pause(self) -> None:
        """Go on."""

    def tick(self, ratio: float, phase: str, shown: dict[str, float | int]) -> None:
        """Show nothing."""


@pytest.fixture(autouse=True)
def processors() -> Iterator[None]:
    """A load binds this process to a socket; all processors are given back."""
    assert NO_TORCH
    allowed = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    ("overhead", "maximum_k", "limit_seconds", "memory_k", "k", "limited_by"),
    [
        (None, 65536, 1.0, 65536, 8192, ""),
        (-0.01, 65536, 1.0, 65536, 8192, ""),
        (0.02, 65536, 1.0, 65536, 8192, ""),
        (0.03, 65536, 1.0, 65536, 16384, ""),
        (0.04, 65536, 1.0, 65536, 32768, ""),
        (0.04, 16384, 1.0, 65536, 16384, "format"),
        (0.03, 16384, 1.0, 65536, 16384, ""),
        (0.04, 65536, 0.025, 65536, 16384, "time"),
        (0.04, 65536, 1.0, 20000, 16384, "memory"),
        (0.04, 65536, 1.0, 4096, 8192, "memory"),
        (0.04, 8192, 1.0, 65536, 8192, "format"),
        (0.04, 65536, 0.005, 65536, 8192, "time"),
    ],
)
def test_k_is_as_large_as_checking_needs(
    overhead: float | None, maximum_k: int, limit_seconds: float, memory_k: int, k: int, limited_by: str
) -> None:
    """Within the range of the format, the time of a product and the memory; it never falls below that of the plan."""
    choice = choose_k(
        (4096, 4096, 8192),
        0.01,
        overhead,
        limit_ratio=LIMIT,
        maximum_k=maximum_k,
        limit_seconds=limit_seconds,
        fits=lambda shape: shape[2] <= memory_k,
    )
    assert (choice.shape, choice.limited_by) == ((4096, 4096, k), limited_by)
    assert choice.overhead == overhead
    if overhead and not limited_by:
        assert overhead * 8192 / k <= LIMIT


def test_siblings_get_one_k_although_their_cost_differs() -> None:
    """Rates are compared, and a wrong result is cleared, at one shape alone."""
    chosen = {
        choose_k(
            (4096, 4096, 8192),
            0.01 * overhead,
            overhead,
            limit_ratio=LIMIT,
            maximum_k=65536,
            limit_seconds=0.1,
            fits=lambda _shape: True,
        ).shape
        for overhead in (0.040, 0.041, 0.045, 0.05, 0.06)
    }
    assert chosen == {(4096, 4096, 32768)}


@pytest.mark.parametrize("overhead", [0.005, 0.02, 0.0201, 0.05, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("maximum_k", [8192, 16384, 65536])
def test_checking_stays_within_two_percent_whatever_it_costs(overhead: float, maximum_k: int) -> None:
    """What K cannot do, the share of drawn products does."""
    choice = choose_k(
        (4096, 4096, 8192),
        0.001,
        overhead,
        limit_ratio=LIMIT,
        maximum_k=maximum_k,
        limit_seconds=0.1,
        fits=lambda _shape: True,
    )
    left = overhead * 8192 / choice.shape[2]
    assert left * checked_share(left, "cuda") <= LIMIT * (1 + 1e-9)


@pytest.mark.parametrize(("dtype", "overhead", "k"), [("tf32", 0.01, 512), ("tf32", 0.08, 4096), ("int8", 0.08, 4096)])
def test_k_is_chosen_by_a_measurement_on_the_device(
    monkeypatch: pytest.MonkeyPatch, dtype: str, overhead: float, k: int
) -> None:
    """One checked and one unchecked batch: the model's cost is found, and K follows from it."""
    monkeypatch.setattr(sizing, "planned_shape", lambda *_of: PLANNED)
    release = Release((2, 13))
    device = model_gpu(release, overhead=overhead, shape=PLANNED)
    multiplication = choose_multiplication(dtype, "cuda", "sm90", release)
    request = GemmRequest(device="GPU-1", dtype=dtype, seconds=0.1, memory_ratio=0.9)
    chosen = size(request, device, multiplication, Checking.ALTERNATE, lambda: None)
    assert chosen.layout.shape == (256, 256, k)
    facts = chosen.facts()
    assert facts["planned_k_overhead_ratio"] == pytest.approx(overhead)
    assert (facts["planned_shape"], facts["k_limited_by"]) == (list(PLANNED), None)


def test_both_sums_of_a_product_cost_twice() -> None:
    """The trial does what the ring does."""
    release = Release((2, 13))
    device = model_gpu(release, overhead=0.01, shape=PLANNED)
    multiplication = choose_multiplication("tf32", "cuda", "sm90", release)
    cost = sizing._overhead(PLANNED, 1e-3, device, multiplication, Checking.BOTH)
    assert cost == pytest.approx(0.02)


def test_a_shape_that_was_asked_for_keeps_its_k(monkeypatch: pytest.MonkeyPatch) -> None:
    """A re-test must be of the same shape; and processors check all products, whatever that costs."""
    release = Release((2, 13))
    multiplication = choose_multiplication("tf32", "cuda", "sm90", release)
    device = model_gpu(release, overhead=0.5, shape=PLANNED)
    request = GemmRequest(device="GPU-1", dtype="tf32", seconds=0.1, memory_ratio=0.9, shape=PLANNED)
    chosen = size(request, device, multiplication, Checking.ALTERNATE, lambda: None)
    assert (chosen.layout.shape, chosen.k) == (PLANNED, None)
    monkeypatch.setattr(sizing, "planned_shape", lambda *_of: PLANNED)
    socket = open_device("cpu-0")
    own = choose_multiplication("fp32", "cpu")
    request = GemmRequest(device="cpu-0", dtype="fp32", seconds=0.1, maximum_memory_bytes=64 << 20)
    assert size(request, socket, own, Checking.BOTH, lambda: None).k is None


@pytest.mark.parametrize(
    ("overhead", "memory_bytes", "limited_by"), [(0.08, 256 << 20, None), (0.4, 20 << 20, "memory")]
)
def test_a_load_spends_at_most_two_percent_on_checking(
    monkeypatch: pytest.MonkeyPatch, overhead: float, memory_bytes: int, limited_by: str | None
) -> None:
    """The whole workload on a model of a GPU: where memory keeps K small, a share is drawn and told."""
    release = Release((2, 13))
    device = model_gpu(release, overhead=overhead, shape=PLANNED)
    monkeypatch.setattr(sizing, "planned_shape", lambda *_of: PLANNED)
    monkeypatch.setattr(workload, "open_device", lambda *_of, **_names: device)
    request = GemmRequest(
        device="GPU-1",
        dtype="tf32",
        seconds=0.5,
        memory_ratio=0.9,
        maximum_memory_bytes=memory_bytes,
        self_test=False,
    )
    result = run_gemm(
        Run(request, SystemClock()),
        Quiet(),
        lambda dtype, kind, architecture: choose_multiplication(dtype, kind, architecture, release),
    )
    assert result.state is ResultState.FINISHED, result.detail
    assert result.conditions["k_limited_by"] == limited_by
    left, share = result.metric("checking_overhead_ratio"), result.conditions["checked_share"]
    assert left is not None and left * share <= LIMIT * (1 + 1e-9)
    assert math.isclose(left, overhead * 512 / result.shape[2], rel_tol=1e-6)
    assert (share < 1) is (limited_by is not None)
