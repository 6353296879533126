"""The text after the number of an XID line: process, channel, link, recovery action."""

from __future__ import annotations

import re

import msgspec

from nodevet.checks.core.quantities import RECOVERY_ACTIONS

CLEAN_UP_XID = 45
NVLINK5_XIDS = range(144, 151)
RECOVERY_XID = 154

_HEAD = re.compile(
    r"(?:pid=(?P<pid>'?`?<[^>]{0,20}>`?'?|'?`?[^\s,'`]{0,15}'?`?)(?:,\s*|\s+|\Z))?"
    r"(?:name=(?P<name>.{0,17}?)(?:,\s+|,?\Z))?",
    re.DOTALL,
)
"""Process id and name, which the driver prints first. A name has at most 15 bytes and may contain a comma."""
_CHANNEL = re.compile(r"\b(?:Ch|ChID|channel)\s+(?:0x)?(?P<channel>[0-9a-f]{2,16})\b", re.IGNORECASE)
_PREVIOUS = re.compile(r"\bcaused by previous Xid (?P<previous>\d{1,4})", re.IGNORECASE)
_NVLINK5 = re.compile(
    r"(?P<unit>[A-Z][\w/]*)\s+(?P<severity>Non-?fatal|Link[ -]Fatal|Fatal)\s+XC-?\d{1,4}\s+i-?\d{1,4}(?![\d,])"
    r"(?:\s+Link\s+(?P<link>-?\d{1,4}))?(?:\s*\((?P<words>[0-9a-fx ]+)\))?",
    re.IGNORECASE,
)
"""No comma may follow: it would be the end of a name that a user chose to look like this text."""
_NVLINK = re.compile(r"NVLink:?\s+(?P<severity>fatal|non-?fatal)?.*?\blink\s+(?P<link>\d{1,4})", re.IGNORECASE)
_RECOVERY = re.compile(
    r"changed from (?:0x(?P<old>[0-9a-f]{1,8}))?\s{0,2}(?:\([^)]{0,80}\))?\s{0,2}"
    r"to 0x(?P<new>[0-9a-f]{1,8})\s{0,2}(?:\((?P<text>[^)]{0,80})\))?",
    re.IGNORECASE,
)
"""Every part is bounded: 8 KiB of blanks in a file that a user can write took 0.2 s per line and delayed judging."""


class XidBody(msgspec.Struct, frozen=True):
    """The decoded text. ``variant`` selects the row of nvidia_xid.csv; the rest are fields of the event."""

    pid: int | None = None
    process: str | None = None
    variant: str = ""
    fields: dict[str, str] = {}


def decode_body(xid: int, body: str) -> XidBody:
    """Return the decoded *body*, the text after the number *xid*. Unknown text is ignored.

    The decisive part, the variant, is read only where the driver prints it: after the last comma, from the first byte
    on, because a name may contain commas and any words (kernel_rc.c of the open driver; a guest's has up to 99 bytes).
    """
    fields: dict[str, str] = {}
    head = _HEAD.match(body)
    assert head is not None  # all its parts are optional
    pid = _process_id(head["pid"], fields)
    words = body[head.end() :]
    if channel := _CHANNEL.search(words):
        fields["channel"] = channel["channel"].lower()
    variant = _variant(xid, words.rpartition(", ")[2], words, fields)
    return XidBody(pid, _process_name(head["name"]), variant, fields)


def _process_id(stated: str | None, fields: dict[str, str]) -> int | None:
    if stated is None or "<" in stated:
        return None
    word = stated.strip("'`\"")
    if not word:
        return None
    if digits := re.match(r"\d{1,10}", word, re.ASCII):
        return int(digits.group())
    fields["pid_raw"] = word
    return None


def _process_name(stated: str | None) -> str | None:
    name = (stated or "").strip().strip("'`\"").strip()
    return None if not name or name == "<unknown>" else name


def _variant(xid: int, told: str, words: str, fields: dict[str, str]) -> str:
    if match := _PREVIOUS.search(told):
        # Drivers since r575 state the cause of a clean-up themselves.
        fields["follows"] = f"nvidia.xid.{int(match['previous'])}"
        if xid == CLEAN_UP_XID:
            return "consequence"
    if xid in NVLINK5_XIDS:
        return _nvlink5(told, fields)
    if xid == RECOVERY_XID:
        return _recovery(told, fields)
    if match := _NVLINK.match(words):
        fields["nvlink_link"] = str(int(match["link"]))
        if match["severity"]:
            fields["nvlink_severity"] = match["severity"].lower().replace("-", "")
    return ""


def _nvlink5(body: str, fields: dict[str, str]) -> str:
    match = _NVLINK5.match(body)
    if match is None:
        return ""
    severity = match["severity"].lower().replace("non-fatal", "nonfatal").replace("-", "_").replace(" ", "_")
    fields["nvlink_unit"] = match["unit"]
    fields["nvlink_severity"] = severity
    # The driver prints a negative number for an error that belongs to no link.
    if match["link"] and int(match["link"]) >= 0:
        fields["nvlink_link"] = str(int(match["link"]))
    if match["words"]:
        fields["nvlink_registers"] = match["words"].strip()
    return severity


def _recovery(body: str, fields: dict[str, str]) -> str:
    match = _RECOVERY.search(body)
    if match is None:
        return ""
    fields["recovery_to"] = _recovery_action(int(match["new"], 16))
    fields["recovery_code"] = str(int(match["new"], 16))
    if match["old"]:
        fields["recovery_from"] = _recovery_action(int(match["old"], 16))
    if match["text"]:
        fields["recovery_text"] = match["text"]
    return fields["recovery_to"]


def _recovery_action(code: int) -> str:
    """Return the name of the recovery action *code*, which NVML and the kernel log number alike."""
    return RECOVERY_ACTIONS[code] if code < len(RECOVERY_ACTIONS) else "unknown"
