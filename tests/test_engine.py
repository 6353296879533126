"""The engine: what comes in, what it remembers, and that no check can take another one down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from fakes.views import (
    CORE,
    GPU,
    GPU_READINGS,
    PCIE,
    SIBLING,
    Quantity,
    at,
    bad,
    bare_board,
    burn_in,
    controller,
    event,
    failed,
    gpu,
    link,
    reader,
    sample,
)

from nodevet.checks.core.model import (
    NODE,
    WHOLE,
    AgentInfo,
    Device,
    EpisodeState,
    Failure,
    FailureKind,
    Finding,
    Instant,
    Outcome,
    Part,
    PartKind,
    ReaderState,
    ReaderStatus,
    Reading,
    ReadingStatus,
    Result,
    ResultState,
    Scalar,
    State,
)
from nodevet.checks.core.quantities import NO_VALUE, measured
from nodevet.checks.engine.baseline import recognised, remember
from nodevet.checks.engine.completeness import last_proof
from nodevet.checks.engine.engine import ConfiguredCheck, Engine, Round
from nodevet.checks.engine.overflow import MAXIMUM_KEPT
from nodevet.checks.engine.registry import Check, check, discover
from nodevet.checks.engine.view import Cadence, KnownDevices, View


class Policy(msgspec.Struct, frozen=True):
    """Nothing to set."""


@check("crashing", policy=Policy)
def crashing(_view: View, _policy: Policy) -> Iterator[Finding]:
    """Raise in the middle of its findings."""
    yield Finding(check="crashing", code="crashing.first", outcome=Outcome.PASS, message="well", device=GPU)
    raise ZeroDivisionError("a bug")


@check("silent", policy=Policy)
def silent(_view: View, _policy: Policy) -> Iterator[Finding]:
    """Match nothing."""
    yield from ()


@check("flooding", policy=Policy)
def flooding(_view: View, _policy: Policy) -> Iterator[Finding]:
    """Find thousands of different things that close no gate."""
    for number in range(2_000):
        yield Finding(
            check="flooding", code=f"flooding.{number}", outcome=Outcome.WARN, message="one", device=GPU, gates=False
        )


def declared(judge: object) -> Check:
    """Return the declaration of *judge*."""
    return next(value for value in vars(judge).values() if isinstance(value, Check))


class Desk:
    """An engine with a clock that the test moves."""

    def __init__(self, checks: Sequence[Check] | None = None) -> None:
        """Start with the given checks, or with all."""
        self.seconds = 0.0
        self.boot = "boot"
        chosen = discover() if checks is None else checks
        self.engine = Engine(
            [ConfiguredCheck(entry, entry.policy()) for entry in chosen],
            node="n1",
            clock=lambda: self.now,
            cadences={("nvidia", "fast"): Cadence(10, 5)},
        )

    @property
    def now(self) -> Instant:
        """Return the present moment."""
        return at(self.seconds, boot=self.boot)

    def present(self, *devices: object) -> None:
        """Let the reader list *devices*."""
        self.engine.take_devices("nvidia", devices or (gpu(), gpu(SIBLING, "0000:2b:00.0")))  # type: ignore[arg-type]
        self.engine.take_readers((reader("nvidia", last_round=self.now),))

    def read(self, changes: dict[Quantity, Scalar | Reading | None] | None = None, identity: str = GPU) -> None:
        """Hand over a sample taken now."""
        taken = sample(gpu(identity), {**GPU_READINGS, **(changes or {})})
        self.engine.take_sample(msgspec.structs.replace(taken, time=self.now))

    def round(self, seconds: float = 10.0) -> Round:
        """Judge, after some seconds."""
        self.seconds += seconds
        return self.engine.evaluate(AgentInfo(version="0", started=at(), interval_seconds=10))

    def healthy_round(self) -> Round:
        """Read both accelerators and judge."""
        self.present()
        self.read()
        self.read(identity=SIBLING)
        return self.round(0)


def test_healthy_node_is_ok() -> None:
    """Everything read, nothing against it."""
    snapshot = Desk().healthy_round().snapshot
    assert snapshot.verdict.state is State.OK, snapshot.verdict
    assert {verdict.state for verdict in snapshot.device_verdicts.values()} == {State.OK}


def test_engine_that_was_told_nothing_is_unknown() -> None:
    """No device, no sample, no reader: not green."""
    assert Desk().round().snapshot.verdict.state is State.UNKNOWN


def test_engine_without_checks_is_unknown() -> None:
    """Nothing was evaluated, although everything was read."""
    assert Desk(()).healthy_round().snapshot.verdict.state is State.UNKNOWN


def test_crashing_check_costs_only_itself() -> None:
    """The others judge as before; the node is unknown until the bug is gone, and half of its findings do not count."""
    desk = Desk((*discover(), declared(crashing)))
    snapshot = desk.healthy_round().snapshot
    runs = {run.check: run for run in snapshot.checks}
    assert [name for name, run in runs.items() if not run.success] == ["crashing"]
    assert "ZeroDivisionError: a bug" in runs["crashing"].error
    assert [f.code for f in snapshot.findings if f.check == "crashing"] == ["check.error"]
    assert snapshot.verdict.state is State.UNKNOWN
    assert runs["thermal"].outcomes["pass"] > 0


def test_the_round_of_a_flood_shows_no_more_than_is_kept() -> None:
    """No surface lists for one round what is only counted."""
    desk = Desk((declared(flooding),))
    desk.present()
    for _ in range(2):
        assert len(desk.round().snapshot.findings) <= MAXIMUM_KEPT + 10


def test_check_that_matched_nothing_says_so() -> None:
    """It is skipped, which is no pass."""
    snapshot = Desk((declared(silent),)).healthy_round().snapshot
    assert [(f.code, f.outcome) for f in snapshot.findings] == [("silent.nothing", Outcome.SKIPPED)]
    assert snapshot.verdict.state is State.UNKNOWN


def test_check_that_keeps_crashing_has_one_episode() -> None:
    """The same error in every round is one fault of ours."""
    desk = Desk((*discover(), declared(crashing)))
    desk.healthy_round()
    keys = [e.key.code for e in desk.round().snapshot.episodes]
    assert keys.count("check.error") == 1


def test_event_is_judged_once() -> None:
    """It is handed to the checks in one round, and its episode stays."""
    desk = Desk()
    desk.healthy_round()
    desk.engine.take_event(event("nvidia.xid.79"))
    first, second = desk.round(1), desk.round(1)
    assert "nvidia.xid.79" in {f.code for f in first.snapshot.findings}
    assert "nvidia.xid.79" not in {f.code for f in second.snapshot.findings}
    assert second.snapshot.verdict.state is State.FAILED
    assert [e.count for e in second.snapshot.episodes] == [1]


def stumbling(times: int) -> Check:
    """Return the check of the kernel log that raises in so many rounds before it judges."""
    kernel_log = next(entry for entry in discover() if entry.name == "kernel-log")
    left = iter(range(times))

    def judge(view: View, policy: msgspec.Struct) -> Iterator[Finding]:
        if next(left, None) is not None:
            raise ZeroDivisionError("a bug")
        yield from kernel_log.judge(view, policy)

    return msgspec.structs.replace(kernel_log, judge=judge)


def without_kernel_log() -> tuple[Check, ...]:
    """Return every check but that of the kernel log."""
    return tuple(entry for entry in discover() if entry.name != "kernel-log")


@pytest.mark.parametrize("restart", [False, True], ids=["same agent", "restarted agent"])
def test_event_waits_for_a_check_that_could_not_run(restart: bool) -> None:
    """What happened in a round in which its check raised is judged when that runs again, and once."""
    desk = Desk((*without_kernel_log(), stumbling(2)))
    desk.healthy_round()
    desk.engine.take_event(event("nvidia.xid.79"))
    desk.round(1)
    if restart:
        kept, desk = desk.engine.memory(), Desk()
        desk.seconds = 1
        desk.engine.restore(kept)
        desk.healthy_round()
    snapshot = desk.round(1).snapshot
    assert snapshot.verdict.state is State.FAILED
    assert [e.count for e in desk.round(1).snapshot.episodes if e.key.code == "nvidia.xid.79"] == [1]


def test_events_beside_another_crashing_check_are_judged_once() -> None:
    """A bug elsewhere counts no event twice, and reopens nothing that a person acknowledged."""
    desk = Desk((*discover(), declared(crashing)))
    desk.healthy_round()
    for sequence in (1, 2):
        desk.engine.take_event(event("nvidia.xid.79", sequence=sequence, time=at(10.0 * sequence)))
    episodes = desk.round(1).snapshot.episodes
    (key,) = [e.key for e in episodes if e.key.code == "nvidia.xid.79"]
    assert desk.engine.acknowledge(key, note="seen", actor="operator") is not None
    for _ in range(3):
        (found,) = [e for e in desk.round(1).snapshot.episodes if e.key == key]
        assert (found.state, found.count) == (EpisodeState.ACKNOWLEDGED, 2)


def test_check_that_runs_again_takes_back_that_it_could_not() -> None:
    """A bug that shows once leaves the node unknown for that round, not for ever."""
    desk = Desk((*without_kernel_log(), stumbling(1)))
    assert desk.healthy_round().snapshot.verdict.state is State.UNKNOWN
    assert desk.round(1).snapshot.verdict.state is State.OK


def test_device_that_is_listed_and_was_never_read_is_not_ok() -> None:
    """Between the list and the first round of its reader nothing is known, and a release tells nothing either."""
    for state in (ReaderState.RUNNING, ReaderState.STARTING, ReaderState.RELEASED):
        desk = Desk()
        desk.engine.take_devices("nvidia", (gpu(),))
        desk.engine.take_readers((reader("nvidia", state, last_round=None),))
        desk.engine.take_result(burn_in())
        assert desk.round().snapshot.verdict.state is State.UNKNOWN, state


def test_released_device_is_not_ok_once_its_readings_are_old() -> None:
    """What it was before its handles were closed is no health of now."""
    desk = Desk()
    desk.healthy_round()
    desk.engine.take_readers((reader("nvidia", ReaderState.RELEASED),))
    assert desk.round(1000).snapshot.verdict.state is State.UNKNOWN


def test_fault_of_a_device_that_nothing_lists_still_counts() -> None:
    """The store was lost and the journal's mirror remembers: the board fell out, its failure did not."""
    desk = Desk()
    desk.present()
    desk.read({("row_remap_failed", WHOLE): True})
    desk.read(identity=SIBLING)
    after = Desk()
    after.engine.adopt(desk.round(0).snapshot.episodes)
    info = AgentInfo(version="0", started=at(), interval_seconds=10)
    assert after.engine.remembered(info).verdict.state is State.FAILED
    after.present(gpu(SIBLING, "0000:2b:00.0"))
    after.read(identity=SIBLING)
    assert after.round(0).snapshot.verdict.state is State.FAILED


