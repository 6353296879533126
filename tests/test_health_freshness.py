"""Freshness: what could not be seen is told once, with its reason, and never as health."""

from __future__ import annotations

import msgspec
import pytest
from fakes.views import (
    BAD,
    COMPUTE,
    CORE,
    DRAM,
    GPU,
    GPU_READINGS,
    SCOPE,
    Quantity,
    at,
    bad,
    bare_board,
    failed,
    gpu,
    healthy,
    judge,
    link,
    of,
    reader,
    sample,
    with_samples,
)

from nodevet.checks.core.model import (
    NODE,
    WHOLE,
    Action,
    Clearing,
    Failure,
    FailureKind,
    Outcome,
    Part,
    PartKind,
    ReaderState,
    ReaderStatus,
    Reading,
    ReadingStatus,
    Scalar,
)
from nodevet.checks.engine.baseline import requirements
from nodevet.checks.engine.view import View

PASS, FAIL, UNMEASURED, SKIPPED = Outcome.PASS, Outcome.FAIL, Outcome.UNMEASURED, Outcome.SKIPPED
HANG, CRASH = (
    Failure(FailureKind.HUNG, "a call", of_driver=True),
    Failure(FailureKind.CRASHED, "a call", of_driver=True),
)
BROKEN = [
    (FailureKind.HUNG, ReaderState.HUNG, "reader.hung"),
    (FailureKind.STUCK, ReaderState.STUCK, "reader.stuck"),
    (FailureKind.CRASHED, ReaderState.CRASHED, "reader.crashed"),
]


def seconds_later(seconds: float) -> View:
    """Return the healthy view, looked at so much later without another sample."""
    return healthy(now=at(seconds))


@pytest.mark.parametrize(("seconds", "outcome"), [(1, PASS), (35, PASS), (36, UNMEASURED), (10**6, UNMEASURED)])
def test_sample_is_fresh_for_three_rounds_and_a_deadline(seconds: float, outcome: Outcome) -> None:
    """Rounds of 10 s with a deadline of 5 s: after 35 s the device is unread, with age and limit in the message."""
    finding = of(judge("freshness", seconds_later(seconds)), "device.unread")
    assert finding.outcome is outcome
    assert finding.required is (outcome is UNMEASURED)
    if outcome is UNMEASURED:
        assert f"{seconds} s ago, limit 35 s" in finding.message


def test_sample_of_another_boot_is_not_fresh() -> None:
    """Time since another boot cannot be told, so it is no evidence."""
    view = msgspec.structs.replace(healthy(), now=at(1, boot="another boot"))
    assert of(judge("freshness", view), "device.unread").outcome is UNMEASURED


@pytest.mark.parametrize("kind", list(FailureKind))
def test_failed_sample_leaves_the_device_unread(kind: FailureKind) -> None:
    """Whatever the failure, its words are told."""
    finding = of(judge("freshness", with_samples(healthy(), failed(kind, detail="the call"))), "device.unread")
    assert (finding.outcome, finding.required) == (UNMEASURED, True)
    assert "the call" in finding.message


def test_a_device_without_permission_is_told_with_the_permissions_to_check() -> None:
    """The kernel log says nothing about a permission."""
    denied, lost = (
        of(judge("freshness", with_samples(healthy(), failed(kind))), "device.unread").message
        for kind in (FailureKind.DENIED, FailureKind.ERROR)
    )
    assert "permissions of the device node" in denied and "kernel log" not in denied
    assert "permissions" not in lost and "read the kernel log" in lost


@pytest.mark.parametrize("status", BAD)
def test_required_reading_must_be_there(status: ReadingStatus) -> None:
    """A board of this model measures its power: if it cannot be read, the node is unknown."""
    for value in (bad("power_watts", SCOPE, status), None):
        finding = of(judge("freshness", healthy({("power_watts", SCOPE): value})), "reading.power_watts")
        assert (finding.outcome, finding.required) == (UNMEASURED, True)
    assert of(judge("freshness", healthy()), "reading.power_watts").outcome is PASS


