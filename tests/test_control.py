"""The agent's socket and its client: real sockets, one loop turned by hand."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import selectors
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.ended import ended
from fakes.privileges import needs_root

from nodevet.agent.control.client import AgentAbsent, AgentRefused, AgentSilent, Session, ask
from nodevet.agent.control.server import Call, Control, Limits, Verb
from nodevet.checks.core.errors import BusyError, ConfigurationError, UsageError

STRANGER = 65533
BIG = 4 << 20


class EchoArguments(msgspec.Struct, frozen=True):
    """What `echo` takes."""

    text: str
    times: int = 1


class Agent:
    """A control socket with a loop that turns in a thread while a client asks, as the daemon's own would."""

    def __init__(self, path: Path, **options: Any) -> None:
        """Listen at *path* with a few verbs."""
        self.selector = selectors.DefaultSelector()
        self.calls: list[Call] = []
        self.gone: list[str] = []
        self.control = Control(path, self.verbs(), self.selector, **options)
        self._wake, self._woken = socket.socketpair()
        self.selector.register(self._woken, selectors.EVENT_READ, self._run_jobs)
        self._jobs: list[Callable[[], None]] = []
        self._done = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._turn)
        self._thread.start()

    def verbs(self) -> dict[str, Verb]:
        """Return the verbs of the tests."""
        return {
            "echo": Verb(
                handler=lambda call: {"text": call.arguments.text * call.arguments.times}, arguments=EchoArguments
            ),
            "who": Verb(handler=lambda call: msgspec.structs.asdict(call.peer)),
            "release": Verb(handler=lambda call: {"released": True}, changes=True),
            "later": Verb(handler=self._later),
            "lease": Verb(handler=self._lease, changes=True),
            "fails": Verb(handler=self._fail),
            "watch": Verb(handler=lambda call: {"generation": 0}, streams=True),
            "big": Verb(handler=lambda call: {"text": "x" * BIG}),
        }

    def run(self, job: Callable[[], None]) -> None:
        """Run *job* in the loop's thread and wait for it."""
        self._done.clear()
        self._jobs.append(job)
        self._wake.send(b"x")
        assert self._done.wait(5)

    def close(self) -> None:
        """Stop the loop and the control."""
        self.run(self.control.close)
        self.run(self._stop)
        self._thread.join(5)
        self.selector.close()
        self._wake.close()
        self._woken.close()

    def _turn(self) -> None:
        while not self._stopping:
            for key, events in self.selector.select():
                key.data(events)

    def _run_jobs(self, _events: int) -> None:
        self._woken.recv(100)
        while self._jobs:
            self._jobs.pop(0)()
        self._done.set()

    def _stop(self) -> None:
        self._stopping = True

    def _later(self, call: Call) -> None:
        self.calls.append(call)

    def _lease(self, call: Call) -> dict[str, Any]:
        call.when_gone(lambda: self.gone.append(call.verb))
        return {"granted": True}

    def _fail(self, call: Call) -> dict[str, Any]:
        raise UsageError("gpu 9: no such device, there are 8")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the socket of the test lies."""
    return tmp_path / "run" / "control.socket"


@pytest.fixture
def agent(path: Path) -> Iterator[Agent]:
    """An agent that listens."""
    with contextlib.closing(Agent(path)) as running:
        yield running


def connected(path: Path) -> socket.socket:
    """Return a bare connection."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(5)
    connection.connect(os.fspath(path))
    return connection


def raw(path: Path, data: bytes) -> list[dict[str, Any]]:
    """Send *data*, close our half, and return everything that comes back, line by line."""
    with connected(path) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return [json.loads(line) for line in received.splitlines()]


def test_question_and_answer(agent: Agent, path: Path) -> None:
    """Arguments arrive as their types, defaults apply, and a session takes several questions."""
    assert ask(path, "echo", text="ab", times=2, timeout_seconds=5) == {"text": "abab"}
    with Session(path) as session:
        assert [session.ask("echo", text=text)["text"] for text in ("a", "b")] == ["a", "b"]


def test_the_kernel_tells_who_asks(agent: Agent, path: Path) -> None:
    """Pid, uid and gid are those of the caller, whatever it claims."""
    assert ask(path, "who") == {"pid": os.getpid(), "uid": os.getuid(), "gid": os.getgid()}


