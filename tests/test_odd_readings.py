"""Values that no device can have measured: each costs its own reading, never the verdict while its like is read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import msgspec
import pytest
from fakes.nvml.scenario import NvmlReturn
from fakes.views import CORE, GPU, GPU_READINGS, at, gpu, healthy, judge, link, of
from hypothesis import given
from hypothesis import strategies as st

from nodevet.checks.backends.nvidia.items import fast_items, slow_items
from nodevet.checks.backends.nvidia.nvml import is_unsupported
from nodevet.checks.core.model import (
    WHOLE,
    Finding,
    Limit,
    Outcome,
    Part,
    PartKind,
    Reading,
    ReadingStatus,
    Scalar,
    State,
)
from nodevet.checks.core.quantities import QUANTITIES, UNKNOWN_ACTION, QuantityKind, is_implausible, measured
from nodevet.checks.engine.disproof import Evidence
from nodevet.checks.engine.episodes import Ledger, fold
from nodevet.checks.engine.judging import Observation, Rule, observations
from nodevet.checks.engine.registry import Check, check, discover
from nodevet.checks.engine.standing import verdict
from nodevet.checks.engine.view import Growth, View

SM, MEMORY = Part(PartKind.CLOCK, "sm"), Part(PartKind.CLOCK, "memory")
CHECKS = discover()
ODD: tuple[Scalar, ...] = (
    math.nan, math.inf, -math.inf, -1e300, 1e300, -(2**62), 2**64 - 1, 10**400, "\x00", "", "no such word" * 50,
)  # fmt: skip
ALONE = frozenset(
    {key for key, _ in GPU_READINGS if sum(key == other for other, _ in GPU_READINGS) == 1}
    & set(healthy().required[GPU])
)
"""What a board of this model must tell of one part alone: without it nothing like it is read."""
UNJUDGED = {"energy_joules"}
"""Looked at beside a fault alone: links settle after a driver was loaded."""
STANDS_IN = frozenset({
    "temperature_margin_celsius", "temperature_margin_slowdown_celsius", "temperature_celsius",
    "temperature_slowdown_celsius",
    "temperature_shutdown_celsius", "temperature_maximum_celsius", "throttle_active", "throttle_seconds",
    "utilization_ratio", "clock_hertz", "partitioned", "bad_pages_threshold", "power_limit_watts",
})  # fmt: skip
"""Readings for which another one is judged, or that no check judges by themselves."""


def judged(view: View) -> list[Finding]:
    """Return what all checks say of *view*."""
    return [finding for declared in CHECKS for finding in declared.judge(view, declared.policy())]


def state(view: View) -> State:
    """Return the verdict of the first accelerator after three such samples."""
    ledger, findings = Ledger(), judged(view)
    for turn in range(3):
        moved = [msgspec.structs.replace(f, evidence_time=at(turn) if f.evidence_time else None) for f in findings]
        ledger, _ = fold(ledger, moved, Evidence(now=at(turn), devices=view.devices))
    return verdict(GPU, ledger.episodes, findings).state


def odd(quantity: str, part: Part, value: Scalar) -> Reading:
    """Return the reading of *value* as a backend hands it on."""
    return measured(Reading(quantity, value, part))


def every_odd_reading() -> Iterator[tuple[str, Part, Scalar]]:
    """Yield each reading of the healthy accelerator with a value that it cannot have: another one for each."""
    values = itertools.cycle(ODD)
    for quantity, part in GPU_READINGS:
        refused = (value for value in values if odd(quantity, part, value).status is not ReadingStatus.OK)
        yield quantity, part, next(refused)


def test_memory_clock_beyond_ten_gigahertz_is_measured() -> None:
    """An RTX PRO 6000 tells 12481 MHz and an RTX 5090 14001 MHz: transfers of GDDR7, and healthy."""
    for megahertz in (10_501, 12_481, 14_001):
        assert odd("clock_hertz", MEMORY, megahertz * 1e6).status is ReadingStatus.OK
    assert odd("clock_hertz", MEMORY, 65_535e6).status is ReadingStatus.ERROR


Changes = dict[tuple[str, Part], Scalar | Reading | None]
STUCK = (
    ("temperature_celsius", "core", True),
    ("temperature_celsius", "memory", True),
    ("temperature_celsius", "hotspot", True),
    ("temperature_celsius", "inlet", False),
    ("power_watts", "device", True),
    ("power_watts", "module", False),
    ("power_limit_watts", "device", True),
    ("power_limit_requested_watts", "device", True),
    ("power_limit_default_watts", "device", True),
)


@pytest.mark.parametrize(("quantity", "name", "is_odd"), STUCK)
@pytest.mark.parametrize("zero", [0, 0.0, -0.0])
def test_sensor_of_a_chip_that_tells_exactly_zero_is_not_measured(
    quantity: str, name: str, is_odd: bool, zero: float
) -> None:
    """What answers is warmer than its air, draws power and may; the air itself may be at 0, and a module be idle."""
    part = Part(QUANTITIES[quantity].part, name)
    reading = odd(quantity, part, zero)
    assert (reading.status is ReadingStatus.ERROR) is is_odd
    assert not is_odd or "empty register" in reading.detail
    assert odd(quantity, part, 0.5).status is ReadingStatus.OK
    assert name != "core" or odd(quantity, part, -3).status is ReadingStatus.OK


def test_power_limit_of_nothing_is_none() -> None:
    """It was a limit that somebody lowered, and as a default one that every limit kept."""
    for quantity in ("power_limit_watts", "power_limit_requested_watts", "power_limit_default_watts"):
        view = healthy({(quantity, SCOPE): odd(quantity, SCOPE, 0)})
        assert state(view) is State.OK
        told = [finding.outcome for finding in judge("power", view) if finding.device == GPU]
        assert Outcome.UNMEASURED in told
        assert Outcome.WARN not in told


def test_accelerator_whose_sensors_are_stuck_at_zero_is_never_ok() -> None:
    """Busy or idle, with a margin or without: what its model must tell is told as missing."""
    for busy in (0.0, 0.97):
        load: Changes = {("utilization_ratio", Part(PartKind.ENGINE, "compute")): busy}
        cold: Changes = {**load, ("temperature_celsius", CORE): odd("temperature_celsius", CORE, 0)}
        dead: Changes = {**load, ("power_watts", SCOPE): odd("power_watts", SCOPE, 0)}
        assert state(healthy({**cold, ("temperature_margin_celsius", CORE): None})) is State.UNKNOWN
        assert state(healthy(dead)) is State.UNKNOWN
        assert state(healthy(cold)) is State.OK  # the core's own margin stands in


@pytest.mark.parametrize("quantity", QUANTITIES.values(), ids=lambda entry: entry.key)
def test_every_number_has_bounds_with_a_source(quantity: object) -> None:
    """A bound that cannot be looked up cannot be trusted either."""
    entry = QUANTITIES[quantity.key]  # type: ignore[attr-defined]
    is_number = entry.kind in (QuantityKind.GAUGE, QuantityKind.COUNTER)
    assert (entry.bounds is not None) is is_number
    assert not entry.bounds or (len(entry.bounds.source) > 15 and entry.low is not None and entry.high is not None)


def test_one_odd_reading_never_costs_the_verdict_while_its_like_is_read() -> None:
    """Each reading of a healthy board with a value that cannot be: ok, but for what is required and read once."""
    assert state(healthy()) is State.OK
    seen = set()
    for quantity, part, value in every_odd_reading():
        view = healthy({(quantity, part): odd(quantity, part, value)})
        expected = State.UNKNOWN if quantity in ALONE else State.OK
        assert state(view) is expected, (quantity, part, value)
        seen.add(quantity)
    assert {"power_watts", "row_remap_failed", "ecc_uncorrected_errors"} >= ALONE
    assert seen == {quantity for quantity, _ in GPU_READINGS}


ERRORS = "ecc_uncorrected_errors"
MEMORIES = ("dram", "sram", "vendor:gfx", "vendor:sdma")


@pytest.mark.parametrize("status", [ReadingStatus.ERROR, ReadingStatus.DENIED, ReadingStatus.UNAVAILABLE])
@pytest.mark.parametrize(
    ("silent", "expected"),
    [
        ({"dram"}, State.UNKNOWN),
        ({"sram"}, State.OK),
        ({"vendor:gfx"}, State.OK),
        ({"sram", "vendor:gfx", "vendor:sdma"}, State.UNKNOWN),
        (set(), State.OK),
    ],
)
def test_memory_of_another_kind_answers_for_none(status: ReadingStatus, silent: set[str], expected: State) -> None:
    """HBM whose errors cannot be read is not watched, however many blocks on the chip tell theirs, and vice versa."""
    told: Changes = {}
    for name in MEMORIES:
        part = Part(PartKind.MEMORY_BLOCK, name)
        told[ERRORS, part] = Reading(ERRORS, None, part, status, "no") if name in silent else 0
    view = healthy(told)
    assert state(view) is expected
    if expected is State.UNKNOWN:
        finding = of(judge("freshness", view), f"reading.{ERRORS}")
        assert f"of memory_block {min(silent)} is {status.value} (no)" in finding.message


def test_one_odd_reading_is_told_as_unmeasured_and_not_required() -> None:
    """It is not passed over: the check that judges it says that it is unmeasured there."""
    for quantity, part, value in every_odd_reading():
        if quantity in ALONE | STANDS_IN | UNJUDGED:
            continue
        found = judged(healthy({(quantity, part): odd(quantity, part, value)}))
        told = [f for f in found if f.device == GPU and f.outcome is Outcome.UNMEASURED and quantity in f.evidence]
        assert told, (quantity, part, value)
        assert not any(finding.required for finding in told)
        assert all(len(finding.message) < 400 for finding in told)


@given(st.sampled_from(sorted(QUANTITIES)), st.one_of(st.floats(), st.integers(), st.text(max_size=300), st.booleans()))
def test_what_is_taken_for_measured_is_of_its_kind_and_within_its_bounds(key: str, value: Scalar) -> None:
    """No type, sign or size slips through, and nothing that comes in ends the reader."""
    entry = QUANTITIES[key]
    part = next((p for q, p in GPU_READINGS if q == key), Part(entry.part, "vendor:x"))
    reading = odd(key, part, value)
    if reading.status is ReadingStatus.OK and entry.bounds:
        assert isinstance(value, (int, float))
        assert not isinstance(value, bool)
        assert (entry.low or 0) <= value <= (entry.high or 0) or entry.low is None
    elif reading.status is not ReadingStatus.OK:
        assert len(reading.detail) < 300


@pytest.mark.parametrize("key", [entry.key for entry in QUANTITIES.values() if entry.bounds])
def test_each_bound_is_measured_and_one_beyond_is_not(key: str) -> None:
    """The edges themselves belong to what a device may tell."""
    entry = QUANTITIES[key]
    part = Part(entry.part, "vendor:edge")
    assert entry.low is not None
    assert entry.high is not None
    for edge, beyond in ((entry.low, entry.low - 1), (entry.high, entry.high + 1)):
        assert odd(key, part, edge).status is ReadingStatus.OK
        assert odd(key, part, beyond).status is ReadingStatus.ERROR


COUNTED = [entry.key for entry in QUANTITIES.values() if entry.kind is QuantityKind.COUNTER or "bad_pages" in entry.key]
TOLD_IN_16_BITS = [key for key in QUANTITIES if key.startswith(("bad_pages_", "remapped_rows_", "row_remap_banks"))]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *itertools.product(COUNTED, (2**64 - 1, float(2**64))),
        *itertools.product([key for key in COUNTED if QUANTITIES[key].unit == ""], (2**32 - 1, float(2**32 - 1))),
        *itertools.product([key for key in TOLD_IN_16_BITS if key != "bad_pages_threshold"], (2**16 - 1,)),
        ("row_remap_banks_without_spares", 2**32 - 1),
        ("throttle_seconds", (2**64 - 1) / 1e9),
        ("energy_joules", (2**64 - 1) / 1e3),
        ("energy_joules", (2**64 - 1) * 15.259 / 1e6),
    ],
)
def test_count_of_ones_alone_is_an_empty_register(key: str, value: float) -> None:
    """That reading alone: no board has four billion bad pages, and none of them is replaced for one."""
    reading = odd(key, Part(QUANTITIES[key].part, "vendor:ones"), value)
    assert (reading.status, reading.value) == (ReadingStatus.ERROR, None)
    assert is_implausible(reading)


@pytest.mark.parametrize("key", ["bad_pages_retired", "bad_pages_pending", "bad_pages_unreservable"])
def test_pages_of_ones_alone_fail_no_board(key: str) -> None:
    """It was replaced for them, for good."""
    for value in (2**16 - 1, 2**32 - 1):
        assert state(healthy({(key, WHOLE): odd(key, WHOLE, value)})) is State.OK
    assert state(healthy({("bad_pages_unreservable", WHOLE): odd("bad_pages_unreservable", WHOLE, 3)})) is State.FAILED


ANSWERS = {item.quantity: item.convert for item in (*fast_items(0, "13.590"), *slow_items(0))}


@pytest.mark.parametrize("quantity", ["row_remap_failed", "row_remap_pending", "partitioned", "ecc_enabled"])
def test_flag_of_the_driver_is_zero_or_one(quantity: str) -> None:
    """A torn number is no yes: by one a board would be replaced."""
    assert [ANSWERS[quantity](number) for number in (0, 1)] == [False, True]
    for number in (-1, 2, 255, 2**31):
        with pytest.raises(ValueError, match="neither 0 nor 1"):
            ANSWERS[quantity](number)


def test_recovery_action_below_zero_is_no_request() -> None:
    """Counted from the end of the table it would have been a reboot."""
    action = WHOLE, ANSWERS["recovery_action"]
    for number in (-1, -8, 64, 2**31):
        assert odd("recovery_action", action[0], action[1](number) or "").status is ReadingStatus.ERROR
    assert action[1](63) == UNKNOWN_ACTION


# ---- Rules and observations ---------------------------------------------------------------------------------

HOT = Rule(check="site", code="site.hot")
BAD = [Reading("temperature_celsius", None, CORE, status, "x") for status in ReadingStatus if status.value != "ok"]
NANS = [Reading("temperature_celsius", value, CORE) for value in (math.nan, math.inf, -math.inf)]


@pytest.mark.parametrize("reading", [*BAD, *NANS], ids=lambda r: f"{r.status.value} {r.value}")
def test_no_rule_passes_on_a_reading_that_is_not_there(reading: Reading) -> None:
    """Whatever a check compares: without a value the rule itself says unmeasured, or skipped where unsupported."""
    observation = Observation(GPU, "GPU 0", reading, at())
    good = Observation(GPU, "GPU 0", Reading("temperature_celsius", 40, CORE), at())
    unmeasured = Outcome.SKIPPED if reading.status is ReadingStatus.UNSUPPORTED else Outcome.UNMEASURED
    limit = Limit(">", 90, "celsius", "a test")
    assert (observation.number, observation.grew, observation.per_second, observation.occurrence) == (
        None,
        None,
        None,
        None,
    )
    for finding in (
        HOT.judge(observation, False, "cool"),
        HOT.judge(observation, True, "hot"),
        HOT.judge(observation, (observation.number or 0) > 90, "compared with 0"),
        HOT.judge(observation, lambda celsius: celsius > 90, lambda celsius: f"{celsius:.0f} celsius"),
        HOT.judge(good, False, "cool", beside=(observation,)),
        HOT.against(observation, observation.number, limit, "against a limit"),
        HOT.against(observation, 40.0, limit, "against a limit, with a number of its own"),
        HOT.against(good, 40.0, limit, "beside", beside=(observation,)),
        HOT.rate(observation, limit, lambda growth: growth.per_second, lambda _growth: ""),
        HOT.grown(observation, lambda _growth: False, lambda _growth: ""),
    ):
        assert (finding.outcome, finding.required) == (unmeasured, False)


def test_no_rule_passes_where_nothing_was_compared() -> None:
    """``limit and value > limit`` is None where there is no limit, and no number compares with one that is none."""
    grown = Observation(GPU, "GPU 0", Reading("link_crc_errors", 5, link(0)), at(), Growth(1, 10.0, at()))
    good = Observation(GPU, "GPU 0", Reading("temperature_celsius", 40, CORE), at())
    blank = Limit("<", math.nan, "celsius", "a test")
    for finding in (
        HOT.judge(good, None, "cool"),
        HOT.judge(good, lambda _celsius: None, "cool"),
        HOT.judge(good, False, "cool", limit=blank),
        HOT.against(good, 40.0, blank, "cool"),
        HOT.grown(grown, lambda _growth: None, lambda _growth: "quiet"),
        HOT.rate(grown, blank, lambda growth: growth.per_second, lambda _growth: "quiet"),
    ):
        assert finding.outcome is Outcome.UNMEASURED


def test_growth_without_an_earlier_value_is_not_judged() -> None:
    """The first sample of a counter says nothing about its rate."""
    observation = Observation(GPU, "GPU 0", Reading("link_crc_errors", 5, link(0)), at())
    limit = Limit(">=", 0, "", "a test")
    assert (observation.grew, observation.per_second) == (None, None)
    assert HOT.rate(observation, limit, lambda growth: growth.amount, lambda _growth: "").outcome is Outcome.SKIPPED
    assert HOT.against(observation, observation.per_second, limit, "").outcome is Outcome.UNMEASURED
    assert HOT.grown(observation, lambda _growth: True, lambda _growth: "").outcome is Outcome.SKIPPED


class Policy(msgspec.Struct, frozen=True):
    """Nothing to configure."""


@check("naive", policy=Policy, inputs=("temperature_celsius", "link_crc_errors", "row_remap_failed"))
def naive(view: View, _policy: Policy) -> Iterator[Finding]:
    """A site's check that never asks whether anything was measured."""
    for device in view.devices:
        for observation in observations(view, device, "temperature_celsius"):
            yield HOT.judge(observation, (observation.number or 0) > 90, f"{observation.number} celsius")
        for observation in observations(view, device, "link_crc_errors"):
            yield HOT.judge(observation, bool(observation.reading.value), f"{observation.reading.value} errors")
        for observation in observations(view, device, "row_remap_failed"):
            yield HOT.judge(observation, observation.reading.value is True, "no row failed")


