"""A poisonous record costs itself: the check that raises on it judges the rest, and every other check judges all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from fakes.views import GPU, SIBLING, at, burn_in, event, gpu, healthy, reader, sample

from nodevet.agent.check_run import CHECK_ERROR, MOST_TRIES, Armed, run_check
from nodevet.agent.engine import Engine
from nodevet.checks.model import NODE, AgentInfo, Finding, Outcome, Part, PartKind, Reading, Snapshot, State
from nodevet.checks.registry import Check, discover
from nodevet.checks.view import Cadence, View

INFO = AgentInfo(version="0", started=at(), interval_seconds=10, ready=True)


def named(name: str) -> Check:
    """Return the check of that name."""
    return next(entry for entry in discover() if entry.name == name)


def raising(check: Check, bad: Callable[[View], bool]) -> Check:
    """Return *check*, which raises where *bad* is true of its view."""

    def judge(view: View, policy: Any) -> Iterator[Finding]:
        if bad(view):
            raise ZeroDivisionError("a bug")
        yield from check.judge(view, policy)

    return msgspec.structs.replace(check, judge=judge)


def armed(check: Check) -> Armed:
    """Return *check* with its default policy."""
    return Armed(check, check.policy())


def bad_event(view: View) -> bool:
    """Whether a poisonous event is there."""
    return any(entry.code == "poison" for entry in view.events)


def bad_reading(view: View) -> bool:
    """Whether a poisonous reading is there."""
    return any(reading.value == 66.6 for entry in view.samples.values() for reading in entry.readings)


def bad_result(view: View) -> bool:
    """Whether a poisonous result is there."""
    return any(entry.workload == "poison" for entry in view.results)


POWER = ("power_watts", Part(PartKind.POWER_SCOPE, "device"))


def with_poison(view: View) -> View:
    """Return *view* with one poisonous event, reading and result among a thousand good ones."""
    events = [event("nvidia.xid.13", sequence=number) for number in range(500)]
    events[123] = event("poison")
    results = (*view.results, msgspec.structs.replace(burn_in(GPU), workload="poison"))
    spoiled = {
        key: msgspec.structs.replace(entry, readings=(*entry.readings, Reading("power_watts", 66.6, POWER[1])))
        if entry.device == GPU
        else entry
        for key, entry in view.samples.items()
    }
    return msgspec.structs.replace(view, events=tuple(events), results=results, samples=spoiled)


@pytest.mark.parametrize("bad", [bad_event, bad_reading, bad_result], ids=lambda bad: bad.__name__)
@pytest.mark.parametrize("name", [entry.name for entry in discover()])
def test_every_check_judges_the_rest_of_what_it_cannot_judge(name: str, bad: Callable[[View], bool]) -> None:
    """What it finds without the poison it finds beside it, and one finding says what was set aside."""
    view = with_poison(healthy())
    ran = run_check(armed(raising(named(name), bad)), view)
    assert ran.error == ""
    told = [finding for finding in ran.findings if finding.code == CHECK_ERROR]
    assert [(f.outcome, f.required, f.gates, f.hard) for f in told] == [(Outcome.UNMEASURED, True, False, False)]
    assert told[0].device == (GPU if bad is bad_reading else NODE)
    assert "ZeroDivisionError: a bug" in told[0].message
    assert [entry.code for entry in ran.aside] == (["poison"] if bad is bad_event else [])
    whole = {finding.key for finding in run_check(armed(named(name)), view).findings}
    found = {finding.key for finding in ran.findings if finding.code != CHECK_ERROR}
    assert found <= whole
    assert {key for key in whole - found if key.device == SIBLING} == set()


@pytest.mark.parametrize("name", [entry.name for entry in discover()])
def test_every_check_may_raise_and_the_others_judge_as_before(name: str) -> None:
    """Its bug is its own: the node is unknown, nothing gates, and all other findings are the same."""
    checks = [raising(entry, lambda _view: True) if entry.name == name else entry for entry in discover()]
    others = {f.key: f.outcome for entry in discover() if entry.name != name for f in findings_of(entry)}
    snapshot = judged(checks)
    assert {f.key: f.outcome for f in snapshot.findings if f.check != name} == others
    assert [f.code for f in snapshot.findings if f.check == name] == [CHECK_ERROR]
    assert (snapshot.verdict.state, snapshot.verdict.hard) == (State.UNKNOWN, False)


def engine_of(checks: list[Check]) -> Engine:
    """Return an engine to which a healthy node was shown."""
    engine = Engine(
        [armed(entry) for entry in checks], node="n", clock=lambda: at(1), cadences={("nvidia", "fast"): Cadence(10, 5)}
    )
    view = healthy()
    for backend in ("host", "nvidia"):
        engine.take_devices(backend, [device for device in view.devices if device.backend == backend])
    for entry in view.samples.values():
        engine.take_sample(entry)
    engine.take_readers(view.readers)
    if view.kernel_log is not None:
        engine.take_kernel_log(view.kernel_log)
    return engine


def judged(checks: list[Check]) -> Snapshot:
    """Return what an engine with *checks* says of a healthy node."""
    return engine_of(checks).evaluate(INFO).snapshot


def findings_of(check: Check) -> tuple[Finding, ...]:
    """Return what an engine with this check alone finds."""
    return judged([check]).findings


def test_a_check_that_raises_whatever_it_sees_is_broken_itself() -> None:
    """Two tries show it; nothing is set aside."""
    tries = 0

    def bad(_view: View) -> bool:
        nonlocal tries
        tries += 1
        return True

    ran = run_check(armed(raising(named("thermal"), bad)), with_poison(healthy()))
    assert (ran.findings, ran.aside, tries) == ((), (), 2)
    assert "ZeroDivisionError: a bug" in ran.error


def test_a_thousand_poisonous_events_do_not_hold_up_the_loop() -> None:
    """The tries are bounded: a check that raises on everything cannot run, and its events wait."""
    view = msgspec.structs.replace(healthy(), events=tuple(event("poison", sequence=n) for n in range(1000)))
    tries = 0

    def bad(seen: View) -> bool:
        nonlocal tries
        tries += 1
        return bad_event(seen)

    assert run_check(armed(raising(named("kernel-log"), bad)), view).error
    assert tries <= MOST_TRIES + 2


def test_an_event_that_was_set_aside_is_judged_by_a_later_version() -> None:
    """It is kept over a restart; until then the node is unknown, because the event may be a fault."""
    check = raising(named("kernel-log"), lambda view: any(entry.code == "nvidia.xid.79" for entry in view.events))
    others = [entry for entry in discover() if entry.name != "kernel-log"]
    engine = engine_of([*others, check])
    engine.take_event(event("nvidia.xid.79"))
    for _ in range(3):
        snapshot = engine.evaluate(INFO).snapshot
        assert (snapshot.verdict.state, snapshot.verdict.hard) == (State.UNKNOWN, False)
        assert [entry.key.code for entry in snapshot.episodes] == [CHECK_ERROR]
    repaired = engine_of(list(discover()))
    repaired.restore(engine.memory())
    snapshot = repaired.evaluate(INFO).snapshot
    assert [entry.key.code for entry in snapshot.episodes] == ["nvidia.xid.79"]
    assert snapshot.verdict.state is State.FAILED


def test_a_reading_that_was_set_aside_ends_with_the_next_good_one() -> None:
    """The sample after it is judged as a whole again."""
    engine = engine_of(
        [*(entry for entry in discover() if entry.name != "power"), raising(named("power"), bad_reading)]
    )
    good = next(entry for entry in healthy().samples.values() if entry.device == GPU)
    engine.take_sample(msgspec.structs.replace(good, readings=(*good.readings, Reading("power_watts", 66.6, POWER[1]))))
    first = engine.evaluate(INFO).snapshot
    assert [(entry.key.code, entry.key.device) for entry in first.episodes] == [(CHECK_ERROR, GPU)]
    engine.take_sample(good)
    assert engine.evaluate(INFO).snapshot.episodes == ()


@pytest.mark.parametrize("text", ["", ",", "x", "1,,2", "-1", "9" * 400, "\udcff"])
def test_process_ids_that_are_none_cost_themselves(text: str) -> None:
    """The list of who holds a device comes from the driver."""
    engine = engine_of(list(discover()))
    engine.take_sample(sample(gpu(), {("compute_process_ids", Part()): text}, group="slow"))
    engine.take_readers((reader("host"), reader("nvidia")))
    assert engine.evaluate(INFO).snapshot.verdict.state is not State.FAILED
