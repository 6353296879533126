"""The header of a kernel line: time, level, host, tag, in every format that people paste or save.

A line is a raw record of /dev/kmsg, ``dmesg`` output with any of its time formats, a syslog or journald line, or a
copy from a terminal, a mail or another tool's message. Its author decides whether it counts: a record of the kernel
facility is the kernel's, a line tagged with a program's name is not.
"""

from __future__ import annotations

import datetime
import re
from enum import StrEnum

import msgspec

from nodevet.checks.core.model import Provenance

MAXIMUM_LINE = 1 << 16
"""Characters of a line beyond this are not read: no wrapper of a record is longer."""

MAXIMUM_TEXT = 1 << 13
"""The same for its text: the kernel's own records end after 1 KiB, and binary files have lines of any length."""

CUT_BYTES = 960
"""A record of this size may have lost its end: kernel/printk/printk.c keeps 1024 bytes, including the prefix."""


class Origin(StrEnum):
    """The author of a line: the kernel, a program, or unknown."""

    KERNEL = "kernel"
    PROGRAM = "program"
    UNKNOWN = "unknown"


class Line(msgspec.Struct, frozen=True):
    """One line without its header.

    ``seconds`` is the kernel's time since boot, ``wall_seconds`` the epoch, ``sequence`` the kernel's record number;
    each None where the line does not state it. ``headed``: a header preceded the text.
    ``provenance`` is KERNEL only for a record that was read where no user can write one; ``device`` is the DEVICE that
    dev_printk gave it, such as ``+pci:0000:3b:00.0``.
    """

    text: str
    origin: Origin = Origin.UNKNOWN
    headed: bool = False
    seconds: float | None = None
    wall_seconds: float | None = None
    sequence: int | None = None
    provenance: Provenance = Provenance.TEXT
    device: str | None = None


_DRIVER = re.compile(
    r"(?:NVRM|nvidia(?:-nvswitch\d+|-nvlink|-modeset|-peermem)?|amdgpu|\[drm|habanalabs\w*|accel|mlx5_core|mlx5_cmd\w*|"
    r"pcieport|nvme|EDAC|mce|NETDEV|Memory|AMD-Vi|DMAR)(?=[:\s\]]|$)"
)
"""The beginnings of the kernel's own lines, which are neither host nor tag of a syslog line."""

