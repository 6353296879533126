"""A person's word at an episode: repeats update it, only what is worse opens it anew, and its expiry closes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from fakes.views import GPU, SIBLING, at, burn_in, fault, gpu
from hypothesis import given, settings
from hypothesis import strategies as st

from nodevet.agent.daemon.term import LONGEST_NOTE, LONGEST_SECONDS, checked_note, end_of
from nodevet.checks.core.errors import UsageError
from nodevet.checks.core.model import (
    Action,
    Clearing,
    Device,
    Episode,
    EpisodeState,
    FaultClass,
    Finding,
    Instant,
    Outcome,
    State,
)
from nodevet.checks.engine.acknowledgement import is_announced, is_over, standing
from nodevet.checks.engine.disproof import Evidence
from nodevet.checks.engine.episodes import Ledger, acknowledge, fold
from nodevet.checks.engine.standing import node_verdict, verdict

OPEN, ACKNOWLEDGED, CLEARED = EpisodeState.OPEN, EpisodeState.ACKNOWLEDGED, EpisodeState.CLEARED
WELL = fault("c.c", Outcome.PASS, evidence_time=at())
DAY = 86_400.0


class Case:
    """One fault over time, ten seconds per round."""

    def __init__(self, **changes: Any) -> None:
        """Begin with the fault seen once."""
        self.finding = fault(**{"clearing": Clearing.HARDWARE_EVENT, "occurrence": "boot:1", **changes})
        self.ledger, self.seconds = Ledger(), 0.0
        self.changes: list[Episode] = []
        self.look()

    def look(self, devices: Iterable[Device] = (gpu(), gpu(SIBLING, "0000:2b:00.0")), **changes: Any) -> Case:
        """See the fault again, with *changes* to its finding."""
        self.seconds += 10
        seen = msgspec.structs.replace(self.finding, **{"evidence_time": at(self.seconds), **changes})
        return self.rest([seen], devices)

    def well(self) -> Case:
        """See that it is well."""
        return self.look(outcome=Outcome.PASS, occurrence=None)

    def rest(self, findings: Iterable[Finding] = (), devices: Iterable[Device] = (gpu(),), **evidence: Any) -> Case:
        """Fold *findings* now."""
        now = at(self.seconds)
        self.ledger, done = fold(self.ledger, findings, Evidence(now=now, devices=tuple(devices), **evidence))
        self.changes += done
        return self

    def wait(self, seconds: float) -> Case:
        """Let time pass and judge without a look."""
        self.seconds += seconds
        return self.rest()

    def know(self, until: float | None = None) -> Case:
        """Let a person acknowledge it, for so many seconds."""
        now = at(self.seconds)
        end = None if until is None else at(self.seconds + until)
        done = acknowledge(self.ledger, self.finding.key, note="INC-7", actor="uid 0", time=now, until=end)
        assert done is not None
        self.ledger = done[0]
        return self

    @property
    def episode(self) -> Episode:
        """The one episode."""
        (episode,) = self.ledger.episodes
        return episode

    @property
    def state(self) -> State:
        """What is said of the device."""
        return verdict(GPU, self.ledger.episodes, [WELL]).state


@pytest.mark.parametrize("clearing", list(Clearing))
def test_repeats_of_what_is_acknowledged_update_it(clearing: Clearing) -> None:
    """A corrected-error counter that grows for a thousand looks stays acknowledged, with its count and last sight."""
    case = Case(clearing=clearing).know()
    for number in range(2, 1002):
        case.look(occurrence=f"boot:{number}", message=f"{number} errors")
    assert (case.episode.state, case.episode.count) == (ACKNOWLEDGED, 1001)
    assert (case.episode.last_seen, case.episode.finding.message) == (at(case.seconds), "1001 errors")
    assert case.state is State.OK


@pytest.mark.parametrize("known", list(Action))
@pytest.mark.parametrize("now", list(Action))
def test_only_a_harder_action_opens_it_anew(known: Action, now: Action) -> None:
    """Than the one that the person knew, however mild the repeats in between were."""
    case = Case(action=known).know()
    case.look(occurrence="boot:2", action=Action.NONE)
    case.look(occurrence="boot:3", action=now)
    assert case.episode.state is (OPEN if now.rank > known.rank else ACKNOWLEDGED)


def test_a_worse_outcome_with_the_same_action_updates_it() -> None:
    """What is to be done is what the person knew; the failure is told as acknowledged, and may close no gate."""
    case = Case(outcome=Outcome.WARN, clearing=Clearing.CONDITION, message="hot").know()
    case.look(outcome=Outcome.UNMEASURED, required=True)
    assert case.episode.state is ACKNOWLEDGED
    case.look(outcome=Outcome.FAIL, message="very hot")
    assert (case.episode.state, case.episode.outcome) == (ACKNOWLEDGED, Outcome.FAIL)
    said = verdict(GPU, case.ledger.episodes, [WELL])
    assert (said.state, said.hard) == (State.OK, False)
    assert said.reason.startswith("1 acknowledged failure (very hot; ")
    assert case.look(outcome=Outcome.FAIL, action=Action.REPLACE).episode.state is OPEN


def test_a_word_about_what_was_not_measured_covers_no_fault() -> None:
    """Nobody knew of one, whatever it asks for."""
    case = Case(outcome=Outcome.UNMEASURED, required=True, occurrence=None, action=Action.REPLACE).know()
    assert case.episode.state is ACKNOWLEDGED
    case.look(outcome=Outcome.WARN, action=Action.WATCH)
    assert (case.episode.state, case.state) == (OPEN, State.DEGRADED)


def test_another_part_or_device_is_another_episode() -> None:
    """The word is about one code on one part of one device."""
    case = Case().know()
    case.look(device=SIBLING)
    assert {entry.key.device: entry.state for entry in case.ledger.episodes} == {GPU: ACKNOWLEDGED, SIBLING: OPEN}


def test_another_board_under_the_same_name_is_another_episode() -> None:
    """A board without a UUID is known by its slot: the fault of its successor is no repeat, and none is swallowed."""
    case = Case().know()
    case.look(devices=(gpu(serial="another"),))
    assert (case.episode.state, case.episode.serial) == (OPEN, "another")
    assert [(entry.state, entry.serial) for entry in case.changes[-2:]] == [(CLEARED, gpu().serial), (OPEN, "another")]


def test_a_look_at_a_board_that_is_gone_opens_nothing() -> None:
    """That it is missing was found before its successor was recognised: no second episode follows."""
    case = Case(occurrence=None)
    case.look(devices=(gpu("GPU-cccc"),))
    assert (case.ledger.episodes, case.changes[-1].state) == ((), CLEARED)


def test_what_is_acknowledged_stays_in_the_reason() -> None:
    """How many, what, who, when, until when and why; the state is ok."""
    case = Case(message="GPU 6: wrong results").know(7 * DAY)
    said = verdict(GPU, case.ledger.episodes, [WELL])
    assert said.state is State.OK
    for part in ("1 acknowledged failure (GPU 6: wrong results; acknowledged by uid 0 on ", ", until ", ": INC-7)"):
        assert part in said.reason
    assert node_verdict({GPU: said}, {}, case.ledger.episodes).reason == said.reason


def test_the_reason_of_another_fault_counts_what_is_acknowledged() -> None:
    """A failure beside it comes first."""
    case = Case().know()
    case.look(code="b.b", message="GPU 0: lost")
    said = verdict(GPU, case.ledger.episodes, [WELL])
    node = node_verdict({GPU: said}, {GPU: "GPU 0"}, case.ledger.episodes)
    assert (node.state, node.reason) == (State.FAILED, "GPU 0: lost; 1 acknowledged failure")


def test_an_acknowledged_event_of_an_application_is_no_failure_of_the_node() -> None:
    """It counted against nothing before."""
    case = Case(fault_class=FaultClass.APPLICATION).know()
    assert verdict(GPU, case.ledger.episodes, [WELL]).reason == "healthy"


def test_an_expiry_closes_nothing_without_a_new_look() -> None:
    """For an event that is told once: degraded, soft, with its words, for a year if nobody looks."""
    case = Case(message="GPU 6: lost").know(DAY)
    assert case.wait(DAY - 20).state is State.OK
    for passed in (20, 1, 365 * DAY):
        case.wait(passed)
        said = verdict(GPU, case.ledger.episodes, [WELL])
        assert (said.state, said.hard, said.reason) == (State.DEGRADED, False, "acknowledgement expired: GPU 6: lost")
        assert case.episode.state is ACKNOWLEDGED
    assert [entry.expired is not None for entry in case.changes] == [False, True]


def test_the_expiry_makes_nothing_known_that_is_not_measured() -> None:
    """A device that nobody could read is unknown before, under and after the word about that."""
    case = Case(clearing=Clearing.CONDITION, occurrence=None, outcome=Outcome.UNMEASURED, required=True)
    states = []
    for _ in range(3):
        states.append(verdict(GPU, case.ledger.episodes, [case.finding]).state)
        case = case.know(until=DAY) if len(states) == 1 else case.wait(2 * DAY)
    assert case.episode.expired is not None
    assert states == [State.UNKNOWN] * 3


def test_the_first_bad_look_after_the_expiry_opens_it() -> None:
    """The look that was taken before the expiry was noticed is none, however often it is judged."""
    case = Case(clearing=Clearing.CONDITION, occurrence=None).know(DAY)
    case.wait(2 * DAY)
    old = at(case.seconds)
    case.seconds += 1
    for _ in range(3):
        case.rest([msgspec.structs.replace(case.finding, evidence_time=old)])
        assert case.episode.state is ACKNOWLEDGED
    case.look()
    assert (case.episode.state, case.state) == (OPEN, State.FAILED)
    assert verdict(GPU, case.ledger.episodes, [WELL]).hard


def test_a_passed_retest_ends_an_expired_one() -> None:
    """Evidence ends it as ever; a quiet look at a hardware event does not."""
    case = Case().know(DAY).wait(2 * DAY).well()
    assert case.episode.expired is not None
    assert case.rest(results=(burn_in(started=case.seconds - 5),)).ledger.episodes == ()


def test_another_word_takes_the_place_of_the_first() -> None:
    """Before its expiry and after it."""
    case = Case().know(DAY).wait(2 * DAY).know(DAY)
    assert (case.state, case.episode.expired) == (State.OK, None)
    assert case.wait(2 * DAY).state is State.DEGRADED


@pytest.mark.parametrize("known", [Outcome.WARN, Outcome.FAIL])
def test_another_word_takes_nothing_back_that_was_known(known: Outcome) -> None:
    """Who makes the term longer while less is asked for still knows of the reboot, unless the first word expired."""
    case = Case(action=Action.REBOOT, outcome=known).know(until=DAY)
    case.look(action=Action.RESET_DEVICE).know(until=2 * DAY)
    assert case.look(action=Action.REBOOT).episode.state is ACKNOWLEDGED
    case.look(action=Action.RESET_DEVICE).wait(3 * DAY).know(until=DAY)
    assert case.look(action=Action.REBOOT).episode.state is OPEN


def test_a_word_with_a_term_covers_returns_within_it() -> None:
    """A link that comes and goes until its cable is there; a worse return, and one after the term, count."""
    case = Case(clearing=Clearing.CONDITION, occurrence=None, action=Action.WATCH).know(DAY)
    for _ in range(5):
        assert case.well().well().well().ledger.episodes == ()
        assert (case.look().episode.state, case.episode.note, case.episode.actor) == (ACKNOWLEDGED, "INC-7", "uid 0")
    case.well().well().well()
    assert case.look(action=Action.REPLACE).episode.state is OPEN
    case.know(DAY).well().well().well().wait(2 * DAY)
    assert case.look().episode.state is OPEN


def test_a_word_without_a_term_ends_with_the_fault() -> None:
    """It was about what was there."""
    case = Case(clearing=Clearing.CONDITION, occurrence=None).know().well().well().well()
    assert case.look().episode.state is OPEN


@pytest.mark.parametrize("looks", [1, 2])
def test_what_is_over_and_returns_is_seen_after_one_good_look_too(looks: int) -> None:
    """A counter that a reset set back counts to the same number once more: before, one good look hid it for ever."""
    case = Case(occurrence="1").know()
    for _ in range(looks):
        case.well()
    assert case.ledger.episodes == ()
    assert case.look().episode.state is OPEN


def test_a_word_covers_no_return_on_another_board() -> None:
    """The return is that of its successor."""
    case = Case(clearing=Clearing.CONDITION, occurrence=None).know(DAY).well().well().well()
    assert case.look(devices=(gpu(serial="another"),)).episode.state is OPEN


CHIP = "0x000000005EED0103"
NOT_COMPARED = [(None, "1"), ("1", None), ("692400000103", CHIP), (CHIP, "692400000103"), ("", "1")]


@pytest.mark.parametrize(("before", "after"), NOT_COMPARED)
def test_a_word_covers_a_return_on_the_board_whose_serial_was_not_told(before: str | None, after: str | None) -> None:
    """One that was never told cannot differ, nor does the number of an AMD board's chip from its serial."""
    case = Case(clearing=Clearing.CONDITION, occurrence=None)
    case.ledger = Ledger()
    case.look(devices=(gpu(serial=before),)).know(DAY)
    for _ in range(3):
        case.look(devices=(gpu(serial=before),), outcome=Outcome.PASS)
    assert case.look(devices=(gpu(serial=after),)).episode.state is ACKNOWLEDGED


