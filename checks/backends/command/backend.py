"""The backend of a site's own command: the command prints the readings, this module checks and returns them.

One run of the command serves one round of one group. An unusable value costs only its reading, and words are cut. Any
other mistake in the output refuses the whole document; then every device of the round is unread, and the message names
the command, its error and the next step.
"""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import NoReturn

import msgspec

from nodevet.checks.backends.base import BackendError, Context
from nodevet.checks.core.documents import copied
from nodevet.checks.core.model import (
    Device,
    Event,
    FailureKind,
    Firmware,
    Link,
    Part,
    Provenance,
    Reading,
    ReadingStatus,
    Severity,
)
from nodevet.checks.core.readings import (
    MAXIMUM_EVENTS,
    DeviceEntry,
    Document,
    EventEntry,
    Mistake,
    address_of,
    reading_of,
)
from nodevet.checks.engine.renamed import COMMANDS, are_all_renamed, same_boards

from .mending import is_one_card, with_known_identity
from .run import CommandRunner
from .unread_values import Mended, usable

LIFELINE = 0
"""Standard input of a reader child: it hangs up when the agent has ended."""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MISTAKES_TOLD = 3
MAXIMUM_FIELDS_TOLD = 1000

OTHERWISE = "lists all devices by other names than before, and nothing that they tell says which is which"


class CommandSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One configured command: program, timeout and groups. ``fast`` is the first group."""

    name: str
    argv: tuple[str, ...]
    timeout_seconds: float
    groups: tuple[str, ...]
    environment: dict[str, str] = {}

    @property
    def backend(self) -> str:
        """Return the name of its backend."""
        return COMMANDS + self.name


class Round(msgspec.Struct):
    """One run for one group: its entries or its failure, and the devices already served.

    ``entries`` are keyed by the device ids of the previous list, which the agent knows.
    """

    entries: dict[str, DeviceEntry]
    failure: BackendError | None
    served: set[str]


class CommandBackend:
    """The devices in the output of one command."""

    def __init__(self, spec: CommandSpec, context: Context) -> None:
        """Prepare to run the command of *spec* when something is to be read."""
        self.groups = spec.groups
        self.versions: dict[str, str] = {}
        self._spec = spec
        self._context = context
        self._runner = runner(spec, context.root, lifeline=LIFELINE)
        self._devices: tuple[Device, ...] | None = None
        self._listed: tuple[Device, ...] = ()
        self._rounds: dict[str, Round] = {}
        self._keys: dict[str, frozenset[tuple[str, str, Part]]] = {}
        self._events: list[Event] = []
        self._ids: dict[str, str] = {}
        self._known_events: dict[EventEntry, None] = {}
        self._identities: dict[str, DeviceEntry] = {}
        self._told_fields: set[tuple[str, str]] = set()
        self._last_said = ""

    def devices(self) -> tuple[Device, ...]:
        """Return the devices of the last document of the last group. Raises BackendError where there never was one."""
        self._rounds.clear()
        if self._devices is None:
            self._take(self.groups[-1])
        devices = self._devices or ()
        if not devices:
            raise self._nothing()
        self._listed = devices
        return devices

    def read(self, group: str, device: Device) -> Iterable[Reading]:
        """Return the command's readings for *group* of *device*; the first device of a round starts the run.

        Raises BackendError where it printed no valid document, or reports the device as unreadable.
        """
        current = self._rounds.get(group)
        if current is None or device.id in current.served:
            current = self._rounds[group] = self._run(group)
        current.served.add(device.id)
        if current.failure is not None:
            raise BackendError(current.failure.failure.kind, current.failure.failure.detail)
        entry = current.entries.get(device.id)
        if entry is None and device.parent in current.entries:
            raise BackendError(FailureKind.ERROR, f"{self._spec.backend} lists its board, and not this part any more")
        if entry is None and are_all_renamed((known.id for known in self._listed), current.entries):
            raise BackendError(FailureKind.ERROR, f"{self._spec.backend} {OTHERWISE}")
        if entry is None:
            raise BackendError(FailureKind.ERROR, f"{self._spec.backend} does not list it any more")
        if entry.failure is not None:
            why = f"{self._spec.backend} says: {entry.failure.detail}"
            raise BackendError(FailureKind(entry.failure.kind), why, of_driver=True)
        return self._readings(entry)

    def events(self) -> Iterator[Event]:
        """Return the events in the documents since the last call."""
        events, self._events = self._events, []
        return iter(events)

    def close(self) -> None:
        """Do nothing: no run continues between readings."""

    def _run(self, group: str) -> Round:
        """Run the command for *group*; its failure is reported for every device of the round."""
        try:
            entries = self._take(group)
        except BackendError as error:
            return Round({}, error, set())
        return Round(entries, None if entries else self._nothing(), set())

    def _nothing(self) -> BackendError:
        """Return the error for an empty list: a script whose tool was killed prints that too, so no device is lost."""
        return BackendError(FailureKind.NO_DEVICES, f"{self._spec.backend} ({self._spec.argv[0]}) lists no device")

    def _take(self, group: str) -> dict[str, DeviceEntry]:
        """Run the command and return its entries by device id. Raises BackendError."""
        self._context.progress.write(f"run {self._spec.backend} for group {group}: {self._spec.argv[0]}")
        found, _, said = taken(self._spec, self._runner, group)
        self._tell_unusable(found.unusable)
        entries = with_known_identity(found.document.devices, self._identities)
        document = msgspec.structs.replace(found.document, devices=entries)
        ids = {entry.id: self._id(entry) for entry in document.devices}
        self._identities, self._ids = {entry.id: entry for entry in entries}, ids
        self._refuse_repeats(group, document, ids)
        if said and said != self._last_said:
            self._context.note("info", "command said", line=said)
        self._last_said = said
        devices = tuple(_device(self._spec, entry, ids) for entry in document.devices)
        if group == self.groups[-1]:
            self._devices = devices
            self.versions = dict(document.versions)
        names = self._names(devices)
        here = {name: names[reported] for name, reported in ids.items()}
        self._queue(document.events, here)
        return {here[entry.id]: entry for entry in document.devices}

    def _id(self, entry: DeviceEntry) -> str:
        """Return the id of a device; that of before if the command only began to tell another identifier of it."""
        before = self._identities.get(entry.id)
        if before is not None and is_one_card(entry, before):
            return self._ids[entry.id]
        return identity(self._spec, entry)

    def _tell_unusable(self, unusable: Mapping[str, Mapping[str, str]]) -> None:
        """Report optional fields that were removed, each one once."""
        fields = {(name, field): value for name, lost in unusable.items() for field, value in lost.items()}
        if fields.keys() <= self._told_fields or len(self._told_fields) > MAXIMUM_FIELDS_TOLD:
            return
        self._told_fields |= fields.keys()
        first = [f"{field} {value} of {name}" for (name, field), value in fields.items()][:MISTAKES_TOLD]
        text = f"{len(fields)} fields are set aside: {', '.join(first)}"
        line = f"{text}; next: nodevet readings check --command {self._spec.name}"
        self._context.note("warning", "command prints unusable fields", line=line)

    def _names(self, devices: Iterable[Device]) -> dict[str, str]:
        """Return the ids of *devices* in the previous list, by which the agent reads them, under their present ids."""
        reported = tuple(devices)
        known = same_boards(self._listed, reported)
        names = {device.id: known.get(device.id, device.id) for device in reported}
        return names if len(set(names.values())) == len(names) else {device.id: device.id for device in reported}

    def _refuse_repeats(self, group: str, document: Document, ids: dict[str, str]) -> None:
        """Refuse a reading that another group has too: a counter would be counted twice."""
        if len(self.groups) == 1:
            return
        keys = frozenset(
            (ids[device.id], entry.quantity, reading_of(entry).part)
            for device in document.devices
            for entry in device.readings
        )
        for other, others in self._keys.items():
            repeated = sorted(keys & others) if other != group else []
            if repeated:
                device, quantity, part = repeated[0]
                text = f"prints {quantity} of {part} of {device} for group {other} and for {group}: print it for one"
                raise _refused(self._spec, text)
        self._keys[group] = keys

    def _readings(self, entry: DeviceEntry) -> tuple[Reading, ...]:
        """Return the readings of *entry*. Raises BackendError where none was measured: the device is then unknown."""
        readings = tuple(map(reading_of, entry.readings))
        if not any(reading.status is ReadingStatus.OK for reading in readings):
            first = readings[0]
            raise BackendError(
                FailureKind.ERROR,
                f"{self._spec.backend} measured nothing of it: {first.quantity} is {first.status.value}"
                + (f" ({first.detail})" if first.detail else ""),
            )
        return readings

    def _queue(self, entries: Iterable[EventEntry], ids: dict[str, str]) -> None:
        """Add the events that are new: a command may print old ones again."""
        for entry in sorted(entries, key=lambda entry: entry.sequence):
            is_known = entry in self._known_events
            self._known_events.pop(entry, None)
            self._known_events[entry] = None  # the newest stay last
            if is_known:
                continue
            device = ids.get(entry.device or "")
            is_unlisted = entry.device is not None and device is None
            self._events.append(
                Event(
                    code=f"{self._spec.backend}.{entry.code}",
                    source=self._spec.backend,
                    time=self._context.now(),
                    text=f"{entry.device}, which is not listed: {entry.text}" if is_unlisted else entry.text,
                    severity=Severity(entry.severity),
                    device=device,
                    sequence=entry.sequence,
                    provenance=Provenance.DRIVER,
                )
            )
        for entry in list(self._known_events)[: -2 * MAXIMUM_EVENTS]:
            del self._known_events[entry]


def open_backend(context: Context) -> CommandBackend:
    """Return the backend of the command in the options of *context*; a SIGTERM also ends its run."""
    signal.signal(signal.SIGTERM, _terminated)
    return CommandBackend(msgspec.convert(context.options, CommandSpec), context)


def runner(spec: CommandSpec, root: str, *, lifeline: int | None = None) -> CommandRunner:
    """Return the runner for the command of *spec*; it passes only PATH and HOME of the agent's own environment."""
    environment = {
        "PATH": os.environ.get("PATH", DEFAULT_PATH),
        "HOME": os.environ.get("HOME", "/"),
        "LC_ALL": "C",
        "NODEVET_ROOT": root,
        **spec.environment,
    }
    return CommandRunner(spec.argv, environment, spec.timeout_seconds, lifeline)


