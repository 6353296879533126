"""A driver that refuses every accelerator while the agent lives is told apart from ignorance, and asks for a permit."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from fakes.views import at, gpu, reader, sample

from nodevet.checks.core.model import (
    AgentInfo,
    Device,
    DeviceKind,
    EpisodeState,
    Failure,
    FailureKind,
    Mode,
    Modes,
    ReaderState,
    ReaderStatus,
    Sample,
    Snapshot,
    State,
)
from nodevet.checks.core.scheduler import Permit
from nodevet.checks.engine import engine, modes
from nodevet.checks.engine.damping import later
from nodevet.checks.engine.engine import ConfiguredCheck, Engine
from nodevet.checks.engine.modes import closing, gating, reach
from nodevet.checks.engine.refusal import FALLS, REFUSALS, driver_refuses_all, refusal_row
from nodevet.checks.engine.registry import discover
from nodevet.exporters.statefile.reader import StateFile, parse
from nodevet.exporters.statefile.writer import state_text
from nodevet.exporters.web.page.render import StatusPage

PCI = ("0000:1b:00.0", "0000:2b:00.0")


def board(pci: str, driver: str | None = "nvidia") -> Device:
    """Return an accelerator as the PCI bus alone shows it."""
    return Device(
        id=f"pci-{pci}",
        kind=DeviceKind.ACCELERATOR,
        vendor="nvidia",
        model="PCI device 10de:2330",
        backend="host",
        pci=pci,
        driver=driver,
    )


class Node:
    """An engine that is told, look by look, what the readers saw."""

    def __init__(self, modes: Modes | None = None) -> None:
        """Begin without any look."""
        self.seconds = 1.0
        self.engine = Engine(
            tuple(ConfiguredCheck(check, check.policy()) for check in discover()),
            node="n",
            clock=lambda: at(self.seconds),
            modes=modes or Modes(),
        )

    def look(
        self,
        devices: tuple[Device, ...],
        samples: tuple[Sample, ...],
        nvidia: ReaderStatus | None,
        *,
        seconds: float = 20.0,
        **changes: object,
    ) -> Snapshot:
        """Judge what *samples* say now, and let *seconds* pass."""
        for name in ("host", "nvidia", "command.x"):
            self.engine.take_devices(name, [device for device in devices if device.backend == name])
        for entry in samples:
            self.engine.take_sample(msgspec.structs.replace(entry, time=at(self.seconds)))
        self.engine.take_readers((reader("host"), *((nvidia,) if nvidia else ())))
        snapshot = self.judge(**changes)
        self.seconds += seconds
        return snapshot

    def judge(self, **changes: object) -> Snapshot:
        """Judge once more what is known."""
        info = AgentInfo(version="0", started=at(), interval_seconds=10, ready=True)
        return self.engine.evaluate(msgspec.structs.replace(info, **changes)).snapshot


def judged(
    devices: tuple[Device, ...], samples: tuple[Sample, ...], nvidia: ReaderStatus | None, **changes: object
) -> Snapshot:
    """Return what the engine says when the readers saw the same in as many looks as the table asks for."""
    modes = changes.pop("modes", Modes())
    assert isinstance(modes, Modes)
    node = Node(modes)
    for number in range(refusal_row().looks):
        status = msgspec.structs.replace(nvidia, refusals=number + 1) if nvidia else None
        node.look(devices, samples, status, **changes)  # type: ignore[arg-type]
    return node.judge(**changes)


def unread(*kinds: FailureKind | None, state: ReaderState = ReaderState.RUNNING, **changes: object) -> Snapshot:
    """Return a node whose accelerators each failed with a kind, or were read (None)."""
    devices = tuple(gpu(f"GPU-{n}", PCI[n]) for n in range(len(kinds)))
    samples = tuple(
        sample(device, {}, failure=Failure(kind, "for a test", of_driver=True) if kind else None)
        for device, kind in zip(devices, kinds, strict=True)
    )
    return judged(devices, samples, reader("nvidia", state), **changes)


def refused_at_load(
    kind: FailureKind, state: ReaderState, driver: str | None = "nvidia", **changes: object
) -> Snapshot:
    """Return a node whose boards stand on the PCI bus while their library said *kind* to its reader."""
    boards = tuple(board(pci, driver) for pci in PCI)
    samples = tuple(sample(entry, {}) for entry in boards)
    status = reader(
        "nvidia", state, failure=Failure(kind, "for a test", of_driver=True), detail="for a test", last_round=None
    )
    return judged(boards, samples, status, **changes)


HELD = Permit(held=True)
UNREAD = (FailureKind.ERROR, FailureKind.NO_DRIVER, FailureKind.VERSION_MISMATCH)


@pytest.mark.parametrize("kind", UNREAD)
def test_every_accelerator_unread_is_a_refusal_and_needs_a_permit(kind: FailureKind) -> None:
    """Without the permit it is told, with it the gate may close; what is known of the host stays as it is."""
    for permit, word in ((Permit(), "unpermitted"), (HELD, "refused")):
        snapshot = unread(kind, kind, permit=permit)
        assert snapshot.verdict.state is State.UNKNOWN
        assert driver_refuses_all(snapshot)
        assert reach(snapshot, snapshot.verdict) == word
        assert gating(snapshot)
        assert bool(closing(snapshot)) is (word == "refused")
        state = parse(state_text(snapshot, ttl_seconds=35))
        assert isinstance(state, StateFile)
        assert (state.state, state.reach, state.hard) == ("unknown", word, False)
        assert {device.reach for device in state.devices if device.kind == "accelerator"} == {word}


@pytest.mark.parametrize("kind", UNREAD)
def test_one_accelerator_that_answers_is_no_refusal(kind: FailureKind) -> None:
    """The others are unread, which closes nothing of itself."""
    snapshot = unread(kind, None, permit=HELD)
    assert not driver_refuses_all(snapshot)
    assert reach(snapshot, snapshot.verdict) == "soft"


@pytest.mark.parametrize("kind", sorted(set(FailureKind) - REFUSALS))
def test_what_is_not_the_drivers_word_is_no_refusal(kind: FailureKind) -> None:
    """A bug of ours, a missing library and a permission that lacks close no gate, on no node of the cluster."""
    for snapshot in (unread(kind, kind, permit=HELD), refused_at_load(kind, ReaderState.FAILED, permit=HELD)):
        assert not driver_refuses_all(snapshot)
        assert reach(snapshot, snapshot.verdict) != "refused"


@pytest.mark.parametrize("kind", sorted(REFUSALS))
def test_a_wrapper_that_does_not_fit_and_a_want_of_memory_are_no_refusal(kind: FailureKind) -> None:
    """They sound like the driver's words, and it has said none: whoever read the failure marked it so."""
    why = Failure(kind, "for a test", of_driver=False)
    devices = tuple(gpu(f"GPU-{n}", pci) for n, pci in enumerate(PCI))
    samples = tuple(sample(device, {}, failure=why) for device in devices)
    for state in (ReaderState.RUNNING, ReaderState.FAILED, ReaderState.ABSENT):
        status = reader("nvidia", state, failure=None if state is ReaderState.RUNNING else why, detail="for a test")
        snapshot = judged(devices, samples, status, permit=HELD)
        assert not driver_refuses_all(snapshot)
        assert not driver_refuses_all(snapshot, in_one_look=True)
        assert "refused" not in {reach(snapshot, verdict) for verdict in snapshot.device_verdicts.values()}


