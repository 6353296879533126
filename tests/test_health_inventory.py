"""The inventory: what is there, what is gone, and what only the PCI bus shows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fakes.views import (
    BOOT,
    GPU,
    SIBLING,
    at,
    bare_board,
    controller,
    failed,
    gpu,
    healthy,
    judge,
    of,
    reader,
    with_samples,
)

from nodevet.checks.core.model import (
    NODE,
    Action,
    Clearing,
    Device,
    DeviceKind,
    Failure,
    FailureKind,
    FaultClass,
    Instant,
    Outcome,
    ReaderState,
    ReaderStatus,
)
from nodevet.checks.engine.view import KnownDevices, Seen, View
from nodevet.checks.reference.vendors import LENT_DRIVERS

PASS, WARN, FAIL, UNMEASURED, SKIPPED = (
    Outcome.PASS,
    Outcome.WARN,
    Outcome.FAIL,
    Outcome.UNMEASURED,
    Outcome.SKIPPED,
)


def without(view: View, *gone: str, readers: tuple[ReaderStatus, ...] | None = None) -> View:
    """Return *view* in which the devices *gone* are only remembered."""
    present = tuple(device for device in view.devices if device.id not in gone)
    return msgspec.structs.replace(view, devices=present, readers=view.readers if readers is None else readers)


def driverless(state: ReaderState, kind: FailureKind | None, *boards: str | None, **changes: Any) -> View:
    """Return a node whose accelerators only the PCI bus shows, each bound to the driver of *boards*."""
    found = tuple(bare_board(f"0000:{27 + n:02x}:00.0", driver) for n, driver in enumerate(boards))
    failure = Failure(kind, "what the library said", of_driver=True) if kind else None
    return View(
        now=at(),
        devices=(controller(), *found),
        readers=(reader("host"), reader("nvidia", state, failure=failure, last_round=None)),
        **changes,
    )


def test_healthy_node_passes_for_every_device() -> None:
    """Each device passes under the keys that would tell of its loss."""
    findings = judge("inventory", healthy())
    for device in (GPU, SIBLING):
        assert of(findings, "device.missing", device).outcome is PASS
        assert of(findings, "device.lost", device).outcome is PASS
    assert {finding.outcome for finding in findings} == {PASS}


def test_device_that_vanished_at_run_time_fails() -> None:
    """A device that was there and is not listed any more is hard, whatever the number of the others."""
    finding = of(judge("inventory", without(healthy(), GPU)), "device.missing", GPU)
    assert (finding.outcome, finding.hard, finding.clearing) == (FAIL, True, Clearing.HARDWARE_EVENT)
    assert finding.action is Action.REBOOT
    assert f"serial of {GPU}" in finding.message


@pytest.mark.parametrize(
    ("state", "kind", "outcome"),
    [
        (ReaderState.STARTING, None, UNMEASURED),
        (ReaderState.HUNG, FailureKind.HUNG, UNMEASURED),
        (ReaderState.RELEASED, None, UNMEASURED),
        (ReaderState.FAILED, FailureKind.VERSION_MISMATCH, UNMEASURED),
        (ReaderState.ABSENT, FailureKind.NO_DEVICES, FAIL),
        (ReaderState.ABSENT, FailureKind.NO_LIBRARY, FAIL),
    ],
)
def test_list_that_could_not_be_had_proves_no_absence(
    state: ReaderState, kind: FailureKind | None, outcome: Outcome
) -> None:
    """After a restart nothing is missing until the reader answered; that there is nothing at all is an answer."""
    failure = Failure(kind, "for a test", of_driver=True) if kind else None
    readers = (reader("host"), reader("nvidia", state, failure=failure, last_round=None))
    findings = judge("inventory", without(healthy(), GPU, SIBLING, readers=readers))
    assert {of(findings, "device.missing", device).outcome for device in (GPU, SIBLING)} == {outcome}


def test_remembered_device_whose_driver_is_gone_is_not_called_missing() -> None:
    """The board is on the PCI bus: its driver is at fault, and told as such."""
    view = driverless(ReaderState.ABSENT, FailureKind.NO_DRIVER, None)
    view = msgspec.structs.replace(view, memory=KnownDevices({GPU: healthy().memory.seen[GPU]}))
    findings = judge("inventory", view)
    assert of(findings, "device.missing", GPU).outcome is UNMEASURED
    assert of(findings, "driver.missing", NODE).outcome is FAIL


def test_lost_device_fails_at_once() -> None:
    """The library counts it and it does not answer."""
    finding = of(judge("inventory", with_samples(healthy(), failed(FailureKind.LOST))), "device.lost", GPU)
    assert (finding.outcome, finding.hard, finding.clearing) == (FAIL, True, Clearing.HARDWARE_EVENT)


@pytest.mark.parametrize("kind", [FailureKind.HUNG, FailureKind.DENIED, FailureKind.ERROR])
def test_device_that_could_not_be_read_is_not_called_present(kind: FailureKind) -> None:
    """Another failure neither passes nor tells of a loss."""
    finding = of(judge("inventory", with_samples(healthy(), failed(kind))), "device.lost", GPU)
    assert finding.outcome is UNMEASURED


def test_boards_without_driver_close_the_node() -> None:
    """What only the PCI bus shows is named with address, bound driver, the reader's words and what to install."""
    view = driverless(ReaderState.ABSENT, FailureKind.NO_DRIVER, None, "nouveau")
    finding = of(judge("inventory", view), "driver.missing", NODE)
    assert (finding.outcome, finding.fault_class, finding.hard) == (FAIL, FaultClass.CONFIGURATION, True)
    for word in ("0000:1b:00.0", "0000:1c:00.0", "nouveau", "no driver", "what the library said", "modprobe nvidia"):
        assert word in finding.message


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("driver.missing", FailureKind.NO_DRIVER),
        ("driver.no_devices", FailureKind.NO_DEVICES),
        ("driver.version_mismatch", FailureKind.VERSION_MISMATCH),
    ],
)
@pytest.mark.parametrize("of_driver", [True, False])
def test_only_the_drivers_own_word_closes_the_gate_over_boards_on_the_bus(
    code: str, kind: FailureKind, of_driver: bool
) -> None:
    """A wrapper of another release and a library without memory are told as failures too, and close nothing."""
    readers = tuple(
        msgspec.structs.replace(entry, failure=Failure(kind, "for a test", of_driver)) if entry.failure else entry
        for entry in driverless(ReaderState.FAILED, kind, "nvidia").readers
    )
    view = msgspec.structs.replace(driverless(ReaderState.FAILED, kind, "nvidia"), readers=readers)
    finding = of(judge("inventory", view), code, NODE)
    assert (finding.outcome, finding.hard) == (FAIL, of_driver)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("driver.no_devices", FailureKind.NO_DEVICES),
        ("driver.version_mismatch", FailureKind.VERSION_MISMATCH),
    ],
)
def test_driver_that_refuses_boards_on_the_bus_fails(code: str, kind: FailureKind) -> None:
    """The driver's own refusal is told under its own code, and passes on the healthy node."""
    findings = judge("inventory", driverless(ReaderState.FAILED, kind, "nvidia"))
    finding = of(findings, code, NODE)
    assert (finding.outcome, finding.action) == (FAIL, Action.REBOOT)
    assert of(judge("inventory", healthy()), code, NODE).key == finding.key


