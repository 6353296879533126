"""The search for the fastest shape, against the whole grid of simulated devices that share no code with it."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from fakes.tiled_device import DEVICES, TiledDevice

from nodevet.checks.burnin.candidates import STEP, Bounds, candidates, neighbours
from nodevet.checks.burnin.search import Found, search

SECONDS = 60.0
GRID = range(1024, 16385, 1024)
OFFERED = range(200, 2000)
CALL_SECONDS = 0.1


def bounds_of(device: TiledDevice, **changes: int) -> Bounds:
    """Return what limits a shape on *device*: bf16 with sums in fp32, 40 GiB, and a tenth of a second for a product."""
    told = {"maximum_k": 1 << 16, "maximum_bytes": 40 << 30, "maximum_operations": int(device.peak * CALL_SECONDS / 2)}
    return Bounds(units=device.units, element_bytes=2, output_bytes=4, **{**told, **changes})


def searched(device: TiledDevice, seconds: float = SECONDS, **changes: int) -> Found:
    """Return what the search finds on *device*."""
    found = search(bounds_of(device, **changes), device.multiply, seconds=seconds, now=device.now)
    assert found is not None
    return found


def best_of_grid(device: TiledDevice) -> float:
    """Return the true rate of the fastest shape of all sides in steps of 1024 that takes no longer than a call may."""
    shapes = (
        shape for shape in itertools.product(GRID, GRID, GRID) if 2 * math.prod(shape) < device.peak * CALL_SECONDS
    )
    return max(map(device.true_rate, shapes))


def found_by_exhaustion(device: TiledDevice, seconds: float = SECONDS) -> tuple[int, int, int]:
    """Return the shape with the best mean of 100 products after 50 more, shape after shape, while the time lasts.

    That is the rule of mamf-finder (stas00, ml-engineering), here over the steps of the grid in their order.
    """
    means: dict[tuple[int, int, int], float] = {}
    for shape in itertools.product(GRID, GRID, GRID):
        if device.seconds > seconds:
            break
        taken = [device.multiply(shape) for _ in range(150)][50:]
        means[shape] = 2 * math.prod(shape) / (math.fsum(taken) / len(taken))
    return max(means, key=lambda shape: means[shape])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", DEVICES)
def test_what_is_found_within_a_minute_is_nearly_the_best_of_the_grid(name: str, seed: int) -> None:
    """At least 99 % of it; its rate is that of the hot device, not the best of many noisy samples."""
    device = TiledDevice(name, seed)
    found = searched(device)
    assert device.seconds < SECONDS * 1.02
    share = device.true_rate(found.best.shape) / best_of_grid(device)
    assert share >= 0.99, (share, found)
    told = found.best.rate / device.true_rate(found.best.shape)
    assert told == pytest.approx(1.0, abs=0.01), "neither a cold device nor the luckiest sample"
    assert found.low < found.best.rate < found.high
    assert found.high / found.low < 1.03


@pytest.mark.parametrize("name", DEVICES)
def test_the_whole_grid_in_its_order_finds_less_in_the_same_time(name: str) -> None:
    """The rule of mamf-finder has seen a corner of the grid after a minute."""
    exhausted, device = TiledDevice(name, 1), TiledDevice(name, 1)
    theirs = exhausted.true_rate(found_by_exhaustion(exhausted))
    assert theirs < device.true_rate(searched(device).best.shape)


def test_the_rate_is_that_of_fresh_samples_of_the_hot_device() -> None:
    """The samples that made a shape a finalist do not count: they were the lucky ones, and cold."""
    device, log = TiledDevice("h100", 0), list[tuple[float, tuple[int, int, int], float]]()

    def time(shape: tuple[int, int, int]) -> float:
        began = device.seconds
        log.append((began, shape, device.multiply(shape)))
        return log[-1][2]

    found = search(bounds_of(device), time, seconds=4.0, now=device.now)
    assert found is not None
    best = found.best
    last = [seconds for _, shape, seconds in log if shape == best.shape][-best.samples :]
    assert 2 * math.prod(best.shape) / best.rate == pytest.approx(statistics.median(last))
    assert min(began for began, shape, _ in log[-sum(each.samples for each in found.finalists) :]) >= 0.85 * 4.0


def test_a_time_that_is_too_short_for_all_candidates_leaves_some_out() -> None:
    """The result says how many were timed; the plan's own shape is timed first, and the time is kept."""
    device = TiledDevice("small", 0)
    own = (4096, 4096, 4096)
    found = search(bounds_of(device), device.multiply, seconds=0.5, now=device.now, known=(own,))
    assert found is not None
    assert 1 < found.tried < found.offered / 2
    assert device.seconds < 1.0
    slow = TiledDevice("small", 0)
    only = search(bounds_of(slow), slow.multiply, seconds=1e-9, now=slow.now, known=(own,))
    assert only is not None
    assert (only.best.shape, only.tried) == (own, 1)


def test_no_shape_leaves_its_bounds() -> None:
    """K, memory and the operations of one product are limited; each side is a multiple of 128."""
    device = TiledDevice("h100", 0)
    for changes in ({"maximum_k": 16384}, {"maximum_bytes": 1 << 28}, {"maximum_operations": 1 << 33}):
        bounds = bounds_of(device, **changes)
        shapes = candidates(bounds)
        assert len(shapes) == len(set(shapes))
        for m, n, k in itertools.chain(shapes, *(neighbours(shape, bounds) for shape in shapes[::7])):
            assert not (m % STEP or n % STEP or k % STEP)
            assert k <= bounds.maximum_k
            assert 2 * (m * k + k * n) + 4 * m * n <= bounds.maximum_bytes
            assert m * n * k <= bounds.maximum_operations
    assert search(bounds_of(device, maximum_bytes=1), device.multiply, seconds=1, now=device.now) is None


def test_an_interruption_ends_the_search_between_two_products() -> None:
    """The caller's pause is asked before each product."""
    device = TiledDevice("small", 0)
    asked: list[float] = []

    def pause() -> None:
        asked.append(device.seconds)
        if len(asked) == 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(bounds_of(device), device.multiply, seconds=SECONDS, now=device.now, pause=pause)


def idle_share(device: TiledDevice, m: int, n: int) -> float:
    """Return the share of unit time that is idle in the waves of the best tile for a result of *m* by *n*."""
    waves = []
    for tall, wide in itertools.product((128, 192, 256), repeat=2):
        tiles = math.ceil(m / tall) * math.ceil(n / wide)
        waves.append(1 - m * n / (math.ceil(tiles / device.units) * device.units * tall * wide))
    return min(waves)


@pytest.mark.parametrize("name", DEVICES)
def test_most_candidates_leave_few_units_idle(name: str) -> None:
    """Their tiles fill whole waves, or nearly."""
    device = TiledDevice(name, 0)
    shapes = candidates(bounds_of(device))
    assert len(shapes) in OFFERED
    assert sum(idle_share(device, m, n) < 0.035 for m, n, _ in shapes) > 0.6 * len(shapes)


def test_processors_get_small_shapes() -> None:
    """Their units say little; their caches are small."""
    bounds = Bounds(units=None, maximum_k=8192, maximum_bytes=1 << 29, element_bytes=4, output_bytes=4)
    shapes = candidates(bounds)
    assert (1024, 1024, 1024) in shapes
    assert len(shapes) in OFFERED
