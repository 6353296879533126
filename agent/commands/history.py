"""List every change of every finding of this node and its devices, and every load, oldest first."""

from __future__ import annotations

import argparse
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from nodevet.agent.simulated.origin import simulated_owner
from nodevet.agent.store.database import DamagedError
from nodevet.agent.store.opening import DATABASE_NAME, read_store
from nodevet.agent.store.rows import HistoryRow, SeenDevice
from nodevet.agent.store.store import Store
from nodevet.agent.terminal import exits
from nodevet.agent.terminal.output import paint, say, table
from nodevet.checks.core.counts import count_of
from nodevet.checks.core.errors import StoreError, UsageError
from nodevet.checks.core.model import NODE, Device, Episode, Instant, Result, State
from nodevet.checks.core.recall import recalled
from nodevet.checks.engine.acknowledgement import date_words, is_word
from nodevet.checks.engine.completeness import LOAD, Completeness, absent, account, without
from nodevet.checks.engine.naming import are_called, is_place
from nodevet.checks.engine.view import KnownDevices
from nodevet.exporters.documents.schema import timestamp

from . import _options as options

RESULTS_AT_MOST = 1000
"""Number of stored results that are searched."""

MOST_CHANGES = 1_000_000
"""Upper limit of --limit; more rows would need too much memory."""

_PROVED = {State.OK: "complete", State.FAILED: "wrong", State.UNKNOWN: "incomplete"}

