"""A load of hours and the agent that granted it: what is wrong is told at once, and no restart costs its results."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import IO, BinaryIO

import msgspec
import psutil
import pytest
from fakes.gpu_node import FakeNode, GpuNode, pci
from fakes.scripted_burn_in import run as run_scripted

from nodevet.agent.control.client import AgentRefused, Session, ask
from nodevet.agent.control.server import SOCKET_NAME
from nodevet.agent.load.claims import LoadLock
from nodevet.agent.load.delivery import PATIENCE_SECONDS as PATIENCE_OF_DELIVERY_SECONDS
from nodevet.agent.load.delivery import Delivery
from nodevet.agent.load.wrong import FOUND_AGAIN_SECONDS
from nodevet.agent.store.opening import DATABASE_NAME, read_store
from nodevet.agent.terminal.output import tell
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.model import Instant, Metric, Result, ResultState
from nodevet.checks.engine.episodes import Ledger

PROGRAM = Path(__file__).with_name("fakes") / "scripted_burn_in.py"
PATIENCE_SECONDS = 45.0
HOST_ONLY = '[agent.backends]\nenabled = ["host"]\n'
NOW = Instant("boot", 1, 1.0)
WRONG = Result(
    workload="gemm",
    devices=("cpu-0",),
    state=ResultState.DIED,
    started=NOW,
    ended=NOW,
    dtype="fp32",
    metrics=(Metric("mismatches", 3, "count"),),
)


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    """A node of its own whose agent is not started yet."""
    return FakeNode(tmp_path, more=HOST_ONLY)


def places(node: FakeNode) -> list[str]:
    """Return the words that name the files of *node*."""
    folders = ["--state-dir", str(node.state_dir), "--runtime-dir", str(node.runtime_dir)]
    return ["--config", str(node.configuration_file), *folders]


def load(
    node: FakeNode,
    how: str,
    *words: str,
    printed_to: BinaryIO | int = subprocess.PIPE,
    said_to: BinaryIO | int = subprocess.PIPE,
    hears: bool = True,
) -> subprocess.Popen[str]:
    """Begin a burn-in beside the agent of *node*, whose child does *how*; *words* are added to the command.

    It *hears* that its terminal closes, whatever whoever runs the tests does, or not, as under nohup(1).
    """
    command = [sys.executable, str(PROGRAM), json.dumps({"fp32": how}), "--json", *words, *places(node)]
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL if hears else signal.SIG_IGN)  # a child begins with the same
    try:
        return subprocess.Popen(command, stdout=printed_to, stderr=said_to, text=True)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_load_that_outlives_its_terminal_goes_on(tmp_path: Path) -> None:
    """A run of days under nohup(1), and the connection ends: before, so did the run. SIGTERM ends it all the same."""
    node, file, gate = FakeNode(tmp_path, more=HOST_ONLY), tmp_path / "burn-in.json", tmp_path / "go-on"
    burning = load(node, f"until:{gate}:wrong:hang", "--output", str(file), hears=False)
    wait_until_written(file, "the burn-in has not finished")
    burning.send_signal(signal.SIGHUP)
    gate.touch()
    wait_until_wrong(file)
    assert "interrupted" not in file.read_text()
    burning.terminate()
    printed, said = burning.communicate(timeout=PATIENCE_SECONDS)
    assert (burning.returncode, json.loads(printed)["completeness"]["state"]) == (2, "wrong"), said


def test_a_wrong_result_is_on_every_surface_while_the_load_goes_on(node: FakeNode, tmp_path: Path) -> None:
    """A load of hours that finds a wrong product in its first minute has its node failed in that minute."""
    gate = tmp_path / "go-on"
    with node:
        burning = load(node, f"wrong:until:{gate}:finish")
        status = node.wait_for_verdict("failed")
        assert burning.poll() is None
        assert "3 of 120 GEMMs are wrong" in json.dumps(status["findings"])
        assert not any(finding["code"] == "burnin.died" for finding in status["findings"])
        assert "found before its load ended" in node.get("/")
        gate.touch()
        printed, said = burning.communicate(timeout=PATIENCE_SECONDS)
        assert (burning.returncode, json.loads(printed)["completeness"]["state"]) == (2, "wrong"), said
        assert "found before its load ended" not in node.get("/")
        findings = [finding for finding in node.status()["findings"] if finding["code"] == "burnin.mismatch"]
        assert [(finding["count"], "loads within" in finding["message"]) for finding in findings] == [(1, False)]


@pytest.mark.parametrize(("comes_back", "how", "code"), [(True, "wrong:finish", 2), (False, "finish", 0)])
def test_an_agent_that_is_killed_costs_no_result(
    node: FakeNode, tmp_path: Path, comes_back: bool, how: str, code: int
) -> None:
    """The next agent takes the results; where none comes back, the node is looked at without one."""
    gate = tmp_path / "go-on"
    node.start()
    try:
        burning = load(node, f"until:{gate}:{how}")
        node.seconds_until(LoadLock(node.runtime_dir).is_held, PATIENCE_SECONDS)
        node.kill()
        if comes_back:
            node.start()
        gate.touch()
        printed, said = burning.communicate(timeout=PATIENCE_SECONDS)
        assert burning.returncode == code, said
        state = "complete" if code == 0 else "wrong"
        assert json.loads(printed)["completeness"]["state"] == state
        if comes_back:
            assert node.status()["verdict"] == "failed"
    finally:
        node.stop()


def probed(folder: Path, how: str) -> FakeNode:
    """Return a node whose probe does *how* with each number format."""
    script = json.dumps(dict.fromkeys(("fp32", "bf16", "int8"), how))
    return FakeNode(folder, more=HOST_ONLY, probe="on", environment={"NODEVET_TEST_LOAD": script})


def test_a_wrong_result_of_the_probe_is_told_at_once_and_outlives_the_agent(tmp_path: Path) -> None:
    """The agent's own load tells as early as a burn-in; what it knew when the agent is stopped is in the history."""
    with probed(tmp_path, f"wrong:until:{tmp_path / 'never'}:finish") as node:
        status = node.wait_for_verdict("failed")
        assert status["agent"]["load"].startswith("probing")
        assert "3 of 120 GEMMs are wrong" in json.dumps(status["findings"])
        assert "found before its load ended" in node.get("/")
    store = read_store(node.state_dir / DATABASE_NAME)
    try:
        assert {result.metric("mismatches") for result in store.results()} == {3}
    finally:
        store.close()


