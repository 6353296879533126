"""The loss of a board: one fault that is told under several codes, at once or later. Pure.

A person's word about it is about all of them, whichever was there first, for as long as the board does not answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from nodevet.checks.core.model import NODE, Device, DeviceKind, Episode, EpisodeState, Key, Outcome
from nodevet.checks.reference.tables import load_table
from nodevet.checks.reference.vendors import LENT_DRIVERS

from .acknowledgement import covered, is_covering, is_word, standing

GONE = frozenset({"device.lost", "device.missing"})
"""One loss under two codes: a board that answers no more is not listed once driver, reader or node was restarted."""


class LossCode(msgspec.Struct, frozen=True):
    """A row of reference/loss_codes.csv: another code under which the loss of a board is told, at once or later.

    In reference/driverless_codes.csv: what is said of the node where all boards of a driver are lost, at the next boot.
    """

    code: str
    meaning: str
    source: str


@lru_cache(maxsize=1)
def _loss_codes() -> frozenset[str]:
    return frozenset(row.code for row in load_table("loss_codes.csv", LossCode))


@lru_cache(maxsize=1)
def _driverless_codes() -> frozenset[str]:
    return frozenset(row.code for row in load_table("driverless_codes.csv", LossCode))


def is_loss(code: str) -> bool:
    """Return whether *code* may tell of a board that is known to be lost nothing else than that."""
    return code in GONE or code in _loss_codes()


def is_same_board(key: Key, other: Key) -> bool:
    """Return whether both are about the same part of the same device."""
    return (key.device, key.part) == (other.device, other.part)


def loss_word(key: Key, episodes: Iterable[Episode]) -> Episode | None:
    """Return the word in force about the loss of the same board under another code; None where *key* is no loss.

    What the driver says of a board that it cannot use is the same loss only while the board does not answer: once it
    does, no word about its loss is about its next fault. One code may end in the round in which the other begins: the
    board is listed again and silent, and has not answered in between.
    """
    if not is_loss(key.code):  # most are not, and a flood of them looks through no list
        return None
    others = GONE - {key.code}
    return next(
        (
            word
            for word in episodes
            if word.key.code in others
            and is_same_board(word.key, key)
            and ((_covers_return(word) and key.code in GONE) or (is_word(word) and word.expired is None))
        ),
        None,
    )


def _covers_return(word: Episode) -> bool:
    """Return whether *word* is about the loss that comes now: its term is not over, or it ended in this very round.

    Of the episodes that are over only those of this round, and those whose term is not over, are among the others.
    """
    is_over = word.state is EpisodeState.CLEARED and word.acknowledged is not None
    return is_over and word.expired is None


def known_loss(episode: Episode, episodes: Iterable[Episode]) -> Episode:
    """Return *episode*, where it is an open loss, under the word in force among *episodes* about its other code.

    An event that was open before that word is another matter: who gave it saw both.
    """
    if episode.state is not EpisodeState.OPEN or episode.outcome is not Outcome.FAIL or episode.key.code not in GONE:
        return episode
    return covered(episode, loss_word(episode.key, episodes))


def with_word(episodes: Iterable[Episode], word: Episode) -> tuple[Episode, ...]:
    """Return *episodes* with that of the same key as *word* in its words, and whatever else is known of the same loss.

    A later word takes the place of an earlier one, under whichever code of the loss it was typed.
    """
    known = tuple(episodes)
    losses = [entry for entry in known if _is_loss_of(entry, word) and entry.key.code in GONE]
    return tuple(
        word
        if entry.key == word.key
        else covered(entry, word)
        if is_word(entry) and (entry in losses or any(follows(entry, loss) for loss in losses))
        else entry
        for entry in known
    )


def _is_loss_of(episode: Episode, word: Episode) -> bool:
    return word.key.code in GONE and is_loss(episode.key.code) and is_same_board(episode.key, word.key)


def follows(episode: Episode, word: Episode) -> bool:
    """Return whether *episode* is known by nothing but the *word* about the loss of its board, or of each board."""
    is_all = is_driverless(episode.key) and word.key.code in GONE
    return (
        is_word(episode)
        and episode.key != word.key
        and (is_all or _is_loss_of(episode, word))
        and episode.acknowledged is not None
        and episode.acknowledged == word.acknowledged
    )


def ended_with_loss(episodes: Iterable[Episode]) -> dict[Key, str]:
    """Return which events of *episodes* end because the loss ended whose word covered them, with the proof of that.

    The board answers: its next fault is news, and nobody spoke of it.
    """
    known = tuple(episodes)
    losses = [entry for entry in known if entry.key.code in GONE]
    lost = [entry.key for entry in losses if entry.state is not EpisodeState.CLEARED]
    return {
        episode.key: f"followed from {word.key.code}: {word.cleared_by}"
        for word in losses
        for episode in known
        if word.state is EpisodeState.CLEARED
        and episode.key.code not in GONE
        and follows(episode, word)
        and not any(is_same_board(key, word.key) for key in lost)
    }


def driverless(
    episode: Episode, episodes: Iterable[Episode], devices: Iterable[Device], remembered: Iterable[Device]
) -> Episode:
    """Return *episode*, where it says that a driver has no board, under the words about the loss of each.

    A person who knows that every board of it on the bus is dead knows what it says. It holds until the first of those
    words is over, and ends with the first board of which nobody knows.
    """
    if not is_driverless(episode.key) or episode.state not in (EpisodeState.OPEN, EpisodeState.ACKNOWLEDGED):
        return episode
    losses = [entry for entry in episodes if entry.key.code in GONE]
    is_following = any(follows(episode, word) for word in losses)
    if is_word(episode) and not is_following and episode.expired is None:
        return episode  # a person spoke of the driver itself
    words = _words_about_all(episode, losses, devices, remembered)
    if words:
        first = min(words, key=lambda word: math.inf if word.until is None else word.until.wall_seconds)
        known = (episode.outcome, episode.finding.action)  # a driver to be looked at is no harder fault than its boards
        return covered(episode, msgspec.structs.replace(first, known=known))
    if is_following and episode.expired is None:
        return msgspec.structs.replace(
            episode, state=EpisodeState.OPEN, note=None, actor=None, acknowledged=None, until=None, known=None
        )
    return episode


def _words_about_all(
    episode: Episode, losses: Iterable[Episode], devices: Iterable[Device], remembered: Iterable[Device]
) -> list[Episode]:
    """Return the word in force about each board of the driver of *episode*; none where one board has none."""
    in_force = {
        word.key.device: word
        for word in losses
        if word.expired is None and word.outcome is Outcome.FAIL and (is_word(word) or is_covering(word))
    }
    name, family = episode.key.part.name, episode.key.code.partition(".")[0]
    every = [entry for entry in (*devices, *remembered) if entry.kind is DeviceKind.ACCELERATOR and not entry.parent]
    its = [entry for entry in every if name == f"vendor:{entry.vendor}" or family == entry.vendor]
    words: list[Episode] = []
    for board in its:
        names = {board.id, *(entry.id for entry in its if board.pci is not None and entry.pci == board.pci)}
        found = [word for device, word in in_force.items() if device in names]
        if not found and board.driver not in LENT_DRIVERS:
            return []
        words += found
    return words


def is_driverless(key: Key) -> bool:
    """Return whether *key* says of the node that a driver has no board."""
    return key.device == NODE and key.code in _driverless_codes()


def taken_out(episodes: Iterable[Episode]) -> frozenset[str]:
    """Return the devices of which a word in force says that they are not there: nothing of them counts."""
    return frozenset(entry.key.device for entry in standing(episodes) if entry.key.code == "device.missing")
