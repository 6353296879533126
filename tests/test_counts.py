"""Counts in messages agree with their noun."""

from __future__ import annotations

import pytest

from nodevet.checks.core.counts import count_of, records_lost


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 replays"), (1, "1 replay"), (1.0, "1 replay"), (0.7, "1 replay"), (12, "12 replays")]
)
def test_a_noun_agrees_with_its_count(count: float, said: str) -> None:
    """As the count is printed: a fraction that is printed as 1 is one."""
    assert count_of(count, "replay") == said


def test_an_irregular_plural_is_given() -> None:
    """The caller names it."""
    assert [count_of(count, "process", "processes") for count in (1, 2)] == ["1 process", "2 processes"]


def test_lost_records_agree_with_their_verb() -> None:
    """One record was, several records were."""
    assert records_lost(1) == "1 record was overwritten before it could be read"
    assert records_lost(2) == "2 records were overwritten before they could be read"
