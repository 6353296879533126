"""The hour for which a resume of the node covers returns: part of the word, so that every surface tells it."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest
from fakes.episodes import episode
from fakes.reports import from_snapshot
from fakes.slurm_in_memory import MemorySlurm
from fakes.views import GPU
from test_engine_acknowledged import BROKEN, DAY, FAILED, Node
from test_guard import Drill, planted
from test_slurm_writer import SETTINGS

from nodevet.agent.daemon.loop import Daemon
from nodevet.agent.simulated.node import Simulate
from nodevet.agent.slurm.acknowledged import RESUMER, Acknowledged, told
from nodevet.agent.slurm.writer import Writer
from nodevet.agent.store.opening import DATABASE_NAME, read_store
from nodevet.agent.terminal.outlet import Outlet
from nodevet.agent.terminal.text import status_text
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.errors import UsageError
from nodevet.checks.core.model import AgentInfo, Episode, EpisodeState, Snapshot, State
from nodevet.checks.engine.acknowledgement import Returns, date_words, is_announced
from nodevet.checks.engine.damping import later
from nodevet.checks.engine.engine import Round
from nodevet.exporters.documents.schema import status_document
from nodevet.exporters.metrics.prometheus import MetricsPage
from nodevet.exporters.report.render import render
from nodevet.exporters.slurm.known import as_known
from nodevet.exporters.slurm.rules import WriterMemory
from nodevet.exporters.statefile.writer import state_text
from nodevet.exporters.web.page.render import StatusPage

HOUR = 3600.0


class Site:
    """A node whose engine and writer to SLURM are real, as the agent joins them."""

    def __init__(self, **settings: object) -> None:
        """Begin with a node that was drained for a fault of its first accelerator."""
        self.node = Node()
        self.slurm = MemorySlurm()
        self.writer = Writer(
            self.slurm,
            msgspec.structs.replace(SETTINGS, **settings),
            "n1",
            wall_seconds=lambda: self.node.now.wall_seconds,
            monotonic=lambda: self.node.now.boottime_ns / 1e9,
            random=lambda: 0.0,
            boot_id=self.node.boot_id,
            memory=WriterMemory(nodes=3),
        )
        self.look(bad=True)
        assert self.slurm.nodes["n1"].drained

    @property
    def snapshot(self) -> Snapshot:
        """What every surface shows."""
        shown = self.node.round.snapshot
        status = self.writer.status
        return msgspec.structs.replace(
            shown, agent=msgspec.structs.replace(shown.agent, ready=True, slurm=status, permit=status.permit)
        )

    @property
    def fault(self) -> Episode:
        """The fault, there or not."""
        (found,) = (e for e in (*self.snapshot.episodes, *self.snapshot.covered) if e.key.code == FAILED)
        return found

    def look(self, *, bad: bool, wait: float = 10.0, passes: bool = True) -> Snapshot:
        """Read the boards and judge, then let the writer make its *passes*, and take what it tells."""
        self.node.look(wait=wait, **({"first": BROKEN} if bad else {}))
        while passes:
            done = self.writer.step(self.snapshot)
            self.take(done.acknowledged)
            passes = not done.again_seconds
        return self.snapshot

    def take(self, entries: tuple[Acknowledged, ...]) -> None:
        """Do as the agent does."""
        for entry in entries:
            key = entry.known.key
            self.node.acknowledge(key, note=entry.note, actor=RESUMER, knew=entry.meant, until=entry.returns)

    def resume(self) -> Snapshot:
        """Let somebody resume the node in SLURM while the fault is there."""
        self.slurm.set("n1", "IDLE")
        return self.look(bad=True)


@pytest.mark.parametrize("permit", ["cluster", "local"])
def test_the_hour_of_a_resume_is_on_every_surface_while_its_fault_is_away(permit: str) -> None:
    """And a return is known in the look that sees it: the state file, which prologs read, never says failed."""
    site = Site(permit=permit)
    resumed = site.resume()
    end = site.fault.covers
    assert (resumed.verdict.state, end) == (State.OK, later(site.node.now, HOUR))
    for _ in range(3):
        away = site.look(bad=False, wait=60.0)
        said = f"acknowledged by {RESUMER} on "
        assert away.verdict.reason.startswith("healthy; 1 acknowledgement covers cleared faults (GPU 0 ")
        assert said in away.verdict.reason
        assert f", until {date_words(end)}: resumed by" in away.verdict.reason if end else False
        document = status_document(away)
        (word,) = document.acknowledged
        assert (word.present, word.actor, word.until is None, word.ends_soon) == (False, RESUMER, False, False)
        metrics = MetricsPage().render(away).decode()
        assert metrics.count('actor="somebody in SLURM"') == metrics.count('state="absent"') == 1
        assert "nodevet_acknowledgement_expiry_timestamp_seconds{" not in metrics  # its end is nothing to be paged for
        assert not is_announced(site.fault, site.node.now)
        assert "cleared, a return is acknowledged too" in status_text(document)
        page = StatusPage(lambda: site.node.now).render(away).decode()
        assert "is not present now, and its return is acknowledged" in page
        assert "acknowledged, not seen now" in render(from_snapshot(away))
        back = site.look(bad=True, wait=60.0, passes=False)
        assert (back.verdict.state, back.verdict.hard) == (State.OK, False)
        assert state_text(back, ttl_seconds=60).splitlines()[1].split()[5] == "soft"
    assert len(site.slurm.writes) == 1


def test_the_hour_of_a_resume_ends_and_is_not_longer_than_its_boot() -> None:
    """A return after it counts, and so does one in another boot; what is there at its end stays acknowledged."""
    for boot, wait, state in (("", HOUR - 30, State.OK), ("", HOUR + 1, State.FAILED), ("another", 60.0, State.FAILED)):
        site = Site()
        site.resume()
        site.look(bad=False)
        site.node.boot_id = boot or site.node.boot_id
        assert site.look(bad=True, wait=wait, passes=False).verdict.state is state
    site = Site()
    site.resume()
    assert site.look(bad=True, wait=2 * HOUR, passes=False).verdict.state is State.OK
    assert site.fault.covers is None
    assert site.look(bad=False).covered == ()


def test_a_resume_adds_its_hour_to_what_somebody_had_acknowledged() -> None:
    """Whose name and note stay, also behind a return; a term that is given later takes the place of the hour."""
    site = Site()
    site.node.ask(uid=7, code=FAILED, device=GPU, note="board ordered")
    site.look(bad=True)
    site.resume()
    assert (site.fault.actor, site.fault.note, site.fault.covers) == (
        "uid 7",
        "board ordered",
        later(site.node.now, HOUR),
    )
    assert site.writer.step(site.snapshot).acknowledged == ()  # told once
    assert "uid 7" in site.look(bad=False).verdict.reason
    assert (site.look(bad=True).verdict.state, site.fault.note) == (State.OK, "board ordered")
    site.look(bad=False)
    with pytest.raises(UsageError, match=r"is not present now, and its return is acknowledged until .* set --until"):
        site.node.ask(code=FAILED, device=GPU, note="n")
    site.node.ask(code=FAILED, device=GPU, note="n", until="7d")
    assert (site.fault.covers, site.fault.until) == (None, later(site.node.now, 7 * DAY))


def test_a_resume_says_less_than_a_word_with_a_term() -> None:
    """It neither lengthens nor replaces that, and what is told twice is no news."""
    site = Site()
    site.node.ask(code=FAILED, device=GPU, note="until Friday", until="2d")
    before = site.fault
    site.node.acknowledge(before.key, note="r", actor=RESUMER, until=Returns(later(site.node.now, HOUR)))
    assert site.fault == before
    other = Site()
    other.resume()
    known = other.fault
    for seconds in (HOUR, 60.0):
        other.node.acknowledge(known.key, note="r", actor="x", until=Returns(later(other.node.now, seconds - 60.0)))
        assert (other.fault.covers, other.fault.actor, other.fault.state) == (
            known.covers,
            RESUMER,
            EpisodeState.ACKNOWLEDGED,
        )


def test_the_hour_of_a_resume_is_about_what_it_was_about() -> None:
    """Not about a fault that came later and was acknowledged by hand; nor is it told once it is over."""
    word = msgspec.structs.replace(
        Site().fault, state=EpisodeState.ACKNOWLEDGED, note="n", actor="uid 0", acknowledged=Site().node.now
    )
    later_on = msgspec.structs.replace(word, key=msgspec.structs.replace(word.key, code="link.down"))
    end = later(word.opened, HOUR)
    resumed = tuple(msgspec.structs.replace(known, until=end) for known in as_known((word,)))
    for now, codes in ((word.opened, [FAILED]), (end, [])):
        entries = told(resumed, (), (word, later_on), "n", now)
        assert [entry.known.key.code for entry in entries] == codes


def test_a_resume_is_about_what_a_term_that_is_over_was_about() -> None:
    """Every surface shows it, and nobody looked since: who drains the node to see and resumes it knows it."""
    site = Site()
    site.node.ask(uid=7, code=FAILED, device=GPU, note="known until Friday", until="2d")
    site.resume()
    site.node.seconds += 3 * DAY
    assert not site.node.judge().verdict.hard
    assert (site.fault.expired, site.writer.step(site.snapshot).acknowledged) == (site.node.now, ())
    site.slurm.set("n1", "IDLE", "DRAIN", reason="ops: what is it?", user="alice")
    assert site.writer.step(site.snapshot).memory.drained == "ops: what is it?"
    site.slurm.set("n1", "IDLE")
    site.take(site.writer.step(site.snapshot).acknowledged)
    assert (site.fault.actor, site.fault.until, site.fault.expired) == (RESUMER, None, None)
    assert site.fault.covers == later(site.node.now, HOUR)
    for _ in range(3):
        assert site.look(bad=True, wait=600.0).verdict.state is State.OK
    assert len(site.slurm.writes) == 1


def test_a_term_that_is_given_after_the_resume_and_is_over_counts() -> None:
    """Within the hour of the resume: what was said last counts, also by its end."""
    site = Site()
    site.resume()
    resumed = tuple(msgspec.structs.replace(k, until=later(site.node.now, HOUR)) for k in as_known((site.fault,)))
    site.node.seconds += 60.0
    site.node.ask(code=FAILED, device=GPU, note="n", until="10m")
    site.node.seconds += 900.0
    site.node.judge()
    assert site.fault.expired is not None
    assert list(told(resumed, (), (site.fault,), "n", site.node.now)) == []
    before = msgspec.structs.replace(site.fault, acknowledged=site.fault.opened)
    assert [entry.known.key.code for entry in told(resumed, (), (before,), "n", site.node.now)] == [FAILED]
    assert site.look(bad=True, passes=False).verdict.state is State.FAILED


def test_a_resume_of_a_hundred_faults_is_judged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged one by one they held up the loop for 18 s, in which nothing was read: the node was unknown after it."""
    outlet = Outlet()
    settings = Drill(tmp_path, lambda _name, _field, _call: False, lambda _snapshot: False).settings
    daemon = Daemon(settings, SystemClock(), reload=planted, outlet=outlet, simulate=Simulate("dgx-h100"))
    with ExitStack() as cleanup:
        daemon._start(cleanup)
        faults = tuple(episode(f"test.{number}", boot_id=daemon.now.boot_id) for number in range(100))
        daemon._engine.adopt(faults)
        judged: list[AgentInfo] = []
        evaluate = daemon._engine.evaluate

        def counted(info: AgentInfo) -> Round:
            judged.append(info)
            return evaluate(info)

        monkeypatch.setattr(daemon._engine, "evaluate", counted)
        daemon._take_resumed(tuple(Acknowledged(known, "resumed") for known in as_known(faults)))
        assert len(judged) == 1
        words = [entry for entry in daemon._engine.episodes if entry.actor == RESUMER]
        assert {(entry.state, entry.note) for entry in words} == {(EpisodeState.ACKNOWLEDGED, "resumed")}
        assert {entry.key for entry in words} == {entry.key for entry in faults}
        daemon._stop()
    with closing(read_store(tmp_path / "state" / DATABASE_NAME)) as store:
        kept = {entry.key: entry.actor for entry in store.episodes_at_rest()}
    assert {fault.key: kept.get(fault.key) for fault in faults} == dict.fromkeys(
        (fault.key for fault in faults), RESUMER
    )
    assert outlet.close(5)
