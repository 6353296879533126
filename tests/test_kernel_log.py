"""Kernel text to events: every format a line comes in, what joins to one event, and what is none."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodevet.checks.core.errors import UsageError
from nodevet.checks.core.model import Event, Instant, Severity
from nodevet.checks.kernel_log.dedupe import Deduplicator
from nodevet.checks.kernel_log.lines import Origin, split_line
from nodevet.checks.kernel_log.parse import events_from_lines
from nodevet.checks.kernel_log.reader import events_from_file
from nodevet.checks.kernel_log.report import describe, to_json
from nodevet.checks.kernel_log.rules import normalised_pci

FIXTURES = Path(__file__).parent / "fixtures" / "kernel_log"

LOST = "NVRM: Xid (PCI:0000:3B:00): 79, pid=4100, name=python3, GPU has fallen off the bus."


def parse_line(text: str, *, origin: Origin | None = None) -> Event | None:
    """Return the event that the single line *text* tells, or None."""
    return next(iter(events_from_lines([text], origin=origin)), None)


def read(name: str) -> list[Event]:
    """Return the events in a fixture."""
    return events_from_file(str(FIXTURES / f"{name}.log"))


@pytest.mark.parametrize(
    "line",
    [
        LOST,
        f"3,1042,99887766,-;{LOST}",
        f"3,1042,99887766,-,caller=T77,more;{LOST}",
        f"[ 1234.567890] {LOST}",
        f"[ 1234.567890] [ T1946] {LOST}",
        f"[  +0.000021] {LOST}",
        f"[Fri Aug 30 11:43:09 2024] {LOST}",
        f"[Fri Aug 30 11:43:09 2024 <    0.000012>] {LOST}",
        f"[Aug30 11:43] {LOST}",
        f"2024-11-15T12:02:03,470068+00:00 {LOST}",
        f"kern  :err   : 2024-11-15T12:02:03,470068+00:00 {LOST}",
        f"kern  :warn  : [   12.000000] {LOST}",
        f"<3>[   12.000000] {LOST}",
        f"Aug  5 12:02:03 node-7 kernel: {LOST}",
        f"Aug  5 12:02:03 node-7 kernel: [   12.000000] {LOST}",
        f"nov 07 01:36:56 node-7 kernel[0]: {LOST}",
        f"2025-01-17T17:10:43+0000 node-7.cluster kernel: {LOST}",
        f"2025-01-17T17:10:43.123456+01:00 node-7 kernel: {LOST}",
        f"<4>1 2025-01-17T17:10:43.123456+01:00 node-7 kernel: {LOST}",
        f"kernel: {LOST}",
        f"node-7 kernel: [   12.000000] {LOST}",
        f"Aug  5 12:02:03 nvidia-node kernel: {LOST}",
        f"Aug  5 12:02:03 node-7 {LOST}",
        f"\x1b[32m[   12.000000] \x1b[0m\x1b[33mNVRM: \x1b[0m{LOST[6:]}\r",
        f"> [   12.000000] {LOST}",
        f"**Nov 22 14:56:44 node-7 kernel: [94555.573310] {LOST}**",
        f"`{LOST}`",
        f"failed: [node-7] (item=[Sun Aug 25 20:10:45 2024] {LOST})",
        f"node-7 | ERROR: health check failed: [ 3606.832215] {LOST}",
        json.dumps({"MESSAGE": LOST, "_TRANSPORT": "kernel", "__REALTIME_TIMESTAMP": "1700000000000000"}),
        f'         "msg": {json.dumps(LOST)}',
        f"\ufeff{LOST}",
        f"[32m[   12.000000] [0m[33mNVRM: [0m{LOST[6:]}",
        f"^[[32m[   12.000000] ^[[0m^[[33mNVRM: ^[[0m{LOST[6:]}",
        f"/var/log/kern.log:Aug  5 12:02:03 node-7 kernel: [   12.000000] {LOST}",
        f"kern.log.1-77-Aug  5 12:02:03 node-7 kernel: {LOST}",
        f"1234:[   12.000000] {LOST}",
        f"1234-[   12.000000] {LOST}",
        f"node-7: [   12.000000] {LOST}",
        f"node-7: Aug  5 12:02:03 node-7 kernel: {LOST}",
        f"10.1.2.3: kern: warning: [2026-04-22T21:27:51.291660856Z]: {LOST}",
        f"2023-10-18T09:12:33.123Z cpu12:2098765){LOST}",
        f"2023-10-18T09:12:33.123Z In(182) vmkernel: cpu12:2098765){LOST}",
        f"Fri 2024-11-15 12:02:03 UTC node-7 kernel: {LOST}",
        f"1759600000.512345 node-7 kernel: {LOST}",
        f"[    4.123456] node-7 kernel: {LOST}",
        f"2024 Nov 15 12:02:03 node-7 kernel: {LOST}",
        f"6月 28 02:52:53 node-7 kernel: {LOST}",
        f"[2024-11-15 12:02:03.352444][  153.869131] {LOST}",
        f"<4>1 2024-11-15T12:02:03Z node-7 kernel - - - [   12.000000] {LOST}",
        f'<4>1 2024-11-15T12:02:03Z node-7 kernel - - [origin x="a]b"] {LOST}',
        json.dumps({"log": f"[   12.000000] {LOST}", "stream": "stdout"}),
        json.dumps({"host": "node-7", "appname": "kernel", "message": LOST}),
        f'{{ "SYSLOG_IDENTIFIER" : "kernel", "MESSAGE" : {json.dumps(LOST)} }}',
    ],
)
def test_every_format_gives_the_same_event(line: str) -> None:
    """Whatever stands before the kernel's words, code, address, process and severity are found."""
    event = parse_line(line)
    assert event is not None
    assert (event.code, event.pci, event.pid, event.process) == ("nvidia.xid.79", "0000:3b:00", 4100, "python3")
    assert event.severity is Severity.FATAL


