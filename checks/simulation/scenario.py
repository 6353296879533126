"""Scenarios: a timeline of faults and loads for a simulated node, read from TOML. Pure.

Every time in a scenario counts from the moment at which the agent loaded the file. A file with a mistake is refused
as a whole: one line per mistake, with its line in the file and the allowed values.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from nodevet.checks.core.documents import decoded_toml
from nodevet.checks.core.errors import ConfigurationError, ModelError
from nodevet.checks.core.model import ReadingStatus, Scalar
from nodevet.checks.core.quantities import QUANTITIES
from nodevet.checks.core.readings import LARGEST_NUMBER, expected, fits
from nodevet.checks.reference.profiles import Profile, part_of

from .faults import KINDS, RANGES, Effect, Kind, effects_of, lines_of

ALL = "all"
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SPAN = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhd]))+")
SPAN_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")

COMMON = ("kind", "at", "until", "device")

LARGEST_TIME_SECONDS = 1e9
MOST_TABLES = {"fault": 200, "load": 50}
"""More would make a reading slower than its deadline."""

MOST_MISTAKES = 20
"""Largest number of reported mistakes: a file with more is no scenario."""

LONGEST_FOUND = 60
LONGEST_REASON = 400
"""Largest number of characters in the description of a mistake."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault of the timeline, active from ``at`` until ``until`` (None: for good), in seconds."""

    kind: str
    at: float
    devices: tuple[str, ...]
    until: float | None = None
    link: int = 0
    code: int | None = None
    pid: int | None = None
    process: str | None = None
    text: str | None = None
    count: int | None = None
    ratio: float | None = None
    celsius: float | None = None
    per_second: float | None = None
    lanes: int | None = None
    quantity: str | None = None
    part: str | None = None
    value: Scalar | None = None
    status: ReadingStatus = ReadingStatus.OK
    detail: str = ""

    def elapsed(self, seconds: float) -> float:
        """Return the duration of the fault at *seconds* into the scenario; 0 before it begins."""
        end = seconds if self.until is None else min(seconds, self.until)
        return max(0.0, end - self.at)

    def is_active(self, seconds: float) -> bool:
        """Return whether the fault is active at *seconds* into the scenario."""
        return self.at <= seconds and (self.until is None or seconds < self.until)


class Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A load on devices from ``at`` until ``until``: level 0 is rest, 1 is full."""

    level: float
    at: float
    devices: tuple[str, ...]
    until: float | None = None


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A timeline. ``level`` is the load at all other times; None varies it as on a busy node."""

    title: str = "a healthy node"
    seed: int = 0
    level: float | None = None
    probe_every: float = 900.0
    faults: tuple[Fault, ...] = ()
    loads: tuple[Load, ...] = ()


def parse_scenario(text: str, name: str, profile: Profile) -> Scenario:
    """Return the scenario in *text* for nodes of *profile*; *name* is the file name in messages.

    Raises ConfigurationError with one line per mistake.
    """
    try:
        raw = decoded_toml(text)
    except ValueError as error:  # also a number of thousands of digits, and tables nested as deep
        raise ConfigurationError(f"{name}: not valid TOML: {error}") from error
    reader = _Reader(text, name, profile)
    scenario = reader.scenario(raw)
    if reader.problems:
        raise ConfigurationError("\n".join(reader.problems))
    return scenario


