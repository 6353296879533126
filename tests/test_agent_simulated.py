"""The real agent on a node that does not exist: every surface says so, nothing real is read, faults come and go."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fakes.running_agent import RunningAgent

from nodevet.agent.cli import main
from nodevet.agent.config.load import SIMULATED_FOLDER
from nodevet.agent.control.server import SOCKET_NAME
from nodevet.agent.simulated.origin import MARKER_NAME, simulated_owner
from nodevet.checks.core.clock import read_boot_id
from nodevet.checks.reference.profiles import load_profile, profile_names
from nodevet.exporters.statefile.reader import Absent, read_state

REAL = """
[agent]
node_name = "gpu-07"
slow_interval_seconds = 1.0
deadline_seconds = 2.0
[agent.backends]
enabled = ["nvidia"]
[kernel_log]
enabled = false
[report]
directory = "/nonexistent/reports"
"""
"""The configuration of the real node: its cadences count, its name, backends, log and directories do not."""

Start = Callable[..., RunningAgent]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a simulated node of a profile, with a scenario (TOML), in a directory of its own."""
    with ExitStack() as stack:

        def begin(profile: str, scenario: str = "", *, name: str = "node", words: tuple[str, ...] = ()) -> RunningAgent:
            directory = tmp_path / name
            directory.mkdir(exist_ok=True)
            (directory / "scenario.toml").write_text(scenario)
            arguments = ("--simulate", profile, "--scenario", str(directory / "scenario.toml"), *words)
            return stack.enter_context(RunningAgent(directory, REAL, arguments=arguments))

        yield begin


def replace(agent: RunningAgent, scenario: str) -> None:
    """Put another scenario in the place of the one that *agent* plays, as an editor does."""
    fresh = agent.directory / "scenario.new"
    fresh.write_text(scenario)
    fresh.replace(agent.directory / "scenario.toml")


def fault(kind: str, device: object = 3, *lines: str) -> str:
    """Return a scenario of one fault that is there from the start."""
    return "\n".join((f'[[fault]]\nkind = "{kind}"\ndevice = {json.dumps(device)}', *lines, ""))


@pytest.mark.parametrize("profile", profile_names())
def test_every_surface_says_that_the_node_is_simulated(start: Start, profile: str) -> None:
    """And shows the devices of the profile alone, none of this machine."""
    agent = start(profile)
    status = agent.wait_for_verdict("ok")
    node = load_profile(profile)
    assert status["simulated"] is True and status["node"] == f"simulated-{profile}"
    boards = node.accelerators
    accelerators = [device for device in status["devices"] if device["kind"] == "accelerator"]
    assert [device["pci"] for device in accelerators] == ([slot.pci for slot in boards.slots] if boards else [])
    assert {device["model"] for device in status["devices"] if device["kind"] == "cpu"} == {node.sockets.model}
    metrics = agent.get("/metrics")
    assert "\nnodevet_simulated 1.0\n" in metrics
    assert "simulated" in agent.get("/")
    assert f"simulated-{profile} (simulated): ok" in agent.command("status").stdout
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    found = read_state(str(agent.runtime_dir / "state"), boot_id=read_boot_id(), uptime_seconds=uptime)
    assert isinstance(found, Absent) and "simulated node" in found.reason
    assert "SIMULATED" in agent.output.read_text()
    assert f"simulates {profile}" in agent.log.read_text()


def test_whatever_its_name_is_every_answer_says_simulated(start: Start) -> None:
    """A drill on a node that bears a real one's name is taken for no real fault: neither by people nor by programs."""
    agent = start("dgx-h100", fault("wrong_result", 6), words=("--node-name", "gpu-07"))
    agent.wait_for_finding("burnin.mismatch")
    agent.wait_for(lambda _now: "no report yet" not in agent.get("/report"))
    for command in ("status", "check", "devices", "history"):
        assert "simulated" in agent.command(command).stdout.splitlines()[0], command
        assert json.loads(agent.command(command, "--json").stdout)["simulated"] is True, command
    for page in ("/", "/report"):
        assert "imulated node" in agent.get(page), page
    assert json.loads(agent.get("/api/v1/status"))["simulated"] is True
    kept = [json.loads(path.read_bytes()) for path in (agent.state_dir / "reports").glob("*.json")]
    assert kept and all(document["simulated"] is True for document in kept)
    lines = agent.log.read_text().splitlines()
    assert [line for line in lines if "simulated=True" not in line] == []


def test_three_nodes_run_side_by_side(start: Start) -> None:
    """Each with a name, directories and a port of its own."""
    agents = [start(profile, name=profile, words=("--node-name", f"rack1-{profile}")) for profile in profile_names()]
    for agent, profile in zip(agents, profile_names(), strict=True):
        assert agent.wait_for_verdict("ok")["node"] == f"rack1-{profile}"


