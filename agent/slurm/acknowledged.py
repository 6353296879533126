"""What a person acknowledges who resumes the node in SLURM, as the ledger is told of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from nodevet.checks.core.model import Episode, EpisodeState, Instant
from nodevet.checks.engine.acknowledgement import Returns, is_over
from nodevet.checks.engine.engine import Engine
from nodevet.exporters.slurm.known import KnownFault

RESUMER = "somebody in SLURM"
"""Who resumed the node: SLURM forgets the name."""


class Acknowledged(msgspec.Struct, frozen=True):
    """A fault that a person resumed the node with, and what to note at it."""

    known: KnownFault
    note: str

    @property
    def returns(self) -> Returns | None:
        """Return until when the resume covers returns of the fault."""
        return None if self.known.until is None else Returns(self.known.until)

    def meant(self, episode: Episode) -> bool:
        """Return whether *episode* is that fault and asks for nothing harder, and the resume says something new of it.

        That is, where it is open, or a word about it is over, or one without a term covers its returns for less long.
        """
        return (episode.state is EpisodeState.OPEN or self.adds_to(episode)) and self.known.covers(episode)

    def adds_to(self, word: Episode) -> bool:
        """Return whether the resume covers returns for longer than the *word*, which has no term or whose term is over.

        A term that was given after the resume is the later word, also once it is over.
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
    """Yield what of *resumed* the ledger does not know yet at *now*: of *faults* which count, and of what was *said*.

    The latter are faults that a person had acknowledged before: that the resume covers their returns is new.
    """
    entries, open_faults, words = tuple(resumed), tuple(faults), tuple(said)
    yield from (Acknowledged(one.of(fault), note) for one in entries for fault in open_faults if one.covers(fault))
    for one in entries:
        if one.until is not None and one.until.boot_id == now.boot_id and not is_over(one.until, now):
            same = ((word, Acknowledged(one.of(word), note)) for word in words if one.covers(word))
            yield from (entry for word, entry in same if entry.adds_to(word))


def said(entries: Iterable[Acknowledged], engine: Engine) -> tuple[Episode, ...]:
    """Have *engine* acknowledge *entries*, and return what is acknowledged by that, as it stands after all of them.

    Who judges anew does so once for all: a judgement takes up to a tenth of a second, and a resume knows any number.
    """
    done = [
        engine.acknowledge(entry.known.key, note=entry.note, actor=RESUMER, knew=entry.meant, until=entry.returns)
        for entry in entries
    ]
    keys = {episode.key for episode in done if episode is not None}
    return tuple(episode for episode in engine.episodes if episode.key in keys)
