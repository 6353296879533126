"""A wrong result is disproved only by a load that would have shown it again; a second one asks for another board."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from fakes.views import GPU, SIBLING, at, burn_in, gpu, healthy, judge, of
from hypothesis import given
from hypothesis import strategies as st

from nodevet.checks.core.model import Action, Clearing, Device, Episode, EpisodeState, Finding, Instant, Outcome, Result
from nodevet.checks.engine.disproof import Evidence
from nodevet.checks.engine.episodes import Ledger, acknowledge, fold
from nodevet.checks.engine.retest import LatestResults, clearing_table, demand_words, merged, shown_by

SHAPE = (4096, 4096, 8192)
WARM = {"temperature_celsius": 70.0, "power_watts": 600.0}
DAY = 86400.0


def load(
    started: float = 15.0, conditions: dict[str, Any] | None = None, dtype: str = "bf16", **figures: Any
) -> Result:
    """Return a load of ten minutes, 6,000 products, warm, with *figures* changed."""
    known = {"gemms_verified": 6000, "gemms_checked": 6000, "measured_seconds": 600.0, **figures}
    result = burn_in(started=started, **known)
    named = {"load": f"load at {started}", **(WARM if conditions is None else conditions)}
    return msgspec.structs.replace(result, dtype=dtype, shape=SHAPE, conditions=named)


class Story:
    """A device over time: loads run, the check judges the latest of each format, and the ledger is folded."""

    def __init__(self, *serials: str) -> None:
        """Begin with nothing known of a board with the first of *serials*."""
        self.ledger = Ledger()
        self.now = at(0)
        self.device = gpu(serial=serials[0]) if serials else gpu()
        self.remembered: tuple[Device, ...] = ()
        self.results: dict[str | None, Result] = {}
        self.changes: list[Episode] = []

    def run(self, *results: Result, now: Instant | None = None) -> Episode | None:
        """Take *results* of loads, judge, and return the episode of the wrong result where there is one."""
        self.now = now or Instant(self.now.boot_id, self.now.boottime_ns + 10**10, self.now.wall_seconds + 10)
        self.results |= {result.dtype: result for result in results}
        view = healthy(results=tuple(self.results.values()))
        findings = [finding for finding in judge("burn-in", view) if finding.code == "burnin.mismatch"]
        evidence = Evidence(
            now=self.now,
            devices=(self.device,),
            remembered=self.remembered,
            results=tuple(self.results.values()),
        )
        self.ledger, changes = fold(self.ledger, findings, evidence)
        self.changes += changes
        return next((episode for episode in self.ledger.episodes if episode.key.code == "burnin.mismatch"), None)


def wrong(k: int = 2, n: int = 6000, started: float = 1.0, **changes: Any) -> Result:
    """Return a load with *k* of *n* products wrong, in ten minutes."""
    return load(started, mismatches=k, gemms_verified=n, gemms_checked=n, **changes)


ENOUGH: dict[str, Any] = {"gemms_verified": 9000, "gemms_checked": 9000}
"""Three times 6,000 over 2."""


@pytest.mark.parametrize(
    ("retest", "ends"),
    [
        (load(15, **ENOUGH), True),
        (load(15, **{**ENOUGH, "gemms_verified": 8999}), False),
        (load(15, **ENOUGH, measured_seconds=599.0), False),
        (load(15, gemms_verified=30, measured_seconds=2.0), False),  # the probe
        (load(15, {"temperature_celsius": 65.0, "power_watts": 600.0}, **ENOUGH), True),
        (load(15, {"temperature_celsius": 64.9, "power_watts": 600.0}, **ENOUGH), False),
        (load(15, {"temperature_celsius": 70.0, "power_watts": 599.0}, **ENOUGH), False),
        (load(15, {"temperature_celsius": None, "power_watts": 600.0}, **ENOUGH), False),
        (load(15, {}, **ENOUGH), False),
        (load(15, {"unsupported": ["temperature_celsius", "power_watts"]}, **ENOUGH), False),
        (load(15, **ENOUGH, self_test_found=5), False),
        (load(5, **ENOUGH), False),  # it ran before the fault was last seen
        (msgspec.structs.replace(load(15, **ENOUGH), shape=(4096, 4096, 4096)), False),
        (load(15, dtype="int8", **ENOUGH), False),
    ],
)  # fmt: skip
def test_only_as_many_products_of_the_same_kind_as_warm_disprove_a_wrong_one(retest: Result, ends: bool) -> None:
    """3n/k products and ten minutes, in the same format and shape, no more than 5 degrees cooler, at no less power."""
    story = Story()
    assert story.run(wrong()) is not None
    story.results.clear()  # a shorter load of the format took its place
    assert (story.run(retest) is None) is ends


@pytest.mark.parametrize(
    ("then", "now", "ends"),
    [
        (70 << 30, 70 << 30, True),
        (70 << 30, 63 << 30, True),
        (70 << 30, 62 << 30, False),
        (70 << 30, 2 << 30, False),  # the plan probe, for ten minutes
        (70 << 30, None, False),
        (2 << 30, 70 << 30, True),
        (None, 2 << 30, True),  # an earlier version kept it
    ],
)
def test_a_load_of_less_memory_disproves_nothing(then: int | None, now: int | None, ends: bool) -> None:
    """The bad cell may lie in what it did not reach; nine tenths are as much as is free on another day."""
    story = Story()
    assert story.run(wrong(memory_bytes=then)) is not None
    story.results.clear()
    assert (story.run(load(15, **ENOUGH, memory_bytes=now)) is None) is ends


def test_the_row_of_a_wrong_result_stands_in_the_table() -> None:
    """The figures are data with a source."""
    row = clearing_table()[Clearing.WRONG_RESULT]
    assert (row.retest_products_per_wrong, row.retest_seconds, row.retest_cooler_celsius) == (3, 600.0, 5.0)
    assert (row.retest_longest_seconds, row.replace_after, row.replace_within_days) == (DAY, 2, 90.0)
    assert "Hanley" in row.source
    assert row.retest_memory_ratio == 0.9
    others = [entry for clearing, entry in clearing_table().items() if clearing is not Clearing.WRONG_RESULT]
    assert {entry.retest_products_per_wrong for entry in others} == {None}


def test_what_takes_longer_than_a_day_is_left_to_a_person_or_another_board() -> None:
    """One wrong product in nine hours asks for twenty-seven: no re-test of any length ends it."""
    story = Story()
    seen = story.run(wrong(1, 300_000, measured_seconds=9 * 3600.0))
    assert seen is not None
    assert "acknowledge it or replace the board" in seen.finding.message
    story.results.clear()
    retest = load(15, gemms_verified=10**7, measured_seconds=100 * 3600.0)
    assert story.run(retest) is not None
    story.device = gpu(serial="another")
    assert story.run() is None


def test_a_device_that_tells_neither_heat_nor_power_is_compared_without_them() -> None:
    """On a processor without sensors the conditions are void, then and now; what was not recorded is not proved."""
    blind = {"unsupported": ["temperature_celsius", "power_watts"]}
    story = Story()
    story.run(wrong(conditions=blind))
    assert story.run(load(15, blind, **ENOUGH)) is None

    forgotten = Story()
    seen = forgotten.run(wrong(conditions={}))
    assert seen is not None
    assert "no temperature was recorded" in seen.finding.message
    forgotten.results.clear()
    assert forgotten.run(load(15, **ENOUGH)) is not None


def test_several_short_loads_do_not_add_up() -> None:
    """Each begins cold."""
    story = Story()
    story.run(wrong())
    for started in range(15, 1015, 100):
        assert story.run(load(float(started), gemms_verified=3000, measured_seconds=200.0)) is not None


def test_every_format_that_was_wrong_is_disproved_for_itself() -> None:
    """A long run of one says nothing of the other, although the wrong results stand in the memory no more."""
    story, one_load = Story(), {**WARM, "load": "one"}
    story.run(wrong(conditions=one_load))
    story.run(load(15, gemms_verified=10, measured_seconds=2.0))
    both = story.run(wrong(started=25, dtype="int8", conditions=one_load))
    assert both is not None and len(both.finding.shown) == 2
    assert story.run(load(65, dtype="int8", **ENOUGH)) is not None
    assert story.run(load(75, **ENOUGH)) is None


def test_an_acknowledged_wrong_result_stays_until_it_is_disproved() -> None:
    """The probe that follows the person's word does not take it away."""
    story = Story()
    seen = story.run(wrong())
    assert seen is not None
    done = acknowledge(story.ledger, seen.key, note="known", actor="uid 0")
    assert done is not None
    story.ledger = done[0]
    story.results.clear()
    after = story.run(load(15, gemms_verified=30, measured_seconds=2.0))
    assert after is not None and after.state is EpisodeState.ACKNOWLEDGED
    assert story.run(load(45, **ENOUGH)) is None


