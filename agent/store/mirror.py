"""The mirror: what outlives a lost store, in the runtime directory: a failed verdict, and every word of a person.

It holds the episodes that are open or acknowledged, and those that are over and whose return a person's word covers.
It is written before the store is, on every change, and counts only within the boot that wrote it: after a reboot
the store alone speaks. An episode that cleared while the machine went down may thus be open once more; it never
happens that one which was open is forgotten. What has ended, and the store could not be told, is in the mirror as
ended: both carry when a thing was seen, said or over in this boot, and of the two the later one counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from nodevet.checks.core.counts import count_of
from nodevet.checks.core.documents import decoded
from nodevet.checks.core.errors import ModelError, StoreError
from nodevet.checks.core.model import Episode, EpisodeState, Key
from nodevet.checks.engine.acknowledgement import is_covering
from nodevet.checks.system.files import read_trusted, replace_file

from .store import Store

MIRROR_NAME = "episodes.json"

LARGEST_BYTES = 256 << 20
"""A hundred thousand findings; a file without end would take the memory of the node."""


class Mirror(msgspec.Struct, frozen=True):
    """What the mirror holds: the boot it belongs to, and the episodes of which each counts or has a person's word.

    ``ended`` are those that are over while the store may still have them. ``notice`` tells of those that cannot be
    read, such as one that a newer nodevet wrote: each costs itself.
    """

    boot_id: str
    episodes: tuple[Episode, ...]
    notice: str = ""
    ended: tuple[Episode, ...] = ()


class _Document(msgspec.Struct, frozen=True):
    """The file as it is written."""

    boot_id: str
    episodes: tuple[Episode, ...]
    ended: tuple[Episode, ...] = ()
    schema: str = "nodevet.mirror/1"


class _Found(msgspec.Struct, frozen=True):
    """The file as it is read."""

    boot_id: str
    episodes: tuple[msgspec.Raw, ...]
    ended: tuple[msgspec.Raw, ...] = ()


def write_mirror(path: Path, episodes: Iterable[Episode], boot_id: str, ended: Iterable[Episode] = ()) -> None:
    """Replace the mirror at *path* atomically and durably. What is pending, or over without a word, is left out.

    Of what is over the store may not know that it *ended*. Raises StoreError when the file cannot be written; the
    mirror before it is then untouched.
    """
    document = _Document(boot_id, tuple(filter(_is_mirrored, episodes)), tuple(ended))
    replace_file(path, msgspec.json.encode(document))


def read_mirror(path: Path) -> Mirror | None:
    """Return the mirror at *path*, or None where there is none.

    Raises StoreError when it is malformed, no plain file, or neither ours nor root's.
    """
    try:
        text = read_trusted(path, LARGEST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}): check and remove it") from error
    try:
        found = decoded(text, _Found)
    except msgspec.MsgspecError as error:
        raise StoreError(f"{path}: malformed ({error}): check and remove it") from error
    read = [_episode(raw) for raw in found.episodes]
    bad = [episode for episode in read if isinstance(episode, str)]
    notice = f"{path}: cannot read {count_of(len(bad), 'finding')}, not counted ({bad[0]})" if bad else ""
    ended = tuple(entry for entry in map(_episode, found.ended) if isinstance(entry, Episode))
    return Mirror(found.boot_id, tuple(episode for episode in read if isinstance(episode, Episode)), notice, ended)


def _episode(raw: msgspec.Raw) -> Episode | str:
    """Return the episode in *raw*, or why there is none."""
    try:
        return decoded(bytes(raw), Episode)
    except (msgspec.MsgspecError, ModelError) as error:
        return str(error)


def ends(store: Store, mirror: Mirror | None) -> tuple[Episode, ...]:
    """Return what the journal of *store* ends of all that *mirror* tells of, open there or over."""
    if mirror is None:
        return ()
    stored = {episode.key for episode in store.load_episodes()}
    told = [episode for episode in (*mirror.episodes, *mirror.ended) if episode.key not in stored]
    if not told:
        return ()
    since_ns = min(_order(episode, mirror.boot_id)[0] for episode in told)  # what ended before that is no news
    last = (row.episode for row in store.newest_rows({each.key for each in told}, mirror.boot_id, since_ns))
    over = (entry for entry in last if entry.state is EpisodeState.CLEARED and not is_covering(entry))
    return tuple(sorted(over, key=lambda entry: entry.key))


def restore(
    stored: Iterable[Episode], mirror: Mirror | None, boot_id: str, ended: Iterable[Episode] = ()
) -> tuple[Episode, ...]:
    """Return the episodes to go on with: those *stored*, and those of a *mirror* of this same boot.

    Both hold also what is over and whose return a person's word covers. Where both know one, that of which something
    was seen or said later counts, and of equals the one that a person acknowledged. What *ended* later than the mirror
    saw it is over, and so is what the mirror ended later than the store saw it: a word that ended with its fault covers
    no return.
    """
    found: dict[tuple[Key, bool], Episode] = {}
    mirror = mirror if mirror is not None and mirror.boot_id == boot_id else Mirror(boot_id, ())
    stored = _beyond(stored, mirror.ended, boot_id)
    mirrored = _beyond(mirror.episodes, ended, boot_id)
    for episode in (*stored, *mirrored):
        place = (episode.key, is_covering(episode))
        if place not in found or _order(episode, boot_id) > _order(found[place], boot_id):
            found[place] = episode
    return tuple(
        episode
        for (key, is_over), episode in sorted(found.items())
        if _stands(episode, found.get((key, not is_over)), boot_id)
    )


def _beyond(episodes: Iterable[Episode], ended: Iterable[Episode], boot_id: str) -> tuple[Episode, ...]:
    """Return those of *episodes* of which something was seen or said since they *ended*, or that did not."""
    over = {entry.key: _order(entry, boot_id)[0] for entry in ended}
    return tuple(episode for episode in episodes if over.get(episode.key, -1) <= _order(episode, boot_id)[0])


def _stands(episode: Episode, other: Episode | None, boot_id: str) -> bool:
    """Return whether *episode* goes on beside *other* of its key, one of which is over: one of them is out of date.

    A word covers the return of what is pending until that is confirmed.
    """
    if other is None or EpisodeState.PENDING in (episode.state, other.state):
        return True
    if is_covering(episode):
        return _order(episode, boot_id) > _order(other, boot_id)
    return _order(episode, boot_id) >= _order(other, boot_id)


def _is_mirrored(episode: Episode) -> bool:
    return episode.state in (EpisodeState.OPEN, EpisodeState.ACKNOWLEDGED) or is_covering(episode)


def _order(episode: Episode, boot_id: str) -> tuple[int, bool, bool]:
    """Return what is greater for the episode that is up to date; of this boot before the others.

    What a person acknowledged and a harder action opened anew was acknowledged before.
    """
    told = (episode.last_seen, episode.acknowledged, episode.expired, episode.cleared)
    latest = max((moment.boottime_ns for moment in told if moment and moment.boot_id == boot_id), default=-1)
    said = episode.acknowledged is not None or episode.state is EpisodeState.ACKNOWLEDGED
    return (latest, said, episode.state is EpisodeState.OPEN)
