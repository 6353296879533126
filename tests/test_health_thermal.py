"""Heat: the device's margin first, then its own limits, then the table."""

from __future__ import annotations

import pytest
from fakes.views import CORE, bad, healthy, judge, of

from nodevet.checks.core.model import Outcome, Part, PartKind, ReadingStatus, Scalar

MEMORY = Part(PartKind.SENSOR, "memory")
PASS, WARN, FAIL = Outcome.PASS, Outcome.WARN, Outcome.FAIL

MUTANTS = {
    # The name of the mutant: the line, the broken line, and the test that must fail on it.
    "a board near its margin is cool": (
        "yield HIGH.confirmed_by(policy).against(margin, margin.number, high, facts, beside=beside)",
        "yield HIGH.judge(margin, False, facts)",
        "test_margin_decides_where_the_device_tells_it[5-warn-pass]",
    ),
    "a board beyond its margin does not slow down": (
        "yield SLOWDOWN.confirmed_by(policy).against(margin, margin.number, slowdown, facts, beside=beside)",
        "yield SLOWDOWN.judge(margin, False, facts)",
        "test_margin_decides_where_the_device_tells_it[-2-warn-fail]",
    ),
}


@pytest.mark.parametrize(
    ("margin", "high", "slowdown"),
    [
        (32, PASS, PASS),
        (6, PASS, PASS),
        (5, WARN, PASS),
        (0, WARN, PASS),
        (-1, WARN, PASS),
        (-2, WARN, FAIL),
        (-5, WARN, FAIL),
    ],
)
def test_margin_decides_where_the_device_tells_it(margin: int, high: Outcome, slowdown: Outcome) -> None:
    """Five degrees left warn; a failure is where the device slows down, two degrees beyond its highest temperature."""
    findings = judge(
        "thermal", healthy({("temperature_margin_celsius", CORE): margin, ("temperature_celsius", CORE): 99})
    )
    assert of(findings, "temperature.high", part=CORE).outcome is high
    assert of(findings, "temperature.slowdown", part=CORE).outcome is slowdown


@pytest.mark.parametrize(("margin", "slowdown"), [(1, PASS), (0, FAIL), (-1, FAIL)])
def test_margin_counts_to_slowdown_where_no_offset_is_told(margin: int, slowdown: Outcome) -> None:
    """The header of NVML calls it the distance to the nearest slowdown."""
    no_offset = {("temperature_margin_celsius", CORE): margin, ("temperature_margin_slowdown_celsius", CORE): None}
    finding = of(judge("thermal", healthy(no_offset)), "temperature.slowdown", part=CORE)
    assert finding.outcome is slowdown


def test_a_board_at_its_highest_operating_temperature_does_not_slow_down() -> None:
    """Each limit has its words: what the device does there is what its vendor says of it."""
    at_most = judge("thermal", healthy({("temperature_margin_celsius", CORE): 0}))
    warm = of(at_most, "temperature.high", part=CORE)
    assert "at the maximum operating temperature (margin 0 °C, minimum 5 °C)" in warm.message
    assert not any("reduces its clocks" in finding.message for finding in at_most)
    beyond = of(
        judge("thermal", healthy({("temperature_margin_celsius", CORE): -3})), "temperature.slowdown", part=CORE
    )
    assert "1 °C above the slowdown threshold (margin -3 °C, threshold -2 °C)" in beyond.message
    assert "reduces its clocks" in beyond.message
    for limit, words in (
        ("slowdown", "reduces its clocks"),
        ("maximum", "above the maximum operating temperature"),
        ("shutdown", "shuts down at this temperature"),
    ):
        gone = {(f"temperature_{name}_celsius", CORE): None for name in ("slowdown", "maximum", "shutdown", "margin")}
        view = healthy({**gone, ("temperature_celsius", CORE): 96, (f"temperature_{limit}_celsius", CORE): 95})
        finding = of(judge("thermal", view), "temperature.slowdown", part=CORE)
        assert (finding.outcome, words in finding.message) == (FAIL, True)


@pytest.mark.parametrize(("celsius", "high", "hot"), [(94, PASS, PASS), (95, WARN, PASS), (105, WARN, FAIL)])
def test_memory_is_judged_by_the_table_where_the_board_names_no_limit(
    celsius: int, high: Outcome, hot: Outcome
) -> None:
    """Hopper and later tell no absolute limit of their memory: it is not left unjudged."""
    unnamed = {("temperature_maximum_celsius", MEMORY): None, ("temperature_celsius", MEMORY): celsius}
    findings = judge("thermal", healthy(unnamed))
    assert of(findings, "temperature.high", part=MEMORY).outcome is high
    assert of(findings, "temperature.slowdown", part=MEMORY).outcome is hot


