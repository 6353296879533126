"""A library that may not open its driver's devices calls the driver dead: nobody was asked, and nobody is to blame."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from fakes.bench import Bench
from fakes.views import gpu, sample

from nodevet.agent.readers.blame import Blame
from nodevet.agent.readers.heartbeat import Heartbeat
from nodevet.agent.readers.witness import Surroundings
from nodevet.checks.backends.device_nodes import NodeRow, closed_nodes
from nodevet.checks.backends.reader_main import unasked
from nodevet.checks.core.model import Failure, FailureKind
from nodevet.checks.engine.refusal import REFUSALS
from nodevet.checks.ipc.child_process import Child
from nodevet.checks.reference.tables import load_table

SAID_WITHOUT_ASKING = {FailureKind.ERROR, FailureKind.NO_DRIVER, FailureKind.NO_DEVICES}
"""A lost board and a library of another release are what a driver was asked for."""

NVIDIA = ("nvidiactl", "nvidia0", "nvidia1")


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of nodes that the kernel does not let this program open, as the group of devices of a unit has it."""
    names: set[str] = set()
    monkeypatch.setattr(os, "access", lambda path, _mode, **_how: Path(path).name not in names)
    return names


def made(folder: Path, *names: str) -> Path:
    """Return *folder* with a file for each node."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.mark.parametrize(
    ("there", "shut", "backend", "named"),
    [
        (NVIDIA, (), "nvidia", ""),
        (NVIDIA, ("nvidiactl",), "nvidia", "nvidiactl"),
        (NVIDIA, ("nvidia0",), "nvidia", ""),
        (NVIDIA, ("nvidia0", "nvidia1"), "nvidia", "nvidia0"),
        (NVIDIA, NVIDIA, "amd", ""),
        (("dri/renderD128", "dri/renderD129", "dri/card0"), ("renderD128", "card0"), "amd", ""),
        (("dri/renderD128", "dri/renderD129", "dri/card0"), ("renderD128", "renderD129"), "amd", "dri/renderD128"),
        (("dri/card0",), ("card0",), "amd", ""),
        (NVIDIA, NVIDIA, "command.x", ""),
        ((), (), "nvidia", ""),
        ((), (), "amd", ""),
    ],
)
def test_devices_are_closed_where_none_that_a_library_needs_may_be_opened(
    tmp_path: Path, closed: set[str], there: tuple[str, ...], shut: tuple[str, ...], backend: str, named: str
) -> None:
    """One board that a site took away says nothing of the others; a node that nobody made needs no key."""
    closed.update(shut)
    said = closed_nodes(backend, made(tmp_path, *there), tmp_path / "modules")
    assert said.startswith(f"this program may not open {tmp_path / named}: ") if named else not said
    assert "DeviceAllow=" in said or not named


@pytest.mark.parametrize(("there", "is_missing"), [((), True), (("nvidia0",), True), (("nvidiactl",), False)])
def test_a_node_that_nobody_made_is_missing_while_its_module_is_loaded(
    tmp_path: Path, there: tuple[str, ...], is_missing: bool
) -> None:
    """A helper makes the nodes of NVIDIA; without the module it is the driver that is missing, and they follow."""
    (tmp_path / "modules/nvidia").mkdir(parents=True)
    said = closed_nodes("nvidia", made(tmp_path, *there), tmp_path / "modules")
    assert ("nvidiactl is missing, although the module nvidia is loaded" in said) is is_missing


def driven(modules: Path, backend: str, *, boards: bool = True, rendered: bool = True) -> Path:
    """Return the *modules* of a kernel whose driver of *backend* has two *boards*, which it *rendered* if amdgpu's."""
    name = {"nvidia": "nvidia", "amd": "amdgpu"}[backend]
    (modules / name / "drivers").mkdir(parents=True)
    driver = modules / "bus" / name
    driver.mkdir(parents=True)
    (modules / name / f"drivers/pci:{name}").symlink_to(driver)
    for slot in range(2 if boards else 0):
        board = modules / f"devices/0000:{slot:02x}:00.0"
        (board / (f"drm/renderD{128 + slot}" if rendered else "power")).mkdir(parents=True)
        (driver / board.name).symlink_to(board)
    (driver / "new_id").touch()
    return modules


