"""A user's text is never evidence: what the kernel prints of users fails no node, what its drivers print still does."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest
from fakes.kernel import NO_CRASHES, NO_KERNEL_LOG
from fakes.pattern_shape import fixed_prefix, free_parts, sample
from fakes.views import GPU, event, healthy, judge, of

from nodevet.checks.core.model import Action, Event, FaultClass, Instant, Outcome, Provenance
from nodevet.checks.kernel_log.journal import entry_line
from nodevet.checks.kernel_log.lines import Line, split_record
from nodevet.checks.kernel_log.parse import KernelLogParser, events_from_lines
from nodevet.checks.kernel_log.reader import KernelLogError, KernelLogReader, events_from_file
from nodevet.checks.kernel_log.report import describe
from nodevet.checks.kernel_log.rules import expanded
from nodevet.checks.kernel_log.xid import decode_body
from nodevet.checks.reference.kernel_policy import KernelRule, RuleKind, kernel_rules, told_policy

CARRIERS = list(csv.DictReader((Path(__file__).parent / "fixtures" / "kernel_carriers.csv").read_text().splitlines()))
NAME_BYTES = 15
"""The longest name of a process or an interface (TASK_COMM_LEN and IFNAMSIZ, each with its final zero)."""

PLANTED = (
    "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=x, GPU has fallen off the bus.",
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
    "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0xffff:2477)",
    "amdgpu 0000:1b:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block",
    "*ERROR* GPU reset(3) failed",
    "pcieport 0000:1b:00.0: AER: Uncorrectable (Fatal) error message received from 0000:1b:00.0",
    "0000:1b:00.0: device recovery failed",
    "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: be00000000800400",
    "{1}[Hardware Error]:   section_type: PCIe error",
    "mlx5_core 0000:1b:00.0: poll_health:796:(pid 0): Fatal error 1 detected",
    "habanalabs 0000:1b:00.0: Device heartbeat failed!",
    "EDAC MC0: 1 UE memory read error on DIMM_A1 (channel:0)",
    "GPU reset begin!",
    "ring a timeout, signaled seq=1",
)
NOW = Instant("boot", 10**12, 0.0)


def fits(rule: KernelRule) -> bool:
    """Return whether *rule* says what a line is, and not that one is to be passed over."""
    return rule.kind is not RuleKind.IGNORE


@pytest.mark.parametrize("rule", [rule for rule in kernel_rules() if fits(rule)], ids=lambda rule: rule.code)
def test_no_user_can_write_the_begin_of_a_rule(rule: KernelRule) -> None:
    """A process name has 15 bytes and may begin a line: 16 fixed ones stand before the first that may be anything."""
    assert fixed_prefix(expanded(rule.pattern)) > NAME_BYTES


@pytest.mark.parametrize(
    "rule",
    [rule for rule in kernel_rules() if rule.proof and (rule.gates or rule.gates is None)],
    ids=lambda rule: rule.code,
)
def test_a_rule_that_gates_knows_the_whole_grammar_of_its_line(rule: KernelRule) -> None:
    """Nothing in it may be anything, up to the last field that it reads."""
    assert not free_parts(expanded(rule.pattern))


@pytest.mark.parametrize("prefix", ["%PCI%: x", "(?:NVRM: )?.*Xid", "mlx5_core [^)]*", r"\S+: GPU is lost"])
def test_a_rule_that_a_name_could_begin_is_found(prefix: str) -> None:
    """The measure itself sees what would let a user in."""
    assert fixed_prefix(expanded(prefix)) <= NAME_BYTES


def record(text: str, device: str = "", *, priority: int = 4, sequence: int = 7) -> str:
    """Return what one read of /dev/kmsg gives: what is not printable is escaped, the device stands on its own line."""
    escaped = "".join(f"\\x{ord(one):02x}" if ord(one) < 32 or one == "\\" else one for one in text)
    lines = [f"{priority},{sequence},1000000,-;{escaped}"]
    if device:
        lines += [f" SUBSYSTEM={device[1:].partition(':')[0]}", f" DEVICE={device}"]
    return "\n".join(lines) + "\n"


def told(*lines: Line | None) -> list[Event]:
    """Return the events in *lines*."""
    parser = KernelLogParser()
    for line in lines:
        assert line is not None
        parser.feed(line, NOW)
    return parser.take()


def of_kernel(text: str, device: str = "") -> list[Event]:
    """Return the events in one record of the kernel."""
    return told(split_record(record(text, device)))


def of_journal(text: str, device: str = "") -> list[Event]:
    """Return the events in one entry that journald took from the kernel."""
    entry = {"MESSAGE": text, "_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "__MONOTONIC_TIMESTAMP": "1000000"}
    line = entry_line(json.dumps(entry | ({"_KERNEL_DEVICE": device} if device else {})))
    assert line is not None
    return told(line)


CHANNELS: dict[str, Callable[[str, str], list[Event]]] = {"kmsg": of_kernel, "journal": of_journal}
OF_PCI = "+pci:0000:1b:00.0"
STARTS = [
    ("NVRM: GPU0 _kgspHealthCheck: GPU has fallen off the bus", ""),
    ("NVRM: GPU at PCI:0000:1b:00: GPU has fallen off the bus.", ""),
    ("NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0xffff:2477)", ""),
    ("NVRM: Xid (PCI:0000:1b:00 GPU-I:05 GPU-CI:01): 79, pid=7, name=x, GPU has fallen off the bus.", ""),
    ("nvidia 0000:1b:00.0: probe with driver nvidia failed with error -1", OF_PCI),
    ("nvidia: probe of 0000:1b:00.0 failed with error -1", ""),
    ("nvidia-nvswitch0: SXid (PCI:0000:1b:00.0): 20034, Fatal, Link 48 LTSSM Fault Up", ""),
    ("amdgpu 0000:1b:00.0: {15}2 new uncorrectable hardware errors detected in umc block", OF_PCI),
    ("amdgpu 0000:1b:00.0: amdgpu: socket: 0, die: 0, 3 uncorrectable hardware errors detected in umc block", OF_PCI),
    ("amdgpu 0000:1b:00.0: {15}socket: 0, die: 0, 3 new uncorrectable hardware errors detected in umc block", OF_PCI),
    ("amdgpu 0000:1b:00.0: amdgpu: {15}[Hardware Error]: Accelerator Check Architecture events logged", OF_PCI),
    ("amdgpu 0000:1b:00.0: [drm:amdgpu_ras_do_recovery [amdgpu]] *ERROR* GPU reset(1) failed", OF_PCI),
    ("amdgpu 0000:1b:00.0: [drm] *ERROR* GPU reset(1) failed", OF_PCI),
    ("[drm:amdgpu_device_ip_init [amdgpu]] *ERROR* hw_init of IP block <gfx_v9_4_3> failed -110", ""),
    ("[drm:amdgpu_device_gpu_recover] *ERROR* GPU Recovery Failed: -22", ""),
    ("amdgpu 0000:1b:00.0: amdgpu: WARN: GPU is throttled, expect performance decrease. VR.", OF_PCI),
    ("kfd kfd: amdgpu: GPU reset(2) failed", "c235:0"),
    ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: be00000000800400", ""),
    ("[Hardware Error]: System Fatal error.", ""),
    ("igb 0000:1b:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Receiver ID)", OF_PCI),
    ("vfio-pci 0000:1b:00.0: AER: device recovery failed", OF_PCI),
    ("pci 0000:1b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Data Link Layer, (Receiver ID)", OF_PCI),
    ("pcieport 0000:1b:00.0: DPC: containment event, status:0x1f01 source:0x0000", OF_PCI),
    ("dpc 0000:1b:00.0:pcie008: DPC containment event, status:0x1f01 source:0x0", "+pci_express:0000:1b:00.0:pcie008"),
    ("pcieport 0000:1b:00.0: AER: Uncorrected (Fatal) error received: 0000:1b:00.0", OF_PCI),
    ("mlx5_core 0000:1b:00.0: poll_health:796:(pid 0): Fatal error 1 detected", OF_PCI),
    ("mlx5_core 0000:1b:00.0: wait_func:9:(pid 1): INIT(0x104) timeout. Will cause a leak of a command resource", OF_PCI),  # noqa: E501
    ("mlx5_core 0000:1b:00.0: cb_timeout_handler:9:(pid 1): cmd[2]: CREATE_MKEY(0x200) Async, timeout. Will cause a leak of a command resource", OF_PCI),  # noqa: E501
    ("NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.", ""),
    ("NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7", ""),
    ("NVRM: GPU0 krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7", ""),
    ("pcieport 0000:1b:00.0: AER: subordinate device reset failed", OF_PCI),
    ("pcieport 0000:1b:00.0: AER: link reset failed", OF_PCI),
    ("nvidia 0000:1b:00.0: not ready 65535ms after bus reset; giving up", OF_PCI),
    ("amdgpu 0000:1b:00.0: amdgpu: GPU mode1 reset failed", OF_PCI),
    ("amdgpu 0000:1b:00.0: [drm] *ERROR* GPU mode1 reset failed", OF_PCI),
    ("amdgpu 0000:1b:00.0: amdgpu: ASIC reset failed with error, -62 for drm dev, 0000:1b:00.0", OF_PCI),
    ("amdgpu 0000:1b:00.0: amdgpu: SMU is in hanged state, failed to send smu message!", OF_PCI),
    ("[drm] RAS event of type ERREVENT_ATHUB_INTERRUPT detected!", ""),
    ("mce: Uncorrected hardware memory error in user-access at 3f5e2a400", ""),
    ("mce: Kernel accessed poison in user space at 3f5e2a400", ""),
    ("habanalabs 0000:1b:00.0: Device heartbeat failed! PCI link is broken", OF_PCI),
    ("accel accel3: Failed to reset! Device is NOT usable", "c261:3"),
]  # fmt: skip


UNTRIED = ("nvidia 0000:1b:00.0: AER: can't recover (no error_detected callback)", OF_PCI)
FAILED = ("pcieport 0000:1a:01.0: AER: device recovery failed", "+pci:0000:1a:01.0")
RESET_FAILED = ("pcieport 0000:1a:01.0: AER: subordinate device reset failed", "+pci:0000:1a:01.0")


def in_turn(*lines: tuple[str, str]) -> list[Event]:
    """Return the events in these records of the kernel, each with its device."""
    return told(*(split_record(record(text, device, sequence=n)) for n, (text, device) in enumerate(lines)))


def gating(*lines: tuple[str, str]) -> list[str]:
    """Return the codes of the events in *lines* that close a gate."""
    return [event.code for event in in_turn(*lines) if told_policy(event).gates]


AER_LOST = ("nvidia 0000:1b:00.0: AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Receiver ID)", OF_PCI)  # fmt: skip  # noqa: E501
AER_FATAL = ("nvidia 0000:1b:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Data Link Layer, (Receiver ID)", OF_PCI)  # fmt: skip  # noqa: E501
OLD_FAILED = ("nvidia 0000:1b:00.0: AER: Device recovery failed", OF_PCI)
FATAL_FAILED = ("pcieport 0000:1a:01.0: Device recovery from fatal error failed", "+pci:0000:1a:01.0")


@pytest.mark.parametrize(
    "lines",
    [[UNTRIED, FAILED], [UNTRIED, UNTRIED, FAILED, FAILED], [FAILED], [OLD_FAILED], [OLD_FAILED, OLD_FAILED]],
    ids=["told", "twice", "untold", "older", "older twice"],
)
def test_the_line_of_a_recovery_alone_informs_on_every_kernel(lines: list[tuple[str, str]]) -> None:
    """NVIDIA's driver has no callbacks, so each error that loses one transaction ends so; not every kernel says why."""
    assert gating(*lines) == gating(AER_LOST, *lines) == []
    outcomes = {told_policy(event).outcome for event in in_turn(AER_LOST, *lines)}
    assert outcomes == {Outcome.WARN}


