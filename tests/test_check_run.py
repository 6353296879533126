"""A poisonous record costs itself: the check that raises on it judges the rest, and every other check judges all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, NoReturn, cast

import msgspec
import pytest
from fakes.views import GPU, SIBLING, at, burn_in, event, failed, gpu, healthy, reader, sample

from nodevet.checks.core.guard import CODE, Guard
from nodevet.checks.core.model import (
    NODE,
    AgentInfo,
    Episode,
    EpisodeState,
    FailureKind,
    Finding,
    Outcome,
    Part,
    PartKind,
    ReaderState,
    Reading,
    Snapshot,
    State,
)
from nodevet.checks.engine import engine as engine_module
from nodevet.checks.engine import episodes, listed, runner
from nodevet.checks.engine.check_run import (
    CHECK_ERROR,
    MOST_TRIES,
    ConfiguredCheck,
    not_configured,
    not_listed,
    run_check,
)
from nodevet.checks.engine.disproof import Evidence
from nodevet.checks.engine.engine import Engine
from nodevet.checks.engine.episodes import Ledger
from nodevet.checks.engine.lapses import Lapses
from nodevet.checks.engine.registry import Check, Judge, discover
from nodevet.checks.engine.view import Cadence, View
from nodevet.checks.health.freshness import Freshness
from nodevet.exporters.documents.schema import status_document

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


def of_a_site(check: Check, judge: Judge) -> Check:
    """Return *check* as one of a site that judges by *judge*."""
    return msgspec.structs.replace(check, judge=judge, module="of.a.site")


def configured(check: Check) -> ConfiguredCheck:
    """Return *check* with its default policy."""
    return ConfiguredCheck(check, check.policy())


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
    ran = run_check(configured(raising(named(name), bad)), view)
    assert ran.error == ""
    told = [finding for finding in ran.findings if finding.code == CHECK_ERROR]
    assert [(f.outcome, f.required, f.gates, f.hard) for f in told] == [(Outcome.UNMEASURED, True, False, False)]
    assert told[0].device == (GPU if bad is bad_reading else NODE)
    assert "ZeroDivisionError: a bug" in told[0].message
    assert [entry.code for entry in ran.aside] == (["poison"] if bad is bad_event else [])
    whole = {finding.key for finding in run_check(configured(named(name)), view).findings}
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
        [configured(entry) for entry in checks],
        node="n",
        clock=lambda: at(1),
        cadences={("nvidia", "fast"): Cadence(10, 5)},
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

    ran = run_check(configured(raising(named("thermal"), bad)), with_poison(healthy()))
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

    assert run_check(configured(raising(named("kernel-log"), bad)), view).error
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


MALFORMED: Mapping[str, Any] = {
    "outcome": "worse",
    "part": None,
    "value": 10**30,
    "message": "half a letter: \udcff",
    "device": ["a", "list"],
    "clearing": None,
    "action": None,
    "fault_class": 3,
    "limit": 90,
    "evidence_time": 1.5,
    "code": None,
    "gates": "no",
}
"""A value for a field of a finding that nothing of the agent can take."""


@pytest.mark.parametrize("field", MALFORMED)
def test_a_finding_that_cannot_be_kept_or_shown_costs_its_check(field: str) -> None:
    """A check of a site makes it: the others judge as before, and all of it can be kept and shown."""

    def judge(view: View, policy: Any) -> Iterator[Finding]:
        for finding in named("thermal").judge(view, policy):
            yield msgspec.structs.replace(finding, **{field: MALFORMED[field]})

    checks = [of_a_site(entry, judge) if entry.name == "thermal" else entry for entry in discover()]
    others = {f.key: f.outcome for entry in discover() if entry.name != "thermal" for f in findings_of(entry)}
    engine = engine_of(checks)
    for _ in range(2):
        snapshot = engine.evaluate(INFO).snapshot
        assert {f.key: f.outcome for f in snapshot.findings if f.check != "thermal"} == others
        assert {f.code for f in snapshot.findings if f.check == "thermal"} == {CHECK_ERROR}
        assert (snapshot.verdict.state, snapshot.verdict.hard) == (State.UNKNOWN, False)
        assert engine.memory()
        assert msgspec.json.encode(status_document(snapshot))


def test_an_outcome_by_its_word_is_that_outcome() -> None:
    """A check of a site may write it so."""
    check = named("thermal")

    def judge(view: View, policy: Any) -> Iterator[Finding]:
        for finding in check.judge(view, policy):
            yield msgspec.structs.replace(finding, outcome=str(finding.outcome))

    assert findings_of(of_a_site(check, judge)) == findings_of(check)


STEPS = {
    "named",
    "remember",
    "count_events",
    "counted_once",
    "joined",
    "shown_once",
    "without_those_not_kept",
    "without_pages",
    "counted",
    "exchanged",
}
"""Functions that a judgement can do without: what they give is as it was, and the node is unknown for it."""

CORE = {
    "owed",  # without it a reading that must be there would not be missed
    "told_run",
    "nothing_found",
    "runs_again",
    "not_asked",
    "not_configured",
    "not_listed",
    "fault_findings",
    "fold",
    "forget",
    "holders_of",
    "verdicts_of",
}
"""Those without which nothing is judged: the last snapshot stands, without anything green in it."""

SMALL = {"slot_of", "_is_page", "attempt", "culprits"}


MODULES = (engine_module, runner, listed)
CLASSES = (Engine, runner.CheckRunner, listed.ListedDevices)
"""The engine, and the parts of it that have a file of their own."""


def module_of(name: str) -> ModuleType | None:
    """Return the module of the engine that has the function *name*."""
    return next((module for module in MODULES if isinstance(getattr(module, name, None), FunctionType)), None)


def used(code: CodeType, seen: set[str]) -> Iterator[str]:
    """Yield the functions of the engine's modules that *code* uses, through methods of their classes too."""
    for name in code.co_names:
        if module_of(name) is not None:
            yield name
        elif name not in seen:
            seen.add(name)
            methods = (getattr(owner, name, None) for owner in CLASSES)
            for method in (entry.fget if isinstance(entry, property) else entry for entry in methods):
                if isinstance(method, FunctionType):
                    yield from used(method.__code__, seen)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from used(constant, seen)