@pytest.mark.parametrize("kind", [FailureKind.NO_DRIVER, FailureKind.NO_DEVICES, FailureKind.ERROR])
def test_boards_that_a_command_reads_are_not_refused_by_a_library_that_does_not(kind: FailureKind) -> None:
    """A site reads them by other means because the vendor's library cannot: that it cannot closes no gate."""
    devices = tuple(msgspec.structs.replace(gpu(f"GPU-{n}", pci), backend="command.x") for n, pci in enumerate(PCI))
    samples = tuple(sample(device, {}) for device in devices)
    status = reader(
        "nvidia", ReaderState.FAILED, failure=Failure(kind, "for a test", of_driver=True), detail="for a test"
    )
    assert not driver_refuses_all(judged(devices, samples, status, permit=HELD), in_one_look=True)


@pytest.mark.parametrize("kind", sorted(FALLS))
@pytest.mark.parametrize("state", [ReaderState.RUNNING, ReaderState.CRASHED, ReaderState.HUNG])
def test_a_reader_that_fell_is_no_refusal_and_a_board_that_is_left_alone_is(
    kind: FailureKind, state: ReaderState
) -> None:
    """One crash leaves every board unread for a second: no gate may close in it, whoever crashed."""
    fell = Failure(kind, "for a test", of_driver=True)
    devices = tuple(gpu(f"GPU-{n}", pci) for n, pci in enumerate(PCI))
    samples = tuple(sample(device, {}, failure=fell) for device in devices)
    status = reader("nvidia", state, failure=None if state is ReaderState.RUNNING else fell, detail="for a test")
    snapshot = judged(devices, samples, status, permit=HELD)
    assert not driver_refuses_all(snapshot)
    assert "refused" not in {reach(snapshot, verdict) for verdict in snapshot.device_verdicts.values()}

    alone = msgspec.structs.replace(
        status, state=ReaderState.RUNNING, failure=None, quarantined=tuple(device.id for device in devices)
    )
    assert driver_refuses_all(judged(devices, samples, alone, permit=HELD))