def test_board_that_was_taken_out_for_good_takes_its_faults_with_it() -> None:
    """That it is missing was acknowledged: nothing else of it counts, until it is back."""
    desk = Desk()
    desk.present()
    desk.read({("row_remap_failed", WHOLE): True})
    desk.read(identity=SIBLING)
    desk.round(0)
    desk.present(gpu(SIBLING, "0000:2b:00.0"))
    episodes = desk.round(1).snapshot.episodes
    (key,) = [e.key for e in episodes if e.key.code == "device.missing"]
    assert desk.engine.acknowledge(key, note="taken out", actor="operator") is not None
    assert desk.round(1).snapshot.verdict.state is State.OK
    assert desk.healthy_round().snapshot.verdict.state is State.FAILED


def test_board_that_fell_out_is_missed_although_its_address_went_to_its_neighbour() -> None:
    """The firmware numbers the buses anew: seven boards where eight were are never eight."""
    desk = Desk()
    desk.healthy_round()
    after = Desk()
    after.engine.restore(desk.engine.memory())
    after.present(gpu(SIBLING, "0000:1b:00.0"))
    after.read(identity=SIBLING)
    for _ in range(2):
        snapshot = after.round(0).snapshot
        assert snapshot.verdict.state is State.FAILED
        assert "device.missing" in {e.key.code for e in snapshot.episodes if e.key.device == GPU}


