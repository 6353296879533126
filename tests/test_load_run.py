"""One load on several devices: what is run, what follows a refusal, and that nothing is waited for in vain."""

from __future__ import annotations

import json
import random
import selectors
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from fakes.late_clock import LateClock

from nodevet.agent.load.child import LoadChild
from nodevet.agent.load.run import LoadRun
from nodevet.agent.load.wrong import UntoldWrong, carried_on
from nodevet.checks.burnin.launch import Launch
from nodevet.checks.burnin.plan import GemmRequest
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.model import Clearing, Device, DeviceKind, Metric, Result, ResultState, State
from nodevet.checks.core.wire import ProgressMessage
from nodevet.checks.engine.completeness import account
from nodevet.checks.engine.retest import clearing_table, demand_words, shown_by

PROGRAM = Path(__file__).with_name("fakes") / "scripted_load.py"
DEVICES = tuple(
    Device(id=f"GPU-{slot}", kind=DeviceKind.ACCELERATOR, vendor="nvidia", model="any", backend="nvidia")
    for slot in range(2)
)
PATIENCE_SECONDS = 20.0


def run(
    script: Mapping[str, str],
    *,
    stop_after: int | None = None,
    devices: Sequence[Device] = DEVICES,
    among: Sequence[Device] = (),
    duration_seconds: float = 0.0,
) -> LoadRun:
    """Run every format of *script* on two devices to the end; stop it after so many results where asked to."""

    def spawn(_device: Device, environment: Mapping[str, str]) -> Launch:
        return Launch((sys.executable, "-I", str(PROGRAM), json.dumps(script)), dict(environment))

    requests = {
        device.id: tuple(
            GemmRequest(device=device.id, dtype=dtype, seconds=0.1, duration_seconds=duration_seconds)
            for dtype in script
        )
        for device in devices
    }
    with selectors.DefaultSelector() as selector:
        until = time.monotonic() + duration_seconds * len(script) if duration_seconds else None
        load = LoadRun(devices, requests, SystemClock(), selector, among=among, spawn=spawn, until=until)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not load.done and time.monotonic() < deadline:
            for key, mask in selector.select(0.05):
                key.data(mask)
            if stop_after is not None and len(load.results) >= stop_after:
                load.stop("enough")
            load.tick()
        load.tick()
    assert load.done
    return load


def partition(slot: int, uuid: str, parent: str | None) -> Device:
    """Return a device of this *uuid*, as a part of the board *parent*; None where it is the board."""
    kind = DeviceKind.ACCELERATOR
    return Device(id=f"{uuid}/{slot}", uuid=uuid, parent=parent, kind=kind, vendor="amd", model="any", backend="amd")


def run_with_one_uuid(*uuids: str, named: slice = slice(None), are_boards: bool = False) -> LoadRun:
    """Run one format on those that are *named* of devices of these *uuids*, the later ones of one being parts of it."""
    first = {uuid: f"{uuid}/{uuids.index(uuid)}" for uuid in uuids}
    devices = tuple(
        partition(slot, uuid, None if are_boards or first[uuid] == f"{uuid}/{slot}" else first[uuid])
        for slot, uuid in enumerate(uuids)
    )
    return run({"fp32": "finish"}, devices=devices[named], among=devices)


def states(load: LoadRun, device: str = "GPU-0") -> list[tuple[str | None, ResultState]]:
    """Return format and state of each result of *device*, in order."""
    return [(result.dtype, result.state) for result in load.results if result.devices == (device,)]


def test_every_device_runs_every_format_in_order() -> None:
    """Both devices finish both requests, and the run is complete."""
    load = run({"fp32": "finish", "bf16": "finish"})

    for device in ("GPU-0", "GPU-1"):
        assert states(load, device) == [("fp32", ResultState.FINISHED), ("bf16", ResultState.FINISHED)]
    assert load.ratio == 1.0
    assert load.phase == "done"


