"""Small files are written whole: whoever reads one, and a start after a crash, finds the old one or the new one."""

from __future__ import annotations

import ast
import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nodevet.agent.simulated.origin import MARKER_NAME, NAMELESS, claim, refuse_simulated, simulated_owner
from nodevet.checks.core.errors import StoreError
from nodevet.checks.system.files import opened, read_trusted, replace, replace_file

TESTS = Path(__file__).resolve().parent

WRITES_THROUGH = {
    "agent/commands/report.py",  # output that a person named: it may be a pipe or a terminal
    "agent/load/output.py",  # likewise
    "agent/slurm/survey.py",  # a temporary folder in which the scripts are tried, read by nobody else
}


OPENS_ITSELF = {
    "agent/load/claims.py",  # writes an answer into the claim of a job, which a prolog made
    "agent/store/open_files.py",  # holds the place of a database, and reads nothing
    "checks/system/lock.py",  # makes the file that it locks
    "exporters/statefile/reader.py",  # the standard library alone
}


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_file_is_replaced_with_its_mode_and_nothing_is_left_beside_it(tmp_path: Path, umask: int) -> None:
    """Whatever the umask is, and whatever a writer left that was killed."""
    path = tmp_path / "small"
    (tmp_path / ".small.new").write_text("half")
    before = os.umask(umask)
    try:
        replace(path, b"one")
        replace(path, b"two", mode=0o644)
    finally:
        os.umask(before)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"two", 0o644)
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_never_followed(tmp_path: Path) -> None:
    """Neither at the name nor at the temporary one: what a link leads to stays as it is."""
    precious = tmp_path / "precious"
    precious.write_text("keep")
    (tmp_path / "small").symlink_to(precious)
    with pytest.raises(StoreError, match="symbolic link"):
        replace_file(tmp_path / "small", b"lost")
    (tmp_path / "small").unlink()
    (tmp_path / ".small.new").symlink_to(precious)
    replace_file(tmp_path / "small", b"new")
    assert precious.read_text() == "keep"


def _die_at(limit: int, path: Path) -> int:
    """Replace *path* in a child that the kernel ends at its first write beyond *limit* bytes; return its status."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            replace(path, b"x" * 100)
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


def test_death_in_the_middle_of_a_write_leaves_the_old_file(tmp_path: Path) -> None:
    """An empty or a half file is never seen, also where there was none before."""
    path = tmp_path / "small"
    for limit in (0, 1, 50, 99):
        assert _die_at(limit, path) == signal.SIGXFSZ
        assert not path.exists()
    replace(path, b"old")
    assert _die_at(50, path) == signal.SIGXFSZ
    assert path.read_bytes() == b"old"


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """The error names the file; what stood there stays, and nothing half lies beside it."""
    path = tmp_path / "small"
    path.write_text("old")
    script = (
        "import resource, signal, sys; from pathlib import Path; from nodevet.checks.system.files import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9))\n"
        "replace_file(Path(sys.argv[1]), b'x' * 100)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert "StoreError" in done.stderr and "small: cannot be written" in done.stderr
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])


def test_no_module_writes_a_small_file_in_place(repository: Path) -> None:
    """Agent, checks and exporters replace what they write; a log that grows is opened to append."""
    found = []
    for folder in ("agent", "checks", "exporters"):
        for path in sorted((repository / folder).rglob("*.py")):
            name = str(path.relative_to(repository))
            calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            found += [
                f"{name}:{call.lineno}" for call in calls if _writes_in_place(call) and name not in WRITES_THROUGH
            ]
    assert found == []


def _writes_in_place(call: ast.Call) -> bool:
    """Whether *call* is `path.write_text(...)`, `path.write_bytes(...)` or opens a named file with the mode `w`."""
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr in ("write_text", "write_bytes"):
        return True
    named = isinstance(function, ast.Name) and function.id == "open"
    opened = isinstance(function, ast.Attribute) and function.attr == "open" and not _is_os(function)
    words = (*call.args, *(word.value for word in call.keywords))
    modes = [entry.value for entry in words if isinstance(entry, ast.Constant)]
    return (named or opened) and any(mode in ("w", "wb", "w+", "wb+") for mode in modes)


def _is_os(function: ast.Attribute) -> bool:
    return isinstance(function.value, ast.Name) and function.value.id == "os"


# The mark of a simulated node.


@pytest.mark.parametrize("broken", [b"", b"\n", b"\0\0\0\0"])
def test_an_empty_mark_is_survived_by_a_simulated_node_and_refused_by_a_real_one(tmp_path: Path, broken: bytes) -> None:
    """A crash of an earlier version left it: whose it was is lost, that it is no real node's is not."""
    (tmp_path / MARKER_NAME).write_bytes(broken)
    (tmp_path / "nodevet.db").write_text("")
    assert simulated_owner(tmp_path) == NAMELESS
    with pytest.raises(
        StoreError, match=r"belongs to the simulated node \(its mark is empty\): name another directory"
    ):
        refuse_simulated(tmp_path)
    claim([tmp_path], "drill (dgx-h100)")
    assert (tmp_path / MARKER_NAME).read_text() == "drill (dgx-h100)\n"


