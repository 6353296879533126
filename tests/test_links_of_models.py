"""Every part that has links: what it must tell of them, how many it has up, and what is said when all are down."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fakes.views import (
    GPU,
    GPU_READINGS,
    LINKS,
    SIBLING,
    at,
    bad,
    gpu,
    healthy,
    judge,
    link,
    of,
    reader,
    sample,
    with_samples,
)

from nodevet.checks.core.model import (
    NODE,
    WHOLE,
    Action,
    Device,
    DeviceKind,
    FaultClass,
    Finding,
    Outcome,
    Part,
    PartKind,
    Reading,
    ReadingStatus,
    Scalar,
    State,
)
from nodevet.checks.engine.baseline import requirements
from nodevet.checks.engine.disproof import Evidence
from nodevet.checks.engine.episodes import Ledger, fold
from nodevet.checks.engine.registry import discover
from nodevet.checks.engine.standing import verdict
from nodevet.checks.engine.view import KnownDevices, Seen, View
from nodevet.checks.health.links import ALL_DOWN, NOT_JOINED
from nodevet.checks.reference.expected_links import Which, expected_links

EVERY: dict[str, int] = {
    "Tesla P100-SXM2-16GB": 4,
    "Tesla V100-SXM2-16GB": 6,
    "Tesla V100-SXM2-32GB": 6,
    "Tesla V100-SXM3-32GB": 6,
    "Tesla V100-DGXS-16GB": 4,
    "Tesla V100-DGXS-32GB": 4,
    "NVIDIA A100-SXM4-40GB": 12,
    "NVIDIA A100-SXM4-80GB": 12,
    "NVIDIA A800-SXM4-80GB": 8,
    "NVIDIA H100 80GB HBM3": 18,
    "NVIDIA H100 SXM5 64GB": 18,
    "NVIDIA H800": 8,
    "NVIDIA H20": 18,
    "NVIDIA H20-3e": 18,
    "NVIDIA H200": 18,
    "NVIDIA GH200 480GB": 18,
    "NVIDIA GH200 144G HBM3e": 18,
    "NVIDIA B200": 18,
    "NVIDIA B300 SXM6 AC": 18,
    "NVIDIA GB200": 18,
    "NVIDIA GB300": 18,
}
BRIDGED: dict[str, int] = {
    "NVIDIA A100 80GB PCIe": 12,
    "NVIDIA A100-PCIE-40GB": 12,
    "NVIDIA A800 80GB PCIe": 8,
    "NVIDIA A30": 4,
    "NVIDIA A40": 4,
    "NVIDIA H100 PCIe": 12,
    "NVIDIA H100 NVL": 12,
    "NVIDIA H800 PCIe": 8,
    "NVIDIA H200 NVL": 18,
}
NONE = ("NVIDIA L40S", "NVIDIA L4", "Tesla T4", "Tesla V100-PCIE-32GB", "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "NVIDIA GeForce RTX 4090", "NVIDIA GB10", "NVIDIA A10", "NVIDIA H100 CNX", "NVIDIA H100X", "NVIDIA A100X",
        "NVIDIA A30X")  # fmt: skip
AMD = {"AMD Instinct MI100": 3, "AMD Instinct MI210": 3, "AMD Instinct MI250X": 3, "AMD Instinct MI300A": 3,
       "AMD Instinct MI300X": 7, "AMD Instinct MI308X": 7, "AMD Instinct MI325X": 7, "AMD Instinct MI350X": 7,
       "AMD Instinct MI355X": 7}  # fmt: skip
GAUDI = {"HL-205": 7, "HL-225": 21, "HL-225H": 21, "HL-325L": 21, "HL-335": 21}
IN_SLOTS = ("HL-200", "HL-202", "HL-328", "HL-338")
TOMORROW = [("volta", "NVIDIA V900-SXM9"), ("ampere", "NVIDIA A900-SXM9"), ("hopper", "NVIDIA H900 SXM9"),
            ("hopper", "NVIDIA H900 99GB HBM9"), ("blackwell", "NVIDIA B900 SXM9"), ("blackwell", "NVIDIA GB900"),
            ("rubin", "NVIDIA R100 SXM7"), ("rubin", "NVIDIA R300")]  # fmt: skip
ALL_LINKS = Part(PartKind.LINK)
States = dict[tuple[str, Part], Scalar | Reading | None]


def node(
    states: dict[int, bool | None], model: str, *, sibling: dict[int, bool | None] | None = None, **more: Any
) -> View:
    """Return two boards of *model* with links up, down, or not supported (None); the second one like the first."""
    board, other = gpu(model=model, **more), gpu(SIBLING, slot="0000:2b:00.0", model=model, **more)
    view = healthy(readings(states), device=board, memory=KnownDevices())
    other_states = states if sibling is None else sibling
    view = with_samples(view, sample(other, {**GPU_READINGS, **readings(other_states)}))
    devices = (board, other)
    return msgspec.structs.replace(view, devices=devices, required={d.id: requirements(d) for d in devices})


def readings(states: dict[int, bool | None]) -> States:
    """Return what a board tells of its links."""
    told: States = {("link_active", link(port)): None for port in range(LINKS)}
    for port, state in states.items():
        unsupported = bad("link_active", link(port), ReadingStatus.UNSUPPORTED)
        told["link_active", link(port)] = unsupported if state is None else state
    return told


def found(view: View) -> list[Finding]:
    """Return what all checks say of the first board."""
    return [
        finding
        for declared in discover()
        for finding in declared.judge(view, declared.policy())
        if finding.device == GPU
    ]


def said(view: View) -> tuple[State, str]:
    """Return the verdict of the first board and its reason."""
    findings = found(view)
    ledger, _ = fold(Ledger(), findings, Evidence(now=view.now, devices=view.devices))
    told = verdict(GPU, ledger.episodes, findings)
    return told.state, told.reason


def ports(count: int, state: bool | None) -> dict[int, bool | None]:
    """Return *count* links in one state."""
    return dict.fromkeys(range(count), state)


@pytest.mark.parametrize(("model", "count"), [*EVERY.items(), *BRIDGED.items()])
def test_board_with_links_must_tell_of_them(model: str, count: int) -> None:
    """The table knows how many it has."""
    row = expected_links(gpu(model=model))
    assert row is not None
    kind = Which.ALIKE if "00-SXM2" in model or "DGXS" in model else Which.EVERY if model in EVERY else Which.BRIDGED
    assert (row.links, row.which) == (count, kind)
    if "PC" not in model and model not in ("NVIDIA A30", "NVIDIA A40"):
        assert "link_active" in requirements(gpu(model=model))


@pytest.mark.parametrize("model", NONE)
def test_board_without_links_owes_none(model: str) -> None:
    """Nothing is required of it, and nothing expected."""
    for architecture in ("turing", "ada", "hopper", "blackwell", None):
        assert expected_links(gpu(model=model, architecture=architecture)) is None
    assert "link_active" not in requirements(gpu(model=model))


@pytest.mark.parametrize("model", ["Thor", "NVIDIA Thor", "Orin (nvgpu)", "Xavier (nvgpu)"])
def test_gpu_within_its_processor_owes_one_reading(model: str) -> None:
    """NVML tells neither its heat nor its clocks, so any one will do; a board in a slot, and GB10, owe both."""
    (owed,) = requirements(gpu(model=model))
    assert {"temperature_celsius", "memory_total_bytes", "utilization_ratio"} <= set(owed.split("|"))
    assert requirements(gpu(model="NVIDIA GB10")) >= {"temperature_celsius", "clock_hertz"}


@pytest.mark.parametrize(("model", "count"), [*AMD.items(), *GAUDI.items()])
def test_links_of_other_vendors_are_known(model: str, count: int) -> None:
    """AMD's boards, and Gaudi whose readings come from a command of the site."""
    vendor = "amd" if model in AMD else "habana"
    row = expected_links(gpu(model=model, vendor=vendor))
    assert row is not None
    assert row.links == count