@pytest.mark.parametrize("blamed", [0, 2])
def test_boards_that_are_left_alone_before_they_were_named_are_refused_by_a_witness_only(blamed: int) -> None:
    """The reader fell while it listed each of them: over a fault of ours no gate closes."""
    boards = tuple(board(pci) for pci in PCI)
    alone = msgspec.structs.replace(
        reader("nvidia"), quarantined=PCI, blamed=dict.fromkeys(PCI, blamed) if blamed else {}
    )
    samples = tuple(sample(entry, {}) for entry in boards)
    assert driver_refuses_all(judged(boards, samples, alone, permit=HELD)) is bool(blamed)


@pytest.mark.parametrize("state", [ReaderState.RELEASED, ReaderState.STOPPED, ReaderState.STARTING])
def test_a_reader_that_does_not_ask_proves_nothing(state: ReaderState) -> None:
    """Released devices are not refused ones, nor are those that were never asked for yet."""
    assert not driver_refuses_all(refused_at_load(FailureKind.NO_DRIVER, state))


@pytest.mark.parametrize("kind", [FailureKind.NO_DRIVER, FailureKind.NO_DEVICES, FailureKind.VERSION_MISMATCH])
@pytest.mark.parametrize("state", [ReaderState.FAILED, ReaderState.ABSENT])
def test_boards_whose_driver_says_no_are_refused(kind: FailureKind, state: ReaderState) -> None:
    """They are on the PCI bus in this boot, and the driver names its reason."""
    assert driver_refuses_all(refused_at_load(kind, state))


def test_a_backend_that_was_enabled_on_a_node_without_boards_is_no_refusal() -> None:
    """A wrong configuration is pushed to every node at once: without a board on the bus it proves nothing."""
    status = reader(
        "nvidia", ReaderState.FAILED, failure=Failure(FailureKind.NO_DRIVER, "x", of_driver=True), required=True
    )
    snapshot = judged((), (), status, permit=HELD)
    assert not driver_refuses_all(snapshot)
    assert reach(snapshot, snapshot.verdict) == "soft"


