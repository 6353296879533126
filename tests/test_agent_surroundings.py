"""The real agent among surroundings that stop, flood and starve it: it goes on, and says what is wrong."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from fakes.ended import ended
from fakes.running_agent import RunningAgent

from nodevet.agent.control.client import Session
from nodevet.agent.control.server import SOCKET_NAME
from nodevet.checks.system.descriptors import descriptor_trouble

STOP_SECONDS = 3.0
"""The agent ends within two; the rest is a busy machine's."""

CONFIGURATION = """
[agent.backends]
enabled = ["host"]
[kernel_log]
path = "{log}"
"""

XID = "NVRM: Xid (PCI:0000:{bus:02x}:00): {number}, pid=1234, name=python, Ch 00000008"


@pytest.fixture
def kernel_log(tmp_path: Path) -> Path:
    """A kernel log that the test writes."""
    path = tmp_path / "kern.log"
    path.write_text("")
    return path


@pytest.fixture
def agent(tmp_path: Path, kernel_log: Path) -> Iterator[RunningAgent]:
    """The agent of a node without accelerators, not started yet."""
    made = RunningAgent(tmp_path, CONFIGURATION.format(log=kernel_log))
    yield made
    made.stop()


def write_xids(path: Path, count: int, numbers: tuple[int, ...] = (79,)) -> None:
    """Append *count* lines of XIDs, a second apart, as a kernel log file has them."""
    with path.open("a") as file:
        for index in range(count):
            line = XID.format(bus=index % 8, number=numbers[index % len(numbers)])
            file.write(f"[{index * 2 + 10}.000000] {line}\n")


def generation(agent: RunningAgent) -> int:
    """Return the number of the newest judgement."""
    return int(agent.state_line().split()[2])


def wait_for_a_round(agent: RunningAgent, session: Session) -> None:
    """Wait until a round was judged, asked on a connection that needs no new descriptor."""
    before = session.ask("status")["generation"]
    agent.seconds_until(lambda: session.ask("status")["generation"] > before, 15)


def test_a_reader_of_the_log_that_stops_freezes_nothing(agent: RunningAgent, kernel_log: Path) -> None:
    """journald that is stopped, or a full pipe: judging goes on, the page answers, SIGTERM ends the agent in time."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for piece in (4096, 1):
        try:
            while True:
                os.write(writer, b"." * piece)
        except BlockingIOError:
            pass
    os.set_blocking(writer, True)
    agent.start(errors=writer)
    write_xids(kernel_log, 200)
    agent.wait_for(lambda status: status["agent"]["ready"])
    before = generation(agent)
    agent.seconds_until(lambda: generation(agent) > before + 1, 15)
    assert agent.get("/-/healthy") == "ok\n"
    assert agent.stop() < STOP_SECONDS
    os.close(reader)
    os.close(writer)


def test_a_storm_of_xids_is_counted_and_fills_no_log(
    agent: RunningAgent, kernel_log: Path, campaign: Callable[[int], int]
) -> None:
    """Each is judged; the log shows the first of them and how many followed."""
    agent.start()
    agent.wait_for(lambda status: status["agent"]["ready"])
    write_xids(kernel_log, campaign(100_000), (79, 48, 63, 94))
    agent.seconds_until(lambda: "kernel event" in agent.log.read_text(), 15)
    before = generation(agent)
    agent.seconds_until(lambda: generation(agent) > before + 2, 60)
    assert agent.stop() < STOP_SECONDS
    assert len(agent.log.read_text().splitlines()) < 400


def test_descriptors_that_run_out_end_nothing(agent: RunningAgent) -> None:
    """At every number of free descriptors the agent goes on and says so in the right words, and recovers after."""
    agent.start()
    agent.wait_for(lambda status: status["agent"]["ready"])
    assert agent.process is not None
    process = psutil.Process(agent.process.pid)
    had = process.rlimit(resource.RLIMIT_NOFILE)
    with Session(agent.runtime_dir / SOCKET_NAME) as session:
        assert session.ask("status")
        for free in (0, 1, 2, 3, 5, 8):
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (process.num_fds() + free, had[1]))
            with socket.create_connection(("127.0.0.1", int(agent.url.rsplit(":", 1)[1])), timeout=5):
                wait_for_a_round(agent, session)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, had)
    agent.wait_for(lambda status: status["agent"]["ready"] and status["verdict"] == "ok", 40)
    said = agent.log.read_text()
    assert "file descriptors are in use: raise LimitNOFILE of the unit" in said
    assert "Traceback" not in said
    assert "reinstall" not in said
    assert agent.stop() < STOP_SECONDS


def test_descriptors_above_what_select_takes_cost_no_page(tmp_path: Path, kernel_log: Path) -> None:
    """A starter that leaves 1,100 of its own open: without a free one, the page ended for good, by an exception."""
    crowd = (sys.executable, "-c", CROWD, "1100")
    agent = RunningAgent(tmp_path, CONFIGURATION.format(log=kernel_log), within=crowd)
    agent.start()
    try:
        agent.wait_for(lambda status: status["agent"]["ready"])
        assert agent.process is not None
        had = resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE)
        refused = "no connection can be accepted: Too many open files: raise LimitNOFILE"
        with Session(agent.runtime_dir / SOCKET_NAME) as session:
            assert session.ask("status")
            resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (1, had[1]))
            with socket.create_connection(("127.0.0.1", int(agent.url.rsplit(":", 1)[1])), timeout=5):
                agent.seconds_until(lambda: refused in agent.log.read_text(), 15)
                wait_for_a_round(agent, session)
        resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, had)
        assert agent.get("/-/healthy") == "ok\n"
        assert "out of range" not in agent.log.read_text()
    finally:
        agent.stop()


CROWD = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for _ in range(int(sys.argv[1])):
    os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)
os.execv(sys.argv[2], sys.argv[2:])
"""


