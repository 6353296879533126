"""Defects that others shipped, each as a story that must end well here, through the real engine.

They were found by reading other health agents and their issues: a fault that was seen and not told, or health that
was told and not seen.
"""

from __future__ import annotations

import msgspec
import pytest
from fakes.views import (
    BAD,
    CORE,
    DRAM,
    GPU,
    GPU_READINGS,
    LINKS,
    SCOPE,
    SIBLING,
    Quantity,
    at,
    bad,
    bare_board,
    controller,
    event,
    failed,
    gpu,
    link,
    reader,
    reason,
    sample,
)

from nodevet.checks.core.model import (
    WHOLE,
    AgentInfo,
    Device,
    Failure,
    FailureKind,
    Instant,
    Outcome,
    ReaderState,
    Reading,
    ReadingStatus,
    Scalar,
    Snapshot,
    State,
)
from nodevet.checks.engine.engine import ConfiguredCheck, Engine
from nodevet.checks.engine.registry import discover
from nodevet.checks.engine.view import Cadence, KernelLogState


class Node:
    """A node that is told what its readers saw."""

    def __init__(self) -> None:
        """Start the agent."""
        self.seconds = 0.0
        self.engine = Engine(
            [ConfiguredCheck(entry, entry.policy()) for entry in discover()],
            node="n1",
            clock=self.now,
            cadences={("nvidia", "fast"): Cadence(10, 5)},
        )

    def now(self) -> Instant:
        """Return the present moment."""
        return at(self.seconds)

    def restarted(self) -> Node:
        """Return the same node with another agent that knows what this one wrote down."""
        other = Node()
        other.seconds = self.seconds
        other.engine.restore(self.engine.memory())
        return other

    def round(
        self,
        *devices: Device,
        readings: dict[str, dict[Quantity, Scalar | Reading | None]] | None = None,
        failures: dict[str, FailureKind] | None = None,
        state: ReaderState = ReaderState.RUNNING,
        failure: Failure | None = None,
        seconds: float = 10.0,
    ) -> Snapshot:
        """List *devices*, read each of them as healthy but for *readings* and *failures*, and judge."""
        self.seconds += seconds
        listed = devices or (gpu(), gpu(SIBLING, "0000:2b:00.0"))
        self.engine.take_devices("nvidia", [d for d in listed if d.backend == "nvidia"])
        self.engine.take_devices("host", [d for d in listed if d.backend == "host"])
        last = self.now() if state is ReaderState.RUNNING else None
        self.engine.take_readers((reader("host"), reader("nvidia", state, failure=failure, last_round=last)))
        for device in listed:
            kind = (failures or {}).get(device.id)
            changed = (readings or {}).get(device.id, {})
            if kind is not None:
                self.engine.take_sample(msgspec.structs.replace(failed(kind, device), time=self.now()))
            elif device.backend == "nvidia":
                taken = sample(device, {**GPU_READINGS, **changed})
                self.engine.take_sample(msgspec.structs.replace(taken, time=self.now()))
        return self.judge()

    def judge(self) -> Snapshot:
        """Evaluate without anything new."""
        return self.engine.evaluate(AgentInfo(version="0", started=at(), interval_seconds=10)).snapshot


def open_codes(snapshot: Snapshot, device: str = GPU) -> set[str]:
    """Return the codes of the episodes of *device* that are not cleared."""
    return {episode.key.code for episode in snapshot.episodes if episode.key.device == device}


def test_enumeration_that_fails_at_start_is_not_invisible() -> None:
    """The worst failure, a device that takes the whole library down at start, was skipped by every component."""
    for kind in (FailureKind.ERROR, FailureKind.LOST, FailureKind.DENIED, FailureKind.VERSION_MISMATCH):
        failure = Failure(kind, "the library cannot be used", of_driver=True)
        snapshot = Node().round(controller(), bare_board(), state=ReaderState.FAILED, failure=failure)
        assert snapshot.verdict.state in (State.UNKNOWN, State.FAILED), kind
        assert any("the library cannot be used" in episode.finding.message for episode in snapshot.episodes), kind


def test_device_lost_at_run_time_changes_the_count_and_its_return_needs_no_restart() -> None:
    """The list was taken once at start, so that a lost device never changed it and a returned one stayed away."""
    node = Node()
    assert node.round().verdict.state is State.OK
    gone = node.round(gpu(SIBLING, "0000:2b:00.0"))
    assert (gone.verdict.state, gone.device_verdicts[GPU].state) == (State.FAILED, State.FAILED)
    back = node.round()
    assert [f.outcome for f in back.findings if (f.code, f.device) == ("device.missing", GPU)] == [Outcome.PASS]
    third = node.round(gpu(), gpu(SIBLING, "0000:2b:00.0"), gpu("GPU-cccc", "0000:3b:00.0"))
    assert third.device_verdicts["GPU-cccc"].state is State.OK


