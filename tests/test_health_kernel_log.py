"""Kernel events are judged by the tables, attributed to their device, and told apart."""

from __future__ import annotations

import msgspec
import pytest
from fakes.views import GPU, at, controller, event, healthy, judge, of

from nodevet.checks.core.model import NODE, Action, Clearing, Event, FaultClass, Outcome, Provenance
from nodevet.checks.engine.view import KernelLogState, View
from nodevet.checks.kernel_log.lines import split_record
from nodevet.checks.kernel_log.parse import KernelLogParser
from nodevet.checks.reference.kernel_policy import policy_of, policy_of_code


@pytest.mark.parametrize(
    ("code", "fields", "outcome", "action", "fault_class"),
    [
        ("nvidia.xid.79", {}, Outcome.FAIL, Action.REBOOT, FaultClass.HARDWARE),
        ("nvidia.xid.48", {}, Outcome.FAIL, Action.DRAIN_RESET, FaultClass.HARDWARE),
        ("nvidia.xid.63", {}, Outcome.WARN, Action.RESET_DEVICE, FaultClass.HARDWARE),
        ("nvidia.xid.13", {}, Outcome.WARN, Action.RESTART_APP, FaultClass.APPLICATION),
        ("nvidia.xid.154", {"variant": "drain_reset"}, Outcome.FAIL, Action.DRAIN_RESET, FaultClass.HARDWARE),
        ("nvidia.xid.154", {"variant": "none"}, Outcome.SKIPPED, Action.NONE, FaultClass.UNKNOWN),
        ("nvidia.xid.4711", {}, Outcome.WARN, Action.INSPECT, FaultClass.UNKNOWN),
    ],
)
def test_event_follows_its_row(
    code: str, fields: dict[str, str], outcome: Outcome, action: Action, fault_class: FaultClass
) -> None:
    """The table decides; a code that no table knows is surfaced, a harmless one proves no health."""
    finding = of(judge("kernel-log", healthy(events=(event(code, fields=fields),))), code)
    assert (finding.outcome, finding.action, finding.fault_class) == (outcome, action, fault_class)
    assert finding.evidence_time == at()


def test_no_event_passes() -> None:
    """A line of text is never proof that a device is well."""
    codes = [f"nvidia.xid.{number}" for number in range(1, 200)] + ["nvidia.sxid.10005", "nvidia.sxid.20034"]
    findings = judge("kernel-log", healthy(events=tuple(event(code) for code in codes)))
    assert {f.outcome for f in findings if f.code in codes} <= {Outcome.WARN, Outcome.FAIL, Outcome.SKIPPED}


def test_fault_of_an_event_never_waits_for_samples() -> None:
    """Nothing samples an event again, so no event clears like a condition."""
    codes = [f"nvidia.xid.{number}" for number in range(1, 200)] + ["nvidia.sxid.10004"]
    findings = judge("kernel-log", healthy(events=tuple(event(code) for code in codes)))
    assert all(f.clearing is not Clearing.CONDITION for f in findings if f.code in codes)


@pytest.mark.parametrize(
    ("changes", "device"),
    [
        ({}, GPU),
        ({"pci": "0000:1b:00.0"}, GPU),
        ({"pci": None, "device": GPU}, GPU),
        ({"pci": None, "fields": {"gpu_uuid": GPU}}, GPU),
        ({"pci": "0000:ff:00"}, NODE),
        ({"pci": None}, NODE),
    ],
)
def test_event_is_given_to_its_device_or_to_the_node(changes: dict[str, object], device: str) -> None:
    """By address with or without function, by UUID, or by the node that owns what nobody else does."""
    told = msgspec.structs.replace(event("nvidia.xid.79"), **changes)
    assert of(judge("kernel-log", healthy(events=(told,))), "nvidia.xid.79", device)


def test_two_events_are_two_occurrences_and_one_read_twice_is_one() -> None:
    """The kernel's own number identifies a record; where there is none, source and time do."""

    def occurrence(**changes: object) -> str | None:
        told = msgspec.structs.replace(event("nvidia.xid.31"), **changes)
        return of(judge("kernel-log", healthy(events=(told,))), "nvidia.xid.31").occurrence

    assert occurrence() == occurrence(time=at(0, wall=0.0))
    assert occurrence() != occurrence(sequence=78)
    assert occurrence(sequence=None) != occurrence(sequence=None, time=at(1))


