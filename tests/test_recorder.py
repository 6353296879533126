"""Curves of heat, power and clock while a load runs."""

from __future__ import annotations

import msgspec
import pytest

from nodevet.agent.load.recorder import LoadRecorder
from nodevet.checks.core.model import (
    Instant,
    Metric,
    Part,
    PartKind,
    Reading,
    ReadingStatus,
    Result,
    ResultState,
    Sample,
)

CORE = Part(PartKind.SENSOR, "core")


def sample(seconds: float, *readings: Reading) -> Sample:
    """Return a sample of one device, taken *seconds* after boot."""
    return Sample("nvidia", "fast", "GPU-1", 1, Instant("boot", round(seconds * 1e9), seconds), 0.01, readings)


def heat(value: float, part: Part = CORE) -> Reading:
    """Return a temperature."""
    return Reading("temperature_celsius", value, part)


def test_points_count_from_the_beginning_of_the_load() -> None:
    """A second beginning within a load changes nothing, and the end empties the recorder."""
    recorder = LoadRecorder()
    recorder.begin(100)
    recorder.take(sample(101, heat(50)))
    recorder.begin(105)
    recorder.take(sample(111, heat(70)))

    (curve,) = recorder.end()
    assert (curve.device, curve.quantity, curve.points) == ("GPU-1", "temperature_celsius", ((1, 50), (11, 70)))
    recorder.begin(200)
    assert recorder.end() == ()


def test_samples_beside_a_load_pass_by() -> None:
    """No curve has a point before the beginning or after the end."""
    recorder = LoadRecorder()
    recorder.take(sample(1, heat(50)))
    recorder.begin(2)
    recorder.end()
    recorder.take(sample(3, heat(50)))

    assert recorder.end() == ()


def test_what_was_not_measured_or_not_asked_for_is_no_point() -> None:
    """A failed reading leaves a gap, and another sensor has no curve."""
    recorder = LoadRecorder()
    recorder.begin(0)
    failed = Reading("temperature_celsius", None, CORE, ReadingStatus.ERROR, "read failed")
    recorder.take(sample(1, failed, heat(60, Part(PartKind.SENSOR, "memory"))))

    assert recorder.end() == ()


def result(started: float, ended: float, **conditions: object) -> Result:
    """Return a result of a load of one device between two moments after boot."""
    first, last = (Instant("boot", round(moment * 1e9), moment) for moment in (started, ended))
    return Result(
        workload="gemm",
        devices=("GPU-1",),
        state=ResultState.FINISHED,
        started=first,
        ended=last,
        conditions=dict(conditions),
    )


WATTS = Part(PartKind.POWER_SCOPE, "device")


def test_a_result_says_how_warm_its_device_was_and_at_what_power() -> None:
    """The median of what was read while it ran; readings before and after it are of something else."""
    recorder = LoadRecorder()
    recorder.begin(100)
    for seconds, celsius, watts in ((101, 30, 90), (110, 60, 500), (120, 62, 600), (130, 66, 550), (190, 31, 95)):
        recorder.take(sample(seconds, heat(celsius), Reading("power_watts", watts, WATTS)))
    stamped = recorder.stamped(result(105, 140), ())
    assert stamped.conditions == {"temperature_celsius": 62, "power_watts": 550, "unsupported": []}


@pytest.mark.parametrize("hours", [1 / 3, 8.0])
@pytest.mark.parametrize(
    ("read_until", "read_again", "known"),
    [(0.05, 1.1, False), (1.1, 1.1, True), (0.31, 0.9, False), (0.31, 0.7, True), (0.0, 0.45, True), (0.0, 0.6, False)],
)
def test_a_retest_of_which_half_was_not_read_has_no_conditions(
    hours: float, read_until: float, read_again: float, *, known: bool
) -> None:
    """What nobody read may have been cold. A wrong result keeps what is known, which is asked of its re-test."""
    recorder = LoadRecorder()
    recorder.begin(0)
    seconds = round(hours * 3600)
    for moment in range(1, seconds, 10):
        share = moment / seconds
        if share < read_until or share >= read_again:
            recorder.take(sample(moment, heat(70), Reading("power_watts", 600, WATTS)))
    conditions = recorder.stamped(result(0, seconds), ()).conditions
    assert (conditions["temperature_celsius"], conditions["power_watts"]) == ((70, 600) if known else (None, None))
    wrong = msgspec.structs.replace(result(0, seconds), metrics=(Metric("mismatches", 1, "count"),))
    assert recorder.stamped(wrong, ()).conditions["temperature_celsius"] == 70