def test_the_results_of_a_whole_node_reach_the_agent(node: FakeNode) -> None:
    """Eight devices with their curves tell more than 64 KiB, which is all that a user may ask for."""
    with node:
        burning = load(node, "large")
        printed, said = burning.communicate(timeout=PATIENCE_SECONDS)
        assert (burning.returncode, said.count("does not take")) == (0, 0), said
        assert len(printed) > 64 << 10
        assert {entry["state"] for entry in node.status()["results"]} == {"finished"}


def test_results_that_come_twice_are_taken_once(node: FakeNode) -> None:
    """An answer that was lost, before or after a restart of the agent, leaves one row and the same document."""
    now = SystemClock().instant()
    done = msgspec.structs.replace(WRONG, started=now, ended=now)
    results = msgspec.to_builtins((done,))
    with node:
        answers = [ask(node.runtime_dir / SOCKET_NAME, "result", results=results, plan="quick") for _ in range(2)]
        assert answers[0] == answers[1]
        node.kill()
        node.start()
        ask(node.runtime_dir / SOCKET_NAME, "result", results=results, plan="quick")
        findings = [finding for finding in node.status()["findings"] if finding["code"] == "burnin.mismatch"]
        assert [finding["count"] for finding in findings] == [1]
    store = read_store(node.state_dir / DATABASE_NAME)
    try:
        assert len(store.results()) == 1
    finally:
        store.close()