def test_a_fault_put_in_and_repaired_while_it_runs(start: Start) -> None:
    """The file is replaced; no restart and no signal is needed, and the probe after the repair is the re-test."""
    agent = start("dgx-h100")
    agent.wait_for_verdict("ok")
    replace(agent, fault("ecc_uncorrected", 2))
    found = agent.wait_for_finding("memory.uncorrected")
    devices = {device["id"]: device for device in agent.status()["devices"]}
    assert devices[found["device"]]["pci"] == "0000:52:00.0"
    agent.wait_for_finding("nvidia.xid.63")
    replace(agent, "")
    agent.wait_for_verdict("ok", 30)


def test_kernel_lines_go_the_way_of_real_ones(start: Start) -> None:
    """An XID is parsed and judged by the tables; one that a person appends to the log is too."""
    agent = start("dgx-h100", fault("xid", 4, "code = 79"))
    assert agent.wait_for_finding("nvidia.xid.79")["action"] == "reboot"
    with (agent.runtime_dir / "kernel.log").open("a") as log:
        log.write("NVRM: Xid (PCI:0000:df:00): 48, a person wrote this\n")
    agent.wait_for_finding("nvidia.xid.48")


def test_a_hang_ends_the_reader_and_spares_the_siblings(start: Start) -> None:
    """As on real hardware: the child is killed, the device left alone, the host read all the time."""
    agent = start("dgx-h100", fault("hang", 0))
    status = agent.wait_for(
        lambda now: [f for f in now["findings"] if f["code"] == "reader.hung" and f["outcome"] == "fail"], 40
    )
    verdicts = {device["pci"]: device["verdict"] for device in status["devices"] if device["pci"]}
    assert verdicts.pop("0000:1b:00.0") == "failed"
    agent.wait_for(lambda now: {d["verdict"] for d in now["devices"] if d["pci"] in verdicts} == {"ok"}, 20)
    assert status["simulated"] is True


def test_a_crash_of_the_library_is_told(start: Start) -> None:
    """The child really aborts."""
    agent = start("mi300x-8", fault("crash", 1))
    agent.wait_for(lambda now: any(f["code"] == "reader.crashed" for f in now["findings"]), 30)


def test_a_probe_finds_wrong_results_and_says_that_nothing_was_computed(start: Start) -> None:
    """A simulated figure is never taken for a measured one."""
    agent = start("mi300x-8", fault("wrong_result", 6, "count = 2"))
    agent.wait_for_finding("burnin.mismatch")
    with sqlite3.connect(f"file:{agent.state_dir / 'nodevet.db'}?mode=ro", uri=True) as store:
        agent.wait_for(lambda _now: store.execute("SELECT COUNT(*) FROM results").fetchone()[0])
        kept = [json.loads(row[0]) for row in store.execute("SELECT payload FROM results")]
    store.close()
    assert all(result["conditions"]["simulated"] is True for result in kept)
    assert all("nothing was computed" in result["detail"] for result in kept)


def test_no_real_load_runs_on_a_simulated_node(start: Start) -> None:
    """A burn-in that asks its agent is refused."""
    agent = start("cpu-node")
    agent.wait_for_verdict("ok")
    done = agent.command("burn-in", "--plan", "probe")
    assert done.returncode == 3 and "burn-in: simulated-cpu-node is simulated, so no load can run on it" in done.stderr


@pytest.mark.parametrize("by_signal", [True, False], ids=["SIGHUP", "file"])
def test_a_bad_scenario_leaves_the_one_before_in_force(start: Start, by_signal: bool) -> None:
    """It is told with its line, on the status too."""
    agent = start("dgx-h100", fault("pcie_narrow"))
    agent.wait_for_finding("pcie.width")
    replace(agent, '[[fault]]\nkind = "fire"\n')
    if by_signal:
        assert agent.process is not None
        agent.process.send_signal(signal.SIGHUP)
    status = agent.wait_for(lambda now: any("line 2" in notice for notice in now["agent"]["notices"]))
    assert any("the one before goes on" in notice for notice in status["agent"]["notices"])
    agent.wait_for_finding("pcie.width")
    replace(agent, "")
    agent.wait_for(lambda now: not any("scenario" in notice for notice in now["agent"]["notices"]))