def test_an_acknowledged_second_wrong_result_stays_like_the_first() -> None:
    """What asks for another board is no less a wrong result: no probe takes it away under a person's word."""
    story = Story("1234")
    story.run(wrong())
    seen = story.run(wrong(started=100.0))
    assert seen is not None
    assert seen.finding.action is Action.REPLACE
    done = acknowledge(story.ledger, seen.key, note="another board is on its way", actor="uid 0")
    assert done is not None
    story.ledger = done[0]
    story.results.clear()
    for started in (200.0, 300.0):
        after = story.run(load(started, gemms_verified=30, measured_seconds=2.0))
        assert after is not None and after.state is EpisodeState.ACKNOWLEDGED
    story.device = gpu(serial="another")
    assert story.run() is None


@pytest.mark.parametrize(("days", "asked"), [(1, Action.REPLACE), (89, Action.REPLACE), (91, Action.INSPECT)])
def test_a_second_wrong_result_within_ninety_days_asks_for_another_board(days: int, asked: Action) -> None:
    """The first was disproved, and still counts; what asks for replacement is not disproved by any re-test."""
    story = Story("1234")
    story.run(wrong())
    assert story.run(load(15, **ENOUGH)) is None
    passed_ns = int(days * DAY * 1e9)
    later = Instant(story.now.boot_id, story.now.boottime_ns + passed_ns, story.now.wall_seconds + days * DAY)
    second = story.run(wrong(started=days * DAY), now=later)
    assert second is not None
    assert second.finding.action is asked
    said = second.finding.message
    assert ("a re-test clears it" in said, "another slot" in said) == (asked is Action.INSPECT,) * 2
    assert said.endswith("wrong in 2 loads within 90 days: replace the board") is (asked is Action.REPLACE)
    story.results.clear()
    passed = load(days * DAY + 1000, gemms_verified=10**6, measured_seconds=10**5)
    left = story.run(passed)
    assert (left is None) is (asked is Action.INSPECT)
    assert left is None or "re-test" not in left.finding.message