def test_an_agent_that_hangs_keeps_nobody_waiting_who_sends_a_signal(node: FakeNode, tmp_path: Path) -> None:
    """One line says that it waits, the next signal ends the wait, and the verdict of the load is told all the same."""
    gate, file = tmp_path / "go-on", tmp_path / "burn-in.json"
    node.start()
    try:
        burning = load(node, f"until:{gate}:wrong:finish", "--output", str(file))
        node.seconds_until(LoadLock(node.runtime_dir).is_held, PATIENCE_SECONDS)
        assert node.process is not None
        node.process.send_signal(signal.SIGSTOP)
        gate.touch()
        assert burning.stderr is not None
        said = ""
        while "Ctrl-C ends the wait" not in said:
            line = burning.stderr.readline()
            assert line, said
            said += line
        burning.send_signal(signal.SIGINT)
        began = time.monotonic()
        printed, rest = burning.communicate(timeout=PATIENCE_SECONDS)
        assert time.monotonic() - began < 15.0
        assert burning.returncode == 2, said + rest
        assert f"its results are only in {file}" in rest
        assert json.loads(printed) == json.loads(file.read_text())
    finally:
        assert node.process is not None
        node.process.send_signal(signal.SIGCONT)
        node.stop()


def test_a_signal_leaves_an_agent_that_hangs_two_seconds(tmp_path: Path) -> None:
    """One that came before the wait is another matter: it ended the load."""
    said: list[str] = []
    moment, signals = itertools.count(), itertools.chain([1], itertools.repeat(2))  # a second per look at the clock
    path = tmp_path / "agent.socket"
    delivery = Delivery(path, "quick", said.append, clock=lambda: float(next(moment)))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with Session(path) as session:
            assert delivery.ended((WRONG,), session, lambda: next(signals)) is None
    assert next(moment) < PATIENCE_OF_DELIVERY_SECONDS
    assert said[0] == "the agent has 2 s left to accept the results"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_before_the_load_leaves_no_older_document(
    node: FakeNode, tmp_path: Path, number: signal.Signals
) -> None:
    """Here while the agent is asked for its lease; the file of a good run must not stand for one that never began."""
    file = tmp_path / "burn-in.json"
    file.write_text('{"verdict": "ok"}')
    node.start()
    assert node.process is not None
    try:
        node.process.send_signal(signal.SIGSTOP)
        burning = load(node, "finish", "--output", str(file))
        process = psutil.Process(burning.pid)
        node.seconds_until(lambda: bool(process.net_connections("unix")), PATIENCE_SECONDS)
        burning.send_signal(number)
        _printed, said = burning.communicate(timeout=PATIENCE_SECONDS)
        assert burning.returncode not in (0, 1, 2), said
        assert json.loads(file.read_text())["verdict"] == "unknown"
    finally:
        node.process.send_signal(signal.SIGCONT)
        node.stop()


def test_a_wrong_result_is_told_again_until_the_agent_has_it(tmp_path: Path) -> None:
    """An agent that restarts at that moment knows of it seconds later, not when the load ends."""
    said: list[str] = []
    moment = [0.0]
    path = tmp_path / "agent.socket"
    delivery = Delivery(path, "quick", said.append, clock=lambda: moment[0])
    delivery.found((WRONG,))
    assert len(said) == 1
    taken: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            caller, _ = listener.accept()
            with caller:
                taken.append(caller.recv(1 << 16))
                caller.sendall(b'{"taken": true}\n')

        threading.Thread(target=serve, daemon=True).start()
        delivery.found((WRONG,))
        assert not taken, "it is not asked in each turn of the loop"
        for _ in range(2):  # each returns when it has its answer
            moment[0] += FOUND_AGAIN_SECONDS
            delivery.found((WRONG,))
    assert [json.loads(request)["ended"] for request in taken] == [False]
    assert len(said) == 1


def test_results_that_nobody_takes_are_told_after_a_while(tmp_path: Path) -> None:
    """A folder without an agent: one line says so, and what was wrong is not lost with it."""
    said: list[str] = []
    delivery = Delivery(tmp_path / "none.socket", "quick", said.append, patience_seconds=0.0)
    delivery.found((WRONG,))
    delivery.found((WRONG,))
    assert len(said) == 1
    assert "no agent listens" in said[0]


def test_a_load_that_the_agent_refuses_says_of_each_format_that_it_is_not_proved(node: FakeNode) -> None:
    """One line, exit code 3 and a document: whoever renders it sees what was planned, and no older green."""
    with node:
        (node.runtime_dir / "claims" / "4711").touch()
        burning = load(node, "finish")
        printed, said = burning.communicate(timeout=PATIENCE_SECONDS)
    assert burning.returncode == 3, said
    assert "burn-in: a job claims this node" in said
    document = json.loads(printed)
    assert (document["verdict"], document["completeness"]["state"]) == ("unknown", "incomplete")
    assert {entry["standing"] for entry in document["completeness"]["accounts"]} == {"unproven"}
    assert document["completeness"]["accounts"][0]["dtype"] == "fp32"