@pytest.mark.parametrize("jump", [-10 * 365 * DAY, -DAY, DAY, 10 * 365 * DAY])
def test_a_change_of_the_wall_clock_expires_nothing_and_revives_nothing(jump: float) -> None:
    """Within a boot only the time since boot counts."""
    until = at(DAY)
    before, after = at(DAY - 1), at(DAY + 1)

    def shifted(now: Instant) -> Instant:
        return msgspec.structs.replace(now, wall_seconds=now.wall_seconds + jump)

    assert not is_over(until, shifted(before))
    assert is_over(until, shifted(after))


def test_over_a_reboot_the_wall_clock_tells_whether_it_is_over() -> None:
    """Nothing else knows how long the machine was off."""
    until = at(DAY)
    assert not is_over(until, at(5, boot="next", wall=until.wall_seconds - 1))
    assert is_over(until, at(5, boot="next", wall=until.wall_seconds + 1))


@pytest.mark.parametrize(
    ("clock", "left"),
    [(DAY, 2 * DAY), (10 * DAY, -7 * DAY), (-30 * 365 * DAY, 3 * DAY)],
    ids=["right", "over while it was off", "lost"],
)
def test_after_a_reboot_the_wall_clock_is_asked_once(clock: float, left: float) -> None:
    """What is left is counted by the boot from then on; a clock that was lost gives the whole term, not decades."""
    case = Case().know(3 * DAY)
    acknowledged = case.episode.acknowledged
    assert acknowledged is not None
    for jump in (0.0, 400 * DAY, -400 * DAY):
        now = at(7, boot="next", wall=acknowledged.wall_seconds + clock + jump)
        case.ledger, changes = fold(case.ledger, [], Evidence(now=now))
        assert case.episode.until is not None
        assert case.episode.until.seconds_since(now) == pytest.approx(left)
        assert (case.episode.expired is not None) is (left < 0)
        assert [entry.expired is not None for entry in changes] == ([True] if left < 0 and not jump else [])


