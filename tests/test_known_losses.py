"""A board whose loss a person knows: its other codes are no news, and what it cannot answer is no ignorance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from fakes.views import GPU, GPU_READINGS, SIBLING, bare_board, event, reader, sample
from test_engine_acknowledged import DAY, PAIR, Node, lose

from nodevet.agent.slurm.acknowledged import Acknowledged
from nodevet.checks.core.model import (
    NODE,
    Episode,
    EpisodeState,
    Failure,
    FailureKind,
    Outcome,
    Severity,
    Snapshot,
    State,
)
from nodevet.checks.core.scheduler import Permit
from nodevet.checks.engine.consequences import LOSSES
from nodevet.checks.engine.damping import later
from nodevet.checks.engine.losses import GONE, LossCode, loss_word
from nodevet.checks.engine.modes import gating, reach
from nodevet.checks.health.inventory import RESET_REQUIRED
from nodevet.checks.reference.kernel_policy import XidRow, kernel_rules
from nodevet.checks.reference.tables import load_table
from nodevet.exporters.slurm.known import HELD_SECONDS, as_known
from nodevet.exporters.slurm.rules import Decision, NodeState, Sight, Step, WriterMemory, decide
from nodevet.exporters.statefile.reader import StateFile, parse
from nodevet.exporters.statefile.writer import state_text

REFUSES = {
    FailureKind.LOST: "device.lost",
    FailureKind.RESET_REQUIRED: "device.reset_required",
    FailureKind.FAULTY: "device.faulty",
}
CODES = [row.code for row in load_table("loss_codes.csv", LossCode)]
RM_INIT = "nvidia.driver.rm_init_failed"
EVENTS = [RM_INIT, "nvidia.xid.79"]
RETRIED = [
    "nvidia.xid.119",
    "nvidia.xid.143",
    "nvidia.xid.154",
    "nvidia.xid.158",
    "nvidia.xid.167",
    "habana.reset_failed",
    "pcie.aer",
    "nvidia.driver.probe_failed",
    "amd.gpu_reset_failed",
    "pcie.recovery_failed",
]
"""What else a driver or the bus says that tries a dead board anew."""

GRAVE: dict[str, dict[str, Any]] = {
    "nvidia.xid.154": {"fields": {"variant": "reboot"}},
    "pcie.aer": {"severity": Severity.FATAL},
}
"""What makes a failure of a code that may be less."""

OTHER = {
    "amd.bad_page_threshold",
    "amd.poison_consumed",
    "amd.ras_fatal",
    "amd.ras_ue",
    "habana.ecc_ue",
    "infiniband.command_timeout",
    "infiniband.health_compromised",
    "infiniband.health_failed",
    "memory.apei",
    "memory.apei_vendor",
    "memory.edac_ue",
    "memory.mce_ue",
    "nvidia.driver.bar_invalid",
    "nvidia.driver.unsupported_gpu",
    "nvidia.driver.uvm_fatal",
    "pcie.dpc",
    "pcie.reset_failed",
} | {
    f"nvidia.xid.{number}"
    for number in (46, 48, 54, 62, 64, 74, 95, 109, 110, 136, 140, *range(144, 152), 155, 156, 169, 171, 172, 173)
}
"""What closes a gate and is another fault than the loss of a board, or is told of a device that is none."""


def refuse(node: Node, kind: FailureKind) -> Snapshot:
    """Let the driver answer with *kind* for the first accelerator."""
    node.seconds += 10
    node.engine.take_devices("nvidia", PAIR)
    node.engine.take_readers((reader("nvidia", last_round=node.now),))
    for taken in (
        sample(PAIR[0], {}, failure=Failure(kind, "for a test", of_driver=True)),
        sample(PAIR[1], GPU_READINGS),
    ):
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
    told = event(code, device=device, pci=pci, time=node.now, sequence=int(node.seconds))
    node.engine.take_event(msgspec.structs.replace(told, **GRAVE.get(code, {})))
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
    # Nor is the node, where nothing else is left that could be read.
    for _ in range(2):
        node.look(PAIR[1])
        silent = sample(PAIR[1], {}, failure=Failure(FailureKind.LOST, "for a test", of_driver=True))
        node.engine.take_sample(msgspec.structs.replace(silent, time=later(node.now, 1.0)))
        node.seconds += 1
        snapshot = node.judge()
        for entry in snapshot.episodes:
            node.acknowledge(entry.key, note="board ordered", actor="uid 0")
    assert (node.snapshot.verdict.state, reach(node.snapshot, node.snapshot.verdict)) == (State.UNKNOWN, "observed")


@pytest.mark.parametrize("code", [*EVENTS, *RETRIED])
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


def fall(node: Node, kind: FailureKind, device: str = GPU) -> Snapshot:
    """Let the reader fall over *device* so often that it leaves it alone, and judge."""
    node.seconds += 10
    node.engine.take_devices("nvidia", PAIR)
    node.engine.take_readers((reader("nvidia", last_round=node.now, quarantined=(device,), blamed={device: 2}),))
    for board in PAIR:
        failure = Failure(kind, "for a test", of_driver=True) if board.id == device else None
        taken = sample(board, {} if failure else GPU_READINGS, failure=failure)
        node.engine.take_sample(msgspec.structs.replace(taken, time=node.now))
    return node.judge()


@pytest.mark.parametrize("kind", [FailureKind.HUNG, FailureKind.STUCK, FailureKind.CRASHED])
@pytest.mark.parametrize("days", [None, 7])
def test_a_lost_board_that_brings_its_reader_down_is_the_loss_that_is_known(
    kind: FailureKind, days: float | None
) -> None:
    """The driver of the next boot waits for it: the node drained again. A sibling, and one that answered, count."""
    node = Node()
    known(node, lose(node), "device.lost", days)
    node.boot_id = "another-boot"
    for _ in range(2):
        snapshot = fall(node, kind)
        assert (snapshot.verdict.state, gating(snapshot)) == (State.OK, ())
        assert on_gate(snapshot) == "observed"
    assert gating(fall(node, kind, SIBLING))
    node = Node()
    known(node, lose(node), "device.lost", days)
    assert node.look().verdict.state is State.OK
    assert gating(fall(node, kind))


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


@pytest.mark.parametrize("code", EVENTS)
@pytest.mark.parametrize("days", [None, 7])
@pytest.mark.parametrize("again", [False, True])
def test_what_followed_from_a_loss_ends_with_it(code: str, days: float | None, again: bool) -> None:
    """Nobody spoke of it: it stayed acknowledged behind a board that answers, and hid the next event of its kind."""
    node = Node()
    known(node, lose(node), "device.lost", days)
    assert kernel_says(node, code).verdict.state is State.OK
    assert node.look(PAIR[1]).verdict.state is State.OK  # not listed: still lost
    assert {entry.key.code for entry in node.snapshot.episodes} == {*GONE, code}
    if again:
        known(node, node.snapshot, "device.missing", days)
    assert lose(node).verdict.state is State.OK  # listed, and silent
    assert {entry.key.code for entry in node.snapshot.episodes} == {"device.lost", code}
    snapshot = node.look()
    assert ([entry.key.code for entry in snapshot.episodes], snapshot.verdict.state) == ([], State.OK)
    assert code not in {entry.key.code for entry in snapshot.covered}
    assert kernel_says(node, code).verdict.hard


def test_a_reset_that_followed_from_a_loss_is_news_once_the_board_answered() -> None:
    """Its word was about the loss: the term covers another loss, and no other fault."""
    node = Node()
    known(node, lose(node), "device.lost", days=7)
    assert refuse(node, FailureKind.RESET_REQUIRED).verdict.state is State.OK
    assert {entry.key.code for entry in node.look().covered} == {"device.lost"}
    assert refuse(node, FailureKind.RESET_REQUIRED).verdict.hard


def test_an_event_that_was_there_before_the_word_needs_its_own() -> None:
    """Who gave the word saw both; of its own it stays, also when the board answers."""
    node = Node()
    kernel_says(node, "nvidia.xid.79")
    known(node, lose(node), "device.lost")
    node.seconds += 1
    assert lose(node).verdict.hard
    known(node, node.snapshot, "nvidia.xid.79")
    assert [entry.key.code for entry in node.look().episodes] == ["nvidia.xid.79"]


@pytest.mark.parametrize("code", sorted(GONE))
def test_a_loss_that_is_open_under_both_codes_is_known_by_one_word(code: str) -> None:
    """Of a board that is not listed, and was lost before that."""
    node = Node()
    lose(node)
    known(node, node.look(PAIR[1]), code, days=7)
    snapshot = node.look(PAIR[1])
    assert {entry.key.code for entry in snapshot.episodes} == GONE
    assert {entry.state for entry in snapshot.episodes} == {EpisodeState.ACKNOWLEDGED}
    assert {entry.note for entry in snapshot.episodes} == {"board ordered"}


@pytest.mark.parametrize("code", sorted(GONE))
@pytest.mark.parametrize("days", [None, 30])
@pytest.mark.parametrize("between", [0.0, 1.0])
def test_a_longer_word_about_a_loss_is_about_all_of_it(code: str, days: float | None, between: float) -> None:
    """Both codes are told, and a person types one: the end of the shorter word closed the gate."""
    node = Node()
    known(node, lose(node), "device.lost", days=7)
    kernel_says(node, RM_INIT)
    known(node, node.look(PAIR[1], wait=between * DAY), code, days)
    assert node.look(PAIR[1], wait=8 * DAY).verdict.state is State.OK
    snapshot = kernel_says(node, RM_INIT)
    assert (snapshot.verdict.state, {entry.state for entry in snapshot.episodes}) == (
        State.OK,
        {EpisodeState.ACKNOWLEDGED},
    )
    if days is not None:
        node.look(PAIR[1], wait=days * DAY)
        assert node.look(PAIR[1]).verdict.hard


def test_a_later_word_about_a_loss_counts_under_every_code() -> None:
    """Also where both were acknowledged for themselves: the term that a person typed last ends."""
    node = Node()
    lose(node)
    for entry in node.look(PAIR[1]).episodes:
        node.engine.acknowledge(entry.key, note="resumed", actor="somebody in SLURM")
        node.seconds += 1
    known(node, node.look(PAIR[1]), "device.lost", days=7)
    assert {entry.until is None for entry in node.look(PAIR[1]).episodes} == {False}
    node.look(PAIR[1], wait=8 * DAY)
    assert node.look(PAIR[1]).verdict.hard


@pytest.mark.parametrize("code", [None, RM_INIT, "nvidia.xid.48"])
def test_a_resume_while_nobody_looked_is_about_the_loss_under_every_code(code: str | None) -> None:
    """The driver is loaded anew without the board, the node resumed, and then the agent looks: it drained again."""
    node, idle = Node(), frozenset({"IDLE"})

    def look(memory: WriterMemory, states: frozenset[str] = idle, reason: str = "") -> Decision:
        seen = NodeState("n1", states, reason, slurmd_started="morning")
        sight = Sight(node.boot_id, "morning", "evening")
        snapshot = node.snapshot
        faults = gating(snapshot)
        return decide(faults, seen, memory, "nodevet", sight=sight, now=node.now, episodes=snapshot.episodes)

    lose(node)
    memory = look(WriterMemory(), idle | {"DRAIN"}, look(WriterMemory()).reason).memory
    if code is not None:
        kernel_says(node, code)
    node.look(PAIR[1])
    resumed = look(memory)
    assert resumed.step is Step.ACKNOWLEDGE
    again = look(resumed.memory)  # the same snapshot: what the agent was told is not judged yet
    assert again.step is (Step.DRAIN if code == "nvidia.xid.48" else Step.NOTHING)
    told = {one.of(fault) for one in again.memory.resumed for fault in gating(node.snapshot) if one.covers(fault)}
    for entry in told:
        knew = Acknowledged(entry, "resumed").meant
        node.acknowledge(entry.key, note="resumed", actor="somebody in SLURM", knew=knew)
    assert node.look(PAIR[1]).verdict.state is State.OK
    # Another loss after the hour of the resume is news.
    node.look()
    node.look(PAIR[1], wait=3700)
    assert look(again.memory).step is Step.DRAIN


def test_a_resume_is_about_what_the_driver_had_said_of_the_lost_board_by_then() -> None:
    """What it says later may be of a board that answers again; another board, and another fault, are neither."""
    node = Node()
    (lost,) = (entry for entry in lose(node).episodes if entry.key.code == "device.lost")
    now = later(node.now, 30.0)
    (one,) = as_known([lost])
    one = msgspec.structs.replace(one, until=later(now, HELD_SECONDS))

    def covers(code: str, seconds: float, device: str = GPU, **changes: Any) -> bool:
        key = msgspec.structs.replace(lost.key, code=code, device=device)
        opened = later(now, seconds)
        return one.covers(msgspec.structs.replace(lost, key=key, opened=opened, **changes))

    assert covers("device.missing", 600.0)
    assert not covers("device.missing", HELD_SECONDS)
    assert not covers("device.missing", 600.0, device=SIBLING)
    assert not covers("device.missing", 600.0, serial="another board")
    assert [covers(RM_INIT, seconds) for seconds in (-5.0, 5.0)] == [True, False]
    assert not covers("nvidia.xid.48", -5.0)


def test_nothing_of_a_board_that_is_gone_closes_the_gate() -> None:
    """The headline was ok, and with the site's own permit each job that may have that number found the gate closed."""
    node = Node()
    kernel_says(node, "nvidia.xid.48")
    known(node, node.look(PAIR[1]), "device.missing", days=7)
    snapshot = node.look(PAIR[1])
    assert snapshot.verdict.state is State.OK
    permit = msgspec.structs.replace(snapshot.agent, permit=Permit(True, "local"))
    held = msgspec.structs.replace(snapshot, agent=permit)
    assert (held.device_verdicts[GPU].hard, on_gate(held)) == (True, "observed")
    assert on_gate(msgspec.structs.replace(node.look(), agent=permit)) == "hard"


