"""Kernel text to events. Pure: lines in, events out; the tables define the role and the meaning of each line.

Several lines may report one event: a header before it, details after it, an echo of it. They are joined within a
short distance, so that one fault counts once. A line that any user can write is never joined to a kernel event.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping

import msgspec

from nodevet.checks.core.model import Event, Instant, Outcome, Provenance, Severity
from nodevet.checks.core.parts import UNIT_FIELDS, unit_of
from nodevet.checks.reference.kernel_policy import KernelRule, RuleKind, kernel_rules, policy_of

from .clean_ups import MAXIMUM_ADDRESSES, CleanUps, keep, known_as
from .lines import Line, Origin, is_json_message, is_of_program, looks_like_continuation, split_line
from .rules import Match, base_address, expanded, is_same_address, match_line, normalised_pci, provenance_of
from .xid import decode_body

SOURCE = "kernel_log"

JOIN_RECORDS = 16
"""Largest distance in records between the lines of one event; AER with port containment needs eight.

At one time only lines of the same family count, because any number of others may be printed between: a console may
be slow, and a user can make the kernel print them.
"""

RENAME_RECORDS = 3
"""Largest distance in lines of the family from an event to the line that renames it."""

ECHO_SECONDS = 5.0
"""Time in which an echo matches its event, possibly in a later read of the log, and in which a remark is kept.

Any user can make the kernel print a hundred lines between them, such as those of an OOM kill.
"""

SETTLE_SECONDS = 1.0
"""Time that a header waits for the line that it announces."""

RECORD_NS = (ECHO_SECONDS - SETTLE_SECONDS) * 1e9
"""Additional time that a firmware record waits for its next line, which a slow console may delay."""

OF_UNIT = "unit"
"""Marks an event that waits for a later line with its unit: a device address, a processor, a memory module."""

NVIDIA_REMARK = "nvidia.context"
"""The code of lines in which NVIDIA's driver describes a device before it reports the failure."""

NOT_READ_FOR_IT = "error -"
"""The kernel's text for a file that was not read because of the requesting process; the rule lists the errors."""

FIRMWARE_NOT_READ = "0x61:"
"""Start of the code of NVIDIA's driver where it could not read its firmware (RM_INIT_FIRMWARE_FETCH_FAILED)."""

STATED_SEVERITIES = {
    NOT_READ_FOR_IT: Severity.WARNING,
    "fatal": Severity.FATAL,
    "recoverable": Severity.ERROR,
    "corrected": Severity.INFO,
    "info": Severity.INFO,
}
"""The severity that a line states for the following event, as our severities.

Its sources are the firmware's error record (UEFI, common platform error record), and the kernel's error for a file
that it could not read for a process, which is being killed or has no memory left.
"""

_OWN_GROUPS = frozenset({"pci", "address", "number", "pid", "process"})
_GPU_INSTANCE = re.compile(r"\bGPU-I:(?P<instance>\d+)", re.IGNORECASE)


class _Seen(msgspec.Struct):
    """An event with the position of its record, and the code of the line that it waits for.

    That is the event that its line announces, or the line that may rename it.
    """

    position: int
    event: Event
    waits_for: str = ""
    place: int = 0
    """The position among the lines of its family."""


class _Remark(msgspec.Struct):
    """The content of a line about an event that follows."""

    position: int
    rule: KernelRule
    groups: dict[str, str]
    pci: str | None
    provenance: Provenance
    time: Instant