def test_a_recovery_that_failed_closes_the_gate_with_a_witness() -> None:
    """A fatal error, a link that was not reset, or a line that says itself what it was a recovery from."""
    assert gating(AER_FATAL, FAILED) == gating(AER_FATAL, UNTRIED, OLD_FAILED) == ["pcie.aer"]
    assert gating(UNTRIED, RESET_FAILED, FAILED) == ["pcie.reset_failed"]
    assert gating(FATAL_FAILED) == ["pcie.recovery_failed"]


def test_why_a_recovery_was_not_tried_is_told_of_that_one() -> None:
    """And a line that its record does not confirm tells nothing of what is evidence."""
    why = [event.fields.get("cause") for event in in_turn(UNTRIED, FAILED, FAILED)]
    assert why == ["no error_detected callback", None]
    (found,) = in_turn(("0000:1b:00.0: AER: can't recover", ""), (UNTRIED[0], ""), FAILED)
    assert (found.provenance, found.fields.get("cause")) == (Provenance.KERNEL, None)


@pytest.mark.parametrize(
    "head", ["NVRM: ", "NVRM: nvGpuOpsReportFatalError: ", "NVRM: GPU0 nvGpuOpsReportFatalError: "]
)
def test_unified_memory_that_ended_asks_for_a_reboot(head: str) -> None:
    """No program can use a GPU until then; no hardware is blamed, and words that another line quotes are none."""
    words = "uvm encountered global fatal error 0x60, requiring os reboot to recover."
    (found,) = in_turn((head + words, ""))
    policy = told_policy(found)
    assert (found.code, policy.outcome, policy.action) == ("nvidia.driver.uvm_fatal", Outcome.FAIL, Action.REBOOT)
    assert policy.gates and policy.fault_class is FaultClass.NODE
    assert in_turn((words, ""), (f"x: {head}{words}", "")) == []


def test_what_only_announces_is_told_once() -> None:
    """The page behind the words of a bad one, and the end of a reset behind the way in which it was tried."""
    page = ("Memory failure: 0x3f5e2a: Sending SIGBUS to x:7 due to hardware memory corruption", "")
    (lost,) = in_turn(("mce: Uncorrected hardware memory error in user-access at 3f5e2a400", ""), page)
    assert (lost.code, lost.pid, lost.fields["physical"]) == ("memory.page_lost", 7, "3f5e2a400")
    tried = ("amdgpu 0000:1b:00.0: amdgpu: GPU mode1 reset failed", OF_PCI)
    ended = ("amdgpu 0000:1b:00.0: amdgpu: GPU reset(1) failed", OF_PCI)
    assert [event.code for event in in_turn(tried, ended)] == ["amd.gpu_reset_failed"]


CONFIRMED = [text for text, device in STARTS if device == OF_PCI]


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize(("text", "device"), STARTS, ids=[text[:44] for text, _ in STARTS])
def test_what_a_driver_logs_is_evidence(channel: str, text: str, device: str) -> None:
    """However its line begins, in a record of the kernel and in the journal's copy of one."""
    (found,) = CHANNELS[channel](text, device)
    assert found.provenance is Provenance.KERNEL
    assert found.text == text


