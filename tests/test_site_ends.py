"""Checks of a site that end the agent's process: the next agents find out which one did, and go on without it."""

from __future__ import annotations

import builtins
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from fakes.running_agent import RunningAgent
from fakes.site_package import GOOD, site_package
from fakes.views import healthy

from nodevet.agent.store.site_marks import ENDED_NAME, RUNNING_NAME, SLOT_BYTES, SLOTS, SiteMarks, known_marks
from nodevet.agent.terminal.exits import UNKNOWN
from nodevet.checks.engine.check_run import CHECK_ERROR, ConfiguredCheck, run_check
from nodevet.checks.engine.registry import discover, installed
from nodevet.checks.engine.site_code import SiteCode, Watch, Work

OURS = {declared.name for declared in discover()}

PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
sys.argv[0] = "nodevet"
from nodevet.agent.entry import main
sys.exit(main())
"""

MORE_TIME = """
from nodevet.checks.engine import check_run
check_run.LONGEST_SECONDS = 10.0
"""

SEGFAULT = "import ctypes; ctypes.string_at(0)"

ENDING: dict[str, tuple[dict[str, Any], str, str]] = {
    "exits": ({"body": "import os; os._exit(1)"}, "site-disk", "judged"),
    "crashes": ({"body": SEGFAULT}, "site-disk", "judged"),
    "aborts at import": ({"code": "import os; os.abort()"}, "site", "was imported"),
    "exits at import": ({"code": "import os; os._exit(0)"}, "site", "was imported"),
}
"""The package, the name that is told of it, and its work when it ended the agent."""


def prepared(directory: Path, **options: Any) -> RunningAgent:
    """Return an agent beside a package of a site, not started."""
    site_package(directory / "packages", **options)
    program = directory / "program.py"
    program.write_text(PROGRAM.format(folder=str(directory / "packages")))
    agent = RunningAgent(directory, '[agent.backends]\nenabled = ["host"]\n')
    agent.program = (str(program),)
    return agent


def dies(agent: RunningAgent) -> str:
    """Start *agent* and wait until it has ended by itself; return what it logged."""
    before = agent.log.stat().st_size if agent.log.exists() else 0
    try:
        agent.start()
    except AssertionError as error:
        assert "the agent ended" in str(error)
    assert agent.process is not None
    agent.process.wait(20.0)
    agent.process = None
    return agent.log.read_text()[before:]


def command(agent: RunningAgent, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command beside the same package, in the directories of *agent*."""
    places = ["--config", str(agent.configuration_file)]
    places += ["--state-dir", str(agent.state_dir), "--runtime-dir", str(agent.runtime_dir)]
    return subprocess.run(
        [sys.executable, "-I", *agent.program, *words, *places], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("name", ENDING)
def test_a_check_that_ends_two_agents_is_not_run_by_the_third(tmp_path: Path, name: str) -> None:
    """It is told like one that raises, and the rest is judged, over more restarts; a change of its file ends that."""
    options, told, work = ENDING[name]
    agent = prepared(tmp_path, **options)
    file = tmp_path / "packages" / "site_checks.py"
    dies(agent)
    words = f"the agent before this one ended while {'check' if work == 'judged' else 'package'} {told} of the site"
    assert f"{words} {work} ({file})" in dies(agent)
    for _ in range(2):
        with agent:
            agent.wait_for(lambda status: status["agent"]["ready"] and len(status["checks"]) > len(OURS))
            finding = agent.wait_for_finding(CHECK_ERROR)
            assert finding["message"].startswith(f"check {told} did not run: ")
            assert f"it ended the agent 2 times in a row while it {work} ({file})" in finding["message"]
            assert finding["message"].endswith("; correct the package or remove it, and restart the agent")
            status = agent.wait_for(lambda status: status["generation"] > 2)
            assert {run["check"] for run in status["checks"] if run["success"]} >= OURS
            assert agent.get("/").startswith("<!doctype html>") or "html" in agent.get("/")
            asked = command(agent, "check")
            assert (asked.returncode, told in asked.stdout) == (UNKNOWN, True)
    assert agent.log.read_text().count("does not run any more: it ended the agent") == 2
    once = command(agent, "check")
    assert (once.returncode, f"while it {work} ({file})" in once.stdout) == (UNKNOWN, True)
    site_package(tmp_path / "packages")
    with agent:
        status = agent.wait_for(lambda status: "site-disk" in {run["check"] for run in status["checks"]})
        agent.wait_for(lambda status: CHECK_ERROR not in {finding["code"] for finding in status["findings"]})


def test_a_kill_during_a_slow_check_condemns_it_not_at_once(tmp_path: Path) -> None:
    """The memory killer may meet it by chance: it is told, runs again, and the end of another agent forgets it."""
    began = tmp_path / "began"
    slow = f"import time; open({str(began)!r}, 'w').close(); time.sleep(1.5)"
    agent = prepared(tmp_path, body=slow)
    program = tmp_path / "program.py"
    program.write_text(f"{MORE_TIME}{program.read_text()}")
    for _ in (False, True):
        agent.start()
        agent.seconds_until(began.exists, 20.0)
        agent.kill()
        began.unlink()
        agent.start()
        agent.wait_for(lambda status: any(run["success"] for run in status["checks"] if run["check"] == "site-disk"))
        assert CHECK_ERROR not in {finding["code"] for finding in agent.status()["findings"]}
        agent.stop()
        began.unlink(missing_ok=True)
    assert agent.log.read_text().count("the agent before this one ended while check site-disk of the site judged") == 2


def test_a_command_that_a_check_ends_leaves_no_mark(tmp_path: Path) -> None:
    """Its end says nothing about an agent: the first start of one runs the check."""
    agent = prepared(tmp_path, body=SEGFAULT)
    for _ in range(3):
        done = command(agent, "check")
        assert done.returncode == -signal.SIGSEGV
        assert 'site_checks.py", line 12 in judge' in done.stderr
    assert not (agent.runtime_dir / RUNNING_NAME).exists()
    assert "Segmentation fault" in dies(agent)
    assert "does not run any more" not in agent.log.read_text()


def code_of(directory: Path) -> SiteCode:
    """Return the check of the package in *directory*."""
    importlib.invalidate_caches()
    (found,) = distributions(path=[str(directory)])
    return SiteCode(Work.JUDGE, "site-disk", "site_checks", found)


def test_a_file_that_a_check_writes_is_no_other_version(tmp_path: Path) -> None:
    """A check that ends each agent would never be refused; its own file counts."""
    folder = site_package(tmp_path / "packages")
    cache, module = folder / "cache.json", folder / "site_checks.py"
    record = folder / "site_checks-1.dist-info" / "RECORD"
    record.write_text("cache.json,,\nsite_checks.py,,\n")
    versions = []
    for file, text in ((cache, "1"), (cache, "22"), (module, GOOD.format(check="site-disk", body="pass; pass"))):
        file.write_text(text)
        versions.append(code_of(folder).version)
    assert versions[0] == versions[1] != versions[2]


BEGIN = """
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
sys.path[:0] = sys.argv[3:]
from nodevet.agent.store.site_marks import SiteMarks
from nodevet.checks.engine.site_code import SiteCode, Watch, Work
marks = SiteMarks(Path(sys.argv[1]), print, sys.argv[2])
(found,) = distributions(path=sys.argv[3:])
with marks.over(SiteCode(Work.JUDGE, "site-disk", "site_checks", found)):
    print("began", flush=True)
    sys.stdin.read()
marks.close()
"""


class Judging:
    """A process that holds the marks of an agent and has begun to judge by a check of a site."""

    def __init__(self, runtime: Path, packages: Path, boot_id: str = "boot") -> None:
        """Start it and wait until it has begun."""
        words = [sys.executable, "-I", "-c", BEGIN, str(runtime), boot_id, str(packages)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.told = ""
        while not self.told.endswith("began\n"):
            self.told += self.process.stdout.readline()

    def end(self, number: signal.Signals | None = None) -> None:
        """End it by the signal *number*, or let the check return."""
        assert self.process.stdin is not None
        if number is not None:
            self.process.send_signal(number)
        self.process.stdin.close()
        self.process.wait(20.0)
        assert self.process.stdout is not None
        self.process.stdout.close()


def refused(runtime: Path, code: SiteCode, boot_id: str = "boot", log: Callable[[str], None] = print) -> str:
    """Return why the next agent in *runtime* does not run *code*; empty where it does."""
    with closing(SiteMarks(runtime, log, boot_id)) as marks:
        return marks.refusal(code)


def ended(runtime: Path, code: SiteCode, times: int, boot_id: str = "boot") -> None:
    """Let so many processes end in the middle of *code*."""
    for _ in range(times):
        child = os.fork()
        if child == 0:
            try:
                with SiteMarks(runtime, lambda _line: None, boot_id).over(code):
                    os._exit(1)
            finally:
                os._exit(2)
        os.waitpid(child, 0)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path of imports."""
    folder = site_package(tmp_path / "packages")
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("site_checks", None)


class Noting(Watch):
    """Notes what code of the site runs, and refuses the work and name of *refuses*."""

    def __init__(self, *refuses: tuple[Work, str]) -> None:
        """Begin with nothing."""
        self._refuses = refuses
        self.runs: list[tuple[Work, str]] = []
        self.ran: list[tuple[Work, str]] = []

    def refusal(self, code: SiteCode) -> str:
        """Refuse it by its work and name."""
        return "it ended the agent" if (code.work, code.name) in self._refuses else ""

    @contextmanager
    def over(self, code: SiteCode) -> Iterator[None]:
        """Note it while it runs."""
        self.runs.append((code.work, code.name))
        yield
        self.ran.append(self.runs.pop())


def test_a_watch_knows_each_piece_of_code_of_a_site_while_it_runs(packages: Path) -> None:
    """It is told once of the import, and of each judgement, of nothing that is ours."""
    watch = Noting()
    note = "import builtins; builtins.noted_works.append([work for work, _ in builtins.noted_watch.runs])"
    site_package(packages, code=f"{note}\n{GOOD.format(check='site-disk', body=note)}")
    importlib.invalidate_caches()
    works: list[list[Work]] = []
    builtins.__dict__.update(noted_watch=watch, noted_works=works)
    try:
        for _ in range(2):
            checks = {declared.name: declared for declared in installed(watch)}
            for declared in (checks["site-disk"], checks["thermal"]):
                assert not run_check(ConfiguredCheck(declared, declared.policy()), healthy()).error
    finally:
        del builtins.__dict__["noted_watch"], builtins.__dict__["noted_works"]
    assert works == [[Work.IMPORT], [Work.JUDGE], [Work.JUDGE]]
    assert [work for work, _ in watch.ran] == [Work.IMPORT, Work.JUDGE, Work.JUDGE]
    assert not watch.runs


FORKED = "import builtins, os; builtins.forked.append(os.fork())"
FORKS: dict[str, dict[str, Any]] = {
    "returns": {"body": FORKED},
    "raises": {"body": f"{FORKED}; 1 / builtins.forked[-1]"},
    "is imported": {"code": f"{FORKED}\n{GOOD.format(check='site-disk', body='pass')}"},
}


@pytest.mark.parametrize("way", FORKS)
def test_a_child_that_code_of_a_site_forked_ends_where_the_code_does(packages: Path, way: str) -> None:
    """It would judge on as a second agent and fork again in each round, until the machine has no memory left."""
    site_package(packages, **FORKS[way])
    importlib.invalidate_caches()
    here, children = os.getpid(), list[int]()
    builtins.__dict__["forked"] = children
    try:
        (declared,) = (declared for declared in installed() if declared.name == "site-disk")
        ran = run_check(ConfiguredCheck(declared, declared.policy()), healthy())
    finally:
        del builtins.__dict__["forked"]
        if os.getpid() != here:
            os._exit(7)
    assert [finding.code for finding in ran.findings] == ["site-disk.fine"]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [1]


def test_what_a_watch_refuses_to_import_nothing_in_the_process_imports(packages: Path, tmp_path: Path) -> None:
    """A page that lists the rules of all checks asks for them without the watch."""
    imported = tmp_path / "imported"
    site_package(packages, code=f"open({str(imported)!r}, 'w').close()\n{GOOD.format(check='site-disk', body='pass')}")
    importlib.invalidate_caches()
    for checks in (installed(Noting((Work.IMPORT, "site"))), installed()):
        (site,) = (declared for declared in checks if declared.broken)
        words = "site = site_checks of a package of the site is not imported: it ended the agent"
        assert site.broken == f"{words}; correct the package or remove it, and restart the agent"
        assert not imported.exists()
    assert not any(declared.broken for declared in installed(Noting()))


def test_a_check_that_a_watch_refuses_does_not_judge_and_the_others_of_its_module_do(packages: Path) -> None:
    """It keeps its policy, so that its settings are still understood."""
    code = GOOD.format(check="site-disk", body="1 / 0")
    site_package(packages, code=code + GOOD.format(check="site-fan", body="pass").replace("judge", "judge_fan"))
    importlib.invalidate_caches()
    disk, fan = (each for each in installed(Noting((Work.JUDGE, "site-disk"))) if each.name.startswith("site-"))
    assert run_check(ConfiguredCheck(disk, disk.policy()), healthy()).error.startswith("it ended the agent; correct")
    assert disk.policy.__struct_fields__ == ("limit",)
    assert not run_check(ConfiguredCheck(fan, fan.policy()), healthy()).error


LEAVES = {
    "exit": ("import sys; sys.exit('no disk')", "SystemExit: no disk"),
    "through a library": ("import argparse; argparse.ArgumentParser().exit(3)", "SystemExit: 3"),
}


@pytest.mark.parametrize("name", LEAVES)
def test_a_check_that_raises_system_exit_is_told_with_its_own_line(packages: Path, name: str) -> None:
    """Before, the line was ours, which caught it."""
    body, words = LEAVES[name]
    site_package(packages, body=body)
    importlib.invalidate_caches()
    (site,) = (declared for declared in installed() if declared.name == "site-disk")
    ran = run_check(ConfiguredCheck(site, site.policy()), healthy())
    assert ran.error == f"RuntimeError: raised {words} (site_checks.py:12)"


def test_a_package_that_raises_system_exit_is_told_with_its_own_line(packages: Path) -> None:
    """The same at its import."""
    site_package(packages, code="x = 1\nimport argparse\nargparse.ArgumentParser().exit(3)\n")
    importlib.invalidate_caches()
    (site,) = (declared for declared in installed() if declared.broken)
    assert "SystemExit: 3 (site_checks.py:3)" in site.broken


def test_ends_that_are_not_in_a_row_refuse_nothing(packages: Path, tmp_path: Path) -> None:
    """An agent that ended elsewhere in between begins the count anew."""
    code, told = code_of(packages), list[str]()
    for _ in range(3):
        ended(tmp_path / "run", code, 1)
        with closing(SiteMarks(tmp_path / "run", told.append, "boot")) as marks, marks.over(code):
            pass
    assert not refused(tmp_path / "run", code, log=told.append)
    assert len(told) == 3
    ended(tmp_path / "run", code, 2)
    assert refused(tmp_path / "run", code, log=told.append)


def test_another_boot_knows_of_no_end(packages: Path, tmp_path: Path) -> None:
    """A machine that lost its power in the middle of a check says nothing about the check."""
    code = code_of(packages)
    ended(tmp_path / "run", code, 2)
    assert refused(tmp_path / "run", code, "boot")
    assert not refused(tmp_path / "run", code, "another")
    ended(tmp_path / "run", code, 1, "third")
    told = list[str]()
    assert not refused(tmp_path / "run", code, "fourth", told.append)
    assert not told


def test_another_process_does_not_take_a_running_check_for_an_end(packages: Path, tmp_path: Path) -> None:
    """Neither a second agent in the same directory nor a command counts or strikes out the mark of a living agent."""
    code, told = code_of(packages), list[str]()
    ended(tmp_path / "run", code, 1)
    living = Judging(tmp_path / "run", packages)
    try:
        for _ in range(2):
            with closing(SiteMarks(tmp_path / "run", told.append, "boot")) as second, second.over(code):
                assert not second.refusal(code)
        assert not told
    finally:
        living.end(signal.SIGKILL)
    assert refused(tmp_path / "run", code, log=told.append)
    assert not refused(tmp_path / "other", code, log=told.append)


CHANGES: dict[str, Callable[[Path], object]] = {
    "touched": lambda folder: os.utime(folder / "site_checks.py", (1, 1)),
    "another version": lambda folder: (folder / "site_checks-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: site-checks\nVersion: 2\n"
    ),
    "another file of the package": lambda folder: (folder / "site_library.so").write_text("mended"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_package_lets_it_run_again(packages: Path, tmp_path: Path, name: str) -> None:
    """As the message says, with the next start of the agent; until then the module that is imported is the old one."""
    code = code_of(packages)
    (packages / "site_library.so").write_text("broken")
    (packages / "site_checks-1.dist-info" / "RECORD").write_text("site_checks.py,,\nsite_library.so,,\n")
    ended(tmp_path / "run", code, 2)
    present = SiteMarks(tmp_path / "run", print, "boot")
    assert present.refusal(code)
    CHANGES[name](packages)
    changed = code_of(packages)
    assert present.refusal(changed)
    present.close()
    assert not refused(tmp_path / "run", changed, "boot")


def is_marked(file: Path) -> bool:
    """Return whether a name stands in *file*, which another process reads: to close it here would give up its lock."""
    content = subprocess.run(["/bin/cat", str(file)], stdout=subprocess.PIPE, check=True).stdout
    return any(content[start : start + 1] == b"{" for start in range(0, len(content), SLOT_BYTES))


def test_the_file_of_marks_comes_back_where_it_was_removed(packages: Path, tmp_path: Path) -> None:
    """As a cleaner of temporary files does: before each round, and a file that is there keeps its lock."""
    code, file = code_of(packages), tmp_path / "run" / RUNNING_NAME
    with closing(SiteMarks(tmp_path / "run", print, "boot")) as marks:
        with marks.over(code):
            assert is_marked(file)
        file.unlink()
        for _ in range(2):
            marks.restore()
            ended(tmp_path / "run", code, 1)
        assert not is_marked(file)
        with marks.over(code):
            assert is_marked(file)
        assert not is_marked(file)
    assert not refused(tmp_path / "run", code)


TROUBLES: dict[str, Callable[[SiteCode, Path], tuple[SiteCode, Path]]] = {
    "no directory": lambda code, run: (code, Path("/proc/nowhere")),
    "a name of no file": lambda code, run: (code, Path("/\0\ud800")),
    "half a letter": lambda code, run: (code._replace(name="\ud800"), run),
    "a long name": lambda code, run: (code._replace(name="x" * 10_000), run),
    "no module": lambda code, run: (code._replace(module="no_such.module"), run),
    "no distribution": lambda code, run: (code._replace(distribution=None), run),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_no_trouble_with_its_mark_costs_a_judgement(packages: Path, tmp_path: Path, name: str) -> None:
    """Nor does one of more pieces of code at a time than there are slots."""
    code, runtime = TROUBLES[name](code_of(packages), tmp_path / "run")
    judged = 0
    with closing(SiteMarks(runtime, print, "boot")) as marks, ExitStack() as stack:
        for _ in range(SLOTS + 1):
            stack.enter_context(marks.over(code))
            judged += 1
        assert not marks.refusal(code)
    assert judged == SLOTS + 1
    assert not refused(runtime, code)


def test_what_cannot_be_read_of_ends_refuses_nothing(packages: Path, tmp_path: Path) -> None:
    """It is of another version, or damaged: the code runs, and is counted anew."""
    code = code_of(packages)
    ended(tmp_path / "run", code, 2)
    assert known_marks(tmp_path / "run").refusal(code) == ""  # nobody recorded the second end yet
    assert refused(tmp_path / "run", code)
    for content in (b"", b"[1]", b"\xff", b'[{"count": 2, "mark": {"work": "slept"}}]'):
        (tmp_path / "run" / ENDED_NAME).write_bytes(content)
        (tmp_path / "run" / RUNNING_NAME).write_bytes(content * 5000)
        assert not refused(tmp_path / "run", code)
