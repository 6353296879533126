"""The fold: what opens, confirms and ends an episode, row by row of the table that says so."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fakes.views import GPU, SIBLING, at, burn_in, controller, fault, gpu

from nodevet.checks.core.model import (
    NODE,
    Action,
    Clearing,
    Device,
    Episode,
    EpisodeState,
    FaultClass,
    Finding,
    Instant,
    Outcome,
    ResultState,
    State,
    told_serial,
)
from nodevet.checks.engine.acknowledgement import are_other_boards
from nodevet.checks.engine.disproof import Evidence, Holders
from nodevet.checks.engine.episodes import Ledger, acknowledge, fold
from nodevet.checks.engine.retest import clearing_table, is_passed_retest
from nodevet.checks.engine.standing import node_verdict, verdict

PENDING, OPEN, ACKNOWLEDGED, CLEARED = (
    EpisodeState.PENDING,
    EpisodeState.OPEN,
    EpisodeState.ACKNOWLEDGED,
    EpisodeState.CLEARED,
)
EXPECTED = {
    # class: good samples, passed re-test, other serial, end of the job
    Clearing.CONDITION: (3, False, True, False),
    Clearing.UNMEASURED: (1, False, True, False),
    Clearing.HARDWARE_EVENT: (None, True, True, False),
    Clearing.WRONG_RESULT: (None, True, True, False),
    Clearing.REPLACEMENT: (None, False, True, False),
    Clearing.APPLICATION_EVENT: (None, False, True, True),
}
DEVICES = (gpu(), gpu(SIBLING, "0000:2b:00.0"))


class Story:
    """A ledger that is told one round after the other, ten seconds apart."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self.ledger = Ledger()
        self.changes: list[Episode] = []
        self.seconds = 0.0

    def round(self, *findings: Finding, now: Instant | None = None, **evidence: Any) -> Episode | None:
        """Fold *findings*, each a look at a new sample, and return the first episode left."""
        self.seconds += 10
        moment = now or at(self.seconds)
        looked = [msgspec.structs.replace(f, evidence_time=f.evidence_time or moment) for f in findings]
        evidence.setdefault("devices", DEVICES)
        self.ledger, changes = fold(self.ledger, looked, Evidence(now=moment, **evidence))
        self.changes += changes
        return self.ledger.episodes[0] if self.ledger.episodes else None

    def acknowledge(self, finding: Finding) -> None:
        """Let a person know of the episode of *finding*."""
        done = acknowledge(self.ledger, finding.key, note="seen", actor="operator")
        assert done is not None
        self.ledger, _ = done

    @property
    def cleared_by(self) -> str | None:
        """Return what ended the last episode that ended."""
        return next((c.cleared_by for c in reversed(self.changes) if c.state is CLEARED), None)


def good(finding: Finding) -> Finding:
    """Return the look at the same thing that finds it well."""
    return msgspec.structs.replace(finding, outcome=Outcome.PASS, occurrence=None)


WELL = fault("c.c", Outcome.PASS, evidence_time=at())
"""Something else that was read and is well."""


def test_table_has_the_rows_that_these_tests_hold() -> None:
    """A new class, or a changed row, needs its test here."""
    table = clearing_table()
    assert {
        row.clearing: (row.good_samples, row.passed_retest, row.other_serial, row.job_ended) for row in table.values()
    } == EXPECTED
    assert table.keys() == set(Clearing)
    assert {clearing for clearing, row in table.items() if row.damped} == {
        Clearing.CONDITION,
        Clearing.APPLICATION_EVENT,
    }
    assert table[Clearing.HARDWARE_EVENT].retest_needs_reboot == (Action.REBOOT, Action.POWER_CYCLE)


@pytest.mark.parametrize("clearing", list(Clearing))
def test_good_samples_end_only_what_the_table_lets_them_end(clearing: Clearing) -> None:
    """Three for a condition, one for a reading that is back, and never a hardware or application event."""
    story, finding = Story(), fault(clearing=clearing)
    story.round(finding)
    needed = EXPECTED[clearing][0]
    for look in range(1, 10):
        left = story.round(good(finding))
        assert (left is None) is (needed is not None and look >= needed), f"after {look} good samples"


