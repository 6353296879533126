"""What the history says of a load of which it has a part: what is not there may have told of anything."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import pytest
from fakes.snapshots import burn_in, cpu_node, gpu_node
from fakes.views import at

from nodevet.agent.cli import main
from nodevet.agent.commands import history
from nodevet.agent.store.opening import DATABASE_NAME, open_store
from nodevet.agent.store.writer import Retention, StoreWriter
from nodevet.checks.core.model import Device, Result, ResultState
from nodevet.checks.engine.completeness import LOAD, PLANNED

LARGEST_LOAD = 64 * 7
"""Eight boards of eight partitions each, and every number format."""


def load(name: str, *devices: str, seconds: float = 0.0) -> tuple[Result, ...]:
    """Return what a load of two formats left on *devices*: the first format was stopped, the second one is verified."""
    conditions = {LOAD: name, PLANNED: 2 * len(devices)}
    good = [
        msgspec.structs.replace(burn_in(device, 1.4, 0.7), ended=at(seconds + place), conditions=conditions)
        for place, device in enumerate(devices)
    ]
    stopped = [
        msgspec.structs.replace(each, dtype="bf16", state=ResultState.INTERRUPTED, metrics=(), detail="a job came")
        for each in good
    ]
    return (*stopped, *good)


def states(
    folder: Path,
    results: Iterable[Result],
    capsys: pytest.CaptureFixture[str],
    *words: str,
    seen: Sequence[Device] = (),
) -> list[str]:
    """Return what the history says of each load, oldest first, where *results* are all that is left."""
    (folder / "state").mkdir(mode=0o700)
    store = open_store(folder / "state" / DATABASE_NAME).store
    for result in results:
        store.append_result(result)
    store.see_devices(seen or cpu_node().devices, 1.0)
    store.close()
    capsys.readouterr()
    assert main(["history", "--json", "--state-dir", str(folder / "state"), *words]) == 0
    return [entry["state"] for entry in json.loads(capsys.readouterr().out)["loads"]]


@pytest.mark.parametrize("words", [(), ("--device", "cpu-1")])
def test_a_load_of_which_a_part_is_left_is_not_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """Rows that were dropped or damaged: before, what was left of it was all that was planned."""
    assert states(tmp_path, load("one", "cpu-0", "cpu-1")[2:], capsys, *words) == ["incomplete"]


def test_a_load_of_which_all_is_left_is_told_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of one device of two, and of a version that did not tell how much it planned."""
    verified = [msgspec.structs.replace(burn_in(name, 1.4, 0.7), dtype="bf16") for name in ("cpu-0", "cpu-1")]
    everything = load("one", "cpu-0", "cpu-1")
    good = [msgspec.structs.replace(each, conditions=everything[0].conditions) for each in verified]
    before = msgspec.structs.replace(everything[2], conditions={LOAD: "before"})
    rows = (before, *good, *everything[2:])
    assert states(tmp_path, rows, capsys, "--device", "cpu-1") == ["complete"]
    assert main(["history", "--json", "--state-dir", str(tmp_path / "state")]) == 0
    assert [entry["state"] for entry in json.loads(capsys.readouterr().out)["loads"]] == ["complete", "complete"]


def test_a_load_names_a_device_by_its_address_as_a_finding_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both stand in one table, and an administrator knows the address and not the UUID."""
    board = next(device for device in gpu_node().devices if device.pci)
    assert states(tmp_path, load("one", board.id)[:1], capsys, seen=(board,)) == ["incomplete"]
    assert main(["history", "--state-dir", str(tmp_path / "state")]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert board.pci and row.count(board.pci) == 2
    assert board.id not in row


def test_a_load_that_is_looked_through_in_part_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an older version nobody knows whether its first rows are beyond those that are looked through."""
    older, newer = load("one", "cpu-0"), load("two", "cpu-0", seconds=60.0)
    bare = [msgspec.structs.replace(each, conditions={LOAD: "one"}) for each in older]
    monkeypatch.setattr(history, "RESULTS_AT_MOST", 3)
    assert states(tmp_path, (*bare, *newer), capsys) == ["incomplete"]


def test_all_results_of_the_largest_load_are_kept(tmp_path: Path) -> None:
    """They come at once: before, all but the last 64 were dropped without a word, and told as kept."""
    assert Retention().waiting_results >= LARGEST_LOAD
    nowhere = tmp_path / "no-such-folder" / DATABASE_NAME
    writer = StoreWriter(None, Retention(waiting_results=2), path=nowhere, trouble="no folder")
    for number in range(3):
        assert "not kept" not in writer.status
        writer.submit_result(burn_in(f"cpu-{number}", 1.4, 0.7))
    assert "not stored: 1 result of loads, because too many waited" in writer.status
    writer.close(5.0)