@pytest.mark.parametrize("driver", [None, "nvidia"])
def test_a_dead_board_that_the_bus_shows_is_the_one_that_is_known(driver: str | None) -> None:
    """A resume has no term: the next round told the board anew, by its address, and drained the node."""
    node = Node()

    def look() -> Snapshot:
        board = bare_board(PAIR[0].pci or "", driver)
        node.engine.take_devices("host", (board,))
        node.engine.take_sample(msgspec.structs.replace(sample(board, {}), time=node.now))
        return node.look(PAIR[1])

    known(node, look(), "device.missing")
    node.boot_id = "another-boot"
    for code in (RM_INIT, "nvidia.xid.79"):
        look()
        snapshot = kernel_says(node, code)
        assert snapshot.verdict.state is State.OK
        assert {entry.state for entry in snapshot.episodes} == {EpisodeState.ACKNOWLEDGED}
    state = parse(state_text(look(), ttl_seconds=35))
    assert isinstance(state, StateFile)
    # SLURM does not count it among the boards that it finds; its number in a gres.conf is still told.
    assert {(line.id, line.pci, line.reach) for line in state.devices if line.id != NODE} == {
        (GPU, None, "observed"),
        (SIBLING, PAIR[1].pci, "soft"),
    }


def test_every_code_of_a_loss_is_one_that_is_told() -> None:
    """A slip in the table would be silent."""
    told = {rule.code for rule in kernel_rules()} | LOSSES
    assert {code for code in CODES if not code.startswith("nvidia.xid.")} <= told
    assert not set(CODES) & GONE


