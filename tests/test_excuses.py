"""What excuses a reading, and what a driver calls a port: one answer that did not come makes no fault of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.amdsmi.scenario import FakeAmdSmi
from fakes.rig import Rig
from fakes.views import GPU_READINGS, LINKS, SIBLING, Quantity, at, bad, fault, gpu, link, sample
from test_engine import Desk
from test_split_boards import Driver, backend_of, links

from nodevet.checks.backends.nvidia import nvml
from nodevet.checks.core.model import (
    WHOLE,
    Clearing,
    EpisodeState,
    Outcome,
    Part,
    PartKind,
    Reading,
    ReadingStatus,
    Scalar,
    State,
)
from nodevet.checks.core.quantities import is_implausible
from nodevet.checks.engine.baseline import links_noted, without_ports
from nodevet.checks.engine.disproof import Evidence
from nodevet.checks.engine.episodes import Ledger, fold
from nodevet.checks.engine.view import KnownDevices, Seen

Readings = dict[Quantity, Scalar | Reading | None]
ERROR, UNAVAILABLE, DENIED = ReadingStatus.ERROR, ReadingStatus.UNAVAILABLE, ReadingStatus.DENIED
UNSUPPORTED = ReadingStatus.UNSUPPORTED
DRAM = Part(PartKind.MEMORY_BLOCK, "dram")
BOARD = Part(PartKind.POWER_SCOPE, "device")
DARK: Readings = {("link_active", link(port)): False for port in range(LINKS)}
NO_REPAIRS: Readings = {("row_remap_failed", WHOLE): bad("row_remap_failed", status=UNSUPPORTED)}
NO_COUNTS: Readings = {
    key: bad(*key, UNSUPPORTED) for key in GPU_READINGS if key[0] in ("ecc_uncorrected_errors", "ecc_corrected_errors")
}
EXCUSED: dict[str, tuple[Readings, State]] = {
    "partitioned": ({("partitioned", WHOLE): True, **DARK, **NO_REPAIRS}, State.OK),
    "ecc_enabled": ({("ecc_enabled", WHOLE): False, **NO_COUNTS}, State.DEGRADED),
}
SETTLED_SECONDS = 5000.0
MODELS = {"nvidia": gpu().model, "amd": "AMD Instinct MI300X"}
UP, NOT_IN_USE = 1, 2
"""What AMD SMI says of a port."""


def states(desk: Desk, *looks: Readings, vendor: str = "nvidia") -> list[State]:
    """Return the verdict after each of *looks* at the first board of two of *vendor*, ten seconds apart."""
    make = {"vendor": vendor, "model": MODELS[vendor]}
    found = []
    for changes in looks:
        desk.seconds += 10
        desk.present(gpu(**make), gpu(SIBLING, "0000:2b:00.0", **make))
        desk.read(changes)
        desk.read(identity=SIBLING)
        found.append(desk.round(0).snapshot.verdict.state)
    return found


def restarted(desk: Desk) -> Desk:
    """Return the desk of an agent that goes on from what this one kept."""
    after = Desk()
    after.seconds = desk.seconds
    after.engine.restore(desk.engine.memory())
    return after


@pytest.mark.parametrize("status", [ERROR, UNAVAILABLE, DENIED, UNSUPPORTED])
@pytest.mark.parametrize("quantity", EXCUSED)
def test_one_look_without_an_excuse_takes_it_from_nothing(quantity: str, status: ReadingStatus) -> None:
    """A board that is split has its links down, and one without error correction counts nothing."""
    well, state = EXCUSED[quantity]
    odd: Readings = {**well, (quantity, WHOLE): bad(quantity, status=status)}
    assert states(Desk(), well, well, odd, well, odd, odd, well) == [state] * 7


@pytest.mark.parametrize("quantity", EXCUSED)
def test_an_excuse_that_was_never_had_makes_a_board_unknown_until_it_is(quantity: str) -> None:
    """Such as after a restart of the agent: it is no fault, and it is over with the first answer."""
    well, state = EXCUSED[quantity]
    odd: Readings = {**well, (quantity, WHOLE): bad(quantity, status=ERROR)}
    desk = Desk()
    states(desk, well, well)
    assert states(restarted(desk), odd, odd, well) == [State.UNKNOWN, State.UNKNOWN, state]


def test_an_excuse_that_is_old_is_none_and_makes_no_fault() -> None:
    """Whether it is split is known for as long as a sample is good; then the board is unknown, and never failed."""
    well, _ = EXCUSED["partitioned"]
    odd: Readings = {**well, ("partitioned", WHOLE): bad("partitioned", status=ERROR)}
    found = states(Desk(), well, *(odd,) * 8, well)
    assert found == [State.OK] * 4 + [State.UNKNOWN] * 5 + [State.OK]


def test_links_of_a_board_that_was_whole_a_moment_ago_are_missed_at_once() -> None:
    """That it does not say so this time hides no fault; nor where a link is up, as none of a split one is."""
    odd: Readings = {("partitioned", WHOLE): bad("partitioned", status=ERROR)}
    assert states(Desk(), {}, {**DARK, **odd}) == [State.OK, State.FAILED]
    assert states(Desk(), {("link_active", link(3)): False, **odd}) == [State.FAILED]


def test_dark_board_that_never_says_whether_it_is_split_is_not_ok() -> None:
    """Nothing else is missing of it: what would excuse it must be told."""
    odd: Readings = {("partitioned", WHOLE): bad("partitioned", status=DENIED)}
    assert states(Desk(), *({**DARK, **odd},) * 6) == [State.UNKNOWN] * 6


def test_one_look_without_the_energy_closes_no_gate() -> None:
    """A driver that was loaded anew trains its links: that one call fails meanwhile is no reason to drain."""
    little: Readings = {**DARK, ("energy_joules", BOARD): 900.0}
    odd: Readings = {**DARK, ("energy_joules", BOARD): bad("energy_joules", BOARD, ERROR)}
    desk = Desk()
    desk.seconds = SETTLED_SECONDS
    hard = []
    for changes in (little, odd, little, *(odd,) * 5):
        states(desk, changes)
        hard.append(any(episode.finding.hard for episode in desk.engine.episodes))
    assert hard == [False] * 6 + [True] * 2


def test_what_is_not_owed_any_more_ends_what_was_missing() -> None:
    """A share of a board whose mode is told late was unknown for ever: what it does not owe is never measured."""
    untold: Readings = {key: bad(*key, UNSUPPORTED) for key in GPU_READINGS if key[0] == "clock_hertz"}
    desk = Desk()
    assert states(desk, untold) == [State.UNKNOWN]
    desk.seconds += 10
    desk.present(gpu(virtual=True), gpu(SIBLING, "0000:2b:00.0"))
    desk.read(untold)
    desk.read(identity=SIBLING)
    assert desk.round(0).snapshot.verdict.state is State.OK


@pytest.mark.parametrize(
    ("changes", "is_over"),
    [({}, True), ({"evidence_time": None}, False), ({"clearing": Clearing.CONDITION}, False)],
)
def test_only_a_look_that_shows_it_is_not_owed_ends_what_is_missing(changes: dict[str, Any], is_over: bool) -> None:
    """A reader that was not asked yet, or a rule that does not apply now, shows nothing of the kind."""
    missing = fault("reading.clock_hertz", Outcome.UNMEASURED, clearing=Clearing.UNMEASURED, required=True)
    ledger, _ = fold(Ledger(), [missing], Evidence(now=at(10)))
    skipped = msgspec.structs.replace(missing, outcome=Outcome.SKIPPED, required=False, evidence_time=at(20))
    ledger, _ = fold(ledger, [msgspec.structs.replace(skipped, **changes)], Evidence(now=at(20)))
    assert (not ledger.episodes) is is_over
    broken = msgspec.structs.replace(missing, outcome=Outcome.FAIL)
    ledger, _ = fold(Ledger(), [broken], Evidence(now=at(30)))
    ledger, _ = fold(ledger, [skipped], Evidence(now=at(40)))
    assert ledger.episodes, "a fault is not over because nobody asks"


# ---- A board that is listed while its driver refuses questions ------------------------------------------------

REFUSALS = sorted({4, 6, 8, 14, 17, 20, 22, 23, 24, nvml.UNKNOWN} | nvml.UNAVAILABLE)


@pytest.mark.parametrize("code", REFUSALS)
def test_links_that_are_refused_while_a_board_is_listed_are_not_none(tmp_path: Path, code: int) -> None:
    """No permission and no memory say nothing of the links; that there are none would be all of them down, hard."""
    driver = Driver()
    driver.refusal = code
    backend = backend_of(driver, tmp_path)
    (board,) = backend.devices()
    assert ReadingStatus.UNSUPPORTED not in links(backend, board)
    driver.refusal = 0
    (board,) = backend.devices()
    assert len(board.links) == LINKS
    assert links(backend, board) == [ReadingStatus.OK] * LINKS


@pytest.mark.parametrize("code", [4, 20, nvml.UNKNOWN])
def test_board_that_did_not_say_whether_it_is_a_share_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Else one answer that did not come while the reader started decides what it owes until it starts anew."""
    driver = Driver()
    driver.answers["nvmlDeviceGetName"] = "GRID A100X-40C"
    driver.is_split = True  # a share has no links, which would have it asked again as well
    answer = driver._answer

    def refuse(symbol: str, arguments: tuple[object, ...]) -> object:
        if symbol == "nvmlDeviceGetVirtualizationMode":
            driver._refuse(code)
        return answer(symbol, arguments)

    with monkeypatch.context() as patched:
        patched.setattr(driver, "_answer", refuse)
        backend = backend_of(driver, tmp_path)
        (board,) = backend.devices()
        assert not board.virtual
    driver.answers["nvmlDeviceGetVirtualizationMode"] = 2
    (board,) = backend.devices()
    assert board.virtual


