"""A GPU whose time is a model: products by their operations, checks by the bytes that they read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fakes.torch_release import Release

from nodevet.checks.burnin.device import ComputeDevice
from nodevet.checks.burnin.library import torch
from nodevet.checks.burnin.peak import DeviceFacts

Outcome = TypeVar("Outcome")


class ModelGpu(ComputeDevice, frozen=True, kw_only=True):
    """Computes on the processor through *release*; its clock is the model."""

    release_of_torch: Release
    operations_per_second: float
    check_seconds: float

    def free_bytes(self) -> int:
        """Return four gibibytes."""
        return 4 << 30

    def timed(
        self, start: Callable[[], Callable[[], Outcome]], meanwhile: Callable[[], None] = lambda: None
    ) -> tuple[float, Outcome]:
        """Return the seconds of the model for what *start* multiplied and checked."""
        before = self.release_of_torch.operations
        outcome = start()()
        meanwhile()
        products = (self.release_of_torch.operations - before) / self.operations_per_second
        return products + _checks(outcome) * self.check_seconds, outcome

    def release(self) -> None:
        """Nothing is cached."""


def model_gpu(
    release: Release, *, overhead: float, shape: tuple[int, int, int], memory_bytes: int = 256 << 20
) -> ModelGpu:
    """Return a GPU on which checking costs *overhead*, a ratio, at *shape*; a product of it takes a millisecond."""
    m, n, k = shape
    return ModelGpu(
        kind="cuda",
        torch_device=torch.device("cpu"),
        facts=DeviceFacts(vendor="nvidia", architecture="sm90", name="model", compute_units=132),
        cache_bytes=None,
        release_of_torch=release,
        operations_per_second=2 * m * n * k / 1e-3,
        check_seconds=overhead * 1e-3,
    )


def _checks(outcome: object) -> int:
    """Return the number of checks: of a ring's batch those of its checked products, of a trial their count."""
    if isinstance(outcome, tuple):
        return len(outcome[0])
    return outcome if isinstance(outcome, int) else 0