@pytest.mark.parametrize("status", [status for status in ReadingStatus if status.value != "ok"])
def test_naive_check_of_a_site_is_never_green_by_absence(status: ReadingStatus) -> None:
    """It passes on the healthy node, and is unmeasured without a value although its own code says nothing of that."""
    declared = next(v for v in vars(naive).values() if isinstance(v, Check))
    assert {f.outcome for f in naive(healthy(), Policy())} == {Outcome.PASS}
    spoiled = {
        (key, part): Reading(key, None, part, status, "x") for key, part in GPU_READINGS if key in declared.inputs
    }
    found = [f for f in naive(healthy(spoiled), Policy()) if f.device == GPU]
    unmeasured = Outcome.SKIPPED if status is ReadingStatus.UNSUPPORTED else Outcome.UNMEASURED
    assert {f.outcome for f in found} == {unmeasured}


# ---- Power and PCIe -------------------------------------------------------------------------------------------

SCOPE = Part(PartKind.POWER_SCOPE, "device")


def test_power_limit_in_force_may_be_less_than_what_was_asked_for() -> None:
    """A healthy GH200 enforces 700 W of 900 W that were requested by default: its module shares 1000 W."""
    for requested, outcome in ((900, Outcome.PASS), (700, Outcome.WARN)):
        changes = {
            ("power_limit_watts", SCOPE): 700,
            ("power_limit_requested_watts", SCOPE): requested,
            ("power_limit_default_watts", SCOPE): 900,
        }
        view = healthy(changes, device=gpu(model="NVIDIA GH200 480GB"))
        assert of(judge("power", view), "power.limit_lowered").outcome is outcome


@pytest.mark.parametrize("told", [None, Reading("power_limit_requested_watts", None, SCOPE, ReadingStatus.UNSUPPORTED)])
def test_power_limit_in_force_counts_where_no_other_is_told(told: Reading | None) -> None:
    """Boards that do not tell what was requested are judged by what they enforce."""
    changes = {("power_limit_watts", SCOPE): 400, ("power_limit_requested_watts", SCOPE): told}
    assert of(judge("power", healthy(changes)), "power.limit_lowered").outcome is Outcome.WARN


def test_a_query_that_the_driver_gave_up_does_not_exist() -> None:
    """The next source of the reading is tried, as where the library lacks the function; a refusal is another matter."""
    assert is_unsupported(NvmlReturn.DEPRECATED)
    assert not is_unsupported(NvmlReturn.NO_PERMISSION)