def test_stopped_run_does_not_take_the_place_of_a_wrong_result() -> None:
    """The next run was stopped before it verified anything: the wrong result stands."""
    desk = Desk()
    desk.engine.take_result(burn_in(mismatches=1))
    for _judged in (False, True):
        for state in (ResultState.INTERRUPTED, ResultState.REFUSED):
            desk.engine.take_result(burn_in(state=state, mismatches=None, gemms_verified=None))
        findings = desk.healthy_round().snapshot.findings
        assert "burnin.mismatch" in {f.code for f in findings if f.outcome is Outcome.FAIL}
    desk.engine.take_result(burn_in())
    findings = desk.round(1).snapshot.findings
    assert "burnin.mismatch" not in {f.code for f in findings if f.outcome is Outcome.FAIL}


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_later_load_hides_no_wrong_result_that_nobody_judged(is_lost: bool) -> None:
    """A load was killed, or took its device with it; the next one, of two seconds, is right."""
    desk = Desk()
    desk.engine.take_result(burn_in(mismatches=1))
    if is_lost:
        desk.present(gpu(SIBLING, "0000:2b:00.0"))
        desk.read(identity=SIBLING)
        desk.round(0)
    after = desk
    if not is_lost:
        after = Desk()
        after.engine.restore(desk.engine.memory())
    after.engine.take_result(burn_in(started=20))
    found = [finding for finding in after.healthy_round().snapshot.findings if finding.code == "burnin.mismatch"]
    assert [finding.device for finding in found if finding.outcome is Outcome.FAIL] == [GPU]
    snapshot = after.round(1).snapshot
    assert not any(
        finding.outcome is Outcome.FAIL for finding in snapshot.findings if finding.code == "burnin.mismatch"
    )
    assert snapshot.verdict.state is State.FAILED


def test_what_was_judged_before_a_restart_is_disproved_at_once() -> None:
    """A look without an agent restores the wrong result, and takes the long re-test, before it judges anything.

    An agent has but one look for the answer to whoever ran the re-test, and may have been restarted meanwhile.
    """
    conditions = {"temperature_celsius": 70.0, "power_watts": 600.0}

    def load(started: float, name: str, **figures: Any) -> Result:
        moments = {"started": at(started, boot="boot"), "ended": at(started + 600, boot="boot")}
        told = msgspec.structs.replace(burn_in(measured_seconds=600.0, **figures), **moments)
        return msgspec.structs.replace(
            told, dtype="bf16", shape=(512, 512, 512), conditions=conditions | {"load": name}
        )

    desk, after = Desk(), Desk()
    desk.engine.take_result(load(-700, "first", mismatches=2, gemms_verified=6000))
    desk.healthy_round()
    after.engine.restore(desk.engine.memory())
    after.engine.take_result(load(10, "second", gemms_verified=9000))
    states = []
    for after.seconds in (700, 701):
        states.append(after.healthy_round().snapshot.verdict.state)
    assert states == [State.OK, State.OK]


