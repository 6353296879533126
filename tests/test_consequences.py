"""One loss is one finding: what follows from it neither counts nor is shown for itself, and hides no other fault."""

from __future__ import annotations

import msgspec
import pytest
from fakes.views import GPU, GPU_READINGS, SIBLING, at, failed, gpu, reader, sample

from nodevet.checks.core.model import NODE, AgentInfo, Device, FailureKind, Finding, Outcome, Snapshot, State
from nodevet.checks.engine.consequences import counted_once, seen_by, shown_once
from nodevet.checks.engine.engine import ConfiguredCheck, Engine
from nodevet.checks.engine.registry import discover
from nodevet.checks.engine.verdicts import narrowed
from nodevet.checks.engine.view import Cadence

BOARDS = (gpu(), gpu(SIBLING, "0000:2b:00.0", minor=1))


class Desk:
    """An engine with all checks, and two boards that answer until a test takes one away."""

    def __init__(self) -> None:
        """Begin with one healthy look."""
        self.seconds = 0.0
        self.engine = Engine(
            [ConfiguredCheck(entry, entry.policy()) for entry in discover()],
            node="n1",
            clock=lambda: at(self.seconds),
            cadences={("nvidia", "fast"): Cadence(10, 5)},
        )
        self.look()

    def look(self, failure: FailureKind | None = None, listed: tuple[Device, ...] = BOARDS) -> Snapshot:
        """Return the next snapshot, in which the first board fails."""
        self.seconds += 10
        self.engine.take_devices("nvidia", listed)
        self.engine.take_readers((reader("nvidia", last_round=at(self.seconds)), reader("host")))
        for board in listed:
            bad = failure is not None and board.id == GPU
            taken = failed(failure, board) if bad and failure else sample(board, GPU_READINGS)
            self.engine.take_sample(msgspec.structs.replace(taken, time=at(self.seconds)))
        return self.engine.evaluate(AgentInfo(version="0", started=at(), interval_seconds=10)).snapshot


def of_board(snapshot: Snapshot) -> list[Finding]:
    """Return the findings of the first board that are no good news."""
    return [f for f in snapshot.findings if f.device == GPU and f.outcome is not Outcome.PASS]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (FailureKind.LOST, "device.lost"),
        (FailureKind.RESET_REQUIRED, "device.reset_required"),
        (FailureKind.FAULTY, "device.faulty"),
    ],
)
def test_a_lost_device_is_one_finding(kind: FailureKind, code: str) -> None:
    """Forty readings that could not be had are one loss, and so is that the device was not read."""
    desk = Desk()
    snapshot = desk.look(kind)
    told = {f.code: f.outcome for f in of_board(snapshot) if f.outcome is not Outcome.SKIPPED}
    assert told == {code: Outcome.FAIL}
    assert [episode.key.code for episode in snapshot.episodes] == [code]
    assert snapshot.device_verdicts[GPU].state is State.FAILED
    assert snapshot.device_verdicts[SIBLING].state is State.OK


def test_an_unread_device_is_one_finding() -> None:
    """That it could not be read says it all; nothing is failed, and nothing is well."""
    snapshot = Desk().look(FailureKind.ERROR)
    told = [f for f in of_board(snapshot) if f.outcome is Outcome.UNMEASURED]
    assert [f.code for f in told] == ["device.unread"]
    assert snapshot.device_verdicts[GPU].state is State.UNKNOWN


def test_checks_that_were_asked_for_alone_are_not_green_beside_a_loss() -> None:
    """What the other checks saw of the loss is why these could see nothing."""
    for kind in (FailureKind.LOST, FailureKind.RESET_REQUIRED, FailureKind.ERROR):
        snapshot = narrowed(Desk().look(kind), {"thermal"})
        assert snapshot.device_verdicts[GPU].state is State.UNKNOWN
        assert snapshot.verdict.state is State.UNKNOWN
        assert "GPU 0" in snapshot.verdict.reason


def test_an_acknowledged_loss_leaves_the_device_unknown() -> None:
    """A person knows of it; nobody has seen the device."""
    desk = Desk()
    (episode,) = desk.look(FailureKind.LOST).episodes
    desk.engine.acknowledge(episode.key, note="known", actor="me")
    snapshot = desk.look(FailureKind.LOST)
    assert snapshot.device_verdicts[GPU].state is not State.OK


def test_other_faults_of_a_lost_device_are_not_hidden() -> None:
    """What was found before it went stays open; what the node has beside it is shown."""
    lost = Finding(check="inventory", code="device.lost", outcome=Outcome.FAIL, message="gone", device=GPU)
    blind = Finding(check="thermal", code="x", outcome=Outcome.UNMEASURED, message="?", device=GPU, required=True)
    fault = Finding(check="kernel-log", code="nvidia.xid.48", outcome=Outcome.FAIL, message="!", device=GPU)
    other = msgspec.structs.replace(blind, device=SIBLING)
    of_node = msgspec.structs.replace(blind, device=NODE)
    findings = (lost, blind, fault, other, of_node)
    assert shown_once(findings) == (lost, fault, other, of_node)
    assert [f.required for f in counted_once(findings)] == [False, False, False, True, True]
    assert [f.outcome for f in counted_once(findings)] == [f.outcome for f in findings]
    assert [f.check for f in seen_by(findings, {"thermal"})] == ["inventory", "thermal", "thermal", "thermal"]
    assert shown_once(findings[1:]) == findings[1:]


def test_a_missing_device_that_returned_is_told_as_there() -> None:
    """It stays open until a re-test proves it, and its text does not deny what everybody sees."""
    desk = Desk()
    (missing,) = desk.look(listed=BOARDS[1:]).episodes
    assert "is no longer enumerated" in missing.finding.message
    (back,) = [desk.look().episodes for _ in range(3)][-1]
    assert back.key == missing.key
    assert back.finding.message.startswith("GPU 0 (0000:1b:00.0): present now, which a re-test must prove; before: ")
    assert back.finding.message.count("before: ") == 1
    (gone,) = desk.look(listed=BOARDS[1:]).episodes
    assert gone.finding.message == missing.finding.message
