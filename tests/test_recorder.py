"""Curves of heat, power and clock while a load runs."""

from __future__ import annotations

from nodevet.agent.load.recorder import LoadRecorder
from nodevet.checks.model import Instant, Part, PartKind, Reading, ReadingStatus, Sample

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
    """Nothing is kept before the beginning or after the end."""
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
