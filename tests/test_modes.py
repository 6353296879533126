"""Modes: which hard faults close the gate, which may drain, and what the state file, metrics and status say of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.gpu_node import GpuNode
from fakes.snapshots import EVERY_STATE, at, degraded_node, failed_node, gpu_id

from nodevet.agent.terminal.text import status_text
from nodevet.checks.core.model import Episode, EpisodeState, FaultClass, Mode, Modes, Outcome, Snapshot, State
from nodevet.checks.core.scheduler import Permit
from nodevet.checks.engine.episodes import Ledger, acknowledge
from nodevet.checks.engine.modes import closing, draining, gating, reach
from nodevet.checks.engine.standing import node_verdict, verdict
from nodevet.exporters.documents.schema import status_document
from nodevet.exporters.metrics.prometheus import MetricsPage
from nodevet.exporters.statefile.reader import NEVER, StateFile, parse
from nodevet.exporters.statefile.writer import state_text

OBSERVE, GATE, DRAIN = Mode.OBSERVE, Mode.GATE, Mode.DRAIN
LOST = gpu_id(5)


def failed(site: Mode = DRAIN, check: Mode = DRAIN, **changes: object) -> Snapshot:
    """Return a node with a lost accelerator under the mode of the *site* and of the *check* that found it."""
    return msgspec.structs.replace(failed_node(), modes=Modes(site, {"kernel-log": check}), **changes)


@pytest.mark.parametrize(
    ("site", "check", "closes", "drains"),
    [
        (DRAIN, DRAIN, True, True),
        (DRAIN, GATE, True, False),
        (GATE, DRAIN, True, False),
        (DRAIN, OBSERVE, False, False),
        (OBSERVE, DRAIN, False, False),
        (GATE, OBSERVE, False, False),
    ],
)
def test_the_lower_of_both_modes_counts(site: Mode, check: Mode, closes: bool, drains: bool) -> None:
    """A site bounds its checks and a check bounds itself."""
    snapshot = failed(site, check)
    assert (bool(closing(snapshot)), bool(draining(snapshot))) == (closes, drains)


def test_without_a_word_a_hard_fault_may_drain() -> None:
    """The defaults are a ceiling; what acts under it is installed separately."""
    assert [episode.key.code for episode in draining(failed_node())] == ["nvidia.xid.79"]


def test_a_fault_that_only_informs_reaches_nothing_in_any_mode() -> None:
    """What rests on a user's text or a site's number is shown, even where one look of it failed."""
    node = failed_node()
    told = tuple(
        msgspec.structs.replace(entry, finding=msgspec.structs.replace(entry.finding, gates=False))
        for entry in node.episodes
    )
    informed = failed(episodes=told)
    assert (closing(informed), draining(informed)) == ((), ())
    assert not verdict(LOST, told, ()).hard


def test_a_measured_fault_reaches_nothing_in_any_mode() -> None:
    """A rate or a temperature that needs several looks is only shown, even where it failed."""
    snapshot = degraded_node()
    worse = tuple(msgspec.structs.replace(entry, outcome=Outcome.FAIL) for entry in snapshot.episodes)
    hot = msgspec.structs.replace(
        snapshot, episodes=worse, verdict=msgspec.structs.replace(snapshot.verdict, state=State.FAILED, hard=False)
    )
    assert (closing(hot), draining(hot), reach(hot, hot.verdict)) == ((), (), "soft")


def _changed(**changes: object) -> Snapshot:
    snapshot = failed()
    return msgspec.structs.replace(
        snapshot, episodes=tuple(msgspec.structs.replace(entry, **changes) for entry in snapshot.episodes)
    )


@pytest.mark.parametrize(
    "snapshot",
    [
        _changed(state=EpisodeState.ACKNOWLEDGED),
        _changed(state=EpisodeState.PENDING),
        _changed(outcome=Outcome.WARN),
        _changed(outcome=Outcome.UNMEASURED),
        failed(simulated=True),
        failed(verdict=msgspec.structs.replace(failed().verdict, episodes=())),
    ],
    ids=["acknowledged", "pending", "warning", "unmeasured", "simulated", "does not count"],
)
def test_what_is_no_confirmed_fault_of_a_real_node_reaches_nothing(snapshot: Snapshot) -> None:
    """Neither gate nor drain."""
    assert (closing(snapshot), draining(snapshot)) == ((), ())


def test_without_a_permit_nothing_closes() -> None:
    """The node's line and the device's say so, the document tells why, and the verdict stays what it is."""
    snapshot = failed()
    without = msgspec.structs.replace(
        snapshot, agent=msgspec.structs.replace(snapshot.agent, permit=Permit(why="the limit is reached"))
    )
    assert (closing(without), reach(without, without.verdict)) == ((), "unpermitted")
    assert [episode.key for episode in gating(without)] == [episode.key for episode in draining(without)]
    lines = [line.split() for line in state_text(without, ttl_seconds=60).splitlines()]
    assert lines[1][5] == "unpermitted"
    assert [line[4] for line in lines[2:] if line[0] == "accelerator"] == ["soft"] * 5 + ["unpermitted"] + ["soft"] * 2
    assert (_file(without).state, _file(without).hard, _file(without).expires_uptime) == ("failed", False, NEVER)
    document = status_document(without)
    assert (document.gate.closed, document.gate.permit, document.gate.codes) == (False, False, ("nvidia.xid.79",))
    said = "gate: open despite nvidia.xid.79, no permit: the limit is reached"
    assert said in status_text(document)


def test_an_acknowledgement_opens_the_gate() -> None:
    """The verdict folded from an acknowledged episode names it no more, and nothing closes."""
    snapshot = failed()
    (episode,) = snapshot.episodes
    done = acknowledge(Ledger((episode,)), episode.key, note="reseated", actor="uid 0")
    assert done is not None
    of_device = verdict(LOST, done[0].episodes, snapshot.findings[:1])
    known = msgspec.structs.replace(snapshot, episodes=done[0].episodes, verdict=node_verdict({LOST: of_device}, {}))
    assert closing(known) == ()


def test_the_fault_of_an_application_reaches_nothing() -> None:
    """A user's own fault makes no verdict, so it closes nothing, however hard it is."""
    snapshot = failed()
    (episode,) = snapshot.episodes
    users = msgspec.structs.replace(
        episode, finding=msgspec.structs.replace(episode.finding, fault_class=FaultClass.APPLICATION)
    )
    judged = node_verdict({LOST: verdict(LOST, (users,), ())}, {})
    assert closing(msgspec.structs.replace(snapshot, episodes=(users,), verdict=judged)) == ()