def test_a_caller_who_came_without_a_descriptor_for_him_is_answered_later(agent: RunningAgent) -> None:
    """He waits in the queue of the socket, and the loop goes on meanwhile."""
    agent.start()
    agent.wait_for(lambda status: status["agent"]["ready"])
    assert agent.process is not None
    had = resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE)
    with Session(agent.runtime_dir / SOCKET_NAME) as session, socket.socket(socket.AF_UNIX) as caller:
        assert session.ask("status")
        resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (1, had[1]))
        caller.settimeout(10)
        caller.connect(str(agent.runtime_dir / SOCKET_NAME))
        caller.sendall(b'{"verb":"status"}\n')
        wait_for_a_round(agent, session)
        resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, had)
        assert caller.recv(10) == b'{"schema":'


def test_a_port_that_another_user_holds_keeps_no_node_without_its_agent(agent: RunningAgent) -> None:
    """The agent judges, the state file and the socket tell why there is no page, and it comes when the port is free."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        listen = f"127.0.0.1:{holder.getsockname()[1]}"
        words = [sys.executable, "-I", "-m", "nodevet.agent.cli", "agent", "--config", str(agent.configuration_file)]
        places = ["--state-dir", str(agent.state_dir), "--runtime-dir", str(agent.runtime_dir), "--listen", listen]
        environment = {**os.environ, "NOTIFY_SOCKET": str(agent.directory / "notify")}
        command = [*words, *places, "--interval", "1"]
        agent.process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)
        agent.seconds_until((agent.runtime_dir / "state").exists, 20)
        agent.seconds_until(lambda: agent.state_line().startswith("ok"), 20)
        said = agent.command("status")
        assert said.returncode == 0
        assert "is in use" in said.stdout
        assert "page and metrics are not served" in said.stdout
    agent.url = f"http://{listen}"

    def answers() -> bool:
        with contextlib.suppress(OSError):
            return agent.get("/-/healthy") == "ok\n"
        return False

    agent.seconds_until(answers, 20)
    agent.wait_for(lambda status: status["agent"]["notices"] == [])
    assert agent.stop() < STOP_SECONDS


def test_memory_that_runs_out_ends_nothing(agent: RunningAgent) -> None:
    """No more of it, not even for the thread of a request: judging goes on, SIGTERM ends the agent, and it recovers."""
    agent.start()
    agent.wait_for(lambda status: status["agent"]["ready"])
    assert agent.process is not None
    had = resource.prlimit(agent.process.pid, resource.RLIMIT_AS)
    for again in (True, False):
        before = generation(agent)
        resource.prlimit(agent.process.pid, resource.RLIMIT_AS, (1, had[1]))
        for _ in range(3):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{agent.url}/metrics?detail=yes", timeout=0.3).read()  # noqa: S310 (our own)
        agent.seconds_until(partial(lambda known: generation(agent) > known, before), 10)
        if again:
            resource.prlimit(agent.process.pid, resource.RLIMIT_AS, had)
            agent.wait_for(lambda status: status["agent"]["ready"] and status["verdict"] == "ok", 20)
    assert agent.stop() < STOP_SECONDS


@pytest.mark.parametrize("limit", [12, 18, 44, 63])
def test_too_few_descriptors_are_refused_at_the_start(agent: RunningAgent, limit: int) -> None:
    """In one line, with the number that is there and the one that is needed."""
    words = [sys.executable, "-I", "-m", "nodevet.agent.cli", "agent", "--config", str(agent.configuration_file)]
    places = ["--state-dir", str(agent.state_dir), "--runtime-dir", str(agent.runtime_dir), "--listen", "127.0.0.1:0"]
    done = subprocess.run(
        ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *words, *places],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 78
    assert done.stderr == (
        f"nodevet: this process may open {limit} files, and the agent needs 64: raise LimitNOFILE of the unit, or "
        "ulimit -Hn of the shell\n"
    )


AUDITED = """
import os, sys
def hook(event, arguments):
    if event == "open" and os.path.exists(sys.argv[1]):
        path = str(arguments[0])
        if path.startswith(package) and path.endswith((".csv", ".toml", ".html", ".css", ".sql")):
            with open(sys.argv[1], "a") as file:
                file.write(path + chr(10))
