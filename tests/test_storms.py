"""Storms of lines: a few are written, the rest is a count, and nothing of it is lost silently."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodevet.agent.daemon.storms import Storms

KINDS = 4
LINES = 5
WINDOW = 60.0


def test_the_first_lines_are_written_and_the_rest_is_counted() -> None:
    """A hundred thousand lines of one kind are five lines and a count."""
    storms = Storms(kinds=KINDS)
    written = sum(storms.admits("xid 79", 0.0) for _ in range(100_000))
    assert written == LINES
    assert storms.ended(WINDOW - 1) == ()
    (folded,) = storms.ended(WINDOW)
    assert (folded.kind, folded.count, folded.seconds) == ("xid 79", 100_000 - LINES, WINDOW)


def test_a_storm_that_goes_on_is_told_once_a_window() -> None:
    """And its first lines are written anew, so that the log shows what it is now."""
    storms = Storms(kinds=KINDS)
    for window in range(3):
        began = window * WINDOW
        assert sum(storms.admits("xid 79", began) for _ in range(100)) == LINES
        assert [folded.count for folded in storms.ended(began + WINDOW)] == [100 - LINES]


def test_more_kinds_than_a_person_reads_are_one_storm() -> None:
    """What names differ in (pids, addresses) must not fill memory or log either."""
    storms = Storms(kinds=KINDS)
    written = sum(storms.admits(f"line {number}", 0.0) for number in range(1000))
    assert written == KINDS
    assert [(folded.kind, folded.count) for folded in storms.ended(WINDOW)] == [(None, 1000 - KINDS)]


def test_a_line_now_and_then_is_no_storm() -> None:
    """Nothing is folded and nothing is told."""
    storms = Storms(kinds=KINDS)
    for second in range(0, 600, 15):
        assert storms.admits("reader restarted", float(second))
        assert storms.ended(float(second)) == ()


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0.0, 20.0)), max_size=200))
def test_every_line_is_written_or_counted(lines: list[tuple[int, float]]) -> None:
    """The sum of both is what came, and what waits is bounded by the number of kinds."""
    storms = Storms(kinds=KINDS)
    now, written, counted = 0.0, 0, 0
    for kind, seconds in lines:
        now += seconds
        counted += sum(folded.count for folded in storms.ended(now))
        written += storms.admits(kind, now)
        assert storms.next_deadline is not None
    counted += sum(folded.count for folded in storms.ended(now + WINDOW))
    assert written + counted == len(lines)
    assert storms.next_deadline is None
