"""An accelerator made of arithmetic: tiles in waves over units, memory, a power limit, heat, noise and rough kernels.

It shares no code with the search: the truth is asked of the same device without noise, hot.
"""

from __future__ import annotations

import hashlib
import math
import random

__all__ = ["DEVICES", "TiledDevice"]

DEVICES = {
    "h100": (132, 989e12, 3.35e12),
    "a100": (108, 312e12, 2.0e12),
    "mi300x": (304, 1307e12, 5.3e12),
    "b200": (148, 2250e12, 7.7e12),
    "small": (46, 65e12, 0.3e12),
}
"""Units, operations per second at the highest clock, and bytes per second."""

KERNELS = ((128, 128, 0.86), (128, 256, 0.93), (256, 128, 0.93), (256, 256, 0.95), (64, 256, 0.78), (192, 192, 0.91))
"""Tiles of the kernels and the share of the peak that each reaches inside of a full wave."""

LAUNCH_SECONDS = 4e-6
BLIP = 0.002
"""Chance that another program delays a product."""


class TiledDevice:
    """A device with its own clock: each product takes simulated time, heats it and lowers its clock."""

    def __init__(self, name: str, seed: int, *, roughness: float = 0.01, noise: float = 0.02) -> None:
        """Begin cold, at second zero."""
        self.units, self.peak, self.bandwidth = DEVICES[name]
        self.name, self.roughness, self.noise = name, roughness, noise
        self.seconds = 0.0
        self._heat = 0.0
        self._random = random.Random(f"{name} {seed}")  # noqa: S311

    def now(self) -> float:
        """Return the device's own time."""
        return self.seconds

    def multiply(self, shape: tuple[int, int, int]) -> float:
        """Multiply once and return the seconds that it took, with noise and in the present heat."""
        seconds = self._cold_seconds(shape) / self._clock(self._heat)
        seconds *= max(0.8, self._random.gauss(1.0, self.noise))
        if self._random.random() < BLIP:
            seconds *= 2.5
        self.seconds += seconds
        self._heat += (1.0 - self._heat) * (1.0 - math.exp(-seconds / 8.0))
        return seconds

    def wait(self, seconds: float) -> None:
        """Do nothing for *seconds*: the device cools down."""
        self.seconds += seconds
        self._heat *= math.exp(-seconds / 8.0)

    def true_rate(self, shape: tuple[int, int, int]) -> float:
        """Return the operations per second of *shape* on the hot device, without noise."""
        return 2 * math.prod(shape) / (self._cold_seconds(shape) / self._clock(1.0))

    @staticmethod
    def _clock(heat: float) -> float:
        return 1.0 - 0.12 * heat

    def _cold_seconds(self, shape: tuple[int, int, int]) -> float:
        m, n, k = shape
        best = math.inf
        for tall, wide, share in KERNELS:
            tiles = math.ceil(m / tall) * math.ceil(n / wide)
            waves = math.ceil(tiles / self.units)
            inner = k / (k + 380.0)  # the start and the end of a tile
            if k & (k - 1) == 0:
                inner *= 0.985  # the same memory channels again and again
            work = 2.0 * waves * self.units * tall * wide * k / (self.peak * share * inner)
            moved = 2.0 * (m * k + k * n) * max(1.0, math.sqrt(tiles / self.units) / 6) + 4.0 * m * n
            best = min(best, max(work, moved / self.bandwidth))
        # A limit of power: the fuller the units, the lower the clock.
        fullness = 2.0 * math.prod(shape) / best / self.peak
        slowed = 1.0 + max(0.0, fullness - 0.72) * 0.6
        return best * slowed * self._rough(shape) + LAUNCH_SECONDS

    def _rough(self, shape: tuple[int, int, int]) -> float:
        """Return what a library's choice of kernel costs or gains for this shape: nobody can predict it."""
        digest = hashlib.sha256(f"{self.name} {shape}".encode()).digest()
        return random.Random(digest).gauss(1.0, self.roughness)  # noqa: S311