def test_reading_that_only_one_sensor_lacks_is_there() -> None:
    """A second sensor that the board does not have, or that tells nonsense, costs itself alone."""
    memory = next(part for quantity, part in GPU_READINGS if quantity == "temperature_celsius" and part != CORE)
    for status in (ReadingStatus.UNSUPPORTED, ReadingStatus.ERROR):
        view = healthy({("temperature_celsius", memory): bad("temperature_celsius", memory, status)})
        assert of(judge("freshness", view), "reading.temperature_celsius").outcome is PASS
        assert of(judge("thermal", view), "temperature.slowdown", part=memory).outcome in (SKIPPED, UNMEASURED)


def test_reading_that_fewer_parts_give_than_fail_to_is_missing() -> None:
    """One link of eighteen that answers is no view of the links."""
    few = {("link_active", link(port)): bad("link_active", link(port), ReadingStatus.ERROR) for port in range(17)}
    finding = of(judge("freshness", healthy(few)), "reading.link_active")
    assert (finding.outcome, finding.required) == (UNMEASURED, True)


def test_core_sensor_must_be_supported() -> None:
    """That the memory tells its temperature does not excuse the core."""
    view = healthy({("temperature_celsius", CORE): bad("temperature_celsius", CORE, ReadingStatus.UNSUPPORTED)})
    finding = of(judge("freshness", view), "reading.temperature_celsius")
    assert (finding.outcome, finding.required) == (UNMEASURED, True)


@pytest.mark.parametrize(
    ("enabled", "status", "outcome"),
    [
        (False, ReadingStatus.UNSUPPORTED, SKIPPED),
        (False, ReadingStatus.DENIED, UNMEASURED),
        (True, ReadingStatus.UNSUPPORTED, UNMEASURED),
        (bad("ecc_enabled"), ReadingStatus.UNSUPPORTED, UNMEASURED),
        (None, ReadingStatus.UNSUPPORTED, UNMEASURED),
    ],
)
def test_counter_that_a_setting_turned_off_is_told_by_the_setting_alone(
    enabled: bool | Reading | None, status: ReadingStatus, outcome: Outcome
) -> None:
    """Without error correction nothing is counted: that it is off has a code of its own, which names the command."""
    counter = bad("ecc_uncorrected_errors", DRAM, status)
    view = healthy({("ecc_enabled", WHOLE): enabled, ("ecc_uncorrected_errors", DRAM): counter})
    finding = of(judge("freshness", view), "reading.ecc_uncorrected_errors")
    assert (finding.outcome, finding.required) == (outcome, outcome is UNMEASURED)


def test_newest_failure_is_why_a_device_could_not_be_read() -> None:
    """An old group's failure does not hide what happened since."""
    old = failed(FailureKind.HUNG, detail="old", seconds=-20)
    new = msgspec.structs.replace(failed(FailureKind.ERROR, detail="new"), group="slow")
    for samples in ((old, new), (new, old)):
        failure = with_samples(healthy(samples={}), *samples).failure(GPU)
        assert failure is not None
        assert failure.detail == "new"


def test_unread_device_is_told_once() -> None:
    """Its required readings are unmeasured too, but only one finding counts."""
    findings = judge("freshness", with_samples(healthy(), failed(FailureKind.ERROR)))
    assert [f.code for f in findings if f.device == GPU and f.required] == ["device.unread"]


@pytest.mark.parametrize(("kind", "state", "code"), BROKEN)
def test_reader_that_hangs_is_unknown_first_and_failed_the_second_time(
    kind: FailureKind, state: ReaderState, code: str
) -> None:
    """One hang is measured inability, a second one a failure that only evidence ends; one in state D is final."""
    for hangs, final in ((1, kind is FailureKind.STUCK), (2, True)):
        detail = "nvmlDeviceGetTemperature of GPU 3 for 5.0 s"
        failure = Failure(kind, detail, of_driver=True)
        status = reader("nvidia", state, witnessed=hangs, detail=detail, failure=failure, looked=at(-60.0))
        finding = of(judge("freshness", healthy(readers=(status,))), code, NODE)
        assert finding.outcome is (FAIL if final else UNMEASURED)
        assert finding.required is not final
        assert "nvmlDeviceGetTemperature of GPU 3 for 5.0 s" in finding.message
        assert (finding.clearing is Clearing.HARDWARE_EVENT) is final
        # What each round tells again is as old as the fall; a process that cannot be killed is seen all along.
        assert finding.as_of == (None if state is ReaderState.STUCK else at(-60.0))
    twin = [f for f in judge("freshness", healthy()) if f.code == code and f.key == finding.key]
    assert [f.outcome for f in twin] == [PASS]


