"""Checks of a site's own package: whatever such a package does wrong costs its checks, and nothing beside them."""

from __future__ import annotations

import asyncio
import importlib
import io
import itertools
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import msgspec
import pytest
from fakes.clocks import SteppedClock
from fakes.privileges import NO_ROOT
from fakes.running_agent import RunningAgent
from fakes.site_package import GOOD, site_package
from fakes.views import at, healthy

from nodevet.agent.cli import main
from nodevet.agent.config.load import load_configuration
from nodevet.agent.daemon.assembly import configure
from nodevet.agent.terminal.exits import OK
from nodevet.checks.core.model import WHOLE, AgentInfo, Finding, Outcome, Part, PartKind, Snapshot, State
from nodevet.checks.core.overrun import Overrun, within
from nodevet.checks.engine import check_run, registry
from nodevet.checks.engine.check_run import CHECK_ERROR, LONGEST_REST_SECONDS, ConfiguredCheck, run_check
from nodevet.checks.engine.engine import Engine
from nodevet.checks.engine.judging import Rule, number_of, observations
from nodevet.checks.engine.registry import Check, discover, installed
from nodevet.checks.engine.view import View
from nodevet.checks.system.signals import SignalPipe, undisturbed

OURS = {declared.name for declared in discover()}
INFO = AgentInfo(version="0", started=at(), interval_seconds=10, ready=True)

NO_DEFAULT = GOOD.format(check="site-disk", body="pass").replace("limit: float = 1.0", "limit: float")
CLASH = GOOD.format(check="site-disk", body="pass").replace("limit: float", "mode: float")
NO_FILE = GOOD.format(check="site-disk", body="pass").replace("limit: float = 1.0", "limit: object = object()")

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "raises": ({"code": "1 / 0"}, "ZeroDivisionError: division by zero (site_checks.py:1)"),
    "misspelt": ({"code": "def"}, "SyntaxError"),
    "skips": ({"code": "class Skipped(BaseException): pass\nraise Skipped('no disk')"}, "Skipped: no disk"),
    "ends": ({"code": "import sys; sys.exit(0)"}, "it ends its process when it is imported"),
    "lacks": ({"code": "import no_such_library"}, "ModuleNotFoundError: No module named 'no_such_library'"),
    "another_version": ({"code": "from nodevet.checks.core.model import NoSuchName"}, "ImportError"),
    "gone": ({"entry": "site = no_such_module"}, "ModuleNotFoundError: No module named 'no_such_module'"),
    "function": ({"entry": "site = site_checks:judge"}, "it names a function, expected a module with checks in it"),
    "empty": ({"code": "x = 1"}, "the module declares no check of its own"),
    "name_of_ours": (
        {"check": "thermal"},
        "check thermal is declared in nodevet.checks.health.thermal and site_checks",
    ),
    "entry_of_ours": ({"code": "1 / 0", "entry": "thermal = site_checks"}, "ZeroDivisionError"),
    "no_default": ({"code": NO_DEFAULT}, "TypeError: Missing required argument 'limit'"),
    "takes_a_switch": ({"code": CLASH}, "its policy must not name a field mode"),
    "no_file_holds_it": ({"code": NO_FILE}, "object"),
    "entry_points": (
        {"points": b"[nodevet.checks]\n\xff\xfe"},
        "the entry points of package site-checks cannot be read",
    ),
}
"""What may be wrong with a package, and the words that tell it."""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path of imports."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("site_checks", None)


def judged(engine: Engine, clock: SteppedClock, seconds: float = 10.0) -> Snapshot:
    """Return the next snapshot of *engine*."""
    clock.advance(seconds)
    return engine.evaluate(INFO).snapshot


def engine_of(clock: SteppedClock, configuration: Path | None = None) -> Engine:
    """Return an engine with all checks that are installed now, by the file *configuration*."""
    importlib.invalidate_caches()
    settings = load_configuration(configuration, installed(), environment={})
    return Engine(configure(installed(), settings), node="n", clock=clock.instant)