def test_boards_of_another_boot_and_boards_that_are_lent_are_no_refusal() -> None:
    """What is remembered is not on the bus now, and a virtual machine has the driver of what it was lent."""
    assert not driver_refuses_all(refused_at_load(FailureKind.NO_DRIVER, ReaderState.FAILED, "vfio-pci"))
    snapshot = unread(FailureKind.ERROR, FailureKind.ERROR)
    old = tuple(
        msgspec.structs.replace(entry, time=msgspec.structs.replace(entry.time, boot_id="another"))
        for entry in snapshot.samples
    )
    assert not driver_refuses_all(msgspec.structs.replace(snapshot, samples=old))


@pytest.mark.parametrize("kind", [None, FailureKind.DENIED])
def test_one_of_two_drivers_that_refuses_is_no_refusal_of_all(kind: FailureKind | None) -> None:
    """The boards of the other vendor are read, or not read for another reason: the gate of the node stays open."""
    refused = unread(FailureKind.ERROR, FailureKind.ERROR, permit=HELD)
    assert driver_refuses_all(refused)
    other = msgspec.structs.replace(gpu("GPU-amd", "0000:a1:00.0"), vendor="amd", backend="amd")
    found = sample(other, {}, failure=Failure(kind, "for a test", of_driver=True) if kind else None)
    both = msgspec.structs.replace(
        refused,
        devices=(*refused.devices, other),
        samples=(*refused.samples, found),
        readers=(*refused.readers, reader("amd")),
    )
    assert not driver_refuses_all(both)
    assert reach(both, both.verdict) == "soft"
    assert closing(both) == ()


def test_boards_that_nothing_reads_are_no_refusal() -> None:
    """Nobody asked their driver."""
    boards = tuple(board(pci) for pci in PCI)
    assert not driver_refuses_all(judged(boards, tuple(sample(entry, {}) for entry in boards), None))


def test_observing_simulated_starting_and_stopping_agents_refuse_nothing() -> None:
    """A refusal is a fault like another under the site's mode, and never one of a node that does not exist."""
    snapshot = unread(FailureKind.ERROR, FailureKind.ERROR, permit=HELD, modes=Modes(Mode.OBSERVE))
    assert (reach(snapshot, snapshot.verdict), closing(snapshot)) == ("observed", ())
    snapshot = unread(FailureKind.ERROR, FailureKind.ERROR, permit=HELD)
    assert not driver_refuses_all(msgspec.structs.replace(snapshot, simulated=True))
    for changes in ({"ready": False}, {"stopping": True}):
        agent = msgspec.structs.replace(snapshot.agent, **changes)
        assert not driver_refuses_all(msgspec.structs.replace(snapshot, agent=agent))


def errors(*kinds: FailureKind | None) -> tuple[tuple[Device, ...], tuple[Sample, ...]]:
    """Return accelerators, and what a round of each of their groups gave: a failure, or (None) its readings."""
    devices = tuple(gpu(f"GPU-{n}", PCI[n]) for n in range(len(kinds)))
    return devices, tuple(
        sample(device, {}, group=group, failure=Failure(kind, "for a test", of_driver=True) if kind else None)
        for device, kind in zip(devices, kinds, strict=True)
        for group in ("fast", "slow")
    )


@pytest.mark.parametrize("kind", sorted(REFUSALS - {FailureKind.LOST}))
def test_one_round_of_errors_on_every_board_closes_nothing(kind: FailureKind) -> None:
    """A driver in the middle of a reset says no for a moment: unknown, and open, until the table's looks agree."""
    node, row = Node(), refusal_row()
    devices, samples = errors(kind, kind)
    running = reader("nvidia", ReaderState.RUNNING)
    for number in range(row.looks):
        for again in range(5):
            snapshot = (
                node.judge(permit=HELD) if again else node.look(devices, samples, running, seconds=0, permit=HELD)
            )
            is_last = number == row.looks - 1
            assert driver_refuses_all(snapshot) is is_last
            assert reach(snapshot, snapshot.verdict) == ("refused" if is_last else "unpermitted")
            assert bool(closing(snapshot)) is is_last
            node.seconds += 3.0
    assert not driver_refuses_all(node.look(*errors(None, kind), running, permit=HELD))


