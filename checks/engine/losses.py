"""The loss of a board: one fault that is reported under several codes, at once or later. Pure.

An acknowledgement of it covers all of them, whichever came first, until the board answers again.
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
"""One loss under two codes: a lost board is no longer listed after a restart of driver, reader or node."""


class LossCode(msgspec.Struct, frozen=True):
    """A row of reference/loss_codes.csv: another code that reports the loss of a board, at once or later.

    reference/driverless_codes.csv: codes of the node at the next boot if all boards of a driver are lost.
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
    """Return whether *code*, for a board that is known to be lost, may report only that loss."""
    return code in GONE or code in _loss_codes()


def is_same_board(key: Key, other: Key) -> bool:
    """Return whether both keys are of the same part of the same device."""
    return (key.device, key.part) == (other.device, other.part)


def loss_word(key: Key, episodes: Iterable[Episode]) -> Episode | None:
    """Return the acknowledgement in force of the same board's loss under another code; None if *key* is no loss.

    A driver's error about a board that it cannot use is the same loss only while the board does not answer: after that,
    no acknowledgement of its loss covers its next fault. One code may end in the round in which the other begins: the
    board is listed again and silent, and has not answered in between.
    """
    if not is_loss(key.code):  # most codes are no loss, and a flood of them should search no list
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
    """Return whether *word* covers the present loss: its term is not over, or its episode ended in this very round.

    Of the ended episodes, only those of this round and those whose term is not over are in the list.
    """
    is_over = word.state is EpisodeState.CLEARED and word.acknowledged is not None
    return is_over and word.expired is None


def known_loss(episode: Episode, episodes: Iterable[Episode]) -> Episode:
    """Return *episode*, if it is an open loss, with the acknowledgement in force among *episodes* of its other code.

    An event that was open before that acknowledgement is separate: the actor saw both.
    """
    if episode.state is not EpisodeState.OPEN or episode.outcome is not Outcome.FAIL or episode.key.code not in GONE:
        return episode
    return covered(episode, loss_word(episode.key, episodes))


def with_word(episodes: Iterable[Episode], word: Episode) -> tuple[Episode, ...]:
    """Return *episodes* with *word* applied to the episode of its key, and to the others of the same loss.

    A later acknowledgement replaces an earlier one, under whichever code of the loss it was given.
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
    """Return whether *episode* is acknowledged only through *word*, about the loss of its board or of each board."""
    is_all = is_driverless(episode.key) and word.key.code in GONE
    return (
        is_word(episode)
        and episode.key != word.key
        and (is_all or _is_loss_of(episode, word))
        and episode.acknowledged is not None
        and episode.acknowledged == word.acknowledged
    )


def ended_with_loss(episodes: Iterable[Episode]) -> dict[Key, str]:
    """Return the events of *episodes* that end because the acknowledged loss that covered them ended, with the proof.

    The board answers: its next fault is new, and not acknowledged.
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
    """Return *episode*, if it says that a driver has no board, with the acknowledgements of the loss of each board.

    An operator who acknowledged the loss of every board knows it. This holds until the first of those acknowledgements
    ends, or a board without one is lost.
    """
    if not is_driverless(episode.key) or episode.state not in (EpisodeState.OPEN, EpisodeState.ACKNOWLEDGED):
        return episode
    losses = [entry for entry in episodes if entry.key.code in GONE]
    is_following = any(follows(episode, word) for word in losses)
    if is_word(episode) and not is_following and episode.expired is None:
        return episode  # the driver finding itself was acknowledged
    words = _words_about_all(episode, losses, devices, remembered)
    if words:
        first = min(words, key=lambda word: math.inf if word.until is None else word.until.wall_seconds)
        known = (episode.outcome, episode.finding.action)  # an inspection of the driver is no harder action
        return covered(episode, msgspec.structs.replace(first, known=known))
    if is_following and episode.expired is None:
        return msgspec.structs.replace(
            episode, state=EpisodeState.OPEN, note=None, actor=None, acknowledged=None, until=None, known=None
        )
    return episode


def _words_about_all(
    episode: Episode, losses: Iterable[Episode], devices: Iterable[Device], remembered: Iterable[Device]
) -> list[Episode]:
    """Return the acknowledgement in force of each board of the driver of *episode*; empty if one board has none."""
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
    """Return whether *key* is the finding of the node that a driver has no board."""
    return key.device == NODE and key.code in _driverless_codes()


def taken_out(episodes: Iterable[Episode]) -> frozenset[str]:
    """Return the devices with an acknowledgement in force that they are absent: nothing of them counts."""
    return frozenset(entry.key.device for entry in standing(episodes) if entry.key.code == "device.missing")
