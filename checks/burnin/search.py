"""The fastest product of a device within a given time: successive halving, and the finalists timed again. Pure.

Every survivor of a round is timed in turn, again and again, so that a drift of the clock or of the temperature hits all
alike (Jamieson and Talwalkar 2016, successive halving). The result is the median rate of fresh samples on the hot
device: the best of thousands of noisy samples would be too fast.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence

import msgspec

from . import rates
from .candidates import Bounds, Shape, candidates, neighbours

Time = Callable[[Shape], float]
"""Multiplies a shape once and returns the seconds that it took on the device."""

KEPT, LED = 1 / 2, 1 / 12
"""Shares of the shapes that stay in each round, and of those of the first look that enter the second round."""

FINALISTS = 4
REFINED = 8
"""Number of leaders whose neighbours enter the second round."""

FIRST_SHARE, HALVING_SHARE = 0.35, 0.5
"""Shares of the time for the first look at all candidates, and for the rounds after it; the rest is for the finals."""

TURN_SECONDS = 0.05
"""A finalist is multiplied for so long, then the next one."""


class Ranked(msgspec.Struct, frozen=True):
    """A shape, its rate in operations per second, and the number of samples behind it."""

    shape: Shape
    rate: float
    samples: int


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found: the best shape, the 95 % interval of its rate, the other finalists, and what was left out.

    ``tried`` shapes were timed, of ``offered`` candidates and the neighbours of the leaders.
    """

    best: Ranked
    low: float
    high: float
    finalists: tuple[Ranked, ...]
    tried: int
    offered: int


class _Samples:
    """The seconds of every timed product, by shape."""

    def __init__(self, time: Time, now: Callable[[], float], pause: Callable[[], None]) -> None:
        self._time, self.now, self._pause = time, now, pause
        self.taken: dict[Shape, list[float]] = {}

    def fresh(self) -> _Samples:
        """Return samples of the same device, none of them taken yet."""
        return _Samples(self._time, self.now, self._pause)

    def take(self, shape: Shape) -> None:
        self._pause()
        self.taken.setdefault(shape, []).append(self._time(shape))

    def rate(self, shape: Shape) -> float:
        """Return the rate of *shape* by the median of its samples."""
        return 2 * math.prod(shape) / rates.percentile(self.taken[shape], 0.5)

    def ranked(self, shapes: Iterable[Shape]) -> list[Shape]:
        """Return those of *shapes* that were timed, the fastest first."""
        return sorted((shape for shape in dict.fromkeys(shapes) if shape in self.taken), key=self.rate, reverse=True)


def search(
    bounds: Bounds,
    time: Time,
    *,
    seconds: float,
    now: Callable[[], float],
    pause: Callable[[], None] = lambda: None,
    known: Sequence[Shape] = (),
    seed: int = 0,
) -> Found | None:
    """Return the fastest shape within *bounds* that *time* shows in *seconds* by the clock *now*; None if none fits.

    *known* shapes, such as the plan's own, are candidates and are timed first.
    """
    offered = list(candidates(bounds, known))
    if not offered:
        return None
    first = [shape for shape in offered if shape in known]
    rest = [shape for shape in offered if shape not in known]
    random.Random(seed).shuffle(rest)  # noqa: S311 (an order, no secret)
    began, samples = now(), _Samples(time, now, pause)
    end = began + FIRST_SHARE * seconds
    shapes = _first_look(samples, [*first, *_one_depth_each(rest)], end)
    shapes = _first_look(samples, shapes + _of_the_best(shapes, rest), end)
    shapes = _halved(samples, shapes, bounds, began + (FIRST_SHARE + HALVING_SHARE) * seconds)
    return _finals(samples, shapes, began + seconds, tried=len(samples.taken), offered=len(offered))


def _one_depth_each(shapes: Iterable[Shape]) -> list[Shape]:
    """Return one of *shapes* for each M and N, with a K in the middle: the depth matters alike for all of them."""
    depths: dict[tuple[int, int], list[int]] = {}
    for m, n, k in shapes:
        depths.setdefault((m, n), []).append(k)
    return [(m, n, sorted(found)[(len(found) - 1) // 2]) for (m, n), found in depths.items()]


def _of_the_best(ranked: Sequence[Shape], shapes: Iterable[Shape]) -> list[Shape]:
    """Return those of *shapes* whose M and N are among the best half of the *ranked* ones, in their order."""
    places = {shape[:2]: place for place, shape in reversed(list(enumerate(ranked[: math.ceil(len(ranked) * KEPT)])))}
    return sorted((shape for shape in shapes if shape[:2] in places), key=lambda shape: places[shape[:2]])


def _first_look(samples: _Samples, shapes: list[Shape], until: float) -> list[Shape]:
    """Time each of *shapes* twice, as far as the time lasts, and return them, the fastest first.

    The first product of a shape loads its kernel and does not count.
    """
    fastest = max(map(samples.rate, samples.taken), default=math.inf)
    for shape in shapes:
        if shape in samples.taken:
            continue
        left = until - samples.now()
        if samples.taken and 3 * 2 * math.prod(shape) / fastest > left:
            continue
        samples.take(shape)
        samples.taken[shape].clear()
        samples.take(shape)
        fastest = samples.rate(shape) if fastest == math.inf else max(fastest, samples.rate(shape))
    return samples.ranked(shapes)


def _halved(samples: _Samples, shapes: list[Shape], bounds: Bounds, until: float) -> list[Shape]:
    """Return the few best of *shapes* and of the neighbours of the leaders, each round timed more often."""
    leaders = shapes[:REFINED]
    fresh = [other for leader in leaders for other in neighbours(leader, bounds) if other not in samples.taken]
    fresh = list(dict.fromkeys(fresh))
    kept = shapes[: max(FINALISTS, int(len(shapes) * LED))]
    half = samples.now() + (until - samples.now()) / 2
    kept = samples.ranked(kept + _first_look(samples, fresh, half))
    repeats = 4
    while len(kept) > FINALISTS and samples.now() < until:
        for _ in range(repeats):
            for shape in kept:
                if samples.now() >= until:
                    return samples.ranked(kept)
                samples.take(shape)
        kept = samples.ranked(kept)[: max(FINALISTS, int(len(kept) * KEPT))]
        repeats *= 2
    return kept


def _finals(samples: _Samples, shapes: list[Shape], until: float, *, tried: int, offered: int) -> Found:
    """Time the finalists in turns on the hot device, and judge by these samples alone."""
    finalists = shapes[:FINALISTS]
    final = samples.fresh()
    while not final.taken or samples.now() < until:
        for shape in finalists:
            final.take(shape)
            for _ in range(min(200, int(TURN_SECONDS / max(final.taken[shape][-1], 1e-9)))):
                final.take(shape)
    ranked = [Ranked(shape, final.rate(shape), len(final.taken[shape])) for shape in finalists]
    ranked.sort(key=lambda entry: entry.rate, reverse=True)
    best = ranked[0]
    operations = 2 * math.prod(best.shape)
    quickest, slowest = _median_interval(final.taken[best.shape])
    return Found(
        best=best,
        low=operations / slowest,
        high=operations / quickest,
        finalists=tuple(ranked),
        tried=tried,
        offered=offered,
    )


def _median_interval(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median of *seconds* by its ranks, whatever their distribution (binomial)."""
    ordered, half = sorted(seconds), 0.98 * math.sqrt(len(seconds))
    middle = (len(ordered) - 1) / 2
    return ordered[max(0, math.floor(middle - half))], ordered[min(len(ordered) - 1, math.ceil(middle + half))]
