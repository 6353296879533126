"""A bug costs the part that has it: every service, page and verb is made to raise, and the agent goes on."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn, cast

import msgspec
import pytest
from fakes.drilled import FUNCTIONS, Drilled, asked, own
from fakes.snapshots import at, failed_node, gpu_node

from nodevet.agent.config.load import load_configuration
from nodevet.agent.config.settings import Configuration
from nodevet.agent.control.server import Control, NoArguments, Verb
from nodevet.agent.daemon.event_log import EventLog
from nodevet.agent.daemon.loop import BROKEN_TURN_SECONDS, Daemon
from nodevet.agent.daemon.services import BROKEN_WAIT_SECONDS, Services
from nodevet.agent.daemon.showing import Showing
from nodevet.agent.daemon.verbs import Served, verbs
from nodevet.agent.readers.supervisor import Supervisor
from nodevet.agent.services.protocol import Service
from nodevet.agent.simulated.node import Simulate, simulated_configuration
from nodevet.agent.store.journal import Journal
from nodevet.agent.store.publisher import Publisher
from nodevet.agent.terminal.outlet import Outlet
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.guard import CODE, Bug, Guard, PartFault, attempt, culprits, fault_findings
from nodevet.checks.core.model import Outcome, Snapshot, State
from nodevet.checks.engine.engine import Engine
from nodevet.checks.engine.registry import installed
from nodevet.exporters.web.http import PAGES, HttpServer

LONGEST_SECONDS = 20.0
"""How long an agent under test may take; it ends as soon as it has shown what it should."""


class PlantedError(Exception):
    """A bug that a test put somewhere."""


def planted(*_: object) -> NoReturn:
    """Raise."""
    raise PlantedError("planted")


def test_a_log_that_raises_costs_the_line() -> None:
    """What failed is among the faults all the same; before, the log's own failure ended the agent."""
    guard = Guard(planted)
    assert guard.run("reports: tick", planted, lambda: "instead") == "instead"
    assert [(fault.part, fault.works) for fault in guard.faults] == [("reports: tick", False)]
    assert guard.run("reports: tick", lambda: "done", lambda: "instead") == "done"
    assert [(fault.part, fault.works) for fault in guard.faults] == [("reports: tick", True)]


def test_what_a_part_raises_is_told_once_counted_and_over_when_it_works() -> None:
    """Two failures of one kind are one line; a success ends the finding, which never gates."""
    lines: list[str] = []
    guard = Guard(lines.append)
    for _ in range(3):
        assert guard.run("reports: tick", planted, lambda: "instead") == "instead"
    (finding,) = fault_findings(guard.faults)
    assert (finding.outcome, finding.required, finding.gates, finding.hard) == (Outcome.UNMEASURED, True, False, False)
    assert "reports: tick of the agent failed 3 times: PlantedError: planted" in finding.message
    assert guard.run("reports: tick", lambda: "fine", lambda: "instead") == "fine"
    assert [fault.works for fault in guard.faults] == [True]
    assert [finding.outcome for finding in fault_findings(guard.faults)] == [Outcome.PASS]
    assert len(lines) == 2


def test_names_of_parts_are_bounded() -> None:
    """A thousand parts that fail are a hundred and one more for the rest."""
    guard = Guard(lambda _line: None)
    for number in range(1000):
        guard.run(f"part {number}", planted, lambda: None)
    assert len(guard.faults) == 101
    assert guard.faults[-1] == PartFault("others", 900, guard.faults[-1].error)


def test_an_exception_whose_words_cannot_be_had_is_a_bug_too() -> None:
    """What is raised may raise again when it is printed, and may hold a terminal's control characters."""

    class HostileError(Exception):
        def __str__(self) -> str:
            raise self.args[0]

    def raises(error: Exception) -> Callable[[], None]:
        def work() -> None:
            raise error

        return work

    hostile = [HostileError(error) for error in (ValueError("no words"), RuntimeError(), OSError(), RecursionError())]
    for error in (
        *hostile,
        HostileError(HostileError(*hostile)),
        ValueError("\x1b[2J\n" + "x" * 10_000),
        KeyError("a"),
    ):
        bug = attempt(raises(error))
        assert isinstance(bug, Bug)
        assert str(bug).isprintable()
        assert len(bug.error) <= 300