@pytest.mark.parametrize("device", ["", "+pci:0000:ff:00.0", "+usb:1-2", "n7", "+pci:", "+pci:x"])
@pytest.mark.parametrize("number", range(len(CONFIRMED)))
def test_a_line_of_dev_printk_that_its_record_does_not_confirm_is_no_evidence(number: int, device: str) -> None:
    """No user can write the DEVICE of a record: where it is another, the address in the text proves nothing."""
    for channel in CHANNELS.values():
        assert {found.provenance for found in channel(CONFIRMED[number], device)} == {Provenance.TEXT}


@pytest.mark.parametrize(
    ("caller", "text", "code"),
    [
        (",caller=T123", PLANTED[0], "nvidia.xid.79"),
        (",caller=C0", PLANTED[7], "memory.mce_ue"),
        (",caller=T1,more", PLANTED[2], "nvidia.driver.rm_init_failed"),
    ],
)
def test_records_that_name_their_caller_are_read(caller: str, text: str, code: str) -> None:
    """With CONFIG_PRINTK_CALLER each record names a thread or a processor."""
    (found,) = told(split_record(f"3,7,1000000,-{caller};{text}\n"))
    assert (found.code, found.provenance) == (code, Provenance.KERNEL)


def test_one_record_of_several_lines_is_one_event_of_its_device() -> None:
    """The driver prints three lines at once; the kernel keeps them as one record and escapes their ends."""
    text = (
        "NVRM: The NVIDIA GPU 0000:1b:00.0\nNVRM: (PCI ID: 10de:2330) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands."
    )
    for channel in CHANNELS.values():
        (found,) = channel(text, "")
        assert (found.code, found.pci, found.provenance) == ("nvidia.driver.gpu_lost", "0000:1b:00", Provenance.KERNEL)


def test_firmware_record_of_several_records_is_evidence() -> None:
    """The lines of APEI come one by one, numbered; together they are one event as grave as they say."""
    head = "{1}[Hardware Error]:"
    lines = (f"{head} event severity: fatal", f"{head}   section_type: PCIe error", f"{head}   device_id: 0000:54:01.0")
    (found,) = told(*(split_record(record(line)) for line in lines))
    assert (found.code, found.pci, found.severity, found.provenance) == (
        "pcie.apei",
        "0000:54:01.0",
        "fatal",
        Provenance.KERNEL,
    )


def carried(template: str, comm: str, text: str) -> str:
    """Return the line of the kernel that carries a name of a process or an interface and a longer text."""
    interface = "".join(one for one in comm if not one.isspace() and one not in ":/")
    values = {"{comm}": comm, "{iface}": interface, "{text}": text}
    line = template.replace("\\n", "\n")
    for place, value in values.items():
        line = line.replace(place, value)
    return line


def names(text: str) -> Iterator[tuple[str, str]]:
    """Yield names of a process, each with a text beside it, that try to plant *text*."""
    yield text[:NAME_BYTES], text
    yield text[:NAME_BYTES], text[NAME_BYTES:]
    yield ("\n" + text)[:NAME_BYTES], f"x\n{text}\n{text}"
    for end in range(NAME_BYTES - 3, NAME_BYTES):
        yield text[:end], text[end:]


def test_the_carriers_are_many_and_each_names_its_source() -> None:
    """At least forty kinds of lines in which the kernel prints what a user chose."""
    assert len({row["template"] for row in CARRIERS}) >= 40
    assert all(row["source"] and ("{" in row["template"]) for row in CARRIERS)


@pytest.mark.parametrize("row", CARRIERS, ids=[f"line {number}" for number in range(len(CARRIERS))])
def test_what_the_kernel_prints_of_a_user_is_no_event_of_a_driver(row: dict[str, str]) -> None:
    """A line of every driver, put into each line that carries a name: through kmsg and journal nothing is told."""
    for planted in PLANTED:
        for comm, text in names(planted):
            line = carried(row["template"], comm, text)
            for name, channel in CHANNELS.items():
                found = [one for one in channel(line, row["device"]) if one.code != "nvidia.driver.version_mismatch"]
                assert found == [], (name, line)


def test_random_names_made_from_the_rules_are_no_events(campaign: Callable[[int], int]) -> None:
    """The same with texts that the patterns themselves give, in the carriers at random."""
    random = Random(79)  # noqa: S311 (no secret)
    rules = [expanded(rule.pattern) for rule in kernel_rules() if fits(rule)]
    for _ in range(campaign(20_000)):
        row, planted = random.choice(CARRIERS), sample(random.choice(rules), random)
        comm, text = random.choice(list(names(planted)))
        line = carried(row["template"], comm, text)
        found = of_kernel(line, row["device"]) + of_journal(line, row["device"])
        assert {one.code for one in found} <= {"nvidia.driver.version_mismatch"}, line


def test_in_a_file_such_a_line_is_no_event_and_a_line_end_in_it_proves_nothing(
    tmp_path: Path, campaign: Callable[[int], int]
) -> None:
    """Where a name holds a line end, a file shows a line like a driver's own: it is told, and is not evidence."""
    random = Random(48)  # noqa: S311 (no secret)
    plain: list[str] = []
    torn: list[str] = []
    for _ in range(campaign(4_000)):
        row, planted = random.choice(CARRIERS), random.choice(PLANTED)
        comm, text = random.choice(list(names(planted)))
        line = carried(row["template"], comm, text)
        head = random.choice(["[   12.345678] ", "4,7,1000000,-;", "Aug  5 12:02:03 node-7 kernel: ", "<4>", ""])
        (torn if "\n" in line else plain).append(head + line)
    file = tmp_path / "dmesg.txt"
    file.write_text("\n".join(plain))
    allowed = {"nvidia.driver.version_mismatch"}
    assert {one.code for one in events_from_file(str(file))} <= allowed
    file.write_text("\n".join(torn))
    found = events_from_file(str(file))
    assert found
    assert {one.provenance for one in found} == {Provenance.TEXT}


def test_a_line_that_is_passed_over_is_whole(tmp_path: Path) -> None:
    """A line without a header behind it, which may be the rest of one that was wrapped, makes no event of it."""
    file = tmp_path / "dmesg.txt"
    name = "EDAC MC0: 1 UE memory read error on DIMM_A1 (channel:0)"
    file.write_text(f"[   12.345678] {name}: Can't open blockdev\nring invoked oom-killer: gfp_mask=0xcc0\n")
    assert events_from_file(str(file)) == []


@pytest.mark.parametrize(
    "name",
    ["x, pid=9", "PCI:0000:ff:00", "): 79, x", "\n: NVRM: Xid (", ",A Fatal XC0 i0", "to 0x2 (Node R", "a, Fatal XC0 ",
     "(none) to 0x4", "Link 48", "Ch 00000bad", "<unknown>", "x, name=y", " ", "", "'"],
)  # fmt: skip
@pytest.mark.parametrize(
    ("number", "words", "action"),
    [
        (13, "Graphics Exception: ESR 0x1", "restart_app"),
        (43, "Ch 00000018", "none"),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 02", "watch"),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)", "drain_reset"),
        (154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "reset_device"),
    ],
)
def test_a_name_in_a_genuine_line_changes_nothing_that_decides(name: str, number: int, words: str, action: str) -> None:
    """Neither device nor process nor code nor what is asked for, and it adds no event."""
    text = f"NVRM: Xid (PCI:0000:1b:00): {number}, pid=4711, name={name}, {words}"
    for channel in CHANNELS.values():
        (found,) = channel(text, "")
        assert (found.code, found.pci, found.pid) == (f"nvidia.xid.{number}", "0000:1b:00", 4711)
        assert str(describe_action(found)) == action