def taken(spec: CommandSpec, runs: CommandRunner, group: str) -> tuple[Mended, tuple[Mistake, ...], str]:
    """Return the document of one run for *group*, its mistakes, and its last line of standard error.

    Raises BackendError where the document is refused.
    """
    try:
        printed = runs.run(NODEVET_GROUP=group)
    except BackendError as error:
        raise _refused(spec, error.failure.detail, error.failure.kind) from error
    found, mistakes = usable(printed.output)
    if found is None:
        reported = "; ".join(map(str, mistakes[:MISTAKES_TOLD]))
        more = f"; and {len(mistakes) - MISTAKES_TOLD} more" if len(mistakes) > MISTAKES_TOLD else ""
        beginning = repr(printed.output[:60].decode("utf-8", "replace"))
        begins = f" (it begins with {beginning})" if printed.output.strip() else ""
        said = f"; its last line on standard error: {printed.last_line}" if printed.last_line else ""
        raise _refused(spec, f"printed no proper document{begins}: {reported}{more}{said}")
    return found, mistakes, printed.last_line


def identity(spec: CommandSpec, entry: DeviceEntry) -> str:
    """Return the id of a device on this node: its UUID, else its PCI address, else its name after the command's name.

    A partition shares the PCI address of the whole device.
    """
    address = address_of(entry.pci) if entry.pci and entry.parent is None else None
    return entry.uuid or address or f"{spec.name}:{entry.id}"


def _device(spec: CommandSpec, entry: DeviceEntry, ids: dict[str, str]) -> Device:
    return copied(
        Device,
        entry,
        id=ids[entry.id],
        kind=entry.device_kind,
        backend=spec.backend,
        pci=address_of(entry.pci) if entry.pci else None,
        parent=None if entry.parent is None else ids[entry.parent],
        firmware=tuple(Firmware(firmware.component, firmware.version) for firmware in entry.firmware),
        links=tuple(Link(link.port, _peer(link.peer, ids), link.generation) for link in entry.links),
    )


def _peer(name: str | None, ids: dict[str, str]) -> str | None:
    """Return the id on the node of *name*, a device of this document or a PCI address."""
    return None if name is None else ids.get(name) or address_of(name)


def _refused(spec: CommandSpec, text: str, kind: FailureKind = FailureKind.ERROR) -> BackendError:
    return BackendError(
        kind, f"{spec.backend} ({spec.argv[0]}) {text}; next: nodevet readings check --command {spec.name}"
    )


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    """Leave through every ``finally``, so that a running command is ended too, then end by the same signal."""
    atexit.register(_end_by_signal)
    raise SystemExit(128 + signal.SIGTERM)


def _end_by_signal() -> None:
    """End this process by SIGTERM itself, so that its parent sees that signal."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