def test_wrapper_of_another_release_is_exchanged_and_needs_no_reboot() -> None:
    """AMD's library and driver may be well together: only its Python wrapper is of another ROCm."""
    board = msgspec.structs.replace(bare_board(driver="amdgpu"), vendor="amd", pci_device_id="1002:74a1")
    failure = Failure(FailureKind.VERSION_MISMATCH, "wrapper 7.0.2, library of ROCm 6.3.1", of_driver=True)
    readers = (reader("host"), reader("amd", ReaderState.FAILED, failure=failure, last_round=None))
    view = msgspec.structs.replace(healthy(readers=readers), devices=(board,))
    finding = of(judge("inventory", view), "driver.version_mismatch", NODE)
    assert (finding.outcome, finding.action) == (FAIL, Action.INSPECT)
    assert "install the one that ROCm ships" in finding.message


def beside_answering_siblings(driver: str | None, state: ReaderState = ReaderState.RUNNING) -> View:
    """Return the healthy node with one more board, bound to *driver*, which the library does not list."""
    board = bare_board("0000:3b:00.0", driver)
    view = healthy(readers=(reader("host"), reader("nvidia", state)))
    return msgspec.structs.replace(view, devices=(*view.devices, board))


@pytest.mark.parametrize(
    ("blamed", "outcome"),
    [({}, Outcome.UNMEASURED), ({"0000:3b:00.0": 1}, Outcome.UNMEASURED), ({"0000:3b:00.0": 2}, Outcome.FAIL)],
    ids=["nobody", "once", "driver"],
)
def test_board_that_is_left_alone_is_lost_only_where_its_driver_is_blamed(
    blamed: dict[str, int], outcome: Outcome
) -> None:
    """Its reader fell twice while it was listed: by a fault of nodevet itself nothing of the board is known."""
    board = bare_board("0000:3b:00.0", "nvidia")
    fallen = reader("nvidia", ReaderState.RUNNING, last_round=at())
    crash = "the collector was killed by SIGSEGV in: nvmlDeviceGetHandleByPciBusId of PCI 0000:3b:00.0"
    fallen = msgspec.structs.replace(
        fallen, quarantined=("0000:3b:00.0",), blamed=blamed, left_alone={"0000:3b:00.0": crash}
    )
    view = healthy()
    view = msgspec.structs.replace(view, devices=(*view.devices, board), readers=(reader("host"), fallen))
    finding = of(judge("inventory", view), "device.lost", board.id)
    assert (finding.outcome, finding.outcome is Outcome.FAIL and finding.hard) == (outcome, outcome is Outcome.FAIL)
    assert finding.required is (outcome is Outcome.UNMEASURED)
    assert crash in finding.message