@pytest.mark.parametrize("bad", [(), (3,), (0, 999), tuple(range(0, 1000, 100))], ids=str)
def test_culprits_are_found_in_few_tries(bad: tuple[int, ...]) -> None:
    """One poisonous record of a thousand takes about twenty tries."""
    tries = 0

    def fails(items: Sequence[int]) -> bool:
        nonlocal tries
        tries += 1
        return bool(set(items) & set(bad))

    assert culprits(range(1000), fails) == bad
    assert tries <= 1 + 22 * len(bad)


class Plain(Service):
    """Has part in nothing."""

    def __init__(self, name: str = "any") -> None:
        """Have that *name*."""
        self.name = name


CALLS: dict[str, Callable[[Services], object]] = {
    "tick": Services.tick,
    "next_deadline": lambda services: services.next_deadline,
    "before_judging": Services.before_judging,
    "describe": lambda services: services.describe(gpu_node().agent),
    "trouble": lambda services: services.describe(gpu_node().agent),
    "judged": lambda services: services.judged(gpu_node()),
    "memory": Services.memory,
    "stop": Services.stop,
}
"""What the loop calls, by the function of each service behind it."""


def test_whatever_a_service_can_give_is_tested() -> None:
    """Each function of the protocol is among those that are made to raise."""
    assert CALLS.keys() == set(FUNCTIONS) == {name for name in vars(Service) if name[0] != "_"}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_each_function_of_a_service_may_raise(function: str) -> None:
    """What it would have contributed is missing, and the guard knows which part it was."""
    guard = Guard(lambda _line: None)
    whole, broken = Plain(), Drilled(Plain(), **{function: planted})
    assert CALLS[function](Services((broken,), guard)) == CALLS[function](Services((whole,), guard))
    assert [fault.part for fault in guard.faults] == [f"any: {function}"]


def test_a_service_that_raises_while_it_is_due_is_not_due_at_once_again() -> None:
    """It cannot have moved its deadline: the loop would take a whole processor. The others are due when they say."""
    ready = False
    now = 100.0

    def tick() -> None:
        if not ready:
            raise PlantedError

    broken = Drilled(Plain("broken"), tick=tick, next_deadline=lambda: 99.0)
    sound = Drilled(Plain("sound"), next_deadline=lambda: due)
    services = Services((broken, sound), Guard(lambda _line: None), lambda: now)
    due = 200.0
    assert services.next_deadline == 99.0
    services.tick()
    assert services.next_deadline == 100.0 + BROKEN_WAIT_SECONDS
    due = 100.5
    assert services.next_deadline == 100.5
    ready = True
    services.tick()
    assert services.next_deadline == 99.0


def test_a_description_that_raises_costs_only_itself() -> None:
    """A service that describes a field which does not exist keeps out no other's words, nor what came before."""
    guard = Guard(lambda _line: None)
    known = Drilled(Plain("known"), describe=lambda info: msgspec.structs.replace(info, load="off"))
    bad = Drilled(Plain("bad"), describe=lambda info: msgspec.structs.replace(info, no_such_field=1))
    good = Drilled(Plain("good"), describe=lambda info: msgspec.structs.replace(info, jobs=3))
    told = Services((known, bad, good), guard).describe(gpu_node().agent)
    assert (told.load, told.jobs) == ("off", 3)
    assert [fault.part for fault in guard.faults] == ["bad: describe"]


def test_what_cannot_be_printed_is_in_no_notice() -> None:
    """Half a letter, as a name of another program may hold, would cost every answer; a line end would forge a line."""
    troubled = Drilled(Plain(), trouble=lambda: "held by \udcff\x1b[2Ja\nnode: ok (pid 1)")
    (*_, told) = Services((troubled,), Guard(lambda _line: None)).describe(gpu_node().agent).notices
    assert told == "held by [2Ja node: ok (pid 1)"