def test_whether_a_code_that_closes_a_gate_is_a_loss_was_decided() -> None:
    """A code that nobody had thought of drained the node again, against who knows that the board is dead."""
    gating_xids = {
        f"nvidia.xid.{row.xid}"
        for row in load_table("nvidia_xid.csv", XidRow)
        if row.gates and row.outcome is Outcome.FAIL
    }
    gating_rules = {rule.code for rule in kernel_rules() if rule.gates and rule.outcome is Outcome.FAIL}
    driverless = {row.code for row in load_table("driverless_codes.csv", LossCode)}
    assert (gating_xids | gating_rules) - set(CODES) - driverless == OTHER


@pytest.mark.parametrize("rebooted", [False, True])
@pytest.mark.parametrize("waited", [10.0, 30 * DAY])
def test_a_missing_board_that_is_listed_again_and_silent_is_the_one_that_is_known(
    rebooted: bool, waited: float
) -> None:
    """Who resumed the node gave no term: that it is listed ended their word, and its silence drained the node again."""
    node = Node()
    known(node, node.look(PAIR[1]), "device.missing")
    node.seconds += waited
    node.boot_id = "another-boot" if rebooted else node.boot_id
    looks: list[Callable[[], Snapshot]] = [
        lambda: lose(node),
        lambda: kernel_says(node, RM_INIT),
        lambda: node.look(PAIR[1]),
    ]
    for look in looks:
        snapshot = look()
        assert (snapshot.verdict.state, gating(snapshot)) == (State.OK, ())
        assert {entry.note for entry in snapshot.episodes} == {"board ordered"}
    assert node.look().verdict.state is State.OK
    assert node.look(PAIR[1]).verdict.hard, "it answered, and nobody knows of its next loss"