@pytest.mark.parametrize("clearing", list(Clearing))
def test_passed_retest_ends_only_what_the_table_lets_it_end(clearing: Clearing) -> None:
    """A re-test that began after the fault was last seen disproves a hardware event; of a wrong result not any does."""
    story = Story()
    story.round(fault(clearing=clearing))
    any_will_do = EXPECTED[clearing][1] and clearing_table()[clearing].retest_products_per_wrong is None
    assert (story.round(results=(burn_in(started=15),)) is None) is any_will_do


@pytest.mark.parametrize("clearing", list(Clearing))
def test_other_serial_ends_only_what_the_table_lets_it_end(clearing: Clearing) -> None:
    """Another board sits where the faulty one was, which is nowhere else in the node."""
    story = Story()
    story.round(fault(clearing=clearing))
    replaced = (gpu("GPU-cccc"), DEVICES[1])
    assert (story.round(devices=replaced) is None) is EXPECTED[clearing][2]
    assert (story.cleared_by or "").startswith("replaced") is EXPECTED[clearing][2]


@pytest.mark.parametrize("clearing", list(Clearing))
def test_end_of_the_job_ends_only_what_the_table_lets_it_end(clearing: Clearing) -> None:
    """The process is gone from the device, as a list that was taken afterwards shows."""
    story = Story()
    story.round(fault(clearing=clearing, pid=4242, occurrence="boot:1"))
    left = story.round(processes={GPU: Holders(frozenset({7}), at(15))})
    assert (left is None) is EXPECTED[clearing][3]


def test_good_sample_of_a_counted_condition_is_one_look_however_often_it_is_judged() -> None:
    """Slow groups are judged with every fast round: the same good sample seen thrice is one good sample."""
    story, finding = Story(), fault(clearing=Clearing.CONDITION, occurrence="boot:1")
    story.round(finding)
    well = msgspec.structs.replace(good(finding), evidence_time=at(100))
    for _ in range(5):
        assert story.round(well) is not None


@pytest.mark.parametrize("clearing", list(Clearing))
def test_time_alone_ends_nothing(clearing: Clearing) -> None:
    """A year without a look leaves every episode as it was, also over a reboot."""
    story = Story()
    story.round(fault(clearing=clearing, pid=4242, occurrence="boot:1"))
    left = story.round(now=at(365 * 86_400))
    assert left is not None
    assert left.state is OPEN
    if clearing is not Clearing.APPLICATION_EVENT:
        assert story.round(now=at(60, boot="the next boot")) is not None


@pytest.mark.parametrize("clearing", list(Clearing))
def test_acknowledgement_stops_every_class_from_counting(clearing: Clearing) -> None:
    """The episode stays visible with its note, and no longer counts."""
    story, finding = Story(), fault(clearing=clearing, occurrence="boot:1")
    story.round(finding)
    story.acknowledge(finding)
    left = story.round(finding)
    assert left is not None
    assert (left.state, left.note, left.actor) == (ACKNOWLEDGED, "seen", "operator")
    assert verdict(GPU, story.ledger.episodes, [WELL]).state is State.OK


def test_acknowledged_fault_that_went_away_and_returns_counts_again() -> None:
    """Lost, acknowledged, found, lost again: the second loss is not covered by the first note."""
    story, finding = Story(), fault("device.lost", clearing=Clearing.HARDWARE_EVENT)
    story.round(finding)
    story.acknowledge(finding)
    assert story.round(good(finding)) is None
    left = story.round(finding)
    assert left is not None
    assert left.state is OPEN


@pytest.mark.parametrize(
    ("retest", "ends"),
    [
        (burn_in(started=15), True),
        (burn_in(started=5), False),  # it ran before the fault was last seen
        (burn_in(SIBLING, started=15), False),
        (burn_in(started=15, mismatches=1), False),
        (burn_in(started=15, mismatches=None), False),
        (burn_in(started=15, gemms_verified=0), False),
        (burn_in(started=15, self_test_found=5), False),
        (burn_in(started=15, self_test_planted=None, self_test_found=None), False),
        (burn_in(started=15, self_test_planted=0, self_test_found=0), False),
        (burn_in(started=15, state=ResultState.INTERRUPTED), False),
        (burn_in(started=15, state=ResultState.DIED), False),
    ],
)
def test_only_a_real_retest_disproves(retest: Any, ends: bool) -> None:
    """Finished, on this device, after the fault, verified, nothing wrong, and its checker proven."""
    story = Story()
    story.round(fault(clearing=Clearing.HARDWARE_EVENT))
    assert (story.round(results=(retest,)) is None) is ends