@pytest.mark.parametrize("options", [{}, BAD["entry_points"][0]], ids=["whole", "unreadable"])
def test_a_package_that_comes_while_settings_are_read_waits_for_the_next_reading(
    packages: Path, options: dict[str, Any]
) -> None:
    """It is listed with the settings first and with the checks after: what came between has no settings yet."""
    settings = load_configuration(None, installed(), environment={})
    site_package(packages, **options)
    importlib.invalidate_caches()
    found = installed()
    assert len(found) > len(settings.checks)
    assert {configured.check.name for configured in configure(found, settings)} == OURS


@pytest.mark.parametrize("name", BAD)
def test_a_package_that_cannot_be_had_costs_its_own_checks(
    packages: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told as a check that cannot run, its tables in the configuration are no mistake, and it ends."""
    options, words = BAD[name]
    site_package(packages, **options)
    file = packages / "nodevet.toml"
    file.write_text("[checks.site-disk]\nlimit = 3.0\n[checks.site]\nlimit = 3.0\n")
    clock = SteppedClock()
    engine = engine_of(clock, file)
    found = installed()
    (broken,) = (declared for declared in found if declared.broken)
    assert {declared.name for declared in found} == OURS | {broken.name}
    assert words in broken.broken
    judged(engine, clock)
    snapshot = judged(engine, clock)
    (error,) = (finding for finding in snapshot.findings if finding.code == CHECK_ERROR)
    assert error.message.startswith(f"check {broken.name} did not run: ")
    assert words in error.message
    assert error.message.endswith("correct the package or remove it, and restart the agent")
    assert (error.outcome, error.hard) == (Outcome.UNMEASURED, False)
    assert snapshot.verdict.state is State.UNKNOWN
    assert not snapshot.verdict.hard
    assert {run.check for run in snapshot.checks if run.success} == OURS
    for command in (["explain", "device.lost"], ["explain", broken.name], ["check", "--list"], ["config", "show"]):
        assert main(command) == OK
    assert words in capsys.readouterr().out

    sys.modules.pop("site_checks", None)
    site_package(packages)
    after = engine_of(clock, None)
    after.restore(engine.memory())
    snapshot = judged(after, clock)
    assert CHECK_ERROR not in {episode.key.code for episode in snapshot.episodes}
    assert "site-disk" in {run.check for run in snapshot.checks if run.success}


def test_a_check_that_is_not_asked_any_more_leaves_no_error_behind(packages: Path) -> None:
    """Its package is removed, or it is switched off: before, the node was unknown until somebody acknowledged it."""
    site_package(packages, body="1 / 0")
    clock = SteppedClock()
    engine = engine_of(clock)
    assert CHECK_ERROR in {episode.key.code for episode in judged(engine, clock).episodes}
    file = packages / "nodevet.toml"
    file.write_text("[checks.site-disk]\nenabled = false\n")
    after = engine_of(clock, file)
    after.restore(engine.memory())
    assert CHECK_ERROR not in {episode.key.code for episode in judged(after, clock).episodes}


@pytest.mark.parametrize("asked", ["readings", "reading", "number"])
def test_a_check_of_a_quantity_that_does_not_exist_is_not_green(packages: Path, asked: str) -> None:
    """A typing error, or a name of another version: before, it found nothing to look at, and the node was ok."""
    for name, state in (("uptime_second", State.UNKNOWN), ("uptime_seconds", State.OK)):
        sys.modules.pop("site_checks", None)
        site_package(packages, body=f"view.{asked}('node', '{name}')")
        snapshot = judged(engine_of(SteppedClock()), SteppedClock())
        errors = [finding.message for finding in snapshot.findings if finding.code == CHECK_ERROR]
        assert [f"no quantity is called '{name}'" in words for words in errors] == [True] * (state is not State.OK)
        assert (snapshot.verdict.state is State.UNKNOWN) >= (state is State.UNKNOWN)


SITE = Rule(check="site", code="site.x")
UNANSWERED: dict[str, tuple[Callable[[View], object], str]] = {
    "no growth is kept": (
        lambda view: [
            SITE.ungrown(observation)
            for observation in observations(view, view.devices[0], "remapped_rows_uncorrectable")
        ],
        "no growth of remapped_rows_uncorrectable is kept",
    ),
    "grew": (
        lambda view: observations(view, view.devices[0], "energy_joules")[0].grew,
        "no growth of energy_joules is kept",
    ),
    "rate of no counter": (
        lambda view: observations(view, view.devices[0], "bad_pages_retired")[0].per_second,
        "no growth of bad_pages_retired is kept",
    ),
    "no part": (
        lambda view: view.number(view.devices[0].id, "temperature_celsius"),
        "temperature_celsius is of a sensor, not of a device: name the part",
    ),
    "other part": (
        lambda view: number_of(observations(view, view.devices[0], "temperature_celsius"), WHOLE),
        "temperature_celsius is of a sensor, not of a device: name the part",
    ),
}


@pytest.mark.parametrize("name", UNANSWERED)
def test_a_check_that_asks_what_nothing_can_answer_is_not_green(name: str) -> None:
    """The growth of what none is kept of, a part that no reading has: before, nothing was ever wrong with it."""
    ask, words = UNANSWERED[name]

    def judge(view: View, _policy: Any) -> Iterator[Finding]:
        ask(view)
        yield Finding(check="site", code="site.fine", outcome=Outcome.PASS, message="fine")

    energy = ("energy_joules", Part(PartKind.POWER_SCOPE, "device"))
    view = healthy({("remapped_rows_uncorrectable", WHOLE): 3, ("bad_pages_retired", WHOLE): 3, energy: 3.0})
    policy = type("Policy", (msgspec.Struct,), {})
    declared = Check(name="site", summary="", judge=judge, policy=policy, module="site_checks")
    ran = run_check(ConfiguredCheck(declared, policy()), msgspec.structs.replace(view, growth={}))
    told = [ran.error, *(finding.message for finding in ran.findings if finding.outcome is Outcome.UNMEASURED)]
    assert any(words in line for line in told)


def test_a_typing_error_in_a_table_is_refused_where_every_package_can_be_had(packages: Path) -> None:
    """As ever."""
    site_package(packages)
    file = packages / "nodevet.toml"
    file.write_text("[checks.site-dusk]\nlimit = 3.0\n")
    with pytest.raises(Exception, match="unknown check, did you mean site-disk"):
        engine_of(SteppedClock(), file)


def for_ever(_view: View, _policy: Any) -> Iterator[Finding]:
    """Try again and again, whatever is raised."""
    while True:
        with suppress(Exception):
            time.sleep(3600)
    yield


def busy(_view: View, _policy: Any) -> Iterator[Finding]:
    """Turn without end."""
    while True:
        pass
    yield


def findings_without_end(_view: View, _policy: Any) -> Iterator[Finding]:
    """Find one thing after the other."""
    while True:
        yield Finding(check="site", code="site.x", outcome=Outcome.PASS, message="x")


class NoPolicy(msgspec.Struct, frozen=True):
    """Nothing to set."""


@pytest.mark.parametrize("judge", [for_ever, busy])
def test_a_check_of_a_site_that_does_not_end_is_interrupted(judge: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told and rests ever longer, and every other check judges."""
    monkeypatch.setattr(check_run, "LONGEST_SECONDS", 0.1)
    calls: list[float] = []

    def counted(view: View, policy: Any) -> Iterator[Finding]:
        calls.append(view.now.boottime_ns / 1e9)
        return iter(judge(view, policy))

    site = Check(name="a-site", summary="x", judge=counted, policy=NoPolicy, module="site_checks")
    clock = SteppedClock()
    engine = Engine(
        [ConfiguredCheck(site, NoPolicy()), *(ConfiguredCheck(own, own.policy()) for own in discover())],
        node="n",
        clock=clock.instant,
    )
    for _ in range(200):
        snapshot = judged(engine, clock)
        (error,) = (finding for finding in snapshot.findings if finding.code == CHECK_ERROR)
        words = "it did not end in time and was interrupted (the checks of a site have 0.1 s together)"
        assert f"check a-site did not run: {words}" in error.message
        assert {run.check for run in snapshot.checks if run.success} == OURS
        assert len(calls) <= 7
    apart = [round(after - before) for before, after in itertools.pairwise(calls)]
    assert apart == [30, 60, 120, 240, 480, 600]
    assert LONGEST_REST_SECONDS == 600
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_check_of_a_site_that_finds_without_end_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told by its number."""
    monkeypatch.setattr(check_run, "MOST_FINDINGS", 10)
    site = Check(name="a-site", summary="x", judge=findings_without_end, policy=NoPolicy, module="site_checks")
    ran = run_check(ConfiguredCheck(site, NoPolicy()), healthy())
    assert ran.error.startswith("RuntimeError: yielded more than 10 findings")
    assert not ran.overran


def test_a_check_that_ends_in_time_again_is_asked_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is over with its first good answer, and the next one begins at the shortest."""
    monkeypatch.setattr(check_run, "LONGEST_SECONDS", 0.05)
    slow = [True]

    def judge(view: View, policy: Any) -> Iterator[Finding]:
        return iter(busy(view, policy) if slow[0] else ())

    site = Check(name="a-site", summary="x", judge=judge, policy=NoPolicy, module="site_checks")
    clock = SteppedClock()
    engine = Engine([ConfiguredCheck(site, NoPolicy())], node="n", clock=clock.instant)
    judged(engine, clock)
    slow[0] = False
    judged(engine, clock, 29.0)
    assert not judged(engine, clock, 0.5).checks[0].success
    assert judged(engine, clock, 0.5).checks[0].success
    assert CHECK_ERROR not in {episode.key.code for episode in judged(engine, clock, 1.0).episodes}


def swallows(_view: View, _policy: Any) -> Iterator[Finding]:
    """Have a finalizer that does not end: what is raised in one reaches nobody."""

    class Closes:
        def __del__(self) -> None:
            busy(_view, _policy).__next__()

    Closes()
    yield Finding(check="site", code="site.x", outcome=Outcome.PASS, message="x")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interruption_that_a_finalizer_kept_to_itself_counts() -> None:
    """Before, such a check held the loop in each round."""
    site = Check(name="a-site", summary="x", judge=swallows, policy=NoPolicy, module="site_checks")
    assert run_check(ConfiguredCheck(site, NoPolicy()), healthy(), 0.05).overran


def cancelled(_view: View, _policy: Any) -> Iterator[Finding]:
    """Raise what is no Exception."""
    raise asyncio.CancelledError("a server did not answer")


def test_what_is_no_exception_costs_its_check_too() -> None:
    """Before, it ended the agent with a traceback that called it a bug."""
    site = Check(name="a-site", summary="x", judge=cancelled, policy=NoPolicy, module="site_checks")
    assert run_check(ConfiguredCheck(site, NoPolicy()), healthy()).error.startswith(
        "CancelledError: a server did not answer"
    )


def test_checks_of_a_site_hold_the_loop_for_no_longer_together_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those behind one that does not end are asked in the next round, and their events wait."""
    monkeypatch.setattr(check_run, "LONGEST_SECONDS", 0.2)
    endless, fine = (
        Check(name=name, summary="x", judge=judge, policy=NoPolicy, module="site_checks")
        for name, judge in (("a-site", busy), ("b-site", lambda _view, _policy: ()))
    )
    clock = SteppedClock()
    engine = Engine(
        [ConfiguredCheck(endless, NoPolicy()), ConfiguredCheck(fine, NoPolicy())], node="n", clock=clock.instant
    )
    first = judged(engine, clock)
    assert [run.success for run in first.checks] == [False, False]
    (told,) = (finding.message for finding in first.findings if finding.check == "b-site")
    assert told == "check b-site did not run: it did not run: another custom check used the time of all"
    assert [run.success for run in judged(engine, clock).checks] == [False, True]


def test_a_signal_that_ends_the_agent_ends_a_check_of_a_site_too() -> None:
    """It is heard in the next turn of the loop; one that only reloads, and a verdict of hours, wait for the check."""
    heard: list[int] = []
    with selectors.DefaultSelector() as selector, SignalPipe(selector, heard.append):

        def told(number: signal.Signals) -> str:
            os.kill(os.getpid(), number)
            return "done"

        for number in (signal.SIGTERM, signal.SIGINT):
            with pytest.raises(Overrun, match="the agent is to end"):
                within(60.0, partial(told, number))
        assert within(60.0, partial(told, signal.SIGHUP)) == "done"
        with undisturbed() as passed:
            assert within(60.0, partial(told, signal.SIGTERM)) == "done"
        assert passed.count == 1
        for key, mask in selector.select(0):
            key.data(mask)
    assert sorted(heard) == sorted((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))


def test_a_package_whose_import_does_not_end_costs_its_own_checks(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for once; before, the agent never started."""
    monkeypatch.setattr(registry, "IMPORT_SECONDS", 0.1)
    site_package(packages, code="import time\ntime.sleep(3600)")
    importlib.invalidate_caches()
    for _ in range(2):
        (broken,) = (declared for declared in installed() if declared.broken)
        assert "its import did not end within 0.1 s and was interrupted" in broken.broken
        monkeypatch.setattr(registry, "within", None)


def test_our_own_checks_are_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still for long says nothing about them."""
    monkeypatch.setattr(check_run, "within", None)
    own = discover()[0]
    assert not run_check(ConfiguredCheck(own, own.policy()), healthy()).error


def test_what_ends_in_time_is_returned_and_no_alarm_is_left() -> None:
    """Nor is its handler; what it raises is raised."""
    before = signal.getsignal(signal.SIGALRM)
    assert within(5.0, lambda: "done") == "done"
    with pytest.raises(ZeroDivisionError):
        within(5.0, lambda: 1 / 0)
    with pytest.raises(Overrun):
        within(0.05, lambda: time.sleep(60))
    left = signal.setitimer(signal.ITIMER_REAL, 0.0)  # an alarm that is left would end the tests' own process
    assert left == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
from nodevet.checks.engine import check_run
check_run.LONGEST_SECONDS = 0.5
from nodevet.agent.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("options", "words"), [({"code": "1 / 0"}, "site_checks"), ({"body": "while True: pass"}, "did not end")]
)
def test_an_agent_goes_on_beside_a_package_that_is_broken(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    """It starts, judges round after round, reloads and ends on time."""
    site_package(tmp_path / "packages", **options)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(folder=str(tmp_path / "packages")))
    agent = RunningAgent(tmp_path, '[agent.backends]\nenabled = ["host"]\n')
    agent.program = (str(program),)
    with agent:
        finding = agent.wait_for_finding(CHECK_ERROR)
        assert words in finding["message"]
        status = agent.status()
        agent.wait_for(lambda later: later["generation"] > status["generation"] + 2)
        assert {run["check"] for run in status["checks"] if run["success"]} >= OURS
        assert agent.process is not None
        agent.process.send_signal(signal.SIGHUP)
        agent.seconds_until(lambda: "reloaded" in agent.log.read_text(), 10.0)
        assert agent.stop() < 4.0


def test_an_agent_that_its_watchdog_ends_says_where_it_stood(tmp_path: Path) -> None:
    """No signal reaches a check that loops in a library's own code: systemd ends the agent, by SIGABRT."""
    began = tmp_path / "began"
    body = f"open({str(began)!r}, 'w').close(); all(__import__('itertools').repeat(1))"
    site_package(tmp_path / "packages", body=body)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(folder=str(tmp_path / "packages")))
    agent = RunningAgent(tmp_path, '[agent.backends]\nenabled = ["host"]\n')
    agent.program = (str(program),)
    with agent:
        process = agent.process
        assert process is not None
        agent.seconds_until(began.exists, 20.0)
        process.send_signal(signal.SIGABRT)
        assert process.wait(10.0) == -signal.SIGABRT
    assert 'site_checks.py", line 12 in judge' in agent.log.read_text()