_ESCAPE = re.compile(
    r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|\([AB0]|[@-Z\\^_])|"
    r"\^\[\[[0-9;]*[A-Za-z]|\[\d{1,2}(?:;\d{1,3})*m"
)
"""Colours, also as text and with the escape character lost, as on web pages and issue trackers."""
_QUOTED_PRINTABLE = re.compile(r"(?<=\d)=2E(?=\d)|(?<=[a-z])=3D")
"""Dots and equals signs in mail encoding, only where no other text fits: other pairs of digits may be hexadecimal."""
_RECORD = re.compile(
    r"(?P<priority>\d{1,6}),(?P<sequence>\d{1,19}),(?P<usec>\d{1,20}),(?P<flag>[^,;\n]{0,20})[^;\n]{0,180};(?P<text>.*)",
    re.DOTALL | re.ASCII,
)
"""Sequence number and time stamp have 64 bits: longer numbers are no record."""
_MOST_MICROSECONDS = 10**15
"""No machine is up for longer. A clock that was negative at boot, as in virtual machines, reads near 2^64 ns."""
_MICROSECONDS = re.compile(r"[0-9]{1,20}")
_HEX_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")
_JSON_MESSAGE = re.compile(r'\s*"(?:msg|message|MESSAGE)"\s*:\s*"(?P<text>(?:[^"\\]|\\.)*)"\s*+,?\s*')
_JSON_FACILITY = re.compile(r'\s*"(?:fac|facility|SYSLOG_FACILITY)"\s*:\s*"?(?P<word>\w{1,20})"?\s*+,?\s*')
"""No backtracking (``*+``) where the next part would match too: blanks in a user's line would cost seconds."""
_DECORATION = re.compile(r"(?:[>|*`•]+\s*)+")
_PRIORITY = re.compile(r"<(?P<priority>\d{1,3})>(?:\d )?\s*")
_LEVEL = re.compile(
    r"(?P<facility>kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|res\d+|local\d)\s*:\s*"
    r"(?:emerg|alert|crit|err|warn|notice|info|debug|emergency|critical|error|warning)\s*:\s*"
)
_ISO = re.compile(
    r"(?:(?P<weekday>[^\W\d]{1,5})\.?\s+)?"
    r"(?P<date>\d{4}-\d\d-\d\d)[T ](?P<time>\d\d:\d\d:\d\d)(?:(?P<mark>[.,])(?P<fraction>\d+))?"
    r"\s?(?P<zone>Z|[+-]\d\d:?\d\d|(?(weekday)[A-Z]{2,5}|(?!)))?:?(?:\s+|$)"
)
_EPOCH = re.compile(r"(?P<seconds>\d{10}\.\d{3,9})\s+")
_RFC_5424 = re.compile(
    r"<(?P<priority>\d{1,3})>1\s+(?P<time>\S+)\s+\S+\s+(?P<program>\S+)\s+\S+\s+\S+\s+"
    r"(?:-|(?:\[(?:[^\]\\\"]|\\.|\"(?:[^\"\\]|\\.)*\")*\])+)\s+(?:\ufeff)?"
)
_BRACKETS = re.compile(r"\[\s*+(?P<inside>[^\[\]]*)\]:?(?:\s+|$)?")
_SECONDS = re.compile(r"(?P<seconds>\d{1,9}\.\d{1,9})(?:\s*<[^>]*>?)?$|[+-]\s*\d+\.\d+$")
_CLOCK = re.compile(r"[\w. ]*\d{1,2}[:h]\d{2}(?:[:.]\d{2})?[^\]]*$")
_THREAD = re.compile(r"[TC]\d+\s*$")
_SYSLOG_TIME = re.compile(
    r"(?:\d{4}\s+)?(?:\w{2,5}\.?\s+\d{1,2}|\d{1,2}\s+\w{2,5}\.?)(?:\s+\d{4})?\s+\d\d:\d\d:\d\d(?:[.,]\d+)?\s+"
)
_KERNEL_TAG = re.compile(
    r"(?:\S+\s+){0,2}?(?:kernel|vmunix|vmkernel|klogd)(?:\[\d+\])?:\s*(?:cpu\d+:\d+\)(?:\[\w+\]\s*)?)?"
)
_HYPERVISOR = re.compile(r"cpu\d+:\d+\)")
_HOST_AND_TAG = re.compile(r"(?P<host>\S+)\s+(?P<tag>[\w./@-]+)(?P<pid>\[\d+\])?:\s+")
_PROGRAM_TAG = re.compile(r"(?:[\w.-]+\s+)?(?P<tag>[\w./@-]+)\[\d+\]:\s+")
_PREFIX = re.compile(r"[^\s:\[\]{}'\"<>]{1,200}?(?::\s*|-(?=\[|[A-Z][a-z]{2} [ \d]\d \d\d:))")
_PROGRAM_LEVEL = re.compile(
    r"[-|\s\[]*(?:DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b\s*[\]:|-]|"
    r"[DIWEF]\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ \S+:\d+\]"
)
"""The prefixes of program loggers: Python, Go, shell. The kernel writes no level as a word before NVRM."""
_INNER_TIME = re.compile(r"\[\s*(?:\d+\.\d{3,}|\w{3}\s+\w{3}\s+\d{1,2}\s\d\d:\d\d:\d\d\s\d{4})\]\s+")


class _Header(msgspec.Struct):
    """The header read so far; ``is_foreign`` where it states a facility other than the kernel's."""

    origin: Origin = Origin.UNKNOWN
    is_foreign: bool = False
    headed: bool = False
    seconds: float | None = None
    wall_seconds: float | None = None