@pytest.mark.parametrize(
    ("samples", "unsupported"),
    [
        ((), []),  # nobody read it: nothing is known
        ((sample(1, heat(50)),), ["power_watts"]),
        ((sample(1, heat(50, Part(PartKind.SENSOR, "memory"))),), ["temperature_celsius", "power_watts"]),
        ((sample(1, Reading("temperature_celsius", None, CORE, ReadingStatus.ERROR, "failed")),), ["power_watts"]),
        (
            (sample(1, Reading("temperature_celsius", None, CORE, ReadingStatus.UNSUPPORTED)),),
            ["temperature_celsius", "power_watts"],
        ),
    ],
)
def test_what_was_not_recorded_is_told_from_what_the_device_cannot_tell(
    samples: tuple[Sample, ...], unsupported: list[str]
) -> None:
    """Only a device that was read and has no such sensor is compared without it."""
    stamped = LoadRecorder().stamped(result(1, 2), samples)
    assert stamped.conditions == {"temperature_celsius": None, "power_watts": None, "unsupported": unsupported}


def test_conditions_that_the_load_told_itself_are_kept() -> None:
    """A simulated load says that nothing was measured."""
    told = result(1, 2, unsupported=["power_watts"])
    assert LoadRecorder().stamped(told, ()) == told


@pytest.mark.parametrize("every", [1, 10])
def test_the_heat_of_the_first_format_outlasts_those_behind_it(every: int) -> None:
    """Seven formats of two hours: a re-test of the first must be as warm as it was, not as its first second."""
    recorder, each = LoadRecorder(), 7200
    recorder.begin(0)
    for seconds in range(0, 7 * each, every):
        cold = seconds < 30
        watts = Reading("power_watts", 90.0 if cold else 590.0 + seconds % 3 * 10, WATTS)
        recorder.take(sample(seconds, heat(35.0 if cold else 69.0 + seconds % 3), watts))
    for number in range(7):
        told = recorder.stamped(result(number * each, (number + 1) * each), ()).conditions
        assert told["temperature_celsius"] == pytest.approx(70.0, abs=1.0)
        assert told["power_watts"] == pytest.approx(600.0, abs=10.0)


def wrong(started: float, ended: float) -> Result:
    """Return a result that found one wrong product between two moments after boot."""
    return msgspec.structs.replace(result(started, ended), metrics=(Metric("mismatches", 1, "count"),))


def hours(recorder: LoadRecorder, seconds: int, every: int = 10) -> None:
    """Record a warm device from boot until so many *seconds* after it, the last hour warmer than the others."""
    for now in range(0, seconds + 1, every):
        warm = now > seconds - 3600
        recorder.take(
            sample(now, heat(75.0 if warm else 60.0), Reading("power_watts", 640.0 if warm else 500.0, WATTS))
        )


AS_IT_SHOWED = {"temperature_celsius": 75.0, "power_watts": 640.0, "unsupported": []}


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("took", [0.1, 3.0, 25.0])
def test_a_format_that_is_refuted_in_seconds_of_a_load_of_hours_has_its_heat(took: float, every: int) -> None:
    """One point of so long a curve is of minutes; without the heat only a person could end the wrong result."""
    recorder = LoadRecorder()
    recorder.begin(0)
    hours(recorder, 14 * 3600, every)
    ended = 14 * 3600 + 0.9 * every
    assert recorder.stamped(wrong(ended - took, ended), ()).conditions == AS_IT_SHOWED


