"""Who may put load on a node, and on what."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
import pytest
from fakes.clocks import SteppedClock
from fakes.snapshots import cpu_node, gpu_node

from nodevet.agent.commands.burn_in import LEASE_SECONDS
from nodevet.agent.load.lease import IDLE_MEMORY_BYTES, LeaseBook, busy_reason, load_targets
from nodevet.checks.core.model import (
    Device,
    DeviceKind,
    Finding,
    Outcome,
    ReaderState,
    Reading,
    ReadingStatus,
    Sample,
    Snapshot,
)
from nodevet.checks.system.procfs import exists

ALIVE = 100
DEAD = 200


@pytest.fixture
def clock() -> SteppedClock:
    """A clock that the test moves."""
    return SteppedClock()


@pytest.fixture
def book(clock: SteppedClock) -> LeaseBook:
    """A book in which every process but one lives."""
    return LeaseBook(clock.instant, lambda pid: pid != DEAD)


def test_there_is_one_lease_at_a_time(book: LeaseBook) -> None:
    """A second holder is refused until the first gives back, and only the holder can."""
    assert book.take("probe", ALIVE, ["GPU-1"], 60) is not None
    assert book.take("burn-in", ALIVE + 1, ["GPU-2"], 60) is None
    assert book.give_back(ALIVE + 1) is False
    assert book.give_back(ALIVE) is True
    assert book.take("burn-in", ALIVE + 1, ["GPU-2"], 60) is not None


def test_the_lease_of_a_burn_in_outlasts_the_longest_campaign(book: LeaseBook, clock: SteppedClock) -> None:
    """With the lease ends the record of heat and power, without which no re-test proves anything."""
    assert book.take("burn-in", ALIVE, ["GPU-1"], LEASE_SECONDS) is not None
    clock.advance(7 * 86400.0)
    assert book.current is not None


def test_a_lease_ends_with_its_time(book: LeaseBook, clock: SteppedClock) -> None:
    """At its end another one is granted."""
    book.take("burn-in", ALIVE, [], 60)
    clock.advance(59)
    assert book.current is not None
    clock.advance(1)
    assert book.current is None


@pytest.mark.parametrize(("answer", "lives"), [(None, True), (PermissionError(), True), (ProcessLookupError(), False)])
def test_a_holder_of_another_user_lives_where_proc_hides_it(
    monkeypatch: pytest.MonkeyPatch, answer: OSError | None, lives: bool
) -> None:
    """By hidepid=2; before, an agent with a user of its own told root's burn-in that its lease had ended."""

    def kill(pid: int, number: int) -> None:
        assert (pid, number) == (ALIVE, 0)
        if answer is not None:
            raise answer

    monkeypatch.setattr(os, "kill", kill)
    assert exists(ALIVE) is lives


def test_a_holder_that_died_has_given_back(book: LeaseBook) -> None:
    """Nobody waits for a process that is gone."""
    book.take("burn-in", DEAD, [], 60)

    assert book.current is None


def test_a_load_runs_on_accelerators_or_else_on_processors() -> None:
    """A board that only the PCI bus shows has no driver, and so no load."""
    gpus = gpu_node().devices
    assert {device.kind for device in load_targets(gpus)} == {DeviceKind.ACCELERATOR}
    assert {device.kind for device in load_targets(cpu_node().devices)} == {DeviceKind.CPU}

    bare = Device(id="pci-1", kind=DeviceKind.ACCELERATOR, vendor="nvidia", model="x", backend="host")
    assert load_targets((bare, *cpu_node().devices)) == load_targets(cpu_node().devices)


def with_readings(change: Callable[[Reading], Reading | None]) -> Snapshot:
    """Return the node of eight idle GPUs with what tells that they are idle changed, or left out."""
    node = gpu_node()
    idle = (Reading("compute_process_ids", ""), Reading("memory_used_bytes", 0))

    def changed(sample: Sample) -> Sample:
        return msgspec.structs.replace(sample, readings=tuple(new for old in idle if (new := change(old)) is not None))

    return msgspec.structs.replace(node, samples=tuple(changed(sample) for sample in node.samples))


def replaced(quantity: str, value: float | str | None) -> Callable[[Reading], Reading | None]:
    """Return a change of one quantity; None makes it unreadable."""

    def change(reading: Reading) -> Reading | None:
        if reading.quantity != quantity:
            return reading
        status = ReadingStatus.ERROR if value is None else ReadingStatus.OK
        return Reading(quantity, value, reading.part, status)

    return change


@pytest.mark.parametrize(
    ("snapshot", "own", "reason"),
    [
        (with_readings(lambda reading: reading), (), None),
        (with_readings(replaced("compute_process_ids", "4711")), (), "1 process holds it"),
        (with_readings(replaced("compute_process_ids", "4711")), (4711,), None),
        (with_readings(replaced("compute_process_ids", "4711,4712")), (4711,), "1 process holds it"),
        (with_readings(replaced("compute_process_ids", None)), (), "its processes could not be read"),
        (with_readings(replaced("memory_used_bytes", IDLE_MEMORY_BYTES + 1)), (), "1.0 GiB of its memory are in use"),
        (with_readings(replaced("memory_used_bytes", IDLE_MEMORY_BYTES)), (), None),
        (with_readings(replaced("memory_used_bytes", None)), (), "its memory in use could not be read"),
        (with_readings(lambda _reading: None), (), "its processes could not be read"),
    ],
    ids=["idle", "held", "held by us", "held by us and another", "unreadable", "full", "driver's own", "blind", "none"],
)
def test_only_what_was_seen_idle_is_idle(snapshot: Snapshot, own: tuple[int, ...], reason: str | None) -> None:
    """A process, memory in use, and a reading that is missing each forbid a load."""
    found = busy_reason(snapshot, load_targets(snapshot.devices), frozenset(own))

    assert (found is None) if reason is None else (found is not None and found.endswith(reason))


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (ReaderState.RUNNING, None),
        (ReaderState.RELEASED, "it is released (nodevet release), so no load may open it"),
        (ReaderState.HUNG, "it is not read now, its collector is hung"),
        (ReaderState.STARTING, "it is not read now, its collector is starting"),
    ],
)
def test_what_was_seen_idle_before_a_release_proves_nothing(state: ReaderState, reason: str | None) -> None:
    """Who resets a GPU meets no load; before, one was granted on the readings of before the release."""
    node = with_readings(lambda reading: reading)
    readers = tuple(
        msgspec.structs.replace(status, state=state) if status.backend == "nvidia" else status
        for status in node.readers
    )
    found = busy_reason(msgspec.structs.replace(node, readers=readers), load_targets(node.devices))
    assert (found is None) if reason is None else (found is not None and found.endswith(reason))


@pytest.mark.parametrize(("outcome", "idle"), [(Outcome.PASS, True), (Outcome.UNMEASURED, False)])
def test_a_board_that_is_not_read_is_not_idle(outcome: Outcome, idle: bool) -> None:
    """One that is left alone has readings too: those of before it fell silent."""
    node = with_readings(lambda reading: reading)
    board = load_targets(node.devices)[0]
    finding = Finding(check="freshness", code="device.unread", device=board.id, outcome=outcome, message="")
    snapshot = msgspec.structs.replace(node, findings=(*node.findings, finding))
    assert (busy_reason(snapshot, (board,)) is None) is idle


def test_processors_have_no_owner_to_ask() -> None:
    """A CPU-only node is idle as far as a lease is concerned."""
    node = cpu_node()
    assert busy_reason(node, load_targets(node.devices)) is None