def test_every_function_of_a_judgement_is_made_to_raise_below() -> None:
    """One that is added must be said to be a step or not."""
    assert set(used(Engine.evaluate.__code__, set())) - SMALL == STEPS | CORE


def planted(*_: object, **__: object) -> NoReturn:
    """Raise."""
    raise ZeroDivisionError("a bug")


def told_and_over(owner: object, name: str) -> None:
    """Assert that judgements go on while *name* of *owner* raises, which is told until it works."""
    before = judged(list(discover()))
    engine, broken = engine_of(list(discover())), pytest.MonkeyPatch()
    broken.setattr(owner, name, planted)
    after = engine.evaluate(INFO).snapshot
    for _ in range(2):
        assert {f.key: f.outcome for f in after.findings if f.code != CODE} == {
            f.key: f.outcome for f in before.findings
        }
        after = engine.evaluate(INFO).snapshot
    assert [f.code for f in after.findings if f.code == CODE] == [CODE]
    assert (after.verdict.state, after.verdict.hard) == (State.UNKNOWN, False)
    broken.undo()
    states = [engine.evaluate(INFO).snapshot.verdict.state for _ in range(2)]
    assert states[-1] is before.verdict.state is State.OK


@pytest.mark.parametrize("name", sorted(STEPS))
def test_a_step_of_a_judgement_that_raises_costs_itself(name: str) -> None:
    """Every check judges as before, nothing gates, and it is over when the step works."""
    told_and_over(engine_module, name)


def test_lapses_that_raise_cost_themselves() -> None:
    """When a reading was had last is not known then; the readings are."""
    told_and_over(Lapses, "times")


