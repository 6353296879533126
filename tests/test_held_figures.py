"""The efficiency at the clock held, from a load of the simulated device: read by the load itself, and by the agent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from fakes.burnin import NO_TORCH  # skips this file where torch is not installed
from fakes.clocked_device import Board, Course, run
from fakes.clocks import SteppedClock

from nodevet.agent.load.recorder import LoadRecorder
from nodevet.checks.burnin.clock_log import MOST_READINGS, ClockLog
from nodevet.checks.burnin.held_figures import with_held_clock
from nodevet.checks.burnin.layout import Layout
from nodevet.checks.burnin.metrics import figures
from nodevet.checks.burnin.peak import DeviceFacts, peaks_of
from nodevet.checks.burnin.plan import GemmRequest
from nodevet.checks.burnin.workload import Run, measure
from nodevet.checks.core.model import Instant, Part, PartKind, Reading, Result, ResultState, Sample

H100 = DeviceFacts(
    vendor="nvidia",
    name="NVIDIA H100 80GB HBM3",
    architecture="sm90",
    compute_units=132,
    maximum_clock_hertz=1.98e9,
)
PEAKS = peaks_of(H100, "bf16")
SM, WATTS = Part(PartKind.CLOCK, "sm"), Part(PartKind.POWER_SCOPE, "device")


def loaded(course: Course, efficiency: float, seconds: float, *, stops: float = 0.0, told: bool = True) -> Result:
    """Return the result of the workload's own loop on a device with the clock of *course*."""
    clock, stopped = SteppedClock(seconds=course.first), SimpleNamespace(seconds=0.0)
    flop = 2 * 8192**3

    def timed(start: Any, meanwhile: Any) -> tuple[float, Any]:
        assert PEAKS.operations_per_clock is not None
        outcome = start()
        meanwhile()
        rate = efficiency * PEAKS.operations_per_clock * course.true_megahertz(clock.monotonic()) * 1e6
        clock.advance(flop / rate)
        stopped.seconds += stops
        return flop / rate, outcome

    nothing: Any = SimpleNamespace(run_batch=lambda _count: ([], []))
    control: Any = SimpleNamespace(pause=lambda: None, tick=lambda *_: None)
    load = Run(GemmRequest(device="GPU-1", dtype="bf16", seconds=seconds), clock)
    load.layout = Layout(shape=(8192, 8192, 8192), slots=1, lag=0, batch=1, bytes=0, covers_cache=True)
    load.peaks, load.vendor = PEAKS, "nvidia"
    load.conditions |= {
        "specification_clock_hertz": PEAKS.specification_clock_hertz,
        "operations_per_clock": PEAKS.operations_per_clock,
    }
    hertz = (lambda: course.told_megahertz(clock.monotonic()) * 1e6) if told else (lambda: None)
    device: Any = SimpleNamespace(timed=timed, clock_hertz=hertz)
    watch: Any = stopped
    measure(load, control, device, nothing, load.layout, lambda *_: None, watch)
    return load.result(ResultState.FINISHED)


def figure(result: Result, name: str) -> float:
    """Return a figure that must be there."""
    value = result.metric(name)
    assert value is not None, name
    return float(value)