def test_a_format_that_a_device_lacks_does_not_end_the_others() -> None:
    """A refusal for its format is told, and what follows is run."""
    load = run({"fp8_e4m3": "no_format", "bf16": "finish"})

    assert states(load) == [("fp8_e4m3", ResultState.REFUSED), ("bf16", ResultState.FINISHED)]


def test_what_ends_early_leaves_its_time_to_what_follows() -> None:
    """A format that the device lacks is refused at once: those behind it share its time, and none takes more."""
    load = run({"fp8_e4m3": "no_format", "bf16": "share", "int8": "share"}, duration_seconds=1000.0)

    own = (result.conditions for result in load.results if result.devices == ("GPU-0",))
    first, second = (conditions["share"] for conditions in own if "share" in conditions)
    assert 1400 < first <= 1500
    assert 2900 < second <= 3000


def test_a_refusal_that_holds_for_all_is_told_of_each_format() -> None:
    """Without torch nothing that follows could run either, and each planned format says so."""
    load = run({"fp32": "no_torch", "bf16": "finish", "int8": "finish"})

    assert states(load) == [(dtype, ResultState.REFUSED) for dtype in ("fp32", "bf16", "int8")]
    assert [result.detail for result in load.results[1:3]] == ["not run: device", "not run: device"]


@pytest.mark.parametrize("how", ["die", "exit", "no_torch", "no_format", "finish", "wrong:kill", "wrong:disk"])
def test_every_planned_format_has_its_row(how: str) -> None:
    """However the first one ends, each format of each device leaves one result, with its format and its load."""
    load = run({"fp32": how, "bf16": "finish", "int8": "finish"})

    assert load.done
    for device in ("GPU-0", "GPU-1"):
        assert [dtype for dtype, _ in states(load, device)] == ["fp32", "bf16", "int8"]
    assert len({result.conditions["load"] for result in load.results}) == 1


def test_formats_after_a_stop_are_told_of_as_not_run() -> None:
    """Ctrl-C after one of three formats leaves three rows, two of which proved nothing."""
    load = run({"fp32": "finish", "bf16": "hang", "int8": "finish"}, stop_after=2)

    for device in ("GPU-0", "GPU-1"):
        assert states(load, device) == [
            ("fp32", ResultState.FINISHED), ("bf16", ResultState.INTERRUPTED), ("int8", ResultState.INTERRUPTED),
        ]  # fmt: skip
    assert account((), load.results).state is State.UNKNOWN


def test_a_device_that_is_not_loaded_says_of_each_format_why() -> None:
    """Seven of eight devices that are busy are seven devices without a verified result."""
    requests = {
        device.id: tuple(GemmRequest(device=device.id, dtype=dtype, seconds=0.1) for dtype in ("fp32", "bf16"))
        for device in DEVICES
    }
    with selectors.DefaultSelector() as selector:
        refused = {device.id: "in use by process 7" for device in DEVICES}
        load = LoadRun(DEVICES, requests, SystemClock(), selector, among=(), refused=refused)
    assert load.done
    assert [(result.dtype, result.detail) for result in load.results] == [
        ("fp32", "in use by process 7"), ("bf16", "in use by process 7"),
    ] * 2  # fmt: skip


ENDINGS = {
    **dict.fromkeys(("abort", "segv", "kill", "exit", "disk", "garbage", "hang"), ResultState.DIED),
    **dict.fromkeys(("stop", "forget"), ResultState.INTERRUPTED),
    "finish": ResultState.FINISHED,
    "no_format": ResultState.REFUSED,
}
"""Ways in which a load ends that knew of a wrong result, and the state that it is told to be in."""