def test_what_is_remembered_of_a_simulated_node_is_marked_from_the_first_snapshot(start: Start) -> None:
    """After a crash of the agent, before anything was read."""
    agent = start("dgx-h100", fault("set", 3, 'quantity = "row_remap_failed"', "value = true"))
    agent.wait_for_finding("memory.row_remap_failed")
    agent.kill()
    (agent.directory / "scenario.toml").write_text("")
    agent.start()
    assert agent.status()["simulated"] is True
    assert "simulated" in agent.state_line() or " simulated " in (agent.runtime_dir / "state").read_text()
    agent.wait_for_finding("memory.row_remap_failed")


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Return the exit code and the message of ``nodevet agent`` with *words*, which does not start."""
    code = main(["agent", "--listen", "127.0.0.1:0", *words])
    return code, capsys.readouterr().err


def test_directories_of_real_and_simulated_nodes_are_kept_apart(
    tmp_path: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    """No store ever holds both, whichever was there first."""
    agent = start("cpu-node")
    agent.stop()
    places = ("--state-dir", str(agent.state_dir), "--runtime-dir", str(agent.runtime_dir))
    assert (agent.state_dir / MARKER_NAME).read_text() == "simulated-cpu-node (cpu-node)\n"
    code, said = refused(capsys, *places)
    assert code == 3 and "belongs to the simulated node simulated-cpu-node" in said
    code, said = refused(capsys, "--simulate", "dgx-h100", *places)
    assert code == 3 and "this is simulated-dgx-h100 (dgx-h100)" in said
    assert main(["check", *places]) == 3
    assert "belongs to the simulated node" in capsys.readouterr().err
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "nodevet.db").write_text("")
    real = ("--state-dir", str(tmp_path / "real"), "--runtime-dir", str(tmp_path / "run"))
    code, said = refused(capsys, "--simulate", "cpu-node", *real)
    assert code == 3 and "holds nodevet.db of a real node" in said
    assert not (tmp_path / "run").exists() and not (tmp_path / "real" / MARKER_NAME).exists()


@pytest.mark.parametrize("name", ["state", "claims", "gate.log", "node.lock"])
def test_no_runtime_directory_of_a_real_node_is_taken(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even one that only a prolog has written to: the real agent would refuse it from then on."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("")
    places = ("--state-dir", str(tmp_path / "state"), "--runtime-dir", str(tmp_path / "run"))
    code, said = refused(capsys, "--simulate", "cpu-node", *places)
    assert code == 3 and f"holds {name} of a real node" in said
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(("run", name))


def test_a_real_node_goes_on_where_simulated_ones_have_their_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Simulated nodes lie in `simulated` below the real node's directories: that folder is no mark."""
    (tmp_path / SIMULATED_FOLDER / "dgx-h100").mkdir(parents=True)
    assert simulated_owner(tmp_path) is None
    assert main(["status", "--runtime-dir", str(tmp_path)]) == 3
    assert "cannot be read" not in capsys.readouterr().err


@pytest.mark.parametrize("which", ["state", "run"])
def test_a_file_in_the_place_of_a_directory_is_named(
    which: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the directory itself, not as the mark that would lie in it."""
    (tmp_path / which).write_text("")
    places = ("--state-dir", str(tmp_path / "state"), "--runtime-dir", str(tmp_path / "run"))
    code, said = refused(capsys, "--simulate", "cpu-node", *places)
    assert code == 3 and f"{tmp_path / which}: cannot be written" in said and "name another directory" in said


def test_directories_of_a_simulated_node_lie_below_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the configuration says of the real node's: a bad scenario is refused before anything is made."""
    for name in ("STATE_DIRECTORY", "RUNTIME_DIRECTORY", "CONFIGURATION_DIRECTORY"):
        monkeypatch.setenv(name, str(tmp_path / name.split("_")[0].lower()))
    bad = tmp_path / "bad.toml"
    bad.write_text('[[fault]]\nkind = "fire"\n')
    code, said = refused(capsys, "--simulate", "cpu-node", "--scenario", str(bad))
    assert code == 78 and "bad.toml, line 2: fault 1: kind: found 'fire', allowed: overheat" in said
    assert [path.name for path in tmp_path.iterdir()] == ["bad.toml"]


@pytest.mark.parametrize(
    ("words", "code", "words_said"),
    [
        (("--simulate", "dgx-h300"), 64, "profiles: cpu-node, dgx-h100, mi300x-8"),
        (("--scenario", "s.toml"), 64, "requires --simulate PROFILE"),
        (("--simulate", "cpu-node", "--scenario", "/nonexistent/s.toml"), 78, "/nonexistent/s.toml: cannot be read"),
    ],
)
def test_what_cannot_be_simulated_is_refused_before_anything_starts(
    words: tuple[str, ...], code: int, words_said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the exit codes of wrong usage and of wrong configuration."""
    places = ("--state-dir", str(tmp_path / "state"), "--runtime-dir", str(tmp_path / "run"))
    given, said = refused(capsys, *words, *places)
    assert (given, words_said in said) == (code, True), said
    assert not list(tmp_path.iterdir())


def test_the_links_of_this_machine_are_not_shown_for_those_of_a_simulated_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The driver of this machine would answer for GPUs that the simulated node does not have."""
    (tmp_path / MARKER_NAME).write_text("node (dgx-h100)\n")
    assert main(["topo", "--runtime-dir", str(tmp_path)]) == 3
    said = capsys.readouterr().err
    assert said.startswith(f"nodevet: topo: {tmp_path} belongs to the simulated node node (dgx-h100): ")
    assert "its status page" in said


def test_whoever_asks_for_an_agent_that_is_not_there_is_told_of_simulated_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`nodevet status` looks for the real node; a simulated one with the usual directories is named with them."""
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    assert main(["status"]) == 3
    assert "simulated" not in capsys.readouterr().err
    folder = tmp_path / SIMULATED_FOLDER / "dgx-h100"
    folder.mkdir(parents=True)
    (folder / SOCKET_NAME).touch()
    assert main(["status"]) == 3
    assert capsys.readouterr().err.endswith(f"or ask a simulated node: nodevet status --runtime-dir {folder}\n")