def test_wrong_results_of_a_board_go_with_it() -> None:
    """Another board ended them: the page and the metrics, which know all results, must not tell of them for ever."""
    desk = Desk()
    desk.engine.take_result(burn_in(mismatches=2))
    desk.engine.take_result(burn_in(SIBLING))
    before = desk.healthy_round().snapshot
    assert last_proof(before.results, before.episodes).state is State.FAILED
    desk.present(gpu("GPU-new", serial="another"), gpu(SIBLING, "0000:2b:00.0"))
    desk.read(identity="GPU-new")
    snapshot = desk.round().snapshot
    assert not any(episode.key.code == "burnin.mismatch" for episode in snapshot.episodes)
    after = Desk()
    after.engine.restore(desk.engine.memory())
    for results in (desk.round().snapshot.results, after.round().snapshot.results):
        assert [result.devices for result in results] == [(SIBLING,)]
    assert last_proof(snapshot.results, snapshot.episodes).state is not State.FAILED


def test_more_of_a_wrong_result_than_was_judged_is_judged() -> None:
    """The first wrong product was told at once; the agent died before the end of the load told of more of them."""
    desk, after = Desk(), Desk()
    desk.engine.take_result(burn_in(mismatches=1))
    desk.healthy_round()
    desk.engine.take_result(msgspec.structs.replace(burn_in(mismatches=7), ended=at(-100)))
    after.engine.restore(desk.engine.memory())
    after.engine.take_result(burn_in(started=20))
    (episode,) = (entry for entry in after.healthy_round().snapshot.episodes if entry.key.code == "burnin.mismatch")
    assert [shown.wrong for shown in episode.finding.shown] == [7]


def test_limit_that_is_read_more_rarely_does_not_slow_the_looks_down() -> None:
    """The memory's limit comes once a minute, its temperature every ten seconds: three of those confirm."""
    memory, states = Part(PartKind.SENSOR, "memory"), []
    desk = Desk()
    limit = ("temperature_maximum_celsius", memory)
    desk.engine.take_sample(sample(gpu(), {limit: 95}, group="slow", time=desk.now))
    for _ in range(3):
        desk.present()
        desk.read({limit: None, ("temperature_celsius", memory): 105})
        desk.read(identity=SIBLING)
        states.append(desk.round(0).snapshot.verdict.state)
        desk.seconds += 10
    assert states == [State.OK, State.OK, State.FAILED]


def growth_of(desk: Desk, *values: float | None, every: float = 10.0) -> list[Finding]:
    """Return the findings on replays while the counter shows *values* (None: it could not be read)."""
    found = []
    for value in values:
        desk.seconds += every
        desk.present()
        desk.read({("pcie_replays", PCIE): bad("pcie_replays", PCIE) if value is None else value})
        desk.read(identity=SIBLING)
        findings = desk.round(0).snapshot.findings
        found += [f for f in findings if (f.code, f.device) == ("pcie.replay_rate", GPU)]
    return found


def test_counter_is_judged_from_its_second_sample() -> None:
    """What it held before the agent started is history."""
    outcomes = [f.outcome for f in growth_of(Desk(), 5_000, 5_000, 5_100)]
    assert outcomes == [Outcome.SKIPPED, Outcome.PASS, Outcome.WARN]


def test_counter_that_fell_began_anew() -> None:
    """A reset device or a reloaded driver is no error."""
    outcomes = [f.outcome for f in growth_of(Desk(), 5_000, 3, 3)]
    assert outcomes == [Outcome.SKIPPED, Outcome.SKIPPED, Outcome.PASS]


def test_growth_over_a_gap_is_no_burst() -> None:
    """What grew while the counter could not be read is spread over that time."""
    found = growth_of(Desk(), 0, 0, None, None, None, None, None, 12)
    assert [f.outcome for f in found[2:7]] == [Outcome.UNMEASURED] * 5
    assert found[-1].outcome is Outcome.PASS
    assert "12 replays in 60 s" in found[-1].message


def test_sample_of_another_group_interrupts_no_counter() -> None:
    """Between two slow samples come fast ones, which never hold the counter: it grew over the whole minute."""
    desk, replays = Desk(), ("pcie_replays", PCIE)
    for seconds in range(0, 121, 10):
        desk.seconds = seconds
        desk.present()
        desk.read({replays: None})
        if seconds % 60 == 0:
            desk.seconds += 5
            slow = {replays: seconds / 10, ("pcie_link_width", PCIE): 16, ("pcie_link_generation", PCIE): 5}
            desk.engine.take_sample(sample(gpu(), slow, group="slow", time=desk.now))
    (found,) = [f for f in desk.round(0).snapshot.findings if (f.code, f.device) == ("pcie.replay_rate", GPU)]
    assert "6 replays in 60 s" in found.message


def test_samples_of_a_device_leave_with_it() -> None:
    """Listed again, it has to be read again."""
    desk = Desk()
    desk.healthy_round()
    desk.present(gpu(SIBLING, "0000:2b:00.0"))
    assert {entry.device for entry in desk.round(1).snapshot.samples} == {SIBLING}


def test_growth_over_a_restart_is_seen() -> None:
    """Errors while the agent was away are not lost, and not taken for a burst."""
    desk = Desk()
    growth_of(desk, 7, 7)
    after = Desk()
    after.engine.restore(desk.engine.memory())
    after.seconds = desk.seconds + 600
    found = growth_of(after, 507)
    assert "500 replays in 610 s" in found[0].message