class KernelLogParser:
    """Joins the lines of one log, or of one boot, to events. Not safe for use by two threads."""

    def __init__(self) -> None:
        """Start empty."""
        self._position = 0
        self._places: Counter[str] = Counter()
        self._seen: list[_Seen] = []
        self._last: dict[str, deque[_Seen]] = {}
        self._taken: list[_Seen] = []
        self._remarks: list[_Remark] = []
        self._clean_ups = CleanUps()
        self._identities: dict[str, str] = {}

    @property
    def holds_back(self) -> bool:
        """Return whether an event waits for the line that its header announced."""
        return bool(self._seen)

    def held_since(self, settled_before: Instant) -> float | None:
        """Return the time from which lines must be read again after a restart, in nanoseconds since boot, or None.

        Waiting events need their lines, and a firmware record also its first lines, which describe later ones.
        """
        seen = [seen.event.time.boottime_ns - _longer(seen.event.fields) for seen in self._seen]
        said = [one.time for one in self._remarks if "record" in one.groups]
        young = [time.boottime_ns for time in said if time.boottime_ns > settled_before.boottime_ns - RECORD_NS]
        return min([*seen, *young], default=None)

    def feed(self, line: Line, time: Instant, number: int | None = None) -> bool:
        """Take one *line* of *time*; return whether a rule matches it. *number* is the line number in a file."""
        self._position += 1
        match = match_line(line)
        if match is None:
            return False
        self._places[_family(match.rule.code)] += 1
        self._handle(match, line, time, number)
        return True

    def take(self, settled_before: Instant | None = None) -> list[Event]:
        """Return the events so far, in the order of their lines, and forget them.

        An event that only its header announced is held back while it is younger than *settled_before*, because the
        announced line may still follow, and one of a firmware record until ECHO_SECONDS after it, because a slow
        console may split the record; without *settled_before* nothing is held back.
        """
        held: list[_Seen] = []
        ready: list[Event] = []
        for seen in self._seen:
            if seen.waits_for and _younger(seen.event, settled_before):
                held.append(seen)
            else:
                ready.append(seen.event)
                self._taken.append(seen)
        self._seen = []
        self._last.clear()
        for seen in held:
            self._note(seen)
        self._taken = [seen for seen in self._taken if _may_be_repeated(seen.event)][-MAXIMUM_ADDRESSES:]
        return self._clean_ups.attributed(ready)

    def _handle(self, match: Match, line: Line, time: Instant, number: int | None) -> None:
        rule, groups = match.rule, match.groups
        pci = _pci_of(match)
        match rule.kind:
            case RuleKind.IGNORE:
                pass  # it is complete: no later line belongs to it
            case RuleKind.IDENTITY:
                if pci:
                    keep(self._identities, known_as(pci, line.provenance), groups["uuid"])
            case RuleKind.CONTEXT:
                sure = provenance_of(match, line) if rule.proof else line.provenance
                self._remarks.append(_Remark(self._position, rule, groups, pci, sure, time))
                # Only near remarks can be joined, and a log may repeat a remark for ever.
                self._remarks = [one for one in self._remarks if self._is_kept(one, time)][-MAXIMUM_ADDRESSES:]
            case RuleKind.DETAIL:
                self._add_detail(rule, groups, pci, line.provenance, time)
            case RuleKind.RENAME:
                self._rename(rule, provenance_of(match, line), time)
            case RuleKind.ECHO if self._add_detail(rule, groups, pci, provenance_of(match, line), time):
                pass
            case RuleKind.ECHO if self._was_seen(rule, groups, pci, provenance_of(match, line), time):
                pass
            case RuleKind.HEADER:
                event = self._event(match, pci, line, time, number)
                self._note(self._new(event, rule.joins))
            case _:
                event = self._event(match, pci, line, time, number)
                event = self._join_before(event)
                if rule.kind is RuleKind.EVENT and rule.joins:
                    self._lend_address(rule.joins, event)
                waits_for = rule.joins if rule.joins in _renaming() else _unit_to_come(event)
                self._note(self._new(event, waits_for))

    def _new(self, event: Event, waits_for: str) -> _Seen:
        return _Seen(self._position, event, waits_for, self._places[_family(event.code)])

    def _note(self, seen: _Seen) -> None:
        self._seen.append(seen)
        # Each has its own line, so no more of one family can be near.
        self._last.setdefault(_family(seen.event.code), deque(maxlen=JOIN_RECORDS + 1)).append(seen)

    def _event(self, match: Match, pci: str | None, line: Line, time: Instant, number: int | None) -> Event:
        groups = match.groups
        code = match.rule.code
        fields = {name: value for name, value in groups.items() if name not in _OWN_GROUPS and value}
        if fields.get("link", "").isdecimal():
            fields["link"] = str(int(fields["link"]))
        pid = _positive(groups.get("pid"))
        process = groups.get("process") or None
        if "number" in groups:
            xid = int(groups["number"])
            code = f"{code}.{xid}"
            if match.rule.code == "nvidia.xid":
                body = decode_body(xid, line.text[match.end :])
                pid, process = body.pid, body.process
                fields |= body.fields
                if body.variant:
                    fields["variant"] = body.variant
        if instance := _GPU_INSTANCE.search(groups.get("address", "")):
            fields["gpu_instance"] = str(int(instance["instance"]))
        provenance = provenance_of(match, line)
        if pci and (uuid := self._identities.get(known_as(pci, provenance))):
            fields["gpu_uuid"] = uuid
        event = Event(
            code=code,
            source=SOURCE,
            time=time,
            text=line.text,
            severity=match.rule.severity or Severity.ERROR,
            pci=pci,
            sequence=line.sequence,
            stamp_us=_stamp_us(line),
            line=number,
            pid=pid,
            process=process,
            fields=fields,
            provenance=provenance,
        )
        return msgspec.structs.replace(event, severity=match.rule.severity or policy_of(event).severity)

    def _join_before(self, event: Event) -> Event:
        """Add the preceding lines about *event*: headers are withdrawn, remarks are used up."""
        near = [seen for seen in self._near_seen(event.code, event.time) if _announces(seen, event)]
        for seen in _headers_of(event, near):
            if _is_as_sure(seen.event.provenance, event.provenance):
                event = _with_fields(event, seen.event.fields)
            self._seen.remove(seen)
            self._last[_family(seen.event.code)].remove(seen)
        for remark in [one for one in self._remarks if _is_about(one, event)]:
            groups = {name: value for name, value in remark.groups.items() if name not in _OWN_GROUPS}
            event = _with_fields(event, groups)
            if event.pci is None and remark.pci:
                event = msgspec.structs.replace(event, pci=remark.pci)
            if _is_as_sure(event.provenance, remark.provenance):
                self._remarks.remove(remark)  # a text leaves the remark to the kernel event that it is about
        severity = STATED_SEVERITIES.get(_stated(event).lower())
        return event if severity is None else msgspec.structs.replace(event, severity=severity)

    def _near_seen(self, code: str, time: Instant) -> list[_Seen]:
        """Return the events of the family of *code* whose lines are near a line of *time*, the latest first."""
        return [seen for seen in reversed(self._last.get(_family(code), ())) if self._is_near(seen, time)]

    def _is_kept(self, remark: _Remark, now: Instant) -> bool:
        """Return whether *remark* may still apply to a later line."""
        return self._position - remark.position <= JOIN_RECORDS or _is_of_moment(remark.time, now)

    def _may_repeat(self, seen: _Seen, groups: dict[str, str], pci: str | None, time: Instant) -> bool:
        """Return whether a line about *pci* may repeat *seen*: by position, or by time for one device or record.

        A line of a firmware record repeats events of that record only.
        """
        if "record" in groups and not _of_record(groups, seen.event):
            return False
        is_named = "record" in groups or (pci is not None and seen.event.pci is not None)
        is_of_device = is_named and _is_of_moment(seen.event.time, time)
        return (self._is_near(seen, time) or is_of_device) and _same(seen.event.pci, pci)

    def _add_detail(
        self, rule: KernelRule, groups: dict[str, str], pci: str | None, provenance: Provenance, time: Instant
    ) -> bool:
        """Add *groups* to the latest near event that *rule* is about; return whether there is one.

        A kernel line that repeats an event is not joined to a text as its echo, and a text adds nothing
        to evidence.
        """
        is_text = provenance is Provenance.TEXT
        alike: list[_Seen] = []
        others: list[_Seen] = []
        for seen in itertools.takewhile(lambda seen: self._is_recent(seen, time), reversed(self._seen)):
            if not _joins(rule.joins, seen.event) or not self._may_repeat(seen, groups, pci, time):
                continue
            if (seen.event.provenance is Provenance.TEXT) is is_text:
                alike.append(seen)
                break  # a storm has thousands of events, and as many details
            others.append(seen)
        if not alike and not is_text and rule.kind is RuleKind.DETAIL:
            alike = others[:1]
        for seen in alike:
            event = _with_fields(seen.event, {k: v for k, v in groups.items() if k not in _OWN_GROUPS and v})
            seen.event = msgspec.structs.replace(
                event,
                pci=event.pci or pci,
                pid=event.pid or _positive(groups.get("pid")),
                process=event.process or groups.get("process") or None,
            )
            if seen.waits_for == OF_UNIT and not _unit_to_come(seen.event):
                seen.waits_for = ""
        return bool(alike) or (is_text and bool(others))

    def _was_seen(
        self, rule: KernelRule, groups: dict[str, str], pci: str | None, provenance: Provenance, time: Instant
    ) -> bool:
        """Return whether *rule* repeats an event of an earlier read, whose origin is at least as certain."""
        return any(
            _joins(rule.joins, seen.event)
            and self._may_repeat(seen, groups, pci, time)
            and _is_as_sure(seen.event.provenance, provenance)
            and abs(time.boottime_ns - seen.event.time.boottime_ns) <= ECHO_SECONDS * 1e9
            for seen in self._taken
        )

    def _is_recent(self, seen: _Seen, time: Instant) -> bool:
        """Return whether a present line may be about *seen*, by position or time; events before it are older."""
        return self._position - seen.position <= JOIN_RECORDS or _is_of_moment(seen.event.time, time)

    def _is_near(self, seen: _Seen, time: Instant) -> bool:
        """Return whether the line of *seen* is near enough to belong to this one of *time*."""
        if self._position - seen.position <= JOIN_RECORDS:
            return True
        between = self._places[_family(seen.event.code)] - seen.place
        return between <= JOIN_RECORDS and _is_of_moment(seen.event.time, time)

    def _rename(self, rule: KernelRule, provenance: Provenance, time: Instant) -> None:
        """Give the latest event of the family the code of *rule*, where it waits for that; the wait is then over.

        A text does not rename evidence.
        """
        for seen in self._near_seen(rule.code, time):
            if self._places[_family(rule.code)] - seen.place > RENAME_RECORDS:
                return
            waits = seen.waits_for not in ("", OF_UNIT)
            if waits and _joins(rule.joins, seen.event) and _is_as_sure(provenance, seen.event.provenance):
                event = msgspec.structs.replace(seen.event, code=rule.code)
                seen.event = msgspec.structs.replace(event, severity=policy_of(event).severity)
                seen.waits_for = _unit_to_come(seen.event)
            return

    def _lend_address(self, joins: str, event: Event) -> None:
        """Give the address of *event* to the event just before it that caused it and has no address."""
        for seen in self._near_seen(joins, event.time):
            if event.pci is None:
                return
            if (
                seen.event.pci is None
                and _joins(joins, seen.event)
                and _is_as_sure(event.provenance, seen.event.provenance)
            ):
                seen.event = msgspec.structs.replace(_with_fields(seen.event, {"pci_from": event.code}), pci=event.pci)
                return