@pytest.mark.parametrize(
    ("process", "pid", "thread", "known"),
    [
        ("python", 4242, "python", 4242),
        ("x pid 7 thread ", 4242, "y", 4242),
        ("", 444, "pid 1 thread", 444),
        ("", 444, "pid 1 thread ", None),
        ("", 444, " pid 1 thread ", 444),
    ],
)
@pytest.mark.parametrize("line", ["for process {} pid {} thread {} pid 4243)", "Process {} pid {} thread {} pid 4243"])
def test_a_name_that_looks_like_the_number_of_a_process_is_none(
    line: str, process: str, pid: int, thread: str, known: int | None
) -> None:
    """Where the names of a process and its thread leave open which number is whose, none is told."""
    fault = "[gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32770"
    task = line.format(process, pid, thread)
    texts = [f"{fault})", task] if line.startswith("Process") else [f"{fault}, {task}"]
    lines = [split_record(record(f"amdgpu 0000:1b:00.0: amdgpu: {text}", OF_PCI)) for text in texts]
    (found,) = told(*lines)
    assert (found.code, found.pid) == ("amd.page_fault", known)


@pytest.mark.parametrize(
    ("number", "name", "words", "action"),
    [
        (145, "A Fatal XC0 i0 Link 02 (0x0), x", "RLW_REMAP Nonfatal XC0 i0 Link 02", "watch"),
        (154, "changed from 0x0 (None) to 0x2 (x)", "GPU recovery action changed from 0x2 (x) to 0x0 (None)", "none"),
        (45, "x caused by previous Xid 79", "Ch 00000008", "restart_app"),
    ],
    ids=["link", "recovery", "clean-up"],
)
def test_a_long_name_of_a_guest_decides_nothing(number: int, name: str, words: str, action: str) -> None:
    """The name of a process in a virtual machine has up to 99 bytes and may repeat the driver's words."""
    (found,) = of_kernel(f"NVRM: Xid (PCI:0000:1b:00): {number}, pid=4711, name={name}, {words}")
    assert describe_action(found) == action


@pytest.mark.parametrize(
    "name",
    [
        "IN= OUT= SRC=00 DST=00 LEN=1",
        "IN= OUT= SRC=1.1.1.1 DST=1.1.1.1 LEN=1 TOS=0x00 PREC=0x00 TTL=1 ID=1 PROTO=UDP SPT=1 DPT=2",
        "IN= OUT= ARP HTYPE=1",
        "IN= OUT= MAC source = 00:00:00:00:00:00 MAC dest = 00:00:00:00:00:00 proto = 0x0800 IP",
        ": Can't open blockdev",
        "x: Can't lookup blockdev ",
    ],
)
def test_a_name_in_a_genuine_line_does_not_hide_it(name: str) -> None:
    """What a guest calls its process reads like the end of a line that is passed over: the line goes on behind it."""
    for channel in CHANNELS.values():
        (found,) = channel(f"NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, name={name}, GPU has fallen off the bus.", "")
        assert (found.code, found.pci, found.pid) == ("nvidia.xid.79", "0000:1b:00", 4711)


@pytest.mark.parametrize("name", ["a, \x1b]0;x\x07", "\x1b[2J", "g" * 30 + "\nverdict ok", "\x9b31m", ", \u202e"])
def test_a_name_says_nothing_to_a_terminal(name: str) -> None:
    """What is left of a name in a message is one line of plain text."""
    (found,) = of_kernel(f"NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, name={name}, GPU has fallen off the bus.")
    (finding,) = [one for one in judge("kernel-log", healthy(events=(found,))) if one.key.code == "nvidia.xid.79"]
    assert finding.message.isprintable()


def test_a_message_is_one_line_of_plain_text_whatever_a_driver_prints() -> None:
    """No rule lets such a letter into an event outside of a name; the message does not rest on that."""
    (found,) = of_kernel("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.")
    odd = msgspec.structs.replace(found, text=f"{found.text}\n\x1b[2J \u202e")
    (finding,) = [one for one in judge("kernel-log", healthy(events=(odd,))) if one.key.code == "nvidia.xid.79"]
    assert finding.message.isprintable()


@pytest.mark.parametrize(("name", "process"), [("<a>", "<a>"), ("<unknown>", None), ("a", "a")])
def test_a_process_may_be_named_in_angle_brackets(name: str, process: str | None) -> None:
    """Only the driver's own word for a process that it does not know is none."""
    (found,) = of_kernel(f"NVRM: Xid (PCI:0000:1b:00): 31, pid=4711, name={name}, Ch 00000008")
    assert found.process == process


@pytest.mark.parametrize("name", ["\x1b[2J\x1b]0;x\x07", "\r\x9b31m", "x\nline 2: fatal", "\u202ex", "\u2028"])
def test_a_name_in_a_saved_log_says_nothing_to_a_terminal(name: str) -> None:
    """Each event is one line of plain text, also where JSON or the kernel's escapes bring in what the file hides."""
    text = f"NVRM: Xid (PCI:0000:1b:00): 31, pid=4711, name={name}, Ch 00000008"
    escaped = "".join(f"\\x{byte:02x}" if byte < 32 or byte > 126 else chr(byte) for byte in text.encode())
    for line in (
        json.dumps({"MESSAGE": text, "_TRANSPORT": "kernel"}),
        f"4,1,1000,-;{escaped}",
        text.partition("\n")[0],
    ):
        (event,) = events_from_lines([line])
        assert describe(event).isprintable()


def test_the_words_of_a_recovery_have_an_end() -> None:
    """A user who can write the file that is read must not make one line cost more than a look through it."""
    genuine = "changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    assert decode_body(154, genuine).variant == "reset_device"
    for blanks in (genuine.replace(" (", f"{' ' * 50}("), genuine.replace(" to", f"{' ' * 50}to")):
        assert decode_body(154, blanks).variant == ""
    assert decode_body(154, genuine.replace("None", "x" * 500)).variant == ""


@pytest.mark.parametrize("name", ["a\nb", "\n", "\u2028x", ":1 due to x", "x:99 due to har", "", "a" * 15])
def test_a_process_that_used_bad_memory_has_any_name(name: str) -> None:
    """No byte in it hides that a page was lost, or makes another process of it."""
    for channel in CHANNELS.values():
        (found,) = channel(f"Memory failure: 0x3f80: Killing {name}:4711 due to hardware memory corruption", "")
        assert (found.code, found.pid, found.provenance) == ("memory.page_lost", 4711, Provenance.KERNEL)


def test_a_line_that_a_counter_must_confirm_only_informs() -> None:
    """The kernel's own memory errors have too few fixed bytes; the counter ue_count has a finding of its own."""
    (found,) = of_kernel("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_DIMM#0 (channel:0 slot:0 page:0x1)")
    assert (found.code, found.provenance) == ("memory.edac_ue", Provenance.TEXT)


def describe_action(found: Event) -> str:
    """Return what the event asks for."""
    from nodevet.checks.reference.kernel_policy import policy_of

    return policy_of(found).action.value


@pytest.mark.parametrize("provenance", [Provenance.KERNEL, Provenance.DRIVER])
def test_evidence_fails_its_device(provenance: Provenance) -> None:
    """The word of the driver, or of the kernel, is a witness."""
    finding = of(judge("kernel-log", healthy(events=(event("nvidia.xid.79", provenance=provenance),))), "nvidia.xid.79")
    assert (finding.outcome, finding.fault_class, finding.hard) == (Outcome.FAIL, FaultClass.HARDWARE, True)