@pytest.mark.parametrize(
    ("request_line", "kind", "words"),
    [
        (b"not json", "bad_request", "not valid JSON"),
        (b'"text"', "bad_request", "expected"),
        (b"{}", "bad_request", "expected"),
        (b'{"verb": 7}', "bad_request", "expected"),
        (b'{"verb": "releese"}', "unknown_verb", "did you mean release?"),
        (b'{"verb": "echo"}', "bad_request", "echo: Object missing required field `text`"),
        (b'{"verb": "echo", "text": 5}', "bad_request", "Expected `str`, got `int` - at `$.text`"),
        (b'{"verb": "echo", "text": "a", "tims": 2}', "bad_request", "unknown argument 'tims', did you mean times?"),
        (b'{"verb": "who", "text": "a"}', "bad_request", "unknown argument 'text'"),
        (b'{"verb": "fails"}', "bad_request", "gpu 9: no such device, there are 8"),
        (b"\xff\xfe", "bad_request", "not valid JSON"),
        (b'{"verb": "\xff"}', "bad_request", "not valid JSON"),
        (b"[" * 60_000, "bad_request", "not valid JSON"),
    ],
)
def test_bad_requests_are_answered_and_the_connection_goes_on(
    agent: Agent, path: Path, request_line: bytes, kind: str, words: str
) -> None:
    """Each mistake has a kind for programs and words for people; the next request is served."""
    refused, served = raw(path, request_line + b'\n\n{"verb": "echo", "text": "on"}\n')

    assert refused["kind"] == kind
    assert words in refused["error"]
    assert served == {"text": "on"}


def test_many_requests_at_once_are_answered_in_turn(agent: Agent, path: Path) -> None:
    """Thousands of lines in one write neither overflow a stack nor mix."""
    lines = b"".join(b'{"verb":"echo","text":"%d"}\n' % number for number in range(3000))
    with connected(path) as connection, connection.makefile("rb") as answers:
        threading.Thread(target=connection.sendall, args=(lines,)).start()
        assert [json.loads(answers.readline())["text"] for _ in range(3000)] == [str(number) for number in range(3000)]


def test_request_in_pieces_is_put_together(agent: Agent, path: Path) -> None:
    """A slow writer holds up nobody, and is served when its line is whole."""
    with connected(path) as slow:
        for byte in b'{"verb": "echo", "text"':
            slow.sendall(bytes([byte]))
        assert ask(path, "echo", text="quick") == {"text": "quick"}
        slow.sendall(b': "slow"}\n')
        assert json.loads(slow.recv(1000)) == {"text": "slow"}


def test_endless_request_is_cut_off(path: Path) -> None:
    """More than the limit without a newline ends the connection, with the reason."""
    with contextlib.closing(Agent(path, trusted_uids=frozenset())):
        with pytest.raises(AgentRefused, match="at most 65536 bytes"):
            ask(path, "echo", text="x" * (1 << 20))
        assert ask(path, "echo", text="on") == {"text": "on"}


def test_who_may_change_something_may_send_the_results_of_a_whole_node(agent: Agent, path: Path) -> None:
    """A megabyte and more, yet not without end."""
    text = "x" * (3 << 20)
    assert ask(path, "echo", text=text) == {"text": text}
    with pytest.raises(AgentRefused, match="at most 16777216 bytes"):
        ask(path, "echo", text="x" * (17 << 20))
    assert ask(path, "echo", text="on") == {"text": "on"}


def test_long_answer_is_written_as_the_socket_allows(agent: Agent, path: Path) -> None:
    """A caller that is slow to read holds up nobody and loses nothing."""
    with connected(path) as slow, slow.makefile("rb") as answer:
        slow.sendall(b'{"verb": "big"}\n')
        assert ask(path, "echo", text="quick") == {"text": "quick"}
        assert len(json.loads(answer.readline())["text"]) == BIG


def test_late_answer_arrives(agent: Agent, path: Path) -> None:
    """A verb may answer after other things have happened; answering one who left harms nothing."""
    with Session(path) as session:
        session.send("later")
        assert ask(path, "echo", text="meanwhile") == {"text": "meanwhile"}
        agent.run(lambda: agent.calls[0].answer({"done": True}))
        assert session.receive() == {"done": True}
    ask(path, "who")
    agent.run(lambda: agent.calls[0].answer({"done": True}))