@pytest.mark.parametrize("who", ["everybody", "one board"])
def test_a_refusal_that_persons_acknowledged_is_no_ignorance(who: str) -> None:
    """`on_stale=fail` would drain the node again that a person has just resumed; one board more is news."""
    snapshot = unread(FailureKind.ERROR, FailureKind.ERROR, permit=HELD)
    states = dict.fromkeys((episode.key for episode in snapshot.episodes), EpisodeState.ACKNOWLEDGED)
    if who == "one board":
        states[snapshot.episodes[-1].key] = EpisodeState.CLEARED
    episodes = tuple(msgspec.structs.replace(entry, state=states[entry.key]) for entry in snapshot.episodes)
    bare = msgspec.structs.replace(snapshot.verdict, episodes=())
    known = msgspec.structs.replace(snapshot, episodes=episodes, verdict=bare)
    assert reach(known, bare) == ("observed" if who == "everybody" else "soft")
    assert gating(known) == ()


@pytest.mark.parametrize("word", [EpisodeState.ACKNOWLEDGED, EpisodeState.OPEN])
def test_one_board_that_cannot_be_read_is_no_ignorance_once_a_person_acknowledged_it(word: EpisodeState) -> None:
    """`on_stale=fail` drained the node again for it, as often as the person resumed it."""
    snapshot = unread(FailureKind.ERROR, None, permit=HELD)
    first = next(device.id for device in snapshot.devices if device.id in snapshot.device_verdicts)
    unknown = snapshot.device_verdicts[first]
    bare = unknown if word is EpisodeState.OPEN else msgspec.structs.replace(unknown, episodes=())
    known = msgspec.structs.replace(
        snapshot,
        episodes=tuple(
            msgspec.structs.replace(entry, state=word) if entry.key.device == first else entry
            for entry in snapshot.episodes
        ),
        device_verdicts={**snapshot.device_verdicts, first: bare},
        verdict=msgspec.structs.replace(snapshot.verdict, episodes=()),
    )
    said = "observed" if word is EpisodeState.ACKNOWLEDGED else "soft"
    assert (reach(known, bare, first), reach(known, known.verdict)) == (said, "soft")
    state = parse(state_text(known, ttl_seconds=35))
    assert isinstance(state, StateFile)
    assert [(line.state, line.reach) for line in state.devices if line.id == first] == [("unknown", said)]
    # What is not looked at any more, and what else is unknown, is no answer to that word.
    quiet = tuple(entry for entry in known.findings if entry.device != first)
    assert reach(msgspec.structs.replace(known, findings=quiet), bare, first) == "soft"
    assert reach(known, bare, "GPU-9") == "soft"
    alone = msgspec.structs.replace(known, device_verdicts={first: bare})
    assert reach(alone, alone.verdict) == said


def test_the_end_of_a_word_about_a_refusal_is_no_ignorance() -> None:
    """With `on_stale=fail` the clock alone would close the gate, without a permit; the next look asks for one."""
    boards = tuple(gpu(f"GPU-{number}", pci) for number, pci in enumerate(PCI))
    samples = tuple(
        sample(device, {}, failure=Failure(FailureKind.ERROR, "for a test", of_driver=True)) for device in boards
    )
    node, reached = Node(), []
    for number in range(8):
        snapshot = node.look(boards, samples, reader("nvidia"), permit=HELD)
        reached.append((reach(snapshot, snapshot.verdict), snapshot.episodes[0].expired is not None))
        if number == 3:
            for episode in snapshot.episodes:
                until = later(at(node.seconds), 30.0)
                assert node.engine.acknowledge(episode.key, note="known", actor="uid 0", until=until)
    assert reached[3:] == [
        ("refused", False), ("observed", False), ("observed", False), ("observed", True), ("refused", True),
    ]  # fmt: skip