LEAVES = {
    "sample_processor_time": """
signal.signal(signal.SIGPROF, lambda *_: None)
signal.setitimer(signal.ITIMER_PROF, 0.01, 0.01)
""",
    "sample_own_time": "signal.setitimer(signal.ITIMER_VIRTUAL, 0.01, 0.01)",
    "watch_a_pipe": """
reading, writing = os.pipe()
fcntl.fcntl(reading, fcntl.F_SETOWN, os.getpid())
fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
threading.Timer(0.02, os.write, (writing, b"x")).start()
""",
    "send_later": """
signal.signal(signal.SIGRTMIN + 6, lambda *_: None)
threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGRTMIN + 6)).start()
""",
    "ask_for_a_traceback": "faulthandler.dump_traceback_later(0.05, exit=True)",
}
"""What a check leaves behind: profilers, a pipe with O_ASYNC, a thread that sends a signal, faulthandler."""

LEFT_BEHIND = """
import faulthandler, fcntl, os, signal, sys, threading, time
from nodevet.checks.core.overrun import within
within(60.0, lambda: exec(sys.argv[1]))
until = time.monotonic() + 0.2
while time.monotonic() < until:
    sum(range(1000))
"""


@pytest.mark.parametrize("leave", LEAVES)
def test_a_signal_that_a_check_of_a_site_left_behind_ends_nothing(leave: str) -> None:
    """It arrives when the check is over and its handler undone, where the default action would end the agent."""
    command = [sys.executable, "-c", LEFT_BEHIND, LEAVES[leave]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason=NO_ROOT)
