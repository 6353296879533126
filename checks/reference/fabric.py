"""What a device says of its fabric, bit by bit: each fault with its text, its class and what cures it. Pure."""

from __future__ import annotations

import msgspec

from nodevet.checks.core.model import Action, FaultClass, Outcome

from .tables import load_table

SEPARATOR = ","
EMPTY_MASK = 0xFFFFFFFF
PAIR_WIDTH = 3
"""Of two bits 1 says yes and 2 says no; both at once say nothing that is known."""
CONFIGURATION_SHIFT, CONFIGURATION_WIDTH, CONFIGURATION_FINE = 8, 15, 1


class FabricFault(msgspec.Struct, frozen=True):
    """A row of reference/fabric_faults.csv: a group of bits of NVML's health mask that has one value.

    ``static``: the driver states it until somebody acts; else it is a state that passes by itself.
    """

    word: str
    shift: int
    width: int
    value: int
    outcome: Outcome
    fault_class: FaultClass
    action: Action
    static: bool
    text: str
    next_step: str
    source: str


def fabric_faults() -> tuple[FabricFault, ...]:
    """Return every fault that a mask can name."""
    return load_table("fabric_faults.csv", FabricFault)


def known_mask(mask: int) -> int:
    """Return *mask*. Raise ValueError for ones alone: an empty register."""
    if mask == EMPTY_MASK:
        raise ValueError("a mask of ones alone is an empty register")
    return mask


def words_of_mask(mask: int) -> str:
    """Return the faults that *mask* names, as words; a configuration that no table knows is a fault as well.

    So are both bits of a pair that says yes or no. Raise ValueError for an empty register.
    """
    mask = known_mask(mask)
    rows = fabric_faults()
    words = [row.word for row in rows if mask >> row.shift & row.width == row.value]
    configuration = mask >> CONFIGURATION_SHIFT & CONFIGURATION_WIDTH
    if configuration > CONFIGURATION_FINE and configuration not in {
        row.value for row in rows if row.shift == CONFIGURATION_SHIFT
    }:
        words.append(f"configuration_{configuration}")
    pairs = sorted({row.shift for row in rows if row.width == PAIR_WIDTH})
    words += [f"bits_{shift}" for shift in pairs if mask >> shift & PAIR_WIDTH == PAIR_WIDTH]
    return SEPARATOR.join(words)


def fault_named(word: str) -> FabricFault:
    """Return what *word* means; one that no table knows is told as such, inspected, and closes no gate.

    It may be what a later driver says of every healthy board, or a torn number: only what is understood is blamed.
    """
    known = next((row for row in fabric_faults() if row.word == word), None)
    return known or FabricFault(
        word=word,
        shift=0,
        width=0,
        value=0,
        outcome=Outcome.WARN,
        fault_class=FaultClass.UNKNOWN,
        action=Action.INSPECT,
        static=False,
        text=f"it names a fault that this version does not know ({word})",
        next_step="read the fabric manager's log",
        source="",
    )