def split_line(raw: str) -> Line:
    """Return *raw* without its header. Never fails."""
    raw = _QUOTED_PRINTABLE.sub(_decode_printable, raw[:MAXIMUM_LINE])
    raw = _ESCAPE.sub("", raw).replace("\0", "").lstrip("\ufeff").rstrip("\r\n")
    record = _RECORD.match(raw[:MAXIMUM_TEXT])
    if record:
        return _record(record)
    message = _json_text(raw)
    if message is not None:
        return message
    text = raw[:MAXIMUM_TEXT].strip()
    decoration = _DECORATION.match(text)
    if decoration:
        text = text[decoration.end() :].rstrip("*`| ")
    header = _Header()
    text = _strip_header(text, header)
    if not header.headed:
        text = _strip_prefixed(text, header)
    if header.origin is Origin.UNKNOWN and not _DRIVER.match(text):
        text = _strip_wrapping(text, header)
    # The tag behind it does not count: any user may write one (logger -t kernel), and syslog adds its facility.
    origin = Origin.PROGRAM if header.is_foreign else header.origin
    return Line(text, origin, header.headed, header.seconds, header.wall_seconds)


def _decode_printable(code: re.Match[str]) -> str:
    return chr(int(code.group()[1:], 16))


def is_of_program(raw: str, before: bool) -> bool:
    """Return whether *raw* belongs to a program's record in JSON with one field per line (``dmesg -x --json``).

    *before* is the result for the line before it: the facility precedes the message.
    """
    if match := _JSON_FACILITY.fullmatch(raw[:MAXIMUM_TEXT]):
        return match["word"] not in _OF_KERNEL
    return before and not raw.rstrip().endswith("{")


def is_json_message(raw: str) -> bool:
    """Return whether *raw* is the message of such a record."""
    return _JSON_MESSAGE.fullmatch(raw[:MAXIMUM_LINE]) is not None


def looks_like_continuation(line: Line) -> bool:
    """Return whether *line* may continue a line that a mail client or a terminal wrapped."""
    return bool(line.text) and not line.headed and not _DRIVER.match(line.text)


def split_record(data: str) -> Line | None:
    """Return the record of /dev/kmsg in *data*, the result of one read; None where it is malformed. Never fails.

    Its text ends at the first line end, because the kernel escapes line ends inside it; the following lines that begin
    with a blank name the device. Only facility 0 is the kernel's: programs' records get another one.
    """
    head, _, rest = data.partition("\n")
    record = _RECORD.fullmatch(head)
    if record is None:
        return None
    is_kernel = int(record["priority"]) >> 3 == 0
    text = _unescaped(record["text"])
    pairs = (line[1:].partition("=") for line in rest.split("\n") if line.startswith(" "))
    keys = {key: value for key, _, value in pairs}
    device = _unescaped(keys["DEVICE"]) if "DEVICE" in keys else None
    is_proof = is_kernel and is_whole(text, device, begins=record["flag"] == "-")
    return Line(
        text.strip(),
        Origin.KERNEL if is_kernel else Origin.PROGRAM,
        True,
        _stamp(record["usec"]),
        None,
        int(record["sequence"]),
        Provenance.KERNEL if is_proof else Provenance.TEXT,
        device,
    )


def is_whole(text: str, device: str | None, *, begins: bool = True) -> bool:
    """Return whether *text* is a complete line of the kernel, so that a rule can prove its origin.

    The kernel prints some lines in pieces, and a piece that it could not join (*begins* is false) may begin with a
    name, such as that of a cgroup. A line that was cut has lost the end that identifies lines beginning with a name.
    Neither applies to lines of dev_printk, which begin with driver and *device*.
    """
    return device is not None or (begins and len(text.encode("utf-8", "replace")) < CUT_BYTES)


def _stamp(usec: str) -> float | None:
    """Return the kernel's time stamp in seconds, or None where its clock was wrong: the record counts all the same."""
    return int(usec) / 1e6 if int(usec) <= _MOST_MICROSECONDS else None


def _unescaped(text: str) -> str:
    """Return *text* with the bytes that the kernel wrote as ``\\x0a``; a character may have several."""
    if "\\x" not in text:
        return text
    data = _HEX_ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), text.encode("utf-8", "replace"))
    return data.decode("utf-8", "replace")


def _record(record: re.Match[str]) -> Line:
    """Return a raw record of /dev/kmsg inside a text: its statement of its author is no proof."""
    facility = int(record["priority"]) >> 3
    text = _unescaped(record["text"].split("\n", 1)[0])
    return Line(
        _ESCAPE.sub("", text).strip(),
        Origin.KERNEL if facility == 0 else Origin.PROGRAM,
        True,
        _stamp(record["usec"]),
        None,
        int(record["sequence"]),
    )


