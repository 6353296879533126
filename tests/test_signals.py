"""Signals that come while nothing may be lost."""

from __future__ import annotations

import signal
from types import FrameType

import pytest

from nodevet.agent.signals import HANDLED, undisturbed


@pytest.mark.parametrize("number", HANDLED, ids=lambda number: number.name)
def test_a_signal_passes_by_while_results_are_judged(number: signal.Signals) -> None:
    """Whatever would handle it does so before and after, and not meanwhile."""
    seen: list[int] = []

    def handle(received: int, _frame: FrameType | None) -> None:
        seen.append(received)

    before = signal.signal(number, handle)
    try:
        with undisturbed():
            signal.raise_signal(number)
            assert seen == []
        signal.raise_signal(number)
        assert seen == [number]
    finally:
        signal.signal(number, before)