@pytest.mark.parametrize(("blamed", "outcome"), [(1, Outcome.UNMEASURED), (2, Outcome.FAIL)])
def test_the_only_board_is_judged_as_any_when_it_is_left_alone(blamed: int, outcome: Outcome) -> None:
    """A reader that was told to leave alone all that there is runs, and no sibling answers."""
    board = bare_board("0000:3b:00.0", "nvidia")
    fallen = reader("nvidia", ReaderState.RUNNING, last_round=at())
    fallen = msgspec.structs.replace(fallen, quarantined=(board.pci or "",), blamed={board.pci or "": blamed})
    view = msgspec.structs.replace(healthy(), devices=(board,), readers=(reader("host"), fallen))
    finding = of(judge("inventory", view), "device.lost", board.id)
    assert (finding.outcome, finding.required) == (outcome, outcome is Outcome.UNMEASURED)


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("shortage", ["", "it ran under an RLIMIT_NOFILE of 24"])
def test_a_list_that_was_made_under_a_shortage_proves_no_loss(shortage: str, is_known: bool) -> None:
    """The library was refused a descriptor, perhaps, and left the board out; by name, or on the bus alone."""
    page = bare_board("0000:3b:00.0", "nvidia")
    board = gpu("uuid-9", "0000:3b:00.0")
    short = msgspec.structs.replace(reader("nvidia"), shortage=shortage)
    view = msgspec.structs.replace(healthy(), devices=(*healthy().devices, page), readers=(reader("host"), short))
    view = remembered(view, board, at()) if is_known else view
    code, device = ("device.missing", board.id) if is_known else ("device.lost", page.id)
    finding = of(judge("inventory", view), code, device)
    if shortage:
        assert (finding.outcome, finding.required, finding.action) == (UNMEASURED, True, Action.WATCH)
        assert shortage in finding.message
    else:
        assert (finding.outcome, finding.hard) == (FAIL, True)


@pytest.mark.parametrize("is_page_left", [False, True])
def test_a_page_that_nobody_reads_may_be_the_board_that_is_left_out(is_page_left: bool) -> None:
    """Buses were numbered anew: without such a page the bus, which shows the sibling, has lost the board."""
    make = {"backend": "command.acme", "vendor": "habana", "uuid": None}
    sibling, card = (gpu(f"acme:{n}", f"0000:0{n}:00.0", **make) for n in (1, 2))
    pages = [
        msgspec.structs.replace(bare_board(pci, "habanalabs"), vendor="habana")
        for pci in ("0000:01:00.0", "0000:7e:00.0")
    ]
    on_bus = tuple(pages if is_page_left else pages[:1])
    devices = (controller(), sibling, *on_bus[1:])
    view = View(now=at(), devices=devices, on_bus=on_bus, readers=(reader("host"), reader("command.acme")))
    finding = of(judge("inventory", remembered(view, card, at())), "device.missing", card.id)
    assert finding.outcome is (UNMEASURED if is_page_left else FAIL)