_JSON_TEXTS = ("MESSAGE", "msg", "message", "log")
_JSON_LOGGER = ("level", "levelname", "lvl", "caller", "logger")
_JSON_FACILITIES = ("SYSLOG_FACILITY", "facility", "fac")
_OF_KERNEL = ("0", "kern", "kernel")
_JSON_WRITERS = ("_TRANSPORT", "SYSLOG_IDENTIFIER", "syslog_identifier", "appname", "ident", "program", "programname")


def _json_text(raw: str) -> Line | None:
    """Return the message of a line of ``journalctl -o json``, ``dmesg --json`` or a log shipper, else None."""
    if raw.lstrip().startswith("{"):
        try:
            fields = msgspec.json.decode(raw.encode("utf-8", "replace"), type=dict[str, object])
        except (msgspec.DecodeError, RecursionError):
            return None
        return _json_line(fields)
    match = _JSON_MESSAGE.fullmatch(raw)
    if match is None:
        return None
    return Line(match["text"][:MAXIMUM_TEXT].replace('\\"', '"').strip(), Origin.KERNEL, True)


def _json_line(fields: dict[str, object]) -> Line | None:
    text = next((fields[name] for name in _JSON_TEXTS if isinstance(fields.get(name), str)), None)
    if not isinstance(text, str):
        return None
    writers = [str(fields[name]) for name in _JSON_WRITERS if name in fields]
    if not writers and any(name in fields for name in _JSON_LOGGER):
        return Line(text[:MAXIMUM_TEXT].strip(), Origin.PROGRAM, True)
    if not writers and "MESSAGE" not in fields and "msg" not in fields:
        # A shipper wraps whole lines without naming their author: the line itself may.
        return split_line(text) if not text.lstrip().startswith("{") else None
    micros = str(fields.get("__REALTIME_TIMESTAMP", ""))
    wall = int(micros) / 1e6 if _MICROSECONDS.fullmatch(micros) else None
    facilities = [str(fields[name]) for name in _JSON_FACILITIES if name in fields]
    is_foreign = any(word != "kernel" for word in writers) or any(word not in _OF_KERNEL for word in facilities)
    return Line(text[:MAXIMUM_TEXT].strip(), Origin.PROGRAM if is_foreign else Origin.KERNEL, True, None, wall)


def _strip_header(text: str, header: _Header) -> str:
    """Remove known header parts from the start of *text* until none is left."""
    for _ in range(8):
        rest = _strip_one(text, header)
        if rest is None:
            return text
        header.headed = True
        text = rest
    return text


def _strip_prefixed(text: str, header: _Header) -> str:
    """Remove prefixes of grep, pdsh and similar tools: file, line number, node. Only where a header follows."""
    rest = text
    for _ in range(3):
        match = _PREFIX.match(rest)
        if match is None or _DRIVER.match(rest):
            return text
        rest = rest[match.end() :]
        stripped = _strip_header(rest, header)
        if header.headed:
            return stripped
    return text


def _strip_one(text: str, header: _Header) -> str | None:
    if match := _RFC_5424.match(text):
        header.is_foreign = int(match["priority"]) >= 8
        header.origin = Origin.KERNEL if match["program"] == "kernel" else Origin.PROGRAM
        if stamp := _ISO.match(match["time"]):
            header.wall_seconds = _iso_seconds(stamp)
        return text[match.end() :]
    if match := _PRIORITY.match(text):
        # A printk level has no facility; anything else is syslog, and the kernel's own facility is 0.
        header.is_foreign = int(match["priority"]) >= 8
        if not header.is_foreign:
            header.origin = Origin.KERNEL
        return text[match.end() :]
    if match := _LEVEL.match(text):
        header.origin = Origin.KERNEL if match["facility"] == "kern" else Origin.PROGRAM
        return text[match.end() :]
    if match := _ISO.match(text):
        header.wall_seconds = _iso_seconds(match)
        # Only dmesg writes a comma before the fraction; after any other mark host and tag follow.
        rest = text[match.end() :]
        return rest if match["mark"] == "," else _strip_host(rest, header)
    if match := _SYSLOG_TIME.match(text):
        return _strip_host(text[match.end() :], header)
    if match := _EPOCH.match(text):
        header.wall_seconds = float(match["seconds"])
        return _strip_host(text[match.end() :], header)
    if match := _BRACKETS.match(text):
        return _strip_brackets(text, match, header)
    if not header.headed and (match := _KERNEL_TAG.match(text)):
        header.origin = Origin.KERNEL
        return text[match.end() :]
    return None