def test_reader_that_a_quarantined_device_brought_down_is_not_broken_itself() -> None:
    """The device fails; the reader is unknown until it answers again, and leaves nothing to be acknowledged."""
    status = reader("nvidia", ReaderState.HUNG, witnessed=2, quarantined=(GPU,), failure=HANG)
    finding = of(judge("freshness", healthy(readers=(status,))), "reader.hung", NODE)
    assert (finding.outcome, finding.clearing) == (UNMEASURED, Clearing.UNMEASURED)


def test_reader_that_crashes_again_and_again_fails() -> None:
    """A library that aborts before any device is reached has no device to blame."""
    crashed = [reader("nvidia", ReaderState.CRASHED, witnessed=falls, failure=CRASH) for falls in (1, 2)]
    findings = [of(judge("freshness", healthy(readers=(status,))), "reader.crashed", NODE) for status in crashed]
    assert [finding.outcome for finding in findings] == [UNMEASURED, FAIL]


def test_reader_of_one_backend_does_not_clear_that_of_another() -> None:
    """Each backend has its own key."""
    status = reader("nvidia", ReaderState.HUNG, witnessed=2, failure=HANG)
    findings = judge("freshness", healthy(readers=(reader("host"), status)))
    keys = {f.key: f.outcome for f in findings if f.code == "reader.hung" and f.device == NODE}
    assert sorted(keys.values()) == [FAIL, PASS]


@pytest.mark.parametrize(
    "failure", [None, *(Failure(kind, "for a test", of_driver=True) for kind in FailureKind)], ids=str
)
@pytest.mark.parametrize("state", [ReaderState.HUNG, ReaderState.STUCK, ReaderState.CRASHED])
def test_reader_that_is_down_is_blamed_on_its_driver_by_a_witness_alone(
    state: ReaderState, failure: Failure | None
) -> None:
    """However often it went down: without a fault of the driver that is named it is unknown, soft, and told."""
    status = reader("nvidia", state, hangs=50, crashes=50, witnessed=0, failure=failure)
    findings = [f for f in judge("freshness", healthy(readers=(status,))) if f.device == NODE]
    assert [f for f in findings if f.required or f.outcome is FAIL]
    assert [f.code for f in findings if f.outcome is FAIL] == (
        ["reader.stuck"] if failure is not None and failure.kind is FailureKind.STUCK else []
    )
    again = [f for f in judge("freshness", healthy()) if f.code == "reader.down"]
    assert [f.outcome for f in again] == [PASS, PASS]


@pytest.mark.parametrize(("kind", "_state", "code"), BROKEN)
def test_device_that_hung_its_reader_twice_fails_alone(kind: FailureKind, _state: ReaderState, code: str) -> None:
    """Once its calls did so twice it has failed, its siblings go on."""
    for blamed in (False, True):
        status = reader("nvidia", quarantined=(GPU,), blamed={GPU: 2 if blamed else 1})
        view = with_samples(healthy(readers=(reader("host"), status)), failed(kind))
        findings = judge("freshness", view)
        final = blamed or kind is FailureKind.STUCK
        finding = of(findings, code, GPU)
        assert (finding.outcome, finding.action) == ((FAIL, Action.REBOOT) if final else (UNMEASURED, Action.WATCH))
        assert of(findings, code, "GPU-bbbb").outcome is PASS


def test_reader_that_failed_is_unmeasured() -> None:
    """A library that refuses leaves the node unknown, with its words."""
    view = healthy(readers=(reader("host"), reader("nvidia", ReaderState.FAILED, detail="no permission")))
    finding = of([f for f in judge("freshness", view) if f.required], "reader.failed", NODE)
    assert "no permission" in finding.message