@pytest.mark.parametrize(
    ("backend", "there", "boards", "rendered", "missing"),
    [
        ("nvidia", ("nvidiactl",), True, False, "nvidia[0-9]*"),
        ("nvidia", ("nvidiactl", "nvidia-uvm", "nvidia-modeset"), True, False, "nvidia[0-9]*"),
        ("nvidia", ("nvidiactl", "nvidia1"), True, False, ""),
        ("nvidia", ("nvidiactl",), False, False, ""),
        ("amd", ("kfd",), True, True, "dri/renderD*"),
        ("amd", ("kfd", "dri/card0"), True, True, "dri/renderD*"),
        ("amd", ("kfd", "dri/renderD128"), True, True, ""),
        ("amd", ("kfd",), True, False, ""),
        ("amd", ("kfd",), False, True, ""),
    ],
)
def test_nodes_of_boards_that_nobody_gave_this_program_are_missing(
    tmp_path: Path, backend: str, there: tuple[str, ...], boards: bool, rendered: bool, missing: str
) -> None:
    """A container without any, a unit with a /dev of its own: the gate closed for boards that served every job.

    A driver that drives no board has none to make a node for: that is its word.
    """
    modules = driven(tmp_path / "modules", backend, boards=boards, rendered=rendered)
    said = closed_nodes(backend, made(tmp_path / "dev", *there), modules)
    if not missing:
        assert said == ""
        return
    assert f"{missing} is missing, although the module" in said
    assert "drives 2 boards: the driver was not asked" in said


def test_the_node_of_one_board_is_missing_in_the_singular(tmp_path: Path) -> None:
    """A workstation has one board."""
    modules = driven(tmp_path / "modules", "nvidia")
    min((modules / "nvidia").glob("drivers/pci:nvidia/0000:*")).unlink()
    said = closed_nodes("nvidia", made(tmp_path / "dev", "nvidiactl"), modules)
    assert "drives 1 board: the driver was not asked" in said


@pytest.mark.parametrize(("backend", "there"), [("nvidia", "nvidiactl"), ("amd", "kfd")])
@pytest.mark.parametrize("kind", sorted(REFUSALS))
def test_a_library_without_the_nodes_of_its_boards_neither_refuses_nor_lists_none(
    tmp_path: Path, backend: str, there: str, kind: FailureKind
) -> None:
    """That there is no device was hard until the next boot, with a reboot for a next step."""
    bench = Bench(tmp_path)
    (tmp_path / "proc").mkdir()
    modules = driven(tmp_path / "modules", backend)
    around = Surroundings(tmp_path / "proc", tmp_path, devices=made(tmp_path / "dev", there), modules=modules)
    blame = Blame(backend, bench.clock, around, Heartbeat(bench.clock, bench.selector))
    told = blame.of_all(cast(Child, SimpleNamespace(tight_limit="")), Failure(kind, "for a test", of_driver=True))
    bench.close()
    is_unasked = kind is not FailureKind.VERSION_MISMATCH  # of a whole library, "lost" is an error like any
    assert told.of_driver is not is_unasked
    if is_unasked:
        assert told.kind is FailureKind.ERROR
        assert "PrivateDevices=" in told.detail


def test_an_agent_without_a_descriptor_left_excuses_nobody_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: set[str]
) -> None:
    """To list a folder takes one; this is asked while a reader fails, and must not cost the loop its round."""
    folder = made(tmp_path, *NVIDIA)
    closed.update(("nvidia0", "nvidia1"))
    assert closed_nodes("nvidia", folder, tmp_path)

    def refuse(*_arguments: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "scandir", refuse)
    assert closed_nodes("nvidia", folder, tmp_path) == ""


