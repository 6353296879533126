"""Lines of one event belong together whatever others print between them, and those of two never do."""

from __future__ import annotations

import itertools
import re

import pytest
from fakes.views import at, healthy, judge

from nodevet.checks.core.model import Event
from nodevet.checks.kernel_log.dedupe import Deduplicator
from nodevet.checks.kernel_log.lines import split_record
from nodevet.checks.kernel_log.parse import KernelLogParser
from nodevet.checks.reference.kernel_policy import told_policy

HEAD = "mce: [Hardware Error]: "
ERROR = "PCIe Bus Error: severity=Uncorrectable"
PARTED = {
    "machine check of the boot before": [
        f"{HEAD}CPU 3: Machine Check: 0 Bank 7: be00000000800400",
        f"{HEAD}TSC 0 ADDR 3f80 MISC 86",
        f"{HEAD}PROCESSOR 0:606a6 TIME 1700000000 SOCKET 1 APIC 6 microcode d0003a5",
    ],
    "machine check": [
        f"{HEAD}CPU 3: Machine Check Exception: 5 Bank 7: be00000000800400",
        f"{HEAD}RIP !INEXACT! 10:<ffffffff8105c1a2> {{intel_idle+0x72}}",
        f"{HEAD}TSC 2a1b3c4d ADDR 3f80 MISC 86",
        f"{HEAD}PROCESSOR 0:606a6 TIME 1700000000 SOCKET 1 APIC 6 microcode d0003a5",
    ],
    "machine check that AMD's decoder tells": [
        "[Hardware Error]: System Fatal error.",
        "[Hardware Error]: CPU:2 (19:1:1) MC27_STATUS[Over|UE|MiscV|AddrV|PCC|TCC|SyndV|-|-|-]: 0xbaa000000000010b",
        "[Hardware Error]: PPIN: 0x02b1234567890abc",
    ],
    "boards that another driver holds": [
        "NVRM: The NVIDIA probe routine was not called for 8 device(s).",
        "NVRM: No NVIDIA devices probed.",
        "NVRM: None of the NVIDIA devices were initialized.",
    ],
    "board that its driver refused": [
        "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
        "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:1b:00.0)",
        "nvidia: probe of 0000:1b:00.0 failed with error -1",
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
        "NVRM: None of the NVIDIA devices were initialized.",
    ],
    "reset that failed": [
        "amdgpu 0000:1b:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=2",
        "amdgpu 0000:1b:00.0: amdgpu: GPU reset begin!",
        "amdgpu 0000:1b:00.0: amdgpu: GPU reset(1) failed",
        "amdgpu 0000:1b:00.0: amdgpu: GPU reset end with ret = -110",
        "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* GPU Recovery Failed: -110",
    ],
    "port that was closed": [
        "pcieport 0000:c0:01.1: DPC: containment event, status:0x1f01 source:0x0000",
        f"pcieport 0000:c0:01.1: {ERROR} (Fatal), type=Transaction Layer, (Receiver ID)",
        "pcieport 0000:c0:01.1:   device [8086:347a] error status/mask=00000020/00000000",
    ],
    "error that a port announces": [
        "pcieport 0000:c0:01.1: AER: Uncorrectable (Fatal) error message received from 0000:c1:00.0",
        f"nvidia 0000:c1:00.0: {ERROR} (Fatal), type=Transaction Layer, (Receiver ID)",
        "nvidia 0000:c1:00.0:    [18] MalfTLP                (First)",
    ],
    "corrected error of a firmware's record": [
        "{7}[Hardware Error]: event severity: corrected",
        "{7}[Hardware Error]:   section_type: PCIe error",
        "{7}[Hardware Error]:   device_id: 0000:1b:00.0",
        "nvidia 0000:1b:00.0: aer_status: 0x00000001, aer_mask: 0x00000000",
    ],
    "firmware's record of the boot before": [
        "[Hardware Error]: event severity: fatal",
        "[Hardware Error]:   section_type: PCIe error",
        "[Hardware Error]:   port_type: 0, endpoint",
        "[Hardware Error]:   device_id: 0000:1b:00.0",
    ],
}
"""What the kernel prints in several lines, which others part while a console is slow."""

