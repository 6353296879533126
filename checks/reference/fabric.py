"""NVML's fabric health mask, bit by bit: each fault with its text, its class and its remedy. Pure."""

from __future__ import annotations

import msgspec

from nodevet.checks.core.model import Action, FaultClass, Outcome

from .tables import load_table

SEPARATOR = ","
EMPTY_MASK = 0xFFFFFFFF
PAIR_WIDTH = 3
"""Of two bits 1 means yes and 2 means no; both at once are undefined."""
CONFIGURATION_SHIFT, CONFIGURATION_WIDTH, CONFIGURATION_FINE = 8, 15, 1


class FabricFault(msgspec.Struct, frozen=True):
    """A row of reference/fabric_faults.csv: one value of a group of bits in NVML's fabric health mask.

    ``static``: the driver reports it until somebody acts; else the state passes by itself.
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
    """Return every fault that a mask can report."""
    return load_table("fabric_faults.csv", FabricFault)


def known_mask(mask: int) -> int:
    """Return *mask*. Raises ValueError where all bits are 1: an empty register."""
    if mask == EMPTY_MASK:
        raise ValueError("a mask of ones alone is an empty register")
    return mask


def words_of_mask(mask: int) -> str:
    """Return the names of the faults in *mask*, joined by SEPARATOR; an unknown configuration is a fault as well.

    So are both bits of a pair that means yes or no. Raises ValueError for an empty register.
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
    """Return the fault named *word*; an unknown one is reported, inspected, and closes no gate.

    A later driver may report it for every healthy device, or it is a torn read: only known faults are blamed.
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