def test_the_page_says_of_a_refusal_what_the_gate_does() -> None:
    """Too few looks, no permit and a mode that only observes are three things, and none of them is a hard fault."""
    first = Node().look(*errors(FailureKind.ERROR, FailureKind.ERROR), reader("nvidia", ReaderState.RUNNING))
    asking = unread(FailureKind.ERROR, FailureKind.ERROR, permit=Permit(why="SLURM is away"))
    observed = unread(FailureKind.ERROR, FailureKind.ERROR, modes=Modes(Mode.OBSERVE))
    for snapshot, words in (
        (first, "the driver refuses every accelerator, not confirmed yet: the gate stays open"),
        (asking, "the driver refuses every accelerator, no permit: the gate stays open: SLURM is away"),
        (observed, "acknowledged, or mode is observe: the gate stays open"),
    ):
        text = StatusPage(lambda: at(100.0)).render(snapshot).decode()
        assert words in text
        assert "hard fault" not in text


def test_many_looks_within_a_moment_are_not_enough() -> None:
    """A reader that is started again and again within seconds looks often; a reset takes longer than that."""
    node, row = Node(), refusal_row()
    boards = tuple(board(pci) for pci in PCI)
    samples = tuple(sample(entry, {}) for entry in boards)
    said = Failure(FailureKind.NO_DRIVER, "for a test", of_driver=True)
    for number in range(20):
        status = reader("nvidia", ReaderState.FAILED, failure=said, last_round=None, refusals=number + 1)
        snapshot = node.look(boards, samples, status, seconds=row.seconds / 19, permit=HELD)
        assert driver_refuses_all(snapshot) is (number == 19)


def test_one_start_that_failed_is_one_look_for_as_long_as_none_follows() -> None:
    """Five minutes may lie between two starts: time alone is no second look."""
    node = Node()
    boards = tuple(board(pci) for pci in PCI)
    samples = tuple(sample(entry, {}) for entry in boards)
    said = Failure(FailureKind.NO_DRIVER, "for a test", of_driver=True)
    for starts in (1, 2, 3):
        status = reader("nvidia", ReaderState.ABSENT, failure=said, last_round=None, refusals=starts)
        for _ in range(20):
            snapshot = node.look(boards, samples, status, permit=HELD)
            assert driver_refuses_all(snapshot) is (starts == 3)


def test_a_board_that_is_read_in_between_begins_anew() -> None:
    """Looks count in a row, and so do those of each board."""
    node, running = Node(), reader("nvidia", ReaderState.RUNNING)
    refused, answered = errors(FailureKind.ERROR, FailureKind.ERROR), errors(None, None)
    for _ in range(6):
        for looks in (refused, refused, answered):
            assert not driver_refuses_all(node.look(*looks, running, permit=HELD))


@pytest.mark.parametrize("state", [ReaderState.RUNNING, ReaderState.FAILED])
def test_a_refusal_that_stands_ends_with_a_board_that_answers_alone(state: ReaderState) -> None:
    """Any user can fill a disk where libraries write: that excuses what comes after it, and opens no closed gate."""
    node = Node()

    def look(of_driver: bool, answers: bool = False) -> Snapshot:
        why = Failure(FailureKind.ERROR, "for a test", of_driver=of_driver)
        devices = tuple(gpu(f"GPU-{n}", pci) for n, pci in enumerate(PCI))
        samples = tuple(sample(device, {}, failure=None if answers else why) for device in devices)
        failed = state is ReaderState.FAILED and not answers
        known = reader("nvidia", state if failed else ReaderState.RUNNING, failure=why if failed else None)
        status = msgspec.structs.replace(known, refusals=int(node.seconds))
        return node.look(devices, samples, status, permit=HELD)

    for _ in range(refusal_row().looks):
        assert not driver_refuses_all(look(of_driver=False))
    snapshots = [look(of_driver=True) for _ in range(refusal_row().looks)]
    assert [driver_refuses_all(entry) for entry in snapshots][-1]
    for _ in range(5):
        assert driver_refuses_all(look(of_driver=False))
    assert not driver_refuses_all(look(of_driver=False, answers=True))
    for _ in range(refusal_row().looks):
        assert not driver_refuses_all(look(of_driver=False))