@pytest.mark.parametrize(
    "make", [{"kind": DeviceKind.NIC, "model": "NIC"}, {"model": "virtual function"}], ids=["nic", "virtual function"]
)
def test_a_device_that_the_bus_does_not_list_has_not_left_it(make: dict[str, Any]) -> None:
    """The list of the bus has accelerators, and no virtual functions: a command that leaves one out proves no loss."""
    told: dict[str, Any] = {"backend": "command.acme", "vendor": "habana", "uuid": None}
    sibling = gpu("acme:1", "0000:01:00.0", **told)
    others = [gpu(f"acme:{n}", f"0000:0{n}:00.0", **{**told, **make}) for n in (2, 3)]
    page = msgspec.structs.replace(bare_board("0000:01:00.0", "habanalabs"), vendor="habana")
    devices = (controller(), sibling, others[0])
    view = View(now=at(), devices=devices, on_bus=(page,), readers=(reader("host"), reader("command.acme")))
    finding = of(judge("inventory", remembered(view, others[1], at())), "device.missing", others[1].id)
    assert (finding.outcome, finding.required) == (UNMEASURED, True)


def test_board_that_its_own_driver_does_not_answer_for_is_lost() -> None:
    """The driver is bound and answers for the siblings: the board is at fault, and there is nothing to install."""
    findings = judge("inventory", beside_answering_siblings("nvidia"))
    lost = of(findings, "device.lost", "pci-0000:3b:00.0")
    assert (lost.outcome, lost.fault_class, lost.action) == (FAIL, FaultClass.HARDWARE, Action.REBOOT)
    assert "0000:3b:00.0" in lost.message
    assert of(findings, "driver.missing", NODE).outcome is PASS
    assert [finding.message for finding in findings if "install" in finding.message] == []


@pytest.mark.parametrize("driver", [None, "nouveau"])
def test_board_without_its_own_driver_beside_siblings_is_driverless(driver: str | None) -> None:
    """Nothing or another driver is bound: that is a matter of installation."""
    findings = judge("inventory", beside_answering_siblings(driver))
    assert of(findings, "driver.missing", NODE).outcome is FAIL
    assert of(findings, "device.lost", "pci-0000:3b:00.0").outcome is SKIPPED


@pytest.mark.parametrize("state", [ReaderState.STARTING, ReaderState.HUNG, ReaderState.RELEASED])
def test_board_is_not_lost_while_its_reader_does_not_answer(state: ReaderState) -> None:
    """A list that cannot be had tells of no loss."""
    findings = judge("inventory", beside_answering_siblings("nvidia", state))
    assert of(findings, "device.lost", "pci-0000:3b:00.0").outcome is SKIPPED
    assert of(findings, "driver.missing", NODE).outcome is UNMEASURED


MINUTES_UP = pytest.mark.parametrize(("minutes", "is_late"), [(1, False), (9, False), (11, True)])
"""Minutes since the boot, and whether a driver should have come by then."""


def up_for(view: View, minutes: float) -> View:
    """Return *view* as it is *minutes* after the boot."""
    return msgspec.structs.replace(view, now=Instant(BOOT, int(minutes * 60e9), view.now.wall_seconds))


@MINUTES_UP
@pytest.mark.parametrize(
    ("code", "kind"), [("driver.missing", FailureKind.NO_DRIVER), ("driver.no_devices", FailureKind.NO_DEVICES)]
)
def test_a_driver_that_loads_after_the_agent_leaves_no_drain(
    code: str, kind: FailureKind, minutes: float, is_late: bool
) -> None:
    """It is told at once and closes nothing by itself: no agent ends its own drain when the driver has come."""
    view = up_for(driverless(ReaderState.ABSENT, kind, None), minutes)
    finding = of(judge("inventory", view), code, NODE)
    assert (finding.outcome, finding.hard) == (FAIL, is_late)