@pytest.mark.parametrize("busy", [(3,), tuple(range(1, 8))])
def test_a_node_with_a_busy_device_is_no_proof_of_any(
    tmp_path: Path, fake_nvml_library: Path, busy: tuple[int, ...]
) -> None:
    """The agent refuses the whole lease: every device is told as not proved, with who is in the way, and no exit 0."""
    with GpuNode(tmp_path, fake_nvml_library) as node:
        node.machine.update({f"processes.{slot}": "4712:1024" for slot in busy})
        held = f"{pci(busy[0])}: 1 process holds it"
        node.wait_for(lambda _status: held in refusal(node), 20.0, "no device is busy")
        burning = load(node, "finish")
        printed, said = burning.communicate(timeout=PATIENCE_SECONDS)
    assert burning.returncode == 3, said
    assert held in said
    document = json.loads(printed)
    assert (document["verdict"], document["completeness"]["state"]) == ("unknown", "incomplete")
    assert [entry["standing"] for entry in document["completeness"]["accounts"]] == ["unproven"] * 8


def test_a_refused_load_knows_its_device_by_the_name_that_status_prints(
    tmp_path: Path, fake_nvml_library: Path
) -> None:
    """`--device 3` of a busy device tells who holds it, as its PCI address does, and not that it is unknown."""
    with GpuNode(tmp_path, fake_nvml_library) as node:
        node.machine.update({"processes.3": "4712:1024"})
        held = f"{pci(3)}: 1 process holds it"
        node.wait_for(lambda _status: held in refusal(node), 20.0, "no device is busy")
        burning = load(node, "finish", "--device", "3")
        printed, said = burning.communicate(timeout=PATIENCE_SECONDS)
    assert (burning.returncode, held in said) == (3, True), said
    assert len(json.loads(printed)["completeness"]["accounts"]) == 1


def refusal(node: FakeNode) -> str:
    """Return why the agent refuses a lease, empty where it grants one."""
    try:
        ask(node.runtime_dir / SOCKET_NAME, "lease", seconds=1.0)
    except AgentRefused as error:
        return str(error)
    return ""


def test_an_impatient_ctrl_c_does_not_cost_a_wrong_result(tmp_path: Path) -> None:
    """The first one ends the load; a second one, or a terminal that closes, ends neither judging nor its exit code."""
    node, file = FakeNode(tmp_path, more=HOST_ONLY), tmp_path / "burn-in.json"
    burning = load(node, f"wrong:until:{tmp_path / 'never'}:finish", "--output", str(file))
    wait_until_wrong(file)
    for number in itertools.islice(itertools.cycle((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)), 20):
        burning.send_signal(number)
        if "interrupted" in file.read_text():  # it judges now, and prints in a second
            break
        time.sleep(0.05)
    burning.send_signal(signal.SIGINT)
    printed, said = burning.communicate(timeout=PATIENCE_SECONDS)
    assert burning.returncode == 2, said
    assert json.loads(printed)["completeness"]["state"] == "wrong"


def test_an_impatient_ctrl_c_does_not_cost_the_document(tmp_path: Path) -> None:
    """It comes behind the verdict, while the last lines wait for a terminal that is stopped: they have a second.

    Before, the file then said that the load was stopped before it began.
    """
    node, file, (ours, theirs) = FakeNode(tmp_path, more=HOST_ONLY), tmp_path / "burn-in.json", os.pipe()
    fill(theirs)
    with os.fdopen(theirs, "wb") as stream:
        burning = load(node, f"wrong:until:{tmp_path / 'never'}:finish", "--output", str(file), said_to=stream)
    try:
        wait_until_wrong(file)
        burning.send_signal(signal.SIGINT)
        while burning.poll() is None and "has not come to its end" in file.read_text():
            time.sleep(0.05)
            burning.send_signal(signal.SIGINT)
        burning.communicate(timeout=PATIENCE_SECONDS)
    finally:
        burning.kill()
        os.close(ours)
    document = json.loads(file.read_text())
    assert (document["verdict"], document["completeness"]["state"]) == ("failed", "wrong")
    assert burning.returncode == 2