@pytest.mark.parametrize("status", [status for status in BAD if status is not ReadingStatus.UNSUPPORTED])
def test_read_error_is_not_overwritten_by_health_of_the_rest(status: ReadingStatus) -> None:
    """A read error on one device was set unhealthy, then healthy because nothing else was wrong."""
    snapshot = Node().round(readings={GPU: {("row_remap_failed", WHOLE): bad("row_remap_failed", WHOLE, status)}})
    assert snapshot.device_verdicts[GPU].state is State.UNKNOWN
    assert snapshot.verdict.state is State.UNKNOWN
    assert snapshot.device_verdicts[SIBLING].state is State.OK


def test_uncorrected_errors_are_fed_by_the_uncorrected_count() -> None:
    """The metric of one was fed with the other's counter."""
    many = {("ecc_corrected_errors", DRAM): 9_999, ("ecc_uncorrected_errors", DRAM): 0}
    snapshot = Node().round(readings={GPU: dict(many)})
    assert snapshot.verdict.state is State.OK
    one = {("ecc_corrected_errors", DRAM): 0, ("ecc_uncorrected_errors", DRAM): 1}
    snapshot = Node().round(readings={GPU: dict(one)})
    found = next(e for e in snapshot.episodes if e.key.code == "memory.uncorrected")
    assert (found.finding.value, found.finding.evidence) == (1, ("ecc_uncorrected_errors",))


@pytest.mark.parametrize("kind", list(FailureKind))
def test_bad_device_takes_no_sibling_with_it(kind: FailureKind) -> None:
    """Components returned at the first bad device: siblings lost their readings, old values stayed exported."""
    node = Node()
    node.round()
    hot = {("row_remap_failed", WHOLE): True}
    snapshot = node.round(failures={GPU: kind}, readings={SIBLING: dict(hot)})
    assert "memory.row_remap_failed" in open_codes(snapshot, SIBLING)
    mine = [f for f in snapshot.findings if f.device == GPU and f.evidence]
    assert [f.code for f in mine if f.outcome is Outcome.PASS] == []
    assert next(s for s in snapshot.samples if s.device == GPU).readings == ()


def test_device_without_the_interface_does_not_excuse_its_siblings() -> None:
    """One device that lacked the call made the whole node healthy for throttling."""
    node = Node()
    lacks = {
        key: bad(*key, ReadingStatus.UNSUPPORTED)
        for key in GPU_READINGS
        if key[0] in ("throttle_active", "throttle_seconds")
    }
    slowed = {
        ("throttle_seconds", reason("hardware_thermal")): None,
        ("throttle_active", reason("hardware_thermal")): True,
    }
    *_, snapshot = [node.round(readings={GPU: dict(lacks), SIBLING: dict(slowed)}) for _ in range(3)]
    assert snapshot.device_verdicts[SIBLING].state is State.FAILED
    assert snapshot.device_verdicts[GPU].state is State.OK


def test_lost_kernel_records_are_told() -> None:
    """An overrun ring was logged as a short read and not counted."""
    node = Node()
    node.engine.take_kernel_log(KernelLogState(True, "/dev/kmsg", lost_records=40))
    findings = node.round().findings
    assert [f.value for f in findings if f.code == "kernel_log.lost_records"] == [40]


def test_kernel_log_that_cannot_be_read_is_not_quiet() -> None:
    """A follower that died made every later XID invisible."""
    node = Node()
    node.engine.take_kernel_log(KernelLogState(False, "/dev/kmsg", "closed"))
    assert node.round().verdict.state is State.UNKNOWN


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (ReaderState.ABSENT, FailureKind.NO_LIBRARY),
        (ReaderState.ABSENT, FailureKind.NO_DRIVER),
        (ReaderState.ABSENT, FailureKind.NO_DEVICES),
        (ReaderState.FAILED, FailureKind.VERSION_MISMATCH),
    ],
)
def test_accelerator_node_without_a_working_driver_is_not_green(state: ReaderState, kind: FailureKind) -> None:
    """No driver, no library or no device was healthy on a node full of accelerators."""
    snapshot = Node().round(
        controller(), bare_board(), state=state, failure=Failure(kind, "words of the library", of_driver=True)
    )
    assert snapshot.verdict.state is State.FAILED
    assert "0000:1b:00.0" in snapshot.verdict.reason


def test_node_without_anything_is_not_green() -> None:
    """Zero devices passed every check."""
    node = Node()
    assert node.judge().verdict.state is State.UNKNOWN


def test_state_of_an_event_carries_its_time() -> None:
    """The state of an XID said that it happened at ``null``."""
    node = Node()
    node.round()
    node.engine.take_event(event("nvidia.xid.79", time=at(11)))
    episode = next(e for e in node.judge().episodes if e.key.code == "nvidia.xid.79")
    assert episode.finding.evidence_time == at(11)
    assert episode.opened == node.now()


def test_unknown_code_of_a_newer_driver_is_surfaced() -> None:
    """A number that was not in the table was dropped without a trace."""
    node = Node()
    node.round()
    node.engine.take_event(event("nvidia.xid.9999"))
    assert node.judge().verdict.state is State.DEGRADED