@pytest.mark.parametrize(("days", "asked"), [(89, Action.REPLACE), (100, Action.INSPECT)])
def test_a_wrong_result_that_stands_grows_old_like_one_that_was_disproved(days: int, asked: Action) -> None:
    """A finding shows its loads in each round, the acknowledged one too: that does not make them new."""
    story = Story("1234")
    seen = story.run(wrong())
    assert seen is not None
    done = acknowledge(story.ledger, seen.key, note="known", actor="uid 0")
    assert done is not None
    story.ledger = done[0]
    for day in range(1, days + 1):
        moment = Instant(story.now.boot_id, int(day * DAY * 1e9), day * DAY)
        seen = story.run(*([wrong(started=day * DAY - 600)] if day == days else []), now=moment)
        assert seen is not None
        expected = asked if day == days else Action.INSPECT
        state = EpisodeState.OPEN if expected is Action.REPLACE else EpisodeState.ACKNOWLEDGED
        assert (seen.finding.action, seen.state) == (expected, state)


@pytest.mark.parametrize("error", [-1e9, 1e9])
def test_a_change_of_the_wall_clock_forgets_no_wrong_result(error: float) -> None:
    """Within a boot the time since boot counts."""
    story = Story("1234")
    story.run(wrong())
    shifted = Instant(story.now.boot_id, story.now.boottime_ns + 10**11, story.now.wall_seconds + error)
    second = story.run(wrong(started=100.0), now=shifted)
    assert second is not None
    assert second.finding.action is Action.REPLACE