def test_growth_over_a_reboot_is_not_computed() -> None:
    """Counters begin anew and times cannot be compared."""
    desk = Desk()
    growth_of(desk, 7, 7)
    desk.boot = "the next boot"
    assert growth_of(desk, 500)[0].outcome is Outcome.SKIPPED


def test_device_of_the_pci_bus_is_not_shown_beside_its_own_library() -> None:
    """One board is one device."""
    desk = Desk()
    desk.engine.take_devices("host", (controller(), bare_board("0000:1b:00.0", "nvidia")))
    snapshot = desk.healthy_round().snapshot
    assert sorted(d.id for d in snapshot.devices) == sorted([GPU, SIBLING, "mc0"])


def test_missing_device_is_remembered_until_a_person_says_that_it_is_gone() -> None:
    """Over a restart too; acknowledged, it is forgotten."""
    desk = Desk()
    desk.healthy_round()
    after = Desk()
    after.engine.restore(desk.engine.memory())
    after.seconds = 100
    after.present(gpu(SIBLING, "0000:2b:00.0"))
    after.read(identity=SIBLING)
    snapshot = after.round(0).snapshot
    missing = next(e for e in snapshot.episodes if e.key.code == "device.missing")
    assert (snapshot.verdict.state, missing.key.device, missing.serial) == (State.FAILED, GPU, f"serial of {GPU}")
    assert after.engine.acknowledge(missing.key, note="taken out", actor="operator") is not None
    after.read(identity=SIBLING)
    assert after.round(0).snapshot.verdict.state is State.OK


def test_restarted_agent_misses_nothing_before_its_reader_answered() -> None:
    """Devices are remembered, the list is not there yet: unknown, not failed."""
    desk = Desk()
    desk.healthy_round()
    after = Desk()
    after.engine.restore(desk.engine.memory())
    after.engine.take_readers((reader("nvidia", ReaderState.STARTING, last_round=None),))
    assert after.round().snapshot.verdict.state is State.UNKNOWN


def told_by(desk: Desk, *readers: ReaderStatus) -> set[str]:
    """Return the codes of what is open after a round in which these are the readers that are configured."""
    desk.present()
    desk.read()
    desk.engine.take_readers(readers)
    return {episode.key.code for episode in desk.round().snapshot.episodes if episode.state is EpisodeState.OPEN}


@pytest.mark.parametrize("restart", [False, True])
def test_what_a_reader_could_not_do_is_over_once_it_is_not_configured(restart: bool) -> None:
    """A command was configured by mistake and taken out again: before, the node was unknown until somebody spoke."""
    desk = Desk()
    command = reader("command.x", ReaderState.FAILED, detail="ended with status 1", last_round=None)
    assert "reader.failed" in told_by(desk, reader("nvidia"), command)
    after = Desk() if restart else desk
    if restart:
        after.engine.restore(desk.engine.memory())
    assert "reader.failed" not in told_by(after, reader("nvidia"))


@pytest.mark.parametrize("readers", [(), (reader("nvidia"),)], ids=["not known yet", "another"])
def test_what_a_driver_did_stays_where_its_backend_is_not_configured(readers: tuple[ReaderStatus, ...]) -> None:
    """It is no word of the configuration; and before the readers are known nothing shows what is configured."""
    desk = Desk()
    hung = Failure(FailureKind.HUNG, "a call", of_driver=True)
    assert "reader.hung" in told_by(desk, reader("amd", ReaderState.HUNG, witnessed=2, failure=hung))
    assert "reader.hung" in told_by(desk, *readers)


def test_what_is_configured_is_not_known_before_the_readers_are() -> None:
    """An engine that was told of no reader ends nothing."""
    desk = Desk()
    assert "reader.failed" in told_by(desk, reader("amd", ReaderState.FAILED, detail="refused", last_round=None))
    assert "reader.failed" in told_by(desk)


def test_link_that_was_up_is_remembered() -> None:
    """It is missed after a restart, for a model that no table knows."""
    board = gpu(model="a board of tomorrow")
    desk = Desk()
    desk.present(board)
    desk.engine.take_sample(msgspec.structs.replace(sample(board, GPU_READINGS), time=desk.now))
    desk.round(0)
    after = Desk()
    after.engine.restore(desk.engine.memory())
    after.seconds = 10
    after.present(board)
    down = {**GPU_READINGS, ("link_active", link(4)): False}
    after.engine.take_sample(msgspec.structs.replace(sample(board, down), time=after.now))
    snapshot = after.round(0).snapshot
    assert [e.key.part for e in snapshot.episodes if e.key.code == "link.down"] == [link(4)]


def test_old_sample_is_no_evidence_and_keeps_no_fault_from_being_known() -> None:
    """Nothing new comes: the device is unknown after its cadence, a fault it had stays."""
    desk = Desk()
    desk.healthy_round()
    assert desk.round(1000).snapshot.verdict.state is State.UNKNOWN
    desk.present()
    desk.read({("row_remap_failed", WHOLE): True})
    desk.read(identity=SIBLING)
    desk.round(0)
    assert desk.round(1000).snapshot.verdict.state is State.FAILED


def test_simulated_sample_marks_the_snapshot() -> None:
    """And it stays marked: a simulated node never gates."""
    desk = Desk()
    desk.present()
    taken = msgspec.structs.replace(sample(gpu(), GPU_READINGS), time=desk.now, simulated=True)
    desk.engine.take_sample(taken)
    assert desk.round().snapshot.simulated
    desk.read()
    assert desk.round().snapshot.simulated