def test_what_was_known_when_it_was_found_is_known_at_the_end_of_the_load() -> None:
    """All results are told again at the end, hours later; by then the readings of that moment are gone."""
    recorder = LoadRecorder()
    recorder.begin(0)
    hours(recorder, 8 * 3600)
    found = wrong(8 * 3600 + 2, 8 * 3600 + 4)
    assert recorder.stamped(found, ()).conditions == AS_IT_SHOWED
    for now in range(8 * 3600 + 10, 14 * 3600, 10):
        recorder.take(sample(now, heat(50), Reading("power_watts", 300.0, WATTS)))
    assert recorder.stamped(found, ()).conditions == AS_IT_SHOWED


def test_a_wrong_result_of_a_device_that_grew_hot_has_the_heat_of_when_it_showed() -> None:
    """A fan fails after an hour at 60 degrees; by the median of the load a cold re-test disproved it."""
    recorder = LoadRecorder()
    recorder.begin(0)
    for now in range(0, 4200, 10):
        hot = now >= 3960
        recorder.take(sample(now, heat(93.0 if hot else 60.0), Reading("power_watts", 690.0 if hot else 500.0, WATTS)))
    showed = {"temperature_celsius": 93.0, "power_watts": 690.0, "unsupported": []}
    assert recorder.stamped(wrong(5, 4195), ()).conditions == showed
    for now in range(4200, 9000, 10):
        recorder.take(sample(now, heat(50), Reading("power_watts", 300.0, WATTS)))
    assert recorder.stamped(wrong(5, 9000), ()).conditions == showed


def test_what_a_load_grew_to_behind_a_wrong_result_is_asked_of_its_retest_too() -> None:
    """The median of its whole time, where that is more than the heat of when the first product was wrong."""
    recorder = LoadRecorder()
    recorder.begin(0)
    for now in range(0, 4200, 10):
        recorder.take(sample(now, heat(60.0 if now < 600 else 80.0)))
    assert recorder.stamped(wrong(5, 595), ()).conditions["temperature_celsius"] == 60.0
    assert recorder.stamped(wrong(5, 4195), ()).conditions["temperature_celsius"] == 80.0


def test_a_probe_of_seconds_and_an_agent_that_is_new_know_the_heat_before() -> None:
    """Neither has a reading within the load that it recorded from its beginning."""
    recorder = LoadRecorder()
    recorder.take(sample(90, heat(40), Reading("power_watts", 95.0, WATTS)))
    recorder.take(sample(100, heat(41), Reading("power_watts", 96.0, WATTS)))
    assert recorder.stamped(wrong(103, 105), ()).conditions["temperature_celsius"] == 41
    recorder.begin(103)
    assert recorder.stamped(wrong(103, 105), ()).conditions["power_watts"] == 96


@pytest.mark.parametrize(("at", "known"), [(99.0, False), (100.0, True), (114.9, True), (115.1, False), (900.0, False)])
def test_a_reading_stands_until_the_next_one_is_due(at: float, known: bool) -> None:
    """What was read long before, or behind it, says nothing of the moment; nor does a device that stopped to answer."""
    recorder = LoadRecorder()
    recorder.take(sample(100, heat(41)))
    told = recorder.stamped(wrong(at, at), ()).conditions
    assert told["temperature_celsius"] == (41 if known else None)
    assert told["power_watts"] is None


def test_two_sensors_of_one_device_are_one_figure_as_in_a_long_load() -> None:
    """Else the later of the two would be compared with the middle of both."""
    recorder, hotspot = LoadRecorder(), Part(PartKind.SENSOR, "hotspot")
    recorder.take(sample(100, heat(60), heat(80, hotspot)))
    assert recorder.stamped(wrong(101, 102), ()).conditions["temperature_celsius"] == 70