@pytest.mark.parametrize(("architecture", "model"), TOMORROW)
def test_board_that_no_table_names_is_known_by_its_architecture(architecture: str, model: str) -> None:
    """What it has at least is expected of it; which ports they are is not known."""
    board = gpu(model=model, architecture=architecture)
    row = expected_links(board)
    assert row is not None
    assert row.which is Which.SOME
    assert said(node(ports(row.links, False), model, architecture=architecture))[0] is State.FAILED
    assert said(node(ports(row.links + 18, True), model, architecture=architecture))[0] is State.OK


@pytest.mark.parametrize("model", ["NVIDIA A100-PG509-200", "NVIDIA PG509-210", "NVIDIA PG506-230", "NVIDIA PG506-232"])
def test_module_that_goes_by_the_number_of_its_board_is_not_ok_without_links(model: str) -> None:
    """The makers of large machines order modules of A100 that NVML calls so, and Ampere tells of no fabric."""
    unjoined: States = {("fabric_state", WHOLE): bad("fabric_state")}
    boards = (gpu(model=model), gpu(SIBLING, slot="0000:2b:00.0", model=model))
    for state, verdicts in ((False, State.FAILED), (None, State.UNKNOWN), (True, State.OK)):
        view = node(ports(12, state), model, architecture="ampere")
        told = {**GPU_READINGS, **readings(ports(12, state)), **unjoined}
        assert said(with_samples(view, *(sample(board, told) for board in boards)))[0] is verdicts