@pytest.mark.parametrize(
    ("line", "seconds", "wall"),
    [
        ("3,1,2500000,-;text", 2.5, None),
        ("[   12.250000] text", 12.25, None),
        ("[  +0.000021] text", None, None),
        ("2024-11-15T12:02:03,500000+00:00 text", None, 1731672123.5),
        ("2024-11-15T13:02:03.500+0100 node kernel: text", None, 1731672123.5),
        ("[Fri Nov 15 12:02:03 2024] text", None, 1731672123.0),
        ("Nov 15 12:02:03 node kernel: [   12.250000] text", 12.25, None),
        ("text", None, None),
    ],
)
def test_stated_time_is_kept_and_none_is_invented(line: str, seconds: float | None, wall: float | None) -> None:
    """The kernel's clock and the wall clock are read where the line states them."""
    found = split_line(line)
    assert (found.text, found.seconds, found.wall_seconds) == ("text", seconds, wall)


@pytest.mark.parametrize(
    "line",
    [f"3,1,{'9' * 20},-;{LOST}", json.dumps({"MESSAGE": LOST, "__REALTIME_TIMESTAMP": "9" * 20})],
    ids=["record", "journal"],
)
def test_a_time_beyond_any_calendar_is_no_time(line: str) -> None:
    """The event counts, and can be shown and stored."""
    event = parse_line(line)
    assert event is not None
    assert (event.code, event.time) == ("nvidia.xid.79", Instant("", 0, 0.0))
    describe(event)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", ("nvidia.xid.14", "0000:03:00", "info", "none")),
        ("NVRM: Xid (PCI:0009:01:00): 13, Graphics SM Warp", ("nvidia.xid.13", "0009:01:00", "warning", "restart_app")),
        ("NVRM: Xid (PCI:0000:01:00): 62, 0011 2233", ("nvidia.xid.62", "0000:01:00", "error", "drain_reset")),
        ("NVRM: Xid (PCI:0000:01:00): 38, pid=1659,", ("nvidia.xid.38", "0000:01:00", "warning", "watch")),
        ("NVRM: Xid (PCI:0000:01:00): 177, new", ("nvidia.xid.177", "0000:01:00", "warning", "inspect")),
        ("NVRM: Xid (PCI:0000:01:00): 180, newer", ("nvidia.xid.180", "0000:01:00", "warning", "inspect")),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:03): 43, pid=9", ("nvidia.xid.43", "0000:01:00", "info", "none")),
        ("NVRM: GPU 18:00.0: GPU has fallen off the bus.", ("nvidia.driver.gpu_lost", "0000:18:00", "fatal", "reboot")),
        (
            "NVRM: GPU 0000:19:00.0: RmInitAdapter failed! (0x62:0xffff:2477)",
            ("nvidia.driver.rm_init_failed", "0000:19:00", "fatal", "reboot"),
        ),
        (
            "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9B:00 (printing 1 of every 30).",
            ("nvidia.driver.rate_limited", "0000:9b:00", "warning", "reset_device"),
        ),
        (
            "amdgpu 0000:C1:00.0: amdgpu: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
            ("amd.ras_fatal", "0000:c1:00.0", "fatal", "drain_reset"),
        ),
        (
            "amdgpu: Saved bad pages 130 reaches threshold value 128",
            ("amd.bad_page_threshold", None, "fatal", "replace"),
        ),
        (
            "amdgpu 0000:c1:00.0: amdgpu: GPU reset end with ret = -62",
            ("amd.gpu_reset_failed", "0000:c1:00.0", "fatal", "reboot"),
        ),
        (
            "habanalabs 0000:27:00.0: Device heartbeat failed! PCI link is broken",
            ("habana.heartbeat_failed", "0000:27:00.0", "fatal", "drain_reset"),
        ),
        ("accel accel3: Failed to reset! Device is NOT usable", ("habana.reset_failed", None, "fatal", "reboot")),
        (
            "pcieport 0000:40:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
            ("pcie.aer", "0000:40:01.0", "info", "watch"),
        ),
        (
            "mlx5_core 0000:d2:00.0: poll_health:174:(pid 0): device's health compromised - reached miss count.",
            ("infiniband.health_compromised", "0000:d2:00.0", "fatal", "reboot"),
        ),
        ("EDAC MC2: 3 CE memory read error on DIMM_B1 (channel:0)", ("memory.edac_ce", None, "info", "watch")),
        ("EDAC MC2: 1 UE memory read error on DIMM_B1 (channel:0)", ("memory.edac_ue", None, "fatal", "inspect")),
        ("EDAC MC0: CE page 0x2b, offset 0x0, grain 0, row 0, channel 0", ("memory.edac_ce", None, "info", "watch")),
        ("Kernel panic - not syncing: Fatal machine check", ("memory.mce_ue", None, "fatal", "inspect")),
        ("NVRM: Xid (PCI:0000:01:00) 31, Ch 00000010", ("nvidia.xid.31", "0000:01:00", "warning", "restart_app")),
        ("NVRM: Xid (PCI:0000:01:00): 175, memory", ("nvidia.xid.175", "0000:01:00", "warning", "inspect")),
        (
            "NVRM: knvlinkDiscoverPostRxDetLinks_GB100: Getting peer3's postRxDetLinkMask failed!",
            ("nvidia.driver.nvlink_discovery_failed", None, "warning", "inspect"),
        ),
        (
            "amdgpu 0000:c1:00.0: RAS records:256 exceed threshold:128",
            ("amd.bad_page_threshold", "0000:c1:00.0", "fatal", "replace"),
        ),
        ("amdgpu 0000:c1:00.0: amdgpu: device lost from bus!", ("amd.gpu_lost", "0000:c1:00.0", "fatal", "reboot")),
        (
            "amdgpu 0000:c1:00.0: amdgpu: SMU: I'm not done with your previous command: SMN_C2PMSG_66:0x0000000E",
            ("amd.smu_failed", "0000:c1:00.0", "error", "reset_device"),
        ),
        (
            "amdgpu 0000:c1:00.0: probe with driver amdgpu failed with error -110",
            ("amd.probe_failed", "0000:c1:00.0", "fatal", "reboot"),
        ),
        (
            "[drm:amdgpu_device_ip_resume [amdgpu]] *ERROR* resume of IP block <gfx_v9_4_3> failed -110",
            ("amd.ip_resume_failed", None, "error", "reset_device"),
        ),
        (
            "amdgpu 0000:c1:00.0: Ring sdma0 reset succeeded",
            ("amd.ring_reset_succeeded", "0000:c1:00.0", "info", "none"),
        ),
        (
            "habanalabs 0000:1a:00.0: Failed to initialize hl2. Device is NOT usable !",
            ("habana.init_failed", "0000:1a:00.0", "fatal", "reboot"),
        ),
        (
            "habanalabs 0000:1a:00.0 hl2: Device CPU packet timeout (status = 0x0)",
            ("habana.cpu_timeout", "0000:1a:00.0", "error", "drain_reset"),
        ),
        (
            "nvidia 0000:3b:00.0: Unable to change power state from D3cold to D0, device inaccessible",
            ("pcie.inaccessible", "0000:3b:00.0", "error", "inspect"),
        ),
        (
            "amdgpu 0000:c5:00.0: [drm] device wedged, needs recovery",
            ("amd.gpu_reset_failed", "0000:c5:00.0", "fatal", "reboot"),
        ),
        (
            "amdgpu 0000:c5:00.0: amdgpu: WARN: GPU is throttled, expect performance decrease. VR.",
            ("amd.throttled", "0000:c5:00.0", "warning", "watch"),
        ),
        (
            "amdgpu 0000:c5:00.0: WARN: GPU thermal throttling temperature reached, expect performance decrease. HBM.",
            ("amd.throttled", "0000:c5:00.0", "warning", "watch"),
        ),
        (
            "pcieport 0000:89:02.0: can't change power state from D3cold to D0 (config space inaccessible)",
            ("pcie.inaccessible", "0000:89:02.0", "error", "inspect"),
        ),
        (
            "pcieport 0000:0c:00.0: CXL Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer",
            ("pcie.aer", "0000:0c:00.0", "fatal", "reboot"),
        ),
        ("amdgpu 0000:c1:00=2E0: device lost from bus!", ("amd.gpu_lost", "0000:c1:00.0", "fatal", "reboot")),
        ("pciehp 0000:20:01.0:pcie004: Slot(3): Link Down", ("pcie.link_down", "0000:20:01.0", "error", "inspect")),
        (
            "mlx5_core: Port module event[error]: module 2, High Temperature",
            ("infiniband.cable_error", None, "warning", "inspect"),
        ),
        (
            "mlx5_core 0000:3b:00.0: poll_health:796:(pid 0): Fatal error 1 detected",
            ("infiniband.health_compromised", "0000:3b:00.0", "fatal", "reboot"),
        ),
        ("mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link ACTIVE", ("infiniband.link_up", "0000:ab:00.0", "info", "none")),
        (
            "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN",
            ("infiniband.link_down", "0000:ab:00.0", "warning", "watch"),
        ),
    ],
)
def test_lines_of_each_family_are_rated_by_the_tables(line: str, expected: tuple[str, str | None, str, str]) -> None:
    """Code, address as stated, severity and action come from the tables; an unknown code is surfaced."""
    event = parse_line(line)
    assert event is not None
    (entry,) = to_json([event])["events"]
    assert (entry["code"], entry["pci"], entry["severity"], entry["action"]) == expected