@pytest.mark.parametrize("seconds", [2.0, 15.0, 90.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_load_tells_the_efficiency_at_its_own_clock(seed: int, seconds: float) -> None:
    """Also a probe of two seconds: the true efficiency lies in the interval, and the fraction tells the power limit."""
    assert NO_TORCH
    course, efficiency = run(Board(), seed, seconds=100.0), 0.6 + 0.05 * seed
    result = loaded(course, efficiency, seconds)
    low, high = (figure(result, f"efficiency_held_{end}_ratio") for end in ("low", "high"))
    assert low <= efficiency <= high
    assert high - low < (0.06 if seconds < 10 else 0.04)
    fraction = figure(result, "clock_fraction_ratio")
    assert 0.97 < fraction < 1.06
    assert figure(result, "efficiency_ratio") == pytest.approx(efficiency * fraction, rel=0.02)
    peaks = [figure(result, f"peak_{name}tflops") for name in ("", "held_", "highest_")]
    assert peaks[0] == pytest.approx(989.4, rel=1e-3)
    assert peaks[2] == pytest.approx(1070.5, rel=1e-3)
    assert peaks[1] == pytest.approx(peaks[0] * fraction)


def test_slow_units_and_a_slow_clock_are_told_apart() -> None:
    """Two devices with the same rate: one holds half of the clock, the other loses half of the operations."""
    capped = loaded(run(Board(limit_watts=180.0), 1, seconds=100.0), 0.8, 30.0)
    fraction = figure(capped, "clock_fraction_ratio")
    cut = figure(capped, "efficiency_ratio") * 1830 / 1980
    broken = loaded(run(Board(limit_watts=2000.0), 1, seconds=100.0), cut, 30.0)
    assert figure(capped, "efficiency_ratio") == pytest.approx(figure(broken, "efficiency_ratio"), rel=0.03)
    assert fraction < 0.6 < 1.0 < figure(broken, "clock_fraction_ratio")
    assert figure(capped, "efficiency_held_ratio") > 0.77
    assert figure(broken, "efficiency_held_high_ratio") < 0.5


def test_the_agent_tells_it_where_the_load_could_not_read() -> None:
    """From readings every five seconds, with heat in degrees and power in watts beside them."""
    efficiency = 0.7
    for seed in range(10):
        course = run(Board(), seed, seconds=130.0)
        result = loaded(course, efficiency, 120.0, told=False)
        assert result.metric("clock_held_hertz") is None
        recorder = LoadRecorder()
        recorder.begin(course.first)
        for number, poll in enumerate(course.polls):
            time = Instant("boot-1", round(poll.seconds * 1e9), poll.seconds)
            readings = (
                Reading("clock_hertz", poll.megahertz * 1_000_000, SM),
                Reading("temperature_celsius", poll.celsius, Part(PartKind.SENSOR, "core")),
                Reading("power_watts", poll.watts, WATTS),
            )
            recorder.take(Sample("nvidia", "fast", "GPU-1", number, time, 0.01, readings))
        stamped = recorder.stamped(result, ())
        assert figure(stamped, "efficiency_held_low_ratio") <= efficiency
        assert figure(stamped, "efficiency_held_high_ratio") >= efficiency
        assert stamped.conditions["power_watts"] == pytest.approx(700, rel=0.05)


def test_what_the_load_told_is_not_replaced() -> None:
    """It read more often than the agent does."""
    result = loaded(run(Board(), 1), 0.7, 20.0)
    other = [(float(second), 1e9) for second in range(200)]
    assert with_held_clock(result, other, "nvidia") == result


def test_a_load_that_stood_still_has_no_held_clock() -> None:
    """A suspended device falls to its idle clock, which is not that of the load."""
    result = loaded(run(Board(), 1), 0.7, 20.0, stops=1.0)
    assert result.metric("clock_held_hertz") is None
    assert "measured_boottime_seconds" not in result.conditions


def test_without_a_peak_the_clock_alone_is_told() -> None:
    """A part of an unknown architecture: no efficiency, no fraction, none guessed."""
    told = {"measured_boottime_seconds": [0.0, 60.0]}
    now = Instant("boot-1", 0, 0.0)
    metrics = figures({"tflops_mean": 100.0})
    plain = Result(
        workload="gemm",
        devices=("GPU-1",),
        state=ResultState.FINISHED,
        started=now,
        ended=now,
        conditions=told,
        metrics=metrics,
    )
    readings = [(float(second), 1.5e9) for second in range(60)]
    result = with_held_clock(plain, readings, "nvidia")
    assert result.metric("clock_held_hertz") == 1.5e9
    assert result.metric("efficiency_held_ratio") is result.metric("clock_fraction_ratio") is None
    assert with_held_clock(plain, readings[:2], "nvidia") == plain
    senseless = msgspec.structs.replace(plain, conditions={"measured_boottime_seconds": "yesterday"})
    assert with_held_clock(senseless, readings, "nvidia") == senseless


def test_a_clock_is_read_when_it_is_due_and_within_bounded_memory() -> None:
    """A load of days keeps as many readings as one of minutes, and their mean."""
    clock = SteppedClock(seconds=0.0)
    log = ClockLog(lambda: 1.5e9 + 1e4 * clock.monotonic(), clock.monotonic)
    for _ in range(20_000):
        log.look()
        clock.advance(0.25)
    assert MOST_READINGS / 2 <= len(log.readings) < MOST_READINGS
    assert [seconds for seconds, _ in log.readings] == sorted(seconds for seconds, _ in log.readings)
    assert sum(hertz for _, hertz in log.readings) / len(log.readings) == pytest.approx(1.525e9, rel=1e-3)


def test_a_slow_reading_takes_at_most_a_hundredth_of_the_time() -> None:
    """A driver that answers after a second is asked every hundred seconds."""
    clock, asked = SteppedClock(seconds=0.0), [0]

    def slow() -> float:
        asked[0] += 1
        clock.advance(1.0)
        return 1e9

    log = ClockLog(slow, clock.monotonic)
    while clock.monotonic() < 1000.0:
        log.look()
        clock.advance(0.1)
    assert asked[0] == 10


def test_a_device_that_tells_no_clock_is_not_asked_again() -> None:
    """No library, or a device that does not support it."""
    clock, asked = SteppedClock(), [0]

    def silent() -> None:
        asked[0] += 1

    log = ClockLog(silent, clock.monotonic)
    for _ in range(10):
        log.look()
        clock.advance(10.0)
    assert (asked[0], log.readings) == (1, ())