def test_text_informs_and_never_gates() -> None:
    """It warns at most, blames no hardware, says so, and stands under a code of its own."""
    codes = [f"nvidia.xid.{number}" for number in range(1, 180)] + [rule.code for rule in kernel_rules()]
    events = tuple(event(code, provenance=Provenance.TEXT) for code in dict.fromkeys(codes))
    findings = [one for one in judge("kernel-log", healthy(events=events)) if one.code != "kernel_log.readable"]
    assert len(findings) == len(events)
    for finding in findings:
        assert finding.outcome in (Outcome.WARN, Outcome.SKIPPED)
        if finding.outcome is Outcome.WARN:
            assert finding.code.startswith("text.")
            assert not finding.gates and not finding.hard
            assert finding.fault_class is not FaultClass.HARDWARE
            assert "a user can write this line too" in finding.message


def test_text_that_tells_the_same_does_not_hide_evidence() -> None:
    """A user who writes the line first, or has it acknowledged, keeps nothing out."""
    from nodevet.checks.kernel_log.dedupe import Deduplicator

    seen = Deduplicator()
    assert seen.admit(event("nvidia.xid.79", provenance=Provenance.TEXT))
    assert seen.admit(event("nvidia.xid.79", provenance=Provenance.KERNEL))
    assert not seen.admit(event("nvidia.xid.79", provenance=Provenance.TEXT))
    assert not seen.admit(event("nvidia.xid.79", provenance=Provenance.DRIVER, source="nvml"))
    findings = judge(
        "kernel-log",
        healthy(events=tuple(event("nvidia.xid.79", provenance=one) for one in (Provenance.TEXT, Provenance.KERNEL))),
    )
    assert {one.key.code for one in findings if one.device == GPU} == {"text.nvidia.xid.79", "nvidia.xid.79"}


def test_user_record_of_kmsg_is_never_an_event() -> None:
    """The kernel forces a facility on what programs write there."""
    for facility in range(1, 128):
        line = split_record(record(PLANTED[0], OF_PCI, priority=(facility << 3) + 3))
        assert told(line) == []


def test_saved_log_is_text_whatever_it_looks_like() -> None:
    """A record of /dev/kmsg, or an entry of the journal, in a file may have been typed."""
    entry = json.dumps({"MESSAGE": PLANTED[0], "_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0"})
    for text in (record(PLANTED[0]).strip(), entry, f"[ 1.5] {PLANTED[0]}"):
        (found,) = events_from_lines([text])
        assert (found.code, found.provenance) == ("nvidia.xid.79", Provenance.TEXT)


FATAL = "pcieport 0000:c0:01.1: AER: Uncorrectable (Fatal) error message received from 0000:c1:00.0"
DEVICE_ERROR = "nvidia 0000:c1:00.0: PCIe Bus Error: severity={}, type=Transaction Layer, (Receiver ID)"


@pytest.mark.parametrize(
    ("severity", "device", "codes"),
    [
        ("Uncorrectable (Fatal)", "+pci:0000:c1:00.0", [("pcie.aer", Provenance.KERNEL)]),
        ("Uncorrectable (Fatal)", "", [("pcie.aer", Provenance.KERNEL), ("pcie.aer", Provenance.TEXT)]),
        ("Corrected", "+pci:0000:c1:00.0", [("pcie.aer", Provenance.KERNEL), ("pcie.aer", Provenance.KERNEL)]),
    ],
)
def test_a_header_is_taken_back_only_by_what_is_as_sure_and_as_grave(
    severity: str, device: str, codes: list[tuple[str, Provenance]]
) -> None:
    """A fatal error that was announced is not lost in a text, nor in a corrected error of another device."""
    head = split_record(record(FATAL, "+pci:0000:c0:01.1"))
    found = told(head, split_record(record(DEVICE_ERROR.format(severity), device)))
    assert [(one.code, one.provenance) for one in found] == codes
    assert any(one.severity == "fatal" and one.provenance is Provenance.KERNEL for one in found)


def test_an_echo_of_the_kernel_is_no_echo_of_a_text() -> None:
    """What says again that a reset failed proves it, where the first line proved nothing."""
    head = "amdgpu 0000:1b:00.0: amdgpu: GPU reset"
    lines = (f"{head}(1) failed", f"{head} end with ret = -62")
    first, again = (split_record(record(line, device)) for line, device in zip(lines, ("", OF_PCI), strict=True))
    assert [one.provenance for one in told(first, again)] == [Provenance.TEXT, Provenance.KERNEL]
    assert len(told(split_record(record(lines[0], OF_PCI)), again)) == 1


def test_a_harmless_event_does_not_hide_the_fatal_one_of_its_number() -> None:
    """Link errors have one number for all their severities, and the recovery action one for all actions."""
    from nodevet.checks.kernel_log.dedupe import Deduplicator

    seen = Deduplicator()
    assert seen.admit(event("nvidia.xid.149", fields={"variant": "nonfatal"}))
    assert seen.admit(event("nvidia.xid.149", fields={"variant": "fatal"}))
    assert not seen.admit(event("nvidia.xid.149", fields={"variant": "fatal"}))
    assert seen.admit(event("nvidia.sxid.20034", fields={"word": "Non-fatal"}))
    assert seen.admit(event("nvidia.sxid.20034", fields={"word": "Fatal"}))


@pytest.mark.parametrize("words", ["Fatal, Link 11 x", "Fatal Link 11 x", "Fatal", "Non-fatal, Link 11 x", "Nonfatal"])
def test_the_word_of_a_switch_is_read_with_and_without_its_comma(words: str) -> None:
    """A code that is fatal by its line must not be rated by the table because a comma is missing."""
    (found,) = of_kernel(f"nvidia-nvswitch3: SXid (PCI:0000:09:00.0): 12028, {words}")
    assert found.fields["word"] == words.split(",")[0].split()[0]
    assert found.provenance is Provenance.KERNEL


def test_bytes_of_another_script_are_read_as_the_kernel_escaped_them() -> None:
    """One character is several escaped bytes."""
    line = split_record("4,7,1000000,-;usb 1-2: Product: \\xc3\\xa9\\x5c\\xff\n")
    assert line is not None
    assert line.text == "usb 1-2: Product: é\\\ufffd"


CRASH = """
import ctypes, resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)
ctypes.string_at(0)
"""


def test_a_program_with_a_chosen_name_crashes_on_a_real_kernel() -> None:
    """The kernel prints its name at facility 0, as its own word; nothing comes of it."""
    name = "NVRM: Xid (PCI:"
    try:
        log = KernelLogReader(boot_id="boot")
    except KernelLogError:
        pytest.skip(NO_KERNEL_LOG)
    log.close()
    assert subprocess.run([sys.executable, "-I", "-c", CRASH, name], check=False).returncode == -signal.SIGSEGV
    seen: list[bytes] = []

    def read(descriptor: int, size: int) -> bytes:
        data = os.read(descriptor, size)
        if name.encode() in data:
            seen.append(data)
        return data

    log = KernelLogReader(boot_id="boot", read=read)
    assert log.is_evidence
    events = [found for found in log.read_available(NOW) if name in found.text]
    log.close()
    if not seen:
        pytest.skip(NO_CRASHES)
    assert seen[-1].split(b",", 1)[0].isdigit() and int(seen[-1].split(b",", 1)[0]) < 8
    assert events == []


