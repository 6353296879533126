"""What a machine refused to a library that then ended itself: told with what is short, and blamed on nobody."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar, cast

import pytest
from fakes.bench import INTERVAL, Bench
from fakes.ended import ended
from fakes.views import gpu, sample
from test_blame import bench, fall, is_hard, rise, said, start

from nodevet.agent.readers.blame import Blame
from nodevet.agent.readers.disk import Disk
from nodevet.agent.readers.heartbeat import Heartbeat
from nodevet.agent.readers.room import without_room
from nodevet.agent.readers.shortages import Shortages
from nodevet.agent.readers.wants import Wants
from nodevet.agent.readers.witness import Surroundings
from nodevet.checks.backends.device_nodes import SAID_WITHOUT_ASKING
from nodevet.checks.core.model import Failure, FailureKind, ReaderState
from nodevet.checks.engine.refusal import REFUSALS
from nodevet.checks.ipc.child_process import Child
from nodevet.checks.system.procfs import tight_limit

__all__ = ["bench"]

Answer = TypeVar("Answer")

FULL = "the disk of /dev/shm is full"
CRASHES = {
    "abort": "in: fake_read(b, fast), but the disk of /dev/shm is full; its last message: driver: assertion failed",
    "segv": "was killed by SIGSEGV in: fake_read(b, fast), but the disk of /dev/shm is full",
    "bus": "was killed by SIGBUS in: fake_read(b, fast), but the disk of /dev/shm is full",
    "ill": "was killed by SIGILL in: fake_read(b, fast), but the disk of /dev/shm is full",
    "exit": "ended with status 3 in: fake_read(b, fast), but the disk of /dev/shm is full",
    "say": "for lack of space on a disk; its last message: write: No space left on device; the disk of /dev/shm is",
}
NO_SPACE = "write: No space left on device"


@pytest.mark.parametrize("behaviour", CRASHES)
def test_a_crash_while_a_disk_is_full_is_nobodys_fault(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, behaviour: str
) -> None:
    """However often, with words and without; the next reading ends it."""
    bench.write(words=NO_SPACE)
    monkeypatch.setattr(Shortages, "space_shortage", lambda _self, _files: FULL, raising=False)
    for times in range(1, 6):
        fall(bench, behaviour)
        assert CRASHES[behaviour] in said(bench)
        assert (bench.status().witnessed, is_hard(bench), bench.supervisor.falls) == (0, False, ())
        rise(bench, 61.0 * times)
        assert said(bench) == ""


def test_words_of_a_full_disk_excuse_a_crash_three_times(bench: Bench) -> None:
    """A driver says the same of a board's address space, and nothing shows a full disk."""
    bench.write(words=NO_SPACE)
    for times in range(1, 4):
        fall(bench, "say")
        assert "for lack of space on a disk; its last message: write: No space left on device; see df -h" in said(bench)
        assert (bench.status().witnessed, is_hard(bench)) == (0, False)
        rise(bench, 61.0 * times)
    for hard in (False, True):
        fall(bench, "say")
        assert is_hard(bench) is hard
        rise(bench, 300.0)


@pytest.mark.parametrize("words", ["open: Read-only file system", "write: Disk quota exceeded", "File too large"])
def test_no_board_makes_a_disk_refuse_to_be_written(bench: Bench, words: str) -> None:
    """These words have no other cause than the disk, which nothing else may show: each crash is excused."""
    bench.write(words=words)
    for times in range(1, 6):
        fall(bench, "say")
        assert f"for lack of permission to write to a disk; its last message: {words}; see /proc/mounts" in said(bench)
        assert (bench.status().witnessed, is_hard(bench)) == (0, False)
        rise(bench, 61.0 * times)


