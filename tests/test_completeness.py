"""A load is complete when every planned format of every planned device was verified, and in no other case."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from fakes.views import at
from hypothesis import given
from hypothesis import strategies as st

from nodevet.checks.core.model import Action, Metric, Result, ResultState, State, Verdict
from nodevet.checks.engine.completeness import Planned, Standing, account, judged, planned_in

FIGURES = {"gemms_verified": 10, "mismatches": 0, "self_test_planted": 3, "self_test_found": 3}
DEVICES, FORMATS = ("GPU-a", "GPU-b"), ("bf16", "int8", "fp8_e4m3")

STORIES = (
    "verified", "none", "no result", "lacking", "refused", "interrupted", "died", "nothing verified", "self-test",
    "wrong", "wrong and died", "wrong and interrupted", "wrong before", "verified before",
)  # fmt: skip
"""What may become of one planned format."""

WRONG = {"wrong", "wrong and died", "wrong and interrupted", "wrong before"}


def result(device: str, dtype: str, state: ResultState = ResultState.FINISHED, **figures: int | None) -> Result:
    """Return a result of *dtype* on *device*, verified but for *figures*."""
    known = {**FIGURES, **figures} if figures or state is ResultState.FINISHED else {}
    return Result(
        workload="gemm",
        devices=(device,),
        dtype=dtype,
        state=state,
        started=at(0),
        ended=at(1),
        metrics=tuple(Metric(name, value, "count") for name, value in known.items()),
    )


def story(name: str, device: str, dtype: str) -> tuple[Result, ...]:
    """Return the results of one planned format of which *name* is told."""
    good = result(device, dtype)
    refused = result(device, dtype, ResultState.REFUSED)
    bad = result(device, dtype, mismatches=2)
    stories: dict[str, tuple[Result, ...]] = {
        "verified": (good,),
        "none": (),
        "no result": (),
        "lacking": (msgspec.structs.replace(refused, conditions={"refusal": "format"}),),
        "refused": (msgspec.structs.replace(refused, conditions={"refusal": "device"}),),
        "interrupted": (result(device, dtype, ResultState.INTERRUPTED, gemms_verified=4),),
        "died": (result(device, dtype, ResultState.DIED),),
        "nothing verified": (result(device, dtype, gemms_verified=0),),
        "self-test": (result(device, dtype, self_test_found=2),),
        "wrong": (bad,),
        "wrong and died": (result(device, dtype, ResultState.DIED, mismatches=1),),
        "wrong and interrupted": (result(device, dtype, ResultState.INTERRUPTED, mismatches=1),),
        "wrong before": (bad, good),
        "verified before": (good, result(device, dtype, ResultState.INTERRUPTED)),
    }
    return stories[name]


MIXES = st.fixed_dictionaries(
    {pair: st.tuples(st.sampled_from(STORIES), st.booleans()) for pair in itertools.product(DEVICES, FORMATS)}
)


@given(MIXES, st.randoms())
def test_a_load_is_ok_exactly_where_everything_planned_is_verified(
    mix: dict[tuple[str, str], tuple[str, bool]], random: object
) -> None:
    """For every mix of device, format and end: ok needs each of them verified, and one wrong result is failed."""
    plan = [Planned(device, dtype, asked) for (device, dtype), (_, asked) in mix.items()]
    results = [each for (device, dtype), (name, _) in mix.items() for each in story(name, device, dtype)]
    if not any("before" in name for name, _ in mix.values()):
        random.shuffle(results)  # type: ignore[attr-defined]

    load = account(plan, results)

    excused = {pair for pair, (name, asked) in mix.items() if name == "lacking" and not asked}
    proved = {device for (device, _), (name, _) in mix.items() if name == "verified"} == set(DEVICES)
    all_verified = all(name == "verified" for pair, (name, _) in mix.items() if pair not in excused)
    wrong = any(name in WRONG for name, _ in mix.values())
    expected = State.FAILED if wrong else State.OK if proved and all_verified else State.UNKNOWN
    assert load.state is expected
    assert [(entry.device, entry.dtype) for entry in load.accounts] == list(mix)
    assert bool(load.reason()) is (expected is not State.OK)
    assert load.verified == sum(name == "verified" for name, _ in mix.values())


def test_nothing_planned_and_nothing_run_is_not_ok() -> None:
    """A load of nothing proves nothing."""
    load = account((), ())
    assert (load.state, load.reason()) == (State.UNKNOWN, "incomplete: no workload has run")


def test_a_device_that_lacks_all_that_was_planned_is_not_proved() -> None:
    """Its sibling's verified format says nothing of it."""
    plan = (Planned("GPU-a", "bf16"), Planned("GPU-b", "bf16"))
    load = account(plan, (*story("verified", "GPU-a", "bf16"), *story("lacking", "GPU-b", "bf16")))
    assert load.state is State.UNKNOWN
    assert [entry.device for entry in load.unproven] == ["GPU-b"]


def test_a_result_beside_the_plan_counts() -> None:
    """What nobody planned may still be wrong, or unproven."""
    assert account((), story("wrong", "GPU-a", "bf16")).state is State.FAILED
    assert account((), story("died", "GPU-a", "bf16")).state is State.UNKNOWN
    assert account((), story("verified", "GPU-a", "bf16")).state is State.OK


def test_what_is_not_proved_is_named_with_its_reason() -> None:
    """One line says which formats, on which devices, and why; a long list is cut and counted."""
    plan = [Planned("GPU-a", f"f{number}") for number in range(6)]
    stopped = msgspec.structs.replace(result("GPU-a", "f0", ResultState.INTERRUPTED), detail="a job came")
    load = account(plan, (stopped,))
    said = load.reason({"GPU-a": "GPU 3"})
    assert said == (
        "incomplete: 6 of 6 planned formats are not verified: GPU 3 f0 (interrupted: a job came), "
        "GPU 3 f1 (no result), GPU 3 f2 (no result), GPU 3 f3 (no result), and 2 more"
    )


def test_the_formats_of_several_devices_are_counted_on_each() -> None:
    """Eight devices with one format are eight planned formats; on one device nothing needs to be said."""
    loads = {count: account([Planned(name, "bf16") for name in DEVICES[:count]], ()).counted for count in (1, 2)}
    assert loads == {1: "planned formats", 2: "planned formats (counted on each device)"}


def test_whoever_asked_by_name_is_told_that_the_device_lacks_it() -> None:
    """The condition of the result is enough for a surface that does not know the plan."""
    (lacking,) = story("lacking", "GPU-a", "bf16")
    asked = msgspec.structs.replace(lacking, conditions={"refusal": "format", "asked": True})
    verified = story("verified", "GPU-a", "int8")
    assert account(planned_in((lacking, *verified)), (lacking, *verified)).state is State.OK
    assert account(planned_in((asked, *verified)), (asked, *verified)).state is State.UNKNOWN
    assert account((), (lacking, *verified)).accounts[0].standing is Standing.LACKING


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize(
    ("name", "of_load"), [("verified", State.OK), ("interrupted", State.UNKNOWN), ("wrong and died", State.FAILED)]
)
def test_the_verdict_of_a_load_is_never_better_than_its_node_or_its_proof(
    state: State, name: str, of_load: State
) -> None:
    """The worse of both counts; what the node asks for is kept."""
    node = Verdict(state=state, reason="as it is", action=Action.WATCH)
    both = judged(node, account((), story(name, "GPU-a", "bf16")))
    assert both.state is max(state, of_load, key=lambda each: each.rank)
    assert both.action is Action.WATCH