def test_several_formats_that_are_wrong_in_one_load_are_one_wrong_result() -> None:
    """Two formats of one burn-in ask for an inspection, not for a replacement at once."""
    first = wrong()
    second = msgspec.structs.replace(wrong(started=2.0, dtype="int8"), conditions=first.conditions)
    seen = Story().run(first, second)
    assert seen is not None
    assert (seen.finding.action, len(seen.finding.shown)) == (Action.INSPECT, 2)


def test_another_board_begins_anew() -> None:
    """The count is of the serial, not of the slot."""
    story = Story("1234")
    story.run(wrong())
    story.results.clear()
    story.device = gpu(serial="another")
    assert story.run() is None
    seen = story.run(wrong(started=100.0))
    assert seen is not None
    assert seen.finding.action is Action.INSPECT


def test_a_second_wrong_result_opens_what_was_acknowledged() -> None:
    """A harder action is not what the person knew."""
    story = Story("1234")
    seen = story.run(wrong())
    assert seen is not None
    done = acknowledge(story.ledger, seen.key, note="known", actor="uid 0")
    assert done is not None
    story.ledger = done[0]
    again = story.run(wrong(started=100.0))
    assert again is not None
    assert (again.state, again.finding.action) == (EpisodeState.OPEN, Action.REPLACE)


@given(
    st.integers(1, 50), st.integers(1, 10**6), st.floats(1.0, DAY), st.integers(0, 4 * 10**6), st.floats(0.0, 4 * DAY)
)
def test_the_demand_holds_for_every_rate(k: int, n: int, seconds: float, verified: int, lasted: float) -> None:
    """Whatever k, n and rate were: nothing below max(3n/k products, ten minutes) clears, nor anything beyond a day."""
    k = min(k, n)
    story = Story()
    story.run(wrong(k, n, measured_seconds=seconds))
    story.results.clear()
    ended = story.run(load(15, gemms_verified=verified, measured_seconds=lasted)) is None
    beyond = 3 * seconds / k > DAY
    assert ended is (not beyond and verified >= math.ceil(3 * n / k) and verified > 0 and lasted >= 600)


def test_words_say_what_a_retest_must_be() -> None:
    """Products, shape, time, heat and power stand in the finding."""
    row = clearing_table()[Clearing.WRONG_RESULT]
    said = demand_words(shown_by(wrong()), row)
    assert said == (
        "a re-test clears it: one burn-in of at least 10 min with 9000 bf16 GEMMs of 4096 x 4096 x 8192 at 70 °C "
        "and 600 W"
    )
    assert demand_words(shown_by(wrong(memory_bytes=70 << 30)), row) == f"{said} over 63.0 GiB of memory"
    assert demand_words(shown_by(wrong(memory_bytes=100 << 20)), row) == f"{said} over 90 MiB of memory"


def test_merging_keeps_each_wrong_result_once_and_the_newest() -> None:
    """The same look again adds nothing; a board that is wrong for ever does not grow the memory."""
    first = shown_by(wrong())
    assert merged((first,), (first,)) == (first,)
    many = tuple(shown_by(wrong(started=float(number))) for number in range(40))
    assert merged(many[:20], many[20:]) == many[-16:]