def events_from_lines(
    lines: Iterable[str], *, origin: Origin | None = None, boot_id: str = "", parser: KernelLogParser | None = None
) -> list[Event]:
    """Return the events in *lines* of a saved log, in order; ``line`` counts from 1.

    *origin* replaces an unknown origin, such as Origin.KERNEL for text from the kernel's ring. The time is the one that
    the lines state: seconds since boot, the wall clock, both, or 0 without either.
    """
    parser = parser or KernelLogParser()
    waiting: tuple[Line, int] | None = None
    is_foreign = False
    for number, raw in enumerate(lines, start=1):
        line = split_line(raw)
        is_foreign = is_of_program(raw, is_foreign)
        if is_foreign and is_json_message(raw):
            line = msgspec.structs.replace(line, origin=Origin.PROGRAM)
        if origin is not None and line.origin is Origin.UNKNOWN:
            line = msgspec.structs.replace(line, origin=origin)
        if waiting is not None:
            first, first_number = waiting
            waiting = None
            if looks_like_continuation(line):
                whole = msgspec.structs.replace(first, text=_joined(first.text, line.text))
                if parser.feed(whole, stated_time(whole, boot_id), first_number):
                    continue
            elif _is_torn(first):
                parser.feed(first, stated_time(first, boot_id), first_number)
        if _is_torn(line):
            waiting = (line, number)
            continue
        fits = parser.feed(line, stated_time(line, boot_id), number)
        waiting = (line, number) if line.headed and not fits else None
    if waiting is not None and _is_torn(waiting[0]):
        parser.feed(waiting[0], stated_time(waiting[0], boot_id), waiting[1])
    return parser.take()


