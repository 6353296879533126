"""Power, PCIe and links: limits that the device reports, and counters that grow."""

from __future__ import annotations

import msgspec
import pytest
from fakes.views import (
    BAD,
    COMPUTE,
    GPU,
    GPU_READINGS,
    LINKS,
    PCIE,
    SCOPE,
    SIBLING,
    at,
    bad,
    gpu,
    healthy,
    judge,
    link,
    of,
    sample,
    with_samples,
)

from nodevet.checks.core.model import (
    WHOLE,
    Action,
    Clearing,
    FaultClass,
    Link,
    Outcome,
    Part,
    PartKind,
    Reading,
    ReadingStatus,
    Scalar,
)
from nodevet.checks.engine.view import KnownDevices, Seen

PASS, WARN, FAIL, SKIPPED = Outcome.PASS, Outcome.WARN, Outcome.FAIL, Outcome.SKIPPED


@pytest.mark.parametrize(
    ("check", "code", "quantity", "part", "value", "outcome"),
    [
        ("power", "power.over_limit", "power_watts", SCOPE, 771, WARN),
        ("power", "power.over_limit", "power_watts", SCOPE, 769, PASS),
        ("pcie", "pcie.width", "pcie_link_width", PCIE, 8, WARN),
        ("pcie", "pcie.generation", "pcie_link_generation", PCIE, 3, WARN),
        ("links", "link.down", "link_active", link(17), False, FAIL),
        ("links", "fabric.health", "fabric_healthy", WHOLE, False, FAIL),
        ("links", "fabric.state", "fabric_state", WHOLE, "not_started", FAIL),
        ("links", "fabric.state", "fabric_state", WHOLE, "in_progress", FAIL),
        ("links", "fabric.state", "fabric_state", WHOLE, "failed", FAIL),
    ],
)
def test_state_is_judged_and_its_healthy_twin_passes(
    check: str, code: str, quantity: str, part: Part, value: Scalar, outcome: Outcome
) -> None:
    """The fault is told, the healthy node passes under the same key, a missing reading does neither."""
    finding = of(judge(check, healthy({(quantity, part): value})), code, part=part)
    assert finding.outcome is outcome
    twin = of(judge(check, healthy()), code, part=part)
    assert (twin.outcome, twin.key) == (PASS, finding.key)
    for status in BAD:
        missing = of(judge(check, healthy({(quantity, part): bad(quantity, part, status)})), code, part=part)
        assert missing.outcome is (SKIPPED if status is ReadingStatus.UNSUPPORTED else Outcome.UNMEASURED)


@pytest.mark.parametrize(
    ("check", "code", "quantity", "part", "amount", "outcome"),
    [
        ("pcie", "pcie.replay_rate", "pcie_replays", PCIE, 6, PASS),
        ("pcie", "pcie.replay_rate", "pcie_replays", PCIE, 7, WARN),
        ("pcie", "pcie.correctable_rate", "pcie_correctable_errors", PCIE, 5, PASS),
        ("pcie", "pcie.correctable_rate", "pcie_correctable_errors", PCIE, 6, WARN),
        ("pcie", "pcie.nonfatal", "pcie_nonfatal_errors", PCIE, 1, WARN),
        ("pcie", "pcie.fatal", "pcie_fatal_errors", PCIE, 1, FAIL),
        ("links", "link.replay", "link_replay_errors", link(0), 1, WARN),
        ("links", "link.recovery", "link_recovery_errors", link(0), 1, WARN),
        ("links", "link.effective", "link_effective_errors", link(0), 1, WARN),
        ("links", "link.crc_rate", "link_crc_errors", link(0), 999, PASS),
        ("links", "link.crc_rate", "link_crc_errors", link(0), 1000, WARN),
    ],
)
def test_counter_is_judged_by_its_growth_in_ten_seconds(
    check: str, code: str, quantity: str, part: Part, amount: float, outcome: Outcome
) -> None:
    """The limits hold for rates; what the counter held before is history, and without growth nothing is judged."""
    assert of(judge(check, healthy(growth={(quantity, part): amount})), code).outcome is outcome
    assert of(judge(check, healthy({(quantity, part): 10**6})), code).outcome is PASS
    first = msgspec.structs.replace(healthy(), growth={})
    assert of(judge(check, first), code).outcome is SKIPPED


