"""A simulated accelerator under load: heat, power limit and clock, read as coarsely as a driver reads.

Shares no code with the product. Time passes in steps of 50 ms. The power controller moves the clock by one step; the
clock that the units get is a little lower, by a droop that changes. Readings are steps of 15 MHz, 1 degree and 1 watt,
the power is a mean of the last second, and polls are late or missing.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

TICK = 0.05


@dataclass(frozen=True)
class Poll:
    """What the driver said at a moment of the load."""

    seconds: float
    megahertz: int
    celsius: int
    watts: int


@dataclass
class Course:
    """A load as it was: the polls, the true mean clock, and the true mean rate of the load alone."""

    polls: list[Poll] = field(default_factory=list)
    first: float = 0.0
    last: float = 0.0
    mean_megahertz: float = 0.0
    mean_rate: float = 0.0
    trace: list[float] = field(default_factory=list)

    def true_megahertz(self, seconds: float) -> float:
        """Return the clock that the units had at a moment."""
        return self.trace[min(int(seconds / TICK), len(self.trace) - 1)]

    def told_megahertz(self, seconds: float, step: int = 15) -> int:
        """Return the clock that a driver tells at a moment."""
        return int(self.true_megahertz(seconds) / step + 0.5) * step


@dataclass(frozen=True)
class Board:
    """The constants of one accelerator: limits, silicon and cooling."""

    highest_megahertz: int = 1980
    idle_megahertz: int = 345
    limit_watts: float = 700.0
    static_watts: float = 110.0
    switching: float = 8.6e-8  # watts per MHz cubed
    ambient: float = 28.0
    kelvin_per_watt: float = 0.055
    heat_seconds: float = 25.0
    step_megahertz: int = 15

    def watts(self, megahertz: float, celsius: float) -> float:
        """Return the power at a clock and a temperature."""
        return self.static_watts * (1 + 0.01 * (celsius - 30)) + self.switching * megahertz**3


def run(
    board: Board,
    seed: int,
    *,
    seconds: float = 120.0,
    every: float = 5.0,
    late: float = 0.4,
    missing: float = 0.1,
    efficiency: float = 0.8,
    operations_per_cycle: float = 1.0,
) -> Course:
    """Load *board* for *seconds* after 10 idle ones, and return the course with polls about *every* so many seconds."""
    chance = random.Random(seed)  # noqa: S311 (a simulation)
    course = Course(first=10.0, last=10.0 + seconds)
    celsius, set_clock = board.ambient + 8, board.highest_megahertz
    power: deque[float] = deque(maxlen=round(1 / TICK))
    due = chance.uniform(0, every)
    cycles = work = 0.0
    ticks = round((seconds + 20.0) / TICK)
    for tick in range(ticks):
        now = tick * TICK
        loaded = course.first <= now < course.last
        droop = chance.uniform(0.0, 4.0)
        true = set_clock - droop if loaded else float(board.idle_megahertz)
        watts = board.watts(true, celsius) * chance.gauss(1.0, 0.015) if loaded else board.static_watts
        power.append(watts)
        course.trace.append(true)
        celsius += TICK / board.heat_seconds * (board.ambient + board.kelvin_per_watt * watts - celsius)
        if loaded:
            cycles += true * TICK
            work += efficiency * operations_per_cycle * true * TICK * chance.gauss(1.0, 0.002)
            recent = sum(power[-index] for index in range(1, min(4, len(power)) + 1)) / min(4, len(power))
            step = board.step_megahertz
            set_clock = max(step, set_clock - step) if recent > board.limit_watts else set_clock + step
            set_clock = min(set_clock, board.highest_megahertz)
        if now >= due:
            if chance.random() >= missing:
                course.polls.append(_read(board, now, true, celsius, sum(power) / len(power)))
            due += every
            due = max(due, now) + (late * every * chance.expovariate(1.0) if chance.random() < 0.2 else 0.0)
    course.mean_megahertz = cycles / seconds
    course.mean_rate = work / seconds
    return course


def _read(board: Board, now: float, megahertz: float, celsius: float, watts: float) -> Poll:
    step = board.step_megahertz
    return Poll(now, int(megahertz / step + 0.5) * step, round(celsius), round(watts))