def test_a_mark_is_written_once_and_whole(tmp_path: Path) -> None:
    """A start of the node that it names does not touch it, so that no kill can cut it."""
    claim([tmp_path / "state"], "drill (dgx-h100)")
    mark = tmp_path / "state" / MARKER_NAME
    before = mark.stat().st_ino
    claim([tmp_path / "state"], "drill (dgx-h100)")
    assert (mark.stat().st_ino, mark.read_text()) == (before, "drill (dgx-h100)\n")


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_disk_that_fails_keeps_no_node_without_its_agent(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the start was refused for as long as the disk was broken, although no store is needed to judge."""

    def fail(path: Path, *_: object, **__: object) -> str:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "read_text", fail)
    refuse_simulated(tmp_path)
    with pytest.raises(StoreError, match=os.strerror(number)):
        claim([tmp_path], "drill (dgx-h100)")
    number = errno.EACCES
    with pytest.raises(StoreError, match="look whose it is"):
        refuse_simulated(tmp_path)


def test_a_folder_in_the_place_of_the_mark_is_named(tmp_path: Path) -> None:
    """It is told with its path, by real and simulated nodes alike."""
    (tmp_path / MARKER_NAME).mkdir()
    with pytest.raises(StoreError, match=f"{MARKER_NAME}: cannot be read"):
        claim([tmp_path], "drill (dgx-h100)")
    with pytest.raises(StoreError, match=f"{MARKER_NAME}: cannot be read"):
        refuse_simulated(tmp_path)


def test_what_others_could_have_placed_is_opened_in_one_place() -> None:
    """A module that spells the flags itself forgets one of them: a link, or a pipe without a writer."""
    modules = [path for room in ("agent", "checks", "exporters") for path in (TESTS.parent / room).rglob("*.py")]
    spelling = {str(path.relative_to(TESTS.parent)) for path in modules if "O_NOFOLLOW" in path.read_text()}
    assert spelling == OPENS_ITSELF | {"checks/system/files.py"}


def test_neither_a_link_nor_a_pipe_is_followed_or_waited_for(tmp_path: Path) -> None:
    """A path that a person chose may be a link; a pipe without a writer has no content, and is none of ours."""
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    assert read_trusted(tmp_path / "file", 7) == b"content"
    with pytest.raises(OSError, match="larger than 0 MiB"):
        read_trusted(tmp_path / "file", 6)
    for name, number in (("link", errno.ELOOP), ("pipe", errno.EPERM), ("absent", errno.ENOENT)):
        with pytest.raises(OSError) as caught:
            read_trusted(tmp_path / name, 7)
        assert caught.value.errno == number
    with opened(tmp_path / "link", follow=True) as (descriptor, status):
        assert (os.read(descriptor, 9), status.st_size) == (b"content", 7)