HEADLESS = (
    "device lost from bus!",
    "Fatal error during GPU init",
    "GPU detected ECC Fatal Error",
    "{15}2 new uncorrectable hardware errors detected in umc block",
    "socket: 0, die: 0, 3 uncorrectable hardware errors detected in umc block",
    "uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
    "RAS poison consumption, unmap queue",
    "Saved bad pages 128 reaches threshold value 128",
    "RAS records:129 exceed threshold:128",
)


@pytest.mark.parametrize("text", HEADLESS)
def test_words_of_a_driver_without_its_name_are_no_evidence(text: str) -> None:
    """dev_printk names driver and device before them: alone they are told, and behind that head they are evidence."""
    for channel in CHANNELS.values():
        assert {found.provenance for found in channel(text, OF_PCI)} == {Provenance.TEXT}
        (found,) = channel(f"amdgpu 0000:1b:00.0: amdgpu: {text}", OF_PCI)
        assert (found.provenance, found.pci) == (Provenance.KERNEL, "0000:1b:00.0")


@pytest.mark.parametrize("rule", [rule for rule in kernel_rules() if rule.proof], ids=lambda rule: rule.code)
def test_a_rule_with_proof_lets_no_driver_leave_its_name_out(rule: KernelRule) -> None:
    """What may stand without the driver's name has a row of its own, which proves nothing."""
    assert "%AMD%" not in rule.pattern and "%AMDWORD%" not in rule.pattern


def test_the_hint_of_a_record_sends_nobody_to_the_log_that_was_read() -> None:
    """Where the kernel's own log was read, its counters confirm, and for the host's memory they are named."""
    found = of_kernel("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_DIMM#0 (channel:0 slot:0 page:0x1)")
    findings = judge("kernel-log", healthy(events=tuple(found)))
    (finding,) = [one for one in findings if one.key.code == "text.memory.edac_ue"]
    assert "ue_count" in finding.message
    assert "dmesg" not in finding.message


@pytest.mark.parametrize("head", ["*ERROR* ", "[drm] *ERROR* ", "[drm] ERROR* "])
def test_the_word_of_an_error_names_no_driver(head: str) -> None:
    """Each driver of graphics prints it: what another one says of its reset fails no board of amdgpu."""
    for channel in CHANNELS.values():
        for text in ("GPU reset(1) failed", "GPU reset end with ret = -62", "hw_init of IP block <gfx> failed -110"):
            assert {found.provenance for found in channel(head + text, "")} == {Provenance.TEXT}


def apei(number: str, kind: str = "PCIe", severity: str = "fatal") -> list[Line]:
    """Return a record of the firmware as the kernel prints it, with *number* before each line."""
    head = f"{number}[Hardware Error]:"
    texts = (f" event severity: {severity}", f"  Error 0, type: {severity}", f"   section_type: {kind} error")
    lines = [f"{head}{text}" for text in texts]
    return [one for one in (split_record(record(line)) for line in lines) if one is not None]


@pytest.mark.parametrize(("kind", "code"), [("PCIe", "pcie.bert"), ("memory", "memory.bert")])
def test_an_error_of_the_boot_before_closes_nothing_in_this_one(kind: str, code: str) -> None:
    """The firmware keeps the record that ended the last boot (BERT), and the kernel prints it without a number.

    The reboot that a fatal error asks for would else be followed by the next one.
    """
    (found,) = told(*apei("", kind))
    assert (found.code, found.severity) == (code, "fatal")
    (finding,) = [one for one in judge("kernel-log", healthy(events=(found,))) if one.key.code == code]
    assert (finding.outcome, finding.gates) == (Outcome.WARN, False)
    (now,) = told(*apei("{1}", kind))
    assert now.code.endswith(".apei") and now.provenance is Provenance.KERNEL


@pytest.mark.parametrize(("severity", "outcome"), [("fatal", "fail"), ("recoverable", "warn"), ("corrected", "pass")])
def test_a_section_of_the_vendors_own_kind_is_as_grave_as_its_record(severity: str, outcome: str) -> None:
    """The kernel knows a few kinds of sections and prints the others by their number, such as those of NVIDIA Grace."""
    kind = "section type: unknown, 6d5244f2-2712-11ec-bea7-cb3fdb95c786"
    dump = "  00000000: 4d54532d 5f464e4f 55445f43 00000000  -STMONF_C_DU...."
    texts = (f" event severity: {severity}", f"  Error 0, type: {severity}", f"   {kind}", dump)
    for number, code in (("{1}", "memory.apei_vendor"), ("", "memory.bert_vendor")):
        lines = [split_record(record(f"{number}[Hardware Error]:{text}")) for text in texts]
        (found,) = told(*[one for one in lines if one is not None])
        policy = told_policy(found)
        assert (found.code, found.provenance) == (code, Provenance.KERNEL)
        assert (policy.outcome, policy.gates) == ((outcome, severity == "fatal") if number else ("warn", False))


def test_records_of_the_firmware_that_come_at_once_are_told_apart() -> None:
    """Two processors print in turn: each error is as grave as its own record says, and of its own device."""
    memory, bus = apei("{1}", "memory", "corrected"), apei("{2}", "PCIe", "fatal")
    device = split_record(record("{2}[Hardware Error]:   device_id: 0000:54:01.0"))
    for first, second in ((memory, bus), (bus, memory)):
        mixed = [line for pair in zip(first, second, strict=True) for line in pair]
        found = {one.code: (one.severity, one.pci) for one in told(*mixed, device)}
        assert found == {"memory.apei": ("info", None), "pcie.apei": ("fatal", "0000:54:01.0")}


def machine_check(stamp: str, state: str = "0", status: str = "be00000000800400", rip: str = "") -> list[Line]:
    """Return a machine check as the kernel prints it, with the *stamp* of the processor in its second or third line."""
    texts = [f"CPU 3: Machine Check{' Exception' if state != '0' else ''}: {state} Bank 7: {status}", rip]
    texts += [f"TSC {stamp} ADDR 3f80 MISC 86", "PROCESSOR 0:606a6 TIME 1700000000 SOCKET 0 APIC 6 microcode d0003a5"]
    lines = [split_record(record(f"mce: [Hardware Error]: {text}")) for text in texts if text]
    return [line for line in lines if line is not None]


def test_a_machine_check_of_the_boot_before_closes_nothing_in_this_one() -> None:
    """The processor keeps an error over a reset, and the kernel prints it at its start: without a time (TSC 0)."""
    logged = split_record(record("mce: [Hardware Error]: Machine check events logged"))
    (found,) = told(logged, *machine_check("0"))
    assert (found.code, found.provenance, found.fields["bank"]) == ("memory.mce_before", Provenance.KERNEL, "7")
    (finding,) = [one for one in judge("kernel-log", healthy(events=(found,))) if one.key.code == found.code]
    assert (finding.outcome, finding.gates) == (Outcome.WARN, False)
    assert "before this boot" in finding.message


@pytest.mark.parametrize("rip", ["", "RIP 10:<ffffffff8105c1a2> {intel_idle+0x72}"])
@pytest.mark.parametrize(("stamp", "state"), [("2a1b3c4d5e", "5"), ("2a1b3c4d5e", "0"), ("1", "4")])
def test_a_machine_check_of_this_boot_fails_the_node(stamp: str, state: str, rip: str) -> None:
    """It has a time, whether an exception told it or a look at the banks."""
    (found,) = told(*machine_check(stamp, state, rip=rip))
    assert (found.code, found.provenance) == ("memory.mce_ue", Provenance.KERNEL)
    (finding,) = [one for one in judge("kernel-log", healthy(events=(found,))) if one.key.code == found.code]
    assert (finding.outcome, finding.gates) == (Outcome.FAIL, True)