@pytest.mark.parametrize(
    ("body", "severity", "action", "fields"),
    [
        (
            "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000)",
            "fatal",
            "drain_reset",
            {"nvlink_unit": "NETIR_LINK_EVT", "nvlink_severity": "fatal", "nvlink_link": "9"},
        ),
        ("145, RLW_REMAP Nonfatal XC0 i0 Link 02", "warning", "watch", {"nvlink_link": "2"}),
        ("150, MSE Link Fatal XC1 i2 Link -1 (0x1 0x2)", "fatal", "drain_reset", {"nvlink_severity": "link_fatal"}),
        ("144, words of another driver", "error", "inspect", {}),
        ("74, NVLink: fatal error detected on link 14(0x0, 0x0)", "fatal", "drain_reset", {"nvlink_link": "14"}),
        (
            "154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
            "error",
            "drain_reset",
            {"recovery_from": "none", "recovery_to": "drain_reset", "recovery_code": "4"},
        ),
        ("154, GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (Reset)", "error", "reset_device", {}),
        ("154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "error", "reboot", {}),
        ("154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "info", "none", {}),
        ("154, GPU recovery action changed from 0x0 (None) to 0x2a", "error", "inspect", {"recovery_to": "unknown"}),
        ("154, other words", "warning", "inspect", {}),
        ("31, pid=1942, name=llm, channel 0x00000002, intr 0.", "warning", "restart_app", {"channel": "00000002"}),
        ("13, pid=1, name=a b, Graphics Exception: ChID 000c, Class 0", "warning", "restart_app", {"channel": "000c"}),
        ("74, NVLink: error detected on link 04", "fatal", "drain_reset", {"nvlink_link": "4"}),
        ("45, pid=uvicorn, channel 0x...", "info", "restart_app", {"pid_raw": "uvicorn"}),
        ("45, pid=7, name=a, Ch 00000001 caused by previous Xid 149", "info", "none", {"follows": "nvidia.xid.149"}),
        ("145, RLW_REMAP Nonfatal XC0 i0 Link 02 caused by previous Xid 149", "warning", "watch", {}),
        ("13, pid='', name=, Graphics Exception", "warning", "restart_app", {}),
    ],
)  # fmt: skip
def test_words_behind_the_number_decide_where_they_must(
    body: str, severity: str, action: str, fields: dict[str, str]
) -> None:
    """NVLink severity, recovery action, channel and link are read; the number decides, not the other words."""
    event = parse_line(f"NVRM: Xid (PCI:0000:04:00): {body}")
    assert event is not None
    (entry,) = to_json([event])["events"]
    assert (entry["severity"], entry["action"]) == (severity, action)
    assert fields.items() <= entry["fields"].items()


def test_quiet_log_has_no_event() -> None:
    """What programs wrote, quoted, asked or merely resembles a fault is none."""
    assert read("quiet") == []


@pytest.mark.parametrize(
    "line",
    [
        f"/var/log/syslog.1:Aug  5 12:02:03 node-7 trainer[71]: {LOST}",
        f"10.1.2.3: user: warning: [2026-04-22T21:27:51.291660856Z]: {LOST}",
        f"<14>1 2024-11-15T12:02:03Z node-7 trainer 812 - - {LOST}",
        f"<14>1 2024-11-15T12:02:03Z node-7 kernel - - - {LOST}",
        f"<13>Nov 15 12:02:03 node-7 kernel: {LOST}",
        f"<30>Nov 15 12:02:03 node-7 kernel: [    4.123456] {LOST}",
        f"Fri 2024-11-15 12:02:03 UTC node-7 trainer[17]: {LOST}",
        f"1759600000.512345 node-7 trainer[17]: {LOST}",
        f"[    4.123456] node-7 trainer[17]: {LOST}",
        f"[    4.123456] trainer[17]: {LOST}",
        f"2024-11-15 12:02:03,123 - INFO - health - {LOST}",
        f"[2024-11-15 12:02:03,123][INFO][worker.py] {LOST}",
        f"WARNING:root:{LOST}",
        f"W1115 12:02:03.123456    7123 watch.go:12] kernel log: {LOST}",
        json.dumps({"host": "node-7", "appname": "trainer", "message": LOST}),
        json.dumps({"log": f"INFO:root:{LOST}", "stream": "stdout"}),
        json.dumps({"MESSAGE": LOST, "_TRANSPORT": "journal"}),
        json.dumps({"MESSAGE": LOST, "_TRANSPORT": "kernel", "SYSLOG_FACILITY": "3"}),
        json.dumps({"fac": "user", "pri": "warn", "time": 4.1, "msg": LOST}),
        json.dumps({"level": "warn", "caller": "watch.go:12", "msg": LOST}),
    ],
)
def test_what_a_program_wrote_is_no_event_in_any_format(line: str) -> None:
    """The words of the kernel in a program's own line count for nothing, whatever the line was saved with."""
    assert parse_line(line) is None


def test_the_facility_above_a_message_says_who_wrote_it() -> None:
    """``dmesg -x --json`` prints each field of a record on a line of its own."""
    records = [{"fac": who, "pri": "warn", "time": 4.1, "msg": LOST} for who in ("user", "kern", "daemon")]
    saved = json.dumps({"dmesg": records}, indent=3).splitlines()
    assert [event.line for event in events_from_lines(saved)] == [13]
    assert len(events_from_lines(['   "fac": "user",', LOST])) == 1


def test_quoted_words_are_no_event_whoever_wrote_them() -> None:
    """The kernel prints names that users choose: only a line that begins as the driver's own is one."""
    quoted = "trainer said 'NVRM: Xid (PCI:0000:83:00): 48'"
    assert parse_line(quoted) is None
    assert parse_line(quoted, origin=Origin.KERNEL) is None
    assert parse_line(f"6,1,1,-;{quoted}") is None
    assert parse_line(f"14,1,1,-;{LOST}") is None


def test_memory_incident_keeps_each_line_and_names_the_cause_of_the_clean_up() -> None:
    """Every XID line is an event with its channel; 45 follows the other XID of its own GPU, and only of that."""
    events = read("memory_incident")
    assert [event.code.removeprefix("nvidia.xid.") for event in events] == ["48", "63", "94", "94", "45", "45"]
    assert [event.line for event in events] == [2, 3, 4, 5, 6, 7]
    assert [event.fields.get("channel") for event in events[2:4]] == ["00000010", "00000011"]
    assert events[4].fields["follows"] == "nvidia.xid.94"
    assert "follows" not in events[5].fields
    assert [entry["action"] for entry in to_json(events[4:])["events"]] == ["none", "restart_app"]
    assert events[0].fields["gpu_uuid"] == "GPU-0a1b2c3d-0000-1111-2222-333344445555"


@pytest.mark.parametrize(("second", "follows"), [(30, True), (59, False)])
def test_clean_up_follows_only_what_was_near_by_the_wall_clock(second: int, follows: bool) -> None:
    """Without the kernel's clock the stated wall clock tells whether another XID was within the minute."""
    lines = [
        "2025-03-04T11:20:01,000000+00:00 NVRM: Xid (PCI:0000:4a:00): 62, 0",
        f"2025-03-04T11:{20 if follows else 21}:{second},000000+00:00 NVRM: Xid (PCI:0000:4a:00): 45, pid=1",
    ]
    assert ("follows" in events_from_lines(lines)[1].fields) is follows


def told(*lines: str) -> list[tuple[str, str | None, str]]:
    """Return code, address and severity of the events in *lines*."""
    return [(event.code, event.pci, event.severity.value) for event in events_from_lines(lines)]


@pytest.mark.parametrize(("word", "severity"), [("fatal", "fatal"), ("recoverable", "error"), ("corrected", "info")])
def test_firmware_error_record_is_one_event_as_grave_as_it_says(word: str, severity: str) -> None:
    """The lines of an APEI record are one event with the address of the device and the severity of the record."""
    head = "[  88.100000] {3}[Hardware Error]:"
    record = (
        f"{head} Hardware error from APEI Generic Hardware Error Source: 2",
        f"{head} event severity: {word}",
        f"{head}  Error 0, type: {word}",
        f"{head}   section_type: PCIe error",
        f"{head}   device_id: 0000:54:01.0",
        f"{head}   vendor_id: 0x8086, device_id: 0x352a",
        "[  88.200000] pcieport 0000:54:01.0: AER: aer_status: 0x00004000, aer_mask: 0x00000000",
    )
    assert told(*record) == [("pcie.apei", "0000:54:01.0", severity)]
    memory = (*record[:3], f"{head}   section_type: memory error", f"{head}   DIMM location: P0 DIMM_A1")
    (event,) = events_from_lines(memory)
    assert (event.code, event.severity.value, event.fields["dimm"]) == ("memory.apei", severity, "P0 DIMM_A1")


def test_details_of_newer_drivers_belong_to_their_event() -> None:
    """The process on a line of its own is that of the timeout or fault before it, blanks in its name and all."""
    timeout, fault = events_from_lines(
        [
            "amdgpu 0000:c3:00.0: ring gfx_0.0.0 timeout, signaled seq=5, emitted seq=7",
            "amdgpu 0000:c3:00.0:  Process Web Content pid 2288 thread Web:cs0 pid 2316",
            "amdgpu 0000:c4:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:40 vmid:8 pasid:32770)",
            "amdgpu 0000:c4:00.0: amdgpu:  for process python3 pid 812 thread python3 pid 812)",
        ]
    )
    assert (timeout.code, timeout.process, timeout.pid) == ("amd.ring_timeout", "Web Content", 2288)
    assert (fault.code, fault.process, fault.pid) == ("amd.page_fault", "python3", 812)


def test_failed_reset_and_lost_memory_are_told_once() -> None:
    """A block that does not come back joins the failed reset; a killed process joins the page that was lost."""
    assert told(
        "[drm:amdgpu_device_ip_resume [amdgpu]] *ERROR* resume of IP block <gfx_v9_0> failed -110",
        "amdgpu 0000:c3:00.0: amdgpu: GPU reset(1) failed",
        "amdgpu 0000:c3:00.0: amdgpu: GPU reset end with ret = -110",
    ) == [("amd.gpu_reset_failed", "0000:c3:00.0", "fatal")]
    assert told(
        "Memory failure: 0x40fa6: Killing trainer:1296 due to hardware memory corruption",
        "Memory failure: 0x40fa6: recovery action for dirty LRU page: Recovered",
    ) == [("memory.page_lost", None, "error")]


@pytest.mark.parametrize(
    ("lines", "codes"),
    [
        (["[ 1.5] *ERROR* ring gfx timeout, but", "soft recovered"], []),
        (["[ 1.5] *ERROR* ring gfx timeout,", "but soft recovered"], []),
        (["[ 1.5] *ERROR* ring gfx", "timeout, but soft recovered"], []),
        (["[ 1.5] *ERROR* ring gfx timeout,", "signaled seq=5, emitted seq=7"], ["amd.ring_timeout"]),
        (["[ 1.5] *ERROR* ring gfx timeout,"], ["amd.ring_timeout"]),
        (["[ 1.5] *ERROR* ring gfx timeout,", "[ 1.6] usb 1-2: reset"], ["amd.ring_timeout"]),
        (["> [ 1.5] amdgpu 0000:c3:00.0: amdgpu: GPU res=", "> et(1) failed"], ["amd.gpu_reset_failed"]),
        (["[ 1.5] amdgpu 0000:c3:00.0: GPU reset(2)", "succeeded!"], ["amd.gpu_reset_succeeded"]),
        (["[ 1.5] NVRM: Xid (PCI:0000:01:00): 38, pid=1659,", LOST], ["nvidia.xid.38", "nvidia.xid.79"]),
    ],
)
def test_wrapped_line_is_judged_as_a_whole(lines: list[str], codes: list[str]) -> None:
    """What a mail client broke is read as one line before it is judged; a line that ends there counts as it is."""
    assert [code for code, _, _ in told(*lines)] == codes


def test_ignored_link_change_is_no_event() -> None:
    """A hotplug port that ignores a link change, because it recovers an error, lost nothing."""
    assert told("pcieport 0000:b0:01.0: pciehp: Slot(12): Link Down/Up ignored") == []


def test_cause_named_by_the_driver_is_kept_over_what_is_near() -> None:
    """A clean-up that names its cause follows that, not the nearest other XID."""
    events = events_from_lines(
        [
            "[ 10.000000] NVRM: Xid (PCI:0000:4a:00): 94, pid=1, Contained",
            "[ 10.100000] NVRM: Xid (PCI:0000:4a:00): 45, pid=1, Ch 00000001 caused by previous Xid 145",
        ]
    )
    assert events[1].fields["follows"] == "nvidia.xid.145"


def test_lost_gpu_over_several_lines_is_told_once_with_its_address() -> None:
    """The loss without an XID is one event with the address of the first line; its echoes are not counted again."""
    events = read("lost_without_xid")
    assert [(event.code, event.pci) for event in events] == [
        ("nvidia.driver.gpu_lost", "0000:5b:00"),
        ("nvidia.driver.probe_failed", "0000:5b:00"),
    ]


def test_lost_gpu_in_one_record_with_escaped_line_ends_is_told_once() -> None:
    """The ring escapes the line ends inside a record; they do not tear the event apart."""
    text = (
        r"NVRM: The NVIDIA GPU 0000:5b:00.0\x0a(PCI ID: 10de:2330) installed in this system has\x0afallen off the bus"
    )
    event = parse_line(f"3,7,1000000,-;{text}")
    assert event is not None
    assert (event.code, event.pci) == ("nvidia.driver.gpu_lost", "0000:5b:00")


def test_switch_details_belong_to_their_event() -> None:
    """Severity and Data lines are details; the line's own word goes before the table; an unknown code is surfaced."""
    events = read("switch_details")
    assert [(event.code, event.severity.value) for event in events] == [
        ("nvidia.sxid.12028", "warning"),
        ("nvidia.sxid.22003", "fatal"),
        ("nvidia.sxid.99999", "warning"),
    ]
    assert events[0].fields["data"] == "0x00000001, 0x00000002"
    assert events[0].fields["link"] == "11"
    assert [entry["action"] for entry in to_json(events)["events"]] == ["watch", "reboot", "inspect"]


def test_wrapped_line_and_its_process_are_one_event() -> None:
    """A line that a mail client wrapped is read as one; process and address come from the lines that belong to it."""
    events = read("amd_wrapped")
    assert [event.code for event in events] == ["amd.ring_timeout", "amd.gpu_reset_begin", "amd.gpu_reset_succeeded"]
    timeout = events[0]
    assert (timeout.line, timeout.pci, timeout.pid, timeout.process) == (1, "0000:c3:00.0", 4242, "bench")
    assert timeout.fields["pci_from"] == "amd.gpu_reset_begin"


def test_counts_repeated_as_total_and_zero_counts_are_no_events() -> None:
    """New errors count, their total is an echo; no and zero errors are all-clears."""
    events = read("amd_counts")
    assert [(event.code, event.pci, event.fields.get("count")) for event in events] == [
        ("amd.ras_ue", "0000:c1:00.0", "2"),
        ("amd.ras_ce", "0000:c2:00.0", "4"),
        ("amd.poison_created", "0000:c2:00.0", None),
    ]
    assert [event.severity.value for event in events] == ["fatal", "info", "info"]


def test_bus_error_with_header_and_details_is_one_event() -> None:
    """Port containment and announcement join the error of the device behind the port."""
    (event,) = read("port_containment")
    assert (event.code, event.pci, event.severity.value) == ("pcie.aer", "0000:c1:00.0", "fatal")
    assert event.fields == {
        "driver": "nvidia",
        "type": "Transaction Layer",
        "device_id": "10de:2330",
        "status": "00040000",
        "detail": "MalfTLP",
        "port": "0000:c0:01.1",
        "dpc_status": "0x1f03",
    }


def test_header_without_its_error_is_an_event_itself() -> None:
    """What a header announces is not lost when the error itself is missing."""
    events = read("port_containment_alone")
    assert [(event.code, event.pci) for event in events] == [("pcie.dpc", "0000:c0:01.1"), ("pcie.aer", "0000:c0:01.1")]


def test_machine_checks_are_rated_by_their_flags_not_by_their_level() -> None:
    """A corrected error at level emerg is corrected; bit 61 says uncorrected; a bare announcement is told."""
    events = read("machine_check")
    assert [(event.code, event.fields.get("cpu")) for event in events] == [
        ("memory.mce_ce", "40"),
        ("memory.mce_ue", "3"),
        ("memory.mce_logged", None),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PCI:0000:AF:00", "0000:af:00"),
        ("00000000:AF:00.0", "0000:af:00.0"),
        ("af:00.1", "0000:af:00.1"),
        ("10019:01:00", "10019:01:00"),
        ("nowhere", None),
        ("", None),
    ],
)
def test_addresses_are_normalised(text: str, expected: str | None) -> None:
    """Lower case, domain of four digits where it fits, function kept where it is stated."""
    assert normalised_pci(text) == expected


def test_json_has_every_promised_key() -> None:
    """The public document names its schema and has each key for each event, null where the line is silent."""
    document = to_json(read("lost_without_xid"))
    assert document["schema"] == "nodevet.kernel-log/1"
    promised = {"line", "code", "pci", "severity", "action", "pid", "process"}
    assert all(promised <= entry.keys() for entry in document["events"])
    assert json.loads(json.dumps(document)) == document


def test_line_for_people_says_what_to_do() -> None:
    """A person reads where, what, which device and process, what it means and the action."""
    (event,) = events_from_lines([""] * 6 + [LOST])
    text = describe(event)
    for word in ("line 7", "nvidia.xid.79", "0000:3b:00", "python3 (4100)", "GPU lost", "action: reboot"):
        assert word in text


def test_broken_bytes_hide_no_other_line(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are replaced; the lines around them count, with their numbers."""
    path = tmp_path / "dmesg.txt"
    path.write_bytes(b"\xff\xfe broken \x00\r\n" + LOST.encode() + b"\r\n\xc3")
    assert [(event.code, event.line) for event in events_from_file(str(path))] == [("nvidia.xid.79", 2)]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-8-sig"])
def test_file_with_a_byte_order_mark_is_read(tmp_path: Path, encoding: str) -> None:
    """What PowerShell or an editor saved as UTF-16 or with a mark is read like any other log."""
    path = tmp_path / "dmesg.txt"
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    path.write_bytes(f"{mark}[ 1.5] boot\r\n[ 2.5] {LOST}".encode(encoding))
    assert [(event.code, event.line) for event in events_from_file(str(path))] == [("nvidia.xid.79", 2)]


@pytest.mark.parametrize(
    "filler",
    [
        b"\0" * 300_000,
        b"Xid (PCI:" * 30_000,
        b"amdgpu 0000:c1:00.0: " * 15_000,
        b'{"a":' * 60_000,
        b"a: " * 100_000,
        b"",
    ],
)
def test_endless_line_hides_nothing_and_takes_no_time(tmp_path: Path, filler: bytes) -> None:
    """A line of any length and content costs no more than its first part, and the next line counts."""
    path = tmp_path / "dmesg.bin"
    path.write_bytes(filler + b"\n" + LOST.encode())
    begins = time.perf_counter()
    assert [(event.code, event.line) for event in events_from_file(str(path))] == [("nvidia.xid.79", 2)]
    assert time.perf_counter() - begins < 5.0


def test_time_grows_with_the_length_of_the_log_and_no_faster() -> None:
    """Twenty thousand clean-ups, remarks and headers cost at most a few times what five thousand cost."""
    lines = [
        "[ 7.5] NVRM: RmFetchGspRmImages: No firmware image found",
        "[ 7.5] NVRM: Xid (PCI:0000:3b:00): 45, pid=4100, name=python3, Ch 00000008",
        "[ 7.5] pcieport 0000:c0:01.1: AER: Correctable error message received from 0000:c1:00.0",
    ]

    def seconds(count: int) -> float:
        begins = time.process_time()
        events_from_lines(lines * count)
        return time.process_time() - begins

    assert seconds(6_000) < 10 * seconds(1_500)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(LOST.encode()), "zcat"),
        (lzma.compress(LOST.encode()), "xzcat"),
        (b"LPKSHHRH\0\0\0\0", "journalctl"),
    ],
    ids=["gzip", "xz", "journald"],
)
def test_log_that_is_no_text_is_refused_with_a_way_out(tmp_path: Path, content: bytes, words: str) -> None:
    """A compressed log or a file of journald is no log without events: it is refused, from a file and from input."""
    path = tmp_path / "kern.log.1"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"{path}: .*{words}"):
        events_from_file(str(path))
    with pytest.raises(UsageError, match=words):
        events_from_file("-", io.BytesIO(content))


def test_standard_input_and_unreadable_files(tmp_path: Path) -> None:
    """A dash reads standard input; a file that cannot be read is named with what to give."""
    assert len(events_from_file("-", io.BytesIO(LOST.encode()))) == 1
    for path in (tmp_path / "absent.log", tmp_path):
        with pytest.raises(UsageError, match=str(path)):
            events_from_file(str(path))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.text(max_size=120) | st.sampled_from([LOST, f"[ 1.5] {LOST}", "[ 1.5] x", "y", "3,1,1,-;z"]), max_size=6
    )
)
def test_any_text_is_read_without_failing(lines: list[str]) -> None:
    """No text makes the parser fail, and a line before or behind never hides a whole one."""
    events = events_from_lines(lines)
    whole = [line for line in lines if line in (LOST, f"[ 1.5] {LOST}")]
    assert len([event for event in events if event.code == "nvidia.xid.79"]) >= len(whole)


def admitted(events: list[Event]) -> list[Event]:
    """Return those of *events* that are new within five seconds."""
    seen = Deduplicator(5.0)
    return [event for event in events if seen.admit(event)]


def happened(code: str, seconds: float, source: str, pci: str | None = "0000:3b:00", boot: str = "a") -> Event:
    """Return an event at *seconds* of a boot."""
    return Event(code=code, source=source, time=Instant(boot, int(seconds * 1e9), 0.0), text="", pci=pci)


@pytest.mark.parametrize("order", [1, -1])
def test_one_fault_from_two_sources_counts_once(order: int) -> None:
    """The driver's interface and the log tell the same XID within the window, in either order and address form."""
    pair = [happened("x.79", 10, "kernel_log"), happened("x.79", 12, "nvml", "00000000:3B:00.0")][::order]
    assert len(admitted(pair)) == 1


def test_different_faults_count_each() -> None:
    """Another code, device, boot, a later time, or a second fault of the same source is another fault."""
    events = [
        happened("x.79", 10, "kernel_log"),
        happened("x.48", 10, "kernel_log"),
        happened("x.79", 10, "kernel_log", "0000:4b:00"),
        happened("x.79", 16, "nvml"),
        happened("x.79", 10, "kernel_log", boot="b"),
    ]
    assert len(admitted(events)) == len(events)
    assert len(admitted([happened("x.94", t, "kernel_log") for t in (1.0, 1.2, 1.9, 3.0)])) == 2


@pytest.mark.parametrize("code", ["pcie.aer", "pcie.apei"])
@pytest.mark.parametrize("first", [Severity.INFO, Severity.WARNING, Severity.ERROR])
def test_a_fatal_error_is_no_repeat_of_a_milder_one(code: str, first: Severity) -> None:
    """Errors that are corrected come many times a second before the one that is not."""
    pair = [
        msgspec.structs.replace(happened(code, seconds, "kernel_log"), severity=severity)
        for seconds, severity in ((1.0, first), (1.1, first), (1.2, Severity.FATAL))
    ]
    assert admitted(pair) == [pair[0], pair[2]]


@pytest.mark.parametrize(
    ("xid", "variant"), [(number, word) for number in range(144, 151) for word in ("fatal", "link_fatal")]
    + [(154, word) for word in ("drain_reset", "reboot", "reset_device", "reset_bus", "reboot_system")]
)  # fmt: skip
def test_what_the_log_says_of_an_xid_is_no_repeat_of_its_number(xid: int, variant: str) -> None:
    """NVML tells the number alone, which may be harmless; a number behind the words is a repeat."""
    number = happened(f"nvidia.xid.{xid}", 10.0, "nvml")
    words = msgspec.structs.replace(happened(number.code, 10.1, "kernel_log"), fields={"variant": variant})
    assert admitted([number, words]) == [number, words]
    assert admitted([words, number]) == [words]


def test_restart_counts_nothing_twice() -> None:
    """What one process admitted, the next that takes over its state does not."""
    first = Deduplicator(5.0)
    assert first.admit(happened("x.79", 10, "kernel_log"))
    second = Deduplicator(5.0, first.state)
    assert not second.admit(happened("x.79", 11, "nvml"))
    assert second.admit(happened("x.79", 30, "nvml"))