@pytest.mark.parametrize(("model", "count"), EVERY.items())
def test_all_links_down_is_never_ok(model: str, count: int) -> None:
    """Whether the ports say so, or no port answers: one finding with its advice, and nothing about permissions."""
    assert said(node(ports(count, True), model))[0] is State.OK
    for state in (False, None):
        view = node(ports(count, state), model)
        verdict_state, reason = said(view)
        assert verdict_state in (State.FAILED, State.UNKNOWN)
        assert "inspect" in reason
        assert not any("permissions" in finding.message for finding in found(view))
    down = [f for f in found(node(ports(count, False), model)) if f.outcome is Outcome.FAIL]
    assert [(f.code, f.part) for f in down] == [("link.all_down", ALL_LINKS)]
    silent = node(ports(count, None), model, sibling=ports(count, True))
    assert of([f for f in found(silent) if f.code == "link.all_down"], "link.all_down").outcome is Outcome.FAIL


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_links_that_are_down_on_both_boards_alike_are_told_in_the_first_look(vendor: str) -> None:
    """Never seen up, on each model that the table knows by its number: no sibling and no memory is needed."""
    models = EVERY | BRIDGED if vendor == "nvidia" else AMD
    for model, count in models.items():
        row = expected_links(gpu(model=model, vendor=vendor))
        assert row is not None
        by_number = row.which is Which.EVERY or (row.bridge or 1) > 1
        for lacking in (1, count - 1):
            states = ports(count, True) | ports(lacking, False)
            state = said(node(states, model, vendor=vendor, backend=vendor))[0]
            some = State.DEGRADED if row.which is Which.SOME else State.OK
            assert state is (State.FAILED if by_number else some), (model, lacking)


def test_all_links_down_names_the_fabric_manager_while_the_fabric_was_not_joined() -> None:
    """A registration that was completed leaves the hardware; one that never was is a matter of the fabric manager."""
    states = readings(ports(LINKS, False))
    for registration, rule in (("completed", ALL_DOWN), ("not_started", NOT_JOINED), ("failed", NOT_JOINED)):
        view = healthy({**states, ("fabric_state", WHOLE): registration}, memory=KnownDevices())
        told = of(judge("links", view), "link.all_down", part=ALL_LINKS)
        assert (told.fault_class, told.action) == (rule.fault_class, rule.action)
        assert ("fabric manager" in told.message) is (rule is NOT_JOINED)
        assert told.hard
    assert (NOT_JOINED.fault_class, NOT_JOINED.action) == (FaultClass.CONFIGURATION, Action.INSPECT)