class _Mistake(Exception):  # noqa: N818 (a step of reading: it never leaves this module)
    """A key whose value is refused, and the reason."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(why)
        self.key = key
        self.why = why


class _Reader:
    """Reads the tables of one file and collects their mistakes."""

    def __init__(self, text: str, name: str, profile: Profile) -> None:
        self._lines = text.splitlines()
        self._name = name
        self._profile = profile
        self._targets = profile.targets
        self.problems: list[str] = []

    def scenario(self, raw: Mapping[str, Any]) -> Scenario:
        """Return the scenario without its mistakes, which are in ``problems``."""
        values: dict[str, Any] = {}
        for key in raw:
            try:
                name, value = self._entry(raw, key)
            except _Mistake as mistake:
                self._add_problem(mistake, None, 0)
            else:
                values[name] = value
        return Scenario(**values)

    def _entry(self, raw: Mapping[str, Any], key: str) -> tuple[str, Any]:
        """Return the field of Scenario for the *key* of the file, and its value."""
        _known(key, ("title", "seed", "level", "probe_every", "fault", "load"))
        if key == "fault":
            return "faults", self._tables(raw, key, self._fault)
        if key == "load":
            return "loads", self._tables(raw, key, self._load)
        _sound(raw, key)
        if key == "probe_every":
            return key, _seconds(raw, key, low=1.0)
        if key == "level":
            return key, _number(raw, key, 0, 1)
        value, (sort, expected) = raw[key], {"title": (str, "text"), "seed": (int, "a whole number")}[key]
        if type(value) is not sort:  # a bool is an int
            raise _Mistake(key, f"found {_found(value)}, expected {expected}")
        return key, value

    def _tables(self, raw: Mapping[str, Any], name: str, read: Any) -> tuple[Any, ...]:
        tables = raw.get(name, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise _Mistake(name, f"expected tables, each begun with [[{name}]]")
        if len(tables) > MOST_TABLES[name]:
            raise _Mistake(name, f"found {len(tables)} tables, expected at most {MOST_TABLES[name]}")
        found = []
        for number, table in enumerate(tables, 1):
            try:
                found.append(read(table))
            except _Mistake as mistake:
                self._add_problem(mistake, name, number)
                if len(self.problems) >= MOST_MISTAKES:
                    self.problems.append(f"{self._name}: {MOST_MISTAKES} mistakes, the rest was not looked at")
                    break
        return tuple(found)

    def _add_problem(self, mistake: _Mistake, table: str | None, number: int) -> None:
        line = self._line_of(mistake.key, table, number)
        where = f"{table} {number}: " if table else ""
        self.problems.append(f"{self._name}, line {line}: {where}{mistake.key}: {mistake.why[:LONGEST_REASON]}")

    def _line_of(self, key: str, table: str | None, number: int) -> int:
        """Return the line of *key* in the *number*-th table of that name; the TOML library reports no lines."""
        begin, seen = 0, 0
        for index, line in enumerate(self._lines):
            if table and re.match(rf"\s*\[\[\s*{table}\s*\]\]", line):
                seen += 1
                if seen == number:
                    begin = index
                    break
        for index in range(begin, len(self._lines)):
            if re.match(rf"\s*(?:\[\[?\s*)?{re.escape(key)}\b", self._lines[index]):
                return index + 1
            if index > begin and self._lines[index].lstrip().startswith("[["):
                break
        return begin + 1

    def _load(self, table: Mapping[str, Any]) -> Load:
        for key in table:
            _known(key, ("level", "at", "until", "device"))
            _sound(table, key)
        return Load(
            level=_number(table, "level", 0, 1),
            at=_seconds(table, "at"),
            until=_until(table),
            devices=self._devices(table, ALL),
        )

    def _fault(self, table: Mapping[str, Any]) -> Fault:
        name = table.get("kind")
        if not isinstance(name, str) or name not in KINDS:
            raise _Mistake("kind", f"found {_found(name)}, {_allowed(str(name), KINDS)}")
        kind = KINDS[name]
        for key in table:
            if key not in (names := (*COMMON, *kind.settings)):
                raise _Mistake(key, f"unknown key, allowed for the kind {name}: {', '.join(names)}")
            _sound(table, key)
        for key in kind.required:
            if key not in table:
                raise _Mistake("kind", f"{name} needs the setting {key}")
        default = None if name != "kernel_log" else "node"
        values = {key: table[key] for key in kind.settings if key in table}
        values |= {
            "kind": name,
            "at": _seconds(table, "at"),
            "until": _until(table),
            "devices": self._devices(table, default),
        }
        try:
            fault = msgspec.convert(values, Fault)
        except msgspec.ValidationError as error:
            key = str(error).rpartition("$.")[2].rstrip("`")
            raise _Mistake(key if key in values else "kind", str(error)) from error
        self._fits(fault, kind)
        return fault

    def _fits(self, fault: Fault, kind: Kind) -> None:
        """Refuse a fault that no device of the profile can have."""
        board = self._profile.accelerators
        if kind.on_accelerators and (board is None or any(not name.isdigit() for name in fault.devices)):
            boards = f"slots 0 to {len(board.slots) - 1}" if board else "none here"
            raise _Mistake("device", f"{fault.kind} is about accelerators: {boards}")
        if kind.on_links and board is not None and not 0 <= fault.link < board.links:
            raise _Mistake("link", f"found {fault.link}, expected 0 to {board.links - 1}")
        if kind.logged and board is not None and not lines_of(fault.kind, board.vendor):
            raise _Mistake("kind", f"the driver of {board.vendor} logs no {fault.kind}: use kernel_log with text")
        if fault.kind == "set":
            _check_set(fault)
        for target in fault.devices:
            self._has_effect(fault, target)

    def _has_effect(self, fault: Fault, target: str) -> None:
        """Refuse a fault of readings that *target* lacks: a drill must not pass because nothing happened."""
        if fault.kind == "set":
            touched = self._reads(str(fault.quantity), target)
        else:
            effects = effects_of(fault.kind, self._profile.subject(target))
            touched = not effects_of(fault.kind) or any(self._touches(effect, target) for effect in effects)
        if not touched:
            raise _Mistake("device", f"{fault.kind} changes nothing that {target} of this profile reads")

    def _touches(self, effect: Effect, target: str) -> bool:
        if effect.change != "above":
            return self._reads(effect.quantity, target)
        rows = [row for row in self._profile.readings(target).rows if row.quantity == effect.quantity]
        return any(self._profile.slowdown_celsius(target, part) is not None for row in rows for part in row.parts)

    def _reads(self, quantity: str, target: str) -> bool:
        rows = self._profile.readings(target).rows
        return any(row.quantity == quantity and not row.unsupported for row in rows)

    def _devices(self, table: Mapping[str, Any], default: str | None) -> tuple[str, ...]:
        given = table.get("device", default)
        if given is None:
            raise _Mistake("device", f"is missing; devices: {self._target_words()}")
        names = [str(name) for name in (given if isinstance(given, list) else [given])]
        if names == [ALL]:
            accelerators = tuple(name for name in self._targets if name.isdigit())
            return accelerators or tuple(name for name in self._targets if name.startswith("cpu-"))
        unknown = [name for name in names if name not in self._targets]
        if unknown or not names:
            raise _Mistake("device", f"found {_found(given)}, there are {self._target_words()}")
        return tuple(names)

    def _target_words(self) -> str:
        slots = [name for name in self._targets if name.isdigit()]
        words = [f"slots {slots[0]} to {slots[-1]}"] if slots else []
        return ", ".join((*words, *(name for name in self._targets if not name.isdigit()), ALL))


def _check_set(fault: Fault) -> None:
    if fault.quantity not in QUANTITIES:
        raise _Mistake("quantity", f"found {_found(fault.quantity)}, {_allowed(str(fault.quantity), QUANTITIES)}")
    try:
        part = part_of(fault.part) if fault.part else None
    except ModelError as error:
        raise _Mistake("part", str(error)) from error
    wanted = QUANTITIES[fault.quantity].part
    if part is not None and part.kind is not wanted:
        raise _Mistake("part", f"found {_found(fault.part)}, {fault.quantity} is about a {wanted.value}")
    if (fault.value is None) is (fault.status is ReadingStatus.OK):
        raise _Mistake("value", "expected either a value, or a status that is not ok")
    quantity = QUANTITIES[fault.quantity]
    if fault.value is not None and not fits(fault.value, quantity):
        raise _Mistake("value", f"found {_found(fault.value)}, expected {expected(quantity)}")


def _sound(table: Mapping[str, Any], key: str) -> None:
    """Refuse numbers that no reading can have, and texts of more than one log line."""
    for entry in _leaves(table.get(key)):
        low, high = RANGES.get(key, (-LARGEST_NUMBER, LARGEST_NUMBER))
        if isinstance(entry, (int, float)) and not low <= entry <= high:
            raise _Mistake(key, f"found {_found(entry)}, expected a number from {low} to {high}")
        if isinstance(entry, str) and not entry.isprintable():
            raise _Mistake(key, f"found {_found(entry)}, expected one line without control characters")


def _leaves(value: object) -> Iterator[object]:
    """Yield *value*, or its entries where it is a container."""
    if isinstance(value, (list, dict)):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _leaves(entry)
    else:
        yield value


def _found(value: object) -> str:
    """Return *value* as a short text for display."""
    if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= LONGEST_FOUND else f"{text[:LONGEST_FOUND]}..."


def _known(key: str, allowed: Iterable[str]) -> None:
    names = tuple(allowed)
    if key not in names:
        raise _Mistake(key, f"unknown key, {_allowed(key, names)}")


def _allowed(word: str, names: Iterable[str]) -> str:
    known = tuple(names)
    near = difflib.get_close_matches(word, known, 1)
    if near:
        return f"did you mean {near[0]}?"
    return f"allowed: {', '.join(known)}" if len(known) <= 24 else "see docs/reference/metrics.md for all names"


def _number(table: Mapping[str, Any], key: str, low: float, high: float) -> float:
    value = table.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise _Mistake(key, f"found {_found(value)}, expected a number from {low:g} to {high:g}")
    return float(value)


def _until(table: Mapping[str, Any]) -> float | None:
    if "until" not in table:
        return None
    until = _seconds(table, "until")
    if until <= _seconds(table, "at"):
        raise _Mistake("until", f"found {_found(table['until'])}, expected a time after at = {table.get('at')!r}")
    return until


def _seconds(table: Mapping[str, Any], key: str, low: float = 0.0) -> float:
    """Return the seconds of a span such as ``90``, ``"30s"`` or ``"1h30m"``."""
    value = table.get(key, 0 if key == "at" else None)
    seconds: float | None = None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and SPAN.fullmatch(value):
        seconds = sum(float(number) * UNITS[unit] for number, unit in SPAN_PART.findall(value))
    if seconds is None or not low <= seconds < LARGEST_TIME_SECONDS:
        raise _Mistake(
            key, f'found {_found(value)}, expected a time of at least {low:g} s, such as "30s", "5m" or "1h30m"'
        )
    return seconds