@pytest.mark.parametrize(
    ("now", "highest", "configured", "replays", "outcome"),
    [
        (1, 5, None, 6, PASS),
        (1, 5, None, 7, WARN),
        (1, None, None, 1, PASS),
        (1, None, None, 2, WARN),
        (1, 5, 4, 3, PASS),
        (1, 5, 4, 4, WARN),
        (5, 1, None, 6, PASS),
    ],
)
def test_packets_sent_again_count_by_the_speed_that_the_link_may_have_had(
    now: int, highest: int | None, configured: int | None, replays: int, outcome: Outcome
) -> None:
    """A board that idles at the moment of the look sent them at its full speed."""
    states = {("pcie_link_generation", PCIE): now, ("pcie_link_generation_maximum", PCIE): highest}
    view = healthy(states, growth={("pcie_replays", PCIE): replays})
    assert of(judge("pcie", view, generation=configured), "pcie.replay_rate").outcome is outcome


def test_growth_that_ended_with_an_earlier_sample_is_not_judged_again() -> None:
    """A growth belongs to the sample that it was computed for."""
    view = healthy(growth={("pcie_fatal_errors", PCIE): 3})
    key = (GPU, "pcie_fatal_errors", PCIE)
    old = msgspec.structs.replace(view.growth[key], until=view.now)
    view = msgspec.structs.replace(view, growth={**view.growth, key: old})
    assert of(judge("pcie", view), "pcie.fatal").outcome is SKIPPED


@pytest.mark.parametrize("utilization", [0.0, 0.49, bad("utilization_ratio", COMPUTE), None])
def test_generation_is_not_judged_at_idle_or_blind(utilization: Scalar | None) -> None:
    """Links drop their generation at idle, so idle boards raise no alarm; without knowing the load neither."""
    view = healthy({("utilization_ratio", COMPUTE): utilization, ("pcie_link_generation", PCIE): 1})
    assert of(judge("pcie", view), "pcie.generation").outcome is SKIPPED


@pytest.mark.parametrize(("seconds", "outcome"), [(1, WARN), (10, SKIPPED), (-10, SKIPPED)])
def test_generation_is_judged_by_the_load_of_its_own_moment(seconds: float, outcome: Outcome) -> None:
    """Read at idle, then a job began: the slow group's generation says nothing about the load of a later round."""
    view = healthy({("utilization_ratio", COMPUTE): None, ("pcie_link_generation", PCIE): 1})
    later = sample(gpu(), {("utilization_ratio", COMPUTE): 0.99}, seconds, group="other")
    assert of(judge("pcie", with_samples(view, later)), "pcie.generation").outcome is outcome


def test_fatal_pcie_error_stays_until_it_is_disproved() -> None:
    """It is a hardware event: one look, and a pass does not end it."""
    finding = of(judge("pcie", healthy(growth={("pcie_fatal_errors", PCIE): 1})), "pcie.fatal")
    assert (finding.clearing, finding.hard, finding.action) == (Clearing.HARDWARE_EVENT, True, Action.REBOOT)


States = dict[tuple[str, Part], Scalar | Reading | None]

ALL_DOWN: States = {("link_active", link(port)): False for port in range(LINKS)}


def test_link_of_an_unbridged_board_raises_no_alarm() -> None:
    """All links down, never up, no neighbour that has them, no table: health of a board without bridge."""
    board = gpu(model="NVIDIA H100 PCIe")
    view = healthy(ALL_DOWN, device=board, memory=KnownDevices())
    assert {f.outcome for f in judge("links", view) if f.code == "link.down" and f.device == GPU} == {SKIPPED}


def test_fabric_that_never_came_up_is_told_by_the_table() -> None:
    """Eighteen links belong to this model, although nobody ever saw one up on either board."""
    board, other = gpu(model="NVIDIA H200"), gpu(SIBLING, "0000:2b:00.0", model="NVIDIA H200")
    view = healthy(ALL_DOWN, device=board, memory=KnownDevices())
    view = with_samples(view, sample(other, {**GPU_READINGS, **ALL_DOWN}))
    view = msgspec.structs.replace(view, devices=(board, other))
    findings = judge("links", view)
    down = [f for f in findings if f.code == "link.all_down" and f.outcome is FAIL]
    assert [f.device for f in down] == [GPU, SIBLING]
    assert all("all 18 links are down although NVIDIA H200 has 18 links" in f.message for f in down)
    assert {f.outcome for f in findings if f.code == "link.down"} == {SKIPPED}  # one cause is told once


def test_board_alone_has_nobody_to_link_to() -> None:
    """One board of a baseboard, lent to a virtual machine, has its links down in health."""
    board = gpu(model="NVIDIA H200")
    view = msgspec.structs.replace(healthy(ALL_DOWN, device=board, memory=KnownDevices()), devices=(board,))
    assert {f.outcome for f in judge("links", view) if f.code == "link.down"} == {SKIPPED}