def test_a_corrected_error_without_a_time_excuses_no_machine_check_before_it() -> None:
    """A look by the timer prints corrected errors without a time: that line is of its own error."""
    found = told(*machine_check("2a1b", "5"), *machine_check("0", status="8c00004000010091"))
    assert [one.code for one in found] == ["memory.mce_ue", "memory.mce_ce"]
    cut = machine_check("2a1b", "5")[:1] + machine_check("0", status="8c00004000010091")
    assert [one.code for one in told(*cut)] == ["memory.mce_ue", "memory.mce_ce"]


def test_the_time_of_an_error_that_was_told_is_of_no_other() -> None:
    """A machine check still waits, the corrected error behind it is told already: its line comes with the next read."""
    parser = KernelLogParser()
    early = Instant("boot", NOW.boottime_ns - 1, 0.0)
    corrected = machine_check("0", status="8c00004000010091")
    for line in (machine_check("2a1b")[0], machine_check("2a1b")[2], corrected[2], corrected[0]):
        parser.feed(line, NOW)
    assert [one.code for one in parser.take(early)] == ["memory.mce_ce"]
    parser.feed(corrected[1], NOW)
    assert [one.code for one in parser.take()] == ["memory.mce_ue"]


@pytest.mark.parametrize("between", [0, 1, 2])
def test_a_machine_check_waits_for_its_time_and_no_longer(between: int) -> None:
    """Its lines may come in any reads; with time and processor it is told at once, without them after a second."""
    parser = KernelLogParser()
    lines = machine_check("0" if between == 1 else "2a1b")
    early = Instant("boot", NOW.boottime_ns - 1, 0.0)
    parser.feed(lines[0], NOW)
    assert parser.take(early) == [] and parser.holds_back
    if between < 2:
        parser.feed(lines[1], NOW)
        assert parser.take(early) == [] and parser.holds_back
        parser.feed(lines[2], NOW)
        (found,) = parser.take(early)
        assert found.fields["unit"] == "SOCKET 0"
        assert found.code == ("memory.mce_before" if between else "memory.mce_ue")
    else:
        (found,) = parser.take(Instant("boot", NOW.boottime_ns + 1, 0.0))
        assert found.code == "memory.mce_ue"


@pytest.mark.parametrize(
    ("words", "flags", "code"),
    [
        ("System Fatal error.", "Over|UE|MiscV|AddrV|PCC|TCC|SyndV|-|-|-", "memory.mce_before"),
        ("Uncorrected, software restartable error.", "-|UE|MiscV|AddrV|-|TCC|SyndV|-|-|-", "memory.mce_ue"),
        ("Uncorrected, software containable error.", "-|UE|MiscV|AddrV|-|TCC|SyndV|-|-|-", "memory.mce_ue"),
        ("", "Over|UE|MiscV|AddrV|PCC|TCC|SyndV|-|-|-", "memory.mce_before"),
        ("", "-|UE|MiscV|AddrV|-|TCC|SyndV|-|-|-", "memory.mce_ue"),
    ],
)
def test_an_error_that_stops_the_machine_at_once_is_not_of_this_boot(words: str, flags: str, code: str) -> None:
    """A corrupt context (PCC) ends the kernel that meets it, so one that still reads prints what was before."""
    head = "[Hardware Error]: "
    lines = [f"{head}{words}"] if words else []
    lines.append(f"{head}CPU:2 (19:1:1) MC27_STATUS[{flags}]: 0xbaa000000000010b")
    (found,) = told(*(split_record(record(line)) for line in lines))
    assert (found.code, found.provenance) == (code, Provenance.KERNEL)


@pytest.mark.parametrize("function", ["intel_gt_reset", "radeon_ring_test", "nouveau_gem_ioctl", "gfx_v9_0_hw_init"])
def test_a_function_names_amdgpu_only_by_its_module_or_name(function: str) -> None:
    """Every driver of graphics prints its functions this way: without the module only amdgpu's own names prove."""
    for channel in CHANNELS.values():
        for text in ("*ERROR* GPU reset(1) failed", "*ERROR* hw_init of IP block <gfx> failed -110"):
            for head in (f"[drm:{function}] ", f"[drm:{function} [i915]] "):
                assert {found.provenance for found in channel(head + text, "")} <= {Provenance.TEXT}
            assert channel(f"[drm:{function}] {text}", ""), "it is still told"
            for head in (f"[drm:{function} [amdgpu]] ", f"[drm:amdgpu_{function}] "):
                assert {found.provenance for found in channel(head + text, "")} == {Provenance.KERNEL}


@pytest.mark.parametrize("flag", ["c", "+", "c,caller=T123", ""])
@pytest.mark.parametrize("planted", PLANTED)
def test_a_piece_of_a_line_of_the_kernel_proves_nothing(planted: str, flag: str) -> None:
    """An OOM kill prints the name of a cgroup as a piece; where another processor prints meanwhile it stands alone.

    A user who may make cgroups chooses up to 255 bytes of it.
    """
    found = told(split_record(f"6,7,1000000,{flag};{planted}\n"))
    assert {one.provenance for one in found} <= {Provenance.TEXT}


def test_what_dev_printk_began_is_evidence_also_in_pieces() -> None:
    """Driver and device stand before what it prints, so that no name begins it."""
    text = "amdgpu 0000:1b:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block"
    (found,) = told(split_record(f"6,7,1000000,c;{text}\n SUBSYSTEM=pci\n DEVICE={OF_PCI}\n"))
    assert found.provenance is Provenance.KERNEL


@pytest.mark.parametrize("blanks", ["", "  ", " " * 500])
@pytest.mark.parametrize("length", [960, 975, 1023, 1024])
@pytest.mark.parametrize("planted", PLANTED)
def test_a_record_that_may_be_cut_proves_nothing(planted: str, length: int, blanks: str) -> None:
    """The source of a mount is known by what stands behind it, and the kernel cuts a line of more than 1 KiB."""
    text = f"{blanks}{planted}{'/x' * 600}"[:length]
    for channel in CHANNELS.values():
        assert {one.provenance for one in channel(text, "")} <= {Provenance.TEXT}


def test_a_long_line_of_a_driver_is_evidence() -> None:
    """As long as the kernel keeps whole."""
    text = f"NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=x, {'words ' * 140}"
    for channel in CHANNELS.values():
        assert {one.provenance for one in channel(text, "")} == {Provenance.KERNEL}


def test_a_fatal_error_that_was_announced_is_not_lost_in_that_of_another_device() -> None:
    """Two devices behind two ports may fail at once; each is told."""
    head = split_record(record(FATAL, "+pci:0000:c0:01.1"))
    other = DEVICE_ERROR.format("Uncorrectable (Fatal)").replace("c1:00.0", "d1:00.0")
    found = told(head, split_record(record(other, "+pci:0000:d1:00.0")))
    assert [(one.pci, one.severity) for one in found] == [("0000:c1:00.0", "fatal"), ("0000:d1:00.0", "fatal")]
    own = FATAL.replace("from 0000:c1:00.0", "from 0000:c0:01.1")
    found = told(split_record(record(own, "+pci:0000:c0:01.1")), split_record(record(other, "+pci:0000:d1:00.0")))
    assert [one.pci for one in found] == ["0000:d1:00.0"], "the port speaks for what is behind it"


