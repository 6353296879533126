"""The node lock: one reader at a time, and the second is told who the first is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.ended import ended

from nodevet.agent.load.claims import LoadLock
from nodevet.agent.store.database import lock
from nodevet.checks.core.errors import BusyError, StoreError
from nodevet.checks.system.lock import acquire_node_lock

HOLDER = (
    "import sys; from pathlib import Path; from nodevet.checks.system.lock import acquire_node_lock; "
    "lock = acquire_node_lock(Path(sys.argv[1]), 'nodevet check'); print('held', flush=True); sys.stdin.read()"
)


def test_second_reader_is_told_pid_and_purpose_of_the_first(tmp_path: Path) -> None:
    """The message says what to do; when the first dies, however it dies, the next gets the lock."""
    with ended(
        subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BusyError, match=rf"nodevet check \(pid {holder.pid}\).*nodevet status"):
            acquire_node_lock(tmp_path)
        holder.kill()
        holder.wait(5)
    acquire_node_lock(tmp_path).release()


def test_released_lock_is_free(tmp_path: Path) -> None:
    """Within one process too: two loops of one test do not share it."""
    with acquire_node_lock(tmp_path / "run", "first"), pytest.raises(BusyError, match=f"first .pid {os.getpid()}"):
        acquire_node_lock(tmp_path / "run")
    again = acquire_node_lock(tmp_path / "run", "x")
    again.release()
    again.release()


def test_name_of_a_longer_predecessor_does_not_show_through(tmp_path: Path) -> None:
    """What the last holder wrote is replaced as a whole."""
    acquire_node_lock(tmp_path, "a very long purpose of an earlier run").release()
    with acquire_node_lock(tmp_path, "short"):
        assert (tmp_path / "node.lock").read_text() == f"{os.getpid()} short\n"


@pytest.mark.parametrize("text", ["", "garbage", "\x00\x01"])
def test_holder_that_wrote_no_name_is_another_process(tmp_path: Path, text: str) -> None:
    """Between taking the lock and writing the name there is a moment."""
    with acquire_node_lock(tmp_path):
        (tmp_path / "node.lock").write_text(text)
        with pytest.raises(BusyError, match="held by another process"):
            acquire_node_lock(tmp_path)


def test_impossible_directory_is_named(tmp_path: Path) -> None:
    """One line with the path and the next step; a link in the lock's place is not followed."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="choose another runtime_dir"):
        acquire_node_lock(tmp_path / "file")
    (tmp_path / "node.lock").symlink_to(tmp_path / "file")
    with pytest.raises(StoreError, match="cannot be written"):
        acquire_node_lock(tmp_path)


def test_a_lock_whose_file_was_removed_is_taken_anew(tmp_path: Path) -> None:
    """Nobody gets in beside it; where somebody did meanwhile, that is said, and nothing is taken from him."""
    with acquire_node_lock(tmp_path, "first") as lock:
        lock.path.unlink()
        lock.restore()
        with pytest.raises(BusyError, match="first"):
            acquire_node_lock(tmp_path, "second")
        lock.path.unlink()
        with acquire_node_lock(tmp_path, "second"), pytest.raises(BusyError, match="second"):
            lock.restore()
        lock.restore()
        with pytest.raises(BusyError, match="first"):
            acquire_node_lock(tmp_path, "third")
    acquire_node_lock(tmp_path).release()


@pytest.mark.parametrize("name", ["node.lock", "nodevet.db.lock", "load.lock"])
@pytest.mark.parametrize("before", [None, 0o640, 0o644])
def test_nobody_but_its_owner_can_take_a_lock(name: str, before: int | None, tmp_path: Path) -> None:
    """Whoever may read a file can lock it: a member of the socket's group kept the next agent from starting."""
    path = tmp_path / name
    if before is not None:
        path.write_text("")
        path.chmod(before)
    takes: dict[str, Callable[[], object]] = {
        "node.lock": lambda: acquire_node_lock(tmp_path).release(),
        "nodevet.db.lock": lambda: os.close(lock(tmp_path / "nodevet.db")),
        "load.lock": lambda: os.close(LoadLock(tmp_path).acquire()),
    }
    mask = os.umask(0)
    try:
        takes[name]()
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o7777 == 0o600