def wait_until_wrong(file: Path) -> None:
    """Wait until the document in *file* tells of a wrong result."""
    wait_until_written(file, '"standing":"wrong"')


def wait_until_written(file: Path, words: str) -> None:
    """Wait until the document in *file* has these *words*."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (file.exists() and words in file.read_text()):
        assert time.monotonic() < deadline, f"{words!r} was not written"
        time.sleep(0.01)


@pytest.mark.parametrize("audience", ["a terminal that is gone", "a pipe that Ctrl-C ended", "a full disk"])
@pytest.mark.parametrize("agent", [True, False])
def test_a_load_whose_progress_nobody_reads_is_judged_and_kept(tmp_path: Path, audience: str, agent: bool) -> None:
    """`burn-in 2>&1 | tee log` and Ctrl-C, a connection that breaks, a log on a full disk: each ended the load itself.

    Its results were then neither judged nor kept.
    """
    node, file, gate = FakeNode(tmp_path, more=HOST_ONLY), tmp_path / "burn-in.json", tmp_path / "go-on"
    if agent:
        node.start()
    if "disk" in audience:
        ours, theirs = os.dup(2), os.open("/dev/full", os.O_WRONLY)
    else:
        ours, theirs = pty.openpty() if "terminal" in audience else os.pipe()
    try:
        with os.fdopen(theirs, "wb") as stream:
            burning = load(node, f"until:{gate}:wrong:finish", "--output", str(file), said_to=stream)
        node_lock = LoadLock(node.runtime_dir)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (node.runtime_dir.exists() and node_lock.is_held()) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.close(ours)
        gate.touch()
        printed, _said = burning.communicate(timeout=PATIENCE_SECONDS)
        assert burning.returncode == 2
        document = json.loads(printed)
        assert (document["verdict"], document["completeness"]["state"]) == ("failed", "wrong")
        assert json.loads(file.read_text()) == document
        assert {entry["state"] for entry in document["results"]} == {"finished"}
    finally:
        node.stop()
    store = read_store(node.state_dir / DATABASE_NAME)
    try:
        assert ResultState.FINISHED in {result.state for result in store.results()}
    finally:
        store.close()


class Reader(io.StringIO):
    """Standard error whose reader keeps each write waiting, and which says who waits."""

    def fileno(self) -> int:
        """Return a descriptor that is written instead."""
        return self.nowhere.fileno()

    def write(self, _text: str) -> int:
        """Note that it was called."""
        self.waited = True
        return 0

    def __init__(self, nowhere: IO[bytes]) -> None:
        """Have *nowhere* written."""
        super().__init__()
        self.nowhere = nowhere
        self.waited = False


def test_no_load_writes_its_progress_itself(tmp_path: Path) -> None:
    """Its reader may stop at any time: another thread writes to the descriptor."""
    node = FakeNode(tmp_path, more=HOST_ONLY)
    with (tmp_path / "said").open("w+b") as said, contextlib.redirect_stderr(Reader(said)) as reader:
        code = run_scripted({"fp32": "finish"}, "--output", str(tmp_path / "burn-in.json"), *places(node))
        assert (code, reader.waited) == (0, False)
        said.seek(0)
        assert b"0%" in said.read()


@pytest.mark.parametrize("audience", ["a terminal after Ctrl-S", "a full pipe"])
def test_a_load_whose_reader_stops_goes_on_and_hears_sigterm(tmp_path: Path, audience: str) -> None:
    """A connection that stalls, `| less`: before, SIGTERM and the jobs of the node waited until somebody read on."""
    node, file, gate = FakeNode(tmp_path, more=HOST_ONLY), tmp_path / "burn-in.json", tmp_path / "go-on"
    ours, theirs = pty.openpty() if "terminal" in audience else os.pipe()
    if "terminal" in audience:
        termios.tcflow(theirs, termios.TCOOFF)
    else:
        fill(theirs)
    with os.fdopen(theirs, "wb") as stream:
        burning = load(node, f"until:{gate}:wrong:hang", "--output", str(file), said_to=stream)
    try:
        wait_until_written(file, "the burn-in has not finished")  # after its first line of progress
        gate.touch()
        wait_until_wrong(file)
        burning.terminate()
        printed, _said = burning.communicate(timeout=PATIENCE_SECONDS)
    finally:
        burning.kill()
        burning.wait()
        os.close(ours)
    assert burning.returncode == 2
    assert json.loads(printed)["completeness"]["state"] == "wrong"


def test_a_line_for_a_reader_that_went_away_ends_nothing() -> None:
    """What is told on standard error must not end what it is told of."""
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as stream, contextlib.redirect_stderr(stream):
        tell("the load goes on")


def fill(descriptor: int) -> None:
    """Write into a pipe until nothing fits."""
    os.set_blocking(descriptor, False)
    for piece in (b"." * 4096, b"."):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(descriptor, piece)
    os.set_blocking(descriptor, True)


def test_a_wrong_result_outlives_a_load_without_an_agent_that_is_killed(tmp_path: Path) -> None:
    """It is in the history when it is told, and the agent that starts next has its node failed."""
    node, file = FakeNode(tmp_path, more=HOST_ONLY), tmp_path / "burn-in.json"
    burning = load(node, f"wrong:until:{tmp_path / 'never'}:finish", "--output", str(file))
    wait_until_wrong(file)
    burning.kill()
    burning.communicate(timeout=PATIENCE_SECONDS)
    assert "wrong results: cpu-0 fp32 (3 wrong)" in node.command("history").stdout
    with node:
        status = node.wait_for_verdict("failed")
        assert "3 of 120 GEMMs are wrong" in json.dumps(status["findings"])


def killed_when_wrong(tmp_path: Path) -> FakeNode:
    """Return a node without an agent, on which a load was killed that had found a wrong product."""
    node, file = FakeNode(tmp_path, more=HOST_ONLY), tmp_path / "burn-in.json"
    burning = load(node, f"wrong:until:{tmp_path / 'never'}:finish", "--output", str(file))
    wait_until_wrong(file)
    burning.kill()
    burning.communicate(timeout=PATIENCE_SECONDS)
    wait_until_held(node, held=False)
    return node


def wait_until_held(node: FakeNode, *, held: bool) -> None:
    """Wait until the lock of loads is *held*, or free."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while LoadLock(node.runtime_dir).is_held() is not held:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_load_after_one_that_was_killed_does_not_hide_its_wrong_result(tmp_path: Path) -> None:
    """Both without an agent: the second one, of ten products, disproves nothing of what nobody had judged."""
    node = killed_when_wrong(tmp_path)
    again = load(node, "finish")
    printed, said = again.communicate(timeout=PATIENCE_SECONDS)
    assert (again.returncode, json.loads(printed)["verdict"]) == (2, "failed"), said
    assert "3 of 120 GEMMs are wrong" in printed
    assert node.command("check").returncode == 2