@pytest.mark.parametrize("head", ["Machine check events logged", "Corrected error, no action required.", ""])
@pytest.mark.parametrize(("flag", "code"), [("UE", "memory.mce_ue"), ("Deferred", "memory.mce_de")])
def test_a_status_that_is_graver_than_the_line_before_it_is_an_event(head: str, flag: str, code: str) -> None:
    """Two processors print in turn: an uncorrected error is no detail of a corrected one."""
    texts = [f"mce: [Hardware Error]: {head}"] if head else []
    texts.append(f"[Hardware Error]: CPU:2 (19:1:1) MC27_STATUS[-|{flag}|MiscV|-|-|-]: 0xbaa000000000010b")
    found = told(*(split_record(record(text)) for text in texts))
    assert code in [one.code for one in found]
    assert [one.fields.get("bank") for one in found if one.code == code] == ["27"]


@pytest.mark.parametrize("keys", ["", "\n SUBSYSTEM=usb\n DEVICE=+usb:1-2\\x0a DEVICE=+pci:0000:1b:00.0"])
@pytest.mark.parametrize("end", ["\\x0a DEVICE=+pci:0000:1b:00.0", "\\x0a\\x0a DEVICE=+pci:0000:1b:00.0\\x0a", ""])
def test_a_device_inside_a_text_is_none(keys: str, end: str) -> None:
    """The kernel escapes the line ends in texts and keys alike, so that neither can add a key."""
    (found,) = told(split_record(f"4,7,1,-;vfio-pci 0000:1b:00.0: AER: device recovery failed{end}{keys}\n"))
    assert found.provenance is Provenance.TEXT


@pytest.mark.parametrize("priority", [8, 2048, 2052, 4096, 16384, 999_999])
def test_a_facility_that_overflows_is_not_the_kernels(priority: int) -> None:
    """A program may write any number before its text."""
    assert told(split_record(record(PLANTED[0], priority=priority))) == []


def test_a_port_that_was_closed_is_not_lost_in_a_corrected_error() -> None:
    """Behind it nothing answers that could print its error, and corrected ones come all the time."""
    port = "pcieport 0000:c0:01.1: DPC: containment event, status:0x1f01 source:0x0000"
    corrected = "igb 0000:d1:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
    lines = (record(port, "+pci:0000:c0:01.1"), record(corrected, "+pci:0000:d1:00.0"))
    found = told(*map(split_record, lines))
    assert [(one.code, one.pci) for one in found] == [("pcie.dpc", "0000:c0:01.1"), ("pcie.aer", "0000:d1:00.0")]
    (finding,) = [one for one in judge("kernel-log", healthy(events=tuple(found))) if one.key.code == "pcie.dpc"]
    assert finding.gates


GENUINE = {
    "firmware, corrected": [
        ("{1}[Hardware Error]: event severity: corrected", ""),
        ("{1}[Hardware Error]:  Error 0, type: corrected", ""),
        ("{1}[Hardware Error]:   section_type: memory error", ""),
        ("{1}[Hardware Error]:   DIMM location: P0 DIMM_A1", ""),
    ],
    "firmware, fatal": [
        ("{1}[Hardware Error]: event severity: fatal", ""),
        ("{1}[Hardware Error]:   section_type: PCIe error", ""),
        ("{1}[Hardware Error]:   device_id: 0000:1b:00.0", ""),
        ("pcieport 0000:1b:00.0: aer_status: 0x00040000", OF_PCI),
    ],
    "XIDs": [
        ("NVRM: GPU at PCI:0000:1b:00: GPU-11111111-2222-3333-4444-555555555555", ""),
        ("NVRM: Xid (PCI:0000:2b:00): 45, pid=1, name=x, Ch 00000010", ""),
        ("NVRM: Xid (PCI:0000:1b:00): 94, pid=1, name=x, Contained: SM (0x1)", ""),
        ("NVRM: Xid (PCI:0000:1b:00): 45, pid=1, name=x, Ch 00000010", ""),
        ("NVRM: GPU 0000:2b:00.0: RmInitAdapter failed! (0x62:0xffff:2477)", ""),
    ],
    "machine check": [
        ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: be00000000800400", ""),
        ("mce: [Hardware Error]: TSC 2a1b ADDR 3f80 MISC 86", ""),
        ("[Hardware Error]: Uncorrected, software restartable error.", ""),
    ],
    "ring": [
        ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=1, emitted seq=2", ""),
        ("[drm:amdgpu_device_gpu_recover [amdgpu]] *ERROR* GPU reset(1) failed", ""),
    ],
    "port": [
        (FATAL, "+pci:0000:c0:01.1"),
        (DEVICE_ERROR.format("Uncorrectable (Fatal)"), "+pci:0000:c1:00.0"),
        ("nvidia 0000:c1:00.0:    [18] MalfTLP", "+pci:0000:c1:00.0"),
    ],
}
"""What drivers and the kernel print in several lines that belong together."""

FITTING = (
    "{1}[Hardware Error]: event severity: fatal",
    "{1}[Hardware Error]: event severity: corrected",
    "{1}[Hardware Error]:   device_id: 0000:2b:00.0",
    "{1}[Hardware Error]:   section_type: PCIe error",
    "amdgpu 0000:2b:00.0: amdgpu: suspend of IP block <vcn> failed -22",
    FATAL.replace("c0:01.1", "d0:01.1"),
    "NVRM: GPU at PCI:0000:1b:00: GPU-99999999-2222-3333-4444-555555555555",
    "NVRM: GPU at PCI:0000:2b:00: GPU-99999999-2222-3333-4444-555555555555",
    "NVRM: Xid (PCI:0000:2b:00): 79, pid=1, name=x, GPU has fallen off the bus.",
    "NVRM: No firmware image found",
    "mce: [Hardware Error]: TSC 0 ADDR 3f80",
    "Process information: process root pid 1",
    "amdgpu 0000:2b:00.0: amdgpu: GPU reset begin!",
    "amdgpu 0000:2b:00.0: amdgpu: GPU Recovery Failed: -22",
    "pcieport 0000:c1:00.0: aer_status: 0x00000001",
    "nvidia 0000:c1:00.0:    [4] DLP",
    DEVICE_ERROR.format("Uncorrectable (Fatal)"),
)
"""A piece for each way in which a line adds to what another one tells."""


def joined(lines: list[tuple[str, str]], planted: str, place: int) -> list[tuple[object, ...]]:
    """Return what is evidence in *lines* with the piece *planted* before the one at *place*."""
    records = [split_record(record(text, device)) for text, device in lines]
    if planted:
        records.insert(place, split_record(record(planted).replace(",-;", ",c;")))
    found = [one for one in told(*records) if one.provenance is Provenance.KERNEL]
    return [(one.code, one.pci, one.severity, one.pid, one.process, one.fields) for one in found]


@pytest.mark.parametrize("name", GENUINE)
def test_a_piece_of_a_line_changes_nothing_that_is_evidence(name: str, campaign: Callable[[int], int]) -> None:
    """A user's cgroup has the name of a line that belongs to another one: to no device, severity or cause of that."""
    random = Random(16)  # noqa: S311 (no secret)
    lines = GENUINE[name]
    alone = joined(lines, "", 0)
    rules = [expanded(rule.pattern) for rule in kernel_rules()]
    planted = [*FITTING, *(sample(random.choice(rules), random) for _ in range(campaign(300)))]
    for text in planted:
        for place in range(len(lines) + 1):
            assert joined(lines, text, place) == alone, (text, place)