import nodevet.agent
package = os.path.dirname(os.path.dirname(os.path.realpath(nodevet.agent.__file__)))
sys.addaudithook(hook)
from nodevet.agent.cli import main
sys.exit(main(sys.argv[2:]))
"""


def test_no_data_file_is_read_after_the_start(tmp_path: Path) -> None:
    """What is first needed at a fault must not be missing then: descriptors may have run out, or a package changes."""
    opened, directory = tmp_path / "opened", tmp_path / "node"
    words = [sys.executable, "-I", "-c", AUDITED, str(opened), "agent", "--simulate", "dgx-h100", "--interval", "1"]
    words += ["--scenario", str(tmp_path / "drill.toml"), "--listen", "127.0.0.1:0"]
    words += ["--state-dir", str(directory / "state"), "--runtime-dir", str(directory / "run")]
    (tmp_path / "drill.toml").write_text('title = "lost"\n[[fault]]\nkind = "lost"\ndevice = 5\nat = "4s"\n')
    with ended(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)) as agent:
        assert agent.stdout is not None
        url = next(line.split()[1] for line in agent.stdout if line.split()[:1] == ["status"])
        opened.touch()
        for path in ("", "metrics", "metrics?detail=yes", "api/v1/status", "report"):
            with contextlib.suppress(urllib.error.HTTPError):
                urllib.request.urlopen(url + path, timeout=10).read()  # noqa: S310 (our own loopback address)
        deadline = time.monotonic() + 20
        state = directory / "run" / "state"
        while time.monotonic() < deadline and not (state.exists() and "failed" in state.read_text()):
            time.sleep(0.1)
        agent.terminate()
        agent.wait(20)
    assert "failed" in state.read_text()
    assert opened.read_text() == ""


def test_no_data_file_is_read_for_the_first_load(agent: RunningAgent, tmp_path: Path) -> None:
    """The plans of a load belong to them: the first one may come hours after a package was replaced."""
    opened = tmp_path / "opened"
    opened.touch()
    words = [sys.executable, "-I", "-c", AUDITED, str(opened), "agent", "--config", str(agent.configuration_file)]
    places = ["--state-dir", str(agent.state_dir), "--runtime-dir", str(agent.runtime_dir), "--listen", "127.0.0.1:0"]
    command = [*words, *places, "--interval", "1"]
    agent.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    agent.seconds_until((agent.runtime_dir / "state").exists, 20)
    opened.write_text("")
    process = psutil.Process(agent.process.pid)

    def loads() -> bool:
        with contextlib.suppress(psutil.Error):
            return any("nodevet.checks.burnin.main" in child.cmdline() for child in process.children())
        return False

    agent.seconds_until(loads, 40)
    assert agent.stop() < STOP_SECONDS
    assert opened.read_text() == ""


INHERITED = {
    "SIGCHLD ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "every signal blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))",
}


@pytest.mark.parametrize("begin", INHERITED.values(), ids=INHERITED)
def test_what_the_starter_did_to_signals_is_undone(tmp_path: Path, kernel_log: Path, begin: str) -> None:
    """Init of a container may ignore SIGCHLD, and a program with threads may start us with all blocked.

    Before, the end of each child was a bug of the agent, or SIGTERM was not heard.
    """
    program = f"import os, signal, sys\n{begin}\nos.execv(sys.argv[1], sys.argv[1:])"
    with RunningAgent(
        tmp_path, CONFIGURATION.format(log=kernel_log), within=(sys.executable, "-I", "-c", program)
    ) as agent:
        agent.wait_for(lambda status: status["agent"]["ready"])
        assert agent.process is not None
        for child in psutil.Process(agent.process.pid).children():
            child.kill()
        agent.seconds_until(lambda: "was killed by SIGKILL" in agent.log.read_text(), 20)
        agent.wait_for_verdict("ok", 20)
        assert "please report this" not in agent.log.read_text()
        assert agent.stop() < STOP_SECONDS


PARENT = """
import subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from fakes.load_child import LoadChild
with LoadChild(sys.argv[2:]) as child:
    print(child.process.pid, flush=True)
    time.sleep(60)