def test_what_an_agent_that_was_restarted_did_not_record_is_kept() -> None:
    """The load is told as wrong while it runs, and again at its end by an agent that did not see it all."""
    early, late = shown_by(wrong()), shown_by(wrong(k=5, conditions={"load": "load at 1.0"}))
    (kept,) = merged((early,), (late,))
    assert (kept.wrong, kept.temperature_celsius, kept.power_watts) == (5, 70.0, 600.0)


def test_a_wall_clock_that_was_set_back_hides_no_second_format() -> None:
    """What came last is last, whatever the clock says."""
    story = Story()
    story.run(wrong())
    second = wrong(started=25, dtype="int8")
    before = msgspec.structs.replace(second.ended, wall_seconds=second.ended.wall_seconds - 86400.0)
    both = story.run(msgspec.structs.replace(second, ended=before))
    assert both is not None and [entry.dtype for entry in both.finding.shown] == ["bf16", "int8"]


def test_a_short_load_proves_nothing_else_of_a_device_whose_wrong_result_stands() -> None:
    """It takes the place of the wrong result in the memory, and would end an XID of that device, but not of another."""
    story = Story()
    story.run(wrong())
    xids = [
        msgspec.structs.replace(
            story.ledger.episodes[0].finding,
            code="nvidia.xid.48",
            device=device,
            clearing=Clearing.HARDWARE_EVENT,
            shown=(),
            occurrence="one",
        )
        for device in (GPU, SIBLING)
    ]
    devices = (story.device, gpu(SIBLING))
    story.ledger, _ = fold(story.ledger, xids, Evidence(now=at(2), devices=devices))
    probe = load(15, gemms_verified=30, measured_seconds=2.0)
    results = (probe, msgspec.structs.replace(probe, devices=(SIBLING,)))
    story.ledger, _ = fold(story.ledger, (), Evidence(now=at(20), devices=devices, results=results))
    assert {(episode.key.code, episode.key.device) for episode in story.ledger.episodes} == {
        ("burnin.mismatch", GPU),
        ("nvidia.xid.48", GPU),
    }
    proof = (load(35, **ENOUGH),)
    for moment in (1000, 1010):
        story.ledger, _ = fold(story.ledger, (), Evidence(now=at(moment), devices=devices, results=proof))
    assert not story.ledger.episodes


@pytest.mark.parametrize("serial", ["0", "N/A", "0000000000000", None])
def test_boards_that_tell_no_serial_are_not_one_board(serial: str | None) -> None:
    """Each of two was wrong once: neither asks for replacement, which no re-test could end."""
    boards = (gpu(GPU, serial=serial), gpu(SIBLING, "0000:2b:00.0", serial=serial))
    ledger = Ledger()
    for moment, board in enumerate(boards):
        view = healthy(results=(msgspec.structs.replace(wrong(started=1.0 + moment), devices=(board.id,)),))
        findings = [finding for finding in judge("burn-in", view) if finding.code == "burnin.mismatch" and finding.bad]
        ledger, _ = fold(ledger, findings, Evidence(now=at(10 + moment), devices=boards))
    assert {episode.finding.action for episode in ledger.episodes} == {Action.INSPECT}
    assert len(ledger.episodes) == 2