@pytest.mark.parametrize("action", list(Action))
def test_retest_counts_only_after_the_reboot_that_the_fault_asks_for(action: Action) -> None:
    """A reboot permits the re-test and replaces none."""
    story, finding = Story(), fault(clearing=Clearing.HARDWARE_EVENT, action=action)
    story.round(finding)
    needs_reboot = action in (Action.REBOOT, Action.POWER_CYCLE)
    assert (story.round(results=(burn_in(started=15),)) is not None) is needs_reboot
    if needs_reboot:
        later = at(60, boot="the next boot")
        assert story.round(now=later) is not None
        passed = burn_in(started=100)
        passed = msgspec.structs.replace(passed, started=at(100, boot="the next boot"))
        assert story.round(now=at(200, boot="the next boot"), results=(passed,)) is None


def test_retest_of_an_earlier_boot_disproves_nothing_whatever_the_clock_says() -> None:
    """The clock was lost with the boot: what ran before it seems to be later than what came after it."""
    story = Story()
    story.round(fault(clearing=Clearing.HARDWARE_EVENT), now=at(60, boot="the next boot", wall=1_000.0))
    old = (burn_in(started=-300),)
    assert story.round(now=at(70, boot="the next boot", wall=1_010.0), results=old) is not None
    assert story.round(now=at(70, boot="a third boot", wall=1_020.0), results=old) is not None


def test_retest_of_the_present_boot_counts_although_the_clock_was_set_back() -> None:
    """It is later because its boot is."""
    story = Story()
    story.round(fault(clearing=Clearing.HARDWARE_EVENT))
    passed = msgspec.structs.replace(burn_in(), started=at(0, boot="the next boot", wall=1_000.0))
    assert story.round(now=at(99, boot="the next boot", wall=1_099.0), results=(passed,)) is None


def test_retest_of_one_format_disproves_no_wrong_result_of_another() -> None:
    """Products in bf16 are computed by other units than those in fp32: the wrong one must be run again."""
    story = Story()
    wrong = msgspec.structs.replace(burn_in(started=-100, mismatches=2), dtype="bf16")
    other = msgspec.structs.replace(burn_in(started=15), dtype="fp32")
    story.round(fault(clearing=Clearing.HARDWARE_EVENT))
    assert story.round(results=(wrong, other)) is not None
    assert story.round(results=(msgspec.structs.replace(burn_in(started=25), dtype="bf16"), other)) is None


def test_fault_of_the_node_is_disproved_by_all_its_accelerators() -> None:
    """One device that passes says nothing about a driver that hung."""
    story = Story()
    story.round(fault("reader.hung", device=NODE, clearing=Clearing.HARDWARE_EVENT))
    assert story.round(results=(burn_in(GPU, started=15),)) is not None
    assert story.round(results=(burn_in(GPU, started=25), burn_in(SIBLING, started=25))) is None


def test_settled_occurrence_does_not_open_its_episode_again() -> None:
    """The counter still shows the error that a re-test disproved; the next error is new."""
    story, finding = Story(), fault(clearing=Clearing.HARDWARE_EVENT, occurrence="boot:1")
    story.round(finding)
    assert story.round(results=(burn_in(started=15),)) is None
    for _ in range(3):
        assert story.round(finding) is None
    assert story.round(msgspec.structs.replace(finding, occurrence="boot:2")) is not None


def test_counter_that_began_again_may_show_the_same_value() -> None:
    """After a good look (a counter at zero) the same value is a new fault."""
    story, finding = Story(), fault(clearing=Clearing.HARDWARE_EVENT, occurrence="boot:1")
    story.round(finding)
    story.round(results=(burn_in(started=15),))
    story.round(good(finding))
    assert story.round(finding) is not None


def test_missing_device_is_known_by_its_remembered_serial() -> None:
    """It is absent by definition; its replacement is recognised all the same."""
    story, gone = Story(), fault("device.missing", clearing=Clearing.HARDWARE_EVENT)
    story.round(gone, devices=(DEVICES[1],), remembered=DEVICES)
    assert story.round(gone, devices=(DEVICES[1],), remembered=DEVICES) is not None
    assert story.round(devices=(gpu("GPU-cccc"), DEVICES[1]), remembered=DEVICES) is None


def test_swapped_boards_are_not_replaced_boards() -> None:
    """The faulty board moved to another slot: it is still in the node."""
    story = Story()
    story.round(fault(clearing=Clearing.REPLACEMENT))
    moved = (gpu(SIBLING), gpu(GPU, "0000:2b:00.0"))
    assert story.round(devices=moved) is not None