@pytest.mark.soak
def test_what_a_child_knew_before_its_end_is_never_lost(campaign: Callable[[int], int]) -> None:
    """Deaths, hangs, stops and full disks after a wrong result was known: each is failed, with format and counts."""
    rounds = campaign(200)
    ends = [tuple(ENDINGS)[number % len(ENDINGS)] for number in range(rounds)]
    random.Random(28).shuffle(ends)  # noqa: S311 (the order of a campaign)
    for start in range(0, rounds, 10):
        for end, result in zip(ends[start : start + 10], ended_with_wrong(ends[start : start + 10]), strict=True):
            assert result.state is ENDINGS[end], (end, result)
            assert (result.metric("mismatches"), result.metric("gemms_checked"), result.dtype) == (3, 120, "bf16"), end
            assert account((), (result,)).state is State.FAILED


def fall_silent(child: LoadChild, clock: LateClock) -> None:
    """Let the time go by in which *child* must speak, and assert that it is given up for that."""
    for _ in range(70):
        clock.ahead += 1.0 if child.alive else 0.0
        child.tick()
    assert not child.alive
    assert "no message for" in child.detail


def put_to_rest(child: LoadChild, selector: selectors.BaseSelector) -> None:
    """Stop *child* and wait until it is gone."""
    child.stop()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not child.at_rest and time.monotonic() < deadline:
        for key, mask in selector.select(0.02):
            key.data(mask)
        child.tick()


def test_a_load_that_was_suspended_with_its_parent_is_not_silent() -> None:
    """SLURM suspends all processes of a job: nobody spoke, and nobody could hear. Then silence counts again."""
    clock, argv = LateClock(), (sys.executable, "-I", str(PROGRAM), json.dumps({"bf16": "hang"}))
    with selectors.DefaultSelector() as selector:
        child = LoadChild("load", argv, ("GPU-0",), clock, selector)
        try:
            clock.ahead += 3600.0
            child.burn("gemm", {"device": "GPU-0", "dtype": "bf16"}, 5 * PATIENCE_SECONDS)
            for _ in range(3):
                clock.ahead += 3600.0
                child.tick()
                assert child.busy
                assert child.alive
            fall_silent(child, clock)
        finally:
            put_to_rest(child, selector)


def test_a_load_that_spoke_as_its_suspension_ended_may_hang_no_longer() -> None:
    """Its last words lay in the pipe: they are read first, and the time of the suspension is no time to come."""
    clock, argv = LateClock(), (sys.executable, "-I", str(PROGRAM), json.dumps({"bf16": "hang"}))
    with selectors.DefaultSelector() as selector:
        child = LoadChild("load", argv, ("GPU-0",), clock, selector)
        try:
            child.burn("gemm", {"device": "GPU-0", "dtype": "bf16"}, 5 * PATIENCE_SECONDS)
            clock.ahead += 3600.0
            child.on_message(ProgressMessage(0.5))
            child.tick()
            assert child.alive
            fall_silent(child, clock)
        finally:
            put_to_rest(child, selector)


def test_a_wrong_result_outlives_its_child() -> None:
    """One of the campaign, by name."""
    (result,) = ended_with_wrong(["kill"])
    assert (result.metric("mismatches"), result.dtype) == (3, "bf16")


@pytest.mark.parametrize("end", ["kill", "hang", "stop", "exit"])
def test_what_was_right_behind_a_wrong_result_counts_when_its_load_dies(end: str) -> None:
    """3 of 120 GEMMs are wrong when it was told, 3 of 5000 when it died: a re-test is asked for by the latter."""
    (result,) = ended_with_wrong([end], before="warm:wrong:on")
    shown = shown_by(result)
    assert (shown.wrong, shown.of, shown.seconds) == (3, 5000, 700.0)
    words = demand_words(shown, clearing_table()[Clearing.WRONG_RESULT])
    assert words.startswith("a re-test clears it: one burn-in of at least 10 min with 5000 bf16 GEMMs")


def test_no_figure_of_a_load_that_goes_on_makes_less_of_its_wrong_result() -> None:
    """One that is smaller, no number, or another one than those that grow."""
    metrics = (Metric("gemms_checked", 120, "count"), Metric("mismatches", 3, "count"))
    known = wrong_result(metrics)
    for figures in (
        {},
        {"gemms_checked": 7},
        {"gemms_checked": float("nan")},
        {"gemms_checked": "9"},
        {"mismatches": 9},
    ):
        assert carried_on(known, figures) == known
    assert carried_on(known, {"gemms_checked": 121}).metric("gemms_checked") == 121