@MINUTES_UP
@pytest.mark.parametrize(("driver", "waits"), [(None, True), ("nvidia", False), ("nouveau", False)])
def test_a_known_board_that_its_driver_has_not_taken_yet_is_not_missing(
    driver: str | None, waits: bool, minutes: float, is_late: bool
) -> None:
    """amdgpu takes a board after the other: those that wait are on the bus without any driver, and told as such."""
    view = without(healthy(), GPU)
    view = up_for(msgspec.structs.replace(view, devices=(*view.devices, bare_board(driver=driver))), minutes)
    findings = judge("inventory", view)
    is_missing = is_late or not waits
    assert of(findings, "device.missing", GPU).outcome is (FAIL if is_missing else UNMEASURED)
    missing = of(findings, "driver.missing", NODE)
    assert (missing.outcome, missing.outcome is FAIL and missing.hard) == (PASS if is_missing else FAIL, False)


def test_a_parts_mismatch_counts_right_after_the_boot() -> None:
    """Parts of a driver that are of different releases wait for nothing."""
    view = up_for(driverless(ReaderState.FAILED, FailureKind.VERSION_MISMATCH, "nvidia"), 1)
    assert of(judge("inventory", view), "driver.version_mismatch", NODE).hard


def test_a_board_that_is_on_no_bus_is_missing_right_after_the_boot() -> None:
    """No driver can come to it."""
    assert of(judge("inventory", up_for(without(healthy(), GPU), 1)), "device.missing", GPU).hard


def test_board_that_is_remembered_by_name_is_told_once() -> None:
    """It is missing under its UUID; its address is no second fault."""
    view = without(healthy(), GPU)
    view = msgspec.structs.replace(view, devices=(*view.devices, bare_board(driver="nvidia")))
    findings = judge("inventory", view)
    assert [finding.code for finding in findings if finding.outcome is FAIL] == ["device.missing"]


def test_board_is_not_driverless_while_its_reader_starts() -> None:
    """The PCI scan is faster than the driver."""
    view = driverless(ReaderState.STARTING, None, "nvidia")
    assert of(judge("inventory", view), "driver.missing", NODE).outcome is UNMEASURED


@pytest.mark.parametrize("driver", LENT_DRIVERS)
def test_board_lent_to_a_virtual_machine_is_no_fault(driver: str) -> None:
    """vfio-pci or its like holds it for a guest; Grace boards have one of their own."""
    assert {"vfio-pci", "nvgrace_gpu_vfio_pci", "pciback", "gim"} <= set(LENT_DRIVERS)
    view = driverless(ReaderState.ABSENT, FailureKind.NO_DEVICES, driver)
    assert of(judge("inventory", view), "driver.missing", NODE).outcome is SKIPPED


def test_board_that_no_reader_knows_is_unmeasured() -> None:
    """A vendor without a backend leaves the node unknown rather than green."""
    board = msgspec.structs.replace(bare_board(), vendor="intel")
    view = View(now=at(), devices=(controller(), board), readers=(reader("host"),))
    finding = of(judge("inventory", view), "driver.missing", NODE)
    assert (finding.outcome, finding.required) == (UNMEASURED, True)


def test_nothing_enumerated_is_unmeasured() -> None:
    """No device at all is no healthy node."""
    finding = of(judge("inventory", View(now=at())), "inventory.empty", NODE)
    assert (finding.outcome, finding.required) == (UNMEASURED, True)


@pytest.mark.parametrize(("expected", "outcome"), [(2, PASS), (3, FAIL), (1, WARN)])
def test_count_is_compared_with_the_configuration(expected: int, outcome: Outcome) -> None:
    """Fewer than configured fail, more are a wrong configuration."""
    finding = of(judge("inventory", healthy(), expected_accelerators=expected), "inventory.count", NODE)
    assert (finding.outcome, finding.value) == (outcome, 2)


def test_where_no_count_is_expected_any_more_none_is_wrong() -> None:
    """A wrong number was taken out of the configuration: what it said is over."""
    assert of(judge("inventory", healthy()), "inventory.count", NODE).outcome is PASS


def test_count_is_one_look_at_one_list() -> None:
    """Judged again without another round of the reader it confirms or clears nothing."""
    finding = of(judge("inventory", healthy(), expected_accelerators=2), "inventory.count", NODE)
    assert finding.evidence_time == at()