def test_collector_whose_library_refuses_is_not_down() -> None:
    """It was killed before: that is over once another process asked the library, whose answer is the cause now."""
    refuses = Failure(FailureKind.NO_DRIVER, "open: 999", of_driver=True)
    for failure, outcome in ((refuses, PASS), (Failure(FailureKind.READER, "killed by SIGKILL"), UNMEASURED)):
        view = healthy(readers=(reader("nvidia", ReaderState.FAILED, failure=failure),))
        assert of(judge("freshness", view), "reader.down", NODE).outcome is outcome


def test_reader_that_never_answered_is_unmeasured() -> None:
    """Nobody knows yet what there is; once it has answered, a restart of its is no fault."""
    waiting = View(now=at(), readers=(reader("amd", ReaderState.STARTING, last_round=None),))
    (finding,) = judge("freshness", waiting)
    assert (finding.code, finding.outcome, finding.required) == ("reader.failed", UNMEASURED, True)
    again = View(now=at(), readers=(reader("amd", ReaderState.STARTING),))
    assert [finding.outcome for finding in judge("freshness", again)] == [SKIPPED]


@pytest.mark.parametrize("state", [ReaderState.RELEASED, ReaderState.STOPPED])
def test_reader_that_is_away_for_a_known_reason_is_no_fault(state: ReaderState) -> None:
    """Somebody asked for it."""
    findings = judge("freshness", View(now=at(), readers=(reader("amd", state, last_round=None),)))
    assert [(f.code, f.outcome) for f in findings] == [("reader.failed", SKIPPED)]


def test_released_device_is_not_green() -> None:
    """While its handles are closed nothing is known of it, and nothing is held against it."""
    view = healthy(readers=(reader("host"), reader("nvidia", ReaderState.RELEASED)))
    finding = of(judge("freshness", view), "device.unread")
    assert (finding.outcome, finding.required) == (UNMEASURED, False)


def test_device_that_was_never_read_is_unmeasured_once_its_reader_has_answered() -> None:
    """A round went by without it."""
    view = msgspec.structs.replace(healthy(), samples={})
    assert of(judge("freshness", view), "device.unread").required
    waiting = healthy(samples={}, readers=(reader("nvidia", ReaderState.STARTING, last_round=None),))
    assert of(judge("freshness", waiting), "device.unread").outcome is SKIPPED


def test_one_old_group_is_enough_to_be_unread() -> None:
    """A fresh group does not hide one that stands still."""
    slow = sample(gpu(), {("power_watts", SCOPE): 500}, -10_000, group="slow")
    view = with_samples(healthy(), slow)
    view = msgspec.structs.replace(
        view, cadences={**view.cadences, ("nvidia", "slow"): view.cadences["nvidia", "fast"]}
    )
    assert "its slow readings were last taken" in of(judge("freshness", view), "device.unread").message


def test_group_that_was_never_read_leaves_the_device_unread() -> None:
    """Half of the readings are not all of them: until the slow group came, nothing is known of what it holds."""
    view = healthy()
    view = msgspec.structs.replace(
        view, cadences={**view.cadences, ("nvidia", "slow"): view.cadences["nvidia", "fast"]}
    )
    finding = of(judge("freshness", view), "device.unread")
    assert (finding.outcome, finding.required) == (UNMEASURED, True)
    assert "its slow readings were not taken yet" in finding.message
    slow = sample(gpu(), {("power_watts", SCOPE): 500}, group="slow")
    assert of(judge("freshness", with_samples(view, slow)), "device.unread").outcome is PASS


@pytest.mark.parametrize(
    ("backend", "step"),
    [("nvidia", "permissions of the device nodes"), ("host", "ProcSubset="), ("command.gaudi", "readings check")],
)
def test_next_step_of_a_reader_that_failed_is_of_what_it_reads(backend: str, step: str) -> None:
    """The reader of the host has no device node, and that of a command no driver."""
    findings = judge("freshness", healthy(readers=(reader(backend, ReaderState.FAILED, detail="refused"),)))
    (finding,) = (f for f in findings if f.code == "reader.failed" and f.outcome is UNMEASURED)
    assert step in finding.message