# ---- Ports that get other numbers -----------------------------------------------------------------------------


def ports(up: set[int], left_out: set[int]) -> Readings:
    """Return what a board with eight ports tells of them; those that are neither are down."""
    unused = {port: bad("link_active", link(port), UNSUPPORTED) for port in left_out}
    return {("link_active", link(port)): unused.get(port, port in up) for port in range(8)}


@pytest.mark.parametrize(
    ("up", "left_out", "forgotten"),
    [
        ({0, 1, 2, 3, 4, 6, 7}, {5}, {5}),
        ({1, 2, 3, 4, 5, 6, 7}, {0}, {0}),
        ({0, 1, 2, 3, 6, 7}, {5}, {5}),  # and port 4 is down
        ({0, 1, 2, 3, 4, 5, 6}, {7}, set()),
        ({0, 1, 2, 3, 4, 6}, {5, 7}, set()),  # a port is left out and none came
        ({0, 1, 2, 3, 4, 7}, {5, 6}, set()),  # two are left out and one came
    ],
)
def test_as_many_new_ports_as_are_left_out_are_other_numbers(
    up: set[int], left_out: set[int], forgotten: set[int]
) -> None:
    """No link moves to another port by itself."""
    before = set(range(7))
    told = sample(gpu(), ports(up, left_out))
    noted, old = links_noted(before, told, [gpu(SIBLING), gpu(vendor="amd")])
    assert old == forgotten
    for listed in ([gpu(), gpu(SIBLING, vendor="amd")], [gpu(vendor="acme")], []):
        assert links_noted(before, told, listed) == (frozenset(up), frozenset()), (
            "no other vendor's driver renumbers its ports"
        )
    assert (7 in noted) is (bool(forgotten) and 7 in up)
    seen = Seen(gpu(), at(), at(), tuple(sorted(before)))
    kept = without_ports(KnownDevices({gpu().id: seen}), gpu().id, forgotten).seen[gpu().id]
    assert set(kept.links_up) == before - forgotten