def test_link_that_was_up_before_is_missed() -> None:
    """What the node remembers counts, even for a model that the table does not know."""
    board = gpu(model="a board of tomorrow")
    view = healthy({("link_active", link(3)): False}, device=board)
    seen = {GPU: msgspec.structs.replace(view.memory.seen[GPU], links_up=(3,))}
    finding = of(judge("links", msgspec.structs.replace(view, memory=KnownDevices(seen))), "link.down", part=link(3))
    assert (finding.outcome, finding.action) == (FAIL, Action.DRAIN_RESET)
    assert "before" in finding.message


@pytest.mark.parametrize(("peer", "outcome"), [("switch", FAIL), ("0000:3b:00.0", SKIPPED), (None, SKIPPED)])
def test_link_that_a_sibling_has_to_a_switch_is_missed(peer: str | None, outcome: Outcome) -> None:
    """Behind a switch all have the same ports; a bridge joins two boards and leaves the third without."""
    ports = tuple(Link(port, peer) for port in range(LINKS))
    board = gpu(model="a board of tomorrow")
    other = gpu(SIBLING, "0000:2b:00.0", model="a board of tomorrow", links=ports)
    view = healthy({("link_active", link(3)): False}, device=board, memory=KnownDevices())
    view = msgspec.structs.replace(view, devices=(board, other))
    assert of(judge("links", view), "link.down", part=link(3)).outcome is outcome


def test_link_of_another_model_says_nothing() -> None:
    """Boards of different make have different ports."""
    ports = tuple(Link(port, "switch") for port in range(LINKS))
    board, other = gpu(model="a board of tomorrow"), gpu(SIBLING, "0000:2b:00.0", model="another", links=ports)
    view = healthy({("link_active", link(3)): False}, device=board, memory=KnownDevices())
    view = msgspec.structs.replace(view, devices=(board, other))
    assert of(judge("links", view), "link.down", part=link(3)).outcome is SKIPPED


def test_link_of_a_partitioned_device_is_not_judged() -> None:
    """With instances (MIG) the driver reports links as down, whether it says so or lists the instances."""
    told = healthy({**ALL_DOWN, ("partitioned", WHOLE): True})
    listed = healthy(ALL_DOWN)
    listed = msgspec.structs.replace(listed, devices=(*listed.devices, gpu("MIG-1", "0000:1b:00.0", parent=GPU)))
    for view in (told, listed):
        assert {f.outcome for f in judge("links", view) if f.code == "link.down" and f.device == GPU} == {SKIPPED}


def test_link_of_a_board_that_keeps_its_links_when_split_is_judged() -> None:
    """A board that tells its partition mode has its links for all partitions together."""
    view = healthy({("link_active", link(3)): False, ("compute_partition", WHOLE): "cpx"})
    view = msgspec.structs.replace(view, devices=(*view.devices, gpu("part-1", "0000:1b:00.0", parent=GPU)))
    assert of(judge("links", view), "link.down", part=link(3)).outcome is FAIL


@pytest.mark.parametrize("unused", [0, LINKS])
def test_a_port_that_a_board_leaves_out_counts_for_none(unused: int) -> None:
    """Which of its ports a board does not use differs by its slot; the table says how many it uses."""
    parts: States = {("link_active", link(port)): True for port in range(LINKS + 1)}
    broken = LINKS - unused or 1
    states: States = parts | {
        ("link_active", link(unused)): bad("link_active", link(unused), ReadingStatus.UNSUPPORTED),
        ("link_active", link(broken)): False,
    }
    view = healthy(states, memory=KnownDevices())
    view = msgspec.structs.replace(view, devices=(*view.devices, gpu(SIBLING, "0000:2b:00.0")))
    findings = judge("links", view)
    assert of(findings, "link.down", part=link(unused)).outcome is SKIPPED
    assert of(findings, "link.down", part=link(broken)).outcome is FAIL


def test_a_board_that_uses_fewer_links_than_its_model_has_is_told() -> None:
    """A link that was never up on this node may have failed before the agent came: the count shows it."""

    def states(used: int) -> States:
        absent = (link(port) for port in range(used, LINKS + 1))
        unused = {("link_active", part): bad("link_active", part, ReadingStatus.UNSUPPORTED) for part in absent}
        up: States = {("link_active", link(port)): True for port in range(used)}
        return {**up, **unused}

    for used, outcome in ((LINKS, PASS), (LINKS - 1, Outcome.WARN), (0, SKIPPED)):
        finding = of(
            judge("links", healthy(states(used), memory=KnownDevices())), "link.fewer", part=Part(PartKind.LINK)
        )
        assert finding.outcome is outcome, used
    few = healthy(states(LINKS - 1), memory=KnownDevices())
    told = of(judge("links", few), "link.fewer", part=Part(PartKind.LINK))
    assert f"uses {LINKS - 1} links, NVIDIA H100 80GB HBM3 has {LINKS}" in told.message
    alone = msgspec.structs.replace(few, devices=few.devices[:1])
    codes = {finding.code for finding in judge("links", alone)}
    assert "link.fewer" not in codes
    assert of(judge("links", few, expected=LINKS - 1), "link.fewer", part=Part(PartKind.LINK)).outcome is PASS