OTHERS = (
    "python[4711]: segfault at 0 ip 00007fa7a7585ad8 sp 00007ffed5821b28 error 4 in libc.so.6[167ad8,7fa7a7444000]",
    "pci 0000:00:1f.5: BAR 0: assigned",
    "tmpfs: Unknown parameter 'NVRM'",
)


def told(*texts: str, read_each: int = 0) -> list[Event]:
    """Return the events in these records, 0.1 ms apart; the log is read behind each *read_each* of them."""
    parser = KernelLogParser()
    seen = Deduplicator()
    found: list[Event] = []
    for number, text in enumerate(texts):
        address = re.match(r"[a-z][\w-]* (\w{4}:\w\w:\w\w\.\d)", text)
        keys = f" SUBSYSTEM=pci\n DEVICE=+pci:{address[1]}\n" if address else ""
        seconds = 100.0 + number * 1e-4
        line = split_record(f"4,{number},{round(seconds * 1e6)},-;{text}\n{keys}")
        assert line is not None
        parser.feed(line, at(seconds))
        if read_each and number % read_each == 0:
            found += parser.take(at(seconds - 1.0))
    return [event for event in (*found, *parser.take()) if seen.admit(event)]


def counted(events: list[Event]) -> list[tuple[str, str | None, str, bool]]:
    """Return what *events* count as, in no order."""
    policies = [(event, told_policy(event)) for event in events]
    return sorted((event.code, event.pci, policy.outcome.value, policy.gates) for event, policy in policies)


@pytest.mark.parametrize("between", [3, 17, 200])
@pytest.mark.parametrize("name", PARTED)
def test_what_others_have_the_kernel_print_between_parts_no_event(name: str, between: int) -> None:
    """At each place and at all of them: an error of the boot before closes nothing, and one fault is told once."""
    lines = PARTED[name]
    alone = counted(told(*lines))
    noise = list(itertools.islice(itertools.cycle(OTHERS), between))
    for place in range(1, len(lines)):
        assert counted(told(*lines[:place], *noise, *lines[place:])) == alone, place
    everywhere = [text for line in lines for text in (line, *noise)]
    assert counted(told(*everywhere)) == alone
    if not name.startswith("corrected"):  # what harms nobody waits for no line that names its device
        assert counted(told(*everywhere, read_each=7)) == alone


def test_errors_of_programs_part_no_failure_from_its_repeat() -> None:
    """Any user may have the driver print lines of its own meanwhile."""
    failed = "NVRM: GPU 0000:06:00.0: RmInitAdapter failed! (0x61:0x56:1697)"
    excuse = "nvidia 0000:06:00.0: Direct firmware load for nvidia/570.172.08/gsp_ga10x.bin failed with error -12"
    repeat = "NVRM: GPU 0000:06:00.0: rm_init_adapter failed, device minor number 1"
    faults = [f"NVRM: Xid (PCI:0000:2b:00): 31, pid={4000 + n}, name=x, Ch 00000010" for n in range(20)]
    found = told(excuse, *faults, failed, *faults, repeat)
    assert [event.code for event in found if not event.code.startswith("nvidia.xid.")] == [
        "nvidia.driver.rm_init_failed"
    ]
    assert not any(told_policy(event).gates for event in found)


def test_an_error_of_the_boot_before_that_others_part_closes_no_gate() -> None:
    """A slow console prints a line of it in 10 ms, and meanwhile the kernel finds the devices of the machine."""
    first, *rest = PARTED["machine check of the boot before"]
    events = told(first, *OTHERS * 10, *rest)
    findings = [one for one in judge("kernel-log", healthy(events=tuple(events))) if one.key.code.startswith("memory.")]
    assert [(one.key.code, one.gates) for one in findings] == [("memory.mce_before", False)]
    assert "SOCKET 1" in str(findings[0].key.part)