def test_fatal_event_does_not_heal_with_time_or_restart() -> None:
    """A fatal XID turned healthy after a look-back of three days, and a restart forgot a link fault."""
    node = Node()
    node.round()
    node.engine.take_event(event("nvidia.xid.79"))
    node.judge()
    after = node.restarted()
    assert after.round(seconds=4 * 86_400).verdict.state is State.FAILED
    assert "nvidia.xid.79" in open_codes(after.judge())


def test_same_code_on_two_devices_is_two_faults() -> None:
    """Faults were counted by code, not by device, and only one was shown."""
    node = Node()
    node.round()
    node.engine.take_event(event("nvidia.xid.79", sequence=1))
    node.engine.take_event(event("nvidia.xid.79", sequence=2, pci="0000:2b:00"))
    snapshot = node.judge()
    assert {v.state for v in snapshot.device_verdicts.values()} == {State.FAILED}


@pytest.mark.parametrize("port", range(LINKS))
def test_one_link_that_is_down_is_enough(port: int) -> None:
    """Links counted as healthy until all of them were down."""
    snapshot = Node().round(readings={GPU: {("link_active", link(port)): False}})
    down = next(e for e in snapshot.episodes if e.key.code == "link.down")
    assert (down.key.part, snapshot.verdict.state) == (link(port), State.FAILED)


def test_board_without_bridge_raises_no_link_alarm() -> None:
    """Boards with fewer links than another model raised a false alarm."""
    down: dict[Quantity, Scalar | Reading | None] = {("link_active", link(port)): False for port in range(LINKS)}
    boards = (gpu(model="NVIDIA H100 PCIe"), gpu(SIBLING, "0000:2b:00.0", model="NVIDIA H100 PCIe"))
    snapshot = Node().round(*boards, readings={GPU: dict(down), SIBLING: dict(down)})
    assert snapshot.verdict.state is State.OK


def test_counter_that_went_back_is_no_error() -> None:
    """The absolute difference was taken, so that a reset of the device looked like thousands of errors."""
    node = Node()
    states = []
    for value in (9_000, 9_000, 5, 5, 9, 9):
        replays = {("link_replay_errors", link(0)): value}
        states.append(node.round(readings={GPU: {**replays}}).verdict.state)
    assert set(states) == {State.OK}


def test_power_capping_under_load_is_health() -> None:
    """Any growth of the power counter warned, which is every full load."""
    node = Node()
    snapshot = node.round()
    for second in range(6):
        capped: dict[Quantity, Scalar | Reading | None] = {
            ("throttle_seconds", reason("power_cap")): 4000.0 + 10 * second,
            ("throttle_active", reason("power_cap")): True,
        }
        snapshot = node.round(readings={GPU: capped})
    assert snapshot.verdict.state is State.OK


def test_idle_clocks_and_idle_pcie_are_health() -> None:
    """Clock checks took only the exact idle mask, and PCIe was compared at idle and called fatal."""
    node = Node()
    idle: dict[Quantity, Scalar | Reading | None] = {
        ("throttle_active", reason("idle")): True,
        ("throttle_active", reason("power_cap")): True,
        ("pcie_link_generation", next(p for q, p in GPU_READINGS if q == "pcie_link_generation")): 1,
        ("utilization_ratio", next(p for q, p in GPU_READINGS if q == "utilization_ratio")): 0.0,
        ("power_watts", SCOPE): 75,
    }
    *_, snapshot = [node.round(readings={GPU: dict(idle)}) for _ in range(6)]
    assert snapshot.verdict.state is State.OK


def test_corrected_errors_by_the_thousand_per_second_are_told() -> None:
    """A device with thousands of corrected errors per second was never reported."""
    node = Node()
    snapshot = node.round()
    for second in range(5):
        errors: dict[Quantity, Scalar | Reading | None] = {("ecc_corrected_errors", DRAM): 46_000 * second}
        snapshot = node.round(readings={GPU: errors})
    assert snapshot.device_verdicts[GPU].state is State.DEGRADED
    assert "memory.corrected_rate" in open_codes(snapshot)


def test_pending_row_remap_does_not_close_the_node() -> None:
    """Its own vendor lets work go on until the next reset; others failed the node."""
    snapshot = Node().round(readings={GPU: {("row_remap_pending", WHOLE): True}})
    assert (snapshot.verdict.state, snapshot.verdict.hard) == (State.DEGRADED, False)


def test_wedged_driver_does_not_leave_the_last_state_standing() -> None:
    """A call that never returned left the last state, usually healthy, served for ever."""
    node = Node()
    assert node.round().verdict.state is State.OK
    node.seconds += 3600
    assert node.judge().verdict.state is State.UNKNOWN


def test_one_hot_sample_is_no_alarm() -> None:
    """A spike alarmed; three of five samples must agree here."""
    node = Node()
    margins = (30, -1, 30, 30, 30, 30)
    rounds = [node.round(readings={GPU: {("temperature_margin_celsius", CORE): margin}}) for margin in margins]
    assert {snapshot.verdict.state for snapshot in rounds} == {State.OK}
