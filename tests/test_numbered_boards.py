"""Boards that a library counts and does not name: a number is no board beside those that are known by name."""

from __future__ import annotations

import msgspec
import pytest
from fakes.views import GPU, SIBLING, at, gpu, reader

from nodevet.checks.core.model import AgentInfo, Device, Outcome
from nodevet.checks.engine.baseline import UNNAMED, remember
from nodevet.checks.engine.engine import ConfiguredCheck, Engine
from nodevet.checks.engine.registry import discover
from nodevet.checks.engine.view import Cadence, KnownDevices

NAMED = (gpu(), gpu(SIBLING, "0000:2b:00.0"))


def number(index: int) -> Device:
    """Return a board that has only a number."""
    return msgspec.structs.replace(gpu(), id=f"nvidia-{index}", uuid=None, serial=None, pci=None, model=UNNAMED)


@pytest.mark.parametrize(
    ("listed", "remembered"),
    [
        ((number(0), number(1)), {GPU, SIBLING}),
        ((number(0),), {GPU, SIBLING}),
        ((NAMED[0], number(1)), {GPU, SIBLING}),
        ((*NAMED, number(2)), {GPU, SIBLING, "nvidia-2"}),
        ((number(0), number(1), number(2)), {GPU, SIBLING, "nvidia-0", "nvidia-1", "nvidia-2"}),
    ],
    ids=["all", "fewer", "one", "a new one", "more than were known"],
)
def test_a_number_is_remembered_only_if_no_name_is_missing(listed: tuple[Device, ...], remembered: set[str]) -> None:
    """It is one of those that are not listed; a board that never told its name is known by nothing else."""
    memory = remember(KnownDevices({}), NAMED, {}, at())
    assert set(remember(memory, listed, {}, at(10)).seen) == remembered
    alone = remember(KnownDevices({}), listed, {}, at())
    assert set(alone.seen) == {device.id for device in listed}


def test_a_board_whose_driver_names_none_is_not_missing() -> None:
    """It is unknown which board has which number; it is told with the next step, and ends when the driver answers."""
    seconds = 0.0
    engine = Engine(
        [ConfiguredCheck(entry, entry.policy()) for entry in discover()],
        node="n1",
        clock=lambda: at(seconds),
        cadences={("nvidia", "fast"): Cadence(10, 5)},
    )
    told = []
    for listed in (NAMED, (number(0), number(1)), NAMED):
        seconds += 10
        engine.take_devices("nvidia", listed)
        engine.take_readers((reader("nvidia", last_round=at(seconds)),))
        snapshot = engine.evaluate(AgentInfo(version="0", started=at(), interval_seconds=10)).snapshot
        told.append(
            {entry.device: entry for entry in snapshot.findings if entry.code == "device.missing" and entry.outcome}
        )
        assert not [entry for entry in snapshot.findings if entry.outcome is Outcome.FAIL]
    assert {told[1][device].outcome for device in (GPU, SIBLING)} == {Outcome.UNMEASURED}
    assert "names none of 2 boards that it lists" in told[1][GPU].message
    assert not [entry for entry in snapshot.episodes if entry.key.code == "device.missing" and not entry.cleared]