def test_application_event_belongs_to_its_process_and_does_not_name_it() -> None:
    """It closes with that process; the message, which leaves over HTTP, tells nobody whose job it was."""
    told = msgspec.structs.replace(
        event("nvidia.xid.31", pid=4242, process="train-secret"),
        text="NVRM: Xid (PCI:0000:1b:00): 31, pid=4242, name=train-secret, Ch 00000008",
    )
    finding = of(judge("kernel-log", healthy(events=(told,))), "nvidia.xid.31")
    assert (finding.pid, finding.clearing) == (4242, Clearing.APPLICATION_EVENT)
    assert "4242" not in finding.message
    assert "train-secret" not in finding.message
    assert "pid=-, name=-, Ch 00000008" in finding.message


@pytest.mark.parametrize(
    ("line", "device", "shown"),
    [
        (
            "amdgpu 0000:1b:00.0: amdgpu: [gfxhub0] retry page fault (src_id:0 ring:0 vmid:8 pasid:32769, for process "
            "train-secret pid 4242 thread secret pid 4: pid 4243)",
            "+pci:0000:1b:00.0",
            "pasid:32769, for process - pid - -)",
        ),
        (
            "mlx5_core 0000:1b:00.0: wait_func:9:(pid 4242): INIT(0x104) timeout. Will cause a leak of a command "
            "resource",
            "+pci:0000:1b:00.0",
            "wait_func:9:(-): INIT(0x104) timeout",
        ),
        ("NVRM: Xid (PCI:0000:1b:00): 31, pid=4242, name=<secret>, Ch 00000010", "", "pid=-, name=-, Ch 00000010"),
        ("NVRM: Xid (PCI:0000:1b:00): 31, pid=4242, name=<unknown>, Ch 00000010", "", "pid=-, name=<unknown>, Ch"),
        ("NVRM: Xid (PCI:0000:1b:00): 31, pid=4242, name=a,secret, Ch 00000010", "", "pid=-, name=-, Ch 00000010"),
        ("NVRM: Xid (PCI:0000:1b:00): 31, pid=4242, name=a, secret, Ch 00000010", "", "pid=-, name=-, Ch 00000010"),
        ("NVRM: Xid (PCI:0000:1b:00): 31, pid=4242, name=, secret, x, Ch 00000010", "", "pid=-, name=-, Ch 00000010"),
        ("NVRM: Xid (PCI:0000:1b:00): 79, pid=4242, name=a,secret, GPU has fallen off the bus.", "", "name=-, GPU has"),
        ("NVRM: Xid (PCI:0000:1b:00): 62, pid=4242, name=a,secret", "", "pid=-, name=-"),
        ("Memory failure: 0x1: Killing secret name=x:4242 due to hardware memory corruption", "", "Killing -:- due to"),
        ("NVRM: API mismatch: the client 'secret name=x' (pid 4242)", "", "the client '-' (pid -)"),
        (
            f"NVRM: Xid (PCI:0000:1b:00): 31, pid=4242, name={'secret' * 9}, Ch 00000010",
            "",
            "pid=-, name=-, Ch 00000010",
        ),
    ],
)
def test_no_process_and_no_thread_is_in_a_message(line: str, device: str, shown: str) -> None:
    """A thread has a name and a number of its own, and adapters print a number alone: everyone may scrape it."""
    parser = KernelLogParser()
    keys = f" SUBSYSTEM=pci\n DEVICE={device}\n" if device else ""
    record = split_record(f"4,7,1000000,-;{line}\n{keys}")
    assert record is not None
    parser.feed(record, at())
    (found,) = parser.take()
    owner = GPU if found.pci else NODE
    message = of(judge("kernel-log", healthy(events=(found,))), found.code, owner).message
    assert shown in message
    assert "secret" not in message and "424" not in message


def test_a_library_that_a_program_brings_is_its_own_affair() -> None:
    """Any user may have one of another version: no reboot is asked for, and it ends with the program."""
    parser = KernelLogParser()
    text = "NVRM: API mismatch: the client 'x' (pid 4242)\\x0aNVRM: has the version 550.54, but this kernel module has"
    record = split_record(f"4,7,1000000,-;{text}\n")
    assert record is not None
    parser.feed(record, at())
    finding = of(judge("kernel-log", healthy(events=tuple(parser.take()))), "nvidia.driver.version_mismatch", NODE)
    assert (finding.fault_class, finding.action) == (FaultClass.APPLICATION, Action.RESTART_APP)
    assert (finding.pid, finding.clearing, finding.gates) == (4242, Clearing.APPLICATION_EVENT, False)