@pytest.mark.parametrize("serials", [("692400000103", "0x000000005EED0103"), ("0x000000005EED0103", "692400000103")])
def test_board_that_tells_the_number_of_its_chip_replaced_nothing(serials: tuple[str, str]) -> None:
    """Where its serial cannot be read that number stands in; its UUID has it. Any other serial is another board's."""
    before, after = (gpu(serial=serial, uuid="GPU-000000005eed0103") for serial in serials)
    story = Story()
    story.round(fault(clearing=Clearing.HARDWARE_EVENT), devices=(before, DEVICES[1]))
    assert story.round(devices=(after, DEVICES[1])) is not None
    other = gpu(serial="692400000999", uuid=after.uuid)
    assert (story.round(devices=(other, DEVICES[1])) is None) is (serials[0] == "692400000103")


@pytest.mark.parametrize("none", ["0", "0000000000000", "N/A", "unknown", "", None])
def test_board_whose_serial_was_none_was_not_replaced(none: str | None) -> None:
    """Zeros and words for none are no serial: neither before the board tells its own nor after."""
    for serials in ((none, "1650000000003"), ("1650000000003", none)):
        before, after = (gpu(serial=serial) for serial in serials)
        story = Story()
        story.round(fault(clearing=Clearing.HARDWARE_EVENT), devices=(before, DEVICES[1]))
        assert story.round(devices=(after, DEVICES[1])) is not None
        assert not are_other_boards(*serials)
    assert told_serial("1650000000003") == "1650000000003"


def test_neighbour_whose_address_changed_replaced_nothing() -> None:
    """A board fell out, the firmware numbered the buses anew, and another one of the node now has its address."""
    story, gone = Story(), fault("device.missing", clearing=Clearing.HARDWARE_EVENT)
    left = (gpu(SIBLING),)
    assert story.round(gone, devices=left, remembered=DEVICES, moved=frozenset({SIBLING})) is not None


def test_serial_that_was_never_told_cannot_differ() -> None:
    """A board that begins to tell its serial is no other board."""
    story = Story()
    story.round(fault(clearing=Clearing.REPLACEMENT), devices=(gpu(serial=""),))
    assert story.round(devices=(gpu(),)) is not None


def test_list_of_processes_from_before_the_event_ends_nothing() -> None:
    """The process was not there yet when the list was taken."""
    story = Story()
    story.round(fault(clearing=Clearing.APPLICATION_EVENT, pid=4242, occurrence="boot:1"))
    assert story.round(processes={GPU: Holders(frozenset(), at(5))}) is not None
    assert story.round(processes={GPU: Holders(frozenset({4242}), at(15))}) is not None
    assert story.round(processes={}) is not None
    assert story.round(processes={GPU: Holders(frozenset(), at(25))}) is None


@pytest.mark.parametrize(
    ("looks", "state"),
    [
        ("b", PENDING), ("bb", PENDING), ("bbb", OPEN), ("bgb", PENDING), ("bgbgb", OPEN), ("bggbgb", PENDING),
        ("bggggg", None), ("buu", PENDING), ("bub", PENDING), ("bubub", OPEN), ("bbg", PENDING),
    ],
)  # fmt: skip
def test_measured_fault_needs_three_of_five_looks(looks: str, state: EpisodeState | None) -> None:
    """Bad, good and unmeasured looks in a row: what could not be measured neither confirms nor clears."""
    story, finding = Story(), fault(needed=3, window=5, outcome=Outcome.WARN)
    kinds = {"b": finding, "g": good(finding), "u": msgspec.structs.replace(finding, outcome=Outcome.UNMEASURED)}
    episode = None
    for letter in looks:
        episode = story.round(kinds[letter])
    assert (episode.state if episode else None) is state


def test_one_sample_is_one_look() -> None:
    """Evaluating again without a new sample confirms nothing and clears nothing."""
    story, finding = Story(), fault(needed=3, window=5, evidence_time=at(1))
    episode = None
    for _ in range(10):
        episode = story.round(finding)
    assert episode is not None
    assert episode.state is PENDING


def test_unmeasured_look_breaks_the_row_of_good_ones() -> None:
    """Two good samples, one that could not be measured, two good ones: not three in a row."""
    story, finding = Story(), fault()
    blind = msgspec.structs.replace(finding, outcome=Outcome.UNMEASURED)
    story.round(finding)
    for look in (good(finding), good(finding), blind, good(finding), good(finding)):
        assert story.round(look) is not None
    assert story.round(good(finding)) is None