def test_the_user_that_a_check_of_a_site_became_is_undone() -> None:
    """The state file could not be written any more, and no reader started."""
    before = os.geteuid(), os.getegid()

    def judge() -> None:
        os.setegid(65534)
        os.seteuid(65534)
        raise LookupError

    with suppress(LookupError):
        within(60.0, judge)
    assert (os.geteuid(), os.getegid()) == before


@pytest.mark.parametrize("timer", [signal.ITIMER_PROF, signal.ITIMER_VIRTUAL])
def test_a_timer_that_a_check_of_a_site_left_on_is_stopped(timer: int) -> None:
    """It would wake the agent a hundred times a second."""
    within(60.0, lambda: signal.setitimer(timer, 30.0, 30.0))
    assert signal.getitimer(timer) == (0.0, 0.0)


def test_what_a_check_of_a_site_sets_for_the_whole_process_is_undone() -> None:
    """A time-out for each socket leaves no channel to a reader, and SIGCHLD that is ignored no end of one."""
    before = socket.getdefaulttimeout(), signal.getsignal(signal.SIGCHLD)

    def judge() -> None:
        socket.setdefaulttimeout(2.0)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        raise LookupError

    try:
        with suppress(LookupError):
            within(60.0, judge)
        assert (socket.getdefaulttimeout(), signal.getsignal(signal.SIGCHLD)) == before
    finally:
        socket.setdefaulttimeout(before[0])
        signal.signal(signal.SIGCHLD, before[1])


