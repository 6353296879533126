"""What systemd is told, received by a real socket."""

from __future__ import annotations

import io
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from fakes.clocks import SteppedClock
from fakes.snapshots import failed_node

from nodevet.agent.daemon.event_log import EventLog
from nodevet.agent.daemon.log import make_logger
from nodevet.agent.daemon.notify import AGAIN_SECONDS, Notifier, Watchdog, watchdog_interval_seconds


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """A socket that receives as systemd does, under both kinds of address."""
    name = f"@nodevet-{os.getpid()}-{tmp_path.name}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(5)
        receiver.bind(name.replace("@", "\0", 1))
        yield name, receiver


def test_every_message_is_one_datagram(manager: tuple[str, socket.socket]) -> None:
    """The words are those of sd_notify(3); the reload carries the time by which systemd matches it."""
    address, receiver = manager
    notifier = Notifier(address, monotonic_ns=lambda: 1_234_567_890)
    sent = (
        notifier.ready("watching 8 devices"),
        notifier.ready(),
        notifier.status("degraded: GPU 3"),
        notifier.watchdog(),
        notifier.reloading(),
        notifier.stopping(),
    )

    assert all(sent)
    assert [receiver.recv(4096).decode() for _ in sent] == [
        "READY=1\nSTATUS=watching 8 devices",
        "READY=1",
        "STATUS=degraded: GPU 3",
        "WATCHDOG=1",
        "RELOADING=1\nMONOTONIC_USEC=1234567",
        "STOPPING=1",
    ]


@pytest.mark.parametrize(("simulated", "words"), [(False, "failed: "), (True, "simulated node, failed: ")])
def test_a_verdict_is_told_with_whether_the_node_is_simulated(
    manager: tuple[str, socket.socket], simulated: bool, words: str
) -> None:
    """`systemctl status` is a surface like any other."""
    address, receiver = manager
    snapshot = msgspec.structs.replace(failed_node(), simulated=simulated)
    EventLog(make_logger(stream=io.StringIO()), Notifier(address), monotonic=lambda: 0.0).changes(None, snapshot, ())

    assert receiver.recv(4096).decode().startswith(f"STATUS={words}")


def test_status_cannot_smuggle_another_variable(manager: tuple[str, socket.socket]) -> None:
    """A newline in a device's text does not become a message of its own."""
    address, receiver = manager
    Notifier(address).status("lost\nWATCHDOG=trigger")

    assert receiver.recv(4096) == b"STATUS=lost WATCHDOG=trigger"


@pytest.mark.parametrize("address", [None, "", "vsock:2:1234", "relative"])
def test_nobody_to_tell_is_no_error(address: str | None) -> None:
    """Outside systemd, or with an address of another kind, nothing is sent."""
    notifier = Notifier(address)

    assert (notifier.active, notifier.ready(), notifier.watchdog()) == (False, False, False)


def test_manager_that_went_away_is_no_error(tmp_path: Path) -> None:
    """The node is watched on, and the caller is told that nobody heard."""
    assert Notifier(str(tmp_path / "gone")).ready() is False


def test_full_manager_does_not_block(tmp_path: Path) -> None:
    """A manager that does not read costs its messages, never the loop."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "s"))
        notifier = Notifier(str(tmp_path / "s"))

        assert False in [notifier.status("x" * 1000) for _ in range(5000)]


def test_a_manager_that_was_busy_is_told_when_it_has_room(tmp_path: Path) -> None:
    """READY=1 that found its queue full was lost: systemd would end the agent when TimeoutStartSec= was over."""
    clock = SteppedClock()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "s"))
        receiver.setblocking(False)
        notifier = Notifier(str(tmp_path / "s"), monotonic_ns=lambda: 1_234_567_890)
        watchdog = Watchdog(notifier, clock)
        while notifier.status("busy"):
            pass
        assert not any((notifier.ready("reads nvidia"), notifier.watchdog(), notifier.status("ok"), notifier.heard))
        watchdog.tick()
        assert watchdog.next_deadline == clock.monotonic() + AGAIN_SECONDS
        while read(receiver):
            pass
        watchdog.tick()
        assert read(receiver) == "", "it is asked once a second"
        clock.advance(AGAIN_SECONDS)
        watchdog.tick()
        assert sorted(read(receiver).split("\n")) == ["READY=1", "STATUS=ok"]
        assert [notifier.heard, watchdog.next_deadline] == [True, None]


def test_a_message_without_a_descriptor_to_send_it_with_is_sent_later(tmp_path: Path) -> None:
    """READY=1 was lost where the agent started while no descriptor was free."""
    had = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "s"))
        notifier = Notifier(str(tmp_path / "s"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, had[1]))
        try:
            told = notifier.ready()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, had)
        assert [told, notifier.heard] == [False, False]
        assert notifier.again()
        assert receiver.recv(4096) == b"READY=1"


def test_a_sign_of_life_that_found_no_room_comes_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, half of WatchdogSec= later, which is when systemd ends the agent."""
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    clock = SteppedClock()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "s"))
        receiver.setblocking(False)
        notifier = Notifier(str(tmp_path / "s"))
        watchdog = Watchdog(notifier, clock)
        while notifier.watchdog():
            pass
        watchdog.tick()
        assert watchdog.next_deadline == clock.monotonic() + AGAIN_SECONDS
        while read(receiver):
            pass
        clock.advance(AGAIN_SECONDS)
        watchdog.tick()
        assert read(receiver) == "WATCHDOG=1"
        assert watchdog.next_deadline == clock.monotonic() + 30.0


def test_a_manager_that_was_busy_hears_the_last_state_alone(tmp_path: Path) -> None:
    """A reload that is over is no reload."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "s"))
        receiver.setblocking(False)
        notifier = Notifier(str(tmp_path / "s"), monotonic_ns=lambda: 1_234_567_890)
        while notifier.status("busy"):
            pass
        notifier.reloading()
        notifier.ready()
        while read(receiver):
            pass
        notifier.again()
        assert sorted(read(receiver).split("\n")) == ["READY=1", "STATUS=busy"]


def read(receiver: socket.socket) -> str:
    """Return the next datagram, or nothing."""
    try:
        return receiver.recv(4096).decode()
    except BlockingIOError:
        return ""


def test_address_comes_from_the_environment() -> None:
    """NOTIFY_SOCKET decides."""
    assert Notifier.from_environment({"NOTIFY_SOCKET": "@x"}).active
    assert not Notifier.from_environment({}).active


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "42"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "43"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "1" * 400}, None),
        ({"WATCHDOG_USEC": "1" * 5_000}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_PID": "42"}, None),
    ],
)
def test_watchdog_is_due_twice_per_period(environment: dict[str, str], seconds: float | None) -> None:
    """Half of what systemd allows, and only for the process that it watches."""
    assert watchdog_interval_seconds(environment, 42) == seconds