def _file(snapshot: Snapshot) -> StateFile:
    file = parse(state_text(snapshot, ttl_seconds=60))
    assert isinstance(file, StateFile)
    return file


@pytest.mark.parametrize(("check", "word"), [(GATE, "hard"), (OBSERVE, "observed")])
def test_the_state_file_says_hard_only_where_the_gate_may_close(check: Mode, word: str) -> None:
    """The node's line and the device's; the verdict stays failed and does not expire in either."""
    snapshot = failed(check=check)
    file = _file(snapshot)
    assert (file.state, file.hard, file.expires_uptime) == ("failed", word == "hard", NEVER)
    lines = [line.split() for line in state_text(snapshot, ttl_seconds=60).splitlines()]
    assert lines[1][5] == word
    assert [line[4] for line in lines[2:] if line[0] == "accelerator"] == ["soft"] * 5 + [word] + ["soft"] * 2


def test_one_fault_that_is_only_observed_leaves_the_other_its_reach() -> None:
    """Of two failed devices only the one whose check may close is `hard`, and it closes the node."""
    snapshot = failed(check=OBSERVE)
    (episode,) = snapshot.episodes
    finding = msgspec.structs.replace(episode.finding, check="inventory", code="device.missing", device=gpu_id(6))
    other = msgspec.structs.replace(episode, key=finding.key, check="inventory", finding=finding)
    both = msgspec.structs.replace(
        snapshot,
        episodes=(episode, other),
        verdict=msgspec.structs.replace(snapshot.verdict, episodes=(episode.key, other.key)),
        device_verdicts={
            **snapshot.device_verdicts,
            gpu_id(6): msgspec.structs.replace(snapshot.verdict, episodes=(other.key,)),
        },
    )
    file = _file(both)
    assert file.hard
    assert {line.minor for line in file.devices if line.hard} == {6}


@pytest.mark.parametrize("state", EVERY_STATE, ids=lambda state: state.value)
def test_metrics_and_status_tell_whether_the_gate_is_closed(state: State) -> None:
    """In every verdict, as the pure rule says."""
    snapshot = EVERY_STATE[state]()
    closed = bool(closing(snapshot))
    assert closed is (state is State.FAILED)
    page = MetricsPage().render(snapshot).decode()
    assert f"\nnodevet_gate_closed {float(closed)}\n" in page
    assert '\nnodevet_gate_mode_info{mode="drain"} 1.0\n' in page
    document = status_document(snapshot)
    assert (document.gate.closed, document.gate.mode) == (closed, "drain")


@pytest.mark.parametrize(
    ("check", "said"),
    [(DRAIN, "gate: closed by nvidia.xid.79"), (OBSERVE, "gate: open, mode is observe for these faults")],
)
def test_the_status_says_what_the_verdict_does_to_jobs(check: Mode, said: str) -> None:
    """A person sees why a failed node still takes jobs."""
    snapshot = failed(check=check)
    document = status_document(snapshot)
    assert said in status_text(document)
    (finding,) = (entry for entry in document.findings if entry.code == "nvidia.xid.79")
    assert (finding.hard, finding.mode) == (True, check.value)


def test_a_reload_opens_and_closes_the_gate(tmp_path: Path, fake_nvml_library: Path) -> None:
    """From observe to closed and back without a restart, on the real agent; the verdict stays failed."""
    with GpuNode(tmp_path, fake_nvml_library, more='[gate]\nmode = "observe"\n') as node:
        node.machine.set("ecc_uncorrected_volatile_dram.0", 1)
        node.wait_for(lambda status: status["verdict"] == "failed", 10.0, "the fault was not found")
        _until_written(node, hard=False)
        text = node.configuration_file.read_text()
        for mode, closed in (("gate", True), ("observe", False)):
            node.configuration_file.write_text(text.replace('"observe"', f'"{mode}"'))
            node.reload()
            node.wait_for(partial(_gate_is, closed), 10.0, f"{mode} is not in force")
            assert node.metric("nodevet_gate_closed") == closed
            _until_written(node, hard=closed)


def _until_written(node: GpuNode, *, hard: bool) -> None:
    """Wait for the file, which a thread of its own writes a moment after the status was made."""
    deadline = time.monotonic() + 5.0
    while (file := node.state_file()).hard is not hard or file.state != "failed":
        assert time.monotonic() < deadline, file
        time.sleep(0.02)


def _gate_is(closed: bool, status: Mapping[str, Any]) -> bool:
    return bool(status["gate"]["closed"]) is closed


def _episode(check: str) -> Episode:
    (episode,) = failed_node().episodes
    return msgspec.structs.replace(episode, check=check, last_seen=at())


def test_a_check_that_nothing_is_said_of_reaches_as_far_as_its_site() -> None:
    """Checks of other distributions follow the site."""
    assert Modes(GATE).of(_episode("elsewhere").check) is GATE