def test_count_waits_for_every_reader() -> None:
    """While a reader starts nobody can count."""
    readers = (reader("host"), reader("nvidia", ReaderState.STARTING, last_round=None))
    view = without(healthy(), GPU, SIBLING, readers=readers)
    finding = of(judge("inventory", view, expected_accelerators=2), "inventory.count", NODE)
    assert (finding.outcome, finding.required) == (UNMEASURED, True)


def test_instances_of_a_device_are_not_counted() -> None:
    """A partitioned accelerator is one accelerator."""
    view = healthy()
    instance = gpu("MIG-1", "0000:1b:00.0", parent=GPU)
    view = msgspec.structs.replace(view, devices=(*view.devices, instance))
    assert of(judge("inventory", view, expected_accelerators=2), "inventory.count", NODE).outcome is PASS


def test_instances_that_were_put_together_again_are_not_missing() -> None:
    """To split a board otherwise is no loss; without the board its instances are lost with it."""
    view = healthy()
    instance = gpu("part-1", "0000:1b:00.0", parent=GPU)
    memory = KnownDevices({**view.memory.seen, "part-1": Seen(instance, view.now, view.now)})
    view = msgspec.structs.replace(view, memory=memory)
    assert not any(finding.device == "part-1" for finding in judge("inventory", view))
    alone = without(view, GPU)
    assert of(judge("inventory", alone), "device.missing", "part-1").outcome is FAIL


@pytest.mark.parametrize(
    ("changes", "others", "is_one"),
    [({}, 0, True), ({"model": "NVIDIA H200"}, 0, False), ({}, 1, False)],
    ids=["one", "of another model", "two are gone"],
)
def test_silent_board_without_a_name_in_another_slot_is_one_loss(
    changes: dict[str, str], others: int, is_one: bool
) -> None:
    """Addresses change with a boot. It is not taken for the one that is gone, but both are told once."""
    silent = gpu("0000:99:00.0", "0000:99:00.0", uuid=None, serial=None, **{"model": "unknown", **changes})
    gone = [gpu(f"GPU-gone-{number}", f"0000:{number}c:00.0", serial=f"S-{number}") for number in range(1 + others)]
    view = with_samples(healthy(), failed(FailureKind.LOST, silent))
    seen = {board.id: Seen(board, at(-60), at(-60)) for board in gone}
    memory = KnownDevices({**view.memory.seen, **seen})
    view = msgspec.structs.replace(view, devices=(*view.devices, silent), memory=memory)
    findings = judge("inventory", view)
    lost = of(findings, "device.lost", silent.id)
    assert (lost.outcome, "serial S-0" in lost.message) == (FAIL, is_one)
    assert {of(findings, "device.missing", board.id).outcome for board in gone} == {Outcome.SKIPPED if is_one else FAIL}
    assert not is_one or "0000:99:00.0" in of(findings, "device.missing", gone[0].id).message


@pytest.mark.parametrize("kind", list(FailureKind))
def test_board_that_is_silent_for_another_reason_stands_for_none_that_is_gone(kind: FailureKind) -> None:
    """That a board is in use, denied or in error fails nothing: the one that is gone would be told by nobody."""
    silent = gpu("0000:99:00.0", "0000:99:00.0", uuid=None, serial=None, model="unknown")
    gone = gpu("GPU-gone", "0000:0b:00.0")
    view = with_samples(healthy(), failed(kind, silent))
    memory = KnownDevices({**view.memory.seen, gone.id: Seen(gone, at(-60), at(-60))})
    view = msgspec.structs.replace(view, devices=(*view.devices, silent), memory=memory)
    findings = [finding for finding in judge("inventory", view) if finding.device in (silent.id, gone.id)]
    assert [finding.outcome for finding in findings].count(FAIL) == 1


BEFORE = Instant("another-boot", int(9e12), at(-600).wall_seconds)
"""A look of the boot before."""


def remembered(view: View, board: Device, last: Instant) -> View:
    """Return *view*, in which *board* is known and was listed *last* at that time."""
    memory = KnownDevices({**view.memory.seen, board.id: Seen(board, BEFORE, last)})
    return msgspec.structs.replace(view, memory=memory)


