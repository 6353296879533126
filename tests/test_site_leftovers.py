"""What a check of a site leaves behind in the process of the agent costs this check, and nothing beside it."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes.privileges import NO_ROOT
from fakes.running_agent import RunningAgent
from fakes.site_package import GOOD, site_package
from fakes.views import healthy
from test_site_delays import node_with

from nodevet.agent import cli
from nodevet.agent.terminal import exits
from nodevet.checks.core.overrun import within
from nodevet.checks.engine.check_run import ConfiguredCheck, Rests, nothing_found, run_check
from nodevet.checks.engine.left_open import KEPT, ROUNDS, LeftOpen
from nodevet.checks.engine.registry import Check, installed
from nodevet.checks.engine.site_code import in_one_process

NAME = "site-disk"

COMMAND_LINE = (
    "from nodevet.agent import cli\nfrom nodevet.agent.terminal import exits\nexits.end_process(cli.main())\n"
)


@pytest.fixture
def files() -> Iterator[list[int]]:
    """Return a list whose descriptors are closed in the end."""
    opened: list[int] = []
    yield opened
    for number in opened:
        with suppress(OSError):
            os.close(number)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return an empty folder of packages that is searched."""
    folder = tmp_path / "packages"
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop("site_checks", None)
    yield folder
    sys.modules.pop("site_checks", None)


def opened() -> int:
    """Open a file."""
    return os.open("/etc/hostname", os.O_RDONLY)


def ran(left: LeftOpen, work: Callable[[], Any], rounds: int = 1) -> str:
    """Run *work* as a check in so many *rounds*; return why it must not run again."""
    for _ in range(rounds):
        if why := left.why(NAME):
            return why
        before = left.before(NAME)
        work()
        left.after(NAME, before)
    return left.why(NAME)


def test_a_check_that_leaks_descriptors_stops_no_round(tmp_path: Path, fake_nvml_library: Path) -> None:
    """As os.open without os.close: 1024 descriptors last three hours at one per round of 10 s. Here they last 3 s."""
    body = "import os; [os.open('/etc/hostname', os.O_RDONLY) for _ in range(100)]"
    node = node_with(tmp_path, fake_nvml_library, body, within=("prlimit", "--nofile=400:400"))
    with node:
        time.sleep(12.0)
        written = (node.runtime_dir / "state").stat().st_mtime
        assert time.time() - written < 5.0, f"the state file is {time.time() - written:.0f} s old"
        status = node.status()
        assert {run["check"] for run in status["checks"] if run["success"]} - {NAME}
        (told,) = (entry["message"] for entry in status["findings"] if entry["code"] == "check.error")
        assert told.startswith(f"check {NAME} did not run: it leaves files open: at least ")
        assert ", such as /etc/hostname; it is not asked again while they are open" in told
        assert told.endswith("only a restart of the agent closes them; correct site_checks")


def test_a_check_that_closes_every_descriptor_is_named_where_the_agent_ends(
    tmp_path: Path, fake_nvml_library: Path
) -> None:
    """As code does that was made for a child behind fork(2). One line says whose fault it is: it is no bug of ours."""
    node = node_with(tmp_path, fake_nvml_library, "import os; os.closerange(3, 1024)")
    program = tmp_path / "program.py"
    paths = [str(tmp_path / "packages"), str(Path(cli.__file__).parents[2])]  # a copy of nodevet runs its own
    program.write_text(f"import sys\nsys.path[:0] = {paths!r}\n{COMMAND_LINE}")
    RunningAgent.start(node)
    assert node.process is not None
    assert node.process.wait(10.0) == exits.UNKNOWN
    node.process = None
    log = node.log.read_text()
    assert f"check {NAME} of the site closed the descriptors of the agent, which ends: correct it" in log
    assert "Traceback" not in log and "this is a bug" not in log


@pytest.mark.parametrize("fewest", [1, 2, 30])
def test_a_check_that_leaves_descriptors_of_three_rounds_rests_until_they_are_closed(
    files: list[int], fewest: int
) -> None:
    """Their number and one of the files are told; two rounds prove nothing."""
    left = LeftOpen()
    assert ran(left, lambda: files.extend(opened() for _ in range(fewest)), ROUNDS - 1) == ""
    why = ran(left, lambda: files.extend(opened() for _ in range(fewest)))
    assert f"at least {ROUNDS * fewest} descriptors of {ROUNDS} rounds, such as /etc/hostname;" in why
    assert left.why(NAME) == why
    assert left.why("site-fan") == ""
    for number in files:
        os.close(number)
    assert left.why(NAME) == ""
    assert ran(left, lambda: None, 5) == ""
    files.clear()