@pytest.mark.parametrize("registration", ["not_started", "in_progress", "completed", "failed", None])
def test_links_close_no_gate_while_a_node_that_was_booted_joins_its_fabric(registration: str | None) -> None:
    """Told in the first look; the fabric manager starts after the agent, and no agent ends a drain of its own."""
    states = readings(ports(LINKS, False) | {0: True}) | {("fabric_state", WHOLE): registration}
    dark = readings(ports(LINKS, False)) | {("fabric_state", WHOLE): registration}
    for seen in (states, dark):
        for seconds, is_hard in ((0.0, False), (599.0, False), (600.0, True), (86_400.0, True)):
            view = healthy(seen, memory=KnownDevices())
            now = msgspec.structs.replace(view.now, boottime_ns=round(seconds * 1e9))
            bad = [
                f
                for f in judge("links", msgspec.structs.replace(view, now=now, cadences={}))
                if f.outcome is Outcome.FAIL
            ]
            assert bad
            assert any(f.hard for f in bad) is is_hard, (registration, seconds)


@pytest.mark.parametrize(("joules", "is_hard"), [(900.0, False), (29_999.0, False), (30_000.0, True), (0.0, True)])
def test_links_close_no_gate_while_a_driver_that_was_loaded_anew_trains_them(joules: float, is_hard: bool) -> None:
    """Without a boot too: the device counts the energy since then. Exactly none is an empty register."""
    used = {("energy_joules", Part(PartKind.POWER_SCOPE, "device")): joules}
    for states in (readings(ports(LINKS, False)), {("fabric_state", WHOLE): "not_started"}):
        found = [f for f in judge("links", healthy({**states, **used})) if f.outcome is Outcome.FAIL]
        assert found
        assert {finding.hard for finding in found} == {is_hard}


@pytest.mark.parametrize(("seconds", "is_hard"), [(-599, False), (-601, True)])
def test_counter_of_energy_that_stands_still_keeps_no_gate_open_for_ever(seconds: float, is_hard: bool) -> None:
    """While a reader has the driver open, nobody can load it anew."""
    stuck = {("energy_joules", Part(PartKind.POWER_SCOPE, "device")): 900.0}
    readers = (reader("host", since=at(-601)), reader("nvidia", since=at(1 + seconds)))
    view = healthy({**readings(ports(LINKS, False)), **stuck}, readers=readers)
    found = [finding for finding in judge("links", view) if finding.outcome is Outcome.FAIL]
    assert {finding.hard for finding in found} == {is_hard}


@pytest.mark.parametrize("model", BRIDGED)
def test_bridge_is_expected_only_where_one_was_seen(model: str) -> None:
    """Without a bridge all links are down in health; with one the link that is missing is told."""
    count = BRIDGED[model]
    assert said(node(ports(count, False), model))[0] is State.OK
    assert said(node(ports(count, True), model))[0] is State.OK
    broken = {**ports(count, True), 3: False}
    down = of(judge("links", node(broken, model)), "link.down", part=link(3))
    assert down.outcome is Outcome.FAIL
    view = node(ports(count, False), model)
    seen = {GPU: Seen(gpu(model=model), view.now, view.now, links_up=(0, 1))}
    remembered = msgspec.structs.replace(view, memory=KnownDevices(seen))
    assert of(judge("links", remembered), "link.all_down", part=ALL_LINKS).outcome is Outcome.FAIL