@MINUTES_UP
@pytest.mark.parametrize(("last", "waits"), [(BEFORE, True), (at(), False)], ids=["boot before", "this boot"])
def test_a_board_that_a_command_has_not_listed_since_the_boot_is_not_gone(
    last: Instant, waits: bool, minutes: float, is_late: bool
) -> None:
    """Its driver may take a board after the other. One that was listed since the boot is not awaited: it is unknown."""
    card = gpu("acme:7", pci=None, uuid=None, serial="S7", backend="command.acme", vendor="acme")
    listed = gpu("acme:6", pci=None, uuid=None, serial="S6", backend="command.acme", vendor="acme")
    view = msgspec.structs.replace(healthy(), devices=(*healthy().devices, listed))
    view = msgspec.structs.replace(view, readers=(*view.readers, reader("command.acme")))
    finding = of(judge("inventory", up_for(remembered(view, card, last), minutes)), "device.missing", card.id)
    assert (finding.outcome, finding.required) == (UNMEASURED, True)
    assert ("not listed by command.acme since the boot" in finding.message) == (waits and not is_late)
    assert ("does not print it any more" in finding.message) == (not waits or is_late)


@MINUTES_UP
@pytest.mark.parametrize(("vendor", "driver", "waits"), [("amd", "amdgpu", True), ("nvidia", "nvidia", False)])
@pytest.mark.parametrize("is_known", [True, False])
def test_a_board_that_its_driver_takes_at_this_moment_is_not_lost(
    vendor: str, driver: str, waits: bool, is_known: bool, minutes: float, is_late: bool
) -> None:
    """The kernel binds a board before its driver has probed it, and amdgpu needs several seconds for each."""
    page = msgspec.structs.replace(bare_board("0000:63:00.0", driver), vendor=vendor)
    sibling = gpu("uuid-1", "0000:43:00.0", backend=vendor, vendor=vendor)
    board = gpu("uuid-2", "0000:63:00.0", backend=vendor, vendor=vendor)
    view = View(now=at(), devices=(controller(), page, sibling), readers=(reader("host"), reader(vendor)))
    view = remembered(view, board, BEFORE) if is_known else view
    findings = judge("inventory", up_for(view, minutes))
    finding = of(findings, *(("device.missing", board.id) if is_known else ("device.lost", page.id)))
    expected = (UNMEASURED, True) if waits and not is_late else (FAIL, False)
    assert (finding.outcome, finding.required) == expected
    assert finding.outcome is not FAIL or finding.hard


@MINUTES_UP
@pytest.mark.parametrize("driver", [None, "amdgpu"], ids=["waits for its driver", "is being taken"])
@pytest.mark.parametrize("function", [0, 1])
def test_a_part_waits_with_its_board_for_their_driver(
    function: int, driver: str | None, minutes: float, is_late: bool
) -> None:
    """A partition may be told by a function of its own, of which the bus shows no page before the driver is there."""
    page = msgspec.structs.replace(bare_board("0000:63:00.0", driver), vendor="amd")
    board = gpu("uuid-2", "0000:63:00.0", backend="amd", vendor="amd")
    part = gpu("uuid-2/1", f"0000:63:00.{function}", backend="amd", vendor="amd", parent=board.id, uuid=None)
    view = View(now=at(), devices=(controller(), page), readers=(reader("host"), reader("amd")))
    view = remembered(remembered(view, board, BEFORE), part, BEFORE)
    findings = judge("inventory", up_for(view, minutes))
    found = {of(findings, "device.missing", device.id).outcome for device in (board, part)}
    assert found == {FAIL if is_late else UNMEASURED}


def test_a_board_that_its_reader_fell_over_waits_for_no_driver() -> None:
    """Its driver was at work on it, and brought its reader down."""
    page = msgspec.structs.replace(bare_board("0000:63:00.0", "amdgpu"), vendor="amd")
    fell = msgspec.structs.replace(reader("amd"), quarantined=("0000:63:00.0",), blamed={"0000:63:00.0": 2})
    view = View(now=at(), devices=(controller(), page), readers=(reader("host"), fell))
    finding = of(judge("inventory", up_for(view, 1)), "device.lost", page.id)
    assert (finding.outcome, finding.hard) == (FAIL, True)
