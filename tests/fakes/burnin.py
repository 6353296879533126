"""Small verified products on the processor: operands, goldens and rings, without timing and without a child."""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec
from fakes.needs_torch import NO_TORCH

from nodevet.checks.burnin.certify import Golden, certify
from nodevet.checks.burnin.library import torch
from nodevet.checks.burnin.multiply import Multiplication, Multiply, choose_multiplication
from nodevet.checks.burnin.operands import OperandSet, build_sets, make_sets
from nodevet.checks.burnin.ring import Checking, Product, Ring
from nodevet.checks.burnin.selftest import Stage

__all__ = ["CPU_FORMATS", "NO_TORCH", "SEED", "BatchClock", "K", "M", "N", "make_ring", "make_stage", "prepared"]

M, N, K, EXTRA = 256, 256, 512, 256
SEED = 11
CPU_FORMATS = ("fp32", "bf16", "int8", "fp64")


class Prepared(msgspec.Struct, frozen=True):
    """A format's multiplication with three certified operand sets."""

    multiplication: Multiplication
    sets: list[OperandSet]
    goldens: list[Golden]


@functools.cache
def prepared(dtype: str, seed: int = SEED, threads: int = 1) -> Prepared:
    """Return operands of *dtype*, certified. Shared between tests: whoever changes an operand restores it."""
    torch.set_num_threads(threads)  # several on a busy machine wait for each other more than they compute
    multiplication = choose_multiplication(dtype, "cpu")
    recipes = make_sets(multiplication.data_type, M, N, K, EXTRA, seed, narrow=multiplication.narrow)
    sets = build_sets(recipes, multiplication.element, torch.device("cpu"))
    goldens = [certify(each, multiplication, M, seed).golden for each in sets]
    return Prepared(multiplication, sets, [golden for golden in goldens if golden is not None])


def make_ring(
    ready: Prepared,
    run: Multiply | None = None,
    *,
    slots: int = 4,
    lag: int = 1,
    checking: Checking = Checking.BOTH,
    seed: int = SEED,
    draw: Callable[[], bool] = lambda: True,
) -> Ring:
    """Return a ring over new slots of zeros; *run* stands in for the multiplication."""
    results = [torch.zeros(M, N, dtype=ready.multiplication.output) for _ in range(slots)]
    chosen = run or ready.multiplication.run
    return Ring(chosen, ready.sets, ready.goldens, results, lag=lag, seed=seed, checking=checking, draw=draw)


class BatchClock:
    """A clock on which each batch takes a second, plus what was slept meanwhile."""

    def __init__(self, busy_batches: int = 0, slowness: float = 1.0) -> None:
        """Start with nothing slept; batches 4 to 4 + *busy_batches* are slowed by others."""
        self._slept = 0.0
        self._batches = 0
        self._busy = range(4, 4 + busy_batches)
        self._slowness = slowness

    def sleep(self, seconds: float) -> None:
        """Let *seconds* pass."""
        self._slept += seconds

    def time_batch(self, ring: Ring, count: int) -> tuple[float, tuple[list[Product], list[Product]]]:
        """Run a batch and return what it took on this clock, and its outcome."""
        self._slept = 0.0
        outcome = ring.run_batch(count)()
        self._batches += 1
        return (self._slowness if self._batches in self._busy else 1.0) + self._slept, outcome


def make_stage(ready: Prepared, checking: Checking, clock: BatchClock | None = None) -> Stage:
    """Return what the self-test needs, with a clock of its own."""
    clock = clock or BatchClock()
    return Stage(
        sets=ready.sets,
        goldens=ready.goldens,
        slots=[torch.zeros(M, N, dtype=ready.multiplication.output) for _ in range(4)],
        multiplication=ready.multiplication,
        checking=checking,
        seed=SEED,
        pause=lambda: None,
        time_batch=clock.time_batch,
        sleep=clock.sleep,
    )
