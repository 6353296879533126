"""The faults that a person acknowledges by resuming the node in SLURM, in the form for the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from nodevet.checks.core.model import Episode, EpisodeState, Instant
from nodevet.checks.engine.acknowledgement import Returns, is_over
from nodevet.checks.engine.engine import Engine
from nodevet.exporters.slurm.known import KnownFault

RESUMER = "somebody in SLURM"
"""The actor of a resume: SLURM does not keep the name."""


class Acknowledged(msgspec.Struct, frozen=True):
    """A fault that a person acknowledged by resuming the node, and the note for it."""

    known: KnownFault
    note: str

    @property
    def returns(self) -> Returns | None:
        """Return the time until which the resume covers returns of the fault, or None."""
        return None if self.known.until is None else Returns(self.known.until)

    def meant(self, episode: Episode) -> bool:
        """Return whether *episode* is this fault, its action is no harder, and the resume adds to its acknowledgement.

        That is: it is open, its acknowledgement has expired, or one without a term covers its returns for less time.
        """
        return (episode.state is EpisodeState.OPEN or self.adds_to(episode)) and self.known.covers(episode)

    def adds_to(self, word: Episode) -> bool:
        """Return whether the resume covers returns for longer than the acknowledgement *word*, termless or expired.

        An acknowledgement with a term that was given after the resume counts, also once it has expired.
        """
        end, known = self.known.until, word.covers
        if word.state is not EpisodeState.ACKNOWLEDGED or end is None:
            return False
        if word.expired is not None:
            return not self.known.gives_way(word)
        return word.until is None and (known is None or known.boottime_ns < end.boottime_ns)


def told(
    resumed: Iterable[KnownFault], faults: Iterable[Episode], said: Iterable[Episode], note: str, now: Instant
) -> Iterator[Acknowledged]:
    """Yield the faults of *resumed* that the ledger lacks at *now*: the open ones in *faults*, and those in *said*.

    The latter were acknowledged before: the ledger lacks that the resume covers their returns.
    """
    entries, open_faults, words = tuple(resumed), tuple(faults), tuple(said)
    yield from (Acknowledged(one.of(fault), note) for one in entries for fault in open_faults if one.covers(fault))
    for one in entries:
        if one.until is not None and one.until.boot_id == now.boot_id and not is_over(one.until, now):
            same = ((word, Acknowledged(one.of(word), note)) for word in words if one.covers(word))
            yield from (entry for word, entry in same if entry.adds_to(word))


def said(entries: Iterable[Acknowledged], engine: Engine) -> tuple[Episode, ...]:
    """Have *engine* acknowledge *entries*; return the acknowledged episodes in their state after the last entry.

    The caller judges anew once for all of them: a judgement takes up to 0.1 s, and a resume covers any number of
    faults.
    """
    done = [
        engine.acknowledge(entry.known.key, note=entry.note, actor=RESUMER, knew=entry.meant, until=entry.returns)
        for entry in entries
    ]
    keys = {episode.key for episode in done if episode is not None}
    return tuple(episode for episode in engine.episodes if episode.key in keys)
