"""Whose a database is: what an image brings of another machine counts for nothing, and no repair makes another one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.episodes import episode, moment
from fakes.gpu_node import INTERVAL_SECONDS, GpuNode
from fakes.showing_child import configuration

from nodevet.agent.config.settings import Configuration
from nodevet.agent.load.history import History, keep_unjudged, memory_before
from nodevet.agent.once.run import _recall
from nodevet.agent.store import journal as journal_module
from nodevet.agent.store.journal import Journal
from nodevet.agent.store.machine import MACHINE, Machine, is_of, open_of_machine, this_machine
from nodevet.agent.store.mirror import MIRROR_NAME
from nodevet.agent.store.opening import DATABASE_NAME, OpenedStore, open_store
from nodevet.agent.store.store import Store
from nodevet.agent.store.writer import Keeping
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.errors import StoreError
from nodevet.checks.engine.engine import Engine

GOLDEN = Machine(board="a-1", system="0a", host="n1")
CLONE = Machine(board="b-2", system="0b", host="n2")


@pytest.mark.parametrize(
    ("present", "is_other"),
    [
        (GOLDEN, False),
        (CLONE, True),
        (Machine("b-2", "0a", "n2"), True),  # a clone that kept its machine-id
        (Machine("b-2", "0b", "n1"), True),  # one that has no name of its own yet
        (Machine("b-2", "0a", "n1"), False),  # another mainboard
        (Machine("a-1", "0b", "n2"), False),  # installed anew, and renamed
        (Machine("b-2", "0a", ""), False),
        (Machine("b-2", "", ""), False),
        (Machine("", "0b", "n2"), False),  # an agent that is not root
        (Machine(), False),
    ],
)
def test_another_machine_has_another_board_and_another_system(present: Machine, is_other: bool) -> None:
    """What is not known differs from nothing."""
    memory = {MACHINE: msgspec.msgpack.encode(GOLDEN)}
    assert (present.is_other(GOLDEN), GOLDEN.is_other(present), is_of(memory, present)) == (
        is_other,
        is_other,
        not is_other,
    )


@pytest.mark.parametrize(
    ("files", "host", "machine"),
    [
        ({}, "n1", Machine(host="n1")),
        ({"board": "4C4C-A\n", "system": "0a\n"}, "n1", Machine("4c4c-a", "0a", "n1")),
        ({"board": "00000000-0000-0000-0000-000000000000\n"}, "localhost", Machine()),
        ({"board": "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF\n"}, "localhost.localdomain", Machine()),
        ({"board": "\n", "system": "\n"}, "", Machine()),
    ],
)
def test_a_machine_is_known_by_firmware_system_and_name(
    tmp_path: Path, files: dict[str, str], host: str, machine: Machine
) -> None:
    """A number that was never set, and a name before the machine has one, are none."""
    write(tmp_path, files)
    assert this_machine(tmp_path, host) == machine


def test_a_container_has_a_name_of_its_own(tmp_path: Path) -> None:
    """It is another after each start, and none of the machine."""
    assert this_machine(tmp_path).host == ""


@pytest.mark.parametrize("memory", [{}, {MACHINE: b"\xc1"}, {MACHINE: b""}])
def test_a_memory_that_does_not_say_whose_it_is_counts(memory: dict[str, bytes]) -> None:
    """It is of an earlier version, or was cut."""
    assert is_of(memory, GOLDEN)


def test_the_database_of_another_machine_is_set_aside_whole(tmp_path: Path) -> None:
    """It is told whose it is and where it lies, and the new one is of this machine."""
    path = tmp_path / DATABASE_NAME
    fill(open_of_machine(path, GOLDEN))
    assert episodes_in(open_of_machine(path, GOLDEN)) == 1
    opened = open_of_machine(path, CLONE)
    aside = next(tmp_path.glob(f"{DATABASE_NAME}.other-machine-*"))
    assert f"{path}: from another machine, n1, for example by a disk image" in opened.notice
    assert f"moved aside to {aside}" in opened.notice
    assert episodes_in(opened) == 0
    assert episodes_in(open_store(aside)) == 1
    again = open_of_machine(path, CLONE)
    assert again.notice == ""
    assert is_of(again.store.load_memory(), CLONE) and not is_of(again.store.load_memory(), GOLDEN)
    again.store.close()


def test_what_is_repaired_or_renamed_stays_the_machine_step_by_step(tmp_path: Path) -> None:
    """Another mainboard today and another name tomorrow are no other machine; what is not known now is kept."""
    path = tmp_path / DATABASE_NAME
    fill(open_of_machine(path, GOLDEN))
    for machine in (
        Machine("b-2", "0a", "n1"),
        Machine("b-2", "", ""),
        Machine("b-2", "0a", "n9"),
        Machine("", "", ""),
    ):
        assert episodes_in(open_of_machine(path, machine)) == 1
    for machine in (Machine("c-3", "0a", "n9"), Machine("c-3", "", "")):
        assert episodes_in(open_of_machine(path, machine)) == 1
    assert episodes_in(open_of_machine(path, CLONE)) == 0


def test_a_full_disk_keeps_no_database_from_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose it is can be written at the next start; the first round tells of the disk."""

    def refuse(*_: object, **__: object) -> None:
        raise StoreError("disk full")

    monkeypatch.setattr(Store, "save_round", refuse)
    open_of_machine(tmp_path / DATABASE_NAME, GOLDEN).store.close()


