"""Reads the state file with the standard library alone, so that a prolog starts within milliseconds.

A file that cannot be trusted is absent, with the reason: a wrong owner, a symbolic link, another boot, a simulated
node, a line that cannot be parsed. The site decides the effect of an absent or expired verdict.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

FORMAT = "nodevet-state/1"
NEVER = 9_999_999_999
"""The expiry of a verdict that holds until the next boot, in seconds of uptime."""

MAXIMUM_BYTES = 1 << 20
STATES = ("ok", "degraded", "unknown", "failed")
REACHES = ("hard", "unpermitted", "refused", "observed", "soft")
AGENT_STATES = ("starting", "running", "draining", "drained", "released", "stopped")
KINDS = ("accelerator", "cpu", "nic", "memory", "disk")
MOST_LINES = 999
LONGEST_NUMBER = 11
"""Maximum number of digits. Readers in shell compare integers, and accept no longer ones."""


class Absent(NamedTuple):
    """The absence of a verdict, with its reason."""

    reason: str


class DeviceState(NamedTuple):
    """The line of one device, or of the node's own faults (kind ``node``).

    ``hard`` is set if its faults close the gate; ``reach`` is one of REACHES.
    """

    kind: str
    pci: str | None
    minor: int | None
    state: str
    hard: bool
    action: str
    id: str
    reason: str
    reach: str


class StateFile(NamedTuple):
    """A parsed state file. Times are seconds of uptime (CLOCK_BOOTTIME); ``hard`` if its faults close the gate."""

    state: str
    expires_uptime: int
    generation: int
    reason: str
    boot_id: str
    simulated: bool
    agent: str
    probing: bool
    hard: bool
    action: str
    fresh_until_uptime: int
    node: str
    devices: tuple[DeviceState, ...]
    reach: str


def read_state(path: str, *, boot_id: str, uptime_seconds: float, owner_uid: int = 0) -> StateFile | Absent:
    """Return the state in *path*, or Absent if it is missing, untrusted, of another boot, simulated or expired."""
    content = _trusted_content(path, owner_uid)
    if isinstance(content, Absent):
        return content
    found = parse(content)
    if isinstance(found, Absent):
        return found
    if found.boot_id != boot_id:
        return Absent(f"{path} is of another boot")
    if found.simulated:
        return Absent(f"{path} belongs to a simulated node, which closes no gate")
    if uptime_seconds >= found.expires_uptime:
        return Absent(f"{path} expired {uptime_seconds - found.expires_uptime:.0f} s ago: is the agent running?")
    return found


def parse(content: str) -> StateFile | Absent:
    """Return the content of a state file; Absent names its error.

    An unknown word makes the whole file absent: it may come from a newer agent, with any meaning.
    """
    lines = content.split("\n")
    if len(lines) < 5 or lines.pop() or lines[-1].split() != ["end", str(len(lines) - 1)]:
        return Absent("malformed: its end is missing")
    if len(lines) - 1 > MOST_LINES:
        return Absent(f"malformed: it has more than {MOST_LINES} lines")
    try:
        return _parsed(lines)
    except ValueError as error:
        return Absent(f"malformed: {error}")


def boot_id(root: str = "/") -> str:
    """Return the id of the current boot."""
    with open(f"{root.rstrip('/')}/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
        return file.read().strip()


def uptime_seconds(root: str = "/") -> float:
    """Return the seconds since boot, including suspended time."""
    with open(f"{root.rstrip('/')}/proc/uptime", encoding="ascii") as file:  # noqa: PTH123
        return float(file.read().split()[0])


def _trusted_content(path: str, owner_uid: int) -> str | Absent:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return Absent(f"{path}: {error.strerror}")
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return Absent(f"{path} is no regular file")
        if status.st_uid != owner_uid:
            return Absent(f"{path} belongs to user {status.st_uid}, not {owner_uid}")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return Absent(f"{path} can be written by others than its owner")
        if status.st_size > MAXIMUM_BYTES:
            return Absent(f"{path} has {status.st_size} bytes, more than {MAXIMUM_BYTES}")
        return os.read(descriptor, MAXIMUM_BYTES).decode("utf-8", "replace")
    except OSError as error:
        return Absent(f"{path}: {error.strerror}")
    finally:
        os.close(descriptor)


def _parsed(lines: list[str]) -> StateFile:
    state, expires, generation, reason = _fields(lines[0], 4)
    form, boot, origin, agent, load, hard, action, fresh, node = _fields(lines[1], 9)
    _one_of(form, (FORMAT,))
    reach = _one_of(hard, REACHES)
    return StateFile(
        state=_one_of(state, STATES),
        expires_uptime=_number(expires),
        generation=_number(generation),
        reason=reason,
        boot_id=boot,
        simulated=_one_of(origin, ("real", "simulated")) == "simulated",
        agent=_one_of(agent, AGENT_STATES),
        probing=_one_of(load, ("idle", "probing")) == "probing",
        hard=reach == "hard",
        action=action,
        fresh_until_uptime=_number(fresh),
        node=node,
        devices=(_device(lines[2], ("node",)), *(_device(line, KINDS) for line in lines[3:-1])),
        reach=reach,
    )


def _device(line: str, kinds: tuple[str, ...]) -> DeviceState:
    kind, pci, minor, state, hard, action, identity, reason = _fields(line, 8)
    reach = _one_of(hard, REACHES)
    return DeviceState(
        kind=_one_of(kind, kinds),
        pci=None if pci == "-" else pci,
        minor=None if minor == "-" else _number(minor),
        state=_one_of(state, STATES),
        hard=reach == "hard",
        action=action,
        id=identity,
        reason=reason,
        reach=reach,
    )


def _fields(line: str, count: int) -> list[str]:
    """Return the fields of *line* as a shell's ``read`` splits it: at blanks and tabs, except within the last field."""
    words: list[str] = []
    rest = line.strip(" \t")
    while len(words) < count - 1 and rest:
        end = min((at for at in (rest.find(" "), rest.find("\t")) if at >= 0), default=len(rest))
        words.append(rest[:end])
        rest = rest[end:].lstrip(" \t")
    if not rest:
        raise ValueError(f"{len(words)} fields, expected {count}: {line[:60]!r}")
    return [*words, rest]


def _number(text: str) -> int:
    plain = text.isascii() and text.isdigit() and (text == "0" or not text.startswith("0"))
    if not plain or len(text) > LONGEST_NUMBER:
        raise ValueError(f"{text[:20]!r} is no number")
    return int(text)


def _one_of(word: str, words: tuple[str, ...]) -> str:
    if word not in words:
        raise ValueError(f"{word[:40]!r} is not one of {', '.join(words)}")
    return word
