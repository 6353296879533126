"""Rows of the database as values: what is kept of an episode, a result, a device and a minute, and verified."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from nodevet.checks.core.errors import ModelError, StoreError
from nodevet.checks.core.guard import Bug, attempt
from nodevet.checks.core.model import Episode, Instant, Result

from .database import checksum

_EPISODE = msgspec.json.Decoder(Episode)
_RESULT = msgspec.json.Decoder(Result)

COUNT_SECONDS = 3600.0
"""How often a count that only grows is written into the journal, unless it has doubled: 24 rows a day, not 1,439."""

CHANGE, COUNT = "change", "count"
"""Kinds of rows: what opened, changed or ended an episode, and how often it had occurred by then."""

_COUNTED = frozenset({"count", "finding", "flapping", "good", "last_seen", "looked", "recent"})
"""What grows or moves while an episode stays as it is; its finding counts by what it asks for, and that it flaps."""

_Decoded = TypeVar("_Decoded")


class Last(msgspec.Struct, frozen=True):
    """The present state of an episode: checksum of its text, what it is but for its counts, its last row."""

    episode: Episode
    mark: int
    nature: int
    number: int
    written: Instant | None
    written_count: int


class HistoryRow(msgspec.Struct, frozen=True):
    """One row of the journal: its number, when it was written, and the episode as it stood then."""

    number: int
    time: Instant
    episode: Episode


class SeenDevice(msgspec.Struct, frozen=True):
    """A device that was in this node at some time. Another serial under the same id is another row."""

    device: str
    serial: str | None
    vendor: str
    kind: str
    pci: str | None
    model: str
    first_seen_wall_seconds: float
    last_seen_wall_seconds: float


class Rollup(msgspec.Struct, frozen=True):
    """What one quantity of one part did within one minute (``minute`` = Unix time divided by 60)."""

    minute: int
    device: str
    quantity: str
    part: str
    minimum: float
    mean: float
    maximum: float
    count: int


class UnsavedRound(msgspec.Struct, frozen=True):
    """One round that waits to be written: episodes that changed, blobs of memory, and when."""

    episodes: tuple[Episode, ...]
    memory: dict[str, bytes]
    time: Instant

    @property
    def pieces(self) -> tuple[UnsavedRound, ...]:
        """Return the same in rounds of one episode or one blob each."""
        return (
            *(UnsavedRound((episode,), {}, self.time) for episode in self.episodes),
            *(UnsavedRound((), {name: blob}, self.time) for name, blob in self.memory.items()),
        )


def journal_columns(episode: Episode, payload: bytes, now: Instant) -> tuple[Any, ...]:
    """Return the columns of the journal, in the order of ``ROW``, for *episode* as of *now*."""
    return (
        now.wall_seconds,
        now.boot_id,
        now.boottime_ns,
        episode.key.code,
        episode.key.device,
        str(episode.key.part),
        episode.serial,
        episode.state.value,
        payload,
    )


def unkeepable(value: Episode | Result | Rollup) -> str:
    """Return why *value* cannot be kept (not a number, half a letter, no JSON), or an empty string where it can."""
    done = attempt(lambda: msgspec.json.decode(msgspec.json.encode(value), type=type(value)))
    return f"{type(value).__name__.lower()} dropped, it cannot be kept: {done.error}" if isinstance(done, Bug) else ""


def encoded(episode: Episode) -> bytes:
    """Return *episode* as it is kept; refuse what could not be read back (JSON has no NaN)."""
    try:
        payload = msgspec.json.encode(episode)
        _EPISODE.decode(payload)
    except (msgspec.MsgspecError, ModelError, TypeError) as error:
        raise StoreError(f"episode {episode.key} cannot be kept: {error}") from error
    return payload


def nature_of(episode: Episode) -> int:
    """Return a number that stays the same while of *episode* only counts grow, and what its finding says of them."""
    own = [getattr(episode, name) for name in episode.__struct_fields__ if name not in _COUNTED]
    finding = episode.finding
    asked = (finding.outcome, finding.fault_class, finding.action, finding.clearing, finding.gates)
    return zlib.crc32(repr((own, asked, episode.flapping > 0)).encode("utf-8", "surrogatepass"))


def differs(before: Last | None, payload: bytes) -> bool:
    """Return whether *payload* says something else than the present state *before*."""
    return before is None or before.mark != zlib.crc32(payload)


def is_due(written: Instant | None, count: int, episode: Episode, now: Instant) -> bool:
    """Return whether a count is written: an hour after the last row of its episode, or when it has doubled since."""
    seconds = None if written is None else now.seconds_since(written)
    return seconds is None or seconds >= COUNT_SECONDS or episode.count >= 2 * max(count, 1)


def whole_row(row: tuple[Any, ...]) -> HistoryRow | None:
    """Return a row of the journal, or None where it does not match its checksum or cannot be read."""
    number, wall, boot_id, boottime_ns = row[:4]
    try:
        episode = _decoded(_EPISODE, row[9], row[10], *row[1:10])
        return HistoryRow(number, Instant(boot_id, boottime_ns, wall), episode)
    except (sqlite3.DatabaseError, ModelError, TypeError):
        return None


def whole_result(row: tuple[Any, ...]) -> Result | None:
    """Return a result from its workload, payload and checksum, or None where they do not match or cannot be read."""
    try:
        return _decoded(_RESULT, row[1], row[2], *row[:2])
    except (sqlite3.DatabaseError, TypeError):
        return None


def _verified(value: bytes, mark: int, *columns: Any) -> bytes:
    if checksum(*columns) != mark:
        raise sqlite3.DatabaseError("a row does not match its checksum")
    return value


def _decoded(decoder: msgspec.json.Decoder[_Decoded], payload: bytes, mark: int, *columns: Any) -> _Decoded:
    try:
        return decoder.decode(_verified(payload, mark, *columns))
    except (msgspec.DecodeError, ModelError) as error:
        raise sqlite3.DatabaseError(f"a row cannot be read: {error}") from error


def verified_episode(payload: bytes, mark: int, *columns: Any) -> Episode | None:
    """Return the episode in *payload*, or None where *columns* do not match *mark* or it cannot be read."""
    try:
        return _decoded(_EPISODE, payload, mark, *columns)
    except (sqlite3.DatabaseError, TypeError):
        return None


def set_aside(run: Callable[..., sqlite3.Cursor], table: str, numbers: Sequence[int]) -> int:
    """Note that the rows of *numbers* in *table* are damaged, and return of how many that is news."""
    return sum(run("INSERT OR IGNORE INTO set_aside VALUES (?, ?)", (table, number)).rowcount for number in numbers)
