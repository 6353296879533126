"""Counts with their noun, as text for people."""

from __future__ import annotations


def count_of(count: float, noun: str, plural: str = "") -> str:
    """Return *count* as a whole number with *noun*, in its *plural* unless it is one: ``1 error``, ``2 errors``."""
    number = f"{count:.0f}"
    return f"{number} {noun if number == '1' else plural or f'{noun}s'}"


def records_lost(count: int) -> str:
    """Return that *count* records of the kernel log were overwritten before they could be read."""
    rest = "was overwritten before it could be read" if count == 1 else "were overwritten before they could be read"
    return f"{count_of(count, 'record')} {rest}"
