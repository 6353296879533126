"""A board whose loss a person knows: its other codes are no news, and what it cannot answer is no ignorance."""

from __future__ import annotations

import msgspec
import pytest
from fakes.views import GPU, GPU_READINGS, SIBLING, event, reader, sample
from test_engine_acknowledged import DAY, PAIR, Node, lose

from nodevet.checks.acknowledgement import GONE, LossCode, loss_word
from nodevet.checks.consequences import LOSSES
from nodevet.checks.damping import later
from nodevet.checks.health.inventory import RESET_REQUIRED
from nodevet.checks.model import Episode, EpisodeState, Failure, FailureKind, Snapshot, State
from nodevet.checks.modes import reach
from nodevet.checks.reference.kernel_policy import kernel_rules
from nodevet.checks.reference.tables import load_table
from nodevet.exporters.state_reader import StateFile, parse
from nodevet.exporters.statefile import state_text

REFUSES = {
    FailureKind.LOST: "device.lost",
    FailureKind.RESET_REQUIRED: "device.reset_required",
    FailureKind.FAULTY: "device.faulty",
}
CODES = [row.code for row in load_table("loss_codes.csv", LossCode)]
RM_INIT = "nvidia.driver.rm_init_failed"


def refuse(node: Node, kind: FailureKind) -> Snapshot:
    """Let the driver answer with *kind* for the first accelerator."""
    node.seconds += 10
    node.engine.take_devices("nvidia", PAIR)
    node.engine.take_readers((reader("nvidia", last_round=node.now),))
    for taken in (sample(PAIR[0], {}, failure=Failure(kind, "for a test")), sample(PAIR[1], GPU_READINGS)):
        node.engine.take_sample(msgspec.structs.replace(taken, time=node.now))
    return node.judge()


def known(node: Node, snapshot: Snapshot, code: str, days: float | None = None) -> Episode:
    """Let a person acknowledge *code* of the first accelerator."""
    (key,) = (entry.key for entry in snapshot.episodes if (entry.key.code, entry.key.device) == (code, GPU))
    until = None if days is None else later(node.now, days * DAY)
    word = node.acknowledge(key, note="board ordered", actor="uid 0", until=until)
    assert word is not None
    return word


def kernel_says(node: Node, code: str, device: str = GPU) -> Snapshot:
    """Let the kernel log tell *code* of *device*, and judge."""
    node.seconds += 10
    pci = next(board.pci for board in PAIR if board.id == device)
    node.engine.take_event(event(code, device=device, pci=pci, time=node.now))
    return node.judge()


def on_gate(snapshot: Snapshot) -> str:
    """Return what the line of the first accelerator in the state file rests on."""
    state = parse(state_text(snapshot, ttl_seconds=35))
    assert isinstance(state, StateFile)
    return next(line.reach for line in state.devices if line.id == GPU)


@pytest.mark.parametrize("kind", REFUSES)
def test_a_board_whose_loss_a_person_knows_is_no_ignorance(kind: FailureKind) -> None:
    """Its jobs start: `on_stale=fail` closed the gate against the word, without a permit, after each resume."""
    node = Node()
    known(node, refuse(node, kind), REFUSES[kind])
    snapshot = refuse(node, kind)
    assert snapshot.device_verdicts[GPU].state is State.UNKNOWN
    assert (on_gate(snapshot), reach(snapshot, snapshot.device_verdicts[SIBLING], SIBLING)) == ("observed", "soft")
    # What is not seen now, and what cannot be read for another reason, is no answer to that word.
    unseen = msgspec.structs.replace(snapshot, findings=())
    assert on_gate(unseen) == "soft"
    assert on_gate(refuse(node, FailureKind.ERROR)) == "soft"


def test_a_board_that_is_in_repair_is_no_ignorance() -> None:
    """It is not listed, and the state file has its line until the word is over."""
    node = Node()
    known(node, node.look(PAIR[1]), "device.missing", days=7)
    assert on_gate(node.look(PAIR[1])) == "observed"


@pytest.mark.parametrize("code", [RM_INIT, "nvidia.xid.79"])
@pytest.mark.parametrize("days", [None, 7])
def test_what_the_kernel_says_of_a_lost_board_is_the_loss_that_is_known(code: str, days: float | None) -> None:
    """A driver that starts tries the dead board anew and logs that it cannot: no news, with the term of the word."""
    node = Node()
    word = known(node, lose(node), "device.lost", days)
    snapshot = kernel_says(node, code)
    assert (snapshot.verdict.state, snapshot.verdict.hard) == (State.OK, False)
    (again,) = (entry for entry in snapshot.episodes if entry.key.code == code)
    assert (again.state, again.note, again.until) == (EpisodeState.ACKNOWLEDGED, "board ordered", word.until)
    assert "2 acknowledged failures" in snapshot.verdict.reason


def test_a_reset_that_a_lost_board_asks_for_is_the_loss_that_is_known() -> None:
    """The driver of the next boot words it so; who knows of a reset alone does not know of a loss."""
    node = Node()
    known(node, lose(node), "device.lost")
    assert refuse(node, FailureKind.RESET_REQUIRED).verdict.state is State.OK
    node = Node()
    known(node, refuse(node, FailureKind.RESET_REQUIRED), RESET_REQUIRED.code)
    assert lose(node).verdict.hard


def test_another_fault_a_sibling_and_a_board_that_answers_count() -> None:
    """Only of the board that is lost, only the loss, and only as long as it does not answer."""
    for code, device in (("nvidia.xid.48", GPU), (RM_INIT, SIBLING)):
        node = Node()
        known(node, lose(node), "device.lost")
        assert kernel_says(node, code, device).verdict.hard, (code, device)
    node = Node()
    known(node, lose(node), "device.lost", days=7)
    assert node.look().verdict.state is State.OK
    assert kernel_says(node, RM_INIT).verdict.hard
    node = Node()
    word = known(node, kernel_says(node, "nvidia.xid.79"), "nvidia.xid.79")
    assert loss_word(msgspec.structs.replace(word.key, code="device.lost"), [word]) is None
    assert lose(node).verdict.hard


def test_every_code_of_a_loss_is_one_that_is_told() -> None:
    """A slip in the table would be silent."""
    told = {rule.code for rule in kernel_rules()} | LOSSES
    assert {code for code in CODES if not code.startswith("nvidia.xid.")} <= told
    assert not set(CODES) & GONE


def test_a_node_whose_every_device_is_lost_tells_the_words_about_them() -> None:
    """Nothing is left to be judged there, and the headline still says what is acknowledged."""
    node = Node()
    for _ in range(2):
        node.seconds += 10
        node.engine.take_readers((reader("nvidia", last_round=node.now),))
        for board in PAIR:
            silent = sample(board, {}, failure=Failure(FailureKind.LOST, "for a test"))
            node.engine.take_sample(msgspec.structs.replace(silent, time=node.now))
        for entry in node.judge().episodes:
            node.acknowledge(entry.key, note="board ordered", actor="uid 0")
    verdict = node.snapshot.verdict
    assert (verdict.state, verdict.reason) == (State.UNKNOWN, "nothing was evaluated; 2 acknowledged failures")