@pytest.mark.parametrize("clearing", list(Clearing))
def test_a_hard_failure_that_only_warnings_follow_becomes_the_warning(clearing: Clearing) -> None:
    """After as many looks as end its condition; what only evidence ends stays, however mild the looks are."""
    looks = clearing_table()[clearing].good_samples
    story = Story()
    story.round(fault(message="asks for a reboot", clearing=clearing))
    seen = []
    for _ in range(6):
        story.round(fault(outcome=Outcome.WARN, message="asks for less", clearing=clearing))
        said = verdict(GPU, story.ledger.episodes, [])
        seen.append((said.state, said.hard, said.reason))
    failed, degraded = (State.FAILED, True, "asks for a reboot"), (State.DEGRADED, False, "asks for less")
    assert seen == ([failed] * 6 if looks is None else [failed] * (looks - 1) + [degraded] * (7 - looks))
    story.round(fault(clearing=clearing))
    assert verdict(GPU, story.ledger.episodes, []).hard


@pytest.mark.parametrize("between", ["fail", "unmeasured", "blind"])
def test_only_looks_in_a_row_make_a_warning_of_a_hard_failure(between: str) -> None:
    """A failure and a look that could not be taken begin the count anew; warnings never count as good looks."""
    story = Story()
    story.round(fault())
    mild = fault(outcome=Outcome.WARN)
    other = {
        "fail": fault(),
        "unmeasured": fault(outcome=Outcome.UNMEASURED),
        "blind": fault(outcome=Outcome.UNMEASURED, required=True),
    }[between]
    for _ in range(4):
        for finding in (mild, mild, other):
            story.round(finding)
            assert verdict(GPU, story.ledger.episodes, []).hard
    for finding in (mild, good(mild), good(mild)):
        story.round(finding)
    assert len(story.ledger.episodes) == 1, "a warning was counted as a good look"


def test_bad_look_begins_the_count_of_good_ones_anew() -> None:
    """Three in a row, not three in all: a flapping reading stays open."""
    story, finding = Story(), fault(clearing=Clearing.CONDITION)
    story.round(finding)
    for look in (good(finding), good(finding), finding, good(finding), good(finding)):
        assert story.round(look) is not None
    assert story.round(good(finding)) is None


def test_required_reading_that_is_missing_counts_at_once() -> None:
    """Inability to measure needs no confirmation, and confirms no fault."""
    story = Story()
    bad = fault(needed=3, window=5, outcome=Outcome.WARN)
    blind = msgspec.structs.replace(bad, outcome=Outcome.UNMEASURED, required=True)
    story.round(bad)
    unknown = story.round(blind)
    assert unknown is not None
    assert (unknown.state, unknown.outcome) == (OPEN, Outcome.UNMEASURED)
    still = story.round(bad)
    assert still is not None
    assert still.outcome is Outcome.UNMEASURED
    confirmed = story.round(bad)
    assert confirmed is not None
    assert confirmed.outcome is Outcome.WARN


def test_unmeasured_look_is_not_when_the_fault_was_last_seen() -> None:
    """Else a re-test could never be later."""
    story, finding = Story(), fault(clearing=Clearing.HARDWARE_EVENT)
    story.round(finding)
    story.round(msgspec.structs.replace(finding, outcome=Outcome.UNMEASURED, required=True))
    assert story.round(results=(burn_in(started=15),)) is None


def test_reading_that_need_not_be_there_opens_nothing() -> None:
    """A healthy machine without a feature is healthy."""
    story = Story()
    assert story.round(fault(outcome=Outcome.UNMEASURED), fault(outcome=Outcome.SKIPPED)) is None


def test_journal_keeps_what_changed_and_nothing_else() -> None:
    """Opened, counted, cleared: three records over any number of looks."""
    story, finding = Story(), fault(occurrence="boot:1")
    for _ in range(20):
        story.round(finding)
    story.round(msgspec.structs.replace(finding, occurrence="boot:2"))
    for _ in range(20):
        story.round(good(finding))
    assert [(change.state, change.count) for change in story.changes] == [(OPEN, 1), (OPEN, 2), (CLEARED, 2)]


