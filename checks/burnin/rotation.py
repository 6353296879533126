"""The order in which products use the operand sets. Pure.

The first three sets take turns. Sets that select instead of adding draw less power, so only every sixteenth product
uses one of them.
"""

from __future__ import annotations

_ADDING = 3
_EVERY = 16


def operand_set_of(number: int, sets: int) -> int:
    """Return the operand set of product *number* among *sets*."""
    selecting = sets - _ADDING
    if selecting > 0 and number % _EVERY == _EVERY - 1:
        return _ADDING + number // _EVERY % selecting
    return number % min(sets, _ADDING)


def keeps_operand_set(slots: int, sets: int) -> bool:
    """Return whether a slot among *slots* gets products of one set twice in a row: a lost write would look right."""
    selecting = sets - _ADDING
    return slots % min(sets, _ADDING) == 0 or (selecting > 0 and slots % (_EVERY * selecting) == 0)