def test_what_is_tied_to_a_caller_ends_with_it(agent: Agent, path: Path) -> None:
    """A lease is given back when its holder's connection closes, also by kill -9."""
    script = (
        "import sys; from nodevet.agent.control.client import Session; session = Session(sys.argv[1]); "
        "print(session.ask('lease'), flush=True); input()"
    )
    with ended(
        subprocess.Popen([sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"{'granted': True}\n"
        assert agent.gone == []
        holder.kill()
        holder.wait(5)
    ask(path, "who")
    assert agent.gone == ["lease"]


def test_watching_gets_every_publication_in_time(agent: Agent, path: Path) -> None:
    """The first answer comes at once, the next when they are published; others get nothing."""
    with Session(path) as session:
        assert session.ask("watch") == {"generation": 0}
        agent.run(lambda: agent.control.publish("watch", {"generation": 1}))
        assert session.receive() == {"generation": 1}
        assert agent.control.watched("watch")
    ask(path, "who")
    assert not agent.control.watched("watch")


def test_slow_watcher_gets_the_newest(agent: Agent, path: Path) -> None:
    """What it could not take in time is left out, so memory stays bounded; lines stay whole."""
    with Session(path) as session:
        session.ask("watch")
        for generation in range(1, 100):
            agent.run(
                lambda number=generation: agent.control.publish(  # type: ignore[misc]
                    "watch", {"generation": number, "ballast": "x" * 100_000}
                )
            )
        seen = [session.receive()["generation"]]
        while seen[-1] != 99:
            seen.append(session.receive()["generation"])
    assert seen == sorted(seen)
    assert len(seen) < 50


# Who may do what.


def test_changing_verbs_are_for_root_and_the_agents_user(tmp_path: Path) -> None:
    """Anyone who connects may read; who is not trusted is told whom to ask."""
    path = tmp_path / "s"
    with contextlib.closing(Agent(path, trusted_uids=frozenset({STRANGER}))):
        with pytest.raises(AgentRefused, match="run it as root") as caught:
            ask(path, "release")
        assert caught.value.kind == "denied"
        assert ask(path, "echo", text="read") == {"text": "read"}


def test_own_user_may_change(agent: Agent, path: Path) -> None:
    """By default root and the user that the agent runs as are trusted."""
    assert ask(path, "release") == {"released": True}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_socket_is_for_user_and_group(tmp_path: Path, umask: int) -> None:
    """Mode 0660 whatever the umask."""
    before = os.umask(umask)
    try:
        control = Control(tmp_path / "s", {}, selectors.DefaultSelector())
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "s").lstat().st_mode) == 0o660
    control.close()
    assert not (tmp_path / "s").exists()


def test_crowd_is_limited(tmp_path: Path) -> None:
    """Who waits for nothing makes room; when all wait, the next is told to come later."""
    path = tmp_path / "s"
    with contextlib.closing(Agent(path, limits=Limits(clients=2))) as running:
        with connected(path) as idle, Session(path) as first, Session(path) as second:
            first.ask("watch")
            second.ask("watch")
            assert idle.recv(10) == b""
            with pytest.raises(AgentRefused, match="2 clients are connected") as caught:
                ask(path, "who")
            assert caught.value.kind == "busy"
            for session in (first, second):
                session.close()
            running.run(lambda: None)  # the loop takes in that they left before the next one comes
        assert ask(path, "echo", text="room") == {"text": "room"}


@needs_root
@pytest.mark.parametrize("request_line", [b'{"verb":"watch"}\n', b'{"verb":"big"}\n', b'{"verb":"lat'])
def test_no_other_user_keeps_root_or_a_third_one_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_line: bytes
) -> None:
    """One who may connect takes every place, and lets go of none: a user has the most places while nobody else asks."""
    tmp_path.chmod(0o711)
    monkeypatch.chdir(tmp_path)  # no user but root passes the folders above
    path = Path("s")
    with contextlib.closing(Agent(path, limits=Limits(clients=4))) as running, contextlib.ExitStack() as callers:
        path.chmod(0o666)

        def crowd() -> None:
            for _ in range(6):
                with contextlib.suppress(BrokenPipeError):  # dismissed already
                    callers.enter_context(connected_as(STRANGER, path)).sendall(request_line)
                running.run(lambda: None)

        crowd()
        for uid in (0, STRANGER - 1, 0):
            caller = callers.enter_context(connected_as(uid, path))
            caller.sendall(b'{"verb":"who"}\n')
            assert json.loads(caller.recv(1000)).get("uid") == uid
            caller.sendall(b'{"verb":"watch"}\n')
            assert json.loads(caller.recv(1000)) == {"generation": 0}
        crowd()
        running.run(lambda: running.control.publish("watch", {"generation": 1}))
        assert json.loads(caller.recv(1000)) == {"generation": 1}