"""

CHILDREN = {
    "load": "from nodevet.checks.burnin.main import main",
    "reader": "from nodevet.checks.backends.reader_main import main",
}


@pytest.mark.parametrize("kind", CHILDREN)
def test_a_stopped_child_is_gone_when_its_parent_is(kind: str) -> None:
    """SIGSTOP keeps a child from seeing its lifeline; its parent is killed with -9."""
    argv = [sys.executable, "-c", f"import sys; {CHILDREN[kind]}; sys.exit(main(sys.argv[1:]))"]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(Path(__file__).parent), *argv], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    deadline = time.monotonic() + 20
    while child.num_threads() < 2 and time.monotonic() < deadline:
        time.sleep(0.02)  # the lifeline is watched by a thread of its own
    child.send_signal(signal.SIGSTOP)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    gone, _ = psutil.wait_procs([child], timeout=10)
    assert gone == [child]


LOADING = """
import ctypes, sys
from nodevet.checks.burnin import child
def burn(*_):
    print("loading", file=sys.stderr, flush=True)
    ctypes.PyDLL(None).sleep(600)
child._burn = burn
sys.exit(child.main(sys.argv[1:]))
"""
"""A load child in the midst of loading a library, which keeps each of its threads waiting."""

PARENT_OF_A_LOAD = """
import sys, time
sys.path.insert(0, sys.argv[1])
from fakes.load_child import LoadChild
with LoadChild(sys.argv[2:]) as child:
    child.burn()
    child.process.stderr.readline()
    print(child.process.pid, flush=True)
    time.sleep(60)
"""


def test_a_load_that_loads_a_library_is_gone_when_its_parent_is() -> None:
    """No thread of its own could see that: the kernel ends it. Before, it went on for seconds on an idle node."""
    argv = [sys.executable, "-c", LOADING]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT_OF_A_LOAD, str(Path(__file__).parent), *argv], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    gone, _ = psutil.wait_procs([child], timeout=20)
    for left in {child} - set(gone):
        left.kill()
    assert gone == [child]


def test_a_quota_that_is_used_up_ends_nothing(agent: RunningAgent) -> None:
    """No byte can be written to any file: that is told by name, judging goes on, and it is over with the quota."""
    agent.start()
    agent.wait_for(lambda status: status["agent"]["ready"])
    assert agent.process is not None
    had = resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    agent.wait_for(lambda status: any("state file" in line for line in status["agent"]["notices"]))
    resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, had)
    agent.wait_for(lambda status: status["agent"]["notices"] == [] and status["verdict"] == "ok", 30)
    assert agent.stop() < STOP_SECONDS


def peak_bytes(pid: int) -> int:
    """Return the most memory that the process ever had resident."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(row.split()[1] for row in rows if row.startswith("VmHWM:"))) << 10


def test_requests_without_end_take_no_memory(agent: RunningAgent) -> None:
    """A path, a header and a body of tens of megabytes, and more headers than anybody sends: each ends alone."""
    agent.start()
    agent.wait_for(lambda status: status["agent"]["ready"])
    assert agent.process is not None
    size = 20 << 20
    before = peak_bytes(agent.process.pid)
    for request in (
        b"GET /" + b"a" * size + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"b" * size,
        b"GET / HTTP/1.1\r\n" + b"H: x\r\n" * 200_000,
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * size,
        b"\0" * size,
    ):
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", int(agent.url.rsplit(":", 1)[1])), timeout=5) as client,
        ):
            client.sendall(request)
            client.recv(100)
    assert agent.get("/-/healthy") == "ok\n"
    assert peak_bytes(agent.process.pid) - before < size
    assert "Traceback" not in agent.log.read_text()


def test_an_agent_that_is_stopped_and_continued_goes_on(agent: RunningAgent) -> None:
    """As a debugger or a frozen container does: no blame, no finding, and the state is written again."""
    agent.start()
    agent.wait_for(lambda status: status["agent"]["ready"])
    assert agent.process is not None
    before = generation(agent)
    main = psutil.Process(agent.process.pid)
    stopped = [main, *main.children(recursive=True)]
    for process in stopped:
        process.suspend()
    time.sleep(6)  # longer than a call may take
    for process in stopped:
        process.resume()
    agent.seconds_until(lambda: generation(agent) > before + 1, 15)
    assert agent.wait_for(lambda status: status["verdict"] == "ok")["findings"] == []
    assert agent.stop() < STOP_SECONDS


def test_descriptors_that_nobody_can_count_are_no_trouble(tmp_path: Path) -> None:
    """Without /proc all of them were said to be in use."""
    assert descriptor_trouble(tmp_path / "absent") == ""