def test_ports_that_lead_outside_may_be_down() -> None:
    """Gaudi has 24 ports, of which any three lead outside: only the number that is up counts."""
    up = {port: port not in (0, 8, 22) for port in range(24)}
    board = gpu(model="HL-225", vendor="habana", backend="command gaudi")
    other = gpu(SIBLING, "0000:2b:00.0", model="HL-225", vendor="habana", backend="command gaudi")

    def outcomes(states: dict[int, bool | None]) -> dict[str, set[Outcome]]:
        view = healthy(readings(states), device=board, memory=KnownDevices())
        view = msgspec.structs.replace(view, devices=(board, other))
        told: dict[str, set[Outcome]] = {}
        for finding in judge("links", view):
            if finding.device == GPU:
                told.setdefault(finding.code, set()).add(finding.outcome)
        return told

    assert outcomes(dict(up))["link.fewer"] == {Outcome.PASS}
    assert Outcome.FAIL not in outcomes(dict(up))["link.down"]
    assert outcomes({**up, 5: False})["link.fewer"] == {Outcome.WARN}
    assert outcomes(dict.fromkeys(range(24), False))["link.all_down"] == {Outcome.FAIL}


def test_a_board_alone_is_not_judged_by_the_table() -> None:
    """Lent to a virtual machine it has nobody to link to."""
    view = node(ports(LINKS, False), "NVIDIA GB300")
    alone: tuple[Device, ...] = view.devices[:1]
    codes = {f.code: f.outcome for f in judge("links", msgspec.structs.replace(view, devices=alone))}
    assert Outcome.FAIL not in codes.values()


def in_a_guest(view: View) -> View:
    """Return the view of a virtual machine that was given its boards whole."""
    node = Device(id=NODE, kind=DeviceKind.NODE, vendor="QEMU", model="Standard PC", backend="host", virtual=True)
    return msgspec.structs.replace(view, devices=(*view.devices, node))


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_links_that_a_host_may_keep_back_fail_no_virtual_machine(vendor: str) -> None:
    """All or some of them down, never seen up: degraded, with whom to ask, and quiet where the site says so."""
    for model, count in (EVERY if vendor == "nvidia" else AMD).items():
        for lacking in (count, count - 1, 1):
            view = in_a_guest(node(ports(count, True) | ports(lacking, False), model, vendor=vendor, backend=vendor))
            assert said(view)[0] in (State.DEGRADED, State.OK), (model, lacking)
            told = [finding for finding in judge("links", view) if finding.outcome is not Outcome.PASS]
            assert not any(finding.outcome is Outcome.FAIL for finding in told)
        dark = in_a_guest(node(ports(count, False), model, vendor=vendor, backend=vendor))
        bridged = (expected_links(dark.devices[0]) or pytest.fail(model)).which is Which.BRIDGED
        assert said(dark)[0] is (State.OK if bridged else State.DEGRADED), model
        if not bridged:
            (warned,) = [f for f in judge("links", dark) if f.outcome is Outcome.WARN and f.device == GPU]
            assert (warned.code, warned.fault_class) == ("link.all_down", FaultClass.CONFIGURATION)
            assert "checks.links.expected = 0" in warned.message