def test_vendor_that_turns_out_to_be_absent_ends_what_its_reader_failed_with() -> None:
    """There is nothing to read: the failure of an earlier start must not stand for ever."""
    view = healthy(readers=(reader("host"), reader("amd", ReaderState.ABSENT, detail="nothing here", last_round=None)))
    (finding,) = (f for f in judge("freshness", view) if f.code == "reader.failed" and "amd" in f.message)
    assert (finding.outcome, finding.message) == (Outcome.PASS, "amd collector has no device: nothing here")


ENDS = {
    "it answers": reader("amd"),
    "there is nothing to read": reader("amd", ReaderState.ABSENT, detail="no such board", last_round=None),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("state", ReaderState)
@pytest.mark.parametrize("required", [False, True])
def test_whatever_a_reader_could_not_do_is_over_once_it_is_well(
    state: ReaderState, required: bool, end: ReaderStatus
) -> None:
    """A vendor that is absent is looked for again and again, and one such start may lack a process or memory."""
    failures = [None, *(Failure(kind, "for a test", of_driver=True) for kind in FailureKind)]
    found = [
        finding
        for failure in failures
        for finding in judge(
            "freshness", View(now=at(), readers=(reader("amd", state, required=required, failure=failure),))
        )
        if finding.outcome is UNMEASURED
    ]
    over = {finding.key for finding in judge("freshness", View(now=at(), readers=(end,))) if finding.outcome is PASS}
    assert {finding.key for finding in found} <= over


def test_what_is_left_alone_and_named_by_nothing_else_is_no_health() -> None:
    """A reader that fell at an address while listing leaves it out: where no bus shows it, this is all that tells."""
    address, part = "0000:3b:00.0", Part(PartKind.DEVICE, "vendor:nvidia")
    view = healthy(readers=(reader("nvidia", quarantined=(address,)),))
    found = of(judge("freshness", view), "reader.down", NODE, part)
    assert (found.outcome, found.required) == (Outcome.UNMEASURED, True)
    assert address in found.message
    shown = msgspec.structs.replace(view, devices=(*view.devices, bare_board(address, "nvidia")))
    assert of(judge("freshness", shown), "reader.down", NODE, part).outcome is Outcome.PASS


def jetson(told: dict[Quantity, Scalar | Reading | None], status: ReadingStatus = ReadingStatus.UNSUPPORTED) -> View:
    """Return the view of a GPU within its processor that tells nothing but what is *told*."""
    board = gpu(model="NVIDIA Thor")
    silent = {key: bad(*key, status) for key in GPU_READINGS}
    view = healthy({**silent, **told}, device=board)
    return msgspec.structs.replace(view, devices=(board,), required={GPU: requirements(board)})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (("temperature_celsius", CORE), 55),
        (("utilization_ratio", COMPUTE), 0.0),
        (("memory_total_bytes", WHOLE), 128 * 2**30),
    ],
)
def test_one_reading_of_a_gpu_within_its_processor_is_enough(key: Quantity, value: float) -> None:
    """Zero use is an answer."""
    finding = of(judge("freshness", jetson({key: value})), "reading.any")
    assert (finding.outcome, finding.required) == (PASS, False)
    assert key[0] in finding.message


@pytest.mark.parametrize("status", list(BAD))
def test_gpu_within_its_processor_that_tells_nothing_is_unknown(status: ReadingStatus) -> None:
    """Of a board of which nothing answers nothing is known; what says nothing of health is no answer."""
    told: dict[Quantity, Scalar | Reading | None] = {("partitioned", WHOLE): False}
    finding = of(judge("freshness", jetson(told, status)), "reading.any")
    assert (finding.outcome, finding.required) == (UNMEASURED, True)
    assert "none of" in finding.message
    assert not [entry for entry in judge("freshness", jetson(told, status)) if entry.code == "reading.clock_hertz"]
