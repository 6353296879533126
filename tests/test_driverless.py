"""A driver that has no board left says in general what a person knows of each board: no news, and no more than that."""

from __future__ import annotations

import msgspec
import pytest
from fakes.views import GPU, SIBLING, bare_board, event, reader, sample
from test_engine_acknowledged import DAY, PAIR, Node

from nodevet.agent.slurm.acknowledged import Acknowledged
from nodevet.checks.core.model import NODE, EpisodeState, Failure, FailureKind, ReaderState, Snapshot, State
from nodevet.checks.engine.damping import later
from nodevet.checks.engine.losses import LossCode
from nodevet.checks.engine.modes import gating, reach
from nodevet.checks.reference.kernel_policy import kernel_rules
from nodevet.checks.reference.tables import load_table
from nodevet.exporters.slurm.rules import Decision, NodeState, Sight, Step, WriterMemory, decide

SAYS = {"driver.missing": FailureKind.NO_DRIVER, "driver.no_devices": FailureKind.NO_DEVICES}
DRIVERLESS = [row.code for row in load_table("driverless_codes.csv", LossCode)]
BOTH = (GPU, SIBLING)


def lose(node: Node, *lost: str) -> None:
    """Let the accelerators *lost* answer nothing any more, and nobody else be there."""
    boards = [board for board in PAIR if board.id in lost]
    node.seconds += 10
    node.engine.take_devices("nvidia", boards)
    node.engine.take_readers((reader("nvidia", last_round=node.now),))
    for board in boards:
        fallen = sample(board, {}, failure=Failure(FailureKind.LOST, "GPU is lost", of_driver=True))
        node.engine.take_sample(msgspec.structs.replace(fallen, time=node.now))
    node.judge()


def know(node: Node, *devices: str, days: float | None = None) -> None:
    """Let a person acknowledge what is known of *devices*."""
    for entry in node.snapshot.episodes:
        if entry.key.device in devices:
            until = None if days is None else later(node.now, days * DAY)
            node.acknowledge(entry.key, note="board ordered", actor="uid 0", until=until)


def reboot(node: Node, code: str, *boards: str, wait: float = 3600.0) -> Snapshot:
    """Let the driver say *code* after a reboot, while the bus shows *boards* alone."""
    node.boot_id = "another-boot"
    return load(node, code, *boards, wait=wait)


def load(node: Node, code: str, *boards: str, wait: float = 10.0) -> Snapshot:
    """Let the driver say *code* when it is loaded anew, while the bus shows *boards* alone."""
    node.seconds += wait
    node.engine.take_devices("nvidia", ())
    shown = tuple(bare_board(board.pci or "", "nvidia") for board in PAIR if board.id in boards)
    node.engine.take_devices("host", shown)
    for board in shown:
        node.engine.take_sample(msgspec.structs.replace(sample(board, {}), time=node.now))
    if code in SAYS:
        failure = Failure(SAYS[code], "for a test", True)
        status = reader("nvidia", ReaderState.ABSENT, failure=failure, last_round=None, looked=node.now)
        node.engine.take_readers((reader("host", last_round=node.now), status))
    else:
        node.engine.take_readers((reader("nvidia", last_round=node.now),))
        node.engine.take_event(event(code, device=NODE, pci=None, time=node.now, sequence=int(node.seconds)))
    return node.judge()


def only(*devices: str) -> Node:
    """Return a node that has *devices* alone."""
    return Node(*(board for board in PAIR if board.id in devices))


def word(snapshot: Snapshot, code: str) -> tuple[EpisodeState, str | None]:
    """Return state and note of what is told under *code*."""
    return next((entry.state, entry.note) for entry in snapshot.episodes if entry.key.code == code)


@pytest.mark.parametrize("code", sorted(DRIVERLESS))
@pytest.mark.parametrize("days", [None, 7])
@pytest.mark.parametrize("devices", [(GPU,), BOTH])
def test_a_driver_without_a_board_tells_the_loss_that_is_known(
    code: str, days: float | None, devices: tuple[str, ...]
) -> None:
    """Of the only board, or of each: it closed the gate once more after a reboot, until it was acknowledged too."""
    node = only(*devices)
    lose(node, *devices)
    know(node, *devices, days=days)
    for _ in range(2):
        snapshot = reboot(node, code, *devices)
        assert (gating(snapshot), snapshot.verdict.hard) == ((), False)
        assert word(snapshot, code) == (EpisodeState.ACKNOWLEDGED, "board ordered")
        lines = [(snapshot.verdict, ""), *((entry, device) for device, entry in snapshot.device_verdicts.items())]
        assert {reach(snapshot, entry, device) for entry, device in lines} == {"observed"}
    if days is not None and code in SAYS:
        reboot(node, code, *devices, wait=8 * DAY)
        assert gating(reboot(node, code, *devices))


@pytest.mark.parametrize("code", sorted(DRIVERLESS))
def test_a_second_loss_that_nobody_knows_closes_the_gate(code: str) -> None:
    """One board is known, the other answered before the reboot; so does a board that nobody knows in a new slot."""
    node = only(*BOTH)
    node.look(PAIR[1])
    know(node, GPU)
    node.look(PAIR[1])
    assert gating(reboot(node, code, *BOTH))
    node = only(GPU)
    lose(node, GPU)
    know(node, GPU)
    assert not gating(reboot(node, code, GPU))
    assert gating(reboot(node, code, *BOTH))
    assert word(node.snapshot, code) == (EpisodeState.OPEN, None)