def test_verdict_of_a_device_that_nothing_passed_is_unknown() -> None:
    """Skipped and unmeasured findings are no health."""
    findings = [fault(outcome=Outcome.SKIPPED), fault("b.b", Outcome.UNMEASURED)]
    assert verdict(GPU, (), findings).state is State.UNKNOWN
    assert verdict(GPU, (), []).state is State.UNKNOWN
    assert verdict(GPU, (), [*findings, WELL]).state is State.OK


def test_unknown_says_what_could_not_be_measured() -> None:
    """Such as that the device is released; a person would search long for why nothing was evaluated."""
    released = fault("device.unread", Outcome.UNMEASURED, message="GPU 0: released and not read")
    assert verdict(GPU, (), [fault(outcome=Outcome.SKIPPED), released]).reason == released.message
    assert verdict(GPU, (), []).reason == "no check judged a value"


def test_being_listed_proves_no_health() -> None:
    """A pass that rests on nothing read is none, unless it is all that was asked for."""
    listed = fault("device.missing", Outcome.PASS)
    assert verdict(GPU, (), [listed]).state is State.UNKNOWN
    assert verdict(GPU, (), [listed], partial=True).state is State.OK


@pytest.mark.parametrize(
    ("outcome", "state"),
    [(Outcome.FAIL, State.FAILED), (Outcome.WARN, State.DEGRADED), (Outcome.UNMEASURED, State.UNKNOWN)],
)
def test_verdict_follows_the_worst_open_episode(outcome: Outcome, state: State) -> None:
    """Failed before unknown before degraded before ok, whatever else passed."""
    story = Story()
    story.round(fault("a.warn", Outcome.WARN), fault("b.bad", outcome, required=True))
    assert verdict(GPU, story.ledger.episodes, [WELL]).state is state


def test_fault_of_an_application_does_not_count_against_the_device() -> None:
    """A user's illegal access is told and closes no node."""
    story = Story()
    story.round(fault(outcome=Outcome.FAIL, fault_class=FaultClass.APPLICATION))
    assert verdict(GPU, story.ledger.episodes, [WELL]).state is State.OK


def test_verdict_of_the_node_is_that_of_its_worst_device() -> None:
    """It names the device, counts the others and asks for the hardest action."""
    story = Story()
    story.round(
        fault("a.a", Outcome.WARN, action=Action.REPLACE),
        fault("b.b", Outcome.FAIL, device=SIBLING, action=Action.REBOOT),
    )
    verdicts = {device: verdict(device, story.ledger.episodes, []) for device in (GPU, SIBLING)}
    whole = node_verdict(verdicts, {GPU: "GPU 0", SIBLING: "GPU 1"})
    assert (whole.state, whole.action, whole.hard) == (State.FAILED, Action.REPLACE, True)
    assert "GPU 1" in whole.reason
    assert "1 more" in whole.reason
    assert node_verdict({}, {}).state is State.UNKNOWN


def test_what_could_not_be_measured_asks_for_nothing_beside_a_failure() -> None:
    """The reset that the fault asks for comes first; perhaps the rest can be read again after it."""
    story = Story()
    story.round(
        fault("a.a", Outcome.FAIL, action=Action.RESET_DEVICE),
        fault("b.b", Outcome.UNMEASURED, required=True, action=Action.REBOOT),
    )
    assert verdict(GPU, story.ledger.episodes, []).action is Action.RESET_DEVICE


def test_one_hard_failure_makes_the_node_s_failure_hard() -> None:
    """Although the device that is told first failed by a measured threshold."""
    story, measured = Story(), fault("a.a", needed=2, window=2, action=Action.REPLACE)
    story.round(measured)
    story.round(measured, fault("b.b", device=SIBLING, action=Action.WATCH))
    verdicts = {device: verdict(device, story.ledger.episodes, []) for device in (GPU, SIBLING)}
    assert (verdicts[GPU].hard, verdicts[SIBLING].hard) == (False, True)
    assert node_verdict(verdicts, {}).hard


def test_retest_needs_every_proof() -> None:
    """The healthy twin of the tests above."""
    assert is_passed_retest(burn_in())
    assert not is_passed_retest(burn_in(gemms_verified=None))


def test_devices_of_other_kinds_disprove_nothing_for_the_node() -> None:
    """A memory controller is not burned in."""
    story = Story()
    story.round(fault("reader.hung", device=NODE, clearing=Clearing.HARDWARE_EVENT))
    others: tuple[Device, ...] = (controller(),)
    assert story.round(devices=others, results=(burn_in("mc0", started=15),)) is not None