@pytest.mark.parametrize("is_first", [True, False])
def test_what_stands_beside_a_wrong_result_ends_with_it(is_first: bool) -> None:
    """One re-test disproves both, whichever was found first: who ran it is told so at once."""
    story = Story()
    beside = msgspec.structs.replace(
        of(judge("burn-in", healthy(results=(wrong(),))), "burnin.mismatch", GPU),
        code="burnin.died",
        clearing=Clearing.HARDWARE_EVENT,
        shown=(),
        occurrence="one",
    )
    for moment in (2, 3):
        if (moment == 2) is is_first:
            story.ledger, _ = fold(story.ledger, (beside,), Evidence(now=at(moment), devices=(story.device,)))
        else:
            story.run(wrong())
    assert len(story.ledger.episodes) == 2
    story.run(load(15, **ENOUGH), now=at(1000))
    assert not story.ledger.episodes


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("0325018012345", "325018012345"),
        ("0xDCFF75A0", "0xdcff75a0"),
        ("0xdcff75a0", "DCFF75A0"),
        (" 1323421012345 ", "1323421012345"),
    ],
)
def test_a_serial_that_is_written_another_way_is_the_same_board(before: str, after: str) -> None:
    """A driver that was updated replaced nothing, and the second wrong result is of the same board."""
    story = Story(before)
    assert story.run(wrong()) is not None
    story.results.clear()
    story.device = gpu(serial=after)
    assert story.run() is not None
    story.results.clear()
    assert story.run(load(15, **ENOUGH)) is None
    second = story.run(wrong(started=40.0))
    assert second is not None
    assert second.finding.action is Action.REPLACE


@pytest.mark.parametrize("untold", ["at the first", "at the second", "while it stands"])
def test_a_board_whose_serial_was_not_told_once_is_the_same_board(untold: str) -> None:
    """Its name is known, and the node remembers what it told; one wrong result that stands meanwhile is one."""
    story = Story("1234")
    story.remembered = () if untold == "at the first" else (gpu(serial="1234"),)
    story.device = gpu(serial=None if untold == "at the first" else "1234")
    assert story.run(wrong()) is not None
    if untold == "while it stands":
        for serial in (None, "1234", None):
            story.device = gpu(serial=serial)
            one = story.run()
            assert one is not None
            assert one.finding.action is Action.INSPECT
        return
    story.results.clear()
    assert story.run(load(15, **ENOUGH)) is None
    story.device = gpu(serial=None if untold == "at the second" else "1234")
    second = story.run(wrong(started=40.0))
    assert second is not None
    assert second.finding.action is Action.REPLACE


def test_a_sibling_is_not_blamed() -> None:
    """The findings of the other device are its own."""
    finding: Finding = of(judge("burn-in", healthy(results=(wrong(),))), "burnin.mismatch", SIBLING)
    assert finding.outcome is Outcome.SKIPPED
    assert of(judge("burn-in", healthy(results=(wrong(),))), "burnin.mismatch", GPU).shown


def test_a_load_that_did_not_reach_all_of_a_device_disproves_nothing() -> None:
    """Half of the processors, or one instance of a board: the fault may be in the other part."""
    story = Story()
    story.run(wrong())
    story.results.clear()
    part = {**WARM, "left_out": "62 of 64 processors"}
    assert story.run(load(15, part, **ENOUGH)) is not None
    assert story.run(load(800, **ENOUGH)) is None
    assert Story().run(wrong(conditions=part)) is not None


@pytest.mark.parametrize(
    ("figures", "conditions"),
    [
        ({"mismatches": 3}, {"unsupported": None}),
        ({"mismatches": 3}, {"unsupported": 5}),
        ({"mismatches": 3, "gemms_checked": math.inf}, {}),
        ({"mismatches": 3}, {"temperature_celsius": "hot", "power_watts": math.nan, "load": {"a": [1]}}),
        ({"mismatches": math.nan}, {}),
        ({"mismatches": math.inf}, {}),
    ],
)
def test_a_result_that_is_no_such_blinds_no_judgement(figures: dict[str, Any], conditions: dict[str, Any]) -> None:
    """What of it can be judged is judged, now and after a restart; a count that is no number proves nothing."""
    poison = load(**figures, conditions={**WARM, **conditions})
    taken = LatestResults()
    for _ in range(2):
        taken.take(poison)
        taken.known(())
        found = judge("burn-in", msgspec.structs.replace(healthy(), results=taken.everything))
        wrong = [finding for finding in found if finding.outcome is Outcome.FAIL]
        assert bool(wrong) is (figures["mismatches"] == 3)
        again = LatestResults()
        for result in taken.everything:
            again.take(msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=Result))
        taken = again