def test_a_wrong_result_is_told_again_when_it_is_rarer() -> None:
    """The agent outlives a load that is killed with its command: it must not know the first minute alone."""
    untold, told = UntoldWrong(), []
    for checked in range(100, 10_000, 10):
        counts = (Metric("gemms_checked", checked, "count"), Metric("mismatches", 1, "count"))
        fresh = untold.of((wrong_result(counts),))
        untold.told(fresh)
        told += [checked for _ in fresh]
    assert (told[:2], len(told)) == ([100, 130], 20)
    assert all(later <= 1.25 * earlier + 10 for earlier, later in pairwise((*told, 10_000)))
    uncounted = wrong_result((Metric("mismatches", 1, "count"),), dtype="int8")
    assert untold.of((uncounted,))
    untold.told((uncounted,))
    assert not untold.of((uncounted,))


def wrong_result(metrics: tuple[Metric, ...], dtype: str = "fp32") -> Result:
    """Return a result of a load that goes on."""
    now = SystemClock().instant()
    return Result(
        workload="gemm",
        devices=("GPU-0",),
        dtype=dtype,
        state=ResultState.DIED,
        started=now,
        ended=now,
        metrics=metrics,
    )


def ended_with_wrong(ends: Sequence[str], before: str = "wrong") -> list[Result]:
    """Run a child per entry of *ends*, at once, that finds a wrong result and then ends so; return their results."""
    with selectors.DefaultSelector() as selector:
        children: list[LoadChild] = []
        clocks: list[LateClock] = []
        for end in ends:
            script = {"bf16": f"{before}:{'hang' if end == 'stop' else end}"}
            argv = (sys.executable, "-I", str(PROGRAM), json.dumps(script))
            clocks.append(LateClock())
            children.append(LoadChild("load", argv, ("GPU-0",), clocks[-1], selector))
            children[-1].burn("gemm", {"device": "GPU-0", "dtype": "bf16"}, PATIENCE_SECONDS)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not all(child.results for child in children) and time.monotonic() < deadline:
            for key, mask in selector.select(0.02):
                key.data(mask)
            for child, clock, end in zip(children, clocks, ends, strict=True):
                if end == "stop" and child.known is not None:
                    child.stop("a job came")
                if end == "hang" and child.known is not None:
                    clock.ahead += 1.0  # all at once the loop itself would have stood still
                child.tick()
        for child in children:
            child.stop()
        while not all(child.at_rest for child in children) and time.monotonic() < deadline:
            for key, mask in selector.select(0.02):
                key.data(mask)
            for child in children:
                child.tick()
    return [child.results[0] for child in children]


def test_a_load_that_dies_has_a_result_that_says_so() -> None:
    """The signal is named, and the rest is not silently passed over as done."""
    load = run({"fp32": "die", "bf16": "finish"})

    (first, *_) = [result for result in load.results if result.devices == ("GPU-0",)]
    assert first.state is ResultState.DIED
    assert "SIGABRT" in first.detail
    assert ResultState.FINISHED not in {result.state for result in load.results}


@pytest.mark.parametrize("second", ["hang", "finish"])
def test_a_stopped_load_is_interrupted_within_two_seconds(second: str) -> None:
    """What ran until then is kept."""
    began = time.monotonic()
    load = run({"fp32": "finish", "bf16": second}, stop_after=2)

    assert time.monotonic() - began < PATIENCE_SECONDS / 2
    assert ("fp32", ResultState.FINISHED) in states(load) + states(load, "GPU-1")
    if second == "hang":
        assert states(load)[-1][1] is ResultState.INTERRUPTED