@pytest.mark.parametrize("name", sorted(CORE - {"forget", "nothing_found"}))  # this round calls neither
def test_what_had_changed_when_a_judgement_failed_is_in_the_next(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that came, and its episode, are neither lost nor counted twice."""
    engine = engine_of(list(discover()))
    engine.evaluate(INFO)
    engine.take_event(event("nvidia.xid.79"))
    monkeypatch.setattr(module_of(name) or engine_module, name, planted)
    changes: list[Episode] = []
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            changes += engine.evaluate(INFO).changes
    monkeypatch.undo()
    done = engine.evaluate(INFO)
    opened = [entry for entry in (*changes, *done.changes) if entry.key.code == "nvidia.xid.79"]
    assert [entry.count for entry in opened] == [1]
    assert done.snapshot.verdict.state is State.FAILED


def test_a_finding_that_cannot_be_folded_costs_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """All others become episodes, the node is unknown at once, and the fault is known when it can be folded."""
    real = episodes.fold

    def fold(ledger: Ledger, findings: tuple[Finding, ...], evidence: Evidence) -> tuple[Ledger, tuple[Episode, ...]]:
        if any(finding.code == "nvidia.xid.79" for finding in findings):
            raise ZeroDivisionError("a bug")
        return real(ledger, findings, evidence)

    engine = engine_of(list(discover()))
    engine.evaluate(INFO)
    monkeypatch.setattr(engine_module, "fold", fold)
    for code in ("nvidia.xid.79", "nvidia.xid.48"):
        engine.take_event(event(code))
        snapshot = engine.evaluate(INFO).snapshot
        assert CODE in {entry.key.code for entry in snapshot.episodes}
    assert {entry.key.code for entry in snapshot.episodes} == {CODE, "nvidia.xid.48"}
    assert snapshot.verdict.state is State.FAILED
    monkeypatch.undo()
    assert "nvidia.xid.79" in {entry.key.code for entry in engine.evaluate(INFO).snapshot.episodes}
    assert CODE not in {entry.key.code for entry in engine.evaluate(INFO).snapshot.episodes}


def ends_the_process(_view: View, _policy: Any) -> Iterator[Finding]:
    """End the process, as a script may."""
    raise SystemExit(2)


def stops_its_generator(_view: View, _policy: Any) -> Iterator[Finding]:
    """Raise what ends a generator, and no Exception."""
    raise GeneratorExit


def takes_samples_away(view: View, _policy: Any) -> Iterator[Finding]:
    """Change what all checks look at."""
    cast(dict[Any, Any], view.samples).clear()
    yield from ()


def forgets_devices(view: View, _policy: Any) -> Iterator[Finding]:
    """Change what the engine remembers."""
    view.memory.seen.clear()
    yield from ()


def changes_samples(view: View, _policy: Any) -> Iterator[Finding]:
    """Put nothing in the place of a sample."""
    for key in view.samples:
        cast(dict[Any, Any], view.samples)[key] = None
    yield from ()


@pytest.mark.parametrize(
    "judge", [ends_the_process, stops_its_generator, takes_samples_away, forgets_devices, changes_samples]
)
def test_a_check_of_a_site_that_goes_beyond_its_part_costs_itself(judge: Judge) -> None:
    """It runs first, and all others judge as before."""
    bad = Check(name="a-site", summary="x", judge=judge, policy=Freshness)
    snapshot = judged([bad, *discover()])
    assert {f.key: f.outcome for f in snapshot.findings if f.check != "a-site"} == {
        f.key: f.outcome for f in judged(list(discover())).findings
    }
    assert [f.code for f in snapshot.findings if f.check == "a-site"] == [CHECK_ERROR]
    assert (snapshot.verdict.state, snapshot.verdict.hard) == (State.UNKNOWN, False)


def test_a_step_that_failed_is_told_to_the_guard() -> None:
    """The log has it once."""
    lines: list[str] = []
    engine = Engine((), node="n", clock=at, guard=Guard(lines.append))
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(engine_module, "counted", planted)
        for _ in range(3):
            engine.evaluate(INFO)
    assert ["judging: refusals failed: ZeroDivisionError" in line for line in lines] == [True]


@pytest.mark.parametrize("text", ["", ",", "x", "1,,2", "-1", "9" * 400, "\udcff"])
def test_process_ids_that_are_none_cost_themselves(text: str) -> None:
    """The list of who holds a device comes from the driver."""
    engine = engine_of(list(discover()))
    engine.take_sample(sample(gpu(), {("compute_process_ids", Part()): text}, group="slow"))
    engine.take_readers((reader("host"), reader("nvidia")))
    assert engine.evaluate(INFO).snapshot.verdict.state is not State.FAILED


@pytest.mark.parametrize(("outcome", "is_over"), [(Outcome.UNMEASURED, True), (Outcome.FAIL, False)])
def test_only_what_was_not_read_is_over_with_its_reader(outcome: Outcome, is_over: bool) -> None:
    """A hang of a driver is a fault of the node, whoever is to read it now."""
    part = Part(PartKind.DEVICE, "vendor:amd")
    finding = Finding(check="freshness", code="reader.hung", outcome=outcome, message="a call", part=part)
    episode = Episode(
        key=finding.key,
        check="freshness",
        state=EpisodeState.OPEN,
        outcome=outcome,
        finding=finding,
        opened=at(),
        last_seen=at(),
    )
    assert bool(not_configured([reader("host")], [episode])) is is_over
    assert not_configured([reader("amd")], [episode]) == ()


@pytest.mark.parametrize(("outcome", "is_over"), [(Outcome.UNMEASURED, True), (Outcome.FAIL, False)])
def test_a_device_that_is_no_longer_listed_is_no_longer_unread(outcome: Outcome, is_over: bool) -> None:
    """Its loss is told; a fault of it is not over with that, nor is what another check tells of it now."""
    unread = Finding(check="freshness", code="device.unread", outcome=outcome, message="a call", device=GPU)
    missing = Finding(check="inventory", code="device.missing", outcome=Outcome.FAIL, message="gone", device=GPU)
    episode = Episode(
        key=unread.key,
        check="freshness",
        state=EpisodeState.OPEN,
        outcome=outcome,
        finding=unread,
        opened=at(),
        last_seen=at(),
    )
    view = healthy()
    assert bool(not_listed(view, [missing], [episode])) is is_over
    assert not_listed(view, [missing, unread], [episode]) == ()
    assert not_listed(view, [unread], [episode]) == ()
    assert not_listed(view, [], [episode]) == ()
    assert not_listed(view, [msgspec.structs.replace(missing, device="another")], [episode]) == ()
    there = msgspec.structs.replace(missing, outcome=Outcome.PASS)
    assert not_listed(view, [there], [episode]) == ()


@pytest.mark.parametrize(
    ("last_round", "state", "is_over"),
    [(True, ReaderState.RUNNING, True), (False, ReaderState.STARTING, False), (False, ReaderState.ABSENT, True)],
)
def test_a_board_that_had_only_a_number_is_no_longer_unread(
    last_round: bool, state: ReaderState, is_over: bool
) -> None:
    """Its driver names it again, and no device has that number; before each collector has listed, that is not known."""
    unread = Finding(
        check="freshness", code="device.unread", outcome=Outcome.UNMEASURED, message="a call", device="nvidia-0"
    )
    episode = Episode(
        key=unread.key,
        check="freshness",
        state=EpisodeState.OPEN,
        outcome=Outcome.UNMEASURED,
        finding=unread,
        opened=at(),
        last_seen=at(),
    )
    readers = (reader("nvidia", last_round=at()), reader("amd", state, last_round=at() if last_round else None))
    view = msgspec.structs.replace(healthy(), readers=readers)
    assert bool(not_listed(view, [], [episode])) is is_over
    assert not_listed(msgspec.structs.replace(view, readers=()), [], [episode]) == ()
    of_node = msgspec.structs.replace(episode, key=msgspec.structs.replace(unread, device=NODE).key)
    assert not_listed(view, [], [of_node]) == ()


def test_a_device_that_was_unread_when_it_went_is_not_unread_for_ever() -> None:
    """The last look at it was the same as the one that opened the episode: no driver lists it since."""
    seconds = 10.0
    engine = Engine(
        [configured(entry) for entry in discover()],
        node="n",
        clock=lambda: at(seconds),
        cadences={("nvidia", "fast"): Cadence(10, 5)},
    )
    boards = (gpu(), gpu(SIBLING, "0000:2b:00.0"))
    engine.take_devices("nvidia", boards)
    engine.take_readers((reader("nvidia", last_round=at(seconds)),))
    engine.take_sample(failed(FailureKind.ERROR, boards[0], seconds=seconds))
    opened = engine.evaluate(INFO).snapshot.episodes
    assert "device.unread" in {entry.key.code for entry in opened if entry.key.device == GPU}
    seconds = 20.0
    engine.take_devices("nvidia", boards[1:])
    engine.take_readers((reader("nvidia", last_round=at(seconds)),))
    standing = {entry.key.code for entry in engine.evaluate(INFO).snapshot.episodes if entry.key.device == GPU}
    assert standing == {"device.missing"}
