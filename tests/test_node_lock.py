"""The node lock: one reader at a time, and the second is told who the first is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodevet.agent.lock import acquire_node_lock
from nodevet.checks.errors import BusyError, StoreError

HOLDER = (
    "import sys; from pathlib import Path; from nodevet.agent.lock import acquire_node_lock; "
    "lock = acquire_node_lock(Path(sys.argv[1]), 'nodevet check'); print('held', flush=True); sys.stdin.read()"
)


def test_second_reader_is_told_pid_and_purpose_of_the_first(tmp_path: Path) -> None:
    """The message says what to do; when the first dies, however it dies, the next gets the lock."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
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