@functools.lru_cache(maxsize=1)
def _renaming() -> frozenset[str]:
    """Return the codes that a later line may give to an event."""
    return frozenset(rule.code for rule in kernel_rules() if rule.kind is RuleKind.RENAME)


@functools.lru_cache(maxsize=1)
def _repeated() -> str:
    """Return the code prefixes of all events that another line may repeat."""
    return "|".join(rule.joins for rule in kernel_rules() if rule.kind is RuleKind.ECHO and rule.joins)


def _family(code: str) -> str:
    """Return the first part of *code*: lines of one family may belong together."""
    return code.partition(".")[0]


def _may_be_repeated(event: Event) -> bool:
    return _joins(_repeated(), event)


@functools.lru_cache(maxsize=1)
def _of_units() -> str:
    """Return the code prefixes of all events whose unit a later line names."""
    named = (rule for rule in kernel_rules() if rule.kind is RuleKind.DETAIL)
    return "|".join(rule.joins for rule in named if any(f"(?P<{name}>" in rule.pattern for name in UNIT_FIELDS))


@functools.lru_cache(maxsize=1)
def _of_devices() -> str:
    """Return the code prefixes of all events whose device a later line names by its address."""
    named = (rule for rule in kernel_rules() if rule.kind is RuleKind.DETAIL)
    return "|".join(rule.joins for rule in named if "(?P<pci>" in expanded(rule.pattern))