def test_a_missing_board_that_answers_takes_its_word_along() -> None:
    """Also where the kernel tells of it in the same round; and without a word there is none to go on."""
    node = Node()
    known(node, node.look(PAIR[1]), "device.missing")
    told = event(RM_INIT, device=GPU, pci=PAIR[0].pci, time=node.now, sequence=99)
    node.engine.take_event(told)
    assert node.look().verdict.hard
    node = Node()
    known(node, node.look(PAIR[1]), "device.missing")
    node.look()
    assert lose(node).verdict.hard
    node = Node()
    node.look(PAIR[1])  # and nobody says a word
    assert {entry.state for entry in lose(node).episodes} == {EpisodeState.OPEN}


def test_a_node_whose_every_device_is_lost_tells_the_words_about_them() -> None:
    """Nothing is left to be judged there, and the headline still says what is acknowledged."""
    node = Node()
    for _ in range(2):
        node.seconds += 10
        node.engine.take_readers((reader("nvidia", last_round=node.now),))
        for board in PAIR:
            silent = sample(board, {}, failure=Failure(FailureKind.LOST, "for a test", of_driver=True))
            node.engine.take_sample(msgspec.structs.replace(silent, time=node.now))
        for entry in node.judge().episodes:
            node.acknowledge(entry.key, note="board ordered", actor="uid 0")
    verdict = node.snapshot.verdict
    assert (verdict.state, verdict.reason) == (State.UNKNOWN, "no check judged a value; 2 acknowledged failures")