@pytest.mark.parametrize(
    ("celsius", "high", "slowdown"), [(81, PASS, PASS), (82, WARN, PASS), (87, WARN, FAIL), (91, WARN, FAIL)]
)
def test_reported_slowdown_decides_without_a_margin(celsius: int, high: Outcome, slowdown: Outcome) -> None:
    """A device without T.Limit is judged by the slowdown temperature that it reports (87), less five degrees."""
    view = healthy({("temperature_margin_celsius", CORE): None, ("temperature_celsius", CORE): celsius})
    findings = judge("thermal", view)
    warning = of(findings, "temperature.high", part=CORE)
    assert warning.outcome is high
    assert warning.limit is not None and warning.limit.source == "5 °C below the 87 °C that the device reports"
    failing = of(findings, "temperature.slowdown", part=CORE)
    assert failing.outcome is slowdown
    assert failing.limit is not None
    assert failing.limit.source == "reported by the device"


@pytest.mark.parametrize(("celsius", "high", "slowdown"), [(83, PASS, PASS), (84, WARN, PASS), (93, WARN, FAIL)])
def test_table_decides_where_the_device_reports_no_limit(celsius: int, high: Outcome, slowdown: Outcome) -> None:
    """Only the core is judged by the table."""
    gone = {
        ("temperature_margin_celsius", CORE): None,
        ("temperature_slowdown_celsius", CORE): None,
        ("temperature_shutdown_celsius", CORE): None,
    }
    findings = judge("thermal", healthy({**gone, ("temperature_celsius", CORE): celsius}))
    assert of(findings, "temperature.high", part=CORE).outcome is high
    assert of(findings, "temperature.slowdown", part=CORE).outcome is slowdown


def test_configuration_goes_before_everything_reported() -> None:
    """A site's own limit wins, and the finding says so."""
    view = healthy({("temperature_margin_celsius", CORE): None, ("temperature_celsius", CORE): 71})
    finding = of(judge("thermal", view, high_celsius=70.0), "temperature.high", part=CORE)
    assert (finding.outcome, finding.limit and finding.limit.source) == (WARN, "configuration")


@pytest.mark.parametrize(("celsius", "outcome"), [(89, PASS), (90, WARN), (95, WARN)])
def test_memory_has_its_own_maximum(celsius: int, outcome: Outcome) -> None:
    """Memory runs hotter than the core: judged by the maximum that its vendor allows (95), up to which it may go."""
    findings = judge("thermal", healthy({("temperature_celsius", MEMORY): celsius}))
    assert of(findings, "temperature.high", part=MEMORY).outcome is outcome
    assert of(findings, "temperature.slowdown", part=MEMORY).outcome is PASS
    beyond = judge("thermal", healthy({("temperature_celsius", MEMORY): 96}))
    assert of(beyond, "temperature.slowdown", part=MEMORY).outcome is FAIL


def test_sensor_without_any_limit_is_skipped() -> None:
    """No limit is known for an inlet: neither healthy nor hot."""
    inlet = Part(PartKind.SENSOR, "inlet")
    findings = judge("thermal", healthy({("temperature_celsius", inlet): 120}))
    assert of(findings, "temperature.slowdown", part=inlet).outcome is Outcome.SKIPPED


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (ReadingStatus.UNSUPPORTED, Outcome.SKIPPED),
        (ReadingStatus.DENIED, Outcome.UNMEASURED),
        (ReadingStatus.ERROR, Outcome.UNMEASURED),
        (ReadingStatus.UNAVAILABLE, Outcome.UNMEASURED),
    ],
)
def test_missing_temperature_is_never_cool(status: ReadingStatus, outcome: Outcome) -> None:
    """Without margin and temperature the sensor is skipped or unmeasured, never well."""
    view = healthy(
        {
            ("temperature_margin_celsius", CORE): bad("temperature_margin_celsius", CORE, ReadingStatus.UNSUPPORTED),
            ("temperature_celsius", CORE): bad("temperature_celsius", CORE, status),
        }
    )
    findings = judge("thermal", view)
    assert of(findings, "temperature.slowdown", part=CORE).outcome is outcome
    assert of(findings, "temperature.high", part=CORE).outcome is outcome


@pytest.mark.parametrize("margin", [32, -3])
def test_heat_is_measured_and_not_hard(margin: Scalar) -> None:
    """Three of five looks must agree, whatever the outcome, so that one spike counts for nothing."""
    finding = of(
        judge("thermal", healthy({("temperature_margin_celsius", CORE): margin})), "temperature.slowdown", part=CORE
    )
    assert (finding.needed, finding.window, finding.hard) == (3, 5, False)