def links_down(desk: Desk) -> set[int | None]:
    """Return the ports of the first board that count as down."""
    return {entry.key.part.index for entry in desk.engine.episodes if entry.key.code == "link.down"}


@pytest.mark.parametrize("restarts", [False, True])
def test_ports_that_come_up_later_under_other_numbers_are_not_missed_for_ever(restarts: bool) -> None:
    """One of them is still down in the first look: then the old numbers seem to be left out, until it is up."""
    old = ports({0, 1, 2, 3, 4, 5}, {6, 7})
    desk = Desk()
    desk.seconds = SETTLED_SECONDS
    states(desk, old, old, vendor="amd")
    states(desk, ports({0, 1, 2, 3, 6}, {4, 5}), vendor="amd")
    assert links_down(desk) == {4, 5, 7}
    desk = restarted(desk) if restarts else desk
    states(desk, ports({0, 1, 2, 3, 6, 7}, {4, 5}), vendor="amd")
    assert links_down(desk) == {7}
    states(desk, *(ports({0, 1, 2, 3, 6, 7}, {4, 5}),) * 3, vendor="amd")
    assert links_down(desk) == set()
    states(desk, ports({0, 1, 2, 3, 6}, {4, 5, 7}), vendor="amd")
    assert links_down(desk) == {7}, "what is left out under its new number is missed"


