"""Who holds a port, read from a /proc of our own."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodevet.exporters.listeners import holder_of

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc in which process 77 listens on port 10917 over IPv4, and 78 on 8080 over IPv6."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(
        HEAD
        + "   0: 0100007F:2AA5 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 5001 1 0 100 0 0 10 0\n"
        + "   1: 0100007F:2AA6 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  0 0 5003 1 0 100 0 0 10 0\n"
    )
    (tmp_path / "net" / "tcp6").write_text(
        HEAD
        + "   0: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 "
        + "00:00000000 00000000  0 0 5002 1 0 100 0 0 10 0\n"
    )
    for pid, name, inode in ((77, "exporter", 5001), (78, "web", 5002), (79, "client", 5003)):
        folder = tmp_path / str(pid) / "fd"
        folder.mkdir(parents=True)
        (folder.parent / "comm").write_text(f"{name}\n")
        (folder / "3").symlink_to(f"socket:[{inode}]")
        (folder / "0").symlink_to("/dev/null")
    return tmp_path


@pytest.mark.parametrize(
    ("port", "holder"),
    [(10917, "exporter (pid 77)"), (8080, "web (pid 78)"), (10918, None), (1, None)],
    ids=["IPv4", "IPv6", "a connection is no listener", "free"],
)
def test_the_listener_is_named(proc: Path, port: int, holder: str | None) -> None:
    """The process whose descriptor is the listening socket, and nobody where there is none."""
    assert holder_of(port, proc) == holder


def test_a_process_that_ends_meanwhile_is_passed_over(proc: Path) -> None:
    """A process without descriptors to read does not hide the one that listens."""
    (proc / "12").mkdir()
    assert holder_of(10917, proc) == "exporter (pid 77)"


def test_without_the_table_nobody_is_named(tmp_path: Path) -> None:
    """Where /proc shows no sockets the holder is not guessed."""
    assert holder_of(10917, tmp_path) is None