@pytest.mark.parametrize("number", [signal.SIGPIPE, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM, signal.SIGTERM])
@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler])
def test_how_a_check_of_a_site_takes_a_signal_is_undone(number: signal.Signals, handler: Any) -> None:
    """Scripts often begin with SIGPIPE as programs in C have it: whoever hung up on the agent ended it."""
    before = signal.getsignal(number)
    try:
        within(60.0, partial(signal.signal, number, handler))
        assert signal.getsignal(number) == before
    finally:
        signal.signal(number, before)


def test_what_a_check_of_a_site_blocks_and_hears_of_signals_is_undone() -> None:
    """The loop of asyncio takes the descriptor that tells of a signal, and leaves none: SIGTERM was not told."""
    receiver, sender = socket.socketpair()
    sender.setblocking(False)

    async def listen() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, print)

    def judge() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
        asyncio.run(listen())

    blocked, told = signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.set_wakeup_fd(sender.fileno())
    try:
        within(60.0, judge)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked
        assert signal.set_wakeup_fd(told) == sender.fileno()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.set_wakeup_fd(told)
        receiver.close()
        sender.close()


def test_a_module_of_a_site_that_is_a_script_too_leaves_the_agent_alive(tmp_path: Path) -> None:
    """Its import sets SIGPIPE to what ends a process, and somebody asks the agent and hangs up (Ctrl-C)."""
    code = "import signal\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
    site_package(tmp_path / "packages", code=code + GOOD.format(check="site-disk", body="pass"))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(folder=str(tmp_path / "packages")))
    agent = RunningAgent(tmp_path, '[agent.backends]\nenabled = ["host"]\n')
    agent.program = (str(program),)
    with agent:
        for _ in range(20):
            with socket.socket(socket.AF_UNIX) as asker:
                asker.connect(str(agent.runtime_dir / "control.socket"))
                asker.sendall(b'{"verb":"status"}\n')
        agent.wait_for(lambda status: any(entry["check"] == "site-disk" for entry in status["checks"]))
        assert agent.stop() < 4.0