def test_remembered_snapshot_judges_nothing() -> None:
    """Before the first round of a new agent old faults count and nothing is called healthy."""
    desk = Desk()
    info = AgentInfo(version="0", started=at(), interval_seconds=10)
    assert desk.engine.remembered(info).verdict.state is State.UNKNOWN
    desk.healthy_round()
    desk.read({("row_remap_failed", WHOLE): True})
    desk.round()
    after = Desk()
    after.engine.restore(desk.engine.memory())
    assert after.engine.remembered(info).verdict.state is State.FAILED


def test_results_are_kept_per_workload_over_a_restart() -> None:
    """A wrong result is not forgotten, and opens no second episode."""
    desk = Desk()
    desk.engine.take_result(burn_in(mismatches=1))
    desk.healthy_round()
    after = Desk()
    after.engine.restore(desk.engine.memory())
    after.seconds = 10
    snapshot = after.healthy_round().snapshot
    assert [(e.key.code, e.count) for e in snapshot.episodes] == [("burnin.mismatch", 1)]


def test_one_blind_device_leaves_its_siblings_seen() -> None:
    """The failed device is unknown, the other ok, the node unknown."""
    desk = Desk()
    desk.present()
    desk.engine.take_sample(msgspec.structs.replace(failed(FailureKind.HUNG), time=desk.now))
    desk.read(identity=SIBLING)
    snapshot = desk.round(0).snapshot
    assert {d: v.state for d, v in snapshot.device_verdicts.items()} == {GPU: State.UNKNOWN, SIBLING: State.OK}
    assert snapshot.verdict.state is State.UNKNOWN


def test_heat_counts_from_the_third_of_five_samples_and_ends_after_three_good_ones() -> None:
    """From the sensor to the verdict, through every layer."""
    desk = Desk()
    states = []
    for margin in (30, -3, -3, -3, 30, 30, 30):
        desk.seconds += 10
        desk.present()
        desk.read({("temperature_margin_celsius", CORE): margin})
        desk.read(identity=SIBLING)
        states.append(desk.round(0).snapshot.verdict.state)
    bad_rounds = [State.FAILED] * 3
    assert states == [State.OK, State.OK, State.OK, *bad_rounds, State.OK]


@pytest.mark.parametrize(
    "name",
    ["ledger", "inventory", "counters", "times", "hourly", "lapses", "results", "events", "waiting", "refusals"],
)
def test_damaged_memory_is_refused(name: str) -> None:
    """The store is told, rather than the node being called healthy; what else was remembered is known."""
    desk = Desk()
    desk.healthy_round()
    kept, after = desk.engine.memory(), Desk()
    with pytest.raises(msgspec.MsgspecError, match=f"^{name}: "):
        after.engine.restore({**kept, name: b"\xc1"})
    known = after.engine.memory()
    assert {other for other in kept if known[other] != kept[other]} <= {name}


def test_storm_that_takes_an_hour_is_seen_over_restarts() -> None:
    """12,000 corrected errors per hour, never a hundred at once, and an agent that starts anew each 20 minutes."""
    only = [entry for entry in discover() if entry.name == "memory-errors"]
    desk, told = Desk(only), False
    for number in range(240):
        if number % 40 == 39:
            memory, seconds = desk.engine.memory(), desk.seconds
            desk = Desk(only)
            desk.seconds = seconds
            desk.engine.restore(memory)
        desk.present(gpu())
        desk.read({("ecc_corrected_errors", Part(PartKind.MEMORY_BLOCK, "dram")): 99 * number})
        episodes = desk.round(30).snapshot.episodes
        told = told or any(e.key.code == "memory.corrected_rate" and e.state is EpisodeState.OPEN for e in episodes)
    assert told


def test_fault_of_no_device_is_that_of_the_node() -> None:
    """An event that names nothing known still closes the node."""
    desk = Desk()
    desk.healthy_round()
    desk.engine.take_event(event("nvidia.xid.79", pci="0000:ff:00"))
    snapshot = desk.round(1).snapshot
    assert snapshot.verdict.state is State.FAILED
    assert [e.key.device for e in snapshot.episodes if e.state is EpisodeState.OPEN] == [NODE]


@pytest.mark.parametrize(
    ("serial", "slot", "is_same"),
    [
        (f"serial of {GPU}", "0000:1b:00.0", True),
        (f"serial of {GPU}", "0000:5d:00.0", False),
        (None, "0000:1b:00.0", False),
    ],
)
def test_board_with_a_new_uuid_is_known_by_its_serial_in_its_slot(serial: str | None, slot: str, is_same: bool) -> None:
    """Its faults go on under the new name, and the old one is not missed for ever."""
    desk = Desk()
    desk.healthy_round()
    desk.read({("row_remap_failed", WHOLE): True})
    desk.read(identity=SIBLING)
    assert desk.round(0).snapshot.verdict.state is State.FAILED

    desk.present(gpu("GPU-new", slot, serial=serial), gpu(SIBLING, "0000:2b:00.0"))
    desk.read({("row_remap_failed", WHOLE): True}, identity="GPU-new")
    desk.read(identity=SIBLING)
    told = {(e.key.code, e.key.device) for e in desk.round(10).snapshot.episodes if e.state is EpisodeState.OPEN}

    assert ("memory.row_remap_failed", "GPU-new") in told
    assert ({code for code, device in told if device == GPU} == set()) is is_same
    assert (("device.missing", GPU) in told) is not is_same