def test_a_refusal_of_another_boot_counts_no_excused_failure() -> None:
    """The next boot begins anew, whatever stood in the last."""
    snapshot = unread(FailureKind.ERROR, FailureKind.ERROR, permit=HELD)
    old = {
        name: msgspec.structs.replace(
            refusal,
            since=msgspec.structs.replace(refusal.since, boot_id="another boot"),
            last=msgspec.structs.replace(refusal.last, boot_id="another boot"),
        )
        for name, refusal in snapshot.refusals.items()
    }
    assert driver_refuses_all(snapshot)
    assert not driver_refuses_all(msgspec.structs.replace(snapshot, refusals=old))


def test_a_refusal_holds_over_a_restart_of_the_agent() -> None:
    """The first look of the next agent is not the first of three; in another boot it is."""
    node, running = Node(), reader("nvidia", ReaderState.RUNNING)
    looks = errors(FailureKind.ERROR, FailureKind.ERROR)
    for _ in range(refusal_row().looks):
        node.look(*looks, running, permit=HELD)
    assert driver_refuses_all(node.judge(permit=HELD))
    following = Node()
    following.seconds = node.seconds
    following.engine.restore(node.engine.memory())
    assert not driver_refuses_all(following.judge(permit=HELD))  # nothing was asked yet
    assert driver_refuses_all(following.look(*looks, running, permit=HELD))


@pytest.mark.parametrize("function", ["driver_refuses_all", "counted"])
def test_what_cannot_be_said_of_a_refusal_closes_no_gate(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of ours in it costs the refusal, not the state file, and nothing that was judged beside it."""
    node, running = Node(), reader("nvidia", ReaderState.RUNNING)
    monkeypatch.setattr(modes if function == "driver_refuses_all" else engine, function, lambda *_: 1 / 0)
    refused = errors(FailureKind.ERROR, FailureKind.ERROR)
    for _ in range(refusal_row().looks):
        node.look(*refused, running, permit=HELD)
    snapshot = node.look(*refused, running, permit=HELD)
    assert reach(snapshot, snapshot.verdict) == ("soft" if function == "driver_refuses_all" else "unpermitted")
    assert closing(snapshot) == ()
    assert snapshot.verdict.state is State.UNKNOWN
    assert snapshot.findings


class Counted(tuple[Sample, ...]):
    """Samples that count how often somebody goes through them."""

    times = 0

    def __iter__(self) -> Iterator[Sample]:
        """Count."""
        type(self).times += 1
        return super().__iter__()


def test_whether_a_driver_refuses_is_looked_at_once_for_all_lines() -> None:
    """A state file has a line per accelerator, and each look goes through the samples of each accelerator."""
    boards = tuple(gpu(f"GPU-{n}", f"0000:{n + 1:02x}:00.0") for n in range(16))
    samples = tuple(
        sample(each, {}, failure=Failure(FailureKind.ERROR, "for a test", of_driver=True)) for each in boards
    )
    snapshot = judged(boards, samples, reader("nvidia", ReaderState.RUNNING), permit=HELD)
    Counted.times = 0
    text = state_text(msgspec.structs.replace(snapshot, samples=Counted(snapshot.samples)), ttl_seconds=60)
    assert text.count(" refused ") == len(boards) + 1
    assert Counted.times < 6 * len(boards)