CHANGED: dict[str, str | None] = {
    "LD_LIBRARY_PATH": "/somewhere",
    "ROCM_HOME": None,
    "NODEVET_NEW": "new",
}


def test_what_a_check_of_a_site_changes_in_the_environment_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader is started with it: without LD_LIBRARY_PATH or ROCM_HOME some find no library of the driver."""
    monkeypatch.setenv("ROCM_HOME", "/opt/rocm")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/driver")
    monkeypatch.delenv("NODEVET_NEW", raising=False)
    before = dict(os.environ)

    def judge() -> None:
        os.environ.clear()
        os.environ |= {name: text for name, text in CHANGED.items() if text is not None}

    within(60.0, judge)
    assert dict(os.environ) == before


class Handed(NamedTuple):
    """What a process hands on to its children, opens files by, or prints to."""

    folder: Path
    mask: int
    limits: list[tuple[int, int]]
    filters: list[Any]
    output: TextIO


def test_what_a_check_of_a_site_changes_for_files_children_and_output_is_undone(tmp_path: Path) -> None:
    """Its folder, the mode of new files, a limit that it means for a child of its own, warnings as errors."""

    def judge() -> None:
        os.chdir(tmp_path)
        os.umask(0o777)
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        warnings.simplefilter("error")
        sys.stdout = io.StringIO()

    def present() -> Handed:
        mask = os.umask(0o77)
        os.umask(mask)
        limits = [resource.getrlimit(number) for number in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE)]
        return Handed(Path.cwd(), mask, limits, list(warnings.filters), sys.stdout)

    before = present()
    within(60.0, judge)
    after = present()
    os.chdir(before.folder)
    os.umask(before.mask)
    sys.stdout = before.output
    assert after == before


def test_a_folder_that_is_gone_ends_no_check_of_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent may have been started in a folder that was removed since."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert within(60.0, lambda: 5) == 5


LEFT_RUNNING = {
    "thread": "import threading; threading.Thread(target=time.sleep, args=(600,)).start()",
    "executor": "import concurrent.futures as futures; futures.ThreadPoolExecutor(1).submit(time.sleep, 600)",
    "process": "import multiprocessing as m; m.get_context('fork').Process(target=time.sleep, args=(600,)).start()",
    "atexit": "import atexit; atexit.register(time.sleep, 600)",
}

COMMAND = """
import os, sys
sys.path.insert(0, {folder!r})
sys.argv[0] = "nodevet"
from nodevet.agent.entry import main
sys.exit(main())
"""


@pytest.fixture(params=sorted(LEFT_RUNNING))
def leaving(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a program that is the command, beside a package whose check leaves something running."""
    site_package(tmp_path / "packages", body=f"import time; {LEFT_RUNNING[request.param]}")
    program = tmp_path / "program.py"
    program.write_text(COMMAND.format(folder=str(tmp_path / "packages")))
    return program


def test_what_a_check_of_a_site_leaves_running_keeps_no_command_from_its_end(leaving: Path, tmp_path: Path) -> None:
    """Python waits at its end for threads, workers and processes: `nodevet check` of a prolog never came back."""
    configuration = tmp_path / "config.toml"
    configuration.write_text('[agent.backends]\nenabled = ["host"]\n')
    places = ["--state-dir", str(tmp_path / "state"), "--runtime-dir", str(tmp_path / "run")]
    words = ["check", "--config", str(configuration), *places, "site-disk"]
    done = subprocess.run(
        [sys.executable, str(leaving), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, ": ok" in done.stdout) == (OK, True), done.stdout


def test_what_a_check_of_a_site_leaves_running_keeps_no_agent_from_its_end(leaving: Path, tmp_path: Path) -> None:
    """systemd would end it after its time for a stop, and say that it failed."""
    agent = RunningAgent(tmp_path, '[agent.backends]\nenabled = ["host"]\n')
    agent.program = (str(leaving),)
    with agent:
        agent.wait_for(lambda status: any(entry["check"] == "site-disk" for entry in status["checks"]))
        assert agent.stop() < 4.0