def test_corrected_errors_are_counted_over_the_hour() -> None:
    """Sixty between two looks are no rate for themselves, and 10,000 within half an hour are."""
    desk = Desk([entry for entry in discover() if entry.name == "memory-errors"])
    dram = ("ecc_corrected_errors", Part(PartKind.MEMORY_BLOCK, "dram"))
    open_from = None
    for turn in range(180):
        desk.present(gpu())
        desk.read({dram: turn * 60})
        if desk.round().snapshot.episodes and open_from is None:
            open_from = turn
    assert open_from == 167  # the first look after 10,000


POWER = ("power_watts", Part(PartKind.POWER_SCOPE, "device"))
FAILED_ROWS = ("row_remap_failed", WHOLE)
ECC = ("ecc_uncorrected_errors", Part(PartKind.MEMORY_BLOCK, "dram"))
MARGIN, HEAT = ((f"temperature_{name}celsius", Part(PartKind.SENSOR, "core")) for name in ("margin_", ""))
TOLD_ONCE: dict[str, dict[Quantity, Scalar | Reading | None]] = {
    "power": {POWER: measured(Reading(POWER[0], 4_294_967.295, POWER[1]))},
    "no-number": {POWER: Reading(POWER[0], None, POWER[1], ReadingStatus.ERROR, f"{NO_VALUE}power_watts, found nan")},
    "rows": {FAILED_ROWS: measured(Reading(FAILED_ROWS[0], 7, FAILED_ROWS[1]))},
    "errors": {ECC: Reading(ECC[0], None, ECC[1], ReadingStatus.UNAVAILABLE, "in use")},
    "core": {MARGIN: None, HEAT: measured(Reading(HEAT[0], 255, HEAT[1]))},
}


@pytest.mark.parametrize("odd", TOLD_ONCE.values(), ids=TOLD_ONCE)
@pytest.mark.parametrize("restarts", [False, True])
def test_one_odd_value_of_what_one_part_tells_costs_no_verdict(
    odd: dict[Quantity, Scalar | Reading | None], restarts: bool
) -> None:
    """It is told at once, and counts when the reading before it is as old as a sample may be: 35 s at 10 s."""
    desk = Desk()
    states, told = [], []
    for number, is_odd in enumerate((True, False, True, False, *(True,) * 6, False, False)):
        if restarts and number > 1:
            memory, seconds = desk.engine.memory(), desk.seconds
            desk = Desk()
            desk.seconds = seconds
            desk.engine.restore(memory)
        desk.present()
        desk.read(odd if is_odd else {MARGIN: None} if MARGIN in odd else {})
        desk.read(identity=SIBLING)
        snapshot = desk.round(0).snapshot
        desk.seconds += 10
        states.append(snapshot.verdict.state)
        key = f"reading.{next(reversed(odd))[0]}"
        told.append(next(f.outcome for f in snapshot.findings if f.code == key and f.device == GPU))
    first, lapses, old, end = [State.UNKNOWN], [State.OK] * 3, [State.OK] * 3 + [State.UNKNOWN] * 3, [State.OK] * 2
    assert states == [*first, *lapses, *old, *end]
    assert [outcome is Outcome.PASS for outcome in told] == [False, True, False, True, *(False,) * 6, True, True]


@pytest.mark.parametrize("status", [ReadingStatus.UNSUPPORTED, ReadingStatus.DENIED, ReadingStatus.ERROR])
def test_a_reading_that_is_refused_counts_at_once(status: ReadingStatus) -> None:
    """A lack, a missing permission or an error of the driver is no odd value: it does not pass by itself."""
    desk = Desk()
    assert desk.healthy_round().snapshot.verdict.state is State.OK
    desk.seconds += 10
    desk.present()
    desk.read({POWER: Reading(POWER[0], None, POWER[1], status, "x")})
    desk.read(identity=SIBLING)
    assert desk.round(0).snapshot.verdict.state is State.UNKNOWN


BLOCK = Part(PartKind.MEMORY_BLOCK, "dram")


@pytest.mark.parametrize(
    ("before", "after", "is_told"),
    [
        (2**32 - 1, 3, False),  # wrapped at 32 bits
        (2**63 - 1, 0, False),  # wrapped at 63 bits
        (5_000, 0, False),  # the driver was loaded anew
        (5_000, 4_999, False),  # fell by one
        (0, 2**32, True),  # a torn read of its upper half is a storm as far as anybody can tell
    ],
)
def test_counter_that_falls_begins_anew_and_one_that_leaps_is_told(before: int, after: int, is_told: bool) -> None:
    """A fall is never growth, and what grows from there on counts again."""
    desk = Desk([entry for entry in discover() if entry.name in {"memory-errors", "links"}])
    counters = (("ecc_corrected_errors", BLOCK), ("link_replay_errors", Part(PartKind.LINK, "", 0)))
    codes: set[str] = set()
    for value in (before, before, after, after, after, after):
        desk.present(gpu())
        desk.read(dict.fromkeys(counters, value))
        found = desk.round().snapshot.findings
        codes |= {f.code for f in found if f.outcome is Outcome.WARN}
    assert codes == ({"memory.corrected_rate", "link.replay"} if is_told else set())
    desk.present(gpu())
    desk.read(dict.fromkeys(counters, after + 1_000_000))
    codes = {f.code for f in desk.round().snapshot.findings if f.outcome is Outcome.WARN}
    assert codes == {"memory.corrected_rate", "link.replay"}