class Drill:
    """An agent on a simulated node in this process, whose services raise as a test says."""

    def __init__(
        self, folder: Path, fails: Callable[[str, str, int], bool], enough: Callable[[Snapshot], bool]
    ) -> None:
        """End at a snapshot that is *enough*; *fails* says whether a service's function raises at its n-th call."""
        self.fails = fails
        self.calls: dict[str, int] = {}
        self.functions: set[str] = set()
        self.snapshots: list[Snapshot] = []
        self._enough = enough
        self._end = time.monotonic() + LONGEST_SECONDS
        settings = load_configuration(None, installed(), environment={})
        agent = msgspec.structs.replace(
            settings.agent,
            listen="127.0.0.1:0",
            interval_seconds=1.0,
            state_dir=str(folder / "state"),
            runtime_dir=str(folder / "run"),
        )
        plain = msgspec.structs.replace(settings, agent=agent)
        self.settings: Configuration = simulated_configuration(plain, "dgx-h100")

    def through(self, service: Service) -> Service:
        """Return *service* with faults in each function that it has."""
        instead = {function: self._faulty(service, function) for function in own(service)}
        self.functions |= {f"{service.name}: {function}" for function in instead}
        if service.name == "readers":
            instead["tick"] = self._ending(instead["tick"])
            instead["judged"] = self.snapshots.append
        return Drilled(service, **instead)

    def run(self) -> None:
        """Run the agent until its time is over."""
        simulate = Simulate("dgx-h100")
        outlet = Outlet()
        daemon = Daemon(
            self.settings,
            SystemClock(),
            reload=lambda: self.settings,
            outlet=outlet,
            simulate=simulate,
            through=self.through,
        )
        assert daemon.run() == 0
        assert outlet.close(5)

    def _faulty(self, service: Service, function: str) -> Callable[..., Any]:
        part = f"{service.name}: {function}"

        def call(*arguments: object) -> Any:
            self.calls[part] = self.calls.get(part, 0) + 1
            if self.fails(service.name, function, self.calls[part]):
                raise PlantedError(part)
            return asked(service, function, *arguments)

        return call

    def _ending(self, tick: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            if time.monotonic() >= self._end or (self.snapshots and self._enough(self.snapshots[-1])):
                os.kill(os.getpid(), signal.SIGTERM)
            tick()

        return call


def was_read(snapshot: Snapshot) -> bool:
    """Whether every GPU was judged well."""
    return sum(verdict.state is State.OK for verdict in snapshot.device_verdicts.values()) >= 8


def open_parts(snapshot: Snapshot) -> set[str]:
    """Return the parts of the agent that *snapshot* says have failed."""
    return {entry.key.part.name.removeprefix("vendor:") for entry in snapshot.episodes if entry.key.code == CODE}


def test_every_service_may_raise_and_the_agent_goes_on(tmp_path: Path) -> None:
    """Each function of each service raises at its first three calls: all of it is told, none gates, and it is over."""
    drill = Drill(
        tmp_path,
        lambda _name, function, call: call <= 3 and function != "stop",
        lambda snapshot: snapshot.verdict.state is State.OK,
    )
    drill.run()
    told = set().union(*map(open_parts, drill.snapshots))
    often = {part for part, calls in drill.calls.items() if calls >= 3}
    assert len(drill.functions) >= 20
    assert often - told == set()
    assert not any(snapshot.verdict.hard for snapshot in drill.snapshots)
    last = drill.snapshots[-1]
    assert (open_parts(last), last.verdict.state) == (set(), State.OK), last.verdict
    assert {finding.check for finding in last.findings} > {"thermal", "freshness"}


OF_A_ROUND: dict[str, tuple[object, str, object]] = {
    "faults": (Engine, "take_faults", planted),
    "description": (Services, "describe", planted),
    "store": (Journal, "keep_round", planted),
    "mirror": (Publisher, "mirror", planted),
    "showing": (Showing, "offer", planted),
    "showing: tick": (Showing, "tick", planted),
    "log": (EventLog, "changes", planted),
    "end": (Supervisor, "at_rest", property(planted)),
    "showing: end": (Showing, "finish", planted),
}
"""What a round and the end of an agent do besides what services do: the part that is named, and what of it raises."""


@pytest.mark.parametrize("part", OF_A_ROUND)
def test_whatever_a_round_does_may_raise_and_the_agent_goes_on(
    tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of its calls: every GPU is judged well and shown, and the agent ends when told to, not before."""
    monkeypatch.setattr(*OF_A_ROUND[part])
    drill = Drill(tmp_path, lambda _name, _field, _call: False, was_read)
    drill.run()
    assert was_read(drill.snapshots[-1])
    assert "round" not in open_parts(drill.snapshots[-1])


def test_a_round_that_cannot_be_described_ends_no_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judging fails once, and so does what would be shown instead: the next round is shown."""
    evaluate, calls = Engine.evaluate, iter(range(1000))
    monkeypatch.setattr(Engine, "unjudged", planted)
    monkeypatch.setattr(Engine, "evaluate", lambda *given: planted() if next(calls) < 1 else evaluate(*given))
    drill = Drill(tmp_path, lambda _name, _field, _call: False, was_read)
    drill.run()
    assert was_read(drill.snapshots[-1])


def test_every_round_says_what_the_agent_itself_takes(tmp_path: Path) -> None:
    """Also of a simulated node: its agent is a process of this machine."""
    drill = Drill(tmp_path, lambda _name, _field, _call: False, was_read)
    drill.run()
    assert None not in msgspec.structs.astuple(drill.snapshots[-1].agent.own_use)


def test_services_that_always_raise_leave_the_readers_and_the_verdict(tmp_path: Path) -> None:
    """All but the readers are broken for good: the node is judged in full, and is unknown for our own bugs alone."""
    drill = Drill(tmp_path, lambda name, _field, _call: name != "readers", was_read)
    drill.run()
    last = drill.snapshots[-1]
    assert last.verdict.state is State.UNKNOWN
    assert {entry.key.code for entry in last.episodes} == {CODE}
    assert was_read(last)


def test_a_service_that_raises_and_leaves_its_input_takes_no_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What wakes the loop stays readable, as a log whose reader fails: a turn then has a least time."""
    plain, selector = selectors.DefaultSelector, selectors.DefaultSelector()
    given = iter((selector,))  # to the loop, which is the first to ask
    monkeypatch.setattr(selectors, "DefaultSelector", lambda: next(given, None) or plain())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")
        selector.register(ours, selectors.EVENT_READ, lambda _mask: None)
        drill = Drill(tmp_path, lambda name, field, _call: (name, field) == ("log", "tick"), was_read)
        began = time.monotonic()
        drill.run()
        seconds = time.monotonic() - began
    assert was_read(drill.snapshots[-1])
    assert drill.calls["log: tick"] <= 1 + seconds / BROKEN_TURN_SECONDS


def test_a_reload_that_raises_leaves_the_settings_before_it_and_ends_for_systemd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever step of it fails. Without READY=1 the service stands at "reloading" for ever."""
    drill = Drill(tmp_path, lambda _name, _field, _call: False, lambda _snapshot: False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        outlet = Outlet()
        daemon = Daemon(drill.settings, SystemClock(), reload=planted, outlet=outlet, simulate=Simulate("dgx-h100"))
        fresh = msgspec.structs.replace(drill.settings, gate=None)
        with ExitStack() as cleanup:
            daemon._start(cleanup)
            for reload in (planted, lambda: fresh):
                daemon._reload = reload
                daemon._on_signal(signal.SIGHUP)
                assert daemon._configuration == drill.settings
                assert "the previous settings stay active" in daemon._info.configuration_message
        told = manager_heard(manager)
        assert told.count("READY=1") == 3
        assert told[-1] == "READY=1"
        assert outlet.close(5)


def manager_heard(manager: socket.socket) -> list[str]:
    """Return the states that the service manager was told so far."""
    told = []
    manager.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            told.append(manager.recv(4096).decode().split("\n")[0])
    return [line for line in told if line.startswith(("READY", "RELOADING"))]


def ask(path: Path, line: bytes) -> Any:
    """Send *line* to the socket at *path* and return the answer."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(os.fspath(path))
        caller.sendall(line + b"\n")
        return json.loads(caller.makefile("rb").readline())


def test_a_verb_that_raises_costs_one_answer(tmp_path: Path) -> None:
    """The caller is told, the connection and the socket go on, and the guard knows the verb."""
    guard = Guard(lambda _line: None)
    verbs = {
        "bad": Verb(handler=planted, arguments=NoArguments),
        "odd": Verb(handler=lambda _call: {"key": object()}, arguments=NoArguments),
        "good": Verb(handler=lambda _call: {"fine": True}, arguments=NoArguments),
    }
    path = tmp_path / "socket"
    with selectors.DefaultSelector() as selector:
        control = Control(path, verbs, selector, guard=guard)
        answers: list[Any] = []
        lines = [b'{"verb": "bad"}', b'{"verb": "odd"}', b'{"verb": "good"}']
        caller = threading.Thread(target=lambda: answers.extend(ask(path, line) for line in lines))
        caller.start()
        while caller.is_alive():
            for key, mask in selector.select(0.02):
                key.data(mask)
        control.close()
    assert [answer.get("kind") for answer in answers] == ["failed", "failed", None]
    assert answers[2] == {"fine": True}
    assert [fault.part for fault in guard.faults] == ["verb bad", "verb odd"]


class Broken:
    """A daemon of which nothing works."""

    def __getattr__(self, name: str) -> Any:
        """Raise."""
        raise PlantedError(name)


VERBS: dict[str, dict[str, object]] = {
    "status": {},
    "ack": {"code": "nvidia.xid.79", "note": "seen"},
    "lease": {"seconds": 5.0},
    "result": {"results": [], "plan": "probe"},
    "release": {"seconds": 5.0},
}
"""Every verb that does something, with what it needs."""


def test_every_verb_over_a_daemon_that_raises_costs_one_answer(tmp_path: Path) -> None:
    """Each of the real ones tells its caller, and the socket answers the next; numbers beyond all bounds included."""
    guard = Guard(lambda _line: None)
    table = verbs(cast(Served, Broken()))
    assert VERBS.keys() == {name for name, verb in table.items() if not verb.streams}
    requests = [{"verb": name, **arguments} for name, arguments in VERBS.items()]
    requests += [{"verb": "release", "seconds": 10**400}, {"verb": "lease", "seconds": -(10**25)}]
    path = tmp_path / "socket"
    with selectors.DefaultSelector() as selector:
        control = Control(path, table, selector, guard=guard)
        answers: list[Any] = []
        lines = [json.dumps(request).encode() for request in requests]
        caller = threading.Thread(target=lambda: answers.extend(ask(path, line) for line in lines))
        caller.start()
        while caller.is_alive():
            for key, mask in selector.select(0.02):
                key.data(mask)
        control.close()
    assert [answer["kind"] for answer in answers] == ["failed"] * len(VERBS) + ["bad_request"] * 2
    assert {fault.part for fault in guard.faults} == {f"verb {name}" for name in VERBS}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_that_raises_costs_one_answer(page: str) -> None:
    """It answers 500 in one line, the guard knows the page, and every other page that works answers."""
    guard = Guard(lambda _line: None)
    broken: set[str] = set()

    def snapshot() -> Snapshot:
        return planted() if "snapshot" in broken else gpu_node()

    def complaint() -> str | None:
        return planted() if "complaint" in broken else None

    def report() -> bytes | None:
        return planted() if "report" in broken else b"report"

    server = HttpServer("127.0.0.1:0", snapshot, complaint, report=report, guard=guard)
    server.start()
    try:
        broken |= {"snapshot", "complaint", "report"}
        assert status_of(server.url, page) == 500
        assert [fault.part for fault in guard.faults] == [f"page {page}"]
        broken.clear()
        assert [status_of(server.url, other) for other in PAGES] == [200] * len(PAGES)
        assert all(fault.works for fault in guard.faults)
    finally:
        server.stop()


def status_of(url: str, page: str) -> int:
    """Return the status code of *page*."""
    try:
        with urllib.request.urlopen(url.rstrip("/") + page, timeout=5) as answer:  # noqa: S310 (loopback)
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_where_judging_itself_fails_nothing_stays_green_and_no_failure_is_lost() -> None:
    """The last snapshot with `ok` turned into `unknown`, `failed` as it was, and a generation of its own."""
    engine = Engine((), node="n", clock=at)
    for before, state in ((gpu_node(), State.UNKNOWN), (failed_node(), State.FAILED)):
        after = engine.unjudged(before, before.agent, "Planted: x")
        assert after.verdict.state is state
        states = {verdict.state for verdict in after.device_verdicts.values()}
        assert State.OK not in states
        kept = {device for device, verdict in before.device_verdicts.items() if verdict.state is State.FAILED}
        assert kept == {device for device, verdict in after.device_verdicts.items() if verdict.state is State.FAILED}
        assert after.episodes == before.episodes
        assert (after.verdict.hard, "Planted: x" in after.verdict.reason) == (
            before.verdict.hard,
            state is State.UNKNOWN,
        )
    assert engine.unjudged(gpu_node(), gpu_node().agent, "again").generation == 3