def test_a_port_that_was_up_and_is_left_out_now_is_down() -> None:
    """Only where the others still tell: a release that tells nothing of links took none down."""
    memory = KnownDevices({GPU: Seen(gpu(), at(), at(), links_up=tuple(range(LINKS)))})
    gone: States = {("link_active", link(3)): bad("link_active", link(3), ReadingStatus.UNSUPPORTED)}
    every: States = {
        ("link_active", link(p)): bad("link_active", link(p), ReadingStatus.UNSUPPORTED) for p in range(LINKS)
    }
    for readings, outcome in (
        (gone, FAIL),
        (every, SKIPPED),
        ({**gone, ("partitioned", WHOLE): True}, SKIPPED),
    ):
        finding = of(judge("links", healthy(readings, memory=memory)), "link.down", part=link(3))
        assert (finding.outcome, "was up before" in finding.message) == (outcome, outcome is FAIL)


def test_fabric_state_is_a_matter_of_configuration() -> None:
    """Nobody replaces a board because its fabric manager is down; that it is on its way must be seen thrice."""
    failed = of(judge("links", healthy({("fabric_state", WHOLE): "failed"})), "fabric.state")
    coming = of(judge("links", healthy({("fabric_state", WHOLE): "in_progress"})), "fabric.state")
    assert (failed.fault_class, failed.hard, coming.hard) == (FaultClass.CONFIGURATION, True, False)


def test_power_limit_that_the_site_means_is_no_finding() -> None:
    """A site that caps its boards says so once."""
    view = healthy({("power_limit_requested_watts", SCOPE): 500})
    assert of(judge("power", view, limit_watts=500.0), "power.limit_lowered").outcome is PASS
    assert of(judge("power", view, limit_watts=600.0), "power.limit_lowered").outcome is WARN


@pytest.mark.parametrize("status", [status for status in BAD if status is not ReadingStatus.UNSUPPORTED])
def test_limit_that_cannot_be_read_is_not_compared(status: ReadingStatus) -> None:
    """Neither what is in force nor the vendor's default stands in for what somebody may have asked for."""
    for quantity in ("power_limit_requested_watts", "power_limit_default_watts"):
        view = healthy({(quantity, SCOPE): bad(quantity, SCOPE, status)})
        assert of(judge("power", view), "power.limit_lowered").outcome is Outcome.UNMEASURED
    assert of(judge("power", healthy()), "power.limit_lowered").outcome is PASS


@pytest.mark.parametrize("utilization", [0.0, 0.97, bad("utilization_ratio", COMPUTE), None])
def test_full_generation_is_well_whenever_it_is_seen(utilization: Scalar | None) -> None:
    """A board that showed its full generation at idle proved that it has it."""
    view = healthy({("utilization_ratio", COMPUTE): utilization})
    assert of(judge("pcie", view), "pcie.generation").outcome is PASS


@pytest.mark.parametrize(("seen", "outcome"), [(4, PASS), (5, PASS), (3, WARN), (1, WARN)])
@pytest.mark.parametrize("highest", [5, None, bad("pcie_link_generation_maximum", PCIE)])
def test_generation_of_the_slot_may_be_configured(
    seen: int, outcome: Outcome, highest: Scalar | Reading | None
) -> None:
    """AMD SMI tells the highest of the board alone, and one in an older slot is well with what that gives."""
    told = {("pcie_link_generation", PCIE): seen, ("pcie_link_generation_maximum", PCIE): highest}
    view = healthy({**told, ("utilization_ratio", COMPUTE): 0.99})
    finding = of(judge("pcie", view, generation=4), "pcie.generation")
    assert (finding.outcome, finding.hard) == (outcome, False)
    assert highest != 5 or of(judge("pcie", view), "pcie.generation").outcome is (PASS if seen == 5 else WARN)
    idle = healthy({**told, ("utilization_ratio", COMPUTE): 0.0})
    assert of(judge("pcie", idle, generation=4), "pcie.generation").outcome in (PASS, SKIPPED)


def test_unreadable_power_is_told() -> None:
    """That power cannot be read is unmeasured, not zero watts."""
    finding = of(judge("power", healthy({("power_watts", SCOPE): bad("power_watts", SCOPE)})), "power.reading")
    assert finding.outcome is Outcome.UNMEASURED