def _strip_brackets(text: str, match: re.Match[str], header: _Header) -> str | None:
    inside = match["inside"]
    rest = text[match.end() :]
    if stamp := _ISO.match(inside):
        # A console server, a shipper or a program's own logger: the time alone does not identify the author.
        header.wall_seconds = _iso_seconds(stamp)
        return rest
    seconds = _SECONDS.match(inside)
    if seconds:
        if seconds["seconds"]:
            header.seconds = float(seconds["seconds"])
        if header.origin is Origin.UNKNOWN and (tagged := _tagged(rest, header)) is not None:
            return tagged
    elif _CLOCK.match(inside):
        header.wall_seconds = _calendar_seconds(inside)
    elif not (_THREAD.match(inside) and header.headed):
        return None
    if header.origin is Origin.UNKNOWN:
        header.origin = Origin.KERNEL
    return rest


def _tagged(text: str, header: _Header) -> str | None:
    """Return *text* without host and tag where they follow the time since boot (``journalctl -o short-monotonic``).

    Programs that write into the kernel's ring, such as systemd at boot, tag their lines as well.
    """
    if match := _KERNEL_TAG.match(text):
        header.origin = Origin.KERNEL
    elif match := _PROGRAM_TAG.match(text):
        header.origin = Origin.PROGRAM
    return text[match.end() :] if match else None


def _strip_host(text: str, header: _Header) -> str:
    """Remove host and tag from a line of syslog or journald; the tag names the author."""
    if match := _HYPERVISOR.match(text):
        header.origin = Origin.KERNEL
        return text[match.end() :]
    if match := _KERNEL_TAG.match(text):
        header.origin = Origin.KERNEL
        return text[match.end() :]
    match = _HOST_AND_TAG.match(text)
    if match is None or (not match["pid"] and _DRIVER.match(text)):
        return text
    if not match["pid"] and _DRIVER.fullmatch(match["tag"]):
        return text[match.start("tag") :]
    header.origin = Origin.PROGRAM
    return text[match.end() :]


def _strip_wrapping(text: str, header: _Header) -> str:
    """Handle text that is no log line itself: a program's line without time, or a log line inside another message."""
    program = _PROGRAM_TAG.match(text)
    if program and program["tag"] != "kernel":
        header.origin = Origin.PROGRAM
        return text[program.end() :]
    for inner in _INNER_TIME.finditer(text):
        if _DRIVER.match(text[inner.end() :]):
            header.origin = Origin.KERNEL
            header.headed = True
            return text[inner.end() :]
    if _PROGRAM_LEVEL.match(text):
        header.origin = Origin.PROGRAM
    return text


def _iso_seconds(match: re.Match[str]) -> float | None:
    zone = {"Z": "+00:00", "UTC": "+00:00", "GMT": "+00:00"}.get(match["zone"] or "", match["zone"] or "")
    if not zone:
        return None
    try:
        moment = datetime.datetime.fromisoformat(f"{match['date']}T{match['time']}{zone}")
    except ValueError:
        return None
    return moment.timestamp() + float(f"0.{match['fraction'] or 0}")


def _calendar_seconds(inside: str) -> float | None:
    """Return the epoch of ``Fri Aug 30 11:43:09 2024`` as UTC, because the line names no zone."""
    words = inside.split("<")[0].split()
    if len(words) != 5:
        return None
    try:
        moment = datetime.datetime.strptime(" ".join(words[1:]), "%b %d %H:%M:%S %Y")
    except ValueError:
        return None
    return moment.replace(tzinfo=datetime.UTC).timestamp()