def test_a_bus_error_in_each_start_while_a_disk_is_full_names_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a lock in /dev/shm that is made, mapped and touched in one call: nobody ever sees that it is mapped."""
    monkeypatch.setattr(Shortages, "space_shortage", lambda _self, _files: FULL)
    bench = Bench(tmp_path, start="cut")
    for _ in range(4):
        start(bench)
        assert f"was killed by SIGBUS in: fake_init, but {FULL}" in said(bench)
        assert (bench.status().witnessed, is_hard(bench)) == (0, False)
    bench.write(start="ok")
    bench.round(300.0)
    assert bench.status().state is ReaderState.RUNNING
    bench.close()


def test_a_file_that_may_grow_no_further_is_no_crash_of_the_driver(bench: Bench) -> None:
    """RLIMIT_FSIZE (LimitFSIZE): the interpreter ignores its signal, and a library meets an error."""
    for _ in range(2):
        pid = bench.status().pid
        assert pid is not None
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
        fall(bench, "segv")
        assert "but it ran with the limit RLIMIT_FSIZE of 1073741824 bytes, which may be too small" in said(bench)
        assert bench.status().witnessed == 0
        rise(bench)


def disk(**changes: int) -> os.statvfs_result:
    """A disk of 1 GiB that is half full."""
    fields = {
        "f_bsize": 4096,
        "f_frsize": 4096,
        "f_blocks": 1 << 18,
        "f_bfree": 1 << 17,
        "f_bavail": 1 << 17,
        "f_files": 1000,
        "f_ffree": 500,
        "f_favail": 500,
        "f_flag": 0,
        "f_namemax": 255,
        **changes,
    }
    return os.statvfs_result(tuple(fields.values()))


NO_BLOCKS = {"f_bfree": 0, "f_bavail": 0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        (NO_BLOCKS, "the disk of /var/log is full (0 of 1073741824 bytes are left): make room there (df -h /var/log)"),
        ({"f_bfree": 255, "f_bavail": 255}, "the disk of /var/log is full (1044480 of"),
        ({"f_bfree": 256, "f_bavail": 256}, ""),
        ({"f_ffree": 0, "f_favail": 0}, "has no free inode, all 1000 are used: remove files (df -i /var/log)"),
        ({"f_files": 0, "f_ffree": 0, "f_favail": 0}, ""),
        ({**NO_BLOCKS, "f_flag": os.ST_RDONLY}, ""),
        ({**NO_BLOCKS, "f_blocks": 0}, ""),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/var/log", "/opt/driver/lock"])
def test_a_disk_without_room_is_seen(changes: dict[str, int], words: str, path: str) -> None:
    """Room or names for files; what has no size has room, and an image that is only read is always full."""
    found = without_room(["/opt/driver/lock"], lambda asked: disk(**(changes if asked == path else {})))
    words = words.replace("/var/log", path)
    assert (words in found) if words else found == ""


def test_what_root_alone_may_use_is_room_for_root_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of a disk that is kept for root (ext4)."""
    for user, full in ((0, False), (1000, True)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert bool(without_room([], lambda _path: disk(f_bavail=0))) is full


def test_a_disk_that_cannot_be_asked_hides_no_other(tmp_path: Path) -> None:
    """A folder may be missing, or belong to a file system whose program is gone (FUSE)."""

    def ask(path: str) -> os.statvfs_result:
        if path != str(tmp_path):
            raise OSError(107, "Transport endpoint is not connected")
        return disk(**NO_BLOCKS)

    assert without_room([], ask) == ""
    assert str(tmp_path) in without_room([str(tmp_path)], ask)


class NotingDisk(Disk):
    """A disk that answers nothing, and notes what it was asked."""

    asked: object = None

    def ask(self, look: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Note *look*."""
        self.asked = look
        return otherwise


def test_a_disk_that_gives_no_answer_is_not_waited_for() -> None:
    """A file that a reader had mapped may lie on a file server."""
    disk = NotingDisk()
    assert Surroundings(disk=disk).shortages.space_shortage(["/opt/lock"]) == ""
    assert isinstance(disk.asked, partial)
    assert (disk.asked.func, disk.asked.args) == (without_room, (("/opt/lock",),))


COUNTERS = [
    ("0::/a/b", "a/b/pids.max", "a/b/pids.events", "max {}", "threads were refused"),
    ("0::/a/b", "a/b/pids.max", "a/pids.events.local", "max {}", "threads were refused"),
    ("0::/a/b", "a/b/memory.max", "a/b/memory.events.local", "low 0\noom {}\noom_kill 9", "no memory was left"),
    ("0::/a/b", "a/b/memory.max", "a/memory.events", "low 0\noom {}\noom_kill 9", "no memory was left"),
    ("8:pids:/a/b", "pids/a/b/pids.max", "pids/a/b/pids.events", "max {}", "threads were refused"),
    (
        "4:memory:/a/b",
        "memory/a/b/memory.limit_in_bytes",
        "memory/a/memory.oom_control",
        "under_oom 0\noom_kill {}",
        "no memory was left",
    ),
]
"""The group of the agent, a file that limits it, one that counts, what that says, and the words for it."""


@pytest.mark.parametrize(("line", "limit", "counts", "text", "words"), COUNTERS)
def test_what_a_group_refused_since_the_last_round_is_seen(
    tmp_path: Path, line: str, limit: str, counts: str, text: str, words: str
) -> None:
    """It may be there again when the agent looks; what was refused before is no cause."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(f"{line}\n")
    groups = tmp_path / "groups"
    for name, content in ((limit, "max"), (counts, text.format(7))):
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(content + "\n")
    wants = Wants(Surroundings(tmp_path, groups))
    child = cast(Child, SimpleNamespace(tight_limit=""))
    assert wants.seen(child) == ""
    wants.look()
    assert wants.seen(child) == ""
    (groups / counts).write_text(text.format(10) + "\n")
    assert wants.seen(child).startswith(f"{words} since the last round: 3 ")
    assert f"({groups / counts}): raise " in wants.seen(child)
    wants.look()
    assert wants.seen(child) == ""


def test_a_group_below_counts_for_nobody_above_it(tmp_path: Path) -> None:
    """A slice counts what the units in it were refused, each at its own limit; its own number stands beside."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/slice/unit\n")
    group = tmp_path / "groups/slice"
    (group / "unit").mkdir(parents=True)
    (group / "unit/pids.max").write_text("max\n")
    (group / "pids.events").write_text("max 9\n")
    (group / "pids.events.local").write_text("max 2\n")
    assert list(Surroundings(tmp_path, tmp_path / "groups").shortages.refusals().values()) == [2]


def test_a_crash_after_a_group_refused_a_thread_is_nobodys_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader before is no cause of what follows it: without another refusal the crash counts."""
    counted = {"threads were refused since the last round: {} (pids.events): raise TasksMax": 5}
    monkeypatch.setattr(Shortages, "refusals", lambda _self: dict(counted), raising=False)
    bench = Bench(tmp_path)
    bench.round()
    for refused, witnessed in ((1, 0), (2, 0), (0, 1), (0, 2)):
        for words in counted:
            counted[words] += refused
        fall(bench, "segv")
        told = f"but threads were refused since the last round: {refused} (pids.events): raise TasksMax"
        assert (told in said(bench)) is bool(refused)
        assert bench.status().witnessed == witnessed
        rise(bench, 300.0)
    for words in counted:  # in a round that went well
        counted[words] += 1
    bench.round(INTERVAL)
    fall(bench, "segv")
    assert bench.status().witnessed == 3
    bench.close()


@pytest.mark.parametrize(
    ("user", "own", "most", "short"),
    [(1000, 90, "100", True), (1000, 89, "100", False), (0, 90, "100", False), (1000, 90, "unlimited", False)],
)
def test_threads_that_a_users_limit_refuses_are_seen(
    tmp_path: Path, user: int, own: int, most: str, short: bool
) -> None:
    """RLIMIT_NPROC counts all threads of a user, and nobody refuses root any."""
    for pid, owner, threads in (("self", user, 1), ("7", user, own - 1), ("8", user, 1), ("9", 7, 900)):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "status").write_text(f"Uid:\t{owner}\t{owner}\t0\t0\nThreads:\t{threads}\n")
    (tmp_path / "self/limits").write_text(f"Limit\nMax processes             {most}   {most}  processes\n")
    (tmp_path / "loadavg").write_text("0.00 0.01 0.05 1/990 12345\n")
    shortage = Surroundings(tmp_path, tmp_path / "groups").shortages.task_shortage()
    assert shortage == (
        f"it may have failed to start a thread: its user has 90 of 100 (ulimit -u): {STEP}" if short else ""
    )


STEP = "raise LimitNPROC"


@pytest.mark.parametrize(
    ("total_kb", "left_kb", "said_so", "silent"),
    [(40 << 20, (1 << 20) - 1, True, True), (40 << 20, 1 << 20, True, False), (10 << 20, 600 << 10, False, False)],
)
def test_memory_that_is_all_but_gone_excuses_a_crash_without_words(
    tmp_path: Path, total_kb: int, left_kb: int, said_so: bool, silent: bool
) -> None:
    """A job that fills a large machine leaves a twentieth: enough for a library, unless it says otherwise."""
    (tmp_path / "meminfo").write_text(f"MemTotal: {total_kb} kB\nMemAvailable: {left_kb} kB\n")
    wants = Wants(Surroundings(tmp_path, tmp_path / "groups"))
    child = cast(Child, SimpleNamespace(tight_limit=""))
    assert bool(wants.seen(child, said=True)) is said_so
    assert bool(wants.seen(child)) is silent


@pytest.mark.parametrize("left", [(1 << 30) - 1, 1 << 30])
def test_a_group_that_is_all_but_full_excuses_a_crash_without_words(tmp_path: Path, left: int) -> None:
    """Where it refuses memory to the kernel on a library's behalf, nothing is killed and nothing is said."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/unit\n")
    group = tmp_path / "groups/unit"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(f"{1 << 40}\n")
    (group / "memory.current").write_text(f"{(1 << 40) - left}\n")
    wants = Wants(Surroundings(tmp_path, tmp_path / "groups"))
    child = cast(Child, SimpleNamespace(tight_limit=""))
    assert f"({group}/memory.max): raise that limit" in wants.seen(child, said=True)
    assert bool(wants.seen(child)) is (left < 1 << 30)


def test_a_library_that_refuses_for_a_full_disk_is_no_word_of_the_driver(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As AMD SMI, which makes a lock in /dev/shm for each board: it says that it could not be initialized."""
    blame = Blame("amd", bench.clock, Surroundings(), Heartbeat(bench.clock, bench.selector))
    child = cast(Child, SimpleNamespace(tight_limit=""))
    failure = Failure(FailureKind.NO_DRIVER, "AMDSMI_STATUS_INIT_ERROR", of_driver=True)
    for shortage in (FULL, ""):
        monkeypatch.setattr(Surroundings, "unasked", lambda _self, _backend, _kind: "")
        monkeypatch.setattr(Shortages, "space_shortage", lambda _self, _files, words=shortage: words)
        told = blame.of_all(child, failure)
        assert told.of_driver is not bool(shortage)
        assert (FULL in told.detail) is bool(shortage)


FSIZE = "RLIMIT_FSIZE of 4096 bytes, which may be too small for a file"


@pytest.mark.parametrize("kind", sorted(REFUSALS))
@pytest.mark.parametrize("want", ["space_shortage", "task_shortage", "limit"])
def test_what_a_library_has_from_its_driver_alone_is_no_want_of_room_or_threads(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: FailureKind, want: str
) -> None:
    """Any user fills /dev/shm, and takes all threads: a board that fell off the bus is lost all the same."""
    child = cast(Child, SimpleNamespace(tight_limit=FSIZE if want == "limit" else ""))
    if want != "limit":
        monkeypatch.setattr(Shortages, want, lambda *_: FULL)
    wants = Wants(Surroundings())
    assert bool(wants.behind(child, kind)) is (kind in SAID_WITHOUT_ASKING)
    blame = Blame("nvidia", bench.clock, Surroundings(), Heartbeat(bench.clock, bench.selector))
    monkeypatch.setattr(Surroundings, "unasked", lambda *_: "")
    told = blame.of_one(child, sample(gpu("b"), {}, failure=Failure(kind, "for a test", of_driver=True))).failure
    assert told is not None
    assert told.of_driver is (kind not in SAID_WITHOUT_ASKING)


@pytest.mark.parametrize("want", ["commit_shortage", "descriptor_shortage", "memory_shortage", "_refused", "limit"])
def test_a_driver_that_is_refused_memory_or_files_calls_any_board_lost(
    monkeypatch: pytest.MonkeyPatch, want: str
) -> None:
    """Its calls want them in the kernel, too."""
    child = cast(Child, SimpleNamespace(tight_limit="RLIMIT_NOFILE of 24" if want == "limit" else ""))
    wants = Wants(Surroundings())
    assert wants.behind(cast(Child, SimpleNamespace(tight_limit="")), FailureKind.LOST) == ""
    if want != "limit":
        monkeypatch.setattr(Wants if want == "_refused" else Shortages, want, lambda *_: FULL)
    assert wants.behind(child, FailureKind.LOST) == (
        "it ran with the limit RLIMIT_NOFILE of 24" if want == "limit" else FULL
    )


def test_a_limit_on_the_size_of_files_hides_no_other_limit() -> None:
    """It explains less than they do."""
    with ended(subprocess.Popen(["/bin/sleep", "60"])) as process:
        for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
            resource.prlimit(process.pid, limit, (64, 64))
        told = tight_limit(process.pid)
        process.kill()
    assert told == "RLIMIT_NOFILE of 64, which may be too few files: raise LimitNOFILE"