def test_a_check_that_began_late_to_leak_rests_too(files: list[int]) -> None:
    """While it left nothing, only the lowest free descriptor is compared."""
    left = LeftOpen()
    assert ran(left, lambda: None, 5) == ""
    assert isinstance(left.before(NAME), int)
    assert f"descriptors of {ROUNDS} rounds" in ran(left, lambda: files.append(opened()), ROUNDS)


def test_a_check_that_leaves_a_quarter_of_all_descriptors_rests_at_once(
    files: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rounds of it would be too late."""
    monkeypatch.setattr("nodevet.checks.engine.left_open.resource.getrlimit", lambda _number: (40, 40))
    assert ran(LeftOpen(), lambda: files.extend(opened() for _ in range(10))) == ""
    why = ran(LeftOpen(), lambda: files.extend(opened() for _ in range(11)))
    assert "at least 11 descriptors of one round" in why


def test_a_connection_that_a_check_keeps_or_renews_is_no_leak(files: list[int]) -> None:
    """It opens the next one before it closes the last, under another number each time."""
    left = LeftOpen()

    def renew() -> None:
        files.append(opened())
        if len(files) > 2:
            os.close(files.pop(0))

    assert ran(left, renew, 20) == ""


def test_files_that_only_a_cycle_of_objects_holds_are_no_leak() -> None:
    """Python closes them with its next collection, which nothing but time brings about."""

    class Holds:
        def __init__(self) -> None:
            self.file = open("/etc/hostname")  # noqa: PTH123, SIM115
            self.itself = self

    gc.disable()
    try:
        with pytest.warns(ResourceWarning, match="unclosed"):
            assert ran(LeftOpen(), Holds, ROUNDS) == ""
    finally:
        gc.enable()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX], ids=["tcp", "unix"])
def test_connections_that_a_server_of_the_agent_accepts_are_no_leak(
    family: socket.AddressFamily, tmp_path: Path
) -> None:
    """A thread of ours takes them just while the check runs, and who asks keeps them open."""
    left = LeftOpen()
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket(family))
        server.bind(("127.0.0.1", 0) if family is socket.AF_INET else str(tmp_path / "s"))
        server.listen()
        askers = [stack.enter_context(socket.socket(family)) for _ in range(6)]
        for asker in askers:
            asker.connect(server.getsockname())
        assert ran(left, lambda: stack.enter_context(server.accept()[0]), ROUNDS) == ""
        own = [socket.socketpair() for _ in range(ROUNDS)]
        for pair in own:
            stack.enter_context(pair[0])
            stack.enter_context(pair[1])
        kept: list[socket.socket] = []
        why = ran(left, lambda: kept.append(stack.enter_context(socket.socket(family))), ROUNDS)
        assert f"at least {ROUNDS} descriptors of {ROUNDS} rounds, such as socket:[" in why


def test_what_a_check_left_is_looked_at_in_short(files: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """One file of each round while it rests; and a check that leaves nothing costs no list of all descriptors."""
    left = LeftOpen()
    assert ran(left, lambda: files.extend(opened() for _ in range(30)), ROUNDS)
    looked: list[str] = []
    look = os.readlink

    def noted(path: str) -> str:
        looked.append(path)
        return look(path)

    with monkeypatch.context() as patched:
        patched.setattr("nodevet.checks.engine.left_open.os.readlink", noted)
        assert left.why(NAME)
    assert len(looked) == ROUNDS
    assert KEPT < 30
    clean = LeftOpen()
    assert ran(clean, lambda: None) == ""
    with monkeypatch.context() as patched:
        patched.setattr("nodevet.checks.engine.left_open.os.listdir", None)
        assert ran(clean, lambda: None, 10) == ""


def test_a_check_that_leaks_is_told_by_the_runner_and_runs_again(files: list[int]) -> None:
    """It is not run meanwhile; our own checks are not looked at."""
    calls: list[int] = []

    def judge(_view: Any, _policy: Any) -> tuple[()]:
        calls.append(1)
        files.append(opened())
        return ()

    site = Check(name=NAME, summary="x", judge=judge, policy=type(None), module="site_checks")  # type: ignore[arg-type]
    rests, view = Rests(), healthy()
    results = [rests.run(ConfiguredCheck(site, None), view) for _ in range(ROUNDS + 3)]  # type: ignore[arg-type]
    result = results[-1]
    assert (len(calls), result.overran) == (ROUNDS, False)
    assert nothing_found(site, result.error).message.endswith(
        "only a restart of the agent closes them; correct site_checks"
    )
    for number in files:
        os.close(number)
    files.clear()
    assert rests.run(ConfiguredCheck(site, None), view).error == ""  # type: ignore[arg-type]
    assert len(calls) == ROUNDS + 1


TAKEN = {
    "nice": "os.nice(5)",
    "processor": "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})",
    "policy": "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))",
    "first_to_be_killed": "open('/proc/self/oom_score_adj', 'w').write('1000')",
}


def priority(pid: int) -> tuple[Any, ...]:
    """Return what a process inherits of its place among others."""
    process = psutil.Process(pid)
    killed = Path(f"/proc/{pid}/oom_score_adj").read_text().strip()
    return process.nice(), process.cpu_affinity(), os.sched_getscheduler(pid), killed


@pytest.mark.skipif(os.geteuid() != 0, reason=NO_ROOT)
@pytest.mark.parametrize("name", TAKEN)
def test_the_priority_that_a_check_of_a_site_took_is_undone(tmp_path: Path, fake_nvml_library: Path, name: str) -> None:
    """Readers that start later inherit it, and so does the agent itself for good."""
    node = node_with(tmp_path, fake_nvml_library, f"import os; {TAKEN[name]}")
    with node:
        node.wait_for_verdict("ok", 30.0)
        node.wait_for(lambda now: now["generation"] > 3, 20.0)
        assert node.process is not None
        assert priority(node.process.pid) == priority(os.getpid())
        before = set(node.readers())
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        node.seconds_until(lambda: set(node.readers()) - before, 10.0)
        assert [priority(pid) for pid in set(node.readers()) - before] == [priority(os.getpid())]


PRIORITY = """
import os, sys
from nodevet.checks.core.overrun import within
def present():
    killed = open("/proc/self/oom_score_adj").read()
    return os.nice(0), os.sched_getaffinity(0), os.sched_getscheduler(0), killed
before = present()
within(60.0, lambda: exec(sys.argv[1]))
assert present() == before, (before, present())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason=NO_ROOT)
@pytest.mark.parametrize("name", TAKEN)
def test_the_priority_that_code_of_a_site_took_is_undone_in_its_process(name: str) -> None:
    """As a process of its own, because the tests' one could not take it back."""
    done = subprocess.run(
        [sys.executable, "-c", PRIORITY, TAKEN[name]], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr


TRACE = """import sys
    def trace(frame, event, argument):
        if event == "exception":
            raise RuntimeError("of the site")
        return trace
    sys.settrace(trace)"""


def test_a_trace_function_that_a_check_left_on_costs_no_judgement(tmp_path: Path, fake_nvml_library: Path) -> None:
    """As a debugger's: it raised in other checks, all judging failed, and the agent called it its own bug."""
    node = node_with(tmp_path, fake_nvml_library, TRACE)
    with node:
        node.wait_for(lambda now: now["generation"] > 3, 20.0)
        status = node.status()
        assert "could not judge" not in status["reason"]
        assert "report this bug" not in node.log.read_text()


SETTERS: dict[str, tuple[Callable[[Any], None], Callable[[], Any]]] = {
    "trace": (sys.settrace, sys.gettrace),
    "profile": (sys.setprofile, sys.getprofile),
    "trace of threads": (threading.settrace, threading.gettrace),
    "profile of threads": (threading.setprofile, threading.getprofile),
}


@pytest.mark.parametrize("raises", ["nothing", "the check", "the function"])
@pytest.mark.parametrize("name", SETTERS)
def test_functions_of_a_debugger_or_profiler_that_a_check_set_are_taken_off(name: str, raises: str) -> None:
    """Whatever the check does then, and although they raise for each line or call of ours."""
    restore, present = SETTERS[name]
    before = present()
    seen: list[str] = []

    def told(frame: Any, event: str, _argument: Any) -> Any:
        seen.append(event)
        if raises == "the function" and frame.f_code.co_name == "in_one_process":
            raise RuntimeError("of the site")
        return told

    def judge() -> None:
        restore(told)
        if raises == "the check":
            raise LookupError

    try:
        with suppress(LookupError, RuntimeError):
            within(60.0, lambda: in_one_process(judge))
        assert present() is before
        seen.clear()
        threading.Thread(target=len, args=((),)).start()
        os.path.join("a", "b")  # noqa: PTH118
        assert seen == []
    finally:
        restore(before)


@pytest.mark.parametrize("call", ["breakpoint()", "import pdb; pdb.set_trace()"])
def test_a_check_that_calls_a_debugger_is_told_with_its_own_line(
    packages: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The agent has no terminal, so that the debugger gives up; before, the line was that of the debugger."""
    site_package(packages, code=GOOD.format(check=NAME, body=call))
    importlib.invalidate_caches()
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    (site,) = (declared for declared in installed() if declared.name == NAME)
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        result = run_check(ConfiguredCheck(site, site.policy()), healthy(), 10.0)
    where = result.error.removeprefix("RuntimeError: calls a debugger ")
    assert where in ("(site_checks.py:12)", "(site_checks.py:13)")
    assert "correct site_checks" in nothing_found(site, result.error).message