def test_a_load_that_cannot_be_started_is_refused_and_the_others_run() -> None:
    """No memory for a process, or an interpreter that is being replaced, does not end who asked for the load."""

    def spawn(device: Device, environment: Mapping[str, str]) -> Launch:
        program = sys.executable if device is DEVICES[1] else "/nonexistent/python"
        return Launch((program, "-I", str(PROGRAM), json.dumps({"fp32": "finish"})), dict(environment))

    requests = {device.id: (GemmRequest(device=device.id, dtype="fp32", seconds=0.1),) for device in DEVICES}
    with selectors.DefaultSelector() as selector:
        load = LoadRun(DEVICES, requests, SystemClock(), selector, among=(), spawn=spawn)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not load.done and time.monotonic() < deadline:
            for key, mask in selector.select(0.05):
                key.data(mask)
            load.tick()
    assert load.done
    assert [result.state for result in load.results if result.devices == ("GPU-0",)] == [ResultState.REFUSED]
    assert "cannot be started: No such file" in load.results[0].detail
    assert [result.state for result in load.results if result.devices == ("GPU-1",)] == [ResultState.FINISHED]


def test_partitions_that_share_a_uuid_are_not_proved() -> None:
    """A load is given its device by UUID: some of them, or all, run on the same partition, and the rest is at rest."""
    load = run_with_one_uuid("GPU-1", "GPU-1", "GPU-2")
    proved = account((), load.results)
    assert proved.state is State.UNKNOWN
    assert {entry.device for entry in proved.unproven} == {"GPU-1/0", "GPU-1/1"}
    assert "its UUID is also that of another partition" in proved.reason()


@pytest.mark.parametrize("slot", range(3))
def test_a_partition_that_is_named_alone_is_not_proved_by_another(slot: int) -> None:
    """Its siblings are not of the run, and have its UUID all the same: the load may have run on one of them."""
    proved = account((), run_with_one_uuid("GPU-1", "GPU-1", "GPU-1", "GPU-2", named=slice(slot, slot + 1)).results)
    assert (proved.state, len(proved.unproven)) == (State.UNKNOWN, 1)
    assert "its UUID is also that of another partition" in proved.reason()


@pytest.mark.parametrize("slot", range(2))
def test_boards_of_one_uuid_are_both_refused(slot: int) -> None:
    """Nobody knows on which of them the load of either would run: the good one would clear the other."""
    load = run_with_one_uuid("GPU-1", "GPU-1", "GPU-2", named=slice(slot, None), are_boards=True)
    proved = account((), load.results)
    assert {entry.device for entry in proved.unproven} == {f"GPU-1/{number}" for number in range(slot, 2)}
    assert {result.state for result in load.results if result.devices != ("GPU-2/2",)} == {ResultState.REFUSED}
    assert "its UUID is also that of another board" in proved.reason()
    assert "partition" not in str(load.results)


def test_a_board_whose_uuid_its_driver_gave_twice_is_refused() -> None:
    """Where one of them goes by its address, nothing else tells that the name of the other is not its own."""
    shares = msgspec.structs.replace(DEVICES[1], shares_uuid=True)
    proved = account((), run({"fp32": "finish"}, devices=(DEVICES[0], shares)).results)
    assert [entry.device for entry in proved.unproven] == ["GPU-1"]
    assert "its UUID is also that of another board" in proved.reason()


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
@pytest.mark.parametrize("name", ["0000:3b:00.0", "nvidia-3", "3"])
def test_a_board_without_a_uuid_is_not_loaded(name: str, vendor: str) -> None:
    """CUDA takes an address for the index 0: the first board would be loaded, and would clear this one."""
    kind = DeviceKind.ACCELERATOR
    board = Device(id=name, kind=kind, vendor=vendor, model="any", backend=vendor)
    load = run({"fp32": "finish", "bf16": "finish"}, devices=(board, DEVICES[0]))
    assert {result.state for result in load.results if result.devices == (name,)} == {ResultState.REFUSED}
    proved = account((), load.results)
    assert {entry.device for entry in proved.unproven} == {name}
    assert "it tells no UUID of its own" in proved.reason()