@pytest.mark.parametrize(("model", "to_each"), [("NVIDIA H200 NVL", 6), ("NVIDIA A100 80GB PCIe", 12)])
def test_some_boards_of_a_bridge_are_well_in_a_virtual_machine(model: str, to_each: int) -> None:
    """Ports to the boards that it was not given are down there; a part of those to another board is told."""
    count = BRIDGED[model]
    for boards in range(count // to_each + 1):
        states = ports(count, False) | ports(to_each * boards, True)
        assert said(in_a_guest(node(states, model)))[0] is State.OK
        if boards:
            assert said(in_a_guest(node(states | {0: False}, model)))[0] is State.FAILED
    some = ports(count, False) | ports(6, True)
    assert said(node(some, model))[0] is State.FAILED  # of a whole machine


@pytest.mark.parametrize("up", [0, 1, 14, 17])
def test_number_of_the_site_ends_what_was_told_of_links(up: int) -> None:
    """So many are up as it expects, whichever they are: what the advice asks for works, in a virtual machine or not."""
    for make in (in_a_guest, lambda view: view):
        states = ports(LINKS, False) | {LINKS - 1 - port: True for port in range(up)}
        view = make(node(states, "NVIDIA H100 80GB HBM3"))
        ledger, _ = fold(Ledger(), judge("links", view), Evidence(now=view.now, devices=view.devices))
        assert ledger.episodes
        for turn in range(1, 4):
            told = judge("links", view, expected=up)
            later = [msgspec.structs.replace(finding, evidence_time=at(20.0 * turn)) for finding in told]
            ledger, _ = fold(ledger, later, Evidence(now=at(20.0 * turn), devices=view.devices))
        assert ledger.episodes == ()
        assert any(f.outcome is Outcome.FAIL for f in judge("links", view, expected=up + 1))


def test_links_that_a_virtual_machine_once_had_are_missed_there() -> None:
    """What was up here before was given, and what leads to a switch as that of its sibling does."""
    view = in_a_guest(node(ports(LINKS, False), "NVIDIA H100 80GB HBM3"))
    seen = {GPU: Seen(view.devices[0], view.now, view.now, links_up=tuple(range(LINKS)))}
    remembered = msgspec.structs.replace(view, memory=KnownDevices(seen))
    assert of(judge("links", remembered), "link.all_down", GPU, ALL_LINKS).outcome is Outcome.FAIL
    silent = in_a_guest(node(ports(LINKS, None), "NVIDIA H100 80GB HBM3", sibling=ports(LINKS, True)))
    assert of(judge("links", silent), "link.all_down", GPU, ALL_LINKS).outcome is Outcome.FAIL


@pytest.mark.parametrize("model", ["NVIDIA Graphics Device", "NVIDIA B30A", "NVIDIA H20 NVL16"])
def test_board_whose_name_says_no_slot_is_known_by_its_fabric(model: str) -> None:
    """One that says itself that it has joined a fabric is not ok without a link; without a fabric it may have none."""
    for architecture in ("hopper", "blackwell", "rubin", None):
        dark = node(ports(LINKS, False), model, architecture=architecture)
        assert said(dark)[0] is State.DEGRADED
        assert said(node(ports(LINKS, True), model, architecture=architecture))[0] is State.OK
        boards = (gpu(model=model), gpu(SIBLING, slot="0000:2b:00.0", model=model))
        unjoined = {**GPU_READINGS, **readings(ports(LINKS, False)), ("fabric_state", WHOLE): bad("fabric_state")}
        lone = with_samples(dark, *(sample(board, unjoined) for board in boards))
        assert not [f for f in judge("links", lone) if f.outcome in (Outcome.WARN, Outcome.FAIL)]


@pytest.mark.parametrize(
    ("model", "architecture"),
    [("AMD Instinct MI455X", "gfx1250"), ("AMD Instinct", "gfx942"), ("Device 74b9", "gfx942")],
)
def test_amd_board_that_no_table_names_is_known_by_its_module(model: str, architecture: str) -> None:
    """By the end of its name, or by a chip that only modules have."""
    states = node(ports(8, False), model, vendor="amd", backend="amd", architecture=architecture)
    assert of(judge("links", states), "link.all_down", GPU, ALL_LINKS).outcome is Outcome.FAIL


@pytest.mark.parametrize("cabled", [7, 8, 10])
def test_first_gaudi_has_ten_ports_of_which_seven_join_its_node(cabled: int) -> None:
    """Three lead outside, and may have no cable; one of the seven that is left out is told, and so is none at all."""
    ten = ports(10, False) | ports(cabled, True)
    assert said(node(ten, "HL-205", vendor="habana", backend="command gaudi"))[0] is State.OK
    six = ports(10, False) | ports(6, True)
    assert said(node(six, "HL-205", vendor="habana", backend="command gaudi"))[0] is State.DEGRADED
    assert said(node(ports(10, False), "HL-205", vendor="habana", backend="command gaudi"))[0] is State.FAILED


@pytest.mark.parametrize("model", IN_SLOTS)
def test_gaudi_in_a_slot_needs_no_bridge(model: str) -> None:
    """Its ports are down in health."""
    assert expected_links(gpu(model=model, vendor="habana")) is None