def test_a_database_that_cannot_be_read_once_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed to be read leaves no lock behind, which would keep this very agent from its store until it ends."""
    path = tmp_path / DATABASE_NAME
    machine = Machine(board="b1", system="s1", host="n1")
    open_of_machine(path, machine).store.close()

    def fail(_store: Store) -> dict[str, bytes]:
        raise StoreError("disk I/O error")

    def opened(where: Path) -> OpenedStore:
        found = OpenedStore(open_store(where).store, "")
        monkeypatch.setattr(Store, "load_memory", fail)
        return found

    with pytest.raises(StoreError, match="disk I/O error"):
        open_of_machine(path, machine, opened)
    monkeypatch.undo()
    open_of_machine(path, machine).store.close()


def test_an_agent_takes_nothing_of_another_machine(tmp_path: Path) -> None:
    """Neither what was open nor what was remembered, and it is told."""
    settings = of_machine(tmp_path, GOLDEN)
    with Journal(settings, SystemClock()) as journal:
        journal.restore(plain_engine())
        keep(journal)
    with Journal(of_machine(tmp_path, CLONE), SystemClock()) as journal:
        engine = plain_engine()
        memory = journal.restore(engine)
        assert (engine.episodes, memory.get("round")) == ((), None)
        assert "from another machine" in journal.notices[0]


@pytest.mark.parametrize("machine", [GOLDEN, CLONE])
def test_a_database_that_cannot_be_opened_yet_is_asked_whose_it_is(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies there counts where it is of this machine, and else is set aside once it can be."""
    with Journal(of_machine(tmp_path, GOLDEN), SystemClock()) as journal:
        journal.restore(plain_engine())
        keep(journal)
    attempts: list[Path] = []

    def fails_first(path: Path, machine: Machine) -> OpenedStore:
        attempts.append(path)
        if len(attempts) == 1:
            raise StoreError("the disk reports an error")
        return open_of_machine(path, machine)

    monkeypatch.setattr(journal_module, "open_of_machine", fails_first)
    with Journal(of_machine(tmp_path, machine), SystemClock()) as journal:
        engine = plain_engine()
        memory = journal.restore(engine)
        known = machine == GOLDEN
        assert (len(engine.episodes), memory.get("round")) == ((1, b"1") if known else (0, None))
        keep(journal, "thermal.hot")
    opened = open_store(tmp_path / "state" / DATABASE_NAME)
    assert episodes_in(opened) == (2 if known else 1)