def test_unreadable_log_matters_where_accelerators_are_watched() -> None:
    """Without it XIDs go unseen; a node without accelerators is only told."""
    state = KernelLogState(False, "/dev/kmsg", "operation not permitted")
    watched = of(judge("kernel-log", healthy(kernel_log=state)), "kernel_log.readable", NODE)
    assert (watched.outcome, watched.required) == (Outcome.UNMEASURED, True)
    assert "operation not permitted" in watched.message
    plain = View(now=at(), devices=(controller(),), kernel_log=state)
    assert not of(judge("kernel-log", plain), "kernel_log.readable", NODE).required


def test_a_log_that_is_not_read_to_its_end_proves_nothing() -> None:
    """What its newest lines tell is not known; before, the node was `ok` meanwhile."""
    state = KernelLogState(True, "/var/log/kern.log", begun=True)
    finding = of(judge("kernel-log", healthy(kernel_log=state)), "kernel_log.readable", NODE)
    assert (finding.outcome, finding.required) == (Outcome.UNMEASURED, True)
    assert "not read to its end yet" in finding.message


def test_lost_records_are_told() -> None:
    """A ring that overran is no fault of the node, but nobody may believe that all was seen."""
    state = KernelLogState(True, "/dev/kmsg", lost_records=12)
    finding = of(judge("kernel-log", healthy(kernel_log=state)), "kernel_log.lost_records", NODE)
    assert (finding.outcome, finding.value) == (Outcome.SKIPPED, 12)


def test_a_part_of_a_long_log_that_was_passed_over_is_told() -> None:
    """Its newest lines are read, and nobody may believe that all was seen."""
    state = KernelLogState(True, "/var/log/kern.log", skipped_bytes=1 << 26)
    findings = judge("kernel-log", healthy(kernel_log=state))
    finding = of(findings, "kernel_log.skipped_bytes", NODE)
    assert (finding.outcome, finding.value) == (Outcome.SKIPPED, 1 << 26)
    assert "67108864 bytes of /var/log/kern.log were skipped" in finding.message
    assert [found.code for found in findings if found.code == "kernel_log.lost_records"] == []


def test_outcome_of_every_event_is_that_of_its_policy() -> None:
    """The check adds nothing to the tables."""
    for code in ("pcie.fatal", "memory.uncorrected", "amd.ras", "infiniband.down", "something.new"):
        told: Event = event(code)
        finding = of(judge("kernel-log", healthy(events=(told,))), code)
        policy = policy_of(told)
        expected = policy.outcome if policy.outcome in (Outcome.WARN, Outcome.FAIL) else Outcome.SKIPPED
        assert (finding.outcome, finding.fault_class) == (expected, policy.fault_class)


@pytest.mark.parametrize("family", ["nvidia.xid", "nvidia.sxid"])
def test_numbers_that_no_table_knows_are_one_finding_where_a_user_can_write_them(family: str) -> None:
    """Whoever writes a text chooses its numbers: they share a code that is explained; the message has the number."""
    numbers = range(500_000, 502_000)
    texts = (
        msgspec.structs.replace(
            event(f"{family}.{number}"), provenance=Provenance.TEXT, sequence=number, text=f"Xid: {number}"
        )
        for number in numbers
    )
    found = [f for f in judge("kernel-log", healthy(events=tuple(texts))) if f.code.startswith("text.")]
    assert {f.code for f in found} == {f"text.{family}.unknown"}
    assert len({f.occurrence for f in found}) == len(numbers)
    assert "500000" in found[0].message
    assert policy_of_code(f"text.{family}.unknown") is not None


@pytest.mark.parametrize("code", ["nvidia.xid.79", "nvidia.sxid.20034"])
def test_a_code_that_a_table_knows_keeps_its_own_in_a_text(code: str) -> None:
    """Only what nobody can look up is told together."""
    text = msgspec.structs.replace(event(code), provenance=Provenance.TEXT)
    assert of(judge("kernel-log", healthy(events=(text,))), f"text.{code}")


def test_a_number_that_no_table_knows_keeps_its_own_code_where_the_kernel_tells_it() -> None:
    """No user writes there, and each code is a fault of its own."""
    assert of(judge("kernel-log", healthy(events=(event("nvidia.xid.4711"),))), "nvidia.xid.4711")