@pytest.mark.parametrize("kind", sorted(REFUSALS))
@pytest.mark.parametrize("shut", [(), ("nvidiactl",)], ids=["open", "closed"])
def test_what_a_library_says_that_may_not_open_its_devices_is_no_word_of_the_driver(
    tmp_path: Path, closed: set[str], kind: FailureKind, shut: tuple[str, ...]
) -> None:
    """A unit that began before its driver was loaded closed the gate of a healthy node; what is lost stays lost."""
    closed.update(shut)
    bench = Bench(tmp_path)
    (tmp_path / "proc").mkdir()
    around = Surroundings(tmp_path / "proc", tmp_path, devices=made(tmp_path / "dev", *NVIDIA))
    blame = Blame("nvidia", bench.clock, around, Heartbeat(bench.clock, bench.selector))
    child = cast(Child, SimpleNamespace(tight_limit=""))
    failure = Failure(kind, "for a test", of_driver=True)
    one = blame.of_one(child, sample(gpu("b"), {}, failure=failure)).failure
    assert one is not None
    assert one.of_driver is not (bool(shut) and kind in SAID_WITHOUT_ASKING)
    assert ("this program may not open" in one.detail) is not one.of_driver
    whole = blame.of_all(child, failure)
    assert whole.of_driver is not (bool(shut) and whole.kind in SAID_WITHOUT_ASKING)
    bench.close()


@pytest.mark.parametrize("kind", sorted(REFUSALS))
@pytest.mark.parametrize(
    ("state", "is_at_work"),
    [("live", True), ("built in", True), ("coming", False), ("going", False), ("absent", False)],
)
def test_a_library_that_finds_no_driver_where_the_kernel_has_it_at_work_did_not_ask(
    tmp_path: Path, kind: FailureKind, state: str, is_at_work: bool
) -> None:
    """The stub of a toolkit in the place of a library said so, and closed the gates of healthy nodes at once."""
    bench = Bench(tmp_path)
    (tmp_path / "proc").mkdir()
    module = tmp_path / "modules/nvidia"
    if state != "absent":
        module.mkdir(parents=True)
    if state not in ("absent", "built in"):
        (module / "initstate").write_text(f"{state}\n")
    around = Surroundings(
        tmp_path / "proc", tmp_path, devices=made(tmp_path / "dev", *NVIDIA), modules=tmp_path / "modules"
    )
    blame = Blame("nvidia", bench.clock, around, Heartbeat(bench.clock, bench.selector))
    told = blame.of_all(cast(Child, SimpleNamespace(tight_limit="")), Failure(kind, "for a test", of_driver=True))
    bench.close()
    is_contradicted = kind is FailureKind.NO_DRIVER and is_at_work
    assert told.of_driver is not is_contradicted
    assert ("the kernel has the module nvidia at work" in told.detail) is is_contradicted
    if is_contradicted:
        assert told.kind is FailureKind.ERROR  # nothing is to be installed


@pytest.mark.parametrize("kind", sorted(REFUSALS))
@pytest.mark.parametrize(
    ("backend", "error", "shut", "named"),
    [
        ("nvidia", errno.EACCES, ("nvidiactl",), "nvidiactl"),
        ("nvidia", errno.EPERM, ("nvidiactl",), "nvidiactl"),
        ("nvidia", errno.EIO, ("nvidiactl",), ""),
        ("nvidia", errno.EACCES, ("nvidia0", "nvidia1"), ""),  # opened by board, which may take long
        ("amd", errno.EACCES, ("renderD128", "renderD129"), "dri/renderD128"),
        ("amd", errno.EACCES, ("renderD128",), ""),
        ("amd", errno.ENODEV, ("renderD128", "renderD129"), ""),
    ],
)
def test_what_a_profile_keeps_closed_was_asked_by_nobody(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: FailureKind,
    backend: str,
    error: int,
    shut: tuple[str, ...],
    named: str,
) -> None:
    """A profile or a mount without devices refuses what the modes allow: the library called its driver dead."""
    folder = made(tmp_path, *NVIDIA, "dri/renderD128", "dri/renderD129")
    opens = os.open

    def refuse(path: Path, flags: int) -> int:
        if path.name in shut:
            raise OSError(error, os.strerror(error))
        return opens(path, flags)

    monkeypatch.setattr(os, "open", refuse)
    told = unasked(backend, Failure(kind, "for a test", of_driver=True), folder)
    monkeypatch.undo()
    is_excused = bool(named) and kind in SAID_WITHOUT_ASKING
    assert told.of_driver is not is_excused
    assert (f"may not open {folder / named}, whatever its mode says" in told.detail) is is_excused


def test_every_row_has_a_source() -> None:
    """Which node a library opens, and in which words it says that it could not."""
    rows = load_table("device_nodes.csv", NodeRow)
    assert {row.backend for row in rows} == {"nvidia", "amd"}
    assert all(row.source for row in rows)