def test_an_expiry_is_announced_a_day_ahead() -> None:
    """Not earlier, and not any more when it is over."""
    case = Case().know(3 * DAY)
    told = []
    for _ in range(8):
        told.append(is_announced(case.episode, at(case.seconds)))
        case.wait(DAY / 2)
    assert told == [False] * 4 + [True] * 2 + [False] * 2


@given(st.lists(st.sampled_from(["bad", "well", "blind", "worse", "wait", "know", "term"]), max_size=30))
@settings(max_examples=150, deadline=None)
def test_any_course_shows_what_is_acknowledged_and_opens_only_by_a_look(course: list[str]) -> None:
    """An acknowledged failure is in the reason of every verdict; no wait opens one, and none is dropped in silence."""
    case = Case(action=Action.WATCH)
    for step in course:
        before = case.ledger.episodes
        match step:
            case "bad":
                case.look(occurrence=f"boot:{case.seconds}")
            case "well":
                case.well()
            case "blind":
                case.look(outcome=Outcome.UNMEASURED)
            case "worse":
                case.look(occurrence=f"boot:{case.seconds}", action=Action.REPLACE)
            case "wait":
                case.wait(DAY / 2)
            case _ if before:
                case.know(DAY if step == "term" else None)
        after = case.ledger.episodes
        if step == "wait":
            assert [entry.state for entry in after] == [entry.state for entry in before]
        if before and not after:
            assert step == "well"
            assert before[0].state is ACKNOWLEDGED, "a hardware event ended by a good look"
        said = verdict(GPU, after, [WELL])
        for entry in standing(after):
            assert entry.note is not None
            assert entry.note in said.reason
            assert "acknowledged failure" in said.reason
        if any(entry.expired for entry in after):
            assert (said.state, said.hard) in ((State.DEGRADED, False), (State.FAILED, True))
            assert said.state is State.DEGRADED or any(entry.state is OPEN for entry in after)