SUMMARY = "list the changes of findings, and the loads"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nodevet history``."""
    parser.add_argument("--device", help=f"only this device, by {options.NAMES}")
    parser.add_argument("--serial", help="only devices with this serial number, in any slot")
    parser.add_argument("--limit", type=_limit, default=200, help="number of latest changes to show (default: 200)")
    options.add_json(parser)
    options.add_places(parser)


def _limit(text: str) -> int:
    """Return the number of rows; SQLite takes a negative number for all rows, and fails at thirty digits."""
    if not text.isascii() or not text.isdigit() or not 1 <= len(text) <= len(str(MOST_CHANGES)):
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: give a number from 0 to {MOST_CHANGES}")
    return min(int(text), MOST_CHANGES)


def run(arguments: argparse.Namespace) -> int:
    """Print the changes; exit 0, or 3 without a database."""
    settings = options.configuration(arguments)
    path = Path(settings.agent.state_dir) / DATABASE_NAME
    if not path.exists():
        raise StoreError(
            f"history: {path} does not exist: neither an agent nor a burn-in has used this state directory; "
            "start `nodevet agent`, or name another directory with --state-dir"
        )
    try:
        rows, loads, names, damaged = _rows(path, arguments)
    except DamagedError as error:
        raise StoreError(f"history: {error}: start the agent, which moves it aside") from error
    rows = tuple(reversed(rows))
    simulated = simulated_owner(path.parent)
    if arguments.json:
        document = {
            "schema": "nodevet.history/1",
            "simulated": simulated is not None,
            "changes": [_change(row) for row in rows],
            "loads": [_load(load) for load in loads],
            "damaged_rows": damaged,
        }
        say(msgspec.json.encode(document).decode())
        return exits.OK
    if simulated is not None:
        say(f"history of the simulated node {simulated}")
    lines = [(row.time.wall_seconds, _line(row)) for row in rows]
    lines += [(load.ended.wall_seconds, _load_line(load, names)) for load in loads[-arguments.limit :]]
    if lines:
        ordered = [line for _, line in sorted(lines, key=lambda entry: entry[0])]
        say(table(ordered, ("TIME", "STATE", "CODE", "DEVICE", "MESSAGE")))
    else:
        asked = arguments.device or arguments.serial
        say(f"no finding of {asked} yet" if asked else "no finding yet")
    if damaged:
        say(f"{count_of(damaged, 'damaged row')} left out: check the disk of {path.parent}")
    return exits.OK


class _Load(msgspec.Struct, frozen=True):
    """The results of one burn-in on the requested devices, and the number of its results that are missing."""

    results: tuple[Result, ...]
    absent: int

    @property
    def ended(self) -> Instant:
        """Return when its last result came."""
        return self.results[-1].ended

    @property
    def proved(self) -> Completeness:
        """Return its completeness."""
        return without(account((), self.results), self.absent, "the history")


def _rows(
    path: Path, arguments: argparse.Namespace
) -> tuple[tuple[HistoryRow, ...], tuple[_Load, ...], dict[str, str], int]:
    """Return changes, newest first, burn-ins, oldest first, the devices' addresses, and the number of damaged rows.

    Damaged rows are left out.
    """
    with closing(read_store(path)) as store:
        seen = store.devices_seen()
        devices = _device_ids(arguments.device, seen, _inventory(store)) if arguments.device else None
        rows = store.history(devices=devices, serial=arguments.serial, limit=arguments.limit)
        serials = {entry.device for entry in seen if entry.serial == arguments.serial}
        wanted = [chosen for chosen in (devices, serials if arguments.serial else None) if chosen is not None]
        loads = _by_load(tuple(reversed(store.results(limit=RESULTS_AT_MOST))))
        names = {entry.device: entry.pci or entry.device for entry in seen}
        return rows, tuple(_narrowed(loads, wanted)), names, len(store.left_out)


def _device_ids(name: str, seen: tuple[SeenDevice, ...], known: tuple[Device, ...]) -> tuple[str, ...]:
    """Return the ids of the devices that *name* stands for: every board that ever sat at an address."""
    same = {entry.device for entry in seen if is_place(name, entry.device, entry.pci, entry.serial)}
    found = same | {device.id for device in are_called(known, name)}
    if not found and name != NODE:
        places = ", ".join(sorted({entry.pci or entry.device for entry in seen})) or "none yet"
        raise UsageError(f"history: device {name} is not known on this node; known devices: {places}")
    return tuple(sorted(found)) or (NODE,)


def _inventory(store: Store) -> tuple[Device, ...]:
    """Return the devices that the agent remembers, none where that cannot be read: their numbers are known of these."""
    try:
        memory = recalled(store.load_memory()["inventory"], KnownDevices)[0]
    except (KeyError, msgspec.MsgspecError):
        return ()
    return tuple(seen.device for seen in memory.seen.values())


def _when(time: Instant) -> str:
    return datetime.fromtimestamp(time.wall_seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _line(row: HistoryRow) -> tuple[str, ...]:
    episode = row.episode
    said = episode.cleared_by or (_word(episode) if is_word(episode) else episode.finding.message)
    place = " ".join(part for part in (episode.pci or episode.key.device, _part(row)) if part)
    return (_when(row.time), paint(episode.state.value), episode.key.code, place, said)


def _word(episode: Episode) -> str:
    """Return the note of the acknowledgement, or that it has expired."""
    if episode.expired is not None:
        return f"expired: {episode.note or ''}"
    until = f", until {date_words(episode.until)}" if episode.until is not None else ""
    return f"{episode.note or ''} (by {episode.actor or 'a person'}{until})"


def _part(row: HistoryRow) -> str:
    text = str(row.episode.key.part)
    return "" if text == "device" else text


def _change(row: HistoryRow) -> dict[str, object]:
    episode = row.episode
    return {
        "number": row.number,
        "time": _when(row.time),
        "code": episode.key.code,
        "device": episode.key.device,
        "serial": episode.serial,
        "pci": episode.pci,
        "part": _part(row) or None,
        "state": episode.state.value,
        "outcome": episode.outcome.value,
        "message": episode.finding.message,
        "count": episode.count,
        "cleared_by": episode.cleared_by,
        "note": episode.note,
        "actor": episode.actor,
        "until": timestamp(episode.until),
        "expired": episode.expired is not None,
    }


def _by_load(results: tuple[Result, ...]) -> list[tuple[Result, ...]]:
    """Return *results*, oldest first, by the load that they are of, the last word of each format of each device.

    A wrong result may be there twice: as it was found, and as its load ended. Where there are more than are looked
    through, the oldest load is one of which the first ones may be missing, and left out.
    """
    loads: dict[object, dict[tuple[object, ...], Result]] = {}
    for result in results:
        load = loads.setdefault(result.conditions.get(LOAD) or result.ended, {})
        load[result.workload, result.devices, result.dtype] = result  # the last word of each
    told = [tuple(load.values()) for load in loads.values()]
    return told[1:] if len(results) >= RESULTS_AT_MOST and len(told) > 1 else told


def _narrowed(loads: Iterable[tuple[Result, ...]], wanted: Sequence[Container[str]]) -> Iterator[_Load]:
    """Yield the results of each of *loads* on devices that are in each of *wanted*, if any."""
    for load in loads:
        own = tuple(each for each in load if all(any(name in chosen for name in each.devices) for chosen in wanted))
        if own:
            yield _Load(own, absent(load))


def _load_line(load: _Load, names: Mapping[str, str]) -> tuple[str, ...]:
    proved = load.proved
    devices = sorted({device for result in load.results for device in result.devices})
    where = names.get(devices[0], devices[0]) if len(devices) == 1 else f"{len(devices)} devices"
    verified = sum(int(result.metric("gemms_verified") or 0) for result in load.results)
    said = f"{proved.verified} of {len(proved.accounts)} {proved.counted} verified, {verified} GEMMs, 0 wrong"
    return (_when(load.ended), _PROVED[proved.state], load.results[-1].workload, where, proved.reason(names) or said)


def _load(load: _Load) -> dict[str, object]:
    proved = load.proved
    return {
        "ended": _when(load.ended),
        "workload": load.results[-1].workload,
        "state": _PROVED[proved.state],
        "reason": proved.reason(),
        "accounts": [msgspec.to_builtins(entry) for entry in proved.accounts],
    }