def test_a_look_without_an_agent_counts_no_history_of_another_machine(tmp_path: Path) -> None:
    """And says so."""
    path = tmp_path / "state" / DATABASE_NAME
    fill(open_of_machine(path, GOLDEN))
    assert memory_before(of_machine(tmp_path, GOLDEN))["round"] == b"1"
    assert memory_before(of_machine(tmp_path, CLONE)) == {}
    memory, notices = _recall(plain_engine(), of_machine(tmp_path, CLONE), SystemClock())
    assert memory == {}
    assert "is from another machine: start the agent" in notices[0]


@pytest.mark.parametrize(
    "write_history",
    [lambda settings: keep_unjudged(settings, ()), lambda settings: History(settings, ()).save()],
    ids=["found", "judged"],
)
def test_a_load_without_an_agent_writes_into_a_database_of_its_machine(
    tmp_path: Path, write_history: Callable[[Configuration], str]
) -> None:
    """Or the agent that starts next would set its results aside with what the image brought."""
    path = tmp_path / "state" / DATABASE_NAME
    fill(open_of_machine(path, GOLDEN))
    assert write_history(of_machine(tmp_path, CLONE)) == ""
    opened = open_of_machine(path, CLONE)
    assert opened.notice == ""
    assert episodes_in(opened) == 0


def test_boards_that_only_the_image_knew_are_not_missing(tmp_path: Path, fake_nvml_library: Path) -> None:
    """An image of a node with eight boards on one with four closed its gate; another mainboard hides no loss."""
    folder, root = tmp_path / "node", tmp_path / "root"
    folder.mkdir()
    write(root, {"board": "a-1", "system": "0a"})
    (root / "proc").symlink_to("/proc")
    with GpuNode(folder, fake_nvml_library, root=str(root)) as node:
        node.wait_for_verdict("ok")
        node.stop()
        for slot in range(4, 8):
            node.machine.vanish(slot)
        write(root, {"board": "b-2"})
        node.start()
        assert "is no longer enumerated" in node.wait_for_verdict("failed")["reason"]
        node.stop()
        (node.runtime_dir / MIRROR_NAME).unlink()  # it is of the boot before
        write(root, {"board": "c-3", "system": "0c"})
        node.start()
        status = node.wait_for_verdict("ok")
        assert "device.missing" not in codes(status)
        time.sleep(3 * INTERVAL_SECONDS)
        assert node.status()["verdict"] == "ok"


def codes(status: dict[str, Any]) -> list[str]:
    """Return the code of each finding that is open."""
    return [entry["code"] for entry in status["findings"] if entry["state"] == "open"]


def write(root: Path, files: dict[str, str]) -> None:
    """Write below *root* what the firmware and the system say of themselves."""
    places = {"board": root / "sys/class/dmi/id/product_uuid", "system": root / "etc/machine-id"}
    for name, text in files.items():
        places[name].parent.mkdir(parents=True, exist_ok=True)
        places[name].write_text(text)


def of_machine(folder: Path, machine: Machine) -> Configuration:
    """Return the settings of an agent in *folder* on *machine*."""
    root = folder / machine.board
    write(root, {"board": machine.board, "system": machine.system})
    settings = configuration(folder)
    return msgspec.structs.replace(settings, agent=msgspec.structs.replace(settings.agent, root=str(root)))


def fill(opened: OpenedStore) -> None:
    """Keep an open episode and a memory."""
    opened.store.save_round([episode()], {"round": b"1"}, time=moment(1))
    opened.store.close()


def episodes_in(opened: OpenedStore) -> int:
    """Return how many episodes are open, and close it."""
    count = len(opened.store.load_episodes())
    opened.store.close()
    return count


def keep(journal: Journal, code: str = "memory.uncorrected") -> None:
    """Keep an episode, and wait until it is on the disk."""
    ticket = journal.keep_round((episode(code),), {"round": b"1"})
    deadline = time.monotonic() + 10
    assert ticket is not None
    while journal.keeping(ticket) is not Keeping.KEPT and time.monotonic() < deadline:
        time.sleep(0.01)
    assert journal.keeping(ticket) is Keeping.KEPT


def plain_engine() -> Engine:
    """Return an engine that knows nothing."""
    return Engine((), node="node", clock=SystemClock().instant)