def _unit_to_come(event: Event) -> str:
    """Return OF_UNIT where a later line may name the device or unit of *event*, else an empty string."""
    if policy_of(event).outcome is Outcome.PASS or event.pci or unit_of(event.fields):
        return ""
    return OF_UNIT if _joins(_of_units(), event) or _joins(_of_devices(), event) else ""


def _is_torn(line: Line) -> bool:
    """Return whether the text is incomplete: its rest may reverse the meaning (``timeout, but soft recovered``)."""
    return line.headed and line.text.endswith((",", "=", " but"))


def _joined(text: str, rest: str) -> str:
    """Return a wrapped line as one; a mail client marks a wrap without a blank by an equals sign at the end."""
    return f"{text[:-1]}{rest}" if text.endswith("=") else f"{text} {rest}"


def stated_time(line: Line, boot_id: str = "") -> Instant:
    """Return the time that *line* states, with 0 for each clock that it does not."""
    return Instant(boot_id, int((line.seconds or 0.0) * 1e9), line.wall_seconds or 0.0)


def _pci_of(match: Match) -> str | None:
    groups = match.groups
    stated = groups.get("pci") or groups.get("address") or groups.get("port")
    pci = normalised_pci(stated) if stated else None
    # NVIDIA's own lines state the GPU's PCI function in some cases only, so it is left out in all of them.
    return base_address(pci) if pci and match.rule.code.startswith("nvidia.") else pci


def _stamp_us(line: Line) -> int | None:
    """Return the kernel's time stamp of *line* in microseconds, the same in ring and journal; None for a text."""
    if line.seconds is None or line.provenance is Provenance.TEXT:
        return None
    return round(line.seconds * 1e6)


def _is_of_moment(one: Instant, other: Instant) -> bool:
    """Return whether two stated times are so close that one line may be about the other."""
    stated = one.boottime_ns and other.boottime_ns and one.boot_id == other.boot_id
    return bool(stated) and abs(one.boottime_ns - other.boottime_ns) <= ECHO_SECONDS * 1e9