def test_a_line_of_an_event_is_of_none_from_another_moment() -> None:
    """In a saved log what lies hours back is near by its place alone."""
    parser = KernelLogParser()
    first, stamp, *_ = PARTED["machine check of the boot before"]
    texts = [(100.0, first), *((100.0, other) for other in OTHERS * 10), (4000.0, stamp)]
    for seconds, text in texts:
        line = split_record(f"4,1,{round(seconds * 1e6)},-;{text}\n")
        assert line is not None
        parser.feed(line, at(seconds))
    assert [event.code for event in parser.take()] == ["memory.mce_ue"]


CLOSED = "pcieport 0000:{}:01.1: DPC: containment event, status:0x1f01 source:0x0000"
ANNOUNCED = "pcieport 0000:{}:01.1: AER: Uncorrectable (Fatal) error message received from 0000:{}"
OF_PORT = f"pcieport 0000:{{}}:01.1: {ERROR} (Fatal), type=Data Link Layer, (Receiver ID)"
OF_DEVICE = f"nvidia 0000:{{}}:00.0: {ERROR} (Fatal), type=Transaction Layer, (Receiver ID)"


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("headers", "error", "ports"),
    [
        ([CLOSED.format("c0"), CLOSED.format("d0")], OF_PORT.format("c0"), {"0000:c0:01.1", "0000:d0:01.1"}),
        (
            [CLOSED.format("c0"), ANNOUNCED.format("d0", "d1:00.0")],
            OF_DEVICE.format("d1"),
            {"0000:c0:01.1", "0000:d1:00.0"},
        ),
        (
            [ANNOUNCED.format("c0", "c1:00.0"), ANNOUNCED.format("d0", "d0:01.1")],
            OF_DEVICE.format("c1"),
            {"0000:c1:00.0", "0000:d0:01.1"},
        ),
        (
            [CLOSED.format("c0"), CLOSED.format("d0")],
            OF_DEVICE.format("c1"),
            {"0000:c0:01.1", "0000:d0:01.1", "0000:c1:00.0"},
        ),
    ],
    ids=["two closed", "closed and announced", "announced by each", "nobody says of which"],
)
def test_of_two_ports_that_fail_at_once_each_is_told(
    headers: list[str], error: str, ports: set[str], turned: bool
) -> None:
    """One cause may close several, such as a switch, a riser or its power, and not each has a line of details."""
    found = told(*(reversed(headers) if turned else headers), error)
    assert {event.pci for event in found} == ports
    assert all(told_policy(event).gates for event in found)


def test_what_one_port_prints_of_one_error_is_one_event() -> None:
    """It is closed, announces the error, and the error has its details."""
    (found,) = told(CLOSED.format("c0"), ANNOUNCED.format("c0", "c0:01.1"), OF_PORT.format("c0"))
    assert (found.pci, found.fields["dpc_status"]) == ("0000:c0:01.1", "0x1f01")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("hw_init of IP block <gfx_v9_4_3> failed -110", "Fatal error during GPU init"),
        ("GPU mode1 reset failed", "GPU reset(1) failed"),
    ],
)
def test_what_is_told_of_a_board_is_not_lost_in_the_failure_of_another(first: str, second: str) -> None:
    """Boards are started and reset together."""
    found = told(f"amdgpu 0000:1b:00.0: amdgpu: {first}", f"amdgpu 0000:2b:00.0: amdgpu: {second}")
    assert [event.pci for event in found] == ["0000:1b:00.0", "0000:2b:00.0"]
    (joined,) = told(f"amdgpu 0000:1b:00.0: amdgpu: {first}", f"amdgpu 0000:1b:00.0: amdgpu: {second}")
    assert joined.pci == "0000:1b:00.0"


@pytest.mark.parametrize(
    "text",
    ["NVRM: The NVIDIA probe routine failed for 1 device(s).", "NVRM: None of the NVIDIA devices were initialized."],
)
def test_a_library_that_a_program_brings_hides_no_driver_that_found_no_board(text: str) -> None:
    """Any user has the driver print the former as often as he likes."""
    found = told("NVRM: API mismatch: the client 'x' (pid 4711)", text)
    assert [told_policy(event).gates for event in found] == [False, True]