NOW = at(1000)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30m", 1800), ("12h", 43_200), ("7d", 7 * DAY), ("2w", 14 * DAY), ("1.5d", 1.5 * DAY), ("366d", 366 * DAY)],
)
def test_a_duration_is_counted_from_now(text: str, seconds: float) -> None:
    """On the clock of the boot, and on the wall clock for people."""
    end = end_of(text, NOW)
    assert (end.boot_id, end.boottime_ns) == (NOW.boot_id, NOW.boottime_ns + round(seconds * 1e9))
    assert end.wall_seconds == NOW.wall_seconds + seconds


@pytest.mark.parametrize(
    ("text", "wall"),
    [
        ("2026-12-01", 1_796_083_200.0),
        ("2026-12-01T08:00", 1_796_112_000.0),
        ("2026-12-01T08:00Z", 1_796_112_000.0),
        ("2026-12-01T08:00+02:00", 1_796_104_800.0),
    ],
)
def test_a_date_is_in_utc_unless_it_says_otherwise(text: str, wall: float) -> None:
    """A day ends the word with its beginning."""
    now = msgspec.structs.replace(NOW, wall_seconds=1_795_000_000.0)
    assert end_of(text, now).wall_seconds == wall


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "write a duration"), ("7", "write a duration"), ("7 d", "write a duration"), ("soon", "write a duration"),
        ("-7d", "write a duration"), ("1e9d", "write a duration"), ("\u0667d", "write a duration"),
        ("2026-13-01", "write a duration"), ("2026-02-30", "write a duration"), ("01.12.2026", "write a duration"),
        ("0d", "not after now"), ("1999-12-31", "not after now"),
        ("367d", "at most 366 days"), ("999999999w", "at most 366 days"), ("9999-12-31", "at most 366 days"),
    ],
)  # fmt: skip
def test_a_wrong_term_is_refused_with_what_is_allowed(text: str, said: str) -> None:
    """In one line that names it."""
    with pytest.raises(UsageError, match=said) as caught:
        end_of(text, NOW)
    assert f"--until {text}" in str(caught.value)


_DATES = st.from_regex(
    r"[0-9]{4}-[01][0-9]-[0-3][0-9]([T ][0-2][0-9]:[0-6][0-9](Z|[+-][0-9]{2}:[0-9]{2})?)?", fullmatch=True
)


@given(text=_DATES | st.from_regex(r"[0-9]{1,9}(\.[0-9]{1,9})?[mhdw]", fullmatch=True) | st.text(max_size=20))
def test_any_term_is_a_moment_within_a_year_or_refused(text: str) -> None:
    """Whatever is typed, one line answers it."""
    try:
        end = end_of(text, NOW)
    except UsageError:
        return
    assert 0 < end.wall_seconds - NOW.wall_seconds <= LONGEST_SECONDS


@pytest.mark.parametrize(
    ("note", "said"),
    [("  ", "empty"), ("x" * (LONGEST_NOTE + 1), "at most"), ("a\nb", "line breaks"), ("a\x1b[2Jb", "control")],
)
def test_a_wrong_note_is_refused(note: str, said: str) -> None:
    """It stands in one line on every surface."""
    with pytest.raises(UsageError, match=said):
        checked_note(note)
