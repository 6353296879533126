"""The kernel-log parser against captured logs of real machines, where they lie beside the checkout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nodevet.checks.kernel_log.lines import Origin
from nodevet.checks.kernel_log.parse import events_from_lines
from nodevet.checks.kernel_log.report import to_json

pytestmark = pytest.mark.captures

ACTIONS_BY_LEVEL = {
    "app": {"restart_app"},
    "info": {"none", "watch"},
    "consequence": {"none", "restart_app"},
    "reset": {"reset_device", "drain_reset"},
    "reboot": {"reboot"},
    "fatal": {"drain_reset"},
    "warn": {"watch"},
}
"""What the vendor's catalog asks for, in our words."""

RATED_HIGHER = {63}
"""A pending memory repair wants a reset when the GPU is idle, where the catalog asks for nothing."""

RECOVERY = {"none": "none", "gpu-reset": "reset_device", "node-reboot": "reboot", "drain-and-reset": "drain_reset"}


def rows(captures: Path, kind: str) -> list[dict[str, Any]]:
    """Return the captures of *kind*."""
    found = [json.loads(line) for line in (captures / f"{kind}.jsonl").read_text().splitlines()]
    assert found
    return found


def events(row: dict[str, Any], origin: Origin | None = None) -> list[dict[str, Any]]:
    """Return the events in a capture as in our JSON."""
    found: list[dict[str, Any]] = to_json(events_from_lines(row["text"].split("\n"), origin=origin))["events"]
    return found


def test_xids(captures: Path) -> None:
    """Each XID line is one event with its number, address, process, channel and link, and the catalog's action."""
    for row in rows(captures, "kernel_xid"):
        found = events(row)
        expected = row["expect"]["events"]
        assert [(e["code"], e["pci"], e["pid"], e["process"]) for e in found] == [
            (f"nvidia.xid.{e['xid']}", e["pci"], e["pid"], e["name"]) for e in expected
        ], row["id"]
        for ours, true in zip(found, expected, strict=True):
            for key in ("channel", "pid_raw", "nvlink_unit", "nvlink_severity", "nvlink_link"):
                if key in true:
                    assert ours["fields"][key] == str(true[key]), row["id"]
            if true["level"] == "as-action":
                assert ours["action"] == RECOVERY[true["action_to"]], row["id"]
                assert ours["fields"]["recovery_text"] == true["action_to_text"], row["id"]
            elif true["xid"] not in RATED_HIGHER:
                assert ours["action"] in ACTIONS_BY_LEVEL[true["level"]], row["id"]


def test_sxids(captures: Path) -> None:
    """Each SXid line but for details is one event of its switch, as grave as the line says."""
    for row in rows(captures, "kernel_sxid"):
        found = events(row)
        assert [(e["code"], e["pci"], e["fields"].get("switch"), e["fields"].get("link")) for e in found] == [
            (f"nvidia.sxid.{e['sxid']}", e["pci"], str(e["switch"]), None if e["link"] is None else str(e["link"]))
            for e in row["expect"]["events"]
        ], row["id"]
        for ours, true in zip(found, row["expect"]["events"], strict=True):
            if true["fatal"] is not None:
                assert (ours["severity"] == "fatal") is true["fatal"], row["id"]


def test_negatives(captures: Path) -> None:
    """Nothing in these logs is an XID, an SXid or grave, and no quoted word is, wherever the quoting line came from.

    Two captures say that a line which quotes an XID would count one if it came out of the kernel's ring. It does not:
    the ring also holds names that users choose, and only a line that begins as the driver's own is one.
    """
    for row in rows(captures, "kernel_negative"):
        found = events(row)
        assert not [e for e in found if e["code"].startswith("nvidia.")], row["id"]
        # Adapters of a healthy machine tell their links going up and down at boot: informative, never a fault.
        assert {e["code"] for e in found} <= {"infiniband.link_up", "infiniband.link_down"}, row["id"]
        if "xid_events_if_kernel_ring" in row["expect"]:
            assert events(row, Origin.KERNEL) == events(row, Origin.PROGRAM) == [], row["id"]


@pytest.mark.parametrize(
    ("kind", "families"),
    [
        ("kernel_nvrm_other", ("nvidia.driver.",)),
        ("kernel_amdgpu", ("amd.",)),
        ("kernel_habana", ("habana.",)),
        ("kernel_pci_net_mem", ("pcie.", "infiniband.", "memory.")),
    ],
)
def test_other_families(captures: Path, kind: str, families: tuple[str, ...]) -> None:
    """Each capture gives the named events in order, at the stated address, fatal exactly where it is."""
    for row in rows(captures, kind):
        expect = row["expect"]
        found = events(row)
        names = [family_name(e["code"], families) for e in found]
        wanted = expect.get("events", [expect["event"]] if expect.get("event") else [])
        assert list(dict.fromkeys(names)) == wanted, row["id"]
        if expect.get("fatal") is not None:
            assert any(e["severity"] == "fatal" for e in found) is expect["fatal"], row["id"]
        if found and expect.get("pci"):
            assert expect["pci"] in {e["pci"] for e in found}, row["id"]
        for key in (
            "code",
            "client",
            "pages",
            "threshold",
            "ring",
            "type",
            "detail",
            "port",
            "count",
            "mc",
            "dimm",
            "cpu",
            "bank",
        ):
            if found and key in expect:
                assert found[0]["fields"][key] == str(expect[key]), (row["id"], key)


def family_name(code: str, families: tuple[str, ...]) -> str:
    """Return *code* without its family."""
    return next(code.removeprefix(family) for family in families if code.startswith(family))