@pytest.mark.parametrize("code", sorted(SAYS))
def test_the_last_word_about_the_boards_is_about_their_driver_too(code: str) -> None:
    """It was open before: each board is acknowledged after the other, or the term of a word is set anew."""
    node = only(*BOTH)
    lose(node, *BOTH)
    know(node, GPU, days=7)
    assert gating(reboot(node, code, *BOTH))
    know(node, SIBLING)
    assert gating(reboot(node, code, *BOTH)) == ()
    know(node, GPU, days=30)
    assert gating(reboot(node, code, *BOTH, wait=8 * DAY)) == gating(reboot(node, code, *BOTH)) == ()
    assert gating(reboot(node, code, *BOTH, wait=30 * DAY)) == (), "the end of a word alone closes nothing"
    assert gating(reboot(node, code, *BOTH))


@pytest.mark.parametrize("code", sorted(SAYS))
def test_a_word_about_the_driver_itself_is_its_own(code: str) -> None:
    """It says nothing of a loss, and no word about a loss says anything of it."""
    node = only(*BOTH)
    assert gating(reboot(node, code, *BOTH))
    know(node, NODE)
    assert gating(reboot(node, code, *BOTH)) == ()
    lose(node, *BOTH)
    assert gating(node.snapshot)


def test_what_a_driver_said_ends_with_the_first_board_that_answers() -> None:
    """The next time that it is said nobody knows of it, and no word is left that would cover its return."""
    for code in sorted(DRIVERLESS):
        node = only(GPU)
        lose(node, GPU)
        know(node, GPU, days=None)
        assert not gating(reboot(node, code, GPU))
        node.engine.take_devices("host", ())
        assert node.look(PAIR[0]).verdict.state is State.OK, code
        assert node.snapshot.episodes == node.snapshot.covered == ()
        assert gating(reboot(node, code, GPU)), code


def in_slurm(node: Node, memory: WriterMemory, *words: str, reason: str = "") -> Decision:
    """Decide by what *node* shows now, which SLURM shows idle and with *words* besides."""
    seen = NodeState("n1", frozenset({"IDLE", *words}), reason, slurmd_started="morning")
    sight, shown = Sight(node.boot_id, "morning", "evening"), node.snapshot
    return decide(gating(shown), seen, memory, "nodevet", sight=sight, now=node.now, episodes=shown.episodes)


def tell(node: Node, memory: WriterMemory) -> list[Step]:
    """Tell the ledger one word after the other, and return what is decided before each."""
    steps = []
    for fault in gating(node.snapshot):
        for known in memory.resumed:
            if known.covers(fault):
                steps.append(in_slurm(node, memory).step)
                knew = Acknowledged(known.of(fault), "resumed").meant
                node.acknowledge(fault.key, note="resumed", actor="somebody in SLURM", knew=knew)
    return steps


@pytest.mark.parametrize("code", sorted(DRIVERLESS))
@pytest.mark.parametrize("devices", [(GPU,), BOTH])
def test_a_resume_while_nobody_looked_is_about_the_driver_without_a_board(code: str, devices: tuple[str, ...]) -> None:
    """It is loaded anew, the node resumed, and then the agent looks: before the ledger knew of it the node drained."""
    node = only(*devices)
    lose(node, *devices)
    memory = in_slurm(node, WriterMemory(), "DRAIN", reason=in_slurm(node, WriterMemory()).reason).memory
    load(node, code, *devices)
    resumed = in_slurm(node, memory)
    assert resumed.step is Step.ACKNOWLEDGE
    assert set(tell(node, resumed.memory)) == {Step.NOTHING}
    assert gating(load(node, code, *devices)) == ()
    assert word(node.snapshot, code) == (EpisodeState.ACKNOWLEDGED, "resumed")


@pytest.mark.parametrize("code", sorted(DRIVERLESS))
def test_a_resume_is_not_about_a_board_that_nobody_knew_to_be_lost(code: str) -> None:
    """One of two was lost when somebody resumed the node; and what a driver says without a loss is no loss."""
    node = only(*BOTH)
    node.look(PAIR[1])
    memory = in_slurm(node, WriterMemory(), "DRAIN", reason=in_slurm(node, WriterMemory()).reason).memory
    load(node, code, *BOTH)
    resumed = in_slurm(node, memory)
    assert resumed.step is (Step.ACKNOWLEDGE if resumed.memory.resumed else Step.DRAIN)
    tell(node, resumed.memory)
    load(node, code, *BOTH)
    assert in_slurm(node, resumed.memory).step is Step.DRAIN


def test_every_code_of_a_driver_without_a_board_is_one_that_is_told() -> None:
    """A slip in the table would be silent."""
    assert set(DRIVERLESS) <= {rule.code for rule in kernel_rules()} | set(SAYS)


@pytest.mark.parametrize("code", sorted(SAYS))
def test_the_end_of_a_word_about_a_driver_waits_until_it_is_asked_again(code: str) -> None:
    """A driver that refused is asked again after up to half an hour, and somebody may have installed it by then."""
    node = Node(*PAIR)
    load(node, code, *BOTH, wait=3600.0)
    assert node.snapshot.verdict.hard
    know(node, NODE, days=1)
    for wait in (DAY + 1.0, 1.0, 600.0):
        node.seconds += wait
        assert not node.judge().verdict.hard
    assert word(node.snapshot, code)[0] is EpisodeState.ACKNOWLEDGED
    load(node, code, *BOTH)
    assert (node.snapshot.verdict.hard, word(node.snapshot, code)[0]) == (True, EpisodeState.OPEN)