def _positive(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and int(text) > 0 else None


def _same(one: str | None, other: str | None) -> bool:
    return one is None or other is None or is_same_address(one, other)


def _with_fields(event: Event, more: dict[str, str]) -> Event:
    return msgspec.structs.replace(event, fields={**more, **event.fields})


def _younger(event: Event, limit: Instant | None) -> bool:
    """Return whether *event* is later than *limit*, from which headers wait; a firmware record waits longer."""
    return limit is not None and event.time.boottime_ns > limit.boottime_ns - _longer(event.fields)


def _longer(fields: Mapping[str, str]) -> float:
    return RECORD_NS if "record" in fields else 0.0


def _joins(joins: str, event: Event) -> bool:
    """Return whether the code of *event* begins with one of the names in *joins*, separated by ``|``."""
    return event.code.startswith(tuple(joins.split("|")))


def _of_record(groups: dict[str, str], event: Event) -> bool:
    """Return whether a line is of the firmware record of *event*: two processors may print theirs at the same time."""
    return groups.get("record") == event.fields.get("record")


def _is_about(remark: _Remark, event: Event) -> bool:
    """Return whether *remark* is about *event*, and its origin is at least as certain."""
    if not _joins(remark.rule.joins, event) or not _of_record(remark.groups, event):
        return False
    if remark.rule.code == NVIDIA_REMARK and not _same(remark.pci, event.pci):
        return False  # for a recovery that is not tried the kernel names the device, and then the port above it
    return _is_as_sure(remark.provenance, event.provenance)


def _announces(seen: _Seen, event: Event) -> bool:
    """Return whether *seen* is the header of *event*: as certain, of the same device and, for a fault, as grave.

    Only a port that was closed (DPC) may report its own error as a milder one.
    """
    if not seen.waits_for or not _joins(seen.waits_for, event):
        return False
    header, outcome = policy_of(seen.event).outcome, policy_of(event).outcome
    is_fatal = seen.event.severity is Severity.FATAL
    if header is not Outcome.PASS and _is_of_another(seen.event, event):
        return False
    if header is Outcome.WARN and outcome not in (Outcome.WARN, Outcome.FAIL):
        return False  # the kernel may find no details of the announced error, and a corrected error may follow
    if header is Outcome.FAIL and outcome is not Outcome.FAIL:
        is_own = outcome is Outcome.WARN and not is_fatal and _same(seen.event.pci, event.pci)
        return is_own and _is_as_sure(event.provenance, seen.event.provenance)
    return _is_as_sure(event.provenance, seen.event.provenance)


def _stated(event: Event) -> str:
    """Return the severity of *event* as other lines state it."""
    cause = event.fields.get("cause", "")
    if cause.startswith(NOT_READ_FOR_IT):
        # At another stage the driver had continued without that file, and failed at something else.
        return NOT_READ_FOR_IT if event.fields.get("code", "").startswith(FIRMWARE_NOT_READ) else ""
    return event.fields.get("record_severity") or cause


def _is_of_another(header: Event, event: Event) -> bool:
    """Return whether *header* names another device than that of *event*, behind the port that printed it."""
    port = normalised_pci(header.fields.get("port", ""))
    names_its_port = header.pci is not None and port is not None and is_same_address(header.pci, port)
    return not names_its_port and not _same(header.pci, event.pci)


def _headers_of(event: Event, near: list[_Seen]) -> list[_Seen]:
    """Return the headers in *near* that are of *event*: for faults those of the port that announced it.

    Several ports may be closed at the same time. Where none of them names the device of *event*, none is joined.
    """
    grave = [seen.event for seen in near if policy_of(seen.event).outcome is not Outcome.PASS]
    ports = {_printed_by(one) for one in grave}
    if len(ports) > 1:
        ports = {_printed_by(one) for one in grave if one.pci and event.pci and is_same_address(one.pci, event.pci)}
    return [seen for seen in near if seen.event not in grave or _printed_by(seen.event) in ports]


def _printed_by(header: Event) -> str | None:
    return normalised_pci(header.fields.get("port", "")) or header.pci


def _is_as_sure(one: Provenance, other: Provenance) -> bool:
    """Return whether *one* is evidence where *other* is: evidence is never joined to text that any user can write."""
    return one is not Provenance.TEXT or other is Provenance.TEXT
