"""What people and machines get wrong: one clear line that says what to do, a defined exit code, and no traceback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from fakes.running_agent import RunningAgent
from fakes.small_disk import fill
from fakes.snapshots import gpu_node

from nodevet.exporters.documents.schema import encode, status_document

DEGRADED, UNKNOWN, USAGE, SOFTWARE, CONFIGURATION = 1, 3, 64, 70, 78
STOP_SECONDS = 2.0

HOST_ONLY = """
[agent]
node_name = "node-1"
interval_seconds = 1.0
slow_interval_seconds = 1.0
[agent.backends]
enabled = ["host"]
[kernel_log]
path = "{log}"
[load]
probe = "{probe}"
"""


def nodevet(*words: str | Path, stdin: str = "", seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run the command line and return what came of it."""
    return subprocess.run(
        [sys.executable, "-I", "-m", "nodevet.agent.cli", *map(str, words)],
        capture_output=True,
        text=True,
        input=stdin,
        timeout=seconds,
        check=False,
    )


def assert_one_line(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """The command ended with *code* and said one line, with all *words* in it."""
    assert done.returncode == code, done
    (line,) = done.stderr.splitlines()
    assert line.startswith("nodevet")
    assert [word for word in words if word not in line] == [], line


class Places(NamedTuple):
    """Directories of an agent, and its configuration."""

    state: Path
    runtime: Path
    configuration: Path

    @property
    def words(self) -> tuple[str, ...]:
        """Return them as arguments."""
        words = ("--state-dir", self.state, "--runtime-dir", self.runtime, "--config", self.configuration)
        return tuple(map(str, words))


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Directories of its own for a command that reads the host only."""
    (tmp_path / "kernel.log").write_text("")
    configuration = tmp_path / "nodevet.toml"
    configuration.write_text(HOST_ONLY.format(log=tmp_path / "kernel.log", probe="off"))
    return Places(tmp_path / "state", tmp_path / "run", configuration)


def host_agent(folder: Path, *, probe: str = "off", log: Path | None = None) -> RunningAgent:
    """Return an agent that reads the host only; ``with`` starts it."""
    kernel_log = folder / "kernel.log"
    kernel_log.write_text("")
    return RunningAgent(folder, HOST_ONLY.format(log=log or kernel_log, probe=probe))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chekc"], ["no command 'chekc'", "did you mean check?"]),
        (["xyzzy"], ["no command 'xyzzy'", "nodevet --help"]),
        (["check", "--nope"], ["--nope", "nodevet check --help"]),
        (["agent", "--simulat", "cpu-node"], ["--simulat", "nodevet agent --help"]),
        (["check", "nope"], ["unknown check 'nope'", "thermal"]),
        (["check", "thermal", "--from", "x"], ["nodevet check kernel-log --from FILE"]),
        (["check", "kernel-log", "--from", "/no/such"], ["/no/such", "cannot be read"]),
        (["agent", "--interval", "x"], ["--interval", "'x'"]),
        (["status", "--every"], ["--every"]),
        (["topo", "--from", "/no/such"], ["/no/such", "cannot be read"]),
        (["topo", "--from", "-"], ["no topology matrix", "nvidia-smi topo -m"]),
        (["report"], ["required", "nodevet report --help"]),
        (["report", "render", "/no/such"], ["/no/such", "cannot be read"]),
        (["report", "render", "-"], ["not a report document", "nodevet burn-in --json"]),
        (["burn-in", "--plan", "x"], ["--plan", "quick"]),
        (["burn-in", "--plan", "burn-in"], ["--plan", "standard"]),
        (["burn-in", "--duration", "0s"], ["--duration", "90s, 10m, 8h or 3d"]),
        (["burn-in", "--duration=-5m"], ["--duration", "90s, 10m, 8h or 3d"]),
        (["burn-in", "--duration", "8"], ["--duration", "90s, 10m, 8h or 3d"]),
        (["burn-in", "--duration", "32d"], ["--duration", "longer than 31d"]),
        (["burn-in", "--duration", "5s"], ["too short for plan quick", "--duration to"]),
        (["burn-in", "--duration", "1m", "--seconds", "5"], ["--seconds", "--duration"]),
        (["burn-in", "--duration", "1m", "--self-test"], ["--self-test", "--duration"]),
        (["burn-in", "--dtype", "fp32", "--shape", "128,128,32768"], ["--shape", "fp32", "16384"]),
        (["burn-in", "--dry-run", "--device", "gpu77"], ["unknown device: gpu77", "cpu-0"]),
        (["burn-in", "--dry-run", "--plan", "x"], ["--plan", "probe"]),
        (["burn-in", "--seconds", "-1"], ["--seconds", "above 0"]),
        (["burn-in", "--seconds", "nan"], ["--seconds", "above 0"]),
        (["burn-in", "--seconds", "inf"], ["--seconds", "above 0"]),
        (["ack", "x"], ["--note"]),
        (["explain", "xid", "79x"], ["not a code, check or quantity", "did you mean nvidia.xid.79"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_usage_is_one_line_that_says_what_is_right(places: Places, words: list[str], said: list[str]) -> None:
    """Exit 64, and the next step."""
    with_places = places.words if words[0] in ("check", "history", "burn-in") and "--from" not in words else ()
    assert_one_line(nodevet(*words, *with_places), USAGE, *said)


def test_history_without_a_database_names_it_and_the_next_step(places: Places) -> None:
    """Exit 3 as for every answer that is not there: the command was right."""
    done = nodevet("history", *places.words)
    assert_one_line(done, UNKNOWN, str(places.state / "nodevet.db"), "start `nodevet agent`", "--state-dir")


@pytest.mark.parametrize("words", [["status"], ["ack", "x", "--note", "y"], ["release"]], ids=lambda words: words[0])
def test_a_question_to_an_agent_that_does_not_run(places: Places, words: list[str]) -> None:
    """Exit 3, with the directory that was looked in."""
    done = nodevet(*words, *places.words)
    assert done.returncode == UNKNOWN
    assert str(places.runtime) in done.stderr
    assert "nodevet agent" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[agnt]\n", ["agnt", "did you mean agent?"]),
        ("[agent]\nintervall_seconds = 3\n", ["agent.intervall_seconds", "did you mean interval_seconds?"]),
        ("[agent]\ninterval_seconds = 0.5\n", ["agent.interval_seconds", "found 0.5", "from 1 to 3600"]),
        ("[agent]\ninterval_seconds = '10'\n", ["agent.interval_seconds", 'found "10"', "a number"]),
        ("[agent]\ninterval_seconds = nan\n", ["agent.interval_seconds", "found nan", "from 1 to 3600"]),
        ("[agent]\nstate_dir = 'here'\n", ["agent.state_dir", "an absolute path"]),
        ("[agent]\nlisten = '127.0.0.1:99999'\n", ["agent.listen", "HOST:PORT"]),
        ("[agent.backends]\nenabled = ['nvida']\n", ["agent.backends.enabled[0]", "did you mean nvidia?"]),
        ("[agent.backends]\nenabled = []\n", ["agent.backends.enabled", "an empty list"]),
        ("[load]\nprobe = 'sometimes'\n", ["load.probe", "auto, off, on"]),
        ("[checks.therml]\n", ["checks.therml", "did you mean thermal?"]),
        ("[checks.thermal]\nneeded = 7\nwindow = 3\n", ["checks.thermal.needed", "found 7", "window = 3"]),
        ("[agent\n", ["not valid TOML", "line 1"]),
    ],
)
def test_a_mistake_in_the_configuration_names_key_and_range(tmp_path: Path, text: str, said: list[str]) -> None:
    """Exit 78, for every command that reads it; nothing is started."""
    file = tmp_path / "nodevet.toml"
    file.write_text(text)
    assert_one_line(nodevet("config", "check", "--config", file), CONFIGURATION, str(file), *said)


def test_no_command_runs_with_a_wrong_configuration(tmp_path: Path) -> None:
    """Agent, one-shot and load refuse it alike; so does a file that is not there or is no text."""
    file = tmp_path / "nodevet.toml"
    file.write_bytes(b"\xff\xfe")
    for words in (["agent"], ["check"], ["devices"], ["burn-in"], ["status"]):
        assert_one_line(nodevet(*words, "--config", file), CONFIGURATION, "not UTF-8")
    assert_one_line(nodevet("agent", "--config", tmp_path / "none"), CONFIGURATION, "no such file")
    assert_one_line(nodevet("agent", "--interval", "0"), CONFIGURATION, "command line: agent.interval_seconds")


def test_a_port_in_use_names_who_uses_it(places: Places) -> None:
    """Exit 3 before anything is read, and the lock is given back."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        done = nodevet("agent", "--listen", address, *places.words)
        assert_one_line(done, UNKNOWN, address.rpartition(":")[2], f"pid {os.getpid()}", "--listen HOST:PORT")
    assert nodevet("check", *places.words).returncode == 0


@pytest.mark.parametrize("which", ["state", "runtime"])
def test_a_directory_that_cannot_be_written_is_named(places: Places, which: str) -> None:
    """Nobody, root included, can make a directory there."""
    nowhere = places._replace(**{which: Path("/proc/nowhere")})
    done = nodevet("agent", "--listen", "127.0.0.1:0", *nowhere.words)
    assert_one_line(done, UNKNOWN, "/proc/nowhere", f"choose another {which}_dir")


def test_a_second_agent_is_refused_and_a_one_shot_asks_the_first(tmp_path: Path) -> None:
    """One reader of the devices at a time; `check` then shows what the agent knows."""
    with host_agent(tmp_path) as agent:
        status = agent.wait_for_verdict("ok")
        done = agent.command("agent", "--listen", "127.0.0.1:0")
        assert agent.process is not None
        assert_one_line(done, UNKNOWN, "node.lock", f"nodevet agent (pid {agent.process.pid})", "nodevet status")
        check = agent.command("check", "--json")
        assert check.returncode == 0
        assert f'"started":"{status["agent"]["started"]}"' in check.stdout
        assert_one_line(agent.command("check", "nope"), USAGE, "no check called 'nope'")
        assert_one_line(agent.command("ack", "x", "--note", "y"), USAGE, "no finding x on node")
        assert_one_line(agent.command("burn-in", "--device", "nope"), USAGE, "nope", "cpu-0")
        assert_one_line(agent.command("history", "--device", "nope"), USAGE, "nope is not known on this node", "cpu-0")


def test_a_damaged_database_is_moved_aside_and_told(tmp_path: Path) -> None:
    """Never silently: the status, the log and the terminal name the file; one-shots do not touch it."""
    agent = host_agent(tmp_path)
    agent.state_dir.mkdir()
    database = agent.state_dir / "nodevet.db"
    database.write_bytes(b"no database " * 1000)

    assert_one_line(agent.command("history"), UNKNOWN, str(database), "damaged", "start the agent")
    check = agent.command("check")
    assert check.returncode == 0
    assert f"the history is ignored: {database}: damaged" in check.stdout
    assert database.read_bytes().startswith(b"no database")

    with agent:
        status = agent.wait_for_verdict("ok")
        (aside,) = agent.state_dir.glob("nodevet.db.corrupt-*")
        (notice,) = status["agent"]["notices"]
        assert str(aside) in notice
        assert "damaged" in notice
        assert str(aside) in agent.log.read_text()
        assert str(aside) in agent.output.read_text()
        assert str(aside) in agent.get("/")
        assert str(aside) in agent.command("status").stdout
        assert agent.command("history").stdout == "no finding yet\n"


def test_a_disk_that_is_full_at_the_start_blinds_no_node(tmp_path: Path, small_disk: Path) -> None:
    """The agent watches without a store, says where to free space, and keeps all once there is some."""
    empty = fill(small_disk)
    agent = host_agent(tmp_path)
    agent.state_dir, agent.runtime_dir = small_disk / "state", small_disk / "run"
    with agent:
        status = agent.wait_for(lambda status: status["verdict"] == "ok" and status["agent"]["notices"])
        assert any(str(agent.state_dir) in line and "space" in line for line in status["agent"]["notices"]), status
        assert agent.command("check").returncode == 0
        empty()
        agent.wait_for(lambda status: not status["agent"]["notices"], 15.0, "the trouble did not end")
        assert agent.command("history").returncode == 0
        assert agent.state_line().startswith("ok ")
        assert agent.stop() < STOP_SECONDS


@pytest.mark.parametrize("which", ["state", "runtime"])
def test_a_disk_that_fills_up_is_told_and_the_agent_goes_on(tmp_path: Path, small_disk: Path, which: str) -> None:
    """It says what is wrong until there is space again, and then nothing is lost."""
    agent = host_agent(tmp_path)
    setattr(agent, f"{which}_dir", small_disk / which)
    with agent:
        agent.wait_for_verdict("ok")
        empty = fill(small_disk)
        status = agent.wait_for(lambda status: status["agent"]["notices"], 15.0, "nothing was told")
        (notice,) = status["agent"]["notices"]
        assert str(small_disk / which) in notice
        assert "space" in notice
        assert status["verdict"] == "ok"
        assert notice in agent.command("status").stdout
        assert notice in agent.log.read_text()
        empty()
        agent.wait_for(lambda status: not status["agent"]["notices"], 15.0, "the trouble did not end")
        agent.wait_for(lambda _status: "problem resolved" in agent.log.read_text(), 5.0, "its end was not logged")
        assert agent.stop() < STOP_SECONDS


@pytest.mark.parametrize("words", [["check"], ["check", "--json"], ["config", "show"]], ids=" ".join)
def test_output_that_cannot_be_written_is_one_line(places: Places, words: list[str]) -> None:
    """A verdict that nobody received is no success."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-I", "-m", "nodevet.agent.cli", *words, *places.words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert_one_line(done, UNKNOWN, "output cannot be written", "No space left on device")


def test_a_log_that_cannot_be_written_does_not_end_the_agent(tmp_path: Path) -> None:
    """The disk of the log is full, or who read it went away; the agent vets on and ends as always."""
    agent = host_agent(tmp_path)
    words = ["--state-dir", str(agent.state_dir), "--runtime-dir", str(agent.runtime_dir), "--listen", "127.0.0.1:0"]
    command = [sys.executable, "-I", "-m", "nodevet.agent.cli", "agent", "--config", str(agent.configuration_file)]
    with Path("/dev/full").open("w") as full:
        agent.process = subprocess.Popen([*command, *words], stdout=full, stderr=full)
    agent.log.write_text("(it has none)")
    agent.seconds_until(lambda: (agent.runtime_dir / "state").exists() and agent.state_line().startswith("ok "), 20.0)
    process = agent.process
    assert agent.stop() < STOP_SECONDS
    assert process.returncode == 0


def test_an_unreadable_kernel_log_is_told_with_what_to_do(tmp_path: Path) -> None:
    """What cannot be read is unmeasured, never passed, and the rest is judged."""
    missing = tmp_path / "none"
    with host_agent(tmp_path, log=missing) as agent:
        status = agent.wait_for(
            lambda status: any(finding["code"] == "kernel_log.readable" for finding in status["findings"])
        )
        (finding,) = [finding for finding in status["findings"] if finding["code"] == "kernel_log.readable"]
        assert finding["outcome"] == "unmeasured"
        assert str(missing) in finding["message"]
        assert "mount /dev/kmsg or name a file" in finding["message"]
        assert finding["message"] in agent.command("status").stdout
        missing.write_text("")


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_an_agent_that_probes_ends_within_two_seconds(tmp_path: Path) -> None:
    """A load of its own does not hold it up, and the state file says that it ran."""
    agent = host_agent(tmp_path, probe="on")
    with agent:
        agent.wait_for(lambda status: status["agent"]["load"].startswith("probing"), 30.0, "no probe began")
        agent.seconds_until(lambda: " probing " in (agent.runtime_dir / "state").read_text(), 5.0)
        assert agent.stop() < STOP_SECONDS
    assert " stopped " in (agent.runtime_dir / "state").read_text()


def test_a_one_shot_remembers_what_the_agent_knew(tmp_path: Path) -> None:
    """A failed node does not become healthy because its agent was stopped, nor because its store was lost too."""
    agent = host_agent(tmp_path)
    with agent:
        agent.wait_for_verdict("ok")
        with (tmp_path / "kernel.log").open("a") as file:
            file.write("[  100.000000] mce: [Hardware Error]: Machine check events logged\n")
            file.write("[  101.000000] EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0\n")
        status = agent.wait_for(lambda status: status["verdict"] != "ok")
    verdict = status["verdict"]
    assert agent.command("check").stdout.startswith(f"node-1: {verdict}")
    shutil.rmtree(agent.state_dir)
    assert agent.command("check").stdout.startswith(f"node-1: {verdict}")


def test_what_nobody_foresaw_has_its_own_exit_code(tmp_path: Path) -> None:
    """Python's own code for an exception, 1, would read as degraded. Here a part of Python is broken."""
    (tmp_path / "difflib.py").write_text("1 / 0\n")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = ['nodevet', 'chek']; "
    done = subprocess.run(
        [sys.executable, "-I", "-c", script + "from nodevet.agent.cli import main; sys.exit(main())"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == SOFTWARE, done
    assert "ZeroDivisionError" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("nodevet: this is a bug in nodevet")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_an_agent_without_standard_streams_vets_on(tmp_path: Path, closed: str) -> None:
    """A supervisor may close any of them; what is opened next must not receive what is printed."""
    agent = host_agent(tmp_path)
    words = ["--state-dir", str(agent.state_dir), "--runtime-dir", str(agent.runtime_dir), "--listen", "127.0.0.1:0"]
    command = [sys.executable, "-I", "-m", "nodevet.agent.cli", "agent", "--config", str(agent.configuration_file)]
    agent.process = subprocess.Popen(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    agent.log.write_text("(it has none)")
    agent.seconds_until(lambda: (agent.runtime_dir / "state").exists() and agent.state_line().startswith("ok "), 20.0)
    process = agent.process
    assert agent.stop() < STOP_SECONDS
    assert process.returncode == 0


def test_a_verdict_that_nobody_heard_is_no_success(places: Places) -> None:
    """`nodevet check | head -1` with pipefail must not read as `ok`."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-m", "nodevet.agent.cli", "check", "--list"],
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (UNKNOWN, b"")


def test_letters_that_the_output_lacks_are_escaped(tmp_path: Path) -> None:
    """Names of nodes and devices come from outside; none of them ends a command."""
    file = tmp_path / "nodevet.toml"
    file.write_text('[agent]\nnode_name = "kn\u00f6ten"\n', encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "nodevet.agent.cli", "config", "show", "--config", str(file)],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, b"kn\\xf6ten" in done.stdout) == (0, True), done


def test_a_reload_right_after_the_start_finds_no_fault_in_what_is_still_to_come(tmp_path: Path) -> None:
    """The journal keeps forever what it is told: a round that is not complete is not judged."""
    with host_agent(tmp_path) as agent:
        assert agent.process is not None
        agent.process.send_signal(signal.SIGHUP)
        agent.wait_for_verdict("ok")
        assert "reloaded" in agent.log.read_text()
        assert agent.command("history").stdout == "no finding yet\n"


def unknown_verdict() -> bytes:
    """Return a whole document, with a verdict of a later version."""
    return json.dumps(json.loads(encode(status_document(gpu_node()))) | {"verdict": "excellent"}).encode()


@pytest.mark.parametrize("said", [b'{"schema": "nodevet.status/0"}', unknown_verdict()], ids=["schema", "verdict"])
def test_an_agent_of_another_version_is_one_line(places: Places, said: bytes) -> None:
    """After an upgrade the old agent may still run: what it says is not guessed at."""
    places.runtime.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(places.runtime / "control.socket"))
        listener.listen(1)

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(said + b"\n")

        thread = threading.Thread(target=answer)
        thread.start()
        done = nodevet("status", *places.words)
        thread.join(5)
    assert_one_line(done, UNKNOWN, "the agent is of another version", "restart it")


def test_a_directory_whose_name_is_no_text_is_refused(places: Places) -> None:
    """Paths are told on every surface, and those speak UTF-8."""
    done = nodevet("check", *places.words[2:], "--state-dir", os.fsdecode(b"/tmp/\xff"))
    assert_one_line(done, CONFIGURATION, "agent.state_dir", "expected a path in UTF-8")
