"""One reader child for all tests of single values of a vendor: starting one for each of them would take minutes.

A module of tests gives the fixtures ``shared_machine`` and ``shared_reader``, imports the two below, and reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from fakes.machine import FakeMachine
from fakes.reader import ReaderProcess

from nodevet.checks.core.model import Part, Reading

__all__ = ["SLOT", "Read", "Readings", "machine", "read"]

SLOT = 3
"""The device that is read."""

Machine = TypeVar("Machine", bound=FakeMachine)
Readings = dict[tuple[str, Part], Reading]
Read = Callable[[str, dict[str, float | str]], Readings]


@pytest.fixture
def machine(shared_machine: Machine, shared_reader: ReaderProcess) -> Iterator[Machine]:
    """The shared machine, healthy again after the test."""
    yield shared_machine
    shared_machine.clear()
    shared_reader.enumerate_again()


@pytest.fixture
def read(machine: FakeMachine, shared_reader: ReaderProcess) -> Read:
    """Read a group of the device in SLOT after the machine was changed and listed anew."""

    def read_group(group: str, values: dict[str, float | str]) -> Readings:
        machine.update(values)
        shared_reader.enumerate_again()
        return shared_reader.readings(SLOT, group)

    return read_group