def test_a_processor_of_several_dies_has_a_heat() -> None:
    """Each die has a sensor with a number: 91 degrees were left out as if it could not tell, so a cold re-test did."""
    recorder, dies = LoadRecorder(), [(index, Part(PartKind.SENSOR, "package", index)) for index in range(4)]
    samples = [sample(now, *(heat(90 + index, die) for index, die in dies)) for now in range(100, 200, 10)]
    for each in samples:
        recorder.take(each)
    told = recorder.stamped(wrong(101, 190), samples).conditions
    assert (told["temperature_celsius"], told["unsupported"]) == (91.5, ["power_watts"])


def test_the_last_readings_of_a_retest_are_no_record_of_it() -> None:
    """It may have been cold until then."""
    recorder = LoadRecorder()
    for now in range(0, 3600, 10):
        recorder.take(sample(now, heat(75)))
    assert recorder.stamped(result(3000, 3600), ()).conditions["temperature_celsius"] is None


def test_an_agent_that_is_new_does_not_take_the_end_of_a_load_for_when_it_was_wrong() -> None:
    """What the agent before it knew of that moment must stand."""
    recorder = LoadRecorder()
    for now in range(3500, 3600, 10):
        recorder.take(sample(now, heat(50)))
    assert recorder.stamped(wrong(0, 3600), ()).conditions["temperature_celsius"] is None


def throttle(name: str, value: float | bool, quantity: str = "throttle_active") -> Reading:
    """Return a reading of a reason."""
    return Reading(quantity, value, Part(PartKind.REASON, name))


def clock(value: float) -> Reading:
    """Return a clock."""
    return Reading("clock_hertz", value, Part(PartKind.CLOCK, "sm"))


def test_what_is_read_now_is_known_until_it_is_not_told() -> None:
    """A failed reading, a failed sample and a minute of silence: none of them leaves the figure of before."""
    recorder = LoadRecorder()
    assert recorder.now(100) == {}
    recorder.take(sample(100, heat(50), clock(2e9), throttle("power_cap", True), throttle("idle", True)))
    (known,) = recorder.now(101).values()
    assert (known.temperature_celsius, known.power_watts, known.clock_hertz) == (50, None, 2e9)
    assert known.throttle == ("power_cap",)
    failed = msgspec.structs.replace(heat(0), value=None, status=ReadingStatus.ERROR)
    recorder.take(sample(102, failed, clock(2e9), throttle("power_cap", False)))
    (known,) = recorder.now(103).values()
    assert (known.temperature_celsius, known.throttle) == (None, ())
    assert recorder.now(163) == {}


def test_a_counter_that_grew_throttles() -> None:
    """A processor tells no flag; the first reading of its counter is of the time before."""
    recorder = LoadRecorder()
    recorder.take(sample(1, throttle("package", 500.0, "throttle_events")))
    assert recorder.now(1)["GPU-1"].throttle == ()
    recorder.take(sample(2, throttle("package", 501.0, "throttle_events")))
    assert recorder.now(2)["GPU-1"].throttle == ("package",)
    recorder.take(sample(3, throttle("package", 501.0, "throttle_events")))
    assert recorder.now(3)["GPU-1"].throttle == ()


def test_a_result_has_the_clock_it_held_and_the_share_of_each_reason() -> None:
    """Median clock, and of four readings one that was throttled by heat; reasons that never held are left out."""
    recorder = LoadRecorder()
    recorder.begin(100)
    for second, hot in ((101, False), (102, True), (103, False), (104, False)):
        reasons = (throttle("hardware_thermal", hot), throttle("power_cap", False))
        recorder.take(sample(second, clock(1e9 * second), *reasons))
    result = Result(
        workload="gemm",
        devices=("GPU-1",),
        state=ResultState.FINISHED,
        started=Instant("boot", 100 * 10**9, 0.0),
        ended=Instant("boot", 105 * 10**9, 5.0),
    )
    conditions = recorder.stamped(result, ()).conditions
    assert conditions["clock_hertz"] == 102.5e9
    assert conditions["throttle"] == {"hardware_thermal": 0.25}
    other = msgspec.structs.replace(result, devices=("GPU-2",))
    assert not {"throttle", "clock_hertz"} & recorder.stamped(other, ()).conditions.keys()