def connected_as(uid: int, path: Path) -> socket.socket:
    """Return a connection to *path* that the kernel says is of *uid*."""
    os.seteuid(uid)
    try:
        return connected(path)
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("line", [b'{"verb":"count"}\n', b"no JSON\n", b"\n" * 20 + b'{"verb":"count"}\n'])
def test_requests_without_end_take_no_turn_of_the_loop_for_themselves(tmp_path: Path, line: bytes) -> None:
    """Thousands in one write are answered one in each turn, in their order, also where the caller has hung up since."""
    asked: list[int] = []

    def count(call: Call) -> dict[str, int]:
        asked.append(1)
        return {"number": len(asked)}

    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as cleanup:
        control = Control(tmp_path / "s", {"count": Verb(handler=count)}, selector)
        cleanup.callback(control.close)
        caller = cleanup.enter_context(connected(tmp_path / "s"))
        caller.sendall(line * 50)
        caller.shutdown(socket.SHUT_WR)
        answers = b""
        for turn in range(60):
            for key, mask in selector.select(0):
                key.data(mask)
            with contextlib.suppress(BlockingIOError):
                caller.setblocking(False)
                answers += caller.recv(1 << 16)
            assert answers.count(b"\n") <= turn
        assert answers.count(b"\n") == 50
        assert control.watched("count") is False


def test_without_a_descriptor_for_a_caller_the_loop_rests(path: Path) -> None:
    """Who waits in the queue would wake it without a pause, at the cost of a core; half a second later it asks."""
    selector = selectors.DefaultSelector()
    control = Control(path, {}, selector)
    had = resource.getrlimit(resource.RLIMIT_NOFILE)
    with connected(path) as caller:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, had[1]))
        try:
            heard = [key.data(events) for _ in range(20) for key, events in selector.select(0)]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, had)
        assert len(heard) == 1
        assert control.next_deadline is not None
        control.tick()
        assert selector.select(0) == []
        time.sleep(max(0.0, control.next_deadline - time.monotonic()))
        control.tick()
        assert control.next_deadline is None
        caller.sendall(b'{"verb":"nothing"}\n')
        deadline = time.monotonic() + 10.0
        while not select.select([caller], [], [], 0)[0]:
            assert time.monotonic() < deadline
            for key, events in selector.select(1):
                key.data(events)
        assert b"unknown_verb" in caller.recv(1000)
    control.close()


# The place.


def test_stale_socket_is_replaced_and_a_live_one_is_not(agent: Agent, tmp_path: Path, path: Path) -> None:
    """A file that a dead agent left is taken over; one that is listened on means that another agent runs."""
    dead = tmp_path / "dead"
    left = socket.socket(socket.AF_UNIX)
    left.bind(os.fspath(dead))
    left.close()
    control = Control(dead, {}, selectors.DefaultSelector())
    assert dead.exists()
    control.close()

    with pytest.raises(BusyError, match="another agent listens"):
        Control(path, {}, selectors.DefaultSelector())
    assert ask(path, "echo", text="on") == {"text": "on"}


def test_impossible_places_are_refused_in_one_line(tmp_path: Path) -> None:
    """A file in the way, a path too long for a socket."""
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ConfigurationError, match="is not a socket"):
        Control(tmp_path / "file", {}, selectors.DefaultSelector())
    assert (tmp_path / "file").read_text() == "precious"
    with pytest.raises(ConfigurationError, match="at most 107 bytes"):
        Control(tmp_path / ("x" * 108), {}, selectors.DefaultSelector())


def test_closing_leaves_the_socket_of_a_successor(tmp_path: Path) -> None:
    """An agent that closes late does not remove the file that the next one has put in its place."""
    path = tmp_path / "s"
    old = Control(path, {}, selectors.DefaultSelector())
    path.unlink()
    new = Control(path, {}, selectors.DefaultSelector())
    old.close()
    assert path.exists()
    new.close()


# The client.


def test_no_agent_is_its_own_error(tmp_path: Path) -> None:
    """No file, a file that nobody listens on, a path through a file: no agent runs."""
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "absent", tmp_path / "file", tmp_path / "file" / "s"):
        with pytest.raises(AgentAbsent, match="start `nodevet agent`"):
            ask(place, "who")


def test_silent_agent_is_told_from_an_absent_one(tmp_path: Path) -> None:
    """An agent that hangs, or dies in the middle, does not hang its caller."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        listener.listen()
        with pytest.raises(AgentSilent, match="does not answer"):
            ask(path, "who", timeout_seconds=0.05)
        with Session(path) as session:
            session.send("who")
            listener.accept()[0].close()
            listener.accept()[0].close()
            with pytest.raises(AgentSilent, match=r"hung up|does not answer"):
                session.receive()


def test_client_is_quick_to_import() -> None:
    """Commands that only ask load neither msgspec nor any other library."""
    script = (
        "import sys, nodevet.agent.control.client; "
        "print([name for name in ('msgspec', 'structlog', 'asyncio', 'psutil', 'subprocess') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