def test_what_a_killed_load_left_is_kept_as_found_before_the_next_one(tmp_path: Path) -> None:
    """So that the next one, where it is long enough, comes after it, and disproves it."""
    node = killed_when_wrong(tmp_path)
    again = load(node, f"until:{tmp_path / 'never'}:finish")
    wait_until_held(node, held=True)
    store = read_store(node.state_dir / DATABASE_NAME)
    try:
        ledger = msgspec.msgpack.decode(store.load_memory()["ledger"], type=Ledger)
    finally:
        store.close()
        again.kill()
        again.communicate(timeout=PATIENCE_SECONDS)
    assert "burnin.mismatch" in {episode.key.code for episode in ledger.episodes}


@pytest.mark.parametrize(("how", "codes"), [("wrong:finish", {2}), ("finish", {3})])
def test_a_verdict_that_cannot_be_printed_is_not_ok_and_failed_stays_failed(
    tmp_path: Path, how: str, codes: set[int]
) -> None:
    """`nodevet burn-in >log` on a full disk."""
    node = FakeNode(tmp_path, more=HOST_ONLY)
    with Path("/dev/full").open("wb") as full:
        burning = load(node, how, printed_to=full)
        _printed, said = burning.communicate(timeout=PATIENCE_SECONDS)
    assert burning.returncode in codes, said
    assert "output cannot be written: No space left on device" in said