def test_uncorrected_errors_that_a_new_driver_forgot_stay_open() -> None:
    """The counter began at 0 again, which proves nothing of the memory."""
    desk = Desk()
    counts: list[list[int]] = []
    for value in (0, 1, 1, 0, 0, 1):
        desk.present()
        desk.read({("ecc_uncorrected_errors", BLOCK): value})
        desk.read(identity=SIBLING)
        snapshot = desk.round(0).snapshot
        desk.seconds += 10
        counts.append([e.count for e in snapshot.episodes if e.key.code == "memory.uncorrected"])
        assert (snapshot.verdict.state is State.FAILED) is (len(counts) > 1)
    assert counts[:5] == [[], [1], [1], [1], [1]]


def test_links_of_a_board_with_a_new_uuid_are_remembered() -> None:
    """A link that was up under the old name is missed when it stays down."""
    before = remember(KnownDevices(), (gpu(),), {GPU: {4}}, at())
    after = remember(before, (gpu("GPU-new", serial=f"serial of {GPU}"),), {}, at(10))
    assert {key: (entry.first, entry.links_up) for key, entry in after.seen.items()} == {"GPU-new": (at(), (4,))}


ADDRESS = "0000:1b:00.0"
NAMELESS = gpu(ADDRESS, ADDRESS, uuid=None, serial=None, model="unknown", minor=None)


@pytest.mark.parametrize(
    ("told", "is_same"),
    [
        (NAMELESS, True),
        (msgspec.structs.replace(NAMELESS, model=gpu().model, pci_device_id="10de:2330"), True),
        (msgspec.structs.replace(NAMELESS, serial="of another"), False),
        (msgspec.structs.replace(NAMELESS, model="another model"), False),
        (msgspec.structs.replace(NAMELESS, pci="0000:2b:00.0"), False),
        (msgspec.structs.replace(NAMELESS, uuid="GPU-new"), False),
        (msgspec.structs.replace(NAMELESS, backend="command.acme"), False),
        (msgspec.structs.replace(NAMELESS, vendor="amd"), False),
    ],
)
def test_board_without_a_name_is_the_one_that_its_slot_remembers(told: Device, is_same: bool) -> None:
    """Unless what it does tell is another board's: nothing that a replaced board had may be laid on the new one."""
    memory = remember(KnownDevices(), (gpu(pci_device_id="10de:2330"),), {}, at())
    (found,) = recognised(memory, (told,))
    assert (found.id == GPU) is is_same
    assert not is_same or (found.uuid, found.serial) == (GPU, gpu().serial)
    assert recognised(memory, (told, gpu()))[0] is told  # it is listed elsewhere
    assert recognised(memory, (msgspec.structs.replace(told, shares_uuid=True),))[0].shares_uuid


def test_page_of_a_remembered_board_is_no_second_device() -> None:
    """The library does not list it after the reboot, the PCI bus does: missing under its name, once."""
    desk = Desk()
    desk.healthy_round()
    desk.boot = "the next boot"
    desk.engine.take_devices("host", [bare_board(ADDRESS, "nvidia"), bare_board("0000:2b:00.0", "nvidia")])
    desk.present(gpu(SIBLING, "0000:2b:00.0"))
    desk.read(identity=SIBLING)
    snapshot = desk.round().snapshot
    assert sorted(device.id for device in snapshot.devices) == [GPU, SIBLING]
    assert sorted(snapshot.device_verdicts) == [GPU, SIBLING]
    assert {entry.key.code for entry in snapshot.episodes} == {"device.missing"}


def test_device_that_could_not_tell_its_name_is_the_one_in_its_slot() -> None:
    """Lost and known by its address alone; back with its name, it is proved by its own re-test, and is not missed."""
    address = "0000:1b:00.0"
    nameless = gpu(address, address, uuid=None, serial=None, model="unknown")
    desk = Desk()
    desk.present(nameless, gpu(SIBLING, "0000:2b:00.0"))
    desk.read(identity=SIBLING)
    lost = failed(FailureKind.LOST, nameless)
    desk.engine.take_sample(msgspec.structs.replace(lost, time=desk.now))
    assert desk.round(0).snapshot.verdict.state is State.FAILED
    after = Desk()
    after.engine.restore(desk.engine.memory())
    after.boot = "the next boot"
    snapshot = after.healthy_round().snapshot
    assert snapshot.verdict.state is State.FAILED
    assert [e.key.code for e in snapshot.episodes] == ["device.lost"]
    after.engine.take_result(msgspec.structs.replace(burn_in(), started=at(5, boot=after.boot)))
    after.seconds = 70
    assert after.healthy_round().snapshot.verdict.state is State.OK