@pytest.mark.parametrize("restarts", [False, True])
def test_a_link_that_vanished_is_missed_whatever_other_port_came_up(restarts: bool) -> None:
    """A port of NVLink keeps its number: one that is not in use any more is a lost link, also after a reboot."""
    desk = Desk()
    desk.seconds = SETTLED_SECONDS
    before = ports({0, 1, 2, 3, 4, 5, 6}, {7})
    assert State.FAILED not in states(desk, before, before)
    desk = restarted(desk) if restarts else desk
    assert states(desk, *(ports({0, 1, 2, 4, 5, 6, 7}, {3}),) * 3)[-1] is State.FAILED
    assert links_down(desk) == {3}


def test_answer_that_means_nothing_is_an_odd_value_and_no_refusal(tmp_path: Path) -> None:
    """A torn flag of failed row repairs counts once the reading before it is old, as any other odd value does."""
    driver = Driver()
    backend = backend_of(driver, tmp_path)
    (board,) = backend.devices()
    for flag, is_odd in ((1, False), (65535, True), (0, False)):
        driver.answers["nvmlDeviceGetRemappedRows"] = [0, 0, 0, flag]
        (told,) = (entry for entry in backend.read("fast", board) if entry.quantity == "row_remap_failed")
        assert is_implausible(told) is is_odd
        assert told.status is (ERROR if is_odd else ReadingStatus.OK)
        assert not is_odd or "nvmlDeviceGetRemappedRows: its answer is implausible: 65535" in told.detail


def test_what_only_a_retest_ends_outlasts_the_number_of_its_port() -> None:
    """Nothing but a condition is seen anew under the other number; and what is no link has no such number."""
    now, part = Evidence(now=at(10)), link(5)
    down = fault("link.down", part=part, clearing=Clearing.CONDITION)
    kept = [
        fault("link.broke", part=part, clearing=Clearing.HARDWARE_EVENT),
        fault("link.down", part=link(6), clearing=Clearing.CONDITION),
        fault("memory.high", part=Part(PartKind.MEMORY_BLOCK, "dram", 5), clearing=Clearing.CONDITION),
    ]
    ledger, _ = fold(Ledger(), [down, *kept], now)
    old = frozenset({(down.device, part.index)})
    ledger, (ended,) = fold(ledger, [], Evidence(now=at(20), old_ports=old))
    assert (ended.key, ended.state) == (down.key, EpisodeState.CLEARED)
    assert {episode.key for episode in ledger.episodes} == {finding.key for finding in kept}


@pytest.mark.parametrize("reboots", [True, False])
def test_driver_that_numbers_its_ports_anew_fails_no_board(fake_amdsmi: FakeAmdSmi, reboots: bool) -> None:
    """amdgpu did at an update, on each board of each node alike; a port that is really left out is missed as before."""
    fake_amdsmi.set("links", 8).update({f"link_state.{slot}.7": NOT_IN_USE for slot in range(8)})
    with Rig(fake_amdsmi) as rig:
        assert rig.look(3).verdict.state is State.OK
        for slot in range(8):
            fake_amdsmi.update({f"link_state.{slot}.7": UP, f"link_state.{slot}.5": NOT_IN_USE})
        if reboots:
            rig.reboot()
        assert {rig.look().verdict.state for _ in range(3)} == {State.OK}
        fake_amdsmi.set("link_state.2.6", NOT_IN_USE)
        snapshot = rig.look()
        assert snapshot.verdict.state is State.FAILED
        assert "link 6" in snapshot.verdict.reason
